/* SPDX-License-Identifier: Apache-2.0 */
/* Whole parameters and gradients between steps, and units that are gathered by hand. */
#include <math.h>

#include "given.h"
#include "ranks.h"
#include "tap.h"

struct cell {
    int nranks, nnodes;
    enum fsdp_strategy strategy;
    bool two_level;
    enum fsdp_dtype dtype;
    bool grads_away; /* read, and not changed */
};

struct job {
    struct cell cell;
    struct given model;
    struct fsdp *f;
    struct fsdp_lane *lane; /* the test's own */
    int rank;
    float init[GIVEN_NELEM], given[GIVEN_NELEM];
    int failures;
};

#define EXPECT(job, cond)                                                                          \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "rank %d, line %d: %s\n", (job)->rank, __LINE__, #cond);               \
            (job)->failures++;                                                                     \
        }                                                                                          \
    } while (0)

/* ---- collecting ------------------------------------------------------------------------------ */

struct seen {
    int nparams, ngrads;
    float value[GIVEN_NELEM], grad[GIVEN_NELEM];
    float scale; /* what the values are multiplied with, to be written back */
    int fail_at; /* the call that fails, counted from 1 */
};

static int see(void *ctx, const struct fsdp_full_param *param, struct fsdp_err *err)
{
    struct seen *s = ctx;
    int at = given_start[param->param];
    uint64_t nelem = fsdp_tensor_nelem(&param->tensor);

    if (strcmp(param->tensor.name, given_names[param->param]) || param->tensor.dtype != FSDP_F32)
        return fsdp_err_set(err, FSDP_EINTERNAL, "another tensor");
    if (++s->nparams == s->fail_at)
        return fsdp_err_set(err, FSDP_EIO, "made to fail");
    memcpy(s->value + at, param->value, nelem * sizeof(float));
    if (param->grad) {
        s->ngrads++;
        memcpy(s->grad + at, param->grad, nelem * sizeof(float));
    }
    for (uint64_t i = 0; i < nelem; i++) {
        param->value[i] *= s->scale;
        if (param->grad)
            param->grad[i] *= s->scale;
    }
    return FSDP_OK;
}

static struct seen summon(struct job *j, struct fsdp_full_opts opts, float scale, int expect)
{
    struct seen seen = {.scale = scale};
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc = fsdp_full_params(j->f, &opts, see, &seen, &err);
    if (rc != expect)
        fprintf(stderr, "rank %d: %s\n", j->rank, err.text);
    EXPECT(j, rc == expect);
    return seen;
}

static bool same(const float *a, const float *b, int first, int last)
{
    return !memcmp(a + first, b + first, (size_t)(last - first) * sizeof(float));
}

/* ---- what is tested -------------------------------------------------------------------------- */

static void test_params(struct job *j)
{
    struct fsdp_full_opts opts = FSDP_FULL_OPTS_INIT;
    struct seen seen = summon(j, opts, 2, FSDP_OK);

    EXPECT(j, seen.nparams == GIVEN_NPARAMS && seen.ngrads == 0);
    EXPECT(j, same(seen.value, j->init, 0, GIVEN_NELEM));
    seen = summon(j, opts, 1, FSDP_OK); /* the doubled values were not written */
    EXPECT(j, same(seen.value, j->init, 0, GIVEN_NELEM));

    opts.param = 3;
    seen = summon(j, opts, 1, FSDP_OK);
    EXPECT(j, seen.nparams == 1 && same(seen.value, j->init, given_start[3], given_start[4]));
    opts.param = -1;
    opts.module = j->model.block[1];
    seen = summon(j, opts, 1, FSDP_OK);
    EXPECT(j, seen.nparams == 2 && same(seen.value, j->init, given_start[3], GIVEN_NELEM));
    opts.module = j->model.root;
    opts.recurse = false; /* the root's own unit holds the scale alone */
    seen = summon(j, opts, 1, FSDP_OK);
    EXPECT(j, seen.nparams == 1 && same(seen.value, j->init, 0, given_start[1]));

    opts.recurse = true;
    opts.rank0_only = true;
    seen = summon(j, opts, 1, FSDP_OK);
    EXPECT(j, seen.nparams == (j->rank == 0 ? GIVEN_NPARAMS : 0));
    EXPECT(j, j->rank || same(seen.value, j->init, 0, GIVEN_NELEM));
}

static void test_writeback(struct job *j)
{
    struct fsdp_full_opts opts = FSDP_FULL_OPTS_INIT;
    float want[GIVEN_NELEM];

    memcpy(want, j->init, sizeof want);
    opts.module = j->model.block[0];
    opts.writeback = true;
    summon(j, opts, 2, FSDP_OK);
    for (int i = given_start[1]; i < given_start[3]; i++)
        want[i] *= 2;
    opts = (struct fsdp_full_opts)FSDP_FULL_OPTS_INIT;
    struct seen seen = summon(j, opts, 1, FSDP_OK);
    EXPECT(j, same(seen.value, want, 0, GIVEN_NELEM));
    memcpy(j->init, want, sizeof want);
}

