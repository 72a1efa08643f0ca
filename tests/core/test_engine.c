/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine against one process. The model's gradients are sums of small multiples of 2^-6, exact
 * in fp32 in any order, so every strategy, mesh, wrap policy and accumulation must give the same
 * bits.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fsdp/fsdp.h"
#include "ranks.h"
#include "tap.h"

enum { NBLOCKS = 3, ROWS = 12, STEPS = 3, MAX_PARAMS = 16, MAX_NELEM = 4096 };

struct toy {
    struct fsdp_module_tree *tree;
    int root, embed, block[NBLOCKS], head, tied;
};

static void add(struct toy *t, int module, const char *name, int ndim, uint64_t rows, uint64_t cols,
                unsigned flags)
{
    uint64_t shape[2] = {rows, cols};
    struct fsdp_init init = {FSDP_INIT_NORMAL, 1.0f};
    int index;
    if (fsdp_module_add_param(t->tree, module, name, ndim, shape, init, flags, &index, NULL))
        abort();
    if (!strcmp(name, "embed.weight"))
        t->tied = index;
}

static void toy_make(struct toy *t)
{
    struct fsdp_act_bytes act = {.saved = 100, .recomputed = 200, .cheap = 60, .work = 50};
    if (fsdp_module_tree_create(&t->tree, NULL) ||
        fsdp_module_add(t->tree, -1, "", "Toy", &t->root, NULL))
        abort();
    add(t, t->root, "scale", 1, 7, 1, 0);
    add(t, t->root, "scalar", 0, 0, 0, 0);
    fsdp_module_add(t->tree, t->root, "embed", "Embedding", &t->embed, NULL);
    add(t, t->embed, "embed.weight", 2, 13, 6, 0);
    for (int i = 0; i < NBLOCKS; i++) {
        char name[32];
        snprintf(name, sizeof name, "block.%d", i);
        fsdp_module_add(t->tree, t->root, name, "Block", &t->block[i], NULL);
        fsdp_module_set_act(t->tree, t->block[i], act, NULL);
        snprintf(name, sizeof name, "block.%d.w", i);
        add(t, t->block[i], name, 2, 5, 6, 0);
        snprintf(name, sizeof name, "block.%d.b", i);
        add(t, t->block[i], name, 1, 6, 1, 0);
        snprintf(name, sizeof name, "block.%d.frozen", i);
        add(t, t->block[i], name, 2, 3, 4, FSDP_PARAM_FROZEN);
        snprintf(name, sizeof name, "block.%d.rare", i);
        add(t, t->block[i], name, 1, 5, 1, 0);
    }
    fsdp_module_add(t->tree, t->root, "head", "Head", &t->head, NULL);
    fsdp_module_tie(t->tree, t->head, t->tied, "head.weight", NULL);
}

/* grad[i] = beta * grad[i] + sum over rows r of ((r mod 5) - 1) * round(64 p[i]) / 64, which is
 * exact. */
struct grad_arg {
    const float *param;
    float *grad;
    size_t nelem;
    float beta;
    int first_row, nrows;
};

static int grad_run(void *arg, struct fsdp_err *err)
{
    struct grad_arg *a = arg;
    (void)err;
    for (size_t i = 0; i < a->nelem; i++) {
        float sum = 0;
        for (int r = a->first_row; r < a->first_row + a->nrows; r++)
            sum += (float)(r % 5 - 1) * rintf(64 * a->param[i]) / 64;
        a->grad[i] = a->beta == 0 ? sum : a->grad[i] + sum;
    }
    return FSDP_OK;
}

