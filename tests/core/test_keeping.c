/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the state is kept changes nothing of what is computed. Split masters give the bits of whole
 * ones, moments in BF16 and weights without masters the same bits at every world size and under
 * every strategy, and state that is offloaded the bits of what is not. Gradients are given
 * (given.h), the same on every rank, so that their sum is exact.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "given.h"
#include "ranks.h"
#include "tap.h"

enum { STEPS = 5, NKEYS = 5 };
static const char *const keys[NKEYS] = {"", "exp_avg", "exp_avg_sq", "momentum_buffer", "ema"};

enum {
    SPLIT = 1,
    NARROW = 2,
    SGD = 4,
    EMA = 8,
    CLIP = 16,
    THREADED = 32,
    SAVED = 64,
    STATE_AWAY = 128,
    PARAMS_AWAY = 256,
    WIDE = 512,
    IN_FILE = 1024,
    BARE = 2048,
    GRAD16 = 4096, /* gradient shards in BF16 */
    TWICE = 8192,  /* two micro-steps */
    LAST = 16384,  /* gradients are reduced in the last of them */
    EARLY = 32768, /* updates at the reduction */
    REDUCE16 = 65536,
    DURING = 131072, /* updates during the next forward pass */
    GRADS_AWAY = 262144,
    ON_HOST = 524288 /* updates */
};
struct cell {
    int nranks, nnodes;
    enum fsdp_strategy strategy;
    unsigned how;
};

struct outcome {
    float value[NKEYS][GIVEN_NELEM];
    float summoned[GIVEN_NELEM];
    float norm[STEPS];
    double factor[STEPS];
};

struct run {
    struct cell cell;
    struct outcome *out;
    float (*to)[GIVEN_NELEM]; /* where slices go */
    bool write;               /* there and back, odd bytes first */
    float share;              /* of the gradients: their sum over ranks is exact */
};

/* ---- one run --------------------------------------------------------------------------------- */

static int place_of(const char *name, int *key)
{
    for (*key = 0; *key < NKEYS; ++*key)
        for (int p = 0; p < GIVEN_NPARAMS; p++) {
            char want[64];
            snprintf(want, sizeof want, "%s%s%s%s", *key ? "state." : "", given_names[p],
                     *key ? "." : "", keys[*key]);
            if (!strcmp(name, want))
                return given_start[p];
        }
    abort();
}

static int read_slice(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                      const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    struct run *run = ctx;
    size_t nelem = fsdp_box_nelem(&slice->box, slice->tensor.ndim), nbytes = nelem * 4;
    char raw[GIVEN_NELEM * 4];
    int key, at = place_of(slice->tensor.name, &key);
    bool narrow =
        key == 0 ? run->cell.how & BARE : (run->cell.how & NARROW) && (key == 1 || key == 2);

    (void)kind;
    if (slice->tensor.dtype != (narrow ? FSDP_BF16 : FSDP_F32))
        return fsdp_err_set(err, FSDP_EINTERNAL, "%s is %s", slice->tensor.name,
                            fsdp_dtype_name(slice->tensor.dtype));
    nbytes /= narrow ? 2 : 1;
    float *to = run->to[key] + at + slice->box.offset[0] * fsdp_tensor_row_nelem(&slice->tensor);
    if (!nelem)
        return FSDP_OK;
    for (size_t from = 0, part = 3; from < nbytes; from += part, part = 7) { /* any bytes */
        part = part < nbytes - from ? part : nbytes - from;
        FSDP_TRY(io->read(io->ctx, from, raw + from, part, err));
        if (run->write)
            FSDP_TRY(io->write(io->ctx, from, raw + from, part, err));
    }
    for (size_t i = 0; i < nelem; i++)
        if (narrow)
            to[i] = fsdp_bf16_to_f32(((const uint16_t *)(const void *)raw)[i]);
        else
            memcpy(&to[i], raw + i * 4, 4);
    return FSDP_OK;
}

static int read_live(struct run *run, struct fsdp *f, float (*to)[GIVEN_NELEM], bool write,
                     struct fsdp_err *err)
{
    run->to = to;
    run->write = write;
    FSDP_TRY(fsdp_sync(f, err));
    return fsdp_state_each(f, read_slice, run, err);
}

