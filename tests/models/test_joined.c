/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of q, k and v side by side: which models have one product for them in 16 bits, and that
 * all their gradients are those of fp32 up to bf16's rounding. In fp32 each has its own.
 */
#include <math.h>

#include "config_file.h"
#include "nn/nn.h"
#include "ref_run.h"

enum { STEP_ROWS = 4, SEQ_LEN = 16, MAX_PARAMS = 64, MAX_NELEM = 1 << 18 };

struct seen {
    int nparams, ninputs, nweights; /* products of the joined width */
    size_t nelem, begin[MAX_PARAMS + 1];
    char name[MAX_PARAMS][64];
    float grad[MAX_NELEM];
};

struct job {
    struct ref_setup setup;
    int nranks;
    const int32_t *tokens;
    struct seen *out;
};

static struct seen *seen;
static int joined_width;
static struct nn_ops counting;

static int count_input(struct fsdp_lane *lane, const struct nn_linear *args, struct fsdp_err *err)
{
    seen->ninputs += args->nout == joined_width;
    return nn_cpu_ops.linear_backward_input(lane, args, err);
}

static int count_weight(struct fsdp_lane *lane, const struct nn_linear *args, struct fsdp_err *err)
{
    seen->nweights += args->nout == joined_width && args->out;
    return nn_cpu_ops.linear_backward_weight(lane, args, err);
}

static void count_products(struct model *model)
{
    const struct traits *t = &model->traits;
    counting = nn_cpu_ops;
    counting.linear_backward_input = count_input;
    counting.linear_backward_weight = count_weight;
    joined_width = (t->nheads + 2 * t->nkv_heads) * t->head_dim;
    model->nn = &counting;
}

static int keep_grad(void *ctx, const struct fsdp_full_param *param, struct fsdp_err *err)
{
    struct seen *s = ctx;
    const size_t nelem = fsdp_tensor_nelem(&param->tensor);
    if (s->nparams == MAX_PARAMS || s->nelem + nelem > MAX_NELEM)
        return fsdp_err_set(err, FSDP_EINVAL, "the model is too large for this test");
    snprintf(s->name[s->nparams], sizeof *s->name, "%s", param->tensor.name);
    if (param->grad)
        memcpy(s->grad + s->nelem, param->grad, nelem * sizeof *s->grad);
    s->nelem += param->grad ? nelem : 0;
    s->begin[++s->nparams] = s->nelem;
    return FSDP_OK;
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct job *job = arg;
    struct fsdp_full_opts full = FSDP_FULL_OPTS_INIT;
    struct fsdp_step_args args = {.step = 0, .lr = 1e-2};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct seen *own = calloc(1, sizeof *own);
    struct ref_rank r;
    double loss, norm;

    seen = oob->rank ? own : job->out; /* rank 0 counts for the test */
    full.rank0_only = full.with_grads = true;
    int rc = ref_rank_open(&r, &job->setup, oob, nodes, &err);
    if (rc == FSDP_OK)
        rc = ref_rank_step(&r, &job->setup, job->tokens, STEP_ROWS, args, &loss, &norm, &err);
    if (rc == FSDP_OK)
        rc = fsdp_full_params(r.f, &full, keep_grad, job->out, &err);
    if (rc)
        fprintf(stderr, "rank %d: %s\n", oob->rank, err.text);
    ref_rank_close(&r);
    free(own);
    return rc != 0;
}

static struct seen *run(int nranks, const char *const *frozen, enum fsdp_dtype dtype)
{
    static int32_t tokens[STEP_ROWS * (SEQ_LEN + 1)];
    struct job job = {
        .setup = {.config = path,
                  .B = STEP_ROWS / 2 / nranks,
                  .T = SEQ_LEN,
                  .use_ops = count_products},
        .nranks = nranks,
        .tokens = tokens,
        .out = ref_shared(sizeof *job.out),
    };