/* Only the first half of the rows use the rare parameters: not every rank and micro-step asks. */
static int write_grads(struct toy *t, const struct fsdp_view *v, const char *prefix, int first_row,
                       int nrows, struct fsdp_err *err)
{
    for (int p = 0; p < fsdp_param_count(t->tree); p++) {
        struct fsdp_tensor tensor = fsdp_param_tensor(t->tree, p);
        if (strncmp(tensor.name, prefix, strlen(prefix)) || strstr(tensor.name, "frozen"))
            continue;
        int end = first_row + nrows;
        if (strstr(tensor.name, "rare") && end > ROWS / 2)
            end = ROWS / 2;
        if (first_row >= end)
            continue;
        struct grad_arg arg = {.param = v->param[p],
                               .grad = v->grad[p],
                               .nelem = fsdp_tensor_nelem(&tensor),
                               .beta = fsdp_view_grad_beta(v, p),
                               .first_row = first_row,
                               .nrows = end - first_row};
        FSDP_TRY(fsdp_lane_call(v->lane, grad_run, &arg, sizeof arg, err));
    }
    return FSDP_OK;
}

static int forward(struct toy *t, struct fsdp *f, struct fsdp_err *err)
{
    struct fsdp_view v;
    FSDP_TRY(fsdp_module_enter(f, t->root, FSDP_FORWARD, &v, err));
    FSDP_TRY(fsdp_module_enter(f, t->embed, FSDP_FORWARD, &v, err));
    FSDP_TRY(fsdp_module_leave(f, t->embed, FSDP_FORWARD, err));
    for (int i = 0; i < NBLOCKS; i++) {
        FSDP_TRY(fsdp_module_enter(f, t->block[i], FSDP_FORWARD, &v, err));
        FSDP_TRY(fsdp_module_leave(f, t->block[i], FSDP_FORWARD, err));
    }
    FSDP_TRY(fsdp_module_enter(f, t->head, FSDP_FORWARD, &v, err));
    FSDP_TRY(fsdp_module_leave(f, t->head, FSDP_FORWARD, err));
    return fsdp_module_leave(f, t->root, FSDP_FORWARD, err);
}

static int backward(struct toy *t, struct fsdp *f, int first_row, int nrows, struct fsdp_err *err)
{
    struct fsdp_view v;
    char prefix[32];
    FSDP_TRY(fsdp_module_enter(f, t->root, FSDP_BACKWARD, &v, err));
    FSDP_TRY(write_grads(t, &v, "scal", first_row, nrows, err));
    FSDP_TRY(fsdp_module_enter(f, t->head, FSDP_BACKWARD, &v, err));
    FSDP_TRY(write_grads(t, &v, "embed", first_row, nrows, err));
    FSDP_TRY(fsdp_module_leave(f, t->head, FSDP_BACKWARD, err));
    for (int i = NBLOCKS - 1; i >= 0; i--) {
        if (fsdp_module_recomputes(f, t->block[i])) {
            FSDP_TRY(fsdp_module_enter(f, t->block[i], FSDP_RECOMPUTE, &v, err));
            FSDP_TRY(fsdp_module_leave(f, t->block[i], FSDP_RECOMPUTE, err));
        }
        FSDP_TRY(fsdp_module_enter(f, t->block[i], FSDP_BACKWARD, &v, err));
        snprintf(prefix, sizeof prefix, "block.%d", i);
        FSDP_TRY(write_grads(t, &v, prefix, first_row, nrows, err));
        FSDP_TRY(fsdp_module_leave(f, t->block[i], FSDP_BACKWARD, err));
    }
    /* The tied weight's second contribution adds. */
    FSDP_TRY(fsdp_module_enter(f, t->embed, FSDP_BACKWARD, &v, err));
    FSDP_TRY(write_grads(t, &v, "embed", first_row + 1, nrows, err));
    FSDP_TRY(fsdp_module_leave(f, t->embed, FSDP_BACKWARD, err));
    return fsdp_module_leave(f, t->root, FSDP_BACKWARD, err);
}

/* ---- one run, its final weights gathered in memory shared with the test -------------------------
 */

struct cell {
    int nranks, nnodes, shard_size, accumulation;
    enum fsdp_strategy strategy;
    enum fsdp_wrap_policy wrap;
    int prefetch, limit, checkpointing;
    bool threaded, clip, reduce_last;
    bool traced;
    int regather; /* reshard_after_forward as a group size; 0: the strategy's own */
    bool two_level;
    int grad_buffers;      /* 0: as by default */
    const char *overrides; /* of units, separated by semicolons; NULL: none */
};