/* A snapshot of any size is the live state. */
static int check_snapshot(struct run *run, struct fsdp *f, uint64_t budget, struct fsdp_err *err)
{
    static float live[NKEYS][GIVEN_NELEM], taken[NKEYS][GIVEN_NELEM];
    struct fsdp_snapshot *snapshot = NULL;

    FSDP_TRY(read_live(run, f, live, false, err));
    FSDP_TRY(fsdp_snapshot_create(&snapshot, f, budget, 20, err));
    int rc = fsdp_snapshot_take(snapshot, err);
    run->to = taken;
    if (!rc && !budget)
        rc = fsdp_snapshot_each(snapshot, read_slice, run, err);
    fsdp_snapshot_release(snapshot);
    fsdp_snapshot_destroy(snapshot);
    if (!rc && !budget && memcmp(live, taken, sizeof live))
        rc = fsdp_err_set(err, FSDP_EINTERNAL, "a snapshot is not the state");
    return rc;
}

static int summon(void *ctx, const struct fsdp_full_param *param, struct fsdp_err *err)
{
    struct run *run = ctx;
    size_t nelem = fsdp_tensor_nelem(&param->tensor);
    if (param->tensor.dtype != FSDP_F32)
        return fsdp_err_set(err, FSDP_EINTERNAL, "a whole parameter is not in fp32");
    memcpy(run->out->summoned + given_start[param->param], param->value, nelem * sizeof(float));
    for (size_t i = 0; i < nelem; i++)
        param->value[i] *= 1.25f;
    return FSDP_OK;
}

static int train(struct run *run, struct given *model, struct fsdp *f, struct fsdp_err *err)
{
    struct fsdp_full_opts full = FSDP_FULL_OPTS_INIT;
    float given[GIVEN_NELEM];

    full.writeback = true;
    full.module = model->block[1];
    FSDP_TRY(fsdp_init_params(f, err));
    for (int step = 0; step < STEPS; step++) {
        struct fsdp_step_args args = {.step = step, .lr = 0.01};
        for (int i = 0; i < GIVEN_NELEM; i++)
            given[i] = sinf((float)(1 + step) * (0.3f + (float)i));
        FSDP_TRY(fsdp_step_begin(f, &args, err));
        FSDP_TRY(given_micro(model, f, 0, given, run->share, err));
        if (run->cell.how & TWICE)
            FSDP_TRY(given_micro(model, f, 1, given, run->share * 0.375f, err));
        struct fsdp_step_result result;
        FSDP_TRY(fsdp_step(f, &args, &result, err));
        FSDP_TRY(fsdp_sync(f, err));
        run->out->norm[step] = result.grad_norm; /* the same on all ranks */
        FSDP_TRY(fsdp_clip_factor_get(f, &run->out->factor[step], err));
        FSDP_TRY(fsdp_clip_factor_set(f, run->out->factor[step], err));
        if (step == 1 && (run->cell.how & SAVED)) {
            FSDP_TRY(check_snapshot(run, f, 0, err));
            FSDP_TRY(check_snapshot(run, f, 100, err));
            FSDP_TRY(read_live(run, f, run->out->value, true, err));
            FSDP_TRY(fsdp_state_loaded(f, err));
        }
        if (step == 2)
            FSDP_TRY(fsdp_full_params(f, &full, summon, run, err));
    }
    return read_live(run, f, run->out->value, false, err);
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct run *run = arg;
    unsigned how = run->cell.how, flags = how & THREADED ? FSDP_DEVICE_THREADED : 0;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct given_engine engine = {.device = NULL};
    struct given model;

    given_make(&model);
    opts.sharding_strategy = run->cell.strategy;
    opts.param_dtype = how & WIDE ? FSDP_F32 : FSDP_BF16;
    opts.offload = how & PARAMS_AWAY  ? FSDP_OFFLOAD_PARAMS
                   : how & STATE_AWAY ? FSDP_OFFLOAD_OPTIMIZER
                                      : FSDP_OFFLOAD_NONE;
    opts.offload_gradients = how & GRADS_AWAY;
    if (how & ON_HOST)
        opts.offload_update = FSDP_OFFLOAD_UPDATE_HOST;
    opts.offload_dir = how & IN_FILE ? getenv("TEST_TMP") : NULL;
    opts.seed = 3;
    opts.reduce_last = how & LAST;
    opts.update_at = how & EARLY    ? FSDP_UPDATE_AT_REDUCE
                     : how & DURING ? FSDP_UPDATE_AT_FORWARD
                                    : FSDP_UPDATE_AT_STEP;
    opts.optim.clip_late = (how & EARLY) && (how & CLIP);
    opts.reduce_dtype = how & REDUCE16 ? FSDP_BF16 : FSDP_F32;
    opts.grad_dtype = how & GRAD16 ? FSDP_BF16 : FSDP_F32;
    opts.accumulation = how & TWICE ? 2 : 1;
    if (run->cell.nranks & (run->cell.nranks - 1))
        run->share = oob->rank == 0;
    else
        run->share = 1.0f / (float)run->cell.nranks;
    opts.optim.name = how & SGD ? "sgd" : "adamw";
    opts.optim.master = how & SPLIT  ? FSDP_MASTER_SPLIT
                        : how & BARE ? FSDP_MASTER_NONE
                                     : FSDP_MASTER_WHOLE;
    opts.optim.moment_dtype = how & NARROW ? FSDP_BF16 : FSDP_F32;
    opts.optim.ema_decay = how & EMA ? 0.75 : 0;
    opts.optim.clip_grad_norm = how & CLIP ? 0.5 : 0;
    const struct given_where where = {.device = ranks_device(), .flags = flags};
    int rc = given_open(&engine, &model, &opts, &where, nodes, oob, &err);
    if (!rc)
        rc = train(run, &model, engine.f, &err);
    return given_close(&engine, &model, oob->rank, rc, &err);
}

