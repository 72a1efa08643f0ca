/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a job needs of its nodes, tried out: by fsdp-launch --check all of it,
 *
 *   limits, versions -> clocks -> checkpoint folder -> all-gather inside nodes -> between nodes
 *
 * and before a job on several nodes the first three, with a small file.
 *
 * A try that fails is the node's finding, and the check continues; only a rank that is lost ends
 * it.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/ckpt.h"
#include "launch.h"

#include "bind.h"
#include "health.h"
#include "train/report/report.h"

enum {
    WRITE_NBYTES = 64 << 20,
    TOUCH_NBYTES = 4 << 10,
    GATHER_NBYTES = 16 << 20,
    ROUNDS = 10,
    CLOCK_ROUNDS = 5
};
enum { ENOUGH_FILES = 65536 }; /* nodes that allow more are alike */
enum {
    START_SECONDS = 120
};                       /* budget of the check before a job; a dead file system takes it all */
#define TRY_SECONDS 20.0 /* deadline of a communicator */

struct check {
    const struct boot_info *info;
    const struct fsdp_node_map *nodes;
    struct fsdp_oob *oob;
    struct config *config; /* NULL: none was given */
    struct fsdp_device *device;
    struct fsdp_lane *lane;
    struct report report;
    struct binding binding;
    struct health mine;
    struct health *ranks, *rows; /* [nranks], [nnodes] */
};

/* ---- this process ---- */

static double soft_limit(int resource)
{
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)resource, &limit) || limit.rlim_cur == RLIM_INFINITY)
        return INFINITY;
    return (double)limit.rlim_cur;
}

/* Memory that is taken, links and lanes that are not used, before this process uses the GPU. */
static void look_at_gpu(struct health *h, const struct gpu_look *gpu)
{
    char free_text[FSDP_NBYTES_TEXT], total[FSDP_NBYTES_TEXT];

    h->gpu_free = gpu->free;
    h->gpu_links = gpu->nlinks_up;
    h->gpu_lanes = gpu->lanes;
    if (gpu->free < 0.9 * gpu->total)
        snprintf(h->gpu_warning, sizeof h->gpu_warning,
                 "GPU %s has %s of %s free: another process?", gpu->pci,
                 fsdp_nbytes_text(free_text, (uint64_t)gpu->free),
                 fsdp_nbytes_text(total, (uint64_t)gpu->total));
    else if (gpu->nlinks_up && gpu->nlinks_up < gpu->nlinks)
        snprintf(h->gpu_warning, sizeof h->gpu_warning, "GPU %s: %d of %d NVLinks work", gpu->pci,
                 gpu->nlinks_up, gpu->nlinks);
    else if (gpu->lanes < gpu->lanes_max)
        snprintf(h->gpu_warning, sizeof h->gpu_warning, "GPU %s uses %d of %d lanes of PCIe",
                 gpu->pci, gpu->lanes, gpu->lanes_max);
}

static void look_here(struct check *c)
{
    struct health *h = &c->mine;
    struct statvfs shm;

    memcpy(h->host, c->info->host, sizeof h->host);
    snprintf(h->version, sizeof h->version, "%s", fsdp_version());
    h->shm_free = statvfs("/dev/shm", &shm) ? 0 : (double)shm.f_bavail * (double)shm.f_frsize;
    h->files = fmin(soft_limit(RLIMIT_NOFILE), ENOUGH_FILES);
    h->locked = soft_limit(RLIMIT_MEMLOCK);
}

/* Ranks leave an allgather at about the same time; the round with the least offset is taken. */
static int compare_clocks(struct check *c, struct fsdp_err *err)
{
    double *all = fsdp_alloc((size_t)c->info->size, sizeof *all, "clocks", err), best = INFINITY;
    int rc = all ? FSDP_OK : FSDP_ENOMEM;

    for (int i = 0; i < CLOCK_ROUNDS && rc == FSDP_OK; i++) {
        struct timespec now;
        rc = c->oob->allgather(c->oob, NULL, 0, NULL, err);
        clock_gettime(CLOCK_REALTIME, &now);
        double mine = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
        if (rc == FSDP_OK)
            rc = c->oob->allgather(c->oob, &mine, sizeof mine, all, err);
        if (rc == FSDP_OK && fabs(mine - all[0]) < fabs(best))
            best = mine - all[0];
    }
    c->mine.clock_s = best;
    fsdp_free(all);
    return rc;
}

/* ---- the checkpoint folder ---- */

/* The folder, or the nearest above it that is there: the job will make the rest. */
static void nearest_folder(char *path)
{
    struct stat st;
    char *slash;

    while (stat(path, &st) != 0 && errno == ENOENT) {
        slash = strrchr(path, '/');
        if (!slash)
            strcpy(path, ".");
        else if (slash == path)
            path[1] = 0;
        else
            *slash = 0;
        if (!slash || slash == path)
            return;
    }
}

