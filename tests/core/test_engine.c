/* SPDX-License-Identifier: Apache-2.0 */
/* The engine against one process: every strategy, mesh, wrap policy and accumulation gives the same
 * bits (toy.h). */
#include "toy.h"

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
        "%s%s%s, %d ranks, %d nodes, regather %d, accumulation %d%s, wrap %d, prefetch %d, limit "
        "%d%s%s%s%s%s",
        name, c->odd ? " in chunks" : "", c->two_level ? " on two levels" : "", c->nranks,
        c->nnodes, c->regather, c->accumulation, c->reduce_last ? " reduced last" : "",
        (int)c->wrap, c->prefetch, c->limit, c->checkpointing ? ", recompute" : "",
        c->threaded ? ", threaded lanes" : "", c->traced ? ", traced" : "",
        c->overrides ? ", " : "", c->overrides ? c->overrides : "");
    if (!ok(got != NULL, "%s: runs", what))
        return;
    ok(!memcmp(got->value, want->value, sizeof got->value) &&
           !memcmp(got->seen, want->seen, sizeof got->seen) &&
           !memcmp(got->looked, want->looked, sizeof got->looked),
       "%s: weights and moments are bit-equal to one process", what);
    bool norms = true, controls = true;
    for (int s = 0; s < STEPS; s++) {
        norms &= close_to(got->grad_norm[s], want->grad_norm[s]);
        controls &= got->control[s] == c->nranks * (c->nranks + 1) / 2;
    }
    ok(norms, "%s: gradient norms", what);
    ok(controls, "%s: the control word is summed over all ranks", what);
    ok(got->allocs_in_loop == 0 && got->device_allocs_in_loop == 0,
       "%s: no allocation in the step loop", what);
    ok(got->taken_nbytes == got->planned_nbytes, "%s: the plan's %llu bytes are what is taken",
       what, (unsigned long long)got->planned_nbytes);
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

/* In every strategy, on one rank too. */
static void test_offload(const struct outcome *want)
{
    static const struct cell cells[] = {
        {.nranks = 1, .nnodes = 1, .accumulation = 1},
        {.nranks = 2, .nnodes = 1, .accumulation = 3, .prefetch = 1, .limit = 2},
        {.nranks = 3, .nnodes = 1, .accumulation = 2, .slots = 1, .threaded = true},
        {.nranks = 4, .nnodes = 1, .accumulation = 1, .regather = 2, .prefetch = 1},
        {.nranks = 4, .nnodes = 1, .accumulation = 3, .strategy = FSDP_SHARD_GRAD_OP, .slots = 64},
        {.nranks = 2, .nnodes = 1, .accumulation = 2, .strategy = FSDP_NO_SHARD, .prefetch = 2},
        {.nranks = 4,
         .nnodes = 2,
         .accumulation = 1,
         .strategy = FSDP_HYBRID_SHARD,
         .traced = true},
        {.nranks = 4, .nnodes = 2, .accumulation = 3, .strategy = FSDP_HYBRID_SHARD_ZERO2},
        {.nranks = 3, .nnodes = 1, .accumulation = 2, .strategy = FSDP_ZERO1, .reduce_last = true},
        {.nranks = 6, .nnodes = 3, .accumulation = 2, .two_level = true, .threaded = true},
    };
    for (size_t k = 0; k < sizeof cells / sizeof cells[0]; k++) {
        struct cell c = cells[k];
        c.offload = FSDP_OFFLOAD_OPTIMIZER;
        compare(&c, want, "optimizer offloaded");
        c.offload = FSDP_OFFLOAD_PARAMS;
        c.acts = k % 2;
        c.checkpointing = (int)k % 3;
        compare(&c, want, c.acts ? "parameters and activations offloaded" : "parameters offloaded");
        c.offload = FSDP_OFFLOAD_NONE;
        c.acts = true;
        c.grads = k % 2;
        compare(&c, want,
                c.grads ? "activations and gradients offloaded" : "activations offloaded");
        c.acts = false;
        c.grads = true;
        c.clip = false;
        compare(&c, want, "gradients offloaded");
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
    test_offload(want);
    test_overrides(want);
    munmap(want, sizeof *want);
}

static int same_by_hand(void *ctx, const struct fsdp_full_param *param, struct fsdp_err *err)
{
    const void *by_hand = fsdp_unsharded_param(ctx, param->param);
    size_t nbytes = fsdp_tensor_nelem(&param->tensor) * sizeof(float);
    if (by_hand && !memcmp(by_hand, param->value, nbytes))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINTERNAL, "%s differs", param->tensor.name);
}

