/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stack.h: a decoder-only language model: an embedding, a stack of layers and a head; their
 * modules, their memory, the order of a pass, the loss, generation. Its traits say what a layer
 * computes (traits.h, layer.h). Private to models/.
 */
#ifndef STACK_H
#define STACK_H

#include "family.h"

/* Those of a family, of each linear map's adapter A, B and magnitudes, and of the experts' two
 * parameters A and B. */
enum { STACK_MAX_BASE = 24, STACK_MAX_LINEAR = 7, STACK_MAX_EXPERT_LORA = 4 };
enum {
    STACK_MAX_WEIGHTS = STACK_MAX_BASE + 3 * STACK_MAX_LINEAR + STACK_MAX_EXPERT_LORA,
    STACK_NAME_NBYTES = 64
};

/* The modules of a layer: itself, which has the norms, and the two inside it. */
enum stack_part { STACK_PART_LAYER, STACK_PART_ATTENTION, STACK_PART_MLP, STACK_NPARTS };

/* What a layer's weights are for. Several slots may be parts of one weight. */
enum stack_slot {
    STACK_NORM1, /* before attention, behind it, before the MLP, behind it */
    STACK_POST1,
    STACK_NORM2,
    STACK_POST2,
    STACK_Q_NORM,
    STACK_K_NORM,
    STACK_SINKS,
    STACK_Q,
    STACK_K,
    STACK_V,
    STACK_QKV, /* TRAITS_FUSED_HEADS */
    STACK_O,
    STACK_GATE,
    STACK_UP,
    STACK_DOWN,
    STACK_ROUTER,
    STACK_NSLOTS
};

/* What the matrices of an expert are for. Two may be parts of one; where their columns alternate,
 * GATE is both. */
enum stack_expert { STACK_EXPERT_GATE, STACK_EXPERT_UP, STACK_EXPERT_DOWN, STACK_NEXPERTS };
enum { STACK_MAX_EXPERT_WEIGHTS = 4 }; /* with biases */

/* An adapter's rows of A, and what B A is multiplied with. */
struct stack_rank {
    int r;
    double scale;
};

/* A weight (rows, cols), or a vector (rows) where cols is 0. */
struct stack_weight {
    char name[STACK_NAME_NBYTES]; /* after the layer's, with its dot */
    enum stack_part part;
    int rows, cols;
    struct fsdp_init init;
    bool by_expert;         /* of an adapter: A is (experts r, cols), B is (rows, r experts) */
    struct stack_rank rank; /* of an adapter's A */
    struct nn_f8 f8;        /* of its products; zeros: they are not in 8 bits */
    bool f8_gathered;       /* then: it is gathered in E4M3 */
};

/* Where a slot's values are: in which weight, and of a matrix which of its nout outputs. */
struct stack_place {
    int weight, bias; /* of the layer's weights; -1: none */
    int first, nin, nout;
    int lora; /* the weight that is A of its adapter, before B and magnitudes; 0: none */
};

/* A matrix (rows, cols) of each expert, or a vector (rows) where cols is 0: a weight of each, in
 * the order of the experts, or one of (experts, rows, cols). */
struct stack_expert_weight {
    char name[STACK_NAME_NBYTES]; /* %d stands for the expert, where each has its own */
    bool apart;
    int rows, cols;
    struct fsdp_init init;
    struct nn_f8 f8;  /* of a matrix's products; zeros: they are not in 8 bits */
    bool f8_gathered; /* it travels as codes, which the products take */
};

/* Weight and bias of a norm over `dim` elements. b and db may be NULL. */
struct stack_norm {
    void *y;            /* backward: in dy, out y */
    float *mean, *rstd; /* as in nn.h; mean and x_copy may be NULL */
    void *x_copy;
    const void *x, *w, *b;
    int rows, dim;
    void *dx, *dw, *db; /* backward */
    float dx_beta, dw_beta;
    enum fsdp_dtype dtype, w_dtype, dw_dtype;
};
int stack_norm_forward(const struct model *m, struct fsdp_lane *lane, const struct stack_norm *norm,
                       struct fsdp_err *err);
