/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stack.h: what language models have in common that are an embedding, a stack of equal layers and a
 * head: their modules, their memory, the order of a pass, the loss, generation. A family adds its
 * weights' names and shapes, and the arithmetic of a layer (llama.c, gpt2.c). Private to models/.
 */
#ifndef STACK_H
#define STACK_H

#include "model.h"
#include "nn/nn.h"

struct hf_config;

enum { STACK_MAX_DIM = 1 << 20, STACK_MAX_VOCAB = 1 << 24, STACK_MAX_LAYERS = 4096 };
enum { STACK_MAX_SEQ = 1 << 24, STACK_MAX_WEIGHTS = 12 };

/* The modules of a layer: itself, which has the norms, and the two inside it. */
enum stack_part { STACK_PART_LAYER, STACK_PART_ATTENTION, STACK_PART_MLP, STACK_NPARTS };

struct stack_config {
    int dim, ffn, nlayers, nheads, nkv_heads, head_dim, vocab, max_seq_len;
    double norm_eps, init_std;
    bool tied;
    double embed_drop, attn_drop, resid_drop; /* probabilities of dropout */
    struct model_info info;
};

/* A weight (rows, cols), or a vector (rows) where cols is 0. */
struct stack_weight {
    const char *name; /* after the layer's, with its dot */
    int rows, cols;
    struct fsdp_init init;
};

/* Weight and bias of a norm. b and db may be NULL. */
struct stack_norm {
    void *y;            /* backward: in dy, out y */
    float *mean, *rstd; /* as in nn.h; mean and x_copy may be NULL */
    void *x_copy;
    const void *x, *w, *b;
    int rows;
    void *dx, *dw, *db; /* backward */
    float dx_beta, dw_beta;
    enum fsdp_dtype dtype, w_dtype, dw_dtype;
};

struct stack_block;

struct stack_family {
    const char *root_class, *embed_class, *head_class;
    /* The names of a layer's modules after the layer's own, with their dots, and their classes. A
     * weight whose name begins with one of them is that module's; the others are the layer's. */
    struct {
        const char *name, *class_name;
    } part[STACK_NPARTS];
    /* The embedding's, the head's and the layer's, then NULL: stack_wrap_classes. */
    const char *unit_classes[4];
    const char *embed_module, *embed_weight;
    const char *position_weight; /* learned positions, in the embedding's module; NULL: none */
    const char *layer_module;    /* and the layer's number */
    const char *norm_weight, *norm_bias; /* of the last norm; norm_bias NULL: none */
    const char *max_seq_len_key;         /* in config.json */
    bool gated;                          /* the MLP has a gate next to `up` */
    bool drops_stream; /* has dropout after the embedding and each branch, not in attention alone */
    int nweights;      /* of a layer, at most STACK_MAX_WEIGHTS */
    void (*weights)(const struct stack_config *c, struct stack_weight *out);
    int (*norm_forward)(const struct model *m, struct fsdp_lane *lane,
                        const struct stack_norm *norm, struct fsdp_err *err);
    int (*norm_backward)(const struct model *m, struct fsdp_lane *lane,
                         const struct stack_norm *norm, struct fsdp_err *err);
    /* A layer in two halves, each from its norm to its addition to blk->out. They enqueue. With
     * `add` false nothing is added: only what backward needs is made. */
    int (*attention_forward)(const struct model *m, const struct stack_block *blk, bool add,
                             struct fsdp_err *err);
    int (*mlp_forward)(const struct model *m, const struct stack_block *blk, bool add,
                       struct fsdp_err *err);
    /* The end of attention_forward, from q, k and v on. */
    int (*attend)(const struct model *m, const struct stack_block *blk, bool add,
                  struct fsdp_err *err);
    int (*attention_backward)(const struct model *m, const struct stack_block *blk,
                              struct fsdp_err *err);
    int (*mlp_backward)(const struct model *m, const struct stack_block *blk, struct fsdp_err *err);
};

struct model {
    const struct stack_family *family;
    struct stack_config config;
    const struct nn_ops *nn;
    struct model_dtypes dtypes;
    double *inv_freq; /* head_dim / 2 rotary frequencies; NULL: no rotary positions */
    /* Indices in the module tree, set by describe. */
    int root, embed, head;
    int (*part)[STACK_NPARTS]; /* [nlayers] */
    int *layer_param;          /* [nlayers][nweights] */
    enum stack_part weight_part[STACK_MAX_WEIGHTS];
    int embed_param, position_param, norm_param, norm_bias_param, head_param;
    int max_B, max_T; /* the micro-batch that activations were declared for; 0: not described */
};

