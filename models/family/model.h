/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h: what a model implements so that train.c can build, run and describe it. The decoder
 * (stack.h) is such a model, of which a family is a row (families.c). A model is written once,
 * against fsdp_module_enter/leave, and runs under every strategy, wrap policy and world size.
 */
#ifndef MODEL_H
#define MODEL_H

#include "fsdp/fsdp.h"
#include "nn/nn.h"

struct decoder;
struct model; /* one family's own state: configuration, module indices, shapes */

/* The label of a position whose prediction counts for nothing: the one of transformers. */
enum { MODEL_IGNORE = -100 };

/* One micro-batch. tokens: (B, T+1) token ids; position t predicts t+1. Host memory that must stay
 * unchanged until the pass has run on the compute lane (fsdp_sync, or a result of its step). B and
 * T may be smaller than described. */
struct model_batch {
    const int32_t *tokens;
    int B, T;
    /* Weight of one token's loss in the gradient: 1 / (all tokens of the optimizer step that
     * count). */
    double loss_scale;
    const int32_t *labels; /* (B, T) what each position predicts, or MODEL_IGNORE; NULL: tokens */
    /* (B, T) where the document begins that a position is in, rising along a row from 0: attention
     * and positions begin anew there. NULL: a row is one document. */
    const int32_t *starts;
    /* What the loss is besides cross-entropy (nn_cross_entropy). weights: (B, T) factors of the
     * positions' losses, of any sign; NULL: 1. Zeros: the cross-entropy alone. */
    const float *weights;
    double label_smoothing, z_loss;
    /* Of a pass without training: (B) on the device, where each row's loss is added instead of to
     * the sum; NULL: it is not wanted. */
    double *row_losses;
    /* Dropout as config.json says, or none. What is dropped is decided by the seed and the number
     * of a row in the whole run, which is first_row for the first and counts on. */
    bool dropout;
    uint64_t seed, first_row;
    /* Of a mixture of experts. The last `padding` rows count for nothing. The load-balance loss of
     * a micro-batch is that of the rows of all ranks, and has this weight in the step's. The z-loss
     * of one position has that of router_position, and this factor in the loss that is trained. */
    int padding;
    double router_weight, router_position, router_z_loss;
    /* (model_router) device memory, to which the weighted losses, load balance first, and then the
     * counts of each layer's experts over all ranks are added; NULL: not wanted. The same choice on
     * all ranks. */
    double *router_sums;
};

/* A model's mixture of experts; zeros: it has none. */
struct model_router {
    int nlayers, nexperts, chosen;
    double aux_loss_coef; /* of the load-balance loss in the loss that is trained; 0: not in it */
};
enum { MODEL_ROUTER_BALANCE, MODEL_ROUTER_Z, MODEL_ROUTER_COUNTS }; /* in router_sums */
static inline size_t model_router_nelem(const struct model_router *router)
{
    return router->nexperts
               ? MODEL_ROUTER_COUNTS + (size_t)router->nlayers * (size_t)router->nexperts
               : 0;
}

/* What a model computes in. Parameters and gradients have the types that the engine's view says;
 * these are the model's own. Zeros: all F32. */
struct model_dtypes {
    enum fsdp_dtype activation; /* the residual stream too; PyTorch's param_dtype */
    enum fsdp_dtype buffer;     /* tables of positions: buffer_dtype */
    enum fsdp_dtype output;     /* logits, and their gradients, are rounded to it: output_dtype */
    enum fsdp_dtype grad;       /* gradients of weights: reduce_dtype */
    bool overrides;             /* some units' weights and gradients have other types than these */
};

/* Linear maps of the layers whose products are in 8 bits (docs/fp8.md): their operands are rounded
 * to these types, with scales of this kind, before they are multiplied. */
struct model_f8 {
    enum fsdp_dtype dtype;      /* of inputs and weights: F8_E4M3; F32: no product is in 8 bits */
    enum fsdp_dtype grad_dtype; /* of the outputs' gradients: F8_E4M3 or F8_E5M2 */
    enum nn_f8_scale scale;
    /* As model_lora.targets, or names of experts' parameters or of their module; borrowed until
     * set_f8 returns. Routers are none, and all-linear names no experts. */
    const char *const *targets;
    int ntargets;
    bool gathered; /* weights are gathered in E4M3: for the clock (fsdp_module_add_work) */
};