int stack_norm_backward(const struct model *m, struct fsdp_lane *lane,
                        const struct stack_norm *norm, struct fsdp_err *err);

/* Cosines and sines of positions: of keys (and queries) by kind, and of queries where they grow. */
enum { STACK_ROPE_QUERIES = TRAITS_NROPES, STACK_NTABLES };
struct stack_tables {
    float *cos[STACK_NTABLES], *sin[STACK_NTABLES]; /* (T, rope dim / 2); NULL: not used */
};

struct model {
    const struct family *family;
    struct traits traits;
    const struct nn_ops *nn;
    struct model_dtypes dtypes;
    int nbase, nweights; /* of a layer: without adapters, and with them */
    struct model_lora lora;
    const struct fsdp_tensor *carried; /* [ncarried] */
    int ncarried;
    struct stack_weight weight[STACK_MAX_WEIGHTS];
    struct stack_place place[STACK_NSLOTS];
    int nexpert_weights;
    struct stack_expert_weight expert_weight[STACK_MAX_EXPERT_WEIGHTS];
    struct stack_place expert_place[STACK_NEXPERTS];
    const char *unit_classes[5]; /* the embedding's, the head's, the experts', the layer's, NULL */
    /* Indices in the module tree, set by describe. */
    int root, embed, head;
    int (*part)[STACK_NPARTS]; /* [nlayers] */
    int *layer_param;          /* [nlayers][nweights] */
    /* [nlayers] of expert 0; the others' follow */
    int (*expert_param)[STACK_MAX_EXPERT_WEIGHTS];
    int32_t *expert_first; /* [nlayers][experts + 1] of the pass, on a GPU */
    int embed_param, position_param, norm_param, norm_bias_param, head_param;
    int most_r;     /* of all adapters' ranks */
    bool head_lora; /* has the head an adapter? */
    struct stack_rank head_rank;
    int head_lora_param[3]; /* its A, B and, of DoRA, magnitudes */
    bool is_packed;         /* rows may hold several documents */
    bool drop_fast;         /* as in nn_attention */
    int max_B, max_T; /* the micro-batch that activations were declared for; 0: not described */
    /* Of that micro-batch, and of smaller ones: documents that attention is planned for, 0 where it
     * is not packed, and elements of nn_attention.work. */
    int max_documents;
    size_t attention_nelem;
    struct stack_graphs *graphs; /* NULL: layers run without CUDA graphs */
};

/* A block's bytes are compared (stack_graph.c): nothing may lie between its members. */
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"

/* A weight at work. */
struct stack_param {
    const void *w;
    void *dw; /* backward; NULL: not wanted */
    float dw_beta;
    enum fsdp_dtype w_dtype, dw_dtype; /* as in nn.h */
    int32_t fill;
    const double *w_amax; /* likewise */
};

/* Bytes of an element as it lies there: codes have one. */
static inline size_t stack_weight_elem(const struct stack_param *w)
{
    return w->w_amax ? 1 : fsdp_dtype_nbytes(w->w_dtype);
}
static inline const void *stack_weight_at(const struct stack_param *w, size_t nelem)
{
    return w->w_amax ? (const uint8_t *)w->w + nelem : nn_at(w->w, w->w_dtype, nelem);
}

/* Elements of one expert's. */
static inline size_t stack_expert_nelem(const struct stack_expert_weight *w)
{
    return (size_t)w->rows * (size_t)(w->cols ? w->cols : 1);
}

/* A matrix of all experts at work: expert 0's, and how far apart they lie; or where each is. */
struct stack_experts {
    struct stack_param first;
    size_t stride, grad_stride; /* elements */
    size_t amax_step;           /* between the experts' w_amax; 0: they have one */
    const void *const *each;    /* generation: [experts], the decoder's; NULL: by stride */
};

/* How rows go to experts; places and slots are those of nn.h. R rows, K experts of each. */
struct stack_routing {
    float *probs;                  /* (R, experts) */
    float *weight;                 /* (R, K) */
    float *lse;                    /* (R) */
    int32_t *expert;               /* (R, K) */
    int32_t *first, *slot, *place; /* (experts + 1), (R, K), (R, K) */
    int32_t *first_host; /* the host's, from forward to backward; NULL: none, as in generation */
};