/* A weight at work. */
struct stack_param {
    const void *w;
    void *dw; /* backward; NULL: not wanted */
    float dw_beta;
    enum fsdp_dtype w_dtype, dw_dtype; /* as in nn.h */
};

/* One layer at work on B sequences: Tq new positions that see Tk. Shapes: R = B*Tq rows,
 * NHD = nheads * head_dim, KVD = nkv_heads * head_dim, F = ffn. */
struct stack_block {
    struct fsdp_lane *lane;
    enum fsdp_dtype dtype; /* as in nn.h */
    struct stack_param param[STACK_MAX_WEIGHTS];
    const float *cos, *sin; /* (Tq, head_dim / 2); NULL without rotary positions */
    /* (B, Tq) where each position's document begins, and its place there; NULL: one document. */
    const int32_t *starts, *positions;
    int layer, B, Tq, Tk;
    const struct model_batch *drop; /* its seed and row; NULL: no dropout */
    /* The residual stream. Forward: `in` is the block's input; `out` holds the same values when the
     * attention's output is added (it is `in` itself, or in_copy), and the block's output at the
     * end. Backward: `in` is the input again, out goes from the gradient of the output to that of
     * the input. */
    const void *in;
    void *out;     /* (R, C) */
    void *in_copy; /* (R, C) NULL: not kept */
    void *mid;     /* (R, C) the stream between attention and MLP; NULL: not kept */
    /* Kept for the backward pass, which overwrites them. */
    float *mean1, *mean2; /* (R); NULL where the norm has no bias */
    float *rstd1, *rstd2; /* (R) */
    void *q, *o;          /* (R, NHD) */
    void *k, *v;          /* (B, Tk, KVD) */
    void *k_new, *v_new;  /* their last Tq positions */
    float *lse;           /* (B, nheads, Tq) */
    /* Generation: keys and values lie elsewhere. The decoder keeps k_new and v_new there, and makes
     * o of q and of what it has. NULL: attention is over k and v. */
    int (*kept_attention)(struct model_decoder *decoder, const struct stack_block *blk,
                          struct fsdp_err *err);
    struct model_decoder *decoder;
    void *gate, *up;      /* (R, F); gate NULL where the MLP has none */
    /* Scratch. */
    void *norm;  /* (R, C) */
    void *act;   /* (R, max(F, NHD)) */
    float *work; /* of attention and of products, which do not run at once */
};

/* The block's attention, for attention_forward and attention_backward. */
struct nn_attention stack_attention(const struct model *m, const struct stack_block *blk);
/* From q, k and v to o. */
int stack_attention_forward(const struct model *m, const struct stack_block *blk,
                            struct fsdp_err *err);

/* Where a layer's dropouts are. */
enum stack_site { STACK_EMBED, STACK_ATTENTION, STACK_ATTENTION_OUT, STACK_MLP_OUT };
/* Dropout with probability p at one place of the model, as the batch decides; none where that is
 * NULL. */
struct nn_drop stack_drop(const struct model_batch *batch, int layer, enum stack_site site,
                          double p);
/* blk->out += drop(blk->norm), a branch's output on its way back to the residual stream. */
int stack_drop_branch(const struct model *m, const struct stack_block *blk, enum stack_site site,
                      struct fsdp_err *err);
/* The gradient of that branch's output: blk->out, or where it has dropout blk->norm. */
int stack_drop_gradient(const void **dy, const struct model *m, const struct stack_block *blk,
                        enum stack_site site, struct fsdp_err *err);
/* Has the block's branch dropout? */
bool stack_drops_branch(const struct model *m, const struct stack_block *blk);

/* Of the root module; all live from the start of forward to the end of backward. */
struct stack_root_mem {
    int32_t *inputs, *targets;   /* (B*T) */
    int32_t *starts, *positions; /* (B*T) */
    float *cos, *sin;            /* (T, D/2), where they are rotary */
    void *stream;                /* (B*T, C) */
};
struct stack_head_mem {
    void *norm;         /* (chunk, C) */
    float *mean, *rstd; /* (chunk) */
    float *work;        /* of products */
    void *logits;       /* (chunk, V) in the output's type, and their gradients */
    int ld;             /* elements from a row of logits to the next */
};

