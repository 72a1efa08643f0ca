/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loss scaling in fp16: how the divisor is split, how the scale moves, and that a step which
 * overflows on one rank changes nothing on any. The other steps are compared with fp32 in one
 * process, where that step was left out.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "fsdp/fsdp.h"
#include "ranks.h"
#include "tap.h"

enum { NELEM = 600, MAX_STEPS = 16 };

struct cell {
    int nranks, nnodes, accumulation, nsteps;
    enum fsdp_strategy strategy;
    enum fsdp_dtype dtype;
    double init;
    int interval;
    unsigned flags;                /* of the device */
    int bad_rank, bad_step;        /* overflows there; -1: nowhere */
    struct fsdp_scaler_state *set; /* before the first step, NULL: not */
};

struct outcome {
    float master[2][NELEM], moment[2][NELEM];
    struct fsdp_step_result result[16][MAX_STEPS]; /* [rank][step] */
    struct fsdp_scaler_state state;
};

struct run {
    struct cell cell;
    struct outcome *out;
    struct fsdp_module_tree *tree;
    int root, block, param[2];
};

/* ---- the model: the gradient of a parameter is the parameter, times something of the row ----- */

struct work {
    const void *value;
    void *grad;
    enum fsdp_dtype dtype;
    float beta;
    const float *loss_scale;
    double factor;
};

static float load(const void *x, enum fsdp_dtype dtype, size_t i)
{
    return dtype == FSDP_F32 ? ((const float *)x)[i] : fsdp_f16_to_f32(((const uint16_t *)x)[i]);
}

static int work_run(void *arg, struct fsdp_err *err)
{
    const struct work *w = arg;
    (void)err;
    for (size_t i = 0; i < NELEM; i++) {
        float g = (float)(w->factor * ((double)load(w->value, w->dtype, i) + 2 + (double)(i % 7)));
        g *= *w->loss_scale;
        if (w->beta != 0.0f)
            g += load(w->grad, w->dtype, i);
        if (w->dtype == FSDP_F32)
            ((float *)w->grad)[i] = g;
        else
            ((uint16_t *)w->grad)[i] = fsdp_f32_to_f16(g);
    }
    return FSDP_OK;
}

static int use(struct run *r, struct fsdp *f, int k, enum fsdp_phase phase, double factor,
               struct fsdp_view *v, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_module_enter(f, k ? r->block : r->root, phase, v, err));
    if (phase != FSDP_BACKWARD)
        return FSDP_OK;
    struct work w = {v->param[r->param[k]], v->grad[r->param[k]],
                     v->param_dtype,        fsdp_view_grad_beta(v, r->param[k]),
                     v->loss_scale,         factor};
    return fsdp_lane_call(v->lane, work_run, &w, sizeof w, err);
}

static int pass(struct run *r, struct fsdp *f, enum fsdp_phase phase, double factor,
                struct fsdp_err *err)
{
    struct fsdp_view v;
    FSDP_TRY(use(r, f, 0, phase, factor, &v, err));
    FSDP_TRY(use(r, f, 1, phase, factor, &v, err));
    FSDP_TRY(fsdp_module_leave(f, r->block, phase, err));
    return fsdp_module_leave(f, r->root, phase, err);
}

static int one_step(struct run *r, struct fsdp *f, int rank, int step, struct fsdp_err *err)
{
    const struct cell *c = &r->cell;
    struct fsdp_step_args args = {.step = step, .lr = 1e-3};
    /* The weight of a row: with 4 rows in all, whatever the number of ranks. */
    double weight = 0.25 * 4 / (c->nranks * c->accumulation);
    for (int m = 0; m < c->accumulation; m++) {
        bool bad = c->bad_rank == rank && c->bad_step == step && m == 0;
        FSDP_TRY(fsdp_micro_begin(f, FSDP_TRAIN, m, err));
        FSDP_TRY(pass(r, f, FSDP_FORWARD, 0, err));
        FSDP_TRY(pass(r, f, FSDP_BACKWARD, bad ? 1e30 : weight, err));
        FSDP_TRY(fsdp_micro_end(f, err));
    }
    return fsdp_step(f, &args, &r->out->result[rank][step], err);
}

static int collect(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                   const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    struct run *r = ctx;
    int k = strstr(slice->tensor.name, "block") != NULL;
    float *to = kind == FSDP_SLICE_MODEL ? r->out->master[k] : r->out->moment[k];
    if (strstr(slice->tensor.name, "exp_avg_sq") || slice->replica != 0)
        return FSDP_OK;
    return io->read(io->ctx, 0, to + slice->box.offset[0], slice->box.length[0] * sizeof(float),
                    err);
}