static struct outcome *run_cell(struct cell cell)
{
    struct outcome *out =
        mmap(NULL, sizeof *out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct run run = {.cell = cell, .out = out};
    if (ranks_run(cell.nranks, cell.nnodes, 60, rank_main, &run, NULL)) {
        munmap(out, sizeof *out);
        return NULL;
    }
    return out;
}

/* ---- the cells ------------------------------------------------------------------------------- */

static bool equal(const struct outcome *a, const struct outcome *b)
{
    for (int k = 0; a && b && k < NKEYS; k++)
        for (int i = 0; i < GIVEN_NELEM; i++)
            if (memcmp(&a->value[k][i], &b->value[k][i], 4)) {
                diag("element %d of '%s': %.9g and %.9g", i, keys[k], (double)a->value[k][i],
                     (double)b->value[k][i]);
                return false;
            }
    return a && b && !memcmp(a->summoned, b->summoned, sizeof a->summoned);
}

static void forget(struct outcome *out)
{
    if (out)
        munmap(out, sizeof *out);
}

static void test_split(void)
{
    static const struct cell cells[] = {
        {1, 1, FSDP_FULL_SHARD, CLIP},
        {2, 1, FSDP_FULL_SHARD, CLIP | EMA | SAVED},
        {4, 1, FSDP_SHARD_GRAD_OP, SGD | EMA},
        {2, 1, FSDP_NO_SHARD, NARROW | CLIP | SAVED | THREADED},
        {4, 2, FSDP_HYBRID_SHARD, SGD | CLIP | SAVED},
    };
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++) {
        struct cell cell = cells[i];
        struct outcome *whole = run_cell(cell);
        cell.how |= SPLIT;
        struct outcome *split = run_cell(cell);
        ok(equal(whole, split), "%d ranks, %s, how %u: split masters give the bits of whole ones",
           cell.nranks, fsdp_strategy_name(cell.strategy), cell.how);
        forget(whole);
        forget(split);
    }
}

/* How far the weights of a run with moments in BF16 are from those in fp32, in parts of what they
 * moved by at most: lr a step. */
static double distance(const struct outcome *a, const struct outcome *b)
{
    double worst = 0;
    for (int i = 0; i < GIVEN_NELEM; i++)
        worst = fmax(worst, fabs((double)a->value[0][i] - (double)b->value[0][i]));
    return worst / (0.01 * STEPS);
}

static void test_narrow(void)
{
    static const struct cell cells[] = {
        {2, 1, FSDP_FULL_SHARD, NARROW | SAVED},    {4, 1, FSDP_FULL_SHARD, NARROW | THREADED},
        {4, 2, FSDP_HYBRID_SHARD, NARROW},          {2, 1, FSDP_NO_SHARD, NARROW},
        {4, 1, FSDP_SHARD_GRAD_OP, NARROW | SPLIT},
    };
    struct outcome *alone = run_cell((struct cell){1, 1, FSDP_FULL_SHARD, NARROW});
    struct outcome *wide = run_cell((struct cell){1, 1, FSDP_FULL_SHARD, 0});

    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++) {
        struct outcome *out = run_cell(cells[i]);
        ok(equal(alone, out), "moments in BF16: %d ranks, %s, have the bits of one",
           cells[i].nranks, fsdp_strategy_name(cells[i].strategy));
        forget(out);
    }
    double far = alone && wide ? distance(alone, wide) : 1;
    ok(far > 0 && far < 0.02, "weights are %.4f of their way from those with moments in fp32", far);
    forget(alone);
    forget(wide);
}

