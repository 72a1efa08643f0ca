/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models whose parameters are frozen in part: what is still trained gets the same gradients as
 * before, to the bit, and what is frozen stays. Micro-steps accumulate in place, so that a gradient
 * that is not wanted must not decide how a wanted one is written.
 */
#include "ref_run.h"
#include "tap.h"

enum { MAX_PARAMS = 128, STEP_ROWS = 4, ACCUMULATION = 2, SEQ_LEN = 16 };

struct job {
    struct ref_setup setup;
    const int32_t *tokens;
    struct grads {
        int nparams, nfrozen;
        uint64_t init[MAX_PARAMS], value[MAX_PARAMS], grad[MAX_PARAMS]; /* hashes */
        bool trained[MAX_PARAMS];
    } * out;
};

static int hash_grads(void *ctx, const struct fsdp_full_param *param, struct fsdp_err *err)
{
    struct grads *g = ctx;
    size_t nbytes = fsdp_tensor_nelem(&param->tensor) * sizeof(float);
    if (param->param >= MAX_PARAMS)
        return fsdp_err_set(err, FSDP_EINVAL, "too many parameters");
    g->nparams++;
    g->nfrozen += !param->grad;
    g->trained[param->param] = param->grad != NULL;
    g->value[param->param] = fsdp_hash(FSDP_HASH_SEED, param->value, nbytes);
    if (param->grad)
        g->grad[param->param] = fsdp_hash(FSDP_HASH_SEED, param->grad, nbytes);
    return FSDP_OK;
}

static int hash_init(void *ctx, const struct fsdp_full_param *param, struct fsdp_err *err)
{
    struct grads *g = ctx;
    (void)err;
    g->init[param->param % MAX_PARAMS] =
        fsdp_hash(FSDP_HASH_SEED, param->value, fsdp_tensor_nelem(&param->tensor) * sizeof(float));
    return FSDP_OK;
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct job *job = arg;
    struct fsdp_full_opts full = FSDP_FULL_OPTS_INIT;
    struct fsdp_step_args args = {.step = 0, .lr = 1e-2};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct ref_rank r;
    double loss, norm;

    full.rank0_only = true;
    int rc = ref_rank_open(&r, &job->setup, oob, nodes, &err);
    if (rc == FSDP_OK)
        rc = fsdp_full_params(r.f, &full, hash_init, job->out, &err);
    full.with_grads = true;
    if (rc == FSDP_OK)
        rc = ref_rank_step(&r, &job->setup, job->tokens, STEP_ROWS, args, &loss, &norm, &err);
    if (rc == FSDP_OK)
        rc = fsdp_full_params(r.f, &full, hash_grads, job->out, &err);
    if (rc)
        fprintf(stderr, "rank %d: %s\n", oob->rank, err.text);
    ref_rank_close(&r);
    return rc != 0;
}

static struct grads run(const char *folder, int nranks, const char *const *frozen,
                        const int32_t *tokens)
{
    struct job job = {
        .setup = {.folder = folder, .B = STEP_ROWS / ACCUMULATION / nranks, .T = SEQ_LEN},
        .tokens = tokens};
    job.setup.opts = (struct fsdp_opts)FSDP_OPTS_INIT;
    job.setup.opts.accumulation = ACCUMULATION;
    job.setup.opts.frozen = frozen;
    job.setup.opts.reduce_last = true;
    job.out = ref_shared(sizeof *job.out);
    ok(ranks_run(nranks, 1, 60, rank_main, &job, NULL) == 0, "%s, %d ranks, %s runs", folder,
       nranks, frozen ? frozen[0] : "all trained");
    struct grads grads = *job.out;
    munmap(job.out, sizeof *job.out);
    return grads;
}

static void test_model(const char *folder, const char *const patterns[][3], int npatterns)
{
    static int32_t tokens[STEP_ROWS * (SEQ_LEN + 1)];
    for (int i = 0; i < STEP_ROWS * (SEQ_LEN + 1); i++)
        tokens[i] = (i * 7 + i / 5) % 61;
    for (int nranks = 1; nranks <= 2; nranks++) {
        struct grads all = run(folder, nranks, NULL, tokens);
        for (int k = 0; k < npatterns; k++) {
            struct grads part = run(folder, nranks, patterns[k], tokens);
            bool same = part.nparams == all.nparams;
            for (int p = 0; p < part.nparams; p++) {
                same &= !part.trained[p] || part.grad[p] == all.grad[p];
                same &= (part.value[p] == all.init[p]) == !part.trained[p];
            }
            ok(same && part.nfrozen > 0 && part.nfrozen < part.nparams,
               "%s, %d ranks, %s frozen (%d of %d): it stays, the others' gradients are the same",
               folder, nranks, patterns[k][0], part.nfrozen, part.nparams);
        }
    }
}

int main(void)
{
    static const char *const llama[][3] = {{"*norm*", NULL},
                                           {"*embed*", NULL},
                                           {"*_proj.weight", NULL},
                                           {"model.layers.0.*", "*norm.weight", NULL}};
    static const char *const gpt2[][3] = {{"*.bias", NULL},
                                          {"*ln_*.weight", NULL},
                                          {"*wte*", NULL},
                                          {"*wpe*", NULL},
                                          {"*.c_*.weight", NULL}};
    test_model("llama-tiny", llama, 4);
    test_model("gpt2-tiny", gpt2, 5);
    return tap_done();
}