/* What config.json says besides the architecture. */
enum { MODEL_MAX_EOS = 256 };
struct model_info {
    enum fsdp_dtype dtype; /* of the weights, as Hugging Face stores them */
    int bos;               /* token id, -1: none */
    int neos, eos[MODEL_MAX_EOS];
    double dropout;  /* the largest probability of the model's dropouts; 0: it has none */
    bool transposed; /* its matrices are (in, out) */
    bool packed;     /* its linear maps are stored as bitsandbytes quantizes them */
    /* The names of the parameters that have adapters and are in no linear module of transformers,
     * from behind a layer's number on: those of experts, and the router's. */
    const char *parameters[3];
    int nparameters;
    int nexpert_matrices, nexperts_f8; /* of a layer, of each expert: all, and those in 8 bits */
};

/* Low-rank adapters (LoRA: Hu et al., arXiv 2106.09685) on linear maps of the layers: to the output
 * for x, scale * B A x is added. What a model was before is frozen, but for modules_to_save. */
#define MODEL_MAGNITUDE ".lora_magnitude_vector" /* behind the name of a module */
struct model_lora_rank {
    const char *name; /* of the module in all layers, or of the parameter of experts: whole, from
                         behind the layer's number on */
    int r;
    double scale;
};
struct model_lora {
    int r;        /* rows of A; 0: no adapters */
    double scale; /* alpha / r, or alpha / sqrt(r) */
    /* Maps that have others than these; borrowed until describe. */
    const struct model_lora_rank *ranks;
    int nranks;
    double dropout; /* probability, of A's input */
    /* DoRA (Liu et al., arXiv 2402.09353): the rows of W + scale B A get the lengths that a vector
     * of magnitudes has, which is trained besides. */
    bool dora;
    /* Names of modules, or ends of them that begin after a dot; "all-linear": every linear map of
     * the layers. The texts and arrays are borrowed until describe. */
    const char *const *targets, *const *modules_to_save;
    int ntargets, nmodules;
    /* The same of parameters that all experts of a layer have in one tensor in transformers, such
     * as mlp.experts.gate_up_proj: each expert has an A and a B of its own. */
    const char *const *parameters;
    int nparameters;
    bool packs_experts; /* the experts' matrices count as linear maps (FSDP_PARAM_LINEAR) */
    /* Targets and parameters that must name the same maps, where they are given besides. */
    const char *const *given, *const *given_parameters;
    int ngiven, ngiven_parameters;
};

/* Sequences being generated on plain memory, without the engine: their key-value caches. */
struct model_decoder;
struct model_decoder_opts {
    int max_tokens;           /* of each sequence */
    int nsequences;           /* 1 to MODEL_MAX_SEQUENCES; 0 is 1 */
    enum fsdp_dtype kv_dtype; /* keys and values are rounded to it when they are kept; 0: F32 */
};
enum { MODEL_MAX_SEQUENCES = 256 };