/* How many roundings to BF16, of at most 2^-7 each, the weights are from those of another run. */
static double roundings(const struct outcome *a, const struct outcome *b)
{
    double worst = 0;
    for (int i = 0; i < GIVEN_NELEM; i++) {
        double x = (double)b->value[0][i], most = 0x1p-7 * (fabs(x) + 0.01 * STEPS);
        worst = fmax(worst, fabs((double)a->value[0][i] - x) / most);
    }
    return worst;
}

/* Nothing but weights in BF16: the rounding depends on no cut. */
static void test_bare(void)
{
    static const struct cell cells[] = {
        {2, 1, FSDP_FULL_SHARD, BARE | SAVED},
        {3, 1, FSDP_FULL_SHARD, BARE | THREADED},
        {4, 2, FSDP_HYBRID_SHARD, BARE},
        {2, 1, FSDP_NO_SHARD, BARE | SAVED},
        {3, 1, FSDP_SHARD_GRAD_OP, BARE | SGD | EMA | SAVED},
        {2, 1, FSDP_FULL_SHARD, BARE | NARROW | EMA | SAVED},
        {3, 1, FSDP_FULL_SHARD, BARE | NARROW | EMA | PARAMS_AWAY},
    };
    struct outcome *wide = run_cell((struct cell){1, 1, FSDP_FULL_SHARD, 0});

    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++) {
        const unsigned how = cells[i].how & (BARE | SGD | EMA | NARROW);
        struct outcome *alone = run_cell((struct cell){1, 1, FSDP_FULL_SHARD, how});
        struct outcome *out = run_cell(cells[i]);
        ok(equal(alone, out), "no masters: %d ranks, %s, how %u, have the bits of one",
           cells[i].nranks, fsdp_strategy_name(cells[i].strategy), cells[i].how);
        if (i == 0) {
            double far = alone && wide ? roundings(alone, wide) : 0;
            ok(far > 0 && far < STEPS + 2,
               "weights are %.2f roundings from those with masters in fp32", far);
        }
        forget(alone);
        forget(out);
    }
    forget(wide);
}

/* Gradient shards in BF16: each micro-step is added in fp32 and rounded, whatever is cut where. */
static void test_narrow_grads(void)
{
    static const struct cell cells[] = {
        {2, 1, FSDP_FULL_SHARD, GRAD16 | TWICE | THREADED},
        {3, 1, FSDP_FULL_SHARD, GRAD16 | TWICE | BARE | NARROW},
        {4, 2, FSDP_HYBRID_SHARD, GRAD16},
        {2, 1, FSDP_NO_SHARD, GRAD16 | TWICE | SGD},
        {3, 1, FSDP_SHARD_GRAD_OP, GRAD16 | TWICE | SGD | SPLIT},
    };
    struct outcome *wide = run_cell((struct cell){1, 1, FSDP_FULL_SHARD, TWICE});

    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++) {
        const unsigned how = cells[i].how & ~(unsigned)THREADED;
        struct outcome *alone = run_cell((struct cell){1, 1, FSDP_FULL_SHARD, how});
        struct outcome *out = run_cell(cells[i]);
        ok(equal(alone, out), "gradients in BF16: %d ranks, %s, how %u, have the bits of one",
           cells[i].nranks, fsdp_strategy_name(cells[i].strategy), cells[i].how);
        if (i == 0) {
            double far = alone && wide ? distance(alone, wide) : 1;
            ok(far > 0 && far < 0.02,
               "weights are %.4f of their way from those of gradients in fp32", far);
        }
        forget(alone);
        forget(out);
    }
    forget(wide);
}

