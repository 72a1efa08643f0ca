/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "binding.h"
#include "hwloc.h"

/* Slurm sets these for options that give each task GPUs of its own. */
static const char *divided_by(char *(*get)(const char *name))
{
    const char *bind = get("SLURM_GPU_BIND"), *tres = get("SLURM_TRES_PER_TASK");

    if (get("SLURM_GPUS_PER_TASK"))
        return "--gpus-per-task";
    if (tres && strstr(tres, "gpu"))
        return "--tres-per-task";
    return bind && (strstr(bind, "single:") || strstr(bind, "per_task:")) ? "--gpu-bind" : NULL;
}

bool binding_gpus_hidden(char *out, size_t out_nbytes, int local_size,
                         char *(*get)(const char *name))
{
    const char *seen = get("CUDA_VISIBLE_DEVICES"), *option = divided_by(get);

    if (local_size < 2 || !option || !seen || !seen[0] || strchr(seen, ','))
        return false;
    snprintf(out, out_nbytes,
             "%s shows each of the %d ranks of a node one GPU alone (CUDA_VISIBLE_DEVICES=%.40s): "
             "they cannot reach each other's memory directly; srun --gpus-per-node=%d "
             "--gpu-bind=none shows all, and each rank takes its own",
             option, local_size, seen, local_size);
    return true;
}

bool binding_same_machine(const struct fsdp_node_map *nodes, int a, int b)
{
    if (nodes->node_of[a] == nodes->node_of[b])
        return true;
    if (!nodes->host) /* else --nodes makes HOST/node0, HOST/node1 */
        return false;
    size_t len = strcspn(nodes->host[a], "/");
    return len == strcspn(nodes->host[b], "/") && nodes->host[a][len] == '/' &&
           nodes->host[b][len] == '/' && !memcmp(nodes->host[a], nodes->host[b], len);
}

const char *binding_judge(const struct binding_card *cards, const struct fsdp_node_map *nodes,
                          int rank, int *place, int *nplaces)
{
    const cpu_set_t *wish = &cards[rank].wish;
    cpu_set_t both;
    int nlocal = 0;

    *place = *nplaces = 0;
    for (int r = 0; r < nodes->nranks; r++) {
        if (!binding_same_machine(nodes, r, rank))
            continue;
        nlocal++;
        if (CPU_EQUAL(&cards[r].wish, wish)) {
            *place += r < rank;
            ++*nplaces;
            continue;
        }
        CPU_AND(&both, &cards[r].wish, wish);
        if (CPU_COUNT(&both))
            return "ranks of this machine share cores in part";
    }
    if (*nplaces > 1 || !CPU_EQUAL(wish, &cards[rank].allowed))
        return NULL;
    return nlocal == 1 ? "the only rank of its machine" : "its cores are its own already";
}

#if HAVE_HWLOC
static void tell_binding(struct binding *out, const char *fmt, ...) FSDP_PRINTF(2, 3);
static void tell_binding(struct binding *out, const char *fmt, ...)
{
    size_t len = strlen(out->text);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out->text + len, sizeof out->text - len, fmt, ap);
    va_end(ap);
}

/* Of the cores that the rank may run on, those near its GPU. */
static void fill_card(struct binding_card *card, const struct machine *machine,
                      const struct binding_opts *opts)
{
    cpu_set_t near;

    machine_allowed(machine, &card->allowed);
    card->wish = card->allowed;
    if (!opts->gpu[0])
        return;
    if (!machine_near(machine, opts->gpu, &near)) {
        if (!opts->near)
            return;
        near = *opts->near;
    }
    CPU_AND(&near, &near, &card->allowed);
    if (CPU_COUNT(&near))
        card->wish = near;
}

/* "; near GPU 0000:1b:00.0: network card mlx5_0" */
static void tell_cards(struct binding *out, const struct machine *machine,
                       const struct binding_opts *opts, const cpu_set_t *cores, int place)
{
    char nic[32];
    cpu_set_t near;

    machine_nic(machine, opts->gpu, cores, place, nic, sizeof nic);
    if (opts->gpu[0]) {
        bool known = machine_near(machine, opts->gpu, &near);
        CPU_AND(&near, &near, cores);
        tell_binding(out, known && !CPU_COUNT(&near) ? "; far from GPU %s" : "; GPU %s", opts->gpu);
    }
    if (nic[0])
        tell_binding(out, "%s network card %s", opts->gpu[0] ? " with" : "; near", nic);
}