/* Cuts a memory area into aligned pieces; with base NULL it only counts. */
struct stack_carve {
    void *base;
    size_t nbytes;
};
void *stack_carve(struct stack_carve *carve, size_t nelem, size_t elem_nbytes);

/* Memory layouts: with NULL areas they only count. A part's fills its own fields of blk. */
size_t stack_root_layout(struct stack_root_mem *mem, const struct model *m, int B, int T,
                         void *saved);
struct fsdp_act_bytes stack_part_layout(struct stack_block *blk, const struct model *m,
                                        enum stack_part part, int B, int T,
                                        const struct fsdp_view *view);
size_t stack_head_layout(struct stack_head_mem *mem, const struct model *m, int rows, void *work);
/* Rows of logits at once. */
int stack_head_chunk(const struct model *m, int rows);

/* ---- for families ---------------------------------------------------------------------------- */

/* A model of this family, with config and inv_freq as read; takes inv_freq, also when it fails. */
int stack_create(struct model **out, const struct stack_family *family,
                 const struct stack_config *config, double *inv_freq, struct fsdp_err *err);
/* The keys of config.json that every family has: dtype, token ids, tying. */
int stack_config_read(struct stack_config *c, const struct hf_config *hf, struct fsdp_err *err);

/* The rest of struct model_ops. */
void stack_destroy(struct model *m);
void stack_set_dtypes(struct model *m, const struct model_dtypes *dtypes);
int stack_describe(struct model *m, struct fsdp_module_tree *tree, int B, int T,
                   struct fsdp_err *err);
/* Embedding and head are units of their own where they are not tied: together in the root's unit
 * they would be gathered from the first module to the last, and reduced after all others. Small
 * ones stay there: each unit costs two gathers and a reduction a micro-step, with a latency (some
 * 20 us) in which a network moves about a MiB. */
enum { STACK_UNIT_MIN_NELEM = 1 << 18 };
const char *const *stack_wrap_classes(const struct model *m);
int stack_set_device(struct model *m, const struct fsdp_device *device, struct fsdp_err *err);
void stack_set_dropout(struct model *m, double p);
int stack_vocab_size(const struct model *m);
int stack_max_seq_len(const struct model *m);
int stack_run(struct model *m, struct fsdp *f, const struct model_batch *batch, bool train,
              double *loss_sum, struct fsdp_err *err);
int stack_logits(struct model *m, struct fsdp *f, const struct model_batch *batch, float *out,
                 struct fsdp_err *err);
double stack_flops_per_token(const struct model *m, int T);
void stack_info(const struct model *m, struct model_info *out);
int stack_decoder_create(struct model_decoder **out, const struct model *model,
                         const float *const *param, struct fsdp_lane *lane,
                         const struct model_decoder_opts *opts, struct fsdp_err *err);
void stack_decoder_destroy(struct model_decoder *decoder);
void stack_decoder_nbytes(const struct model_decoder *decoder, size_t *cache, size_t *all);
int stack_decoder_truncate(struct model_decoder *decoder, int sequence, int ntokens);
int stack_decode(struct model_decoder *decoder, int sequence, const int32_t *tokens, int ntokens,
                 bool all, float *logits, struct fsdp_err *err);
int stack_decode_each(struct model_decoder *decoder, const int32_t *tokens, float *logits,
                      struct fsdp_err *err);
/* All of them but .create and .family. */
#define STACK_MODEL_OPS                                                                            \
    .wrap_classes = stack_wrap_classes, .destroy = stack_destroy, .set_dtypes = stack_set_dtypes,  \
    .describe = stack_describe, .set_device = stack_set_device, .set_dropout = stack_set_dropout,  \
    .vocab_size = stack_vocab_size, .max_seq_len = stack_max_seq_len, .run = stack_run,            \
    .logits = stack_logits, .flops_per_token = stack_flops_per_token, .info = stack_info,          \
    .decoder_create = stack_decoder_create, .decoder_destroy = stack_decoder_destroy,              \
    .decoder_nbytes = stack_decoder_nbytes, .decoder_truncate = stack_decoder_truncate,            \
    .decode = stack_decode, .decode_each = stack_decode_each

/* ---- between stack*.c ------------------------------------------------------------------------ */

/* Refuses token ids outside the vocabulary, naming row and position. ncols tokens a row. */
int stack_check_tokens(const struct model *m, const int32_t *tokens, int nrows, int ncols,
                       struct fsdp_err *err);

#endif