/* One rank of each node, all at once as in a save. */
static void try_folder(struct check *c, size_t nbytes)
{
    char path[CONFIG_TEXT];
    struct health *h = &c->mine;
    struct fsdp_err err = FSDP_ERR_INIT;
    double seconds;

    if (!c->config || !c->config->checkpoint.path[0] || c->info->local_rank != 0)
        return;
    snprintf(path, sizeof path, "%s", c->config->checkpoint.path);
    if (!ckpt_path_is_url(path))
        nearest_folder(path);
    if (ckpt_root_try(&seconds, path, nbytes, &err))
        snprintf(h->write_error, sizeof h->write_error, "%.255s", err.text);
    else if (nbytes == WRITE_NBYTES) /* less is over too soon to say how fast it is */
        h->write_rate = WRITE_NBYTES / seconds;
}

/* ---- collectives ---- */

/* Bytes gathered per second, the best of some rounds. */
static int time_gather(double *rate, struct fsdp_comm *comm, char *whole, char *part,
                       struct fsdp_lane *lane, struct fsdp_err *err)
{
    size_t nelem = GATHER_NBYTES / sizeof(float) / (size_t)fsdp_comm_size(comm);
    double best = INFINITY;

    for (int i = 0; i < ROUNDS; i++) {
        FSDP_TRY(fsdp_comm_barrier(comm, lane, err));
        FSDP_TRY(fsdp_lane_sync(lane, err));
        double begin = fsdp_time_now();
        FSDP_TRY(fsdp_comm_all_gather(comm, whole, part, nelem, FSDP_F32, lane, err));
        FSDP_TRY(fsdp_comm_barrier(comm, lane, err)); /* what a rank sends counts for it, too */
        FSDP_TRY(fsdp_lane_sync(lane, err));
        best = fmin(best, fsdp_time_now() - begin);
    }
    *rate = (double)nelem * sizeof(float) * fsdp_comm_size(comm) / best;
    return FSDP_OK;
}

/* In groups by color, all groups at once; *rate stays where this rank is alone in its group. */
static int try_gather(double *rate, struct check *c, const char *name, int color,
                      struct fsdp_err *err)
{
    struct fsdp_comm_opts opts = FSDP_COMM_OPTS_INIT;
    struct fsdp_comm *comm = NULL;
    char *whole = NULL, *part = NULL, word[16];
    int rc;

    if (c->config)
        opts.backend = config_word(word, sizeof word, c->config, "fsdp.backend");
    opts.name = name;
    opts.color = color;
    opts.key = c->info->rank;
    opts.timeout_s = TRY_SECONDS;
    opts.nodes = c->nodes;
    FSDP_TRY(fsdp_comm_create(&comm, &opts, c->oob, c->device, err));
    whole = fsdp_device_alloc(c->device, GATHER_NBYTES, "check", err);
    part = fsdp_device_alloc(c->device, GATHER_NBYTES, "check", err);
    rc = whole && part ? FSDP_OK : FSDP_ENOMEM;
    if (rc == FSDP_OK && fsdp_comm_size(comm) > 1)
        rc = time_gather(rate, comm, whole, part, c->lane, err);
    fsdp_comm_destroy(comm);
    fsdp_device_free(c->device, whole);
    fsdp_device_free(c->device, part);
    return rc;
}

/* The group of a node in round `round`: neighbours in pairs, in the next round the other way round,
 * and with an odd number of nodes the last with the first. */
static int pair_of(int node, int round, int nnodes)
{
    if (round == 2)
        return node == 0 || node == nnodes - 1 ? 0 : node;
    int shifted = round == 0 ? node : (node + nnodes - 1) % nnodes;
    if (nnodes % 2 && shifted == nnodes - 1)
        return nnodes; /* sits this one out */
    return shifted / 2;
}

/* With each of its two neighbours; the better one counts, so that a bad node makes no other look
 * bad. An error counts where neither worked. */
static int try_across(struct check *c, struct fsdp_err *err)
{
    int nnodes = c->info->nnodes;
    int nrounds = nnodes == 1 ? 0 : nnodes == 2 ? 1 : nnodes % 2 ? 3 : 2;
    struct health *h = &c->mine;
    char why[sizeof h->comm_error] = "";

    for (int round = 0; round < nrounds; round++) {
        struct fsdp_err own = FSDP_ERR_INIT;
        double rate = 0;
        if (try_gather(&rate, c, "across", pair_of(c->info->node, round, nnodes), &own))
            snprintf(why, sizeof why, "%.*s", (int)sizeof why - 1, own.text);
        FSDP_TRY(c->oob->allgather(c->oob, NULL, 0, NULL, err));
        h->across = fmax(h->across, rate);
    }
    if (nrounds && h->across <= 0)
        memcpy(h->comm_error, why, sizeof why);
    return FSDP_OK;
}