/* Of a micro-batch: how often each expert of each layer was chosen, (layers, experts), and then the
 * sums of probabilities, (experts), and of squares of log sum exp of the router's logits; over all
 * ranks once all layers ran. */
struct stack_load {
    double *counts, *sums, *squares;
    float *balance; /* (experts) the gradient of the load-balance loss by probabilities */
    int rows;       /* that count: those before the padding; 0: nothing is counted */
    int32_t fill;
};

/* The norms over the stream's width in a layer, in the order of their slots. */
enum { STACK_NNORMS = STACK_POST2 + 1 };

/* One layer at work on B sequences: Tq new positions that see Tk. Shapes: R = B*Tq rows,
 * NHD = nheads * head_dim, KVD = nkv_heads * head_dim, F = ffn. */
struct stack_block {
    struct fsdp_lane *lane;
    struct stack_param param[STACK_MAX_WEIGHTS];
    struct stack_tables tables;
    /* (B, Tq) where each position's document begins, NULL: a row is one document; its place there,
     * NULL: its place in the row. */
    const int32_t *starts, *positions;
    int documents; /* in all rows; 0: not told, as in generation, or more than planned for */
    int layer, B, Tq, Tk;
    enum fsdp_dtype dtype;          /* as in nn.h */
    const struct model_batch *drop; /* its seed and row; NULL: no dropout */
    /* The residual stream. Forward: `in` is the block's input; `out` holds the same values when the
     * attention's output is added (it is `in` itself, or in_copy), and the block's output at the
     * end. Backward: `in` is the input again, out goes from the gradient of the output to that of
     * the input. */
    const void *in;
    void *out;     /* (R, C) */
    void *in_copy; /* (R, C) NULL: not kept */
    /* (R, C) the stream between attention and MLP; NULL: not kept. Where both read the layer's
     * input: in forward a copy of it, if there is no other; in backward the output's gradient. */
    void *mid;
    /* Kept for the backward pass, which overwrites them. */
    float *mean[STACK_NNORMS], *rstd[STACK_NNORMS]; /* (R); mean NULL where norms have no bias */
    void *q, *o;                                    /* (R, NHD) */
    void *k, *v;                                    /* (B, Tk, KVD) */
    void *k_new, *v_new;                            /* their last Tq positions */
    void *q_raw, *k_raw;    /* q and k_new before their norms; NULL: they have none */
    float *q_rstd, *k_rstd; /* (R) or (R, heads) */
    float *lse;             /* (B, nheads, Tq) */
    void *attn_y, *mlp_y;   /* (R, C) what the norms behind attention and MLP read; NULL: none */
    /* Generation: keys and values lie elsewhere. The decoder keeps k_new and v_new there, and makes
     * o of q and of what it has. NULL: attention is over k and v. */
    int (*kept_attention)(struct model_decoder *decoder, const struct stack_block *blk,
                          struct fsdp_err *err);
    struct model_decoder *decoder;
    void *gate, *up; /* (R, F); gate NULL where the MLP has none */
    /* A mixture of experts, of Fe elements. */
    struct stack_experts experts[STACK_MAX_EXPERT_WEIGHTS];
    struct stack_routing routing;
    struct stack_load load;        /* rows 0 where nothing is counted, as in generation */
    bool balanced, fill[3];        /* backward: load.balance holds */
    float z_loss;                  /* backward: of one position and layer, times its factor */
    const float *loss_scale;       /* of the view */
    void *expert_gate, *expert_up; /* (R K, Fe) by place */
    void *places;                  /* scratch (R K, C) */
    void *hidden, *d_hidden;       /* scratch (R K, Fe), one behind the other */
    /* Scratch of experts' adapters, NULL: there are none. What A gives, and its gradient; and B and
     * its gradient with the experts outermost, (experts, rows of B, r). */
    void *expert_low, *expert_d_low; /* (R K, r) */
    void *expert_b, *expert_db;
    void *router_logits; /* scratch (R, experts), and their gradients */
    float *d_weight;     /* scratch (R, K) */
    /* Scratch. */
    void *norm; /* (R, C) */
    void *act;  /* (R, stack_act_width) */
    void *low,
        *d_low;     /* (R, r) of adapters: what A gives, and its gradient; NULL: there are none */
    void *low_in;   /* (R, widest input of an adapter) with its dropout; NULL: it has none */
    void *wide;     /* (R, widest output of an adapter) of DoRA; NULL: it is not used */
    float *lengths; /* (widest output of an adapter) of weights; NULL likewise */
    float *work;    /* of attention and of products, which do not run at once */
    /* With products in 8 bits: nn_linear.w_shared of the maps that run; else NULL. */
    uint32_t *w_shared;
};
#pragma GCC diagnostic pop

