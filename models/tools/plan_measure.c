/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-plan --measure: sweeps on the ranks, device and backend of a run, as a cluster.yaml. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "boot.h"
#include "config/config.h"
#include "nn/nn.h"
#include "plan.h"
#include "plan/measure/measure.h"
#include "train/setup/setup.h"

/* ---- starting -------------------------------------------------------------------------------- */

enum { MAX_ARGS = 400, PATH_NBYTES = 4096 };

/* The fsdp-launch that was installed with this program, or the one of PATH. */
static void find_launch(char *out, const char *self)
{
    const char *slash = strrchr(self, '/');

    snprintf(out, PATH_NBYTES, "%.*s/fsdp-launch", slash ? (int)(slash - self) : 0, self);
    if (!slash || access(out, X_OK))
        snprintf(out, PATH_NBYTES, "fsdp-launch");
}

/* Becomes `fsdp-launch -n N -- fsdp-plan ...`, whose ranks measure. Returns on failure alone. */
static int start_ranks(int nranks, char *const *given, struct fsdp_err *err)
{
    char self[PATH_NBYTES], launch[PATH_NBYTES], count[16];
    char *args[MAX_ARGS + 8] = {launch, (char[]){"-n"}, count, (char[]){"--"}, self};
    int nargs = 5;

    const ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len < 0)
        return fsdp_err_sys(err, errno, "/proc/self/exe");
    self[len] = 0;
    find_launch(launch, self);
    snprintf(count, sizeof count, "%d", nranks);
    for (int i = 1; given[i]; i++) {
        if (i > MAX_ARGS)
            return fsdp_err_set(err, FSDP_EINVAL, "more than %d arguments", MAX_ARGS);
        args[nargs++] = given[i];
    }
    fflush(stdout);
    execvp(launch, args);
    return fsdp_err_sys(err, errno,
                        "cannot start %s; start the ranks yourself: fsdp-launch -n %d -- fsdp-plan "
                        "..., or srun fsdp-plan ...",
                        launch, nranks);
}

static int check_size(const struct boot_info *info, int wanted, struct fsdp_err *err)
{
    if (wanted && wanted != info->size)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "-n %d, and %d ranks were started: leave out -n, or start as many",
                            wanted, info->size);
    return FSDP_OK;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

struct rank {
    struct boot *boot;
    struct fsdp_oob *oob;
    struct plan_asked asked;
    bool is_asked;
    struct train_parts parts; /* planned: its tree and the shape of its mesh */
    struct train_gpu gpu;
    struct fsdp_device *device;
    struct fsdp_mesh *mesh;
    struct measure_shapes *shapes;
    struct measured measured;
};

/* The run's fsdp.device, before anything calls CUDA. */
static int choose_device(struct rank *r, struct fsdp_err *err)
{
    const struct question *q = &r->asked.question;
    struct config *config;
    char device[16];

    FSDP_TRY(config_load(&config, q->config, q->noverrides, q->overrides, err));
    config_word(device, sizeof device, config, "fsdp.device");
    fsdp_free(config);
    return train_gpu_choose(&r->gpu, device, boot_info(r->boot), err);
}

/* The run and its plan, on each rank alone. */
static int plan_run(struct rank *r, const struct plan_settings *set,
                    const struct fsdp_cli_line *line, struct fsdp_err *err)
{
    struct plan_settings own = *set;

    own.ngpus = boot_info(r->boot)->size;
    own.nnodes = 0;
    FSDP_TRY(plan_ask(&r->asked, &own, line, err));
    r->is_asked = true;
    FSDP_TRY(choose_device(r, err));
    r->parts.target = strcmp(r->gpu.device, "cpu") ? "cuda" : "cpu";
    r->parts.info = boot_info(r->boot);
    FSDP_TRY(train_parts_plan(&r->parts, r->asked.question.config, r->asked.question.noverrides,
                              r->asked.question.overrides, boot_nodes(r->boot), err));
    r->shapes = fsdp_alloc(1, sizeof *r->shapes, "shapes", err);
    if (!r->shapes)
        return FSDP_ENOMEM;
    measure_shapes_of(r->shapes, r->parts.tree);
    return FSDP_OK;
}

/* Cores and threads as the run's. Collective. */
static int take_cores(struct rank *r, struct fsdp_err *err)
{
    const struct config *c = r->parts.config;
    const struct fsdp_node_map *nodes = boot_nodes(r->boot);
    struct train_cores cores;
    struct binding binding;

    FSDP_TRY(train_bind(&binding, &r->gpu, c->train.bind == CONFIG_BIND_NONE, r->oob, nodes, err));
    FSDP_TRY(train_cores_find(&cores, r->oob, nodes, err));
    nn_set_threads(c->train.threads ? (int)c->train.threads
                   : binding.ncores ? binding.ncores
                                    : train_cores_share(&cores));
    return FSDP_OK;
}