struct outcome {
    float value[3][MAX_PARAMS][MAX_NELEM]; /* master, exp_avg, exp_avg_sq */
    uint32_t seen[3][MAX_PARAMS];          /* elements written, replica 0 */
    double grad_norm[STEPS], control[STEPS];
    uint64_t allocs_in_loop;
};

struct run {
    struct cell cell;
    struct outcome *out;
    struct toy *toy;
    int rank;
};

static int collect(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                   const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    struct run *run = ctx;
    int which = kind == FSDP_SLICE_MODEL                   ? 0
                : strstr(slice->tensor.name, "exp_avg_sq") ? 2
                                                           : 1,
        p = 0;
    uint64_t row = fsdp_tensor_row_nelem(&slice->tensor),
             nelem = fsdp_box_nelem(&slice->box, slice->tensor.ndim);
    while (!strstr(slice->tensor.name, fsdp_param_tensor(run->toy->tree, p).name))
        p++; /* no name is part of another */
    if (slice->replica != 0)
        return FSDP_OK;
    __atomic_add_fetch(&run->out->seen[which][p], (uint32_t)nelem, __ATOMIC_SEQ_CST);
    return io->read(io->ctx, 0, &run->out->value[which][p][slice->box.offset[0] * row], nelem * 4,
                    err);
}

static int train(struct run *run, struct fsdp *f, struct fsdp_err *err)
{
    const struct cell *c = &run->cell;
    int per_micro = ROWS / c->nranks / c->accumulation;
    double control[FSDP_CONTROL_NELEM] = {0};

    for (int step = 0; step < STEPS; step++) {
        struct fsdp_step_args args = {.step = step, .lr = 0.01, .control = control};
        struct fsdp_step_result result;
        uint64_t allocs = fsdp_alloc_count();
        fsdp_trace_next(f, step); /* no more than a hint where nothing is traced */
        for (int m = 0; m < c->accumulation; m++) {
            int row = (run->rank * c->accumulation + m) * per_micro;
            FSDP_TRY(fsdp_micro_begin(f, FSDP_TRAIN, m, err));
            FSDP_TRY(forward(run->toy, f, err));
            FSDP_TRY(backward(run->toy, f, row, per_micro, err));
            FSDP_TRY(fsdp_micro_end(f, err));
        }
        control[3] = run->rank + 1;
        FSDP_TRY(fsdp_step(f, &args, &result, err));
        if (step && run->rank == 0)
            run->out->allocs_in_loop += fsdp_alloc_count() - allocs;
        run->out->grad_norm[step] = result.grad_norm;
        run->out->control[step] = result.control[3];
        /* An evaluation pass between steps must not disturb them. */
        FSDP_TRY(fsdp_micro_begin(f, FSDP_EVAL, 0, err));
        FSDP_TRY(forward(run->toy, f, err));
        FSDP_TRY(fsdp_micro_end(f, err));
    }
    FSDP_TRY(fsdp_sync(f, err));
    return fsdp_state_each(f, collect, run, err);
}

static struct fsdp_opts opts_of(const struct cell *c)
{
    static const char *const classes[] = {"Block", NULL};
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    opts.strategy = c->strategy;
    opts.wrap_policy = c->wrap;
    opts.wrap_classes = classes;
    opts.min_num_params = 30;
    opts.accumulation = c->accumulation;
    opts.reduce_last = c->reduce_last;
    if (c->regather)
        opts.reshard_after_forward = c->regather;
    opts.forward_prefetch = opts.backward_prefetch = c->prefetch;
    opts.limit_all_gathers = c->limit;
    opts.activation_checkpointing = c->checkpointing;
    if (c->grad_buffers)
        opts.grad_buffers = c->grad_buffers;
    opts.optim.clip_grad_norm = c->clip ? 0.5 : 0;
    opts.seed = 42;
    return opts;
}

