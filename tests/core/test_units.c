/* SPDX-License-Identifier: Apache-2.0 */
/* Which modules become units, and parameters that are frozen, ignored, carried or tied. */
#include <math.h>
#include <sys/mman.h>

#include "core/units/module_tree.h"
#include "given.h"
#include "ranks.h"
#include "tap.h"

/* ---- policies -------------------------------------------------------------------------------- */

static int plan(struct fsdp **f, const struct given *model, struct fsdp_opts opts,
                struct fsdp_err *err)
{
    static struct fsdp_device *device;
    struct fsdp_mesh_shape shape = {.shard_size = 2, .replicate_size = 1};
    if (!device && fsdp_device_open(&device, "cpu", 0, err))
        return FSDP_EINTERNAL;
    return fsdp_plan(f, model->tree, &opts, device, shape, err);
}

static void gives(const struct given *model, struct fsdp_opts opts, int nunits, const char *what)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp *f = NULL;
    int rc = plan(&f, model, opts, &err);
    ok(rc == FSDP_OK && fsdp_unit_count(f) == nunits, "%s: %d units%s%s", what, nunits,
       rc ? "; " : "", err.text);
    fsdp_destroy(f);
}

static void refused(const struct given *model, struct fsdp_opts opts, const char *one,
                    const char *other)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp *f = NULL;
    ok(plan(&f, model, opts, &err) == FSDP_EINVAL && strstr(err.text, one) &&
           strstr(err.text, other),
       "refused: %s", err.text);
}

static bool is_named(void *ctx, const struct fsdp_module_tree *tree, int module)
{
    return !strcmp(fsdp_module_name(tree, module), ctx);
}

static void test_policies(void)
{
    static const char *const blocks[] = {"blocks.*", NULL}, *const one[] = {"blocks.1", NULL};
    static const char *const deep[] = {"*", NULL}, *const wrong[] = {"blocks.1", "block*.x", NULL};
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    enum fsdp_wrap_policy policy;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct given model;

    given_make(&model);
    opts.wrap_policy = FSDP_WRAP_LIST;
    gives(&model, opts, 1, "a list of nothing");
    opts.wrap_modules = blocks;
    gives(&model, opts, 3, "blocks.*");
    opts.wrap_modules = one;
    gives(&model, opts, 2, "blocks.1");
    opts.wrap_modules = deep;
    gives(&model, opts, 1, "a star stays within its level");
    opts.wrap_modules = wrong;
    refused(&model, opts, "wrap policy list", "'block*.x'");
    opts.wrap_policy = FSDP_WRAP_CALLBACK;
    refused(&model, opts, "no callback", "");
    opts.wrap_callback = is_named;
    opts.wrap_ctx = "blocks.0";
    gives(&model, opts, 2, "a callback");
    opts.wrap_ctx = "nobody";
    gives(&model, opts, 1, "a callback that says no");
    ok(fsdp_wrap_policy_parse(&policy, "list", &err) == FSDP_OK && policy == FSDP_WRAP_LIST &&
           fsdp_wrap_policy_parse(&policy, "lists", &err) == FSDP_EINVAL,
       "as text: %s", err.text);
    fsdp_module_tree_destroy(model.tree);
}

static void test_tied(void)
{
    static const char *const both[] = {"blocks.*", NULL}, *const first[] = {"blocks.0", NULL};
    static const char *const classes[] = {"Block", NULL};
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct given model;

    given_make(&model);
    if (fsdp_module_tie(model.tree, model.block[1], 1, "blocks.1.tied", NULL))
        abort();
    opts.wrap_classes = classes;
    gives(&model, opts, 3, "a tied parameter under a policy by class goes to the unit around both");
    struct fsdp_unit_override override = FSDP_UNIT_OVERRIDE_INIT;
    override.module = "blocks.1";
    override.gather_codec = 0;
    opts.unit_overrides = &override;
    opts.nunit_overrides = 1;
    refused(&model, opts, "'blocks.0.w' and 'blocks.1.tied'", "another gather_codec in 'blocks.1'");
    opts.nunit_overrides = 0;
    opts.wrap_policy = FSDP_WRAP_LIST;
    opts.wrap_modules = both;
    refused(&model, opts, "unit 'blocks.0' has the one", "unit 'blocks.1' the other");
    opts.wrap_modules = first;
    refused(&model, opts, "'blocks.0.w' and 'blocks.1.tied'", "unit 'the root' the other");
    opts.wrap_modules = NULL;
    gives(&model, opts, 1, "both in one unit");
    fsdp_module_tree_destroy(model.tree);
}

/* ---- frozen and ignored ---------------------------------------------------------------------- */