    for (int i = 0; i < STEP_ROWS * (SEQ_LEN + 1); i++)
        tokens[i] = (i * 7 + i / 5) % 61;
    job.setup.opts = (struct fsdp_opts)FSDP_OPTS_INIT;
    job.setup.opts.accumulation = 2;
    job.setup.opts.reduce_last = true;
    job.setup.opts.frozen = frozen;
    job.setup.opts.param_dtype = dtype;
    if (ranks_run(nranks, 1, 60, rank_main, &job, NULL) != 0)
        job.out->nparams = 0;
    return job.out;
}

/* The greatest relative difference of a parameter's gradient, and whose it is. */
static double greatest(const struct seen *a, const struct seen *b, const char **name)
{
    double most = 0;
    for (int p = 0; p < a->nparams; p++) {
        double diff = 0, norm = 0;
        for (size_t i = a->begin[p]; i < a->begin[p + 1]; i++) {
            diff += pow((double)a->grad[i] - (double)b->grad[i], 2);
            norm += pow((double)a->grad[i], 2);
        }
        const double error = norm > 0 ? sqrt(diff / norm) : 0;
        if (!(error <= most)) {
            most = error;
            *name = a->name[p];
        }
    }
    return most;
}

/* The configuration that was written: so many products of each kind for all of q, k and v.
 * Gradients that are small differences of large ones have a wider bound. */
static void test_model(const char *what, int nranks, const char *const *frozen, int ninputs,
                       int nweights, double bound)
{
    struct seen *wide = run(nranks, frozen, FSDP_F32), *half = run(nranks, frozen, FSDP_BF16);
    const char *name = "none";
    const double error = greatest(wide, half, &name);

    ok(wide->nparams && half->nparams == wide->nparams && half->nelem == wide->nelem,
       "%s, %d ranks, runs in both types", what, nranks);
    ok(wide->ninputs == 0 && half->ninputs == ninputs && half->nweights == nweights,
       "%s: %d products to the input and %d to the weights, none in fp32", what, half->ninputs,
       half->nweights);
    ok(error > 0 && error < bound, "%s: gradients as in fp32, up to %.1e (%s)", what, error, name);
    munmap(wide, sizeof *wide);
    munmap(half, sizeof *half);
}

static void test_llama(void)
{
    static const char *const k_proj[] = {"*k_proj.weight", NULL}, *const all[] = {"*_proj.weight",
                                                                                  NULL};

    write_config(NULL, NULL, NULL);
    for (int nranks = 1; nranks <= 2; nranks++)
        test_model("grouped queries", nranks, NULL, 4, 4, 0.02);
    test_model("k frozen", 1, k_proj, 0, 0, 0.02);
    test_model("all matrices frozen", 1, all, 4, 0, 0.02);
    write_config("num_key_value_heads", "4", NULL);
    test_model("as many keys as queries", 1, NULL, 4, 4, 0.02);
}

static void test_families(void)
{
    write_config("model_type", "\"qwen3\"", "\"head_dim\": 16");
    test_model("norms of heads", 1, NULL, 4, 4, 0.02);
    write_config("model_type", "\"olmo2\"", NULL);
    test_model("norms behind the branches", 1, NULL, 4, 4, 0.2);
    write_config("model_type", "\"qwen2\"", NULL);
    test_model("biases between the matrices", 1, NULL, 0, 0, 0.1);
    write_config("model_type", "\"phi3\"", "\"partial_rotary_factor\": 0.5");
    test_model("one matrix, heads turned in part", 1, NULL, 4, 4, 0.02);
    write_config("model_type", "\"smollm3\"", "\"no_rope_layers\": [1, 0]");
    test_model("a layer without rotation", 1, NULL, 4, 4, 0.02);
    write_gpt2(NULL, NULL);
    test_model("transposed, with biases", 2, NULL, 4, 4, 0.1);
}

int main(void)
{
    config_file_begin();
    test_llama();
    test_families();
    unlink(path);
    return tap_done();
}