/* The block's attention. */
struct nn_attention stack_attention(const struct model *m, const struct stack_block *blk);
/* From q, k and v to o. */
int stack_attention_forward(const struct model *m, const struct stack_block *blk,
                            struct fsdp_err *err);

/* The multiplier of the embedding, rounded to this type, as transformers does. */
float stack_embed_scale(const struct model *m, enum fsdp_dtype dtype);
/* Scale and soft cap of the logits (nelem), where the model has them. Enqueues. */
int stack_last_step(const struct model *m, struct fsdp_lane *lane, float *logits, size_t nelem,
                    struct fsdp_err *err);

/* Where a layer's dropouts are. */
enum stack_site {
    STACK_EMBED,
    STACK_ATTENTION,
    STACK_ATTENTION_OUT,
    STACK_MLP_OUT,
    STACK_LORA /* and the adapter's weight */
};
/* Dropout with probability p at one place of the model, as the batch decides; none where that is
 * NULL. */
struct nn_drop stack_drop(const struct model_batch *batch, int layer, enum stack_site site,
                          double p);

/* Of the root module; all live from the start of forward to the end of backward. */
struct stack_root_mem {
    int32_t *inputs, *targets;   /* (B*T) */
    int32_t *starts, *positions; /* (B*T) */
    float *weights;              /* (B*T) of positions' losses */
    struct stack_tables tables;  /* of T positions */
    void *stream;                /* (B*T, C) */
    struct stack_load load;      /* where there are experts */
};
struct stack_head_mem {
    void *norm;         /* (chunk, C) */
    float *mean, *rstd; /* (chunk) */
    float *work;        /* of products */
    void *logits;       /* (chunk, V) in the output's type, and their gradients */
    int ld;             /* elements from a row of logits to the next */
    /* Of the head's adapter, as a block's. */
    void *low, *d_low; /* (chunk, r) */
    void *low_in;      /* (chunk, C) */
    void *wide;        /* (chunk, V) of DoRA, as logits; NULL: it is not used */
    float *lengths;    /* (V) likewise, of the whole pass */
};

/* Some rows of the stream at the head: their last norm is in mem->norm. */
struct stack_head_rows {
    const struct model *m;
    const struct fsdp_view *view;
    const struct stack_head_mem *mem;
    const struct model_batch *batch;
    int first, rows;
};
/* Of rows (rows, dim) with the head's weight: (rows, vocab), ld apart. */
struct nn_linear stack_head_linear(const struct stack_head_rows *rows, int ld);
/* The head's weight alone: logits = x Wᵀ, ld apart; dx = dy W + beta dx, dy as mem->logits. */
int stack_head_product(const struct stack_head_rows *rows, void *logits, int ld, const void *x,
                       struct fsdp_err *err);
int stack_head_input(const struct stack_head_rows *rows, void *dx, const void *dy, float beta,
                     struct fsdp_err *err);
/* With its adapter. begin: before any rows of a pass; it does nothing where the head has none. The
 * logits of mem->norm. From the gradients in mem->logits: those of the adapter, while mem->norm is
 * what it was; and then that of mem->norm, in its place. */
int stack_head_lora_begin(const struct stack_head_rows *rows, struct fsdp_err *err);
int stack_head_lora_forward(const struct stack_head_rows *rows, void *logits, int ld,
                            struct fsdp_err *err);