static void test_refusals(struct job *j)
{
    struct fsdp_full_opts opts = FSDP_FULL_OPTS_INIT;
    struct seen seen = {.scale = 1};
    struct fsdp_err err = FSDP_ERR_INIT;

    opts.writeback = opts.rank0_only = true;
    EXPECT(j, fsdp_full_params(j->f, &opts, see, &seen, &err) == FSDP_EINVAL &&
                  strstr(err.text, "rank0_only"));
    opts = (struct fsdp_full_opts)FSDP_FULL_OPTS_INIT;
    opts.param = GIVEN_NPARAMS;
    EXPECT(j, fsdp_full_params(j->f, &opts, see, &seen, &err) == FSDP_EINVAL);
    EXPECT(j, fsdp_unshard(j->f, 17, &err) == FSDP_EINVAL && strstr(err.text, "module 17"));

    /* One rank's failure in the middle is everyone's, and nobody waits. */
    opts = (struct fsdp_full_opts)FSDP_FULL_OPTS_INIT;
    seen = (struct seen){.scale = 1, .fail_at = j->rank == j->cell.nranks - 1 ? 2 : 0};
    EXPECT(j, fsdp_full_params(j->f, &opts, see, &seen, &err) == FSDP_EIO &&
                  strstr(err.text, "made to fail"));
    EXPECT(j, seen.nparams == (seen.fail_at ? 2 : GIVEN_NPARAMS));
}

static int unused_hook(void *ctx, const struct fsdp_grad_part *part, struct fsdp_err *err)
{
    (void)ctx;
    (void)part;
    return fsdp_err_set(err, FSDP_EINTERNAL, "a hook that was refused");
}

/* In the middle of a micro-step every call is refused by name; after its end gradients are there.
 */
static void test_gradients(struct job *j)
{
    struct fsdp_full_opts opts = FSDP_FULL_OPTS_INIT;
    struct fsdp_step_args args = {.step = 0, .lr = 0};
    struct fsdp_step_result result;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct seen seen = {.scale = 1};
    float want[GIVEN_NELEM];

    EXPECT(j,
           !fsdp_micro_begin(j->f, FSDP_TRAIN, 0, &err) && !given_forward(&j->model, j->f, &err));
    EXPECT(j, fsdp_full_params(j->f, &opts, see, &seen, &err) == FSDP_EINVAL &&
                  strstr(err.text, "fsdp_full_params in mid-step") && strstr(err.text, "backward"));
    EXPECT(j, fsdp_unshard(j->f, 0, &err) == FSDP_EINVAL && strstr(err.text, "fsdp_unshard in"));
    EXPECT(j, !given_backward(&j->model, j->f, j->given, (float)(j->rank + 1), &err) &&
                  !fsdp_micro_end(j->f, &err));
    opts.with_grads = true;
    seen = summon(j, opts, 1, FSDP_OK);
    float total = (float)(j->cell.nranks * (j->cell.nranks + 1) / 2);
    for (int i = 0; i < GIVEN_NELEM; i++)
        want[i] = total * j->given[i];
    EXPECT(j, seen.ngrads == GIVEN_NPARAMS && same(seen.grad, want, 0, GIVEN_NELEM));

    /* Gradients can be changed, too: the step sees them. */
    const float scale = j->cell.grads_away ? 1 : 0.5f;
    opts.writeback = true;
    if (j->cell.grads_away)
        EXPECT(j, fsdp_full_params(j->f, &opts, see, &seen, &err) == FSDP_EUNSUPPORTED &&
                      strstr(err.text, "offload_gradients") &&
                      fsdp_grad_hook_set(j->f, unused_hook, NULL, &err) == FSDP_EUNSUPPORTED &&
                      strstr(err.text, "offload_gradients"));
    else
        summon(j, opts, scale, FSDP_OK);
    opts.writeback = false;
    double sum = 0;
    for (int i = 0; i < GIVEN_NELEM; i++)
        sum += (double)(scale * want[i]) * (double)(scale * want[i]);
    EXPECT(j, !fsdp_step(j->f, &args, &result, &err) &&
                  fabs(result.grad_norm - sqrt(sum)) < 1e-5 * sqrt(sum));
    for (int i = 0; i < GIVEN_NELEM; i++)
        j->init[i] *= scale;
    seen = summon(j, opts, 1, FSDP_OK);
    EXPECT(j, same(seen.value, j->init, 0, GIVEN_NELEM));
}

/* A parameter of a unit that is unsharded by hand, in the host's memory. */
static bool fetch(void *host, const struct job *j, int p)
{
    const void *whole = fsdp_unsharded_param(j->f, p);
    const size_t nelem = (size_t)(given_start[p + 1] - given_start[p]);
    return whole &&
           !fsdp_copy(j->lane, host, whole, nelem * fsdp_dtype_nbytes(j->cell.dtype), NULL) &&
           !fsdp_lane_sync(j->lane, NULL);
}