struct model_ops {
    const char *(*family)(const struct model *model); /* config.json's model_type */
    /* Default classes of the transformer policy, NULL-terminated. */
    const char *const *(*wrap_classes)(const struct model *model);
    /* Reads and checks config.json (a Hugging Face model folder's). Errors name file and key. */
    int (*create)(struct model **out, const char *config_json_path, struct fsdp_err *err);
    void (*destroy)(struct model *model);
    /* Before describe, where it runs elsewhere than on the CPU. FSDP_EUNSUPPORTED: no operators for
     * this device. */
    int (*set_device)(struct model *model, const struct fsdp_device *device, struct fsdp_err *err);
    /* Before describe, where not all is F32. */
    void (*set_dtypes)(struct model *model, const struct model_dtypes *dtypes);
    /* Before describe, where there are adapters. FSDP_EINVAL names a target that fits no linear
     * map.
     */
    int (*set_lora)(struct model *model, const struct model_lora *lora, struct fsdp_err *err);
    /* Before describe, where some products are in 8 bits. FSDP_EINVAL names a target that fits no
     * linear map. */
    int (*set_f8)(struct model *model, const struct model_f8 *f8, struct fsdp_err *err);
    /* Once, after nn_ops.tune: from then on a layer's operators are launched as a CUDA graph where
     * they run again on the same memory with the same shapes. What keeps a layer from it is logged
     * once. */
    int (*set_graphs)(struct model *model, struct fsdp_err *err);
    /* The model computes with tensors whose names begin with this; others of its folder are carried
     * along: sharded, stored in checkpoints, and otherwise left alone. NULL: all are its own. */
    const char *(*own_prefix)(const struct model *model);
    /* Before describe, until which they are borrowed. */
    void (*set_carried)(struct model *model, const struct fsdp_tensor *tensors, int ntensors);
    /* Adds modules, parameters and activation bytes for micro-batches of B x T. recompute is
     * decided later, by the engine. */
    int (*describe)(struct model *model, struct fsdp_module_tree *tree, int B, int T,
                    struct fsdp_err *err);
    /* Before describe, where rows may hold several documents (model_batch.starts). */
    void (*set_packed)(struct model *model);
    /* All of the model's dropouts get this probability, whatever config.json says. */
    void (*set_dropout)(struct model *model, double p);
    /* Before describe: attention's dropout may drop what the device likes (nn_attention.drop_fast).
     */
    void (*set_fast_dropout)(struct model *model);
    /* After describe: so many documents in a micro-batch attention has plans for. 0 where rows have
     * one each. */
    int (*most_documents)(const struct model *model);
    int (*vocab_size)(const struct model *model);
    int (*max_seq_len)(const struct model *model);
    /* Forward pass, and the backward pass where `train`. Adds the sum of the tokens' losses
     * (natural log, unscaled) to *loss_sum, in double, on the compute lane. Enters and leaves every
     * module, between the caller's fsdp_micro_begin (FSDP_TRAIN or FSDP_EVAL, as `train` says) and
     * fsdp_micro_end; after an error the caller calls fsdp_step_reset. FSDP_EINVAL names a token or
     * label outside the vocabulary. Collective, enqueues. */
    int (*run)(struct model *model, struct fsdp *f, const struct model_batch *batch, bool train,
               double *loss_sum, struct fsdp_err *err);
    /* Forward pass of FSDP_EVAL giving logits (B, T, V) instead of a loss, fp32, in memory of the
     * device; for comparison. As run: between begin and end, collective, enqueues. */
    int (*logits)(struct model *model, struct fsdp *f, const struct model_batch *batch, float *out,
                  struct fsdp_err *err);
    /* Model FLOPs of a token in forward and backward passes at length T: products of matrices and
     * attention, without recomputation (plan/flops.h). */
    double (*flops_per_token)(const struct model *model, int T);
    /* The dimensions alone (plan/decoder.h). Returns false where they do not describe the model: a
     * mixture of experts. */
    bool (*dimensions)(const struct model *model, struct decoder *out);
    void (*info)(const struct model *model, struct model_info *out);
    struct model_router (*router)(const struct model *model);

    /* ---- generation ---- */

    /* param[i] is parameter i of the tree that describe made, whole, in fp32, in memory of the
     * lane's device, which is the model's; borrowed, like lane. Sequences are empty. Local. */
    int (*decoder_create)(struct model_decoder **out, const struct model *model,
                          const float *const *param, struct fsdp_lane *lane,
                          const struct model_decoder_opts *opts, struct fsdp_err *err);
    void (*decoder_destroy)(struct model_decoder *decoder);
    /* Bytes of keys and values, and of all memory that the decoder has. Pure. */
    void (*decoder_nbytes)(const struct model_decoder *decoder, size_t *cache, size_t *all);
    /* Forgets the tokens of a sequence after its first ntokens, so that another can take its place,
     * or continue what both have in common. Returns how many it then has. Local. */
    int (*decoder_truncate)(struct model_decoder *decoder, int sequence, int ntokens);
    /* Appends ntokens tokens to a sequence and gives the logits that follow each of them
     * (ntokens, V), or with `all` false those after the last one (V). Tokens and logits are the
     * host's memory. Local, blocks. */
    int (*decode)(struct model_decoder *decoder, int sequence, const int32_t *tokens, int ntokens,
                  bool all, float *logits, struct fsdp_err *err);
    /* Appends one token to every sequence, in one reading of the weights, and gives the logits that
     * follow (nsequences, V). Where a token is negative nothing is appended, and its logits are to
     * be ignored; products have the same shapes nevertheless, so that what a sequence gets does not
     * depend on how many others there are. Local, blocks. */
    int (*decode_each)(struct model_decoder *decoder, const int32_t *tokens, float *logits,
                       struct fsdp_err *err);
};

/* Decoder-only language models, of which each family is a row of families.c. */
extern const struct model_ops model_decoder_ops;

/* The operations of the model that config.json names. FSDP_EUNSUPPORTED: its model_type is not
 * supported; the error says why, or lists the known ones. */
int model_find(const struct model_ops **out, const char *config_json_path, struct fsdp_err *err);

#endif