enum { MAX_OVERRIDES = 4 };
struct overrides {
    char text[256];
    struct fsdp_unit_override list[MAX_OVERRIDES];
};

static int set_overrides(struct overrides *o, struct fsdp_opts *opts, const char *text,
                         struct fsdp_err *err)
{
    char *rest = NULL;
    snprintf(o->text, sizeof o->text, "%s", text ? text : "");
    for (char *one = strtok_r(o->text, ";", &rest); one; one = strtok_r(NULL, ";", &rest))
        FSDP_TRY(fsdp_unit_override_parse(&o->list[opts->noverrides++], one, err));
    opts->overrides = o->list;
    return FSDP_OK;
}

static int shape_of(struct fsdp_mesh_shape *shape, const struct cell *c,
                    const struct fsdp_opts *opts, const struct fsdp_node_map *nodes,
                    struct fsdp_err *err)
{
    FSDP_TRY(fsdp_mesh_shape_for(shape, c->strategy, c->shard_size, nodes, err));
    if (fsdp_opts_regather_size(opts))
        FSDP_TRY(fsdp_mesh_shape_regather(shape, fsdp_opts_regather_size(opts), err));
    return c->two_level ? fsdp_mesh_shape_two_level(shape, nodes, err) : FSDP_OK;
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct run *run = arg;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_opts opts = opts_of(&run->cell);
    struct fsdp_device *device = NULL;
    struct fsdp_mesh_shape shape;
    struct fsdp_mesh *mesh = NULL;
    struct fsdp *f = NULL;
    struct overrides overrides;
    struct toy toy;
    int rc;

    toy_make(&toy);
    run->toy = &toy;
    run->rank = oob->rank;
    if ((rc = fsdp_device_open(&device, "cpu", run->cell.threaded ? FSDP_DEVICE_THREADED : 0,
                               &err)) ||
        (rc = set_overrides(&overrides, &opts, run->cell.overrides, &err)) ||
        (rc = shape_of(&shape, &run->cell, &opts, nodes, &err)) ||
        (rc = fsdp_mesh_create(&mesh, shape, "auto", 20, nodes, oob, device, &err)) ||
        (rc = fsdp_create(&f, toy.tree, &opts, device, mesh, &err)) ||
        (rc = fsdp_init_params(f, &err)))
        fprintf(stderr, "rank %d: %s\n", oob->rank, err.text);
    else if ((run->cell.traced && (rc = fsdp_trace_open(f, STEPS, &err))) ||
             (rc = train(run, f, &err)))
        fprintf(stderr, "rank %d: %s\n", oob->rank, err.text);
    fsdp_destroy(f);
    fsdp_mesh_destroy(mesh);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(toy.tree);
    return rc != 0;
}

static struct outcome *run_cell(const struct cell *cell)
{
    struct run run = {.cell = *cell};
    run.out =
        mmap(NULL, sizeof *run.out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ranks_run(cell->nranks, cell->nnodes, 60, rank_main, &run, NULL)) {
        munmap(run.out, sizeof *run.out);
        return NULL;
    }
    return run.out;
}

static bool close_to(double a, double b)
{
    return fabs(a - b) <= 1e-6 * fabs(b);
}