static int train(struct run *r, struct fsdp *f, int rank, struct fsdp_err *err)
{
    if (r->cell.set)
        FSDP_TRY(fsdp_scaler_set(f, r->cell.set, err));
    for (int step = 0; step < r->cell.nsteps; step++)
        FSDP_TRY(one_step(r, f, rank, step, err));
    FSDP_TRY(fsdp_sync(f, err));
    if (rank == 0)
        FSDP_TRY(fsdp_scaler_get(f, &r->out->state, err));
    return fsdp_state_each(f, collect, r, err);
}

static int describe(struct run *r)
{
    const uint64_t shape[1] = {NELEM};
    const struct fsdp_init init = {FSDP_INIT_UNIFORM, 1.0f};
    return fsdp_module_tree_create(&r->tree, NULL) ||
           fsdp_module_add(r->tree, -1, "", "Net", &r->root, NULL) ||
           fsdp_module_add_param(
               r->tree, r->root,
               &(struct fsdp_param_desc){.name = "w", .ndim = 1, .shape = shape, .init = init},
               &r->param[0], NULL) ||
           fsdp_module_add(r->tree, r->root, "block", "Block", &r->block, NULL) ||
           fsdp_module_add_param(r->tree, r->block,
                                 &(struct fsdp_param_desc){
                                     .name = "block.w", .ndim = 1, .shape = shape, .init = init},
                                 &r->param[1], NULL);
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    static const char *const classes[] = {"Block", NULL};
    struct run *r = arg;
    const struct cell *c = &r->cell;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct fsdp_device *device = NULL;
    struct fsdp_mesh_shape shape;
    struct fsdp_mesh *mesh = NULL;
    struct fsdp *f = NULL;
    int rc = FSDP_EINTERNAL;

    opts.sharding_strategy = c->strategy;
    opts.wrap_classes = classes;
    opts.accumulation = c->accumulation;
    opts.param_dtype = opts.reduce_dtype = c->dtype;
    opts.loss_scale.init = c->init;
    opts.loss_scale.interval = c->interval;
    opts.optim.clip_grad_norm = 0.5;
    if (describe(r) || (rc = fsdp_device_open(&device, "cpu", c->flags, &err)) ||
        (rc = fsdp_mesh_shape_for(&shape, c->strategy, 0, nodes, &err)) ||
        (rc = fsdp_mesh_create(&mesh, shape, "auto", 20, nodes, oob, device, &err)) ||
        (rc = fsdp_create(&f, r->tree, &opts, device, mesh, &err)) ||
        (rc = fsdp_init_params(f, &err)) || (rc = train(r, f, oob->rank, &err)))
        fprintf(stderr, "rank %d: %s\n", oob->rank, err.text);
    fsdp_destroy(f);
    fsdp_mesh_destroy(mesh);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(r->tree);
    return rc != 0;
}