static void test_unshard(struct job *j)
{
    float host[GIVEN_NELEM];
    struct fsdp_full_opts opts = FSDP_FULL_OPTS_INIT;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct seen seen = {.scale = 1};
    int module = j->model.block[1];

    EXPECT(j, !fsdp_unsharded_param(j->f, 3));
    EXPECT(j, !fsdp_unshard(j->f, module, &err) && !fsdp_unshard(j->f, module, &err));
    for (int p = 3; p <= 4; p++) {
        EXPECT(j, fetch(host, j, p));
        for (int i = given_start[p]; i < given_start[p + 1]; i++) {
            float want = j->init[i];
            if (j->cell.dtype == FSDP_BF16)
                want = fsdp_bf16_to_f32(fsdp_f32_to_bf16(want));
            EXPECT(j, given_load(host, j->cell.dtype, i - given_start[p]) == want);
        }
    }
    EXPECT(j, !fsdp_unsharded_param(j->f, 0) && !fsdp_unsharded_param(j->f, 99));
    EXPECT(j, fsdp_micro_begin(j->f, FSDP_TRAIN, 0, &err) == FSDP_EINVAL &&
                  strstr(err.text, "unit 'blocks.1'"));
    opts.writeback = true;
    EXPECT(j, fsdp_full_params(j->f, &opts, see, &seen, &err) == FSDP_EINVAL &&
                  strstr(err.text, "unit 'blocks.1'"));
    EXPECT(j, !fsdp_reshard(j->f, module, &err) && !fsdp_unsharded_param(j->f, 3));
    EXPECT(j, !given_micro(&j->model, j->f, 0, j->given, 1, &err));
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    static const char *const classes[] = {"Block", NULL};
    struct job j = {.cell = *(struct cell *)arg, .rank = oob->rank};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_opts opts = FSDP_OPTS_INIT;
    struct fsdp_device *device = NULL;
    struct fsdp_mesh_shape shape;
    struct fsdp_mesh *mesh = NULL;

    given_make(&j.model);
    for (int i = 0; i < GIVEN_NELEM; i++) {
        j.init[i] = sinf((float)i);
        j.given[i] = (float)(i % 11 - 5);
    }
    opts.sharding_strategy = j.cell.strategy;
    opts.wrap_classes = classes;
    opts.param_dtype = j.cell.dtype;
    opts.optim.clip_grad_norm = 0;
    opts.optim.weight_decay = 0;
    opts.offload_gradients = j.cell.grads_away;
    if (fsdp_device_open(&device, ranks_device(), 0, &err) ||
        fsdp_lane_create(&j.lane, device, "test", &err) ||
        fsdp_mesh_shape_for(&shape, opts.sharding_strategy, 0, nodes, &err) ||
        (j.cell.two_level && fsdp_mesh_shape_two_level(&shape, nodes, &err)) ||
        fsdp_mesh_create(&mesh, shape, "auto", 20, nodes, oob, device, &err) ||
        fsdp_create(&j.f, j.model.tree, &opts, device, mesh, &err) ||
        given_load_params(j.f, j.init, &err)) {
        fprintf(stderr, "rank %d: %s\n", oob->rank, err.text);
        return 1;
    }
    test_params(&j);
    test_writeback(&j);
    test_refusals(&j);
    test_gradients(&j);
    test_unshard(&j);
    fsdp_unshard(j.f, 0, &err); /* left to destroy */
    fsdp_destroy(j.f);
    fsdp_mesh_destroy(mesh);
    fsdp_lane_destroy(j.lane);
    fsdp_device_close(device);
    fsdp_module_tree_destroy(j.model.tree);
    return j.failures != 0;
}

int main(void)
{
    static const struct cell cells[] = {
        {1, 1, FSDP_FULL_SHARD, false, FSDP_F32, false},
        {2, 1, FSDP_FULL_SHARD, false, FSDP_F32, false},
        {3, 1, FSDP_SHARD_GRAD_OP, false, FSDP_F32, false},
        {2, 1, FSDP_NO_SHARD, false, FSDP_F32, false},
        {4, 2, FSDP_HYBRID_SHARD, false, FSDP_F32, false},
        {4, 2, FSDP_FULL_SHARD, true, FSDP_F32, false},
        {2, 1, FSDP_FULL_SHARD, false, FSDP_BF16, false},
        {3, 1, FSDP_ZERO1, false, FSDP_F32, false},
        {2, 1, FSDP_FULL_SHARD, false, FSDP_F32, true},
        {4, 2, FSDP_HYBRID_SHARD, false, FSDP_F32, true},
    };
    for (size_t k = 0; k < sizeof cells / sizeof cells[0]; k++) {
        struct cell cell = cells[k];
        ok(ranks_run(cell.nranks, cell.nnodes, 60, rank_main, &cell, NULL) == 0,
           "%s, %d ranks, %d nodes%s, %s: params, gradients, one unit, one tensor, rank 0 only, "
           "write back, by hand%s",
           fsdp_strategy_name(cell.strategy), cell.nranks, cell.nnodes,
           cell.two_level ? ", two levels" : "", fsdp_dtype_name(cell.dtype),
           cell.grads_away ? "; gradients offloaded" : "");
    }
    return tap_done();
}