int stack_head_lora_weight(const struct stack_head_rows *rows, struct fsdp_err *err);
int stack_head_lora_input(const struct stack_head_rows *rows, struct fsdp_err *err);

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
/* A mixture of experts on R rows: what backward needs, and scratch. */
void stack_experts_layout(struct stack_block *blk, const struct model *m, size_t rows,
                          enum fsdp_dtype dtype, struct stack_carve *kept,
                          struct stack_carve *scratch);
size_t stack_head_layout(struct stack_head_mem *mem, const struct model *m, int rows, void *work);
/* Rows of logits at once. */
int stack_head_chunk(const struct model *m, int rows);
/* Elements of nn_attention.work that any layer takes: B, Tq, Tk and dtype are read of the shape. */
size_t stack_attention_work(const struct model *m, struct nn_attention shape);
/* Elements of a row of a block's `act`. */
size_t stack_act_width(const struct model *m);
/* Elements of a row of q, k and v side by side. */
size_t stack_joined_width(const struct model *m);
void stack_tables_layout(struct stack_tables *tables, const struct model *m, int T,
                         struct stack_carve *area);
/* Computes the tables that the model uses, for T positions. Enqueues. */
int stack_tables_fill(const struct stack_tables *tables, const struct model *m, int T,
                      struct fsdp_lane *lane, struct fsdp_err *err);

/* ---- a layer's operators --------------------------------------------------------------------- */

/* What runs between entering and leaving a module of a layer (layer.h). */
enum stack_list {
    STACK_ATTENTION_FORWARD,
    STACK_ATTEND,
    STACK_MLP_FORWARD,
    STACK_ATTENTION_BACKWARD,
    STACK_MLP_BACKWARD,
    STACK_NLISTS
};
/* `add` as in layer.h; false for a backward list. As one launch of a CUDA graph, where the model
 * has them and one was captured from the same block. Enqueues. */
int stack_run_list(struct model *m, const struct stack_block *blk, enum stack_list list, bool add,
                   struct fsdp_err *err);
/* The same of any function that reads nothing else, under the name of a list. */
struct stack_list_call {
    enum stack_list list;
    bool add;
    int (*run)(const struct model *m, const struct stack_block *blk,
               const struct stack_list_call *call, struct fsdp_err *err);
};
int stack_graph_run(struct model *m, const struct stack_block *blk,
                    const struct stack_list_call *call, struct fsdp_err *err);
/* model_ops.set_graphs */
int stack_set_graphs(struct model *m, struct fsdp_err *err);
struct stack_graph_counts {
    int64_t captured, launched;
};
struct stack_graph_counts stack_graph_counts(const struct model *m);
/* After the lanes' last work. */
void stack_close_graphs(struct model *m);

/* ---- a model --------------------------------------------------------------------------------- */

/* The weights of a layer and their places, from the traits. */
void stack_list_weights(struct model *m);

/* Does a target of model_lora name the map with this weight of a layer? */
bool stack_is_target(const struct model *m, const char *target, int weight);

/* Does a target of model_f8 name the experts' matrices of this slot? */
bool stack_is_expert_target(const struct model *m, const char *target, enum stack_expert slot);

/* Adds the weights of adapters, as m->lora says. */
int stack_list_lora(struct model *m, struct fsdp_err *err);
/* The head's name in transformers, and so in the names of its adapter. */
const char *stack_head_module(const struct model *m);
/* What an A of `nin` inputs begins as. */
struct fsdp_init stack_lora_init(int nin);
/* Where adapters of the experts are: which outputs of B are this slot's, and B's rows. */
struct stack_expert_lora {
    int first, rows;
};
struct stack_expert_lora stack_expert_lora(const struct model *m, enum stack_expert slot);
/* The widest input and output of an adapter of the layers. */
struct stack_lora_widths {
    int nin, nout;
};
struct stack_lora_widths stack_lora_widths(const struct model *m);
/* Sets info->parameters. */
void stack_list_parameters(const struct model *m, struct model_info *info);
/* Is a parameter of the model without adapters trained? */
bool stack_is_trained(const struct model *m, const char *name);
/* FSDP_EINVAL names an item of modules_to_save that fits no parameter of the tree. */
int stack_check_saved(const struct model *m, const struct fsdp_module_tree *tree,
                      struct fsdp_err *err);