/* Device and groups as the run's. Collective. */
static int open_device(struct rank *r, struct fsdp_err *err)
{
    const struct config *c = r->parts.config;
    char backend[16];

    int rc = fsdp_device_open(&r->device, r->gpu.device, 0, err);
    FSDP_TRY(fsdp_oob_agree(r->oob, rc, err));
    if (r->oob->size < 2)
        return FSDP_OK;
    return fsdp_mesh_create(&r->mesh, fsdp_planned_shape(r->parts.fsdp),
                            config_word(backend, sizeof backend, c, "fsdp.backend"),
                            c->fsdp.timeout, boot_nodes(r->boot), r->oob, r->device, err);
}

static void say_progress(void *ctx, const char *text)
{
    (void)ctx;
    fprintf(stderr, "%s\n", text);
}

static int sweep_all(struct rank *r, bool grid, struct fsdp_err *err)
{
    struct measure_opts opts = {.oob = r->oob,
                                .device = r->device,
                                .mesh = r->mesh,
                                .node_nranks = boot_info(r->boot)->local_size,
                                .shapes = r->shapes,
                                .no_grid = !grid,
                                .progress = say_progress};
    char word[32];

    FSDP_TRY(fsdp_dtype_parse(
        &opts.type, config_word(word, sizeof word, r->parts.config, "fsdp.param_dtype"), err));
    return measure_run(&r->measured, &opts, err);
}

static int open_run(struct rank *r, const struct plan_settings *set,
                    const struct fsdp_cli_line *line, struct fsdp_err *err)
{
    int rc = check_size(boot_info(r->boot), set->ngpus, err);

    if (rc == FSDP_OK)
        rc = plan_run(r, set, line, err);
    FSDP_TRY(fsdp_oob_agree(r->oob, rc, err));
    FSDP_TRY(take_cores(r, err));
    return open_device(r, err);
}

static void close_rank(struct rank *r)
{
    measured_free(&r->measured);
    fsdp_mesh_destroy(r->mesh);
    fsdp_device_close(r->device);
    fsdp_free(r->shapes);
    train_parts_close(&r->parts);
    if (r->is_asked)
        plan_close(&r->asked);
    boot_close(r->boot);
}

/* ---- what rank 0 writes ---------------------------------------------------------------------- */

static const char *output_of(const struct plan_settings *set)
{
    return set->output ? set->output : "cluster.yaml";
}

/* "here/cluster.yaml": "cluster.gemm.tsv", next to it. */
static void table_name(char out[PATH_NBYTES], const char *path, enum cluster_table table)
{
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    const char *dot = strrchr(name, '.');

    snprintf(out, PATH_NBYTES, "%.*s.%s.tsv", (int)(dot ? dot - name : (long)strlen(name)), name,
             cluster_table_name(table));
}

static void table_path(char out[PATH_NBYTES], const char *path, enum cluster_table table)
{
    const char *slash = strrchr(path, '/');
    char name[PATH_NBYTES];

    table_name(name, path, table);
    snprintf(out, PATH_NBYTES, "%.*s%.4000s", slash ? (int)(slash - path) + 1 : 0, path, name);
}

/* The machines, before their numbers: those of the command line, or what the ranks are on. */
static int open_cluster(struct rank *r, const struct plan_settings *set, struct fsdp_err *err)
{
    const struct boot_info *info = boot_info(r->boot);
    struct fsdp_device_look look;
    const char *word = "cpu";

    if (set->cluster)
        return FSDP_OK;
    if (!fsdp_device_is_host(r->device)) {
        FSDP_TRY(fsdp_device_look(r->device, &look, err));
        word = stock_word_of(look.model);
    }
    if (!word && !set->gpu)
        return fsdp_err_set(err, FSDP_ENOTFOUND,
                            "there are no stock numbers of %s: say with --gpu what it is like",
                            look.model[0] ? look.model : "this device");
    cluster_close(&r->asked.cluster);
    return cluster_words(&r->asked.cluster, set->gpu ? set->gpu : word,
                         set->net           ? set->net
                         : info->nnodes > 1 ? "400Gbx8"
                                            : "none",
                         set->node_ngpus ? set->node_ngpus : info->local_size, err);
}

static int take_tables(struct cluster *c, const struct measured *m, const char *path,
                       struct fsdp_err *err)
{
    const struct fsdp_rate *const rates[] = {
        [CLUSTER_GEMM] = m->products, [CLUSTER_SDPA] = m->attention, [CLUSTER_COPY] = m->copies};
    const int nrates[] = {
        [CLUSTER_GEMM] = m->nproducts, [CLUSTER_SDPA] = m->nattention, [CLUSTER_COPY] = m->ncopies};
    char name[PATH_NBYTES];

    for (int t = 0; t < CLUSTER_COLLECTIVES; t++) {
        table_name(name, path, (enum cluster_table)t);
        if (nrates[t])
            FSDP_TRY(cluster_set_rates(c, (enum cluster_table)t, name, rates[t], nrates[t], err));
    }
    table_name(name, path, CLUSTER_COLLECTIVES);
    if (m->ncollectives)
        FSDP_TRY(cluster_set_collectives(c, name, m->collectives, m->ncollectives, err));
    return FSDP_OK;
}