static void choose_cores(struct binding *out, const struct machine *machine,
                         const struct binding_card *cards, const struct fsdp_node_map *nodes,
                         int rank, const struct binding_opts *opts)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    char list[96];
    cpu_set_t cores = cards[rank].allowed;
    int place, nplaces, ncores = 0, local = 0;
    const char *left = binding_judge(cards, nodes, rank, &place, &nplaces);

    for (int r = 0; r < rank; r++)
        local += binding_same_machine(nodes, r, rank);
    if (opts->off) {
        tell_binding(out, "not bound: train.bind is none");
    } else if (left) {
        tell_binding(out, "not bound: %s", left);
    } else if (!(ncores = machine_split(machine, &cards[rank].wish, place, nplaces, &cores))) {
        cores = cards[rank].allowed;
        tell_binding(out, "not bound: %d ranks for %d core%s", nplaces,
                     CPU_COUNT(&cards[rank].wish), CPU_COUNT(&cards[rank].wish) == 1 ? "" : "s");
    } else if (machine_bind(machine, &cores, &why)) {
        cores = cards[rank].allowed;
        ncores = 0;
        tell_binding(out, "not bound: %s", why.text);
    } else {
        machine_describe(machine, &cores, list, sizeof list);
        tell_binding(out, "%d whole core%s: %s", ncores, ncores == 1 ? "" : "s", list);
    }
    out->ncores = ncores;
    tell_cards(out, machine, opts, &cores, local);
}

/* Reading a machine takes a rank tens of milliseconds, so it is left out where it cannot help:
 * fewer cores than ranks are shared, or each rank has been given some. */
static bool needless(struct binding *out, int rank, const struct fsdp_node_map *nodes,
                     const struct binding_opts *opts)
{
    cpu_set_t allowed;
    int nlocal = 0, ncores;

    for (int r = 0; r < nodes->nranks; r++)
        nlocal += binding_same_machine(nodes, r, rank);
    if (opts->gpu[0] || opts->off || getenv("HWLOC_XMLFILE") || getenv("HWLOC_SYNTHETIC") ||
        sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return false;
    ncores = CPU_COUNT(&allowed);
    if (nlocal == 1)
        tell_binding(out, "not bound: the only rank of its machine");
    else if (ncores < nlocal)
        tell_binding(out, "not bound: %d core%s, and %d ranks on its machine", ncores,
                     ncores == 1 ? "" : "s", nlocal);
    return out->text[0] != 0;
}

int binding_choose(struct binding *out, struct fsdp_oob *oob, const struct fsdp_node_map *nodes,
                   const struct binding_opts *opts, struct fsdp_err *err)
{
    struct binding_card mine, *cards = fsdp_alloc((size_t)oob->size, sizeof *cards, "cores", err);
    struct fsdp_err why = FSDP_ERR_INIT;
    struct machine *machine = NULL;

    *out = (struct binding){.ncores = 0};
    CPU_ZERO(&mine.allowed);
    mine.wish = mine.allowed;
    if (!needless(out, oob->rank, nodes, opts) && machine_open(&machine, &why) == FSDP_OK)
        fill_card(&mine, machine, opts);
    int rc = fsdp_oob_agree(oob, cards ? FSDP_OK : FSDP_ENOMEM, err);
    if (rc == FSDP_OK)
        rc = oob->allgather(oob, &mine, sizeof mine, cards, err);
    if (rc == FSDP_OK && machine)
        choose_cores(out, machine, cards, nodes, oob->rank, opts);
    else if (rc == FSDP_OK && !out->text[0])
        tell_binding(out, "not bound: %s", why.text);
    machine_close(machine);
    fsdp_free(cards);
    return rc;
}

int binding_planned(int nlocal)
{
    struct machine *machine = NULL;
    cpu_set_t allowed, cores;
    int ncores = 0;

    if (nlocal > 1 && sched_getaffinity(0, sizeof allowed, &allowed) == 0 &&
        CPU_COUNT(&allowed) >= nlocal && machine_open(&machine, NULL) == FSDP_OK) {
        machine_allowed(machine, &allowed);
        ncores = machine_split(machine, &allowed, 0, nlocal, &cores);
    }
    machine_close(machine);
    return ncores;
}
#else
int binding_planned(int nlocal)
{
    (void)nlocal;
    return 0;
}

int binding_choose(struct binding *out, struct fsdp_oob *oob, const struct fsdp_node_map *nodes,
                   const struct binding_opts *opts, struct fsdp_err *err)
{
    (void)oob, (void)nodes, (void)opts, (void)err;
    *out = (struct binding){.text = "not bound: built without hwloc"};
    return FSDP_OK;
}
#endif