/* Updated as soon as gradients are reduced, or after all of them: the same bits, and norms. */
static void test_early(void)
{
    static const struct cell cells[] = {
        {1, 1, FSDP_FULL_SHARD, WIDE},
        {2, 1, FSDP_FULL_SHARD, TWICE | LAST | EMA | SAVED},
        {3, 1, FSDP_FULL_SHARD, BARE | NARROW | THREADED | REDUCE16},
        {2, 1, FSDP_NO_SHARD, SPLIT | NARROW | SAVED | THREADED},
        {4, 2, FSDP_HYBRID_SHARD, SGD | BARE | SAVED},
        {4, 2, FSDP_HYBRID_SHARD, REDUCE16 | TWICE | LAST},
        {2, 1, FSDP_FULL_SHARD, BARE | NARROW | STATE_AWAY | THREADED},
        {3, 1, FSDP_SHARD_GRAD_OP, SPLIT | EMA | PARAMS_AWAY | SAVED},
        {2, 1, FSDP_ZERO1, WIDE | STATE_AWAY | IN_FILE},
    };
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++) {
        struct cell cell = cells[i];
        struct outcome *late = run_cell(cell);
        cell.how |= EARLY;
        struct outcome *early = run_cell(cell);
        ok(equal(late, early) && !memcmp(late->norm, early->norm, sizeof late->norm) &&
               late->norm[0] > 0,
           "%d ranks, %s, how %u: updates at the reduction give the bits of those after it",
           cell.nranks, fsdp_strategy_name(cell.strategy), cell.how);
        forget(late);
        forget(early);
    }
}

/* Updated during the next forward pass, on a lane of their own, or before: the same bits, in
 * what a save reads between two steps, too. */
static void test_during(void)
{
    static const struct cell cells[] = {
        {1, 1, FSDP_FULL_SHARD, WIDE | THREADED},
        {1, 1, FSDP_FULL_SHARD, CLIP | EMA | SAVED | THREADED},
        {2, 1, FSDP_FULL_SHARD, TWICE | LAST | EMA | SAVED | THREADED},
        {3, 1, FSDP_FULL_SHARD, BARE | NARROW | THREADED | REDUCE16},
        {2, 1, FSDP_NO_SHARD, SPLIT | NARROW | SAVED | THREADED | CLIP},
        {4, 2, FSDP_HYBRID_SHARD, SGD | BARE | SAVED | THREADED},
        {2, 1, FSDP_FULL_SHARD, GRAD16 | TWICE | THREADED},
        {2, 1, FSDP_FULL_SHARD, BARE | NARROW | STATE_AWAY | THREADED},
        {3, 1, FSDP_SHARD_GRAD_OP, SPLIT | EMA | PARAMS_AWAY | SAVED | THREADED},
        {2, 1, FSDP_ZERO1, WIDE | STATE_AWAY | IN_FILE | THREADED},
    };
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++) {
        struct cell cell = cells[i];
        struct outcome *before = run_cell(cell);
        cell.how |= DURING;
        struct outcome *during = run_cell(cell);
        ok(equal(before, during) && !memcmp(before->norm, during->norm, sizeof before->norm),
           "%d ranks, %s, how %u: updates during the forward pass give the bits of those before it",
           cell.nranks, fsdp_strategy_name(cell.strategy), cell.how);
        forget(before);
        forget(during);
    }
}

/* A step is clipped by the norm of the step before: the first is not. */
static void test_late_clip(void)
{
    const struct cell clipped = {2, 1, FSDP_FULL_SHARD, EARLY | CLIP | SGD | WIDE};
    const struct cell plain = {2, 1, FSDP_FULL_SHARD, EARLY | SGD | WIDE};
    struct outcome *a = run_cell(clipped), *b = run_cell(plain);
    bool factors = a && b, less = a && b;

    for (int i = 0; factors && i < STEPS; i++) {
        const double want = fmin(1, 0.5 / ((double)a->norm[i] + 1e-6));
        factors = fabs(a->factor[i] - want) < 1e-6 && b->factor[i] == 1;
    }
    ok(factors && a->factor[0] < 1, "the factor of the next step is that of this one's norm");
    double moved[2] = {0};
    for (int i = 0; less && i < GIVEN_NELEM; i++) {
        moved[0] += fabs((double)a->value[3][i]);
        moved[1] += fabs((double)b->value[3][i]);
    }
    ok(less && moved[0] > 0 && moved[0] < moved[1], "and momentum is smaller for it");
    forget(a);
    forget(b);
}

/* What updates at the reduction, and during the forward pass, are refused with, by the setting's
 * name. */
