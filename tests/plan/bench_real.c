/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan next to real runs of this machine; tests/plan/real.sh drives it.
 *
 *   bench_real measure RUN.yaml FOLDER [key=value ...]       in each rank, under fsdp-launch
 *   bench_real plan RUN.yaml RANKS FOLDER TRACE.json [key=value ...]
 *   bench_real calibrate RUN.yaml RANKS FOLDER PLAN.json RUN.json [key=value ...]
 *   bench_real against PLAN.json RUN.json STEP_SECONDS [MERGED.json]
 */
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "boot.h"
#include "core/engine.h"
#include "nn/nn.h"
#include "plan/measure/against.h"
#include "plan/measure/calibrate.h"
#include "plan/measure/measure.h"
#include "train/setup/setup.h"

static int fail(const struct fsdp_err *err)
{
    fprintf(stderr, "bench_real: %s\n", err->text);
    return 1;
}

/* A clock of this CPU: nothing but tables counts. */
static void cpu_clock(struct fsdp_clock *clock, const struct measured *m, int nranks)
{
    *clock = (struct fsdp_clock){
        .device = {.flops_16 = 1e11,
                   .flops_32 = 1e11,
                   .product_share = .5,
                   .attention_share = .2,
                   .memory_nbytes_per_s = 1e10,
                   .memory_share = 1,
                   .pointwise = 1},
        .net = {.node_nranks = nranks,
                .node_nbytes_per_s = 1e10,
                .nic_nbytes_per_s = 1e10,
                .flat_share = 1,
                .rail_share = 1,
                .host_nbytes_per_s = 1e10},
    };
    snprintf(clock->device.name, sizeof clock->device.name, "cpu");
    measured_apply(clock, m, true);
}

static int plan_parts(struct train_parts *parts, const char *config, int nranks, int noverrides,
                      char **overrides, struct fsdp_err *err)
{
    int *node_of = fsdp_alloc((size_t)nranks, sizeof *node_of, "nodes", err);
    const struct fsdp_node_map nodes = {
        .nranks = nranks, .nnodes = 1, .node_of = node_of, .starter = FSDP_STARTED_HERE};
    int rc =
        node_of ? train_parts_plan(parts, config, noverrides, overrides, &nodes, err) : FSDP_ENOMEM;
    fsdp_free(node_of);
    return rc;
}

/* ---- measure --------------------------------------------------------------------------------- */

/* As fsdp-launch binds the ranks of a run: whole cores each, where there are enough. */
static void bind_rank(const struct boot_info *info)
{
    const int ncores = (int)sysconf(_SC_NPROCESSORS_ONLN), each = ncores / info->local_size;
    cpu_set_t set;

    CPU_ZERO(&set);
    for (int i = 0; i < each; i++)
        CPU_SET((unsigned)(info->local_rank * each + i), &set);
    if (each > 0)
        sched_setaffinity(0, sizeof set, &set);
}

/* As train.threads: auto. */
static int threads_of(const struct boot_info *info)
{
    const int n = (int)sysconf(_SC_NPROCESSORS_ONLN) / info->local_size;
    return n > 1 ? n : 1;
}

static void say(void *ctx, const char *text)
{
    (void)ctx;
    fprintf(stderr, "%s\n", text);
}

static int measure_all(struct measured *out, struct boot *boot, struct train_parts *parts,
                       struct fsdp_err *err)
{
    struct fsdp_device *device = NULL;
    struct fsdp_mesh *mesh = NULL;
    struct measure_shapes *shapes = fsdp_alloc(1, sizeof *shapes, "shapes", err);
    struct fsdp_mesh_shape shape = {1, boot_info(boot)->size, 0, 0, 0};
    char word[32];
    struct measure_opts opts = {.oob = boot_oob(boot),
                                .node_nranks = boot_info(boot)->local_size,
                                .shapes = shapes,
                                .seconds = 60,
                                .no_grid = getenv("NO_GRID") != NULL,
                                .progress = say};
    const struct fsdp_mesh *planned = parts->fsdp->mesh;

