/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole steps of training on the CUDA device and its operators, emulated on the CPU, against the
 * same steps on the CPU: engine and models use device memory as a GPU lets them.
 * run: timeout=600
 */
#include "../models/ref_run.h"

#include "fsdp/sys/cuda.h"
#include "family/stack.h"

extern const struct nn_ops nn_cuda_ops;

enum { STEPS = 2, ROWS = 4, MAX_T = 256 };

struct outcome {
    double loss[STEPS], norm[STEPS];
};

static bool adapted; /* with DoRA */

struct run {
    struct ref_setup setup;
    const int32_t *tokens;
    struct outcome *out;
};

static void use_adapters(struct model *m)
{
    static const char *const all[] = {"all-linear"};
    const struct model_lora lora = {
        .r = 3, .scale = 2, .dropout = 0.1, .dora = true, .targets = all, .ntargets = 1};
    struct fsdp_err err = FSDP_ERR_INIT;

    if (adapted && stack_set_lora(m, &lora, &err))
        fprintf(stderr, "%s\n", err.text);
}

static void use_cuda(struct model *m)
{
    m->nn = &nn_cuda_ops;
    use_adapters(m);
}

static int rank_main(struct fsdp_oob *oob, const struct fsdp_node_map *nodes, void *arg)
{
    struct run *run = arg;
    struct ref_rank r;
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc = ref_rank_open(&r, &run->setup, oob, nodes, &err);

    for (int s = 0; s < STEPS && !rc; s++) {
        const struct fsdp_step_args args = {.step = s, .lr = 1e-3};
        rc = ref_rank_step(&r, &run->setup, run->tokens + s * ROWS * (run->setup.T + 1), ROWS, args,
                           &run->out->loss[s], &run->out->norm[s], &err);
    }
    if (rc)
        fprintf(stderr, "%s: %s\n", fsdp_status_name(rc), err.text);
    ref_rank_close(&r);
    return rc != 0;
}

static bool train(struct ref_setup setup, const int32_t *tokens, struct outcome *out)
{
    struct run run = {setup, tokens, out};
    return ranks_run(1, 1, 200, rank_main, &run, NULL) == 0;
}

/* The greatest differences, of losses and of norms in terms of the norm. */
static void compare(const char *what, struct ref_setup setup, const int32_t *tokens,
                    double loss_bound, double norm_bound)
{
    struct outcome *both = ref_shared(2 * sizeof *both);
    double loss = 0, norm = 0;
    bool ran;

    setup.use_ops = use_adapters;
    ran = train(setup, tokens, &both[0]);
    setup.device_ops = &fsdp_device_cuda_ops;
    setup.use_ops = use_cuda;
    ran = ran && train(setup, tokens, &both[1]);
    for (int s = 0; s < STEPS; s++) {
        loss = fmax(loss, fabs(both[1].loss[s] - both[0].loss[s]));
        norm = fmax(norm, fabs(both[1].norm[s] / both[0].norm[s] - 1));
    }
    ok(ran && loss <= loss_bound && norm <= norm_bound && both[1].loss[0] > 1,
       "%s: loss %.4f, off by %.1e; norms by %.1e", what, both[1].loss[STEPS - 1], loss, norm);
    munmap(both, 2 * sizeof *both);
}

/* lean: in bf16 with all that a rank's memory can do without; with adapters, on a model in NF4. */
static void test_model(const char *folder, int T, int vocab, enum fsdp_dtype reduce_dtype,
                       bool lean)
{
    int32_t tokens[STEPS * ROWS * (MAX_T + 1)];
    struct ref_setup setup = {.folder = folder, .B = 2, .T = T, .opts = FSDP_OPTS_INIT};
    char what[96];

    for (int i = 0; i < STEPS * ROWS * (T + 1); i++)
        tokens[i] = (int32_t)((unsigned)i * 2654435761u >> 8) % vocab;
    setup.opts.accumulation = 2;
    setup.opts.frozen_in_nf4 = lean && adapted;
    snprintf(what, sizeof what, "%s in fp32%s%s", folder, adapted ? " with DoRA" : "",
             setup.opts.frozen_in_nf4 ? " on NF4" : "");
    compare(what, setup, tokens, 1e-6, 1e-5);
    if (!lean && adapted)
        return;
    setup.opts.param_dtype = FSDP_BF16;
    setup.opts.reduce_dtype = reduce_dtype;
    if (lean && !adapted) {
        setup.opts.optim.moment_dtype = FSDP_BF16;
        setup.opts.optim.master = FSDP_MASTER_SPLIT;
        setup.opts.offload = FSDP_OFFLOAD_PARAMS;
    }
    snprintf(what, sizeof what, "%s in bf16, gradients in %s%s", folder,
             fsdp_dtype_name(reduce_dtype),
             adapted ? " with DoRA"
             : lean  ? ", split and offloaded"
                     : "");
    compare(what, setup, tokens, 5e-3, 1e-2);
}

/* Optimizers that see whole matrices. */
static void test_optimizer(const char *name)
{
    enum { T = 16 };
    int32_t tokens[STEPS * ROWS * (T + 1)];
    struct ref_setup setup = {.folder = "llama-tiny", .B = 2, .T = T, .opts = FSDP_OPTS_INIT};

    for (int i = 0; i < STEPS * ROWS * (T + 1); i++)
        tokens[i] = (int32_t)((unsigned)i * 2654435761u >> 8) % 256;
    setup.opts.accumulation = 2;
    setup.opts.optim.name = name;
    compare(name, setup, tokens, 1e-5, 1e-4);
}

int main(void)
{
    test_optimizer("muon");
    test_optimizer("adafactor");
    test_model("llama-tiny", 16, 256, FSDP_F32, true);
    test_model("gpt2-tiny", 16, 211, FSDP_BF16, false);
    adapted = true;
    test_model("llama-tiny", 16, 256, FSDP_F32, true);
    test_model("gpt2-tiny", 16, 211, FSDP_F32, false);
    return tap_done();
}