static void test_update_refused(void)
{
    static const struct {
        enum fsdp_update_at at;
        const char *setting, *name;
        double clip;
        enum fsdp_dtype param, reduce, grad;
        int accumulation;
    } cases[] = {
        {FSDP_UPDATE_AT_REDUCE, "clip_grad_norm", "adamw", 1, FSDP_F32, FSDP_F32, FSDP_F32, 1},
        {FSDP_UPDATE_AT_REDUCE, "reduce_last", "adamw", 0, FSDP_F32, FSDP_F32, FSDP_F32, 2},
        {FSDP_UPDATE_AT_REDUCE, "loss_scale", "adamw", 0, FSDP_F16, FSDP_F32, FSDP_F32, 1},
        {FSDP_UPDATE_AT_REDUCE, "grad_dtype", "adamw", 0, FSDP_F32, FSDP_F32, FSDP_BF16, 1},
        {FSDP_UPDATE_AT_REDUCE, "update_at", "adafactor", 0, FSDP_F32, FSDP_F32, FSDP_F32, 1},
        {FSDP_UPDATE_AT_REDUCE, NULL, "adamw", 0, FSDP_BF16, FSDP_BF16, FSDP_F32, 1},
        {FSDP_UPDATE_AT_FORWARD, "update_at", "adafactor", 0, FSDP_F32, FSDP_F32, FSDP_F32, 1},
        {FSDP_UPDATE_AT_FORWARD, "update_at", "muon", 0, FSDP_F32, FSDP_F32, FSDP_F32, 1},
        {FSDP_UPDATE_AT_FORWARD, NULL, "adamw", 1, FSDP_F16, FSDP_F32, FSDP_BF16, 2},
    };
    struct fsdp_mesh_shape shape = {.shard_size = 2, .replicate_size = 1};
    struct fsdp_device *device = NULL;
    struct given model;

    given_make(&model);
    fsdp_device_open(&device, "cpu", 0, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fsdp_opts opts = FSDP_OPTS_INIT;
        struct fsdp_err err = FSDP_ERR_INIT;
        struct fsdp *f = NULL;
        opts.update_at = cases[i].at;
        opts.optim.name = cases[i].name;
        opts.optim.clip_grad_norm = cases[i].clip;
        opts.param_dtype = cases[i].param;
        opts.reduce_dtype = cases[i].reduce;
        opts.grad_dtype = cases[i].grad;
        opts.accumulation = cases[i].accumulation;
        int rc = fsdp_plan(&f, model.tree, &opts, device, shape, &err);
        ok(cases[i].setting ? rc == FSDP_EUNSUPPORTED && !strcmp(err.setting, cases[i].setting)
                            : rc == FSDP_OK,
           "update_at %d, %s: %s", (int)cases[i].at,
           cases[i].setting ? cases[i].setting : "nothing is refused", err.text);
        fsdp_destroy(f);
    }
    fsdp_device_close(device);
    fsdp_module_tree_destroy(model.tree);
}

/* Averages, and SGD, need whole masters for it. */
static bool updates_on_host(unsigned how)
{
    return !(how & SPLIT) || !(how & (EMA | SGD));
}

static void test_offload(void)
{
    static const struct cell cells[] = {
        {1, 1, FSDP_FULL_SHARD, SPLIT | NARROW | EMA | SAVED},
        {2, 1, FSDP_FULL_SHARD, CLIP | EMA | SAVED},
        {2, 1, FSDP_FULL_SHARD, WIDE | CLIP | EMA | SAVED | THREADED},
        {4, 1, FSDP_SHARD_GRAD_OP, SGD | SPLIT | EMA | SAVED},
        {2, 1, FSDP_NO_SHARD, NARROW | CLIP | SAVED | THREADED},
        {4, 2, FSDP_HYBRID_SHARD, SPLIT | CLIP | SAVED},
        {2, 1, FSDP_FULL_SHARD, GRAD16 | TWICE | CLIP | THREADED},
        {2, 1, FSDP_FULL_SHARD, SPLIT | NARROW | TWICE | CLIP | THREADED},
        {2, 1, FSDP_FULL_SHARD, BARE | NARROW | CLIP | SAVED},
        {3, 1, FSDP_FULL_SHARD, SGD | EMA | SAVED | DURING},
        {1, 1, FSDP_FULL_SHARD, WIDE | TWICE | LAST | CLIP},
    };
    static const unsigned away[] = {STATE_AWAY,
                                    PARAMS_AWAY,
                                    STATE_AWAY | IN_FILE,
                                    PARAMS_AWAY | IN_FILE,
                                    GRADS_AWAY,
                                    GRADS_AWAY | PARAMS_AWAY | IN_FILE,
                                    ON_HOST | GRADS_AWAY | STATE_AWAY,
                                    ON_HOST | GRADS_AWAY | PARAMS_AWAY,
                                    ON_HOST | GRADS_AWAY | STATE_AWAY | IN_FILE,
                                    ON_HOST | GRADS_AWAY | PARAMS_AWAY | IN_FILE};
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++) {
        struct outcome *at_home = run_cell(cells[i]);
        for (size_t k = 0; k < sizeof away / sizeof away[0]; k++) {
            struct cell cell = cells[i];
            cell.how |= away[k];
            if ((cell.how & ON_HOST) && !updates_on_host(cell.how))
                continue;
            struct outcome *out = run_cell(cell);
            ok(equal(at_home, out), "%d ranks, %s, how %u: offloaded, the bits are the same",
               cell.nranks, fsdp_strategy_name(cell.strategy), cell.how);
            forget(out);
        }
        forget(at_home);
    }
}