static int try_inside(struct check *c, struct fsdp_err *err)
{
    struct fsdp_err own = FSDP_ERR_INIT;

    if (try_gather(&c->mine.inside, c, "inside", c->info->node, &own))
        snprintf(c->mine.comm_error, sizeof c->mine.comm_error, "%.255s", own.text);
    return c->oob->allgather(c->oob, NULL, 0, NULL, err);
}

/* ---- what they found ---- */

static void add_rate(char *text, size_t nbytes, const char *what, double rate)
{
    size_t len = strlen(text);
    if (rate > 0)
        snprintf(text + len, nbytes - len, ", %s %.2f GB/s", what, rate * 1e-9);
}

static void show_node(struct check *c, int node)
{
    const struct health *row = &c->rows[node];
    char shm[REPORT_NUMBER_NBYTES], rates[192] = "";

    add_rate(rates, sizeof rates, "inside", row->inside);
    add_rate(rates, sizeof rates, "across", row->across);
    add_rate(rates, sizeof rates, "checkpoints", row->write_rate);
    if (row->gpu_free > 0) {
        size_t len = strlen(rates);
        snprintf(rates + len, sizeof rates - len, ", GPUs with %s and %.0f NVLinks at least",
                 fsdp_nbytes_text(shm, (uint64_t)row->gpu_free), row->gpu_links);
    }
    report_row(&c->report, row->host, "%d rank%s, %s of /dev/shm, %.0f files%s", row->nranks,
               row->nranks == 1 ? "" : "s", fsdp_nbytes_text(shm, (uint64_t)row->shm_free),
               row->files, rates);
}

/* Returns how many nodes are bad; rank 0 prints them. */
static int show(struct check *c)
{
    int nnodes = c->info->nnodes, nbad = 0;
    char text[400];

    report_title(&c->report, "nodes");
    for (int i = 0; i < nnodes; i++)
        show_node(c, i);
    for (int i = 0; i < nnodes && c->report.lead; i++)
        if (health_warning(text, sizeof text, c->rows, nnodes, i))
            fsdp_log(FSDP_LOG_WARN, "%s: %s", c->rows[i].host, text);
    for (int i = 0; i < nnodes; i++)
        if (health_fault(text, sizeof text, c->rows, nnodes, i) && ++nbad && c->report.lead)
            fsdp_log(FSDP_LOG_ERROR, "%s: %s", c->rows[i].host, text);
    if (!nbad)
        report_line(&c->report, "nodes are well: %d rank%s on %d node%s", c->info->size,
                    c->info->size == 1 ? "" : "s", nnodes, nnodes == 1 ? "" : "s");
    if (!nbad || !c->report.lead)
        return nbad;
    printf("bad nodes: ");
    for (int i = 0, nshown = 0; i < nnodes; i++)
        if (health_fault(text, sizeof text, c->rows, nnodes, i))
            printf("%s%s", nshown++ ? "," : "", c->rows[i].host);
    printf("\n");
    return nbad;
}

static int gather_findings(struct check *c, struct fsdp_err *err)
{
    FSDP_TRY(c->oob->allgather(c->oob, &c->mine, sizeof c->mine, c->ranks, err));
    health_fold(c->rows, c->ranks, c->nodes);
    return FSDP_OK;
}

static int alloc_findings(struct check *c, struct fsdp_err *err)
{
    c->ranks = fsdp_alloc((size_t)c->info->size, sizeof *c->ranks, "findings", NULL);
    c->rows = fsdp_alloc((size_t)c->info->nnodes, sizeof *c->rows, "findings", NULL);
    if (c->ranks && c->rows)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_ENOMEM, "no memory for what %d ranks find", c->info->size);
}

/* ---- before a job ---- */