    shape.shard_size = planned->shard_size;
    shape.replicate_size = planned->replicate_size;
    measure_shapes_of(shapes, parts->tree);
    config_word(word, sizeof word, parts->config, "fsdp.param_dtype");
    int rc = fsdp_dtype_parse(&opts.type, word, err);
    if (rc == FSDP_OK)
        rc = fsdp_device_open(&device, "cpu", 0, err);
    if (rc == FSDP_OK && boot_info(boot)->size > 1)
        rc = fsdp_mesh_create(&mesh, shape, "auto", 60, boot_nodes(boot), boot_oob(boot), device,
                              err);
    opts.device = device;
    opts.mesh = mesh;
    if (rc == FSDP_OK)
        rc = measure_run(out, &opts, err);
    fsdp_mesh_destroy(mesh);
    fsdp_device_close(device);
    fsdp_free(shapes);
    return rc;
}

static int run_measure(int argc, char **argv)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct boot_opts opts = BOOT_OPTS_INIT;
    struct train_parts parts = {0};
    struct measured measured;
    struct boot *boot = NULL;

    if (boot_open(&boot, &opts, &err))
        return fail(&err);
    bind_rank(boot_info(boot));
    nn_set_threads(threads_of(boot_info(boot)));
    int rc = plan_parts(&parts, argv[2], boot_info(boot)->size, argc - 4, argv + 4, &err);
    if (rc == FSDP_OK)
        rc = measure_all(&measured, boot, &parts, &err);
    if (rc == FSDP_OK && boot_info(boot)->rank == 0)
        rc = measured_write(&measured, argv[3], &err);
    if (rc)
        fail(&err);
    train_parts_close(&parts);
    boot_close(boot);
    return rc != 0;
}

/* ---- plan ------------------------------------------------------------------------------------ */

static void print_plan(const struct train_parts *parts, const struct fsdp_schedule_times *t)
{
    enum { MAX_ROWS = 32 };
    struct fsdp_memory_row rows[MAX_ROWS];
    int nrows = fsdp_memory_plan(parts->fsdp, rows, MAX_ROWS);
    double nbytes = 0;

    for (int i = 0; i < nrows && i < MAX_ROWS; i++)
        nbytes += (double)rows[i].nbytes;
    printf("step_s %.6f list_s %.6f compute_s %.6f comm_s %.6f memory %.0f\n", t->step_s, t->list_s,
           t->compute_s, t->comm_s, nbytes);
}

static int run_plan(int argc, char **argv)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_schedule_times times;
    struct train_parts parts = {0};
    struct measured measured;
    struct fsdp_clock clock;
    FILE *to;

    int rc = measured_read(&measured, argv[4], &err);
    if (rc)
        return fail(&err);
    cpu_clock(&clock, &measured, atoi(argv[3]));
    rc = plan_parts(&parts, argv[2], atoi(argv[3]), argc - 6, argv + 6, &err);
    if (rc == FSDP_OK)
        rc = fsdp_schedule_time(parts.fsdp, FSDP_TRAIN, &clock, &times, &err);
    to = rc == FSDP_OK ? fopen(argv[5], "we") : NULL;
    if (to) {
        rc = fsdp_schedule_trace(parts.fsdp, &clock, to, &err);
        fclose(to);
        print_plan(&parts, &times);
    }
    if (rc)
        fail(&err);
    train_parts_close(&parts);
    measured_free(&measured);
    return rc != 0;
}

/* ---- calibrate ------------------------------------------------------------------------------- */

static int plan_once(struct fsdp_schedule_times *times, const struct train_parts *parts,
                     const struct fsdp_clock *clock, const char *path, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_schedule_time(parts->fsdp, FSDP_TRAIN, clock, times, err));
    FILE *to = fopen(path, "we");
    if (!to)
        return fsdp_err_set(err, FSDP_EIO, "cannot write %s", path);
    int rc = fsdp_schedule_trace(parts->fsdp, clock, to, err);
    fclose(to);
    return rc;
}