/* What cannot be updated on the host is refused, and named. */
static void test_refused_on_host(void)
{
    static const struct {
        enum fsdp_offload offload;
        bool grads;
        enum fsdp_master master;
        const char *optimizer;
        enum fsdp_dtype grad;
        double ema;
        bool f8;
        const char *why; /* NULL: it can */
    } cases[] = {
        {FSDP_OFFLOAD_OPTIMIZER, true, FSDP_MASTER_WHOLE, "adamw", FSDP_BF16, 0, false, NULL},
        {FSDP_OFFLOAD_PARAMS, true, FSDP_MASTER_SPLIT, "adamw", FSDP_F32, 0, false, NULL},
        {FSDP_OFFLOAD_PARAMS, true, FSDP_MASTER_WHOLE, "schedulefree", FSDP_F32, 0, false, NULL},
        {FSDP_OFFLOAD_NONE, true, FSDP_MASTER_WHOLE, "adamw", FSDP_F32, 0, false, "fsdp.offload "},
        {FSDP_OFFLOAD_PARAMS, false, FSDP_MASTER_WHOLE, "adamw", FSDP_F32, 0, false,
         "offload_gradients"},
        {FSDP_OFFLOAD_PARAMS, true, FSDP_MASTER_SPLIT, "lion", FSDP_F32, 0, false, "master whole"},
        {FSDP_OFFLOAD_PARAMS, true, FSDP_MASTER_NONE, "adamw", FSDP_F32, 0.9, false, "averages"},
        {FSDP_OFFLOAD_PARAMS, true, FSDP_MASTER_WHOLE, "sgd", FSDP_BF16, 0, false, "grad_dtype"},
        {FSDP_OFFLOAD_PARAMS, true, FSDP_MASTER_WHOLE, "muon", FSDP_F32, 0, false, "sums over"},
        {FSDP_OFFLOAD_OPTIMIZER, true, FSDP_MASTER_WHOLE, "adamw", FSDP_F32, 0, true,
         "gather_dtype"},
    };
    const struct fsdp_mesh_shape shape = {.shard_size = 2, .replicate_size = 1};
    struct fsdp_device *device = NULL;
    struct given model;

    given_make(&model);
    fsdp_device_open(&device, "cpu", 0, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fsdp_opts opts = FSDP_OPTS_INIT;
        struct fsdp_err err = FSDP_ERR_INIT;
        struct fsdp *f = NULL;
        opts.param_dtype = FSDP_BF16;
        opts.offload_update = FSDP_OFFLOAD_UPDATE_HOST;
        opts.offload = cases[i].offload;
        opts.offload_gradients = cases[i].grads;
        opts.grad_dtype = cases[i].grad;
        opts.optim.master = cases[i].master;
        opts.optim.name = cases[i].optimizer;
        opts.optim.ema_decay = cases[i].ema;
        opts.gather_codec = cases[i].f8 ? &fsdp_gather_float8 : NULL;
        int rc = fsdp_plan(&f, model.tree, &opts, device, shape, &err);
        ok(cases[i].why
               ? rc && !strcmp(err.setting, "offload_update") && strstr(err.text, cases[i].why)
               : rc == FSDP_OK,
           "%s on the host: %s", cases[i].optimizer, rc ? err.text : "nothing is refused");
        fsdp_destroy(f);
    }
    fsdp_device_close(device);
    fsdp_module_tree_destroy(model.tree);
}

