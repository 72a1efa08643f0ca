/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h: what a model family implements so that train.c can build, run and describe it.
 * llama.c is the first. A model is written once, against fsdp_module_enter/leave, and runs under
 * every strategy, wrap policy and world size.
 */
#ifndef MODEL_H
#define MODEL_H

#include "fsdp/fsdp.h"

struct model; /* one family's own state: configuration, module indices, shapes */

/* One micro-batch. tokens: (B, T+1) token ids; position t predicts t+1. */
struct model_batch {
    const int32_t *tokens;
    int B, T;
    /* Weight of one token's loss in the gradient: 1 / (all tokens of the optimizer step). */
    double loss_scale;
};

struct model_ops {
    const char *family;                /* config.json's model_type */
    const char *const *wrap_classes;   /* default classes of the transformer policy, NULL-terminated */
    /* Reads and checks config.json (a Hugging Face model folder's). Errors name file and key. */
    int (*create)(struct model **out, const char *config_json_path, struct fsdp_err *err);
    void (*destroy)(struct model *model);
    /* Adds modules, parameters and activation bytes for micro-batches of B x T. recompute is decided
     * later, by the engine. */
    int (*describe)(struct model *model, struct fsdp_module_tree *tree, int B, int T,
                    struct fsdp_err *err);
    int (*vocab_size)(const struct model *model);
    int (*max_seq_len)(const struct model *model);
    /* Forward pass, and the backward pass where `train`. Adds the sum of the tokens' losses (natural
     * log, unscaled) to *loss_sum, in double, on the compute lane. Enters and leaves every module.
     * Collective, enqueues. */
    int (*run)(struct model *model, struct fsdp *f, const struct model_batch *batch, bool train,
               double *loss_sum, struct fsdp_err *err);
    /* Forward pass giving logits (B, T, V) instead of a loss, fp32; for generation and comparison. */
    int (*logits)(struct model *model, struct fsdp *f, const struct model_batch *batch, float *out,
                  struct fsdp_err *err);
    /* Floating-point operations of forward and backward per token at length T, for the progress line. */
    double (*flops_per_token)(const struct model *model, int T);
};

extern const struct model_ops model_llama_ops;

/* The family that config.json names. FSDP_EUNSUPPORTED lists the known ones. */
int model_find(const struct model_ops **out, const char *config_json_path, struct fsdp_err *err);

#endif