enum { NSTEPS = 3, MAX_RANKS = 4 };
static const char *const frozen[] = {"*.0.b", NULL}, *const ignored[] = {"*.1.w", "sca?e", NULL};
/* By parameter: is it trained? */
static const bool trains[GIVEN_NPARAMS] = {false, true, false, false, true};

struct cell {
    int nranks, nnodes;
    enum fsdp_strategy strategy;
    enum fsdp_wrap_policy wrap;
    bool two_level, threaded;
    int regather;
    bool carried; /* the root's parameter, whatever the patterns say; else it is ignored */
};

struct outcome {
    float param[GIVEN_NELEM];
    int nslices[MAX_RANKS][GIVEN_NPARAMS]; /* of kind MODEL with elements */
    int noptim;
};

struct job {
    struct cell cell;
    struct outcome *out;
    int rank;
    float init[GIVEN_NELEM];
};

/* Counts slices, and that ignored ones are whole and know how many hold them. */
static int count(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                 const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    struct job *j = ctx;
    uint64_t nelem = fsdp_box_nelem(&slice->box, slice->tensor.ndim);
    (void)io;
    if (kind == FSDP_SLICE_OPTIM) {
        __atomic_add_fetch(&j->out->noptim, (int)nelem, __ATOMIC_SEQ_CST);
        return FSDP_OK;
    }
    for (int p = 0; p < GIVEN_NPARAMS; p++) {
        if (strcmp(slice->tensor.name, given_names[p]))
            continue;
        j->out->nslices[j->rank][p] += nelem > 0;
        const bool whole = p == 3 || (p == 0 && !j->cell.carried);
        if (whole && (nelem != fsdp_tensor_nelem(&slice->tensor) ||
                      slice->nreplica != j->cell.nranks || slice->replica != j->rank))
            return fsdp_err_set(err, FSDP_EINTERNAL, "%s is not whole", given_names[p]);
    }
    return FSDP_OK;
}

/* What a module sees: all its parameters but those that are carried, and gradients of those that
 * are trained. */
static int check_views(struct job *j, const struct given *model, struct fsdp *f,
                       struct fsdp_err *err)
{
    struct fsdp_view view;
    FSDP_TRY(fsdp_micro_begin(f, FSDP_TRAIN, 0, err));
    FSDP_TRY(given_forward(model, f, err));
    FSDP_TRY(fsdp_module_enter(f, model->root, FSDP_BACKWARD, &view, err));
    FSDP_TRY(fsdp_module_enter(f, model->block[1], FSDP_BACKWARD, &view, err));
    FSDP_TRY(fsdp_sync(f, err));
    bool good = view.param[3] && view.param[4] && view.grad[4];
    good &= !view.param[0] == j->cell.carried;
    good &= !view.grad[3] && !view.grad[0] && fsdp_view_grad_beta(&view, 3) == 0;
    good = good && !memcmp(view.param[3], j->init + given_start[3], 30 * sizeof(float));
    fsdp_step_reset(f);
    return good ? FSDP_OK : fsdp_err_set(err, FSDP_EINTERNAL, "a view is wrong");
}

static int train(struct job *j, const struct given *model, struct fsdp *f, struct fsdp_err *err)
{
    float given[GIVEN_NELEM];

    /* Rank 0's copy of an ignored parameter counts: what others loaded is lost. */
    for (int i = 0; i < GIVEN_NELEM; i++)
        given[i] = j->init[i] = (float)(i % 13) * 0.25f;
    for (int i = given_start[3]; i < given_start[4]; i++)
        given[i] += j->rank ? 100 : 0;
    FSDP_TRY(given_load_params(f, given, err));
    FSDP_TRY(check_views(j, model, f, err));
    for (int step = 0; step < NSTEPS; step++) {
        struct fsdp_step_args args = {.step = step, .lr = 0x1p-6};
        struct fsdp_step_result result;
        for (int i = 0; i < GIVEN_NELEM; i++)
            given[i] = (float)((i + step) % 9 - 4);
        FSDP_TRY(given_micro(model, f, 0, given, 12.0f / (float)j->cell.nranks, err));
        FSDP_TRY(fsdp_step(f, &args, &result, err));
    }
    FSDP_TRY(given_read(f, "", j->out->param, err));
    return fsdp_state_each(f, count, j, err);
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
    if (c->carried)
        model.tree->params[model.param[0]].flags = FSDP_PARAM_CARRIED;
    j->rank = oob->rank;
    opts.sharding_strategy = c->strategy;
    opts.wrap_policy = c->wrap;
    opts.frozen = frozen;
    opts.ignored = ignored;
    opts.optim.name = "sgd";
    opts.optim.weight_decay = opts.optim.clip_grad_norm = 0;
    const struct given_where where = {.device = "cpu",
                                      .flags = c->threaded ? FSDP_DEVICE_THREADED : 0,
                                      .regather = c->regather,
                                      .two_level = c->two_level};
    int rc = given_open(&engine, &model, &opts, &where, nodes, oob, &err);
    if (!rc)
        rc = train(j, &model, engine.f, &err);
    return given_close(&engine, &model, oob->rank, rc, &err);
}

