/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks on real examples: gradient noise that is the same at every world size, a scale per unit,
 * compressed reductions, and a reduction followed by work of the user's.
 */
#include <math.h>
#include <sys/mman.h>

#include "fsdp/sys/device_ops.h"
#include "given.h"
#include "ranks.h"
#include "tap.h"

enum { NSTEPS = 3, MAX_RANKS = 4 };
enum hook { NO_HOOK, NOISE, UNIT_SCALE, FOLLOW, COMPRESS_BF16, COMPRESS_F16 };

struct cell {
    int nranks, nnodes;
    enum fsdp_strategy strategy;
    bool two_level, threaded;
    int accumulation;
    enum hook hook;
    bool fine; /* gradients that 16 bits cannot hold */
    bool adamw, warm;
};

struct outcome {
    float param[GIVEN_NELEM], norm[NSTEPS];
    int nscatter[MAX_RANKS], nall_reduce[MAX_RANKS], nadamw[MAX_RANKS];
};

struct job {
    struct cell cell;
    struct outcome *out;
    int rank;
};

/* ---- hooks ----------------------------------------------------------------------------------- */

struct change_arg {
    float *grad;
    uint64_t nelem;
    float scale;
    uint64_t first; /* where noise begins, 0: none */
};

static int change(void *arg, struct fsdp_err *err)
{
    struct change_arg *a = arg;
    (void)err;
    for (uint64_t i = 0; i < a->nelem; i++) {
        a->grad[i] *= a->scale;
        if (a->first)
            a->grad[i] += (float)((a->first + i) * 2654435761u % 16) - 8;
    }
    return FSDP_OK;
}

/* Noise that follows from step, parameter and element alone. */
static int add_noise(void *ctx, const struct fsdp_grad_part *part, struct fsdp_err *err)
{
    uint64_t stream =
        fsdp_hash((uint64_t)part->step + 1, part->tensor.name, strlen(part->tensor.name));
    struct change_arg arg = {part->grad, part->nelem, 1, (stream | 1) + part->first};
    (void)ctx;
    return fsdp_lane_call(part->lane, change, &arg, sizeof arg, err);
}

/* The unit of module *ctx learns at half the pace. */
static int scale_unit(void *ctx, const struct fsdp_grad_part *part, struct fsdp_err *err)
{
    struct change_arg arg = {part->grad, part->nelem, part->module == *(int *)ctx ? 0.5f : 1.0f, 0};
    return fsdp_lane_call(part->lane, change, &arg, sizeof arg, err);
}

/* Counts, sums as the engine would, and doubles what came out. */
static int follow(void *ctx, const struct fsdp_reduction *r, struct fsdp_err *err)
{
    struct job *j = ctx;
    struct change_arg arg = {r->recv, r->nelem, 2, 0};
    if (r->dtype != FSDP_F32 || r->scratch ||
        r->send_nelem != (r->scatter ? r->nelem * (uint64_t)fsdp_comm_size(r->comm) : r->nelem))
        return fsdp_err_set(err, FSDP_EINTERNAL, "another reduction than expected");
    j->out->nscatter[j->rank] += r->scatter;
    j->out->nall_reduce[j->rank] += !r->scatter;
    FSDP_TRY(fsdp_reduction_run(r, err));
    return fsdp_lane_call(r->lane, change, &arg, sizeof arg, err);
}

static enum fsdp_dtype bf16 = FSDP_BF16, f16 = FSDP_F16;

static int set_hook(struct job *j, struct fsdp *f, int *module, struct fsdp_err *err)
{
    switch (j->cell.hook) {
    case NO_HOOK:
        return FSDP_OK;
    case NOISE:
        return fsdp_grad_hook_set(f, add_noise, NULL, err);
    case UNIT_SCALE:
        return fsdp_grad_hook_set(f, scale_unit, module, err);
    case FOLLOW:
        return fsdp_reduce_hook_set(f, follow, j, 0, err);
    case COMPRESS_BF16:
        return fsdp_reduce_hook_set(f, fsdp_compress_hook, &bf16, 2, err);
    case COMPRESS_F16:
        return fsdp_reduce_hook_set(f, fsdp_compress_hook, &f16, 2, err);
    }
    return FSDP_EINTERNAL;
}

/* ---- warming up ------------------------------------------------------------------------------ */

static int nadamw;

static int count_adamw(void *lane, const struct fsdp_adamw_args *args, struct fsdp_err *err)
{
    nadamw++;
    return fsdp_device_cpu_ops.adamw(lane, args, err);
}

/* Two micro-steps with gradients of no meaning, and what only the end of a step does. */
static int warm(const struct job *j, const struct given *model, struct fsdp *f,
                struct fsdp_err *err)
{
    float given[GIVEN_NELEM];