static int calibrate_once(struct calibration *out, const char *plan_path,
                          const struct trace_file *run, struct fsdp_err *err)
{
    struct trace_file plan;

    FSDP_TRY(trace_file_read(&plan, plan_path, err));
    int rc = calibrate_fit(out, &plan, run, err);
    trace_file_close(&plan);
    for (int k = 0; k < CALIBRATE_NFACTORS && rc == FSDP_OK; k++)
        if (out->real_s[k] > 0)
            printf("%s %.4f of %.6f s\n", calibrate_name((enum calibrate_factor)k), out->factor[k],
                   out->real_s[k]);
    return rc;
}

static int run_calibrate(int argc, char **argv)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_schedule_times times;
    struct train_parts parts = {0};
    struct measured measured = {.contention = -1};
    struct calibration calibration;
    struct trace_file run;
    struct fsdp_clock clock;

    int rc = strcmp(argv[4], "-") ? measured_read(&measured, argv[4], &err) : FSDP_OK;
    if (rc == FSDP_OK)
        rc = trace_file_read(&run, argv[6], &err);
    if (rc)
        return fail(&err);
    cpu_clock(&clock, &measured, atoi(argv[3]));
    rc = plan_parts(&parts, argv[2], atoi(argv[3]), argc - 7, argv + 7, &err);
    for (int round = 0; round < 2 && rc == FSDP_OK; round++) {
        rc = plan_once(&times, &parts, &clock, argv[5], &err);
        if (rc == FSDP_OK)
            rc = calibrate_once(&calibration, argv[5], &run, &err);
        if (rc == FSDP_OK)
            calibrate_apply(&clock, &measured, &calibration);
    }
    if (rc == FSDP_OK)
        rc = plan_once(&times, &parts, &clock, argv[5], &err);
    if (rc == FSDP_OK) {
        calibrate_finish(&clock, &calibration, times.list_s);
        rc = plan_once(&times, &parts, &clock, argv[5], &err);
        printf("jitter %.4f besides %.6f\nstep_s %.6f list_s %.6f real_s %.6f\n",
               calibration.jitter, calibration.step_s, times.step_s, times.list_s,
               calibration.real_step_s);
    }
    if (rc)
        fail(&err);
    train_parts_close(&parts);
    trace_file_close(&run);
    measured_free(&measured);
    return rc != 0;
}

/* ---- against --------------------------------------------------------------------------------- */

static int run_against(int argc, char **argv)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct trace_file plan = {0}, run = {0};
    struct against against = {0};

    int rc = trace_file_read(&plan, argv[2], &err);
    if (rc == FSDP_OK)
        rc = trace_file_read(&run, argv[3], &err);
    if (rc == FSDP_OK)
        rc = against_make(&against, &plan, &run, atof(argv[4]), AGAINST_SLOWEST, &err);
    if (rc == FSDP_OK)
        against_print(&against, 0, stdout);
    if (rc == FSDP_OK && argc > 5)
        rc = against_write(&plan, &run, against.rank, argv[5], &err);
    if (rc)
        fail(&err);
    against_free(&against);
    trace_file_close(&plan);
    trace_file_close(&run);
    return rc != 0;
}

int main(int argc, char **argv)
{
    if (argc >= 4 && !strcmp(argv[1], "measure"))
        return run_measure(argc, argv);
    if (argc >= 6 && !strcmp(argv[1], "plan"))
        return run_plan(argc, argv);
    if (argc >= 5 && !strcmp(argv[1], "against"))
        return run_against(argc, argv);
    if (argc >= 7 && !strcmp(argv[1], "calibrate"))
        return run_calibrate(argc, argv);
    fprintf(stderr, "usage: bench_real measure|plan|calibrate|against ... (see the source)\n");
    return 2;
}