static bool run(struct cell cell, struct outcome *out)
{
    struct job j = {.cell = cell};
    j.out = mmap(NULL, sizeof *j.out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool good = ranks_run(cell.nranks, cell.nnodes, 60, rank_main, &j, NULL) == 0;
    *out = *j.out;
    munmap(j.out, sizeof *j.out);
    return ok(good, "%s, %d ranks, %d nodes, wrap %d%s%s%s runs", fsdp_strategy_name(cell.strategy),
              cell.nranks, cell.nnodes, cell.wrap, cell.two_level ? ", two levels" : "",
              cell.regather ? ", regathered" : "", cell.carried ? ", carried" : "");
}

static void test_kinds(void)
{
    static const struct cell cells[] = {
        {2, 1, FSDP_FULL_SHARD, FSDP_WRAP_TRANSFORMER, false, true, 0, false},
        {3, 1, FSDP_FULL_SHARD, FSDP_WRAP_NONE, false, false, 0, false},
        {2, 1, FSDP_NO_SHARD, FSDP_WRAP_TRANSFORMER, false, false, 0, false},
        {4, 2, FSDP_HYBRID_SHARD, FSDP_WRAP_TRANSFORMER, false, true, 0, false},
        {4, 2, FSDP_FULL_SHARD, FSDP_WRAP_TRANSFORMER, true, true, 0, false},
        {4, 1, FSDP_FULL_SHARD, FSDP_WRAP_TRANSFORMER, false, true, 2, false},
        {3, 1, FSDP_ZERO1, FSDP_WRAP_TRANSFORMER, false, true, 0, false},
        {1, 1, FSDP_FULL_SHARD, FSDP_WRAP_TRANSFORMER, false, false, 0, true},
        {3, 1, FSDP_FULL_SHARD, FSDP_WRAP_TRANSFORMER, false, true, 0, true},
        {4, 2, FSDP_HYBRID_SHARD, FSDP_WRAP_NONE, false, true, 0, true},
        {4, 2, FSDP_FULL_SHARD, FSDP_WRAP_TRANSFORMER, true, true, 0, true},
        {4, 1, FSDP_FULL_SHARD, FSDP_WRAP_TRANSFORMER, false, true, 2, true},
    };
    struct cell alone = {1, 1, FSDP_FULL_SHARD, FSDP_WRAP_TRANSFORMER, false, false, 0, false};
    struct outcome want, got;

    run(alone, &want);
    bool kept = true, moved = true;
    for (int p = 0; p < GIVEN_NPARAMS; p++)
        for (int i = given_start[p]; i < given_start[p + 1]; i++) {
            float init = (float)(i % 13) * 0.25f;
            kept &= trains[p] || want.param[i] == init;
            moved &= !trains[p] || want.param[i] != init;
        }
    ok(kept, "frozen and ignored parameters stay as they were");
    ok(moved, "the others learn");
    ok(want.noptim == 36, "and they alone have optimizer state");
    for (size_t k = 0; k < sizeof cells / sizeof cells[0]; k++) {
        if (!run(cells[k], &got))
            continue;
        ok(!memcmp(got.param, want.param, sizeof got.param), "weights are those of one process");
        bool whole = true;
        for (int r = 0; r < cells[k].nranks; r++)
            whole &= (cells[k].carried || got.nslices[r][0] == 1) && got.nslices[r][3] == 1;
        ok(whole, "every rank holds the ignored parameters, as replicas");
    }
}

static void test_refused(void)
{
    static const char *const none[] = {"*.weight", NULL}, *const all[] = {"*", NULL};
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct given model;

    given_make(&model);
    opts.wrap_policy = FSDP_WRAP_NONE;
    opts.frozen = none;
    refused(&model, opts, "frozen parameters", "'*.weight'");
    opts.frozen = NULL;
    opts.ignored = none;
    refused(&model, opts, "ignored parameters", "'*.weight'");
    opts.ignored = all;
    refused(&model, opts, "every parameter", "ignored");
    fsdp_module_tree_destroy(model.tree);
}

int main(void)
{
    test_policies();
    test_tied();
    test_kinds();
    test_refused();
    return tap_done();
}