    for (int i = 0; i < GIVEN_NELEM; i++)
        given[i] = 77;
    if (fsdp_warm(f, NULL) != FSDP_EINVAL)
        return fsdp_err_set(err, FSDP_EINTERNAL, "warmed up without a pass");
    for (int m = 0; m < j->cell.accumulation && m < 2; m++)
        FSDP_TRY(given_micro(model, f, m, given, 3, err));
    FSDP_TRY(fsdp_sync(f, err));
    nadamw = 0;
    FSDP_TRY(fsdp_warm(f, err));
    fsdp_step_reset(f);
    j->out->nadamw[j->rank] = nadamw;
    return FSDP_OK;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static int train(struct job *j, const struct given *model, struct fsdp *f, struct fsdp_err *err)
{
    float given[GIVEN_NELEM];
    int module = model->block[1];

    memset(given, 0, sizeof given);
    FSDP_TRY(given_load_params(f, given, err)); /* weights begin at 0 */
    FSDP_TRY(set_hook(j, f, &module, err));
    for (int step = 0; step < NSTEPS; step++) {
        struct fsdp_step_args args = {.step = step, .lr = 0x1p-10};
        struct fsdp_step_result result;
        if (j->cell.warm && step == 1) /* as where a run continues: moments are not 0 */
            FSDP_TRY(warm(j, model, f, err));
        /* Whole numbers, and the same sum at every world size. */
        float scale = 12.0f / (float)(j->cell.nranks * j->cell.accumulation);
        for (int i = 0; i < GIVEN_NELEM; i++)
            given[i] = (float)((i + step) % 9 - 4) + (j->cell.fine ? 0x1p-16f * (float)i : 0);
        for (int m = 0; m < j->cell.accumulation; m++)
            FSDP_TRY(given_micro(model, f, m, given, scale, err));
        FSDP_TRY(fsdp_step(f, &args, &result, err));
        j->out->norm[step] = result.grad_norm;
    }
    FSDP_TRY(fsdp_micro_begin(f, FSDP_EVAL, 0, err));
    if (fsdp_reduce_hook_set(f, NULL, NULL, 0, NULL) != FSDP_EINVAL ||
        fsdp_grad_hook_set(f, NULL, NULL, NULL) != FSDP_EINVAL)
        return fsdp_err_set(err, FSDP_EINTERNAL, "a hook was set in mid-step");
    fsdp_step_reset(f);
    return given_read(f, "", j->out->param, err);
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct job *j = arg;
    const struct cell *c = &j->cell;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct given_engine engine = {.device = NULL};
    struct given model;

    given_make(&model);
    j->rank = oob->rank;
    opts.sharding_strategy = c->strategy;
    opts.accumulation = c->accumulation;
    opts.optim.name = c->adamw ? "adamw" : "sgd";
    opts.optim.momentum = opts.optim.weight_decay = opts.optim.clip_grad_norm = 0;
    struct fsdp_device_ops counting = fsdp_device_cpu_ops;
    counting.adamw = count_adamw;
    const struct given_where where = {.device = ranks_device(),
                                      .flags = c->threaded ? FSDP_DEVICE_THREADED : 0,
                                      .two_level = c->two_level,
                                      .ops = c->adamw ? &counting : NULL};
    int rc = given_open(&engine, &model, &opts, &where, nodes, oob, &err);
    if (!rc)
        rc = train(j, &model, engine.f, &err);
    return given_close(&engine, &model, oob->rank, rc, &err);
}

static struct outcome run(struct cell cell)
{
    struct job j = {.cell = cell};
    struct outcome out;
    j.out = mmap(NULL, sizeof *j.out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ok(ranks_run(cell.nranks, cell.nnodes, 60, rank_main, &j, NULL) == 0,
       "hook %d, %s, %d ranks%s%s runs", cell.hook, fsdp_strategy_name(cell.strategy), cell.nranks,
       cell.two_level ? ", two levels" : "", cell.threaded ? ", threaded lanes" : "");
    out = *j.out;
    munmap(j.out, sizeof *j.out);
    return out;
}

static double distance(const struct outcome *a, const struct outcome *b)
{
    double most = 0;
    for (int i = 0; i < GIVEN_NELEM; i++)
        most = fmax(most, fabs((double)a->param[i] - (double)b->param[i]));
    return most;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const struct cell meshes[] = {
    {2, 1, FSDP_NO_SHARD, false, false, 1, NO_HOOK, false, false, false},
    {3, 1, FSDP_FULL_SHARD, false, true, 2, NO_HOOK, false, false, false},
    {4, 2, FSDP_HYBRID_SHARD, false, true, 1, NO_HOOK, false, false, false},
    {4, 2, FSDP_FULL_SHARD, true, false, 3, NO_HOOK, false, false, false},
};
enum { NMESHES = sizeof meshes / sizeof meshes[0] };

static const struct cell alone = {1, 1,       FSDP_FULL_SHARD, false, false,
                                  1, NO_HOOK, false,           false, false};

/* A gradient hook gives the same weights at every world size, and other ones than no hook. */
static void test_grad_hook(enum hook hook, const struct outcome *without)
{
    struct cell cell = alone;
    cell.hook = hook;
    struct outcome want = run(cell);

    ok(distance(&want, without) > 1e-3 && want.norm[0] != without->norm[0],
       "it changes weights, and the norm that is told");
    for (int k = 0; k < NMESHES; k++) {
        cell = meshes[k];
        cell.hook = hook;
        struct outcome got = run(cell);
        ok(!memcmp(got.param, want.param, sizeof got.param), "weights are those of one process");
    }
}

static void test_unit_scale(const struct outcome *without)
{
    struct cell cell = alone;
    cell.hook = UNIT_SCALE;
    struct outcome got = run(cell);
    bool halved = true, same = true;
    for (int i = 0; i < given_start[3]; i++)
        same &= got.param[i] == without->param[i];
    for (int i = given_start[3]; i < GIVEN_NELEM; i++)
        halved &= got.param[i] == 0.5f * without->param[i];
    ok(same && halved, "one unit learns at half the pace");
}

static void test_follow(const struct outcome *without)
{
    static const int nscatter[] = {0, 2 * NSTEPS, NSTEPS, 2 * 3 * NSTEPS}, factors[] = {2, 2, 4, 4};
    for (int k = 0; k < NMESHES; k++) {
        struct cell cell = meshes[k];
        cell.hook = FOLLOW;
        struct outcome got = run(cell);
        bool scaled = true, counted = true;
        for (int i = 0; i < GIVEN_NELEM; i++)
            scaled &= got.param[i] == (float)factors[k] * without->param[i];
        for (int r = 0; r < cell.nranks; r++)
            counted &= got.nscatter[r] == 3 * nscatter[k] &&
                       got.nall_reduce[r] == (k == 0 || k == 2 ? 3 * NSTEPS : 0);
        ok(scaled, "what follows each reduction is in the weights, once a level");
        ok(counted, "the hook sees each unit's reductions, scattered or not");
    }
}

static void test_compress(const struct outcome *without)
{
    struct cell fine = alone;
    fine.fine = true;
    struct outcome exact = run(fine);
    for (int k = 0; k < NMESHES; k++)
        for (int hook = COMPRESS_BF16; hook <= COMPRESS_F16; hook++) {
            struct cell cell = meshes[k];
            cell.hook = (enum hook)hook;
            struct outcome got = run(cell);
            ok(!memcmp(got.param, without->param, sizeof got.param),
               "gradients that fit 16 bits survive the way");
            cell.fine = true;
            got = run(cell);
            double bad = distance(&got, &exact);
            /* What is lost is at most the fine part: it is less than half a unit of the last place
             * of the whole numbers that it was added to. */
            double fine_part = 0x1p-16 * GIVEN_NELEM * 12;
            ok(bad > 0 && bad <= 0x1p-10 * NSTEPS * fine_part,
               "others are rounded: weights differ by %.1e", bad);
        }
}

/* Warming up makes the sums and updates of a step's end once, and changes nothing. */
static void test_warm(void)
{
    struct cell cell = {4, 2, FSDP_HYBRID_SHARD, false, false, 4, FOLLOW, false, true, false};
    struct outcome cold = run(cell);
    cell.warm = true;
    struct outcome warmed = run(cell);
    bool counted = true;

    for (int r = 0; r < cell.nranks; r++)
        counted &= warmed.nall_reduce[r] == cold.nall_reduce[r] + 3 &&
                   warmed.nscatter[r] == cold.nscatter[r] + 2 * 3 &&
                   (r % 2 || warmed.nadamw[r] == 3); /* the others hold nothing */
    ok(counted, "warming up sums each unit between replicas once, and updates something");
    ok(!memcmp(cold.param, warmed.param, sizeof cold.param) &&
           !memcmp(cold.norm, warmed.norm, sizeof cold.norm),
       "and changes no bit of what follows");
}

int main(void)
{
    struct outcome without = run(alone);
    ok(without.param[0] != 0, "it learns");
    test_grad_hook(NOISE, &without);
    test_grad_hook(UNIT_SCALE, &without);
    test_unit_scale(&without);
    test_follow(&without);
    test_compress(&without);
    test_warm();
    return tap_done();
}