/* What the options cannot do is said. */
static void test_refused(void)
{
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct fsdp_mesh_shape shape = {.shard_size = 2, .replicate_size = 1};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_device *device = NULL;
    struct fsdp *f = NULL;
    struct given model;

    given_make(&model);
    fsdp_device_open(&device, "cpu", 0, NULL);
    opts.optim.master = FSDP_MASTER_SPLIT;
    ok(fsdp_plan(&f, model.tree, &opts, device, shape, &err) == FSDP_EINVAL &&
           !strcmp(err.setting, "master") && strstr(err.text, "bfloat16"),
       "masters of parameters in fp32 are not split: %s", err.text);
    opts.optim.master = FSDP_MASTER_NONE;
    ok(fsdp_plan(&f, model.tree, &opts, device, shape, &err) == FSDP_EINVAL &&
           !strcmp(err.setting, "master") && strstr(err.text, "left out"),
       "nor left out: %s", err.text);
    opts.param_dtype = FSDP_BF16;
    opts.optim.name = "muon";
    ok(fsdp_plan(&f, model.tree, &opts, device, shape, &err) == FSDP_EUNSUPPORTED &&
           !strcmp(err.setting, "master") && strstr(err.text, "muon"),
       "muon has none without: %s", err.text);
    opts.param_dtype = FSDP_F32;
    opts.optim.master = FSDP_MASTER_WHOLE;
    opts.grad_dtype = FSDP_BF16;
    ok(fsdp_plan(&f, model.tree, &opts, device, shape, &err) == FSDP_EUNSUPPORTED &&
           !strcmp(err.setting, "grad_dtype") && strstr(err.text, "muon"),
       "it takes no gradients in BF16: %s", err.text);
    opts.grad_dtype = FSDP_F16;
    ok(fsdp_plan(&f, model.tree, &opts, device, shape, &err) == FSDP_EUNSUPPORTED &&
           !strcmp(err.setting, "grad_dtype"),
       "nor has anyone shards of them in F16: %s", err.text);
    opts.grad_dtype = FSDP_F32;
    opts.optim.moment_dtype = FSDP_BF16;
    opts.optim.name = "sgd";
    ok(fsdp_plan(&f, model.tree, &opts, device, shape, &err) == FSDP_EUNSUPPORTED &&
           !strcmp(err.setting, "moment_dtype"),
       "nor SGD's momentum narrowed: %s", err.text);
    opts.optim.name = "adamw";
    opts.optim.moment_dtype = FSDP_F16;
    ok(fsdp_plan(&f, model.tree, &opts, device, shape, &err) == FSDP_EUNSUPPORTED,
       "moments in F16: %s", err.text);
    opts.optim.moment_dtype = FSDP_F32;
    opts.gather_codec = &fsdp_gather_float8;
    opts.offload = FSDP_OFFLOAD_PARAMS;
    ok(fsdp_plan(&f, model.tree, &opts, device, shape, &err) == FSDP_EUNSUPPORTED &&
           !strcmp(err.setting, "offload"),
       "the gathered copy as fp8 is not offloaded: %s", err.text);
    opts.gather_codec = NULL;
    opts.offload_gradients = true;
    opts.update_at = FSDP_UPDATE_AT_REDUCE;
    opts.optim.clip_grad_norm = 0;
    ok(fsdp_plan(&f, model.tree, &opts, device, shape, &err) == FSDP_EUNSUPPORTED &&
           !strcmp(err.setting, "offload_gradients"),
       "nor gradient shards that are not there: %s", err.text);
    opts.offload_gradients = false;
    opts.update_at = FSDP_UPDATE_AT_STEP;
    opts.offload_slots = 0;
    ok(fsdp_plan(&f, model.tree, &opts, device, shape, &err) == FSDP_EINVAL &&
           !strcmp(err.setting, "offload_slots"),
       "nor without a place on the device: %s", err.text);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(model.tree);
}

int main(void)
{
    test_split();
    test_narrow();
    test_bare();
    test_narrow_grads();
    test_early();
    test_during();
    test_late_clip();
    test_update_refused();
    test_offload();
    test_refused_on_host();
    test_refused();
    return tap_done();
}
