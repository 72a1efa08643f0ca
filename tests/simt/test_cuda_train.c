/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole steps of training on the CUDA device and its operators, emulated on the CPU, against the
 * same steps on the CPU: engine and models use device memory as a GPU lets them.
 * run: long
 * run: timeout=600
 */
#include <cublasLt.h>

#include "cuda_train.h"

enum { STEPS = 2 };

static const char *const maps[] = {"all-linear", "lm_head"};
static const struct model_lora dora = {
    .r = 3, .scale = 2, .dropout = 0.1, .dora = true, .targets = maps, .ntargets = 2};
static const struct model_lora dora_of_layers = {
    .r = 3, .scale = 2, .dropout = 0.1, .dora = true, .targets = maps, .ntargets = 1};

/* lean: in bf16 with all that a rank's memory can do without; with adapters, on a model in NF4. */
static void test_model(const char *folder, int T, int vocab, enum fsdp_dtype reduce_dtype,
                       bool lean)
{
    int32_t tokens[STEPS * TRAIN_ROWS * (TRAIN_MAX_T + 1)];
    struct ref_setup setup = {.folder = folder, .B = 2, .T = T, .opts = FSDP_OPTS_INIT};
    const bool adapted = train_adapters != NULL;
    char what[96];

    train_fill(tokens, STEPS * TRAIN_ROWS * (T + 1), vocab);
    setup.opts.accumulation = 2;
    setup.opts.frozen_in_nf4 = lean && adapted;
    snprintf(what, sizeof what, "%s in fp32%s%s", folder, adapted ? " with DoRA" : "",
             setup.opts.frozen_in_nf4 ? " on NF4" : "");
    train_compare(what, setup, tokens, STEPS, 1e-6, 1e-5);
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
    train_compare(what, setup, tokens, STEPS, 5e-3, 1e-2);
}

/* Optimizers that see whole matrices. */
static void test_optimizer(const char *name)
{
    enum { T = 16 };
    int32_t tokens[STEPS * TRAIN_ROWS * (T + 1)];
    struct ref_setup setup = {.folder = "llama-tiny", .B = 2, .T = T, .opts = FSDP_OPTS_INIT};

    train_fill(tokens, STEPS * TRAIN_ROWS * (T + 1), 256);
    setup.opts.accumulation = 2;
    setup.opts.optim.name = name;
    train_compare(name, setup, tokens, STEPS, 1e-5, 1e-4);
}

static const cublasLtEpilogue_t epilogues[] = {CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                                               CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_BGRADA};
enum { NEPILOGUES = sizeof epilogues / sizeof epilogues[0] };

static void count_epilogues(int counts[TRAIN_COUNTS])
{
    for (int i = 0; i < NEPILOGUES; i++)
        counts[i] = simt_lt_epilogues(epilogues[i]);
    counts[NEPILOGUES] = simt_lt_batched();
}

/* GPT-2's activations, and the gradients of its biases, are made by its products. */
static void test_epilogues(void)
{
    train_count = count_epilogues;
    test_model("gpt2-tiny", 16, 211, FSDP_BF16, false);
    train_count = NULL;
    for (int i = 0; i < NEPILOGUES; i++)
        ok(train_counts[i] > 0, "GPT-2 in bf16: %d products with epilogue %d", train_counts[i],
           (int)epilogues[i]);
    ok(train_counts[NEPILOGUES] > 0, "%d products in batches", train_counts[NEPILOGUES]);
}

int main(void)
{
    test_optimizer("muon");
    test_optimizer("adafactor");
    train_count = count_epilogues;
    test_model("llama-tiny", 16, 256, FSDP_F32, true);
    ok(train_counts[NEPILOGUES] > 0, "Llama in bf16: %d products in batches",
       train_counts[NEPILOGUES]);
    test_epilogues();
    train_adapters = &dora;
    test_model("llama-tiny", 16, 256, FSDP_F32, true);
    train_adapters = &dora_of_layers;
    test_model("gpt2-tiny", 16, 211, FSDP_F32, false);
    return tap_done();
}