static void compare(const struct cell *c, const struct outcome *want, const char *name)
{
    struct outcome *got = run_cell(c);
    char what[320];
    snprintf(
        what, sizeof what,
        "%s%s, %d ranks, %d nodes, regather %d, accumulation %d%s, wrap %d, prefetch %d, limit "
        "%d%s%s%s%s%s",
        name, c->two_level ? " on two levels" : "", c->nranks, c->nnodes, c->regather,
        c->accumulation, c->reduce_last ? " reduced last" : "", (int)c->wrap, c->prefetch, c->limit,
        c->checkpointing ? ", recompute" : "", c->threaded ? ", threaded lanes" : "",
        c->traced ? ", traced" : "", c->overrides ? ", " : "", c->overrides ? c->overrides : "");
    if (!ok(got != NULL, "%s: runs", what))
        return;
    ok(!memcmp(got->value, want->value, sizeof got->value) &&
           !memcmp(got->seen, want->seen, sizeof got->seen),
       "%s: weights and moments are bit-equal to one process", what);
    bool norms = true, controls = true;
    for (int s = 0; s < STEPS; s++) {
        norms &= close_to(got->grad_norm[s], want->grad_norm[s]);
        controls &= got->control[s] == c->nranks * (c->nranks + 1) / 2;
    }
    ok(norms, "%s: gradient norms", what);
    ok(controls, "%s: the control word is summed over all ranks", what);
    ok(got->allocs_in_loop == 0, "%s: no allocation in the step loop", what);
    munmap(got, sizeof *got);
}

static void test_two_levels(const struct outcome *want)
{
    static const struct cell cells[] = {
        {.nranks = 4, .nnodes = 2, .accumulation = 1, .prefetch = 1, .limit = 2},
        {.nranks = 6, .nnodes = 2, .accumulation = 2, .prefetch = 2, .threaded = true},
        {.nranks = 6,
         .nnodes = 3,
         .accumulation = 2,
         .reduce_last = true,
         .wrap = FSDP_WRAP_SIZE,
         .threaded = true},
        {.nranks = 6,
         .nnodes = 3,
         .accumulation = 1,
         .strategy = FSDP_SHARD_GRAD_OP,
         .traced = true},
        {.nranks = 6, .nnodes = 2, .accumulation = 1, .strategy = FSDP_ZERO1},
        {.nranks = 6, .nnodes = 3, .accumulation = 1, .regather = 2, .prefetch = 1},
        {.nranks = 6, .nnodes = 3, .accumulation = 1, .regather = 3, .threaded = true},
        {.nranks = 12,
         .nnodes = 6,
         .shard_size = 4,
         .accumulation = 1,
         .strategy = FSDP_HYBRID_SHARD},
    };
    for (size_t k = 0; k < sizeof cells / sizeof cells[0]; k++) {
        struct cell c = cells[k];
        c.two_level = true;
        compare(&c, want, fsdp_strategy_name(c.strategy));
    }
}

static void test_overrides(const struct outcome *want)
{
    static const struct cell cells[] = {
        {.overrides = "block.1 reshard_after_forward=false", .accumulation = 3, .prefetch = 1},
        {.overrides = "block.* reshard_after_forward=true", .accumulation = 1, .limit = 1},
        {.overrides = "class=Toy reshard_after_forward=true", .accumulation = 1, .grad_buffers = 1},
        {.overrides = "class=Block reshard_after_forward=false;block.0 reshard_after_forward=2",
         .accumulation = 1,
         .grad_buffers = 3},
        {.overrides = "block.[02] reshard_after_forward=true",
         .strategy = FSDP_ZERO1,
         .accumulation = 3},
    };
    for (size_t k = 0; k < sizeof cells / sizeof cells[0]; k++) {
        struct cell c = cells[k];
        c.nranks = 4;
        c.nnodes = 1;
        c.threaded = k % 2 == 0;
        compare(&c, want, fsdp_strategy_name(c.strategy));
    }
}

