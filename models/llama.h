/* SPDX-License-Identifier: Apache-2.0 */
/* llama.h: what the files of the Llama model share. Private to models/. */
#ifndef LLAMA_H
#define LLAMA_H

#include "model.h"
#include "nn/nn.h"

struct llama_config {
    int dim, ffn, nlayers, nheads, nkv_heads, head_dim, vocab, max_seq_len;
    double norm_eps, init_std;
    bool tied;
    struct model_info info;
};

/* Reads and checks config.json. *inv_freq: head_dim / 2 rotary frequencies, freed by the caller. */
int llama_config_read(struct llama_config *out, double **inv_freq, const char *path,
                      struct fsdp_err *err);

/* The weights of a decoder layer, in their order in the flat buffer. */
enum llama_weight {
    LLAMA_NORM1,
    LLAMA_Q,
    LLAMA_K,
    LLAMA_V,
    LLAMA_O,
    LLAMA_NORM2,
    LLAMA_GATE,
    LLAMA_UP,
    LLAMA_DOWN,
    LLAMA_NWEIGHTS
};

struct model {
    struct llama_config config;
    const struct nn_ops *nn;
    double *inv_freq;
    /* Indices in the module tree, set by describe. */
    int root, embed, head;
    int *layer;                         /* [nlayers] module */
    int (*layer_param)[LLAMA_NWEIGHTS]; /* [nlayers] */
    int embed_param, norm_param, head_param;
    int max_B, max_T; /* the micro-batch that activations were declared for; 0: not described */
};

/* One decoder layer at work on B sequences: Tq new positions that see Tk. Shapes: R = B*Tq rows,
 * NHD = nheads * head_dim, KVD = nkv_heads * head_dim. */
struct llama_block {
    struct fsdp_lane *lane;
    const float *w[LLAMA_NWEIGHTS];
    float *dw[LLAMA_NWEIGHTS]; /* backward */
    float dw_beta;
    const float *cos, *sin; /* (Tq, head_dim / 2) */
    int B, Tq, Tk;
    /* The residual stream. Forward: `in` is the block's input; `out` holds the same values when the
     * attention's output is added (it is `in` itself, or in_copy), and the block's output at the
     * end. Backward: `in` is the input again, out goes from the gradient of the output to that of
     * the input. */
    const float *in;
    float *out;     /* (R, C) */
    float *in_copy; /* (R, C) NULL: not kept */
    float *mid;     /* (R, C) the stream between attention and MLP; NULL: not kept */
    /* Kept for the backward pass, which overwrites them. */
    float *rstd1, *rstd2; /* (R) */
    float *q, *o;         /* (R, NHD) */
    float *k, *v;         /* (B, Tk, KVD) */
    float *k_new, *v_new; /* their last Tq positions */
    float *lse;           /* (B, nheads, Tq) */
    float *gate, *up;     /* (R, F) */
    /* Scratch. */
    float *norm; /* (R, C) */
    float *act;  /* (R, max(F, NHD)) */
    float *attn; /* attention_work_nelem */
};

/* Enqueue. With mlp_out false the block's output is not wanted, only what backward needs. */
int llama_block_forward(const struct model *m, const struct llama_block *blk, bool mlp_out,
                        struct fsdp_err *err);
int llama_block_backward(const struct model *m, const struct llama_block *blk,
                         struct fsdp_err *err);

/* Cuts a memory area into aligned pieces; with base NULL it only counts. */
struct llama_carve {
    void *base;
    size_t nbytes;
};
void *llama_carve(struct llama_carve *carve, size_t nelem, size_t elem_nbytes);

/* llama_decode.c */
int llama_decoder_create(struct model_decoder **out, const struct model *model,
                         const float *const *param, struct fsdp_lane *lane, int max_tokens,
                         struct fsdp_err *err);
void llama_decoder_destroy(struct model_decoder *decoder);
int llama_decode(struct model_decoder *decoder, const int32_t *tokens, int ntokens, bool all,
                 float *logits, struct fsdp_err *err);

/* Refuses token ids outside the vocabulary, naming row and position. ncols tokens a row. */
int llama_check_tokens(const struct model *m, const int32_t *tokens, int nrows, int ncols,
                       struct fsdp_err *err);

#endif