static struct outcome *run_cell(const struct cell *c)
{
    struct run run = {.cell = *c};
    run.out =
        mmap(NULL, sizeof *run.out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ok(ranks_run(c->nranks, c->nnodes, 60, rank_main, &run, NULL) == 0,
       "%s in %s, %d ranks on %d nodes: runs", fsdp_strategy_name(c->strategy),
       fsdp_dtype_name(c->dtype), c->nranks, c->nnodes);
    return run.out;
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void test_predivisor(void)
{
    /* Those of PyTorch's rule, where the power of two divides the number of ranks. */
    static const int torch[][2] = {{1, 1},  {2, 2},  {4, 2},  {6, 4},   {8, 4},
                                   {12, 4}, {16, 4}, {64, 8}, {96, 16}, {1024, 32}};
    int bad = 0;
    for (size_t i = 0; i < sizeof torch / sizeof torch[0]; i++)
        bad += fsdp_scaler_predivisor(torch[i][0]) != torch[i][1];
    ok(bad == 0, "the divisor is split as PyTorch splits it");
    bad = 0;
    for (int n = 1; n <= 64; n++) {
        int part = fsdp_scaler_predivisor(n);
        bool power_of_two = part > 0 && (part & (part - 1)) == 0;
        bad += !power_of_two || part * part < n || (part > 1 && part * part >= 4 * n);
    }
    ok(bad == 0, "1 to 64 ranks: it is the smallest power of two that is not below the root");
}

/* The same scale is in range for 6, 7 and 8 ranks. */
static void test_any_size(void)
{
    for (int n = 6; n <= 8; n++) {
        const struct cell c = {n, 1, 1, 2, FSDP_FULL_SHARD, FSDP_F16, 3072, 2000, 0, -1, -1, NULL};
        struct outcome *out = run_cell(&c);
        ok(out->state.nskipped == 0 && out->state.scale == 3072, "%d ranks: %d steps skipped", n,
           (int)out->state.nskipped);
        munmap(out, sizeof *out);
    }
}

static double worst_of(const struct outcome *a, const struct outcome *b)
{
    double worst = 0;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < NELEM; i++) {
            double m = (double)b->moment[k][i];
            worst = fmax(worst, fabs((double)a->master[k][i] - (double)b->master[k][i]) / 1e-3);
            worst = fmax(worst, fabs((double)a->moment[k][i] - m) / fabs(m));
        }
    return worst;
}

/* A step that overflows on one rank. In fp32 the same run is one step shorter. */
static void test_skip(int nranks, int nnodes, enum fsdp_strategy strategy, unsigned flags)
{
    const struct cell one = {1, 1, 1, 5, FSDP_FULL_SHARD, FSDP_F32, 1, 0, 0, -1, -1, NULL};
    const struct cell half = {nranks, nnodes, 2,     6,          strategy, FSDP_F16,
                              1024,   3,      flags, nranks - 1, 2,        NULL};
    struct outcome *want = run_cell(&one), *got = run_cell(&half);
    int bad = 0, differ = 0;

    for (int step = 0; step < 6; step++)
        for (int rank = 0; rank < nranks; rank++) {
            bad += got->result[rank][step].skipped != (step == 2);
            differ += got->result[rank][step].loss_scale != got->result[0][step].loss_scale;
        }
    ok(bad == 0 && differ == 0, "every rank skips the step that overflowed, and no other");
    ok(got->result[0][2].loss_scale == 512 && got->result[0][4].loss_scale == 512 &&
           got->result[0][5].loss_scale == 1024,
       "the scale halves, and doubles after three good steps");
    ok(got->state.nskipped == 1 && got->state.scale == 1024 && got->state.good_steps == 0,
       "that is its state");
    /* fp16 gradients are within 2^-10 of fp32's, so steps of 1e-3 and moments are, too. */
    double worst = worst_of(got, want);
    ok(worst < 5 * 0x1p-10 && worst > 0, "weights and moments are those without it: %.1e", worst);
    double norm = (double)got->result[0][0].grad_norm,
           want_norm = (double)want->result[0][0].grad_norm;
    ok(fabs(norm - want_norm) < 1e-3 * want_norm, "the norm is that of unscaled gradients: %g",
       norm);
    munmap(want, sizeof *want);
    munmap(got, sizeof *got);
}

/* The gradients sum to about 10, and 4 ranks put half of their divisor behind the sum: the largest
 * scale that keeps 20 times it below 65504 is 2^11. */
static void test_search(void)
{
    const struct cell c = {4, 2, 1, 12, FSDP_HYBRID_SHARD, FSDP_F16, 0x1p18, 2000, 0, -1, -1, NULL};
    struct outcome *out = run_cell(&c);
    int nskipped = 0;
    while (nskipped < 12 && out->result[0][nskipped].skipped)
        nskipped++;
    bool rest = true;
    for (int step = nskipped; step < 12; step++)
        rest &= !out->result[0][step].skipped && isfinite(out->result[0][step].grad_norm);
    ok(nskipped == 7 && rest && out->state.scale == ldexp(1, 18 - nskipped) &&
           out->state.nskipped == nskipped && out->state.good_steps == 12 - nskipped,
       "from 2^18 the scale comes down to %g in %d skipped steps", out->state.scale, nskipped);
    munmap(out, sizeof *out);
}

static void test_state(void)
{
    struct fsdp_scaler_state set = {4096, 2, 7};
    struct cell c = {2, 1, 1, 1, FSDP_NO_SHARD, FSDP_F16, 1024, 3, 0, -1, -1, &set};
    struct outcome *out = run_cell(&c);
    ok(out->state.scale == 8192 && out->state.good_steps == 0 && out->state.nskipped == 7,
       "a state that was set continues: %g", out->state.scale);
    munmap(out, sizeof *out);
    c.dtype = FSDP_F32;
    out = run_cell(&c);
    ok(out->state.scale == 0 && out->result[0][0].loss_scale == 0,
       "without fp16 nothing is scaled");
    munmap(out, sizeof *out);
}

static void test_refusals(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_scaler_opts o = FSDP_SCALER_OPTS_INIT;
    ok(fsdp_scaler_check(&o, &err) == FSDP_OK && o.init == 65536 && o.interval == 2000, "defaults");
    o.init = 0;
    ok(fsdp_scaler_check(&o, &err) == FSDP_EINVAL, "%s", err.text);
    o.init = 1;
    o.growth = 0.5;
    ok(fsdp_scaler_check(&o, &err) == FSDP_EINVAL, "%s", err.text);
    o.growth = 2;
    o.backoff = NAN;
    ok(fsdp_scaler_check(&o, &err) == FSDP_EINVAL, "%s", err.text);
}

int main(void)
{
    test_predivisor();
    test_refusals();
    test_skip(1, 1, FSDP_FULL_SHARD, 0);
    test_skip(3, 1, FSDP_FULL_SHARD, FSDP_DEVICE_THREADED);
    test_skip(2, 1, FSDP_NO_SHARD, 0);
    test_skip(4, 2, FSDP_HYBRID_SHARD, FSDP_DEVICE_THREADED);
    test_search();
    test_any_size();
    test_state();
    return tap_done();
}