/* All units by hand, against the tensors as they are summoned from the ranks' boxes. */
static int unshard_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct cell cell = {.nranks = 3, .nnodes = 1, .accumulation = 1, .odd = true};
    struct fsdp_opts opts = opts_of(&cell);
    struct fsdp_full_opts full = FSDP_FULL_OPTS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_device *device = NULL;
    struct fsdp_mesh_shape shape;
    struct fsdp_mesh *mesh = NULL;
    struct fsdp *f = NULL;
    struct toy toy;
    int rc;
    (void)arg;
    toy_make_widths(&toy, true);
    if ((rc = fsdp_device_open(&device, "cpu", 0, &err)) ||
        (rc = shape_of(&shape, &cell, &opts, nodes, &err)) ||
        (rc = fsdp_mesh_create(&mesh, shape, "auto", 20, nodes, oob, device, &err)) ||
        (rc = fsdp_create(&f, toy.tree, &opts, device, mesh, &err)) ||
        (rc = fsdp_init_params(f, &err)) || (rc = fsdp_unshard(f, toy.root, &err)) ||
        (rc = fsdp_unshard(f, toy.block[0], &err)) || (rc = fsdp_unshard(f, toy.block[1], &err)) ||
        (rc = fsdp_unshard(f, toy.block[2], &err)) ||
        (rc = fsdp_full_params(f, &full, same_by_hand, f, &err)))
        fprintf(stderr, "rank %d: %s\n", oob->rank, err.text);
    fsdp_destroy(f);
    fsdp_mesh_destroy(mesh);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(toy.tree);
    return rc != 0;
}

/* Rows of odd lengths: units are chunked, and a copy stands between shards and whole tensors. */
static void test_chunks(void)
{
    static const struct cell cells[] = {
        {.nranks = 2, .prefetch = 1, .limit = 2},
        {.nranks = 3, .accumulation = 2, .prefetch = 2, .threaded = true},
        {.nranks = 4, .accumulation = 3, .wrap = FSDP_WRAP_SIZE, .checkpointing = FSDP_AC_FULL},
        {.nranks = 2, .strategy = FSDP_SHARD_GRAD_OP, .accumulation = 3, .threaded = true},
        {.nranks = 3, .strategy = FSDP_SHARD_GRAD_OP, .wrap = FSDP_WRAP_NONE},
        {.nranks = 4, .strategy = FSDP_ZERO1, .accumulation = 3, .reduce_last = true},
        {.nranks = 3, .strategy = FSDP_ZERO1, .traced = true},
        {.nranks = 3, .strategy = FSDP_NO_SHARD, .accumulation = 2},
        {.nranks = 4, .nnodes = 2, .strategy = FSDP_HYBRID_SHARD, .accumulation = 3},
        {.nranks = 6, .nnodes = 2, .strategy = FSDP_HYBRID_SHARD, .threaded = true},
        {.nranks = 4, .nnodes = 2, .strategy = FSDP_HYBRID_SHARD_ZERO2, .prefetch = 1},
        {.nranks = 4, .regather = 2, .prefetch = 1, .limit = 2, .threaded = true},
        {.nranks = 4, .nnodes = 2, .two_level = true, .prefetch = 2, .threaded = true},
        {.nranks = 6, .nnodes = 3, .two_level = true, .accumulation = 2, .regather = 3},
        {.nranks = 6, .nnodes = 2, .two_level = true, .strategy = FSDP_ZERO1},
    };
    struct cell one = {.nranks = 1, .nnodes = 1, .accumulation = 1, .odd = true};
    struct outcome *want = run_cell(&one);
    if (!ok(want && want->seen[0][2] == 4 * 1023 && want->value[0][2][5] != 0,
            "one process, odd widths"))
        return;
    ok(want->planned_nbytes < 4 << 20,
       "in %llu bytes: padding between rows would take a hundred "
       "times as much",
       (unsigned long long)want->planned_nbytes);
    for (size_t k = 0; k < sizeof cells / sizeof cells[0]; k++) {
        struct cell c = cells[k];
        c.odd = true;
        c.nnodes = c.nnodes ? c.nnodes : 1;
        c.accumulation = c.accumulation ? c.accumulation : 1;
        compare(&c, want, fsdp_strategy_name(c.strategy));
    }
    munmap(want, sizeof *want);
    ok(ranks_run(3, 1, 30, unshard_main, NULL, NULL) == 0,
       "unsharded by hand, they are what is summoned");
}

/* ---- the cursor ------------------------------------------------------------------------------ */

static void test_cursor(void)
{
    static const char *const nowhere[] = {"block.1", "head.*", NULL};
    static const int node_of[1];
    const struct fsdp_node_map nodes = {.nranks = 1, .nnodes = 1, .node_of = node_of};
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
    uint64_t seen = 0;
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
    ok(fsdp_micro_begin(f, FSDP_EVAL, 0, &err) == FSDP_OK &&
           forward(&toy, f, false, &seen, &err) == FSDP_OK && fsdp_micro_end(f, &err) == FSDP_OK,
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

/* ---- ranks that disagree --------------------------------------------------------------------- */

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
    test_chunks();
    test_cursor();
    ok(ranks_run(3, 1, 30, disagree_main, "data.seed = 2", NULL) == 0,
       "a differing configuration line is named on every rank");
    ok(ranks_run(3, 1, 30, disagree_main, "seed = 43", NULL) == 0,
       "a differing seed is named on every rank");
    ok(ranks_run(3, 1, 30, disagree_main, "float", NULL) == 0,
       "one rank's refusal reaches every rank");
    return tap_done();
}