/* A model of the family that config.json names. */
int stack_create(struct model **out, const char *config_json_path, struct fsdp_err *err);

/* Elements of load.counts, load.sums and load.squares together. */
size_t stack_load_nelem(const struct model *m);

/* The rest of struct model_ops. */
void stack_destroy(struct model *m);
void stack_set_dtypes(struct model *m, const struct model_dtypes *dtypes);
int stack_set_lora(struct model *m, const struct model_lora *lora, struct fsdp_err *err);
/* Is the slot's adapter one of DoRA? */
static inline bool stack_has_magnitudes(const struct model *m, enum stack_slot slot)
{
    return m->lora.dora && m->place[slot].lora > 0;
}
int stack_set_f8(struct model *m, const struct model_f8 *f8, struct fsdp_err *err);
/* Products in 8 bits have one scale for the matrices of queries, keys and values, and one for those
 * of gate and up. Is the slot's among them? */
bool stack_shares_scale(const struct model *m, enum stack_slot slot);
/* A number for the weights that do so and can be codes; 0: the weight has a scale of its own. */
int stack_scale_group(const struct model *m, int weight);
/* Do products in 8 bits alone read the weight, so that they can take it as codes? */
bool stack_takes_codes(const struct model *m, int weight);
bool stack_experts_take_codes(const struct model *m, int weight);
int stack_describe(struct model *m, struct fsdp_module_tree *tree, int B, int T,
                   struct fsdp_err *err);
/* Embedding and head are units of their own where they are not tied: together in the root's unit
 * they would be gathered from the first module to the last, and reduced after all others. So are
 * the experts of a layer, which are gathered while its attention computes. Small ones stay there:
 * each unit costs two gathers and a reduction a micro-step, with a latency (some 20 us) in which a
 * network moves about a MiB. */
enum { STACK_UNIT_MIN_NELEM = 1 << 18 };
const char *const *stack_wrap_classes(const struct model *m);
int stack_set_device(struct model *m, const struct fsdp_device *device, struct fsdp_err *err);
void stack_set_packed(struct model *m);
void stack_set_dropout(struct model *m, double p);
void stack_set_fast_dropout(struct model *m);
const char *stack_own_prefix(const struct model *m);
void stack_set_carried(struct model *m, const struct fsdp_tensor *tensors, int ntensors);
const char *stack_family(const struct model *m);
int stack_most_documents(const struct model *m);
int stack_vocab_size(const struct model *m);
int stack_max_seq_len(const struct model *m);
int stack_run(struct model *m, struct fsdp *f, const struct model_batch *batch, bool train,
              double *loss_sum, struct fsdp_err *err);
int stack_logits(struct model *m, struct fsdp *f, const struct model_batch *batch, float *out,
                 struct fsdp_err *err);
double stack_flops_per_token(const struct model *m, int T);
bool stack_dimensions(const struct model *m, struct decoder *out);
void stack_info(const struct model *m, struct model_info *out);
struct model_router stack_router(const struct model *m);
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
/* Adds what a layer's modules compute in a micro-batch, and what embedding and head do. */
int stack_layer_work(const struct model *m, struct fsdp_module_tree *tree, int layer, int B, int T,
                     struct fsdp_err *err);
int stack_ends_work(const struct model *m, struct fsdp_module_tree *tree, int B, int T,
                    struct fsdp_err *err);

/* ---- between stack*.c ------------------------------------------------------------------------ */

/* Refuses a batch that the model was not described for, or whose tokens, labels or documents cannot
 * be; the error names row and position. *documents: how many there are in all rows. */
int stack_check_batch(int *documents, const struct model *m, const struct model_batch *batch,
                      struct fsdp_err *err);
/* Refuses token ids outside the vocabulary, naming row and position. ncols tokens a row. */
int stack_check_tokens(const struct model *m, const int32_t *tokens, int nrows, int ncols,
                       struct fsdp_err *err);

#endif