static void test_strategies(void)
{
    static const struct {
        enum fsdp_strategy strategy;
        const char *name;
    } strategies[] = {{FSDP_FULL_SHARD, "FULL_SHARD"},
                      {FSDP_SHARD_GRAD_OP, "SHARD_GRAD_OP"},
                      {FSDP_NO_SHARD, "NO_SHARD"},
                      {FSDP_HYBRID_SHARD, "HYBRID_SHARD"},
                      {FSDP_HYBRID_SHARD_ZERO2, "HYBRID_SHARD_ZERO2"},
                      {FSDP_ZERO1, "ZERO1"}};
    struct cell one = {.nranks = 1, .nnodes = 1, .accumulation = 1, .wrap = FSDP_WRAP_NONE};
    struct outcome *want = run_cell(&one);
    if (!ok(want && want->seen[0][1] == 1 && want->seen[0][2] == 78 && want->value[0][2][5] != 0,
            "one process"))
        return;
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 4; k++) {
            static const int nranks[] = {2, 3, 4, 6};
            struct cell c = {.nranks = nranks[k],
                             .nnodes = 1,
                             .accumulation = 1 + (i + k) % 2,
                             .strategy = strategies[i].strategy,
                             .wrap = (enum fsdp_wrap_policy)((i + k) % 3),
                             .prefetch = k % 3,
                             .limit = 2 - k % 2,
                             .checkpointing = k & 1,
                             .threaded = (i ^ k) & 1,
                             .traced = k >> 1 & 1};
            c.reduce_last = (i + 2 * k) % 3 == 0;
            if (fsdp_strategy_info(c.strategy)->group == FSDP_SHARD_OVER_NODE)
                c.nnodes = c.nranks % 2 ? 3 : 2;
            else if (c.nranks == 4)
                c.nnodes = 2;
            if (ROWS % (c.nranks * c.accumulation))
                c.accumulation = 1;
            compare(&c, want, strategies[i].name);
        }
    static const struct cell parts[] = {
        {.nranks = 4, .nnodes = 2, .regather = 2, .accumulation = 1, .prefetch = 1, .limit = 2},
        {.nranks = 6,
         .nnodes = 1,
         .regather = 3,
         .accumulation = 2,
         .prefetch = 2,
         .threaded = true},
        {.nranks = 6,
         .nnodes = 3,
         .regather = 2,
         .accumulation = 1,
         .wrap = FSDP_WRAP_SIZE,
         .threaded = true},
        {.nranks = 2, .nnodes = 1, .regather = 2, .accumulation = 3, .checkpointing = FSDP_AC_FULL},
        {.nranks = 4,
         .nnodes = 1,
         .regather = 1,
         .accumulation = 1,
         .strategy = FSDP_SHARD_GRAD_OP},
    };
    for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++)
        compare(&parts[k], want, "parts kept after forward");
    test_two_levels(want);
    test_overrides(want);
    munmap(want, sizeof *want);
}

/* ---- the cursor
 * ------------------------------------------------------------------------------------ */

static void test_cursor(void)
{
    static const char *const nowhere[] = {"block.1", "head.*", NULL};
    static const int node_of[1];
    const struct fsdp_node_map nodes = {1, 1, node_of, NULL};
    struct fsdp_oob *oob;
    struct cell cell = {.nranks = 1, .nnodes = 1, .accumulation = 1, .prefetch = 1, .limit = 2};
    struct fsdp_opts opts = opts_of(&cell);
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_device *device;
    struct fsdp_mesh_shape shape;
    struct fsdp_mesh *mesh;
    struct fsdp *f;
    struct fsdp_view v;
    struct toy toy;
    toy_make(&toy);
    if (fsdp_oob_self_create(&oob, &err) || fsdp_device_open(&device, "cpu", 0, &err) ||
        fsdp_mesh_shape_for(&shape, FSDP_FULL_SHARD, 0, &nodes, &err) ||
        fsdp_mesh_create(&mesh, shape, "auto", 5, &nodes, oob, device, &err) ||
        fsdp_create(&f, toy.tree, &opts, device, mesh, &err)) {
        ok(false, "one process: %s", err.text);
        return;
    }
    struct fsdp *other = NULL;
    opts.activation_checkpointing = FSDP_AC_SELECTIVE;
    opts.checkpoint_modules = nowhere;
    ok(fsdp_create(&other, toy.tree, &opts, device, mesh, &err) == FSDP_EINVAL && !other &&
           strstr(err.text, "'head.*' names no module"),
       "recomputed modules that are not there: %s", err.text);
    ok(fsdp_module_enter(f, toy.root, FSDP_FORWARD, &v, &err) == FSDP_EINVAL,
       "enter before micro_begin: %s", err.text);
    ok(fsdp_micro_begin(f, FSDP_TRAIN, 0, &err) == FSDP_OK &&
           fsdp_module_enter(f, toy.root, FSDP_FORWARD, &v, &err) == FSDP_OK,
       "root entered");
    ok(v.param[0] && !v.grad[0], "the root's parameter is there, its gradient is not");
    ok(fsdp_module_enter(f, toy.block[1], FSDP_FORWARD, &v, &err) == FSDP_EINVAL &&
           strstr(err.text, "'embed'") && strstr(err.text, "'block.1'"),
       "wrong order names both: %s", err.text);
    ok(fsdp_module_enter(f, toy.embed, FSDP_FORWARD, &v, &err) == FSDP_EINVAL,
       "a broken step stays broken: %s", err.text);
    fsdp_step_reset(f);
    ok(fsdp_micro_begin(f, FSDP_EVAL, 0, &err) == FSDP_OK && forward(&toy, f, &err) == FSDP_OK &&
           fsdp_micro_end(f, &err) == FSDP_OK,
       "after reset an evaluation pass runs");
    ok(fsdp_module_enter(f, 99, FSDP_FORWARD, &v, &err) == FSDP_EINVAL, "no such module: %s",
       err.text);
    struct fsdp_memory_row rows[16];
    int nrows = fsdp_memory_plan(f, rows, 16);
    uint64_t optim = 0;
    for (int i = 0; i < nrows; i++)
        if (strstr(rows[i].what, "optimizer"))
            optim = rows[i].nbytes;
    ok(nrows >= 5 && optim > 0, "%d rows of memory plan", nrows);
    fsdp_destroy(f);
    fsdp_mesh_destroy(mesh);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(toy.tree);
    oob->close(oob);
}

