/* SPDX-License-Identifier: Apache-2.0 */
/* Sweeps on two ranks: what is measured, written and read again. No number is judged. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "nn/nn.h"
#include "plan/measure/measure.h"
#include "ranks.h"
#include "tap.h"

static const struct measure_shapes shapes = {
    .linear = {{32, 48, 80, FSDP_F32}, {32, 80, 48, FSDP_F32}},
    .attention = {{32, 8.5, 2, 24, FSDP_F32}},
    .pass = {{FSDP_PASS_ACTIVATION, 32 * 80 * 24, FSDP_F32}},
    .nlinear = 2,
    .nattention = 1,
    .npass = 1,
    .dim = 48,
    .vocab = 96,
    .seq_len = 16,
};

static int sweep(struct measured *out, struct fsdp_oob *oob, const struct fsdp_node_map *nodes,
                 struct fsdp_err *err)
{
    struct fsdp_device *device;
    struct fsdp_mesh *mesh = NULL;
    struct measure_opts opts = {.oob = oob,
                                .node_nranks = oob->size / nodes->nnodes,
                                .shapes = &shapes,
                                .no_grid = true,
                                .seconds = 0.5};

    FSDP_TRY(fsdp_device_open(&device, ranks_device(), 0, err));
    int rc = fsdp_mesh_create(&mesh, (struct fsdp_mesh_shape){oob->size, 1, 0, 0, 0}, "auto", 60,
                              nodes, oob, device, err);
    opts.device = device;
    opts.mesh = mesh;
    if (rc == FSDP_OK)
        rc = measure_run(out, &opts, err);
    fsdp_mesh_destroy(mesh);
    fsdp_device_close(device);
    return rc;
}

static bool all_rates(const struct fsdp_rate *rates, int nrates)
{
    bool good = nrates > 0;
    for (int i = 0; i < nrates; i++)
        good = good && rates[i].per_s > 0 && rates[i].m > 0;
    return good;
}

static bool has_kind(const struct measured *m, enum fsdp_collective kind)
{
    for (int i = 0; i < m->ncollectives; i++)
        if (m->collectives[i].kind == kind && m->collectives[i].nranks == 2 &&
            m->collectives[i].nnodes == 1 && m->collectives[i].seconds > 0)
            return true;
    return false;
}

/* 1 and on: what is wrong. */
static int run_rank(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct measured m;
    int wrong = 0;

    nn_set_threads(1);
    if (sweep(&m, oob, nodes, &err)) {
        diag("%s", err.text);
        return 1;
    }
    if (m.nproducts != 6 || !all_rates(m.products, m.nproducts))
        wrong = 2;
    else if (m.nattention != 2 || !all_rates(m.attention, m.nattention))
        wrong = 3;
    else if (!all_rates(m.copies, m.ncopies))
        wrong = 4;
    else if (!has_kind(&m, FSDP_ALL_GATHER) || !has_kind(&m, FSDP_REDUCE_SCATTER) ||
             !has_kind(&m, FSDP_ALL_REDUCE))
        wrong = 5;
    else if (oob->rank == 0 && measured_write(&m, arg, &err))
        wrong = 6;
    measured_free(&m);
    return wrong;
}

static void check_tables(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct measured m, again;
    struct fsdp_clock clock = {.device = {.memory_nbytes_per_s = 1, .memory_share = 1}};
    const struct fsdp_work work = {
        .kind = FSDP_WORK_PRODUCT, .times = 1, .m = 32, .n = 80, .k = 48, .type = FSDP_F32};

    ok(measured_read(&m, ".", &err) == FSDP_OK, "tables are read: %s", err.text);
    mkdir("again", 0700);
    ok(measured_write(&m, "again", &err) == FSDP_OK && measured_read(&again, "again", &err) == 0 &&
           again.nproducts == m.nproducts && again.ncopies == m.ncopies &&
           again.ncollectives == m.ncollectives && again.jitter == m.jitter && m.scatter > 0 &&
           again.scatter == m.scatter && again.copies[3].n == m.copies[3].n,
       "and written again the same: %s", err.text);
    measured_apply(&clock, &m, true);
    ok(clock.device.serial && fsdp_work_seconds(&clock.device, &work) > 0 &&
           clock.net.nmeasured == m.ncollectives,
       "a clock takes them");
    measured_free(&again);
    measured_free(&m);
}

static void refused(const char *line, const char *want)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct measured m;
    FILE *to = fopen("again/gemm.tsv", "w");

    fprintf(to, "type\tm\tn\tk\tflops\n%s\n", line);
    fclose(to);
    ok(measured_read(&m, "again", &err) == FSDP_ECORRUPT && strstr(err.text, want), "refused: %s",
       err.text);
}

int main(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct measured m;
    char here[] = ".";

    ok(ranks_run(2, 1, 120, run_rank, here, NULL) == 0, "two ranks sweep");
    check_tables();
    refused("F32\t1\t2\t3", "gemm.tsv:2: 4 columns, where 5 are wanted");
    refused("F32\t1\t2\t3\t-1", "gemm.tsv:2: a rate of -1 at a size of 1");
    ok(measured_read(&m, "no/such", &err) && strstr(err.text, "cannot read no/such/gemm.tsv"),
       "a folder that is not there: %s", err.text);
    return tap_done();
}