/* What no node can do is no node's fault, and told where it is needed. */
static int judge_start(const struct check *c, struct fsdp_err *err)
{
    const int nnodes = c->info->nnodes;
    char text[400], list[512] = "", first[400] = "";
    int nbad = 0;

    for (int i = 0; i < nnodes; i++) {
        size_t len = strlen(list);
        if (!health_broken(text, sizeof text, c->rows, i))
            continue;
        if (nbad++ == 0)
            memcpy(first, text, sizeof first);
        snprintf(list + len, sizeof list - len, "%s%s", len ? "," : "", c->rows[i].host);
    }
    if (nbad && nbad < nnodes) {
        if (c->report.lead)
            printf("bad nodes: %s\n", list);
        fsdp_err_set(err, FSDP_EIO,
                     "node%s %s %s not fit for this job: %.300s; begin again without "
                     "(sbatch --exclude=%s)",
                     nbad > 1 ? "s" : "", list, nbad > 1 ? "are" : "is", first, list);
        return c->report.lead ? FSDP_EIO : fsdp_err_of_rank(err, FSDP_EIO, 0);
    }
    for (int i = 0; i < nnodes && c->report.lead; i++)
        if (health_warning(text, sizeof text, c->rows, nnodes, i) ||
            (!nbad && health_fault(text, sizeof text, c->rows, nnodes, i)))
            fsdp_log(FSDP_LOG_WARN, "%s: %s", c->rows[i].host, text);
    return FSDP_OK;
}

int train_check_start(struct boot *boot, struct config *config, struct report *report,
                      struct fsdp_err *err)
{
    struct check c = {
        .info = boot_info(boot), .nodes = boot_nodes(boot), .config = config, .report = *report};
    struct fsdp_oob *oob = boot_oob(boot);
    int rc;

    if (c.info->nnodes == 1)
        return FSDP_OK;
    FSDP_TRY(oob->dup(oob, "check", &c.oob, err));
    if (c.oob->set_wait)
        c.oob->set_wait(c.oob, START_SECONDS);
    FSDP_TRY_GOTO(fsdp_oob_agree(c.oob, alloc_findings(&c, err), err), out);
    look_here(&c);
    FSDP_TRY_GOTO(compare_clocks(&c, err), out);
    try_folder(&c, TOUCH_NBYTES);
    FSDP_TRY_GOTO(gather_findings(&c, err), out);
    rc = judge_start(&c, err);
out:
    c.oob->close(c.oob);
    fsdp_free(c.ranks);
    fsdp_free(c.rows);
    return rc;
}

/* ---- the check alone ---- */

static int examine(struct check *c, const char *config, int noverrides, char *const *overrides,
                   struct fsdp_err *err)
{
    char device[16] = "auto";
    struct train_gpu gpu;
    bool off = false;
    int rc = FSDP_OK;

    if (config)
        rc = config_load(&c->config, config, noverrides, overrides, err);
    if (rc == FSDP_OK && config)
        config_word(device, sizeof device, c->config, "fsdp.device");
    if (rc == FSDP_OK)
        rc = train_gpu_choose(&gpu, device, c->info, err);
    if (rc == FSDP_OK && config)
        off = c->config->train.bind == CONFIG_BIND_NONE;
    FSDP_TRY(fsdp_oob_agree(c->oob, rc, err));
    look_at_gpu(&c->mine, &gpu.look);
    FSDP_TRY(train_bind(&c->binding, &gpu, off, c->oob, c->nodes, err));
    rc = fsdp_device_open(&c->device, gpu.device, 0, err);
    if (rc == FSDP_OK)
        rc = fsdp_lane_create(&c->lane, c->device, "check", err);
    if (rc == FSDP_OK)
        rc = alloc_findings(c, err);
    FSDP_TRY(fsdp_oob_agree(c->oob, rc, err));
    look_here(c);
    FSDP_TRY(compare_clocks(c, err));
    try_folder(c, WRITE_NBYTES);
    FSDP_TRY(try_inside(c, err));
    FSDP_TRY(try_across(c, err));
    FSDP_TRY(train_bind_show(&c->report, &c->binding, c->oob, c->nodes, err));
    return gather_findings(c, err);
}

int train_check_nodes(struct boot *boot, const char *config, int noverrides, char *const *overrides,
                      bool verbose)
{
    struct check c = {.info = boot_info(boot), .nodes = boot_nodes(boot), .oob = boot_oob(boot)};
    struct fsdp_err err = FSDP_ERR_INIT;
    int code;

    report_open(&c.report, c.info->rank, c.info->host, NULL, verbose);
    int rc = examine(&c, config, noverrides, overrides, &err);
    if (rc == FSDP_OK) {
        code = show(&c) ? LAUNCH_FAILED : LAUNCH_DONE;
    } else {
        /* All find alike that a rank is lost or late; what one of them found, it tells itself. */
        if (rc == FSDP_EPEER || rc == FSDP_ETIMEDOUT ? c.report.lead : !err.of_other)
            report_error(&c.report, err.text, false);
        code = rc == FSDP_EPEER ? LAUNCH_PEER_LOST : LAUNCH_FAILED;
    }
    report_close(&c.report);
    fsdp_lane_destroy(c.lane);
    fsdp_device_close(c.device);
    fsdp_free(c.config);
    fsdp_free(c.ranks);
    fsdp_free(c.rows);
    return code;
}