/* ---- ranks that disagree
 * ---------------------------------------------------------------------------- */

static int disagree_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct cell cell = {.nranks = 3, .nnodes = 1, .accumulation = 1, .prefetch = 1, .limit = 2};
    struct fsdp_opts opts = opts_of(&cell);
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_device *device;
    struct fsdp_mesh_shape shape;
    struct fsdp_mesh *mesh;
    struct fsdp *f = NULL;
    struct toy toy;
    const char *expect = arg;
    toy_make(&toy);
    opts.agree = "train.steps = 10\ndata.seed = 1";
    if (oob->rank == 2 && strstr(expect, "data.seed"))
        opts.agree = "train.steps = 10\ndata.seed = 2";
    if (oob->rank == 2 && strstr(expect, "seed = 43"))
        opts.seed = 43;
    if (oob->rank == 2 && strstr(expect, "float"))
        opts.param_dtype = FSDP_I8;
    if (fsdp_device_open(&device, "cpu", 0, &err) ||
        fsdp_mesh_shape_for(&shape, FSDP_FULL_SHARD, 0, nodes, &err) ||
        fsdp_mesh_create(&mesh, shape, "auto", 5, nodes, oob, device, &err))
        return 1;
    int rc = fsdp_create(&f, toy.tree, &opts, device, mesh, &err);
    bool good = strstr(expect, "float") ? rc == FSDP_EUNSUPPORTED && strstr(err.text, "I8")
                                        : rc == FSDP_EMISMATCH && strstr(err.text, "rank 2") &&
                                              strstr(err.text, expect);
    if (!good)
        fprintf(stderr, "rank %d: rc %d, '%s'\n", oob->rank, rc, err.text);
    fsdp_mesh_destroy(mesh);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(toy.tree);
    return !good;
}

int main(void)
{
    test_strategies();
    test_cursor();
    ok(ranks_run(3, 1, 30, disagree_main, "data.seed = 2", NULL) == 0,
       "a differing configuration line is named on every rank");
    ok(ranks_run(3, 1, 30, disagree_main, "seed = 43", NULL) == 0,
       "a differing seed is named on every rank");
    ok(ranks_run(3, 1, 30, disagree_main, "float", NULL) == 0,
       "one rank's refusal reaches every rank");
    return tap_done();
}