static int take_numbers(struct cluster *c, const struct measured *m, struct fsdp_err *err)
{
    FSDP_TRY(cluster_set_number(c, CLUSTER_MEASURED_JITTER, m->jitter, err));
    FSDP_TRY(cluster_set_number(c, CLUSTER_MEASURED_SCATTER, m->scatter, err));
    if (m->contention >= 0)
        FSDP_TRY(cluster_set_number(c, CLUSTER_MEASURED_CONTENTION, m->contention, err));
    if (m->host_nbytes_per_s > 0)
        FSDP_TRY(cluster_set_number(c, CLUSTER_MEASURED_HOST, m->host_nbytes_per_s, err));
    if (m->host_memory_nbytes_per_s > 0)
        FSDP_TRY(
            cluster_set_number(c, CLUSTER_MEASURED_HOST_MEMORY, m->host_memory_nbytes_per_s, err));
    /* Factors corrected the clock that this one replaces. */
    for (int i = 0; i < CLUSTER_NFACTORS; i++)
        FSDP_TRY(cluster_set_factor(c, (enum cluster_factor)i, 1, err));
    return FSDP_OK;
}

static int write_tables(const struct cluster *c, const struct measured *m, const char *path,
                        struct fsdp_err *err)
{
    const int nrows[] = {m->nproducts, m->nattention, m->ncopies, m->ncollectives};
    char file[PATH_NBYTES];

    for (int t = 0; t < CLUSTER_NTABLES; t++) {
        table_path(file, path, (enum cluster_table)t);
        if (nrows[t])
            FSDP_TRY(cluster_write_table(c, (enum cluster_table)t, file, err));
    }
    return FSDP_OK;
}

static int write_cluster(struct rank *r, const struct plan_settings *set, struct fsdp_err *err)
{
    const char *path = output_of(set);
    const struct measured *m = &r->measured;
    struct cluster *c = &r->asked.cluster;

    FSDP_TRY(take_tables(c, m, path, err));
    FSDP_TRY(take_numbers(c, m, err));
    FSDP_TRY(write_tables(c, m, path, err));
    FSDP_TRY(cluster_write(c, path, err));
    printf("measured on %d rank%s: %d products, %d sizes of attention, %d of pointwise kernels, %d "
           "of collectives\n"
           "%s has it: fsdp-plan ... --cluster %s\n",
           boot_info(r->boot)->size, boot_info(r->boot)->size == 1 ? "" : "s", m->nproducts,
           m->nattention, m->ncopies, m->ncollectives, path, path);
    return FSDP_OK;
}

static int check_files(const struct plan_settings *set, struct fsdp_err *err)
{
    const char *path = output_of(set);
    char file[PATH_NBYTES];

    if (strlen(path) > PATH_NBYTES - 100)
        return fsdp_err_set(err, FSDP_EINVAL, "%.60s...: path too long", path);
    FSDP_TRY(plan_check_cluster(set, path, err));
    for (int t = 0; t < CLUSTER_NTABLES; t++) {
        table_path(file, path, (enum cluster_table)t);
        FSDP_TRY(plan_check_output(file, set->overwrite, err));
    }
    return FSDP_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int run_rank(struct rank *r, const struct plan_settings *set,
                    const struct fsdp_cli_line *line, struct fsdp_err *err)
{
    const bool first = boot_info(r->boot)->rank == 0;
    int rc = first ? check_files(set, err) : FSDP_OK;

    FSDP_TRY(fsdp_oob_agree(r->oob, rc, err));
    FSDP_TRY(open_run(r, set, line, err));
    rc = first ? open_cluster(r, set, err) : FSDP_OK;
    FSDP_TRY(fsdp_oob_agree(r->oob, rc, err));
    FSDP_TRY(sweep_all(r, set->grid, err));
    rc = first ? write_cluster(r, set, err) : FSDP_OK;
    return fsdp_oob_agree(r->oob, rc, err);
}

int plan_measure(const struct plan_settings *set, const struct fsdp_cli_line *line,
                 char *const *given, struct fsdp_err *err)
{
    const struct boot_opts opts = BOOT_OPTS_INIT;
    struct rank *r = fsdp_alloc(1, sizeof *r, "rank", err);
    bool first = true;

    int rc = r ? boot_open(&r->boot, &opts, err) : FSDP_ENOMEM;
    if (rc) {
        fsdp_free(r);
        return rc;
    }
    r->oob = boot_oob(r->boot);
    r->measured.contention = -1;
    first = boot_info(r->boot)->rank == 0;
    const int wanted = set->ngpus;
    if (wanted > 1 && !strcmp(boot_info(r->boot)->method, "single")) {
        rc = check_files(set, err);
        if (rc == FSDP_OK)
            rc = start_ranks(wanted, given, err);
    } else {
        rc = run_rank(r, set, line, err);
    }
    close_rank(r);
    fsdp_free(r);
    return rc && !first ? PLAN_SAID : rc;
}
