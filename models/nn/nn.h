/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nn.h: the operators that models are written in, as work enqueued on a lane.
 *
 * Every operator takes one argument struct, which is copied, so the caller's may be a temporary;
 * the memory it points to is device memory and must live until the lane has run. Row-major,
 * contiguous. `beta` is what the destination is multiplied with before the result is added: 0
 * (overwrite; memory may hold anything) or 1 (add).
 *
 * Data types: what is `void *` below is F32, BF16 or F16. `dtype` is that of activations and their
 * gradients, `w_dtype` of weights, `dw_dtype` of their gradients (under PyTorch's names mostly
 * param_dtype, param_dtype and reduce_dtype); 0 is F32. Arithmetic is fp32 inside every operator,
 * and a result is rounded when it is stored: once, but for gradients of embeddings (at each use of
 * a token) and of norms (every 1024 rows). What is `float *` (statistics, logits) is fp32 always.
 *
 * Shapes: B sequences of T positions, C model width, NH heads of D elements, NKV key-value heads
 * (NH a multiple of NKV), V vocabulary. "rows" is any number of positions, B*T in training.
 *
 * All enqueue. Arguments are trusted; models check what users gave. Errors come from the lane.
 */
#ifndef NN_H
#define NN_H

#include "fsdp/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NN_OPS_ABI 20

/* Dropout: each element is zero with probability p, else 1 / (1 - p) times itself. Which ones is a
 * pure function of the key, the row's number in the whole run and the element's place in the row
 * (Philox 4x32-10, Salmon et al., SC 2011), so that every division of the rows, and activation
 * checkpointing, drop the same ones. */
struct nn_drop {
    float p;            /* 0: no dropout */
    uint64_t key;       /* of the run's seed and of the place in the model */
    uint64_t first_row; /* number of the batch's first row; the others follow it */
};

/* Products in 8 bits. The elements of an operand are rounded to codes of an 8-bit float before they
 * are multiplied, in groups that share a scale 2^e: e is the least with which the greatest absolute
 * value of the group is not beyond the type, as the values are at the time (current scaling). A
 * code stands for its value times 2^e, which is also a bf16, so that a device without such products
 * computes the same ones in bf16. Sums are fp32 and rounded when they are stored, as in all
 * products. Scales are powers of two because then they cost no rounding, and because rows that are
 * divided otherwise (ranks, micro-batches) get the same values but where one is less than 2^-13 of
 * the greatest (e4m3). What is not finite makes the product so. */
enum nn_f8_scale {
    NN_F8_TENSOR, /* one for the whole operand */
    NN_F8_ROW,    /* one for what one element of the result sums over */
    NN_F8_BLOCK   /* one for 32 successive elements of that (MXFP8 of OCP's Microscaling) */
};
enum { NN_F8_BLOCK_NELEM = 32 };
struct nn_f8 {
    enum fsdp_dtype dtype;      /* of x and w: F8_E4M3; 0: operands stay as they are */
    enum fsdp_dtype grad_dtype; /* of dy: F8_E4M3 or F8_E5M2 */
    enum nn_f8_scale scale;
};
/* What products that read the same x leave of it in work for the next one: its codes, or the values
 * of its codes. Their caller owns a variable, sets it to NN_F8_NOTHING, and gives it to calls that
 * follow one another on the lane, all of them forward or all of them backward_weight, with the same
 * x, work, rows, nin, dtype and f8. Nothing else may write to work between them, nor to x. Each
 * call uses what it finds and says what it leaves, before it returns. */
enum nn_f8_made { NN_F8_NOTHING, NN_F8_CODES, NN_F8_VALUES };

/* y = x wᵀ + b: x (rows, nin), w (nout, nin), b (nout), y (rows, nout). w may be some rows of a
 * longer weight. With ldw, as GPT-2 stores it: y = x w + b, w (nin, nout), whose rows lie ldw
 * elements apart, so that it may be some columns of a wider weight. Gradients of weights (out of
 * backward_weight and of the embedding's backward, dw, db) that are NULL are not wanted: a frozen
 * parameter has none. */
struct nn_linear {
    void *out;      /* forward: y; backward_input: dx; backward_weight: dw, as w lies */
    void *db;       /* backward_weight; NULL: not wanted, or no bias */
    const void *b;  /* forward; NULL: no bias */
    const void *x;  /* forward, backward_weight */
    const void *w;  /* forward, backward_input */
    const void *dy; /* backward_* */
    float *work;    /* linear_work_nelem */
    int rows, nin, nout;
    int ldw;    /* elements from a row of w (nin, nout) to the next; 0: w is (nout, nin) */
    int ldy;    /* elements from a row of y, or dy, to the next; 0: nout */
    float beta; /* of out, and of db */
    /* dtype: x, dx; y_dtype: y, dy; w_dtype: w, b; dw_dtype: dw, db */
    enum fsdp_dtype dtype, y_dtype, w_dtype, dw_dtype;
    /* backward_input: the call before it on the lane was backward_weight, with an output and with
     * the same dy, work, sizes and types: the codes of dy that it left in work are used. */
    bool after_weight;
    struct nn_f8 f8;
    /* With f8: w is codes of f8.dtype, of a tensor whose greatest absolute value this is (device
     * scalar; fsdp_dequantize says what their values are); NULL: w is in w_dtype. Scales of rows or
     * blocks are x's and dy's alone then, and CUDA multiplies in bf16. */
    const double *w_amax;
    /* With f8 and one scale, of a w in w_dtype: the greatest absolute value of the matrices that
     * share their scale with it, from nn_ops.f8_amax; NULL: w has its own. */
    const uint32_t *w_shared;
    enum nn_f8_made *made; /* of x; forward, backward_weight; NULL: x is rounded in each call */
};
static inline int nn_linear_ldy(const struct nn_linear *a)
{
    return a->ldy ? a->ldy : a->nout;
}

/* *amax (device scalar) = the greatest absolute value of some matrices (rows, cols) without space
 * between rows, as the bits of a float; NaN counts for nothing. */
enum { NN_F8_MATRICES = 3 };
struct nn_f8_amax {
    uint32_t *amax;
    const void *w[NN_F8_MATRICES]; /* [count] of dtype */
    int rows[NN_F8_MATRICES], cols[NN_F8_MATRICES];
    int count;
    enum fsdp_dtype dtype;
};

/* y[i] = w[tokens[i]]: tokens (rows), w (V, C), y (rows, C). */
struct nn_embedding {
    void *out; /* forward: y; backward: dw */
    const void *w;
    const void *dy;
    const int32_t *tokens;
    int rows, vocab, dim;
    float beta;
    enum fsdp_dtype dtype, w_dtype, dw_dtype;
};

/* y = x / sqrt(mean(x²) + eps) * (w_offset + w) over the last dimension. */
struct nn_rmsnorm {
    void *y;
    float *rstd;  /* (rows) 1 / sqrt(mean(x²) + eps), for the backward pass */
    void *x_copy; /* (rows, dim) NULL, or x again: a residual stream that is about to change */
    const void *x, *w;
    int rows, dim;
    float eps, w_offset;
    enum fsdp_dtype dtype, w_dtype;
};
struct nn_rmsnorm_backward {
    void *dy; /* in: dy (rows, dim); out: y, which the weight gradients behind this norm need */
    void *dx; /* dx = dx_beta * dx + ...; may be x itself where dx_beta is 0 */
    void *dw; /* (dim) */
    const void *x, *w;
    const float *rstd;
    int rows, dim;
    float dx_beta, dw_beta, w_offset;
    enum fsdp_dtype dtype, w_dtype, dw_dtype;
};

/* y = (x - mean) / sqrt(variance + eps) * w + b over the last dimension. */
struct nn_layernorm {
    void *y;
    float *mean, *rstd; /* (rows), for the backward pass */
    void *x_copy;       /* as above */
    const void *x, *w, *b;
    int rows, dim;
    float eps;
    enum fsdp_dtype dtype, w_dtype;
};
struct nn_layernorm_backward {
    void *dy;      /* in: dy (rows, dim); out: y, as above */
    void *dx;      /* dx = dx_beta * dx + ...; may be x itself where dx_beta is 0 */
    void *dw, *db; /* (dim) */
    const void *x, *w, *b;
    const float *mean, *rstd;
    int rows, dim;
    float dx_beta, dw_beta; /* dw_beta: of dw and db */
    enum fsdp_dtype dtype, w_dtype, dw_dtype;
};

/* cos and sin of p * inv_freq[i] for the positions p = first + t, each times
 * scale * (1 + growth * log(1 + floor(p / growth_span))): (T, half) each, computed in double,
 * rounded to dtype (PyTorch's buffer_dtype). */
struct nn_rope_table {
    float *cos, *sin;
    const double *inv_freq; /* (half), host memory */
    int first, T, half;
    double scale;    /* 0: 1 */
    double growth;   /* 0: none */
    int growth_span; /* with growth: positive */
    enum fsdp_dtype dtype;
};
/* Rotates pairs (i, i + R/2) of the first R elements of every head: x (B, T, heads, D), in place or
 * of `from`, which then need not lie as x does. inverse: the backward, with the same table (its
 * scale included). */
struct nn_rope {
    void *x;
    const void *from;         /* apart from x; NULL: x */
    const float *cos, *sin;   /* (T, R/2) */
    const int32_t *positions; /* (B, T) row of cos and sin for each; NULL: t */
    int B, T, heads, D;
    int R;  /* even, at most D; 0: D */
    int ld; /* elements of x from a position to the next; 0: heads D. Of `from` they are heads D. */
    bool inverse;
    enum fsdp_dtype dtype;
};
static inline int nn_rope_R(const struct nn_rope *a)
{
    return a->R ? a->R : a->D;
}
static inline int nn_rope_ld(const struct nn_rope *a)
{
    return a->ld ? a->ld : a->heads * a->D;
}

/* Where the gradients of q and k lie after attention's backward pass: (B, Tq, NH, D) and
 * (B, Tk, NKV, D). */
struct nn_attention_left {
    void *dq, *dk;
};

/* Causal attention with grouped key-value heads. Query t of a sequence sees keys 0 .. Tk - Tq + t,
 * so Tq < Tk continues a sequence whose earlier keys are kept. With `starts` (and Tq = Tk) a row
 * holds several documents, and query t sees keys starts[t] .. t; what a document gets is then
 * bit-equal to the same document alone. With `window` a query sees only the last `window` of
 * these keys, itself among them. A score s becomes softcap * tanh(s / softcap) before the softmax.
 * A head's sink is one more score in the sum of its softmax, which no value belongs to. `drop`
 * applies to the probabilities; with `drop_fast` a device may drop others than nn_drop says, of
 * which it has faster kernels: the same ones in both directions, and others for other keys and
 * batches. The backward pass works in place: dq over q, dk over k, dv over v.
 */
struct nn_attention {
    void *q;         /* (B, Tq, NH, D) */
    void *k, *v;     /* (B, Tk, NKV, D) */
    void *o;         /* (B, Tq, NH, D): out; in for backward */
    float *lse;      /* (B, NH, Tq) log of the sum of exp(scores): out; in for backward */
    const void *d_o; /* (B, Tq, NH, D) backward */
    /* backward, NULL: dq and dk replace q and k. Otherwise the call may leave them in work, and
     * then says so here; the caller has set q and k. */
    struct nn_attention_left *left;
    float *work;           /* attention_work_nelem */
    const int32_t *starts; /* (B, Tq) first position of each one's document; NULL: 0 */
    int documents;         /* in all rows, as `starts` says; 0: not told */
    const void *sinks;     /* (NH) of w_dtype, NULL: none */
    void *dsinks;          /* (NH) of dw_dtype, backward; NULL: not wanted */
    int B, Tq, Tk, NH, NKV, D;
    int window; /* 0: all */
    float scale;
    float softcap;     /* 0: none */
    float dsinks_beta; /* as beta */
    enum fsdp_dtype dtype, w_dtype, dw_dtype;
    struct nn_drop drop;
    bool drop_fast;
};

enum nn_act {
    NN_SILU,
    NN_GELU_TANH, /* GELU with the tanh approximation */
    NN_GELU,      /* exact, with erf */
    NN_RELU,
    /* In nn_glu alone (gpt-oss): with g = min(gate, limit) and u = clamp(up, -limit, limit),
     * (u + 1) g sigmoid(1.702 g). */
    NN_CLAMPED_SWISH
};
#define NN_CLAMPED_SWISH_LIMIT 7.0f

/* y = act(gate) * up. The backward pass works in place: gate becomes dgate, up becomes dup, and
 * dy becomes y. */
struct nn_glu {
    void *y; /* forward: y; backward: in dy, out y */
    void *gate, *up;
    size_t nelem;
    enum nn_act act;
    enum fsdp_dtype dtype;
};

/* y = act(x), forward in place, too. The backward pass works in place: x becomes dx, and dy becomes
 * y. */
struct nn_pointwise {
    void *y; /* forward: y; backward: in dy, out y */
    void *x;
    size_t nelem;
    enum nn_act act;
    enum fsdp_dtype dtype;
};

/* A linear map and an activation next to it in one pass, beta 0.
 *
 * forward: pre (rows, nout) = y of the map, out = act(pre), of what it was before it was rounded.
 * backward_input: out (rows, nin), the gradient of pre (rows, nin), whose activation the map read:
 * dx of the map times the slope of act at pre, which stays. */
struct nn_activated {
    struct nn_linear map;
    void *pre;
    enum nn_act act;
};

/* Maps of the same x in one pass: `first`, and count - 1 more of its sizes and types. The next
 * one's w, or dw, lies w_step elements behind, its b, or db, b_step, and its out, or dy, y_step.
 * forward with beta 0, and backward_weight. With f8 the matrices share a scale (w_amax, w_shared),
 * and there is no backward_weight. */
struct nn_maps {
    struct nn_linear first;
    int count;
    size_t w_step, b_step, y_step;
};

/* out = alpha x + beta out. x may be out where beta is 0. */
struct nn_scale_add {
    void *out;
    const void *x;
    size_t nelem;
    float alpha, beta;
    enum fsdp_dtype dtype;
};

/* DoRA (Liu et al., arXiv 2402.09353): the outputs of a linear map with an adapter are scaled as if
 * its weight's rows had the lengths of the magnitudes. Lengths of the rows of w + scale b a. */
struct nn_lengths {
    float *length;     /* (nout) */
    const void *w;     /* (nout, nin); with ldw (nin, nout), whose rows lie ldw elements apart */
    const void *a, *b; /* (r, nin), (nout, r) */
    int nin, nout, r, ldw;
    float scale;
    enum fsdp_dtype dtype; /* of w, a, b */
};
/* out = x magnitude / length + b + beta out, by columns. backward: dm = the sum over rows of
 * dy x / length + beta dm. */
struct nn_columns {
    void *out;             /* (rows, cols); backward: dm (cols) */
    const void *x;         /* (rows, cols); may be out where beta is 0 */
    const void *dy;        /* (rows, cols) backward */
    const void *magnitude; /* (cols) */
    const float *length;   /* (cols) */
    const void *b;         /* (cols) NULL: none */
    int rows, cols;
    int ld; /* elements from a row of x, dy and out to the next; 0: cols */
    float beta;
    enum fsdp_dtype dtype, w_dtype, dw_dtype; /* dtype: x, out, dy; w_dtype: magnitude, b */
};
static inline int nn_columns_ld(const struct nn_columns *a)
{
    return a->ld ? a->ld : a->cols;
}

/* Copies `rows` x nblocks blocks of `width` elements: element i of block j of row r is
 * out[r * out_row + j * out_block + i] and x[r * x_row + j * x_block + i]. */
struct nn_copy_blocks {
    void *out;
    const void *x;
    int rows, nblocks, width;
    int out_row, out_block, x_row, x_block;
    enum fsdp_dtype dtype;
};

/* out = drop(x) + beta out, over B rows of row_nelem elements; of a gradient, its own backward. */
struct nn_dropout {
    void *out;
    const void *x; /* may be out where beta is 0 */
    int B;
    size_t row_nelem;
    float beta;
    enum fsdp_dtype dtype;
    struct nn_drop drop;
};

/* A model's last step from logits z: softcap * tanh(logit_scale z / softcap), or logit_scale z
 * where softcap is 0. A logit_scale of 0 is 1. In place. */
struct nn_logits {
    void *logits; /* (nelem) */
    size_t nelem;
    float logit_scale, softcap;
    enum fsdp_dtype dtype;
};

/* Adds the sum of the rows' losses to *loss_sum, in double. z is what nn_logits makes of a row's
 * logits, in fp32, and lse = log sum exp z. The loss is weight * ((1 - smoothing) (lse - z[target])
 * + smoothing (lse - mean z) + z_loss lse^2): label smoothing of Szegedy et al. (arXiv 1512.00567),
 * and the z-loss of Chowdhery et al. (arXiv 2204.02311). Where `grad`, logits become the gradient
 * of the sum by them, times scale * *loss_scale. A row with a negative target counts for nothing.
 */
struct nn_cross_entropy {
    void *logits;           /* (rows, vocab), and gradients of the same type */
    const int32_t *targets; /* (rows) */
    double *loss_sum;
    int rows, vocab;
    int ld; /* elements from a row of logits to the next; 0: vocab */
    float scale;
    float logit_scale, softcap; /* 0: 1, and none */
    float smoothing, z_loss;    /* smoothing: 0 to less than 1 */
    const float *weights;       /* (rows), any sign; NULL: 1 */
    const float *loss_scale;    /* fsdp_view's; NULL: 1 */
    bool grad;
    enum fsdp_dtype dtype;
};
static inline int nn_cross_entropy_ld(const struct nn_cross_entropy *a)
{
    return a->ld ? a->ld : a->vocab;
}

/* ---- mixtures of experts ------------------------------------------------------------------------
 *
 * Each of `rows` rows chooses K (`chosen`) of E (`experts`) experts; choice k of row r is slot
 * r K + k. What experts read and make are rows K rows sorted by expert, and by slot within one:
 *
 *     slots    0  1 | 2  3 | 4  5        (3 rows, K = 2)
 *     expert   2  0 | 1  2 | 0  2
 *     place    3  0 | 2  4 | 1  5        first = 0 2 3 6
 *     slot of each place:  1 4 | 2 | 0 3 5
 */

enum { NN_MAX_EXPERTS = 1024 };

/* probs = softmax(logits), and the K most probable experts of each row in falling order, the first
 * of equal ones. Their weights are their probabilities, over their sum where `normalized`. */
struct nn_route {
    const void *logits; /* (rows, E) */
    float *probs;       /* (rows, E) */
    int32_t *expert;    /* (rows, K) */
    float *weight;      /* (rows, K) */
    float *lse;         /* (rows) log of the sum of exp(logits) */
    int rows, experts, chosen;
    bool normalized;
    enum fsdp_dtype dtype;
};
/* From the gradients of the weights. Of the first `counted` rows, `balance` is that of every
 * probability besides, and *loss_scale z_loss lse² is part of the loss. */
struct nn_route_backward {
    void *dlogits;                     /* (rows, E) */
    const float *dweight;              /* (rows, K) */
    const float *balance;              /* (E) NULL: none */
    const float *probs, *weight, *lse; /* as nn_route made them; lse may be NULL without z_loss */
    const float *loss_scale;           /* of z_loss; NULL: 1 */
    float z_loss;
    const int32_t *expert;
    int rows, experts, chosen, counted;
    bool normalized;
    enum fsdp_dtype dtype;
};

/* The order of the slots. The places of expert e are [first[e], first[e + 1]). */
struct nn_expert_order {
    int32_t *first; /* (E + 1) */
    int32_t *slot;  /* (rows K) of each place */
    int32_t *place; /* (rows K) of each slot */
    /* CUDA: (E + 1) the same as first in the host's memory, for which the call waits; or -1 in its
     * first place, where experts have so few rows that one launch takes all of them. NULL: not
     * wanted. */
    int32_t *first_host;
    const int32_t *expert;
    int rows, experts, chosen;
};

/* Adds to counts how often each expert was chosen, to sums the rows' probabilities, and to *squares
 * the squares of their lse. */
struct nn_expert_load {
    double *counts, *sums; /* (E) */
    double *squares;
    const int32_t *expert;
    const float *probs, *lse;
    int rows, experts, chosen;
};

/* Load balance (Fedus et al., arXiv 2101.03961), of the routing of all layers together as in
 * transformers: with n their rows, f = counts / n and P = sums / n, it is E sum(f P). Adds scale
 * times it to *loss, and the counts to `total`. balance is its gradient by a row's probabilities,
 * times coef, scale and *loss_scale. Adds z_scale *squares to *z_loss (router z-loss: Zoph et al.,
 * arXiv 2202.08906). */
struct nn_balance {
    double *loss, *z_loss;   /* NULL: not wanted */
    double *total;           /* (layers, E) NULL: not wanted */
    float *balance;          /* (E) NULL: not wanted */
    const double *counts;    /* (layers, E) */
    const double *sums;      /* (E) of all layers */
    const double *squares;   /* of all layers */
    const float *loss_scale; /* NULL: 1 */
    int layers, experts, chosen;
    float scale, coef;
    double z_scale;
};

/* out[place] = weight x, where x is the row of the place's slot, and weight the slot's. */
struct nn_spread_rows {
    void *out;           /* (rows K, dim) */
    const void *x;       /* (rows, dim) */
    const float *weight; /* (rows K) NULL: 1 */
    const int32_t *slot;
    int rows, chosen, dim;
    enum fsdp_dtype dtype;
};
/* out[row] = the sum of weight x[place] over the row's slots, in their order, + beta out. */
struct nn_collect_rows {
    void *out;           /* (rows, dim) */
    const void *x;       /* (rows K, dim) */
    const float *weight; /* (rows K) NULL: 1 */
    const int32_t *place;
    int rows, chosen, dim;
    float beta;
    enum fsdp_dtype dtype;
};
/* From the gradient of rows that were multiplied with their slots' weights: dweight[slot] is its
 * product with the rows y, and then it is multiplied, too. With b, these rows went through y w_eᵀ +
 * b_e of their expert before they were weighted, and to dweight the product of b_e with the
 * gradient there is added. */
struct nn_weigh_backward {
    void *dy;       /* (nplaces, dim) in and out */
    const void *y;  /* (nplaces, dim) */
    float *dweight; /* (nplaces) by slot */
    const float *weight;
    const int32_t *slot;
    const void *b;         /* (E, nout) of w_dtype; NULL: none */
    const void *d_out;     /* (nplaces, nout) with b */
    const int32_t *expert; /* (nplaces) by slot, with b */
    int nplaces, dim, nout;
    enum fsdp_dtype dtype, w_dtype;
};

/* What a product of a linear map makes: y, dx or dw. */
enum nn_way { NN_FORWARD, NN_TO_INPUT, NN_TO_WEIGHT };

/* Linear maps of experts: the places of expert e of y = x w_eᵀ + b_e, with x (rows K, nin), w_e
 * (nout, nin), b_e (nout), y (rows K, nout); or of y = x w_e + b_e with w_e (nin, nout), where
 * `transposed`. The weights of the experts (backward_weight: their gradients) lie `stride`
 * elements apart, or where w_each says; biases follow each other. An expert without rows has
 * gradients, too. With f8, of scales NN_F8_TENSOR alone and without w_each, operands are those of
 * all experts: x and dy of all places have one scale each, and w of all experts has one, or those
 * of its codes. */
struct nn_grouped {
    void *out;                 /* forward: y; backward_input: dx; backward_weight: dw of expert 0 */
    void *db;                  /* (E, nout) backward_weight; NULL: not wanted, or no bias */
    const void *b;             /* (E, nout) forward; NULL: no bias */
    const void *x, *w, *dy;    /* as in nn_linear; w of expert 0 */
    const void *const *w_each; /* [E] forward: host memory that lives as the lane's work does */
    size_t stride;
    const int32_t *first; /* (E + 1) */
    /* As nn_expert_order gave it; NULL: on CUDA the host waits for it, where it needs it. */
    const int32_t *first_host;
    float *work; /* grouped_work_nelem */
    int experts, nplaces, nin, nout;
    bool transposed;
    float beta;                               /* of out, and of db */
    enum fsdp_dtype dtype, w_dtype, dw_dtype; /* w_dtype: w, b; dw_dtype: dw, db */
    struct nn_f8 f8;
    /* As in nn_linear, of the tensor with expert 0's w; those of the others' tensors lie amax_step
     * elements behind one another, 0: there is one tensor. */
    const double *w_amax;
    size_t amax_step;
};

/* (B, T+1) token ids to inputs (B, T) and the targets one position later (B, T). */
struct nn_split_tokens {
    int32_t *inputs, *targets; /* targets may be NULL */
    const int32_t *tokens;     /* host memory */
    int B, T;
};

/* Positions of B sequences: out[b, t] = first + t - starts[b, t]. */
struct nn_positions {
    int32_t *out;          /* (B, T) */
    const int32_t *starts; /* (B, T) NULL: 0 */
    int first, B, T;
};

/* What was found out about a device's libraries by timing them. */
enum { NN_TUNING_WHO = 200 };
struct nn_tuning {
    char who[NN_TUNING_WHO]; /* out: the device and the libraries that it holds for, one line */
    void *table;             /* in, out: what is known, NULL: nothing; of fsdp_alloc */
    size_t nbytes;
    int nknown, ntimed; /* out: products that took an algorithm of the table, and that were timed */
};

struct nn_ops {
    uint32_t abi;
    const char *name;
    /* Of a GPU: its compute capability, 90 for 9.0, of the thread's current device; 0: not known.
     * NULL: not a GPU's. */
    int (*capability)(void);
    /* About how many logits the head of a model should make at once: enough rows that its products
     * are not bound by reading the weight. */
    size_t logits_nelem;
    /* Products are fast where rows of logits begin at multiples of as many elements. */
    int logits_align;
    /* Elements of nn_linear.work, enough for all three directions of this shape or one of fewer
     * rows, however w lies. Only sizes and types are read. 0: work may be NULL, as where all types
     * are F32 and products are not in 8 bits. */
    size_t (*linear_work_nelem)(const struct nn_linear *shape);
    int (*linear_forward)(struct fsdp_lane *, const struct nn_linear *, struct fsdp_err *);
    int (*linear_backward_input)(struct fsdp_lane *, const struct nn_linear *, struct fsdp_err *);
    int (*linear_backward_weight)(struct fsdp_lane *, const struct nn_linear *, struct fsdp_err *);
    int (*f8_amax)(struct fsdp_lane *, const struct nn_f8_amax *, struct fsdp_err *);
    int (*embedding_forward)(struct fsdp_lane *, const struct nn_embedding *, struct fsdp_err *);
    int (*embedding_backward)(struct fsdp_lane *, const struct nn_embedding *, struct fsdp_err *);
    int (*rmsnorm_forward)(struct fsdp_lane *, const struct nn_rmsnorm *, struct fsdp_err *);
    int (*rmsnorm_backward)(struct fsdp_lane *, const struct nn_rmsnorm_backward *,
                            struct fsdp_err *);
    int (*layernorm_forward)(struct fsdp_lane *, const struct nn_layernorm *, struct fsdp_err *);
    int (*layernorm_backward)(struct fsdp_lane *, const struct nn_layernorm_backward *,
                              struct fsdp_err *);
    int (*rope_table)(struct fsdp_lane *, const struct nn_rope_table *, struct fsdp_err *);
    int (*rope)(struct fsdp_lane *, const struct nn_rope *, struct fsdp_err *);
    /* Elements of nn_attention.work, enough for both directions of this shape or a smaller one. Of
     * the shape, sizes and type are read; `documents` is how many rows may hold, 0: one each. */
    size_t (*attention_work_nelem)(const struct nn_attention *shape);
    int (*attention_forward)(struct fsdp_lane *, const struct nn_attention *, struct fsdp_err *);
    int (*attention_backward)(struct fsdp_lane *, const struct nn_attention *, struct fsdp_err *);
    int (*glu_forward)(struct fsdp_lane *, const struct nn_glu *, struct fsdp_err *);
    int (*glu_backward)(struct fsdp_lane *, const struct nn_glu *, struct fsdp_err *);
    int (*pointwise_forward)(struct fsdp_lane *, const struct nn_pointwise *, struct fsdp_err *);
    int (*pointwise_backward)(struct fsdp_lane *, const struct nn_pointwise *, struct fsdp_err *);
    /* (optional) Both or none. *done false: the device has no such pass for these sizes and types,
     * and nothing was enqueued; the two operators are to be called. */
    int (*activated_forward)(struct fsdp_lane *, const struct nn_activated *, bool *done,
                             struct fsdp_err *);
    int (*activated_backward_input)(struct fsdp_lane *, const struct nn_activated *, bool *done,
                                    struct fsdp_err *);
    /* (optional) Both or none; *done as above: one product takes the place of several. */
    int (*maps_forward)(struct fsdp_lane *, const struct nn_maps *, bool *done, struct fsdp_err *);
    int (*maps_backward_weight)(struct fsdp_lane *, const struct nn_maps *, bool *done,
                                struct fsdp_err *);
    int (*scale_add)(struct fsdp_lane *, const struct nn_scale_add *, struct fsdp_err *);
    /* (optional) All or none of the three. */
    int (*lengths)(struct fsdp_lane *, const struct nn_lengths *, struct fsdp_err *);
    int (*columns_forward)(struct fsdp_lane *, const struct nn_columns *, struct fsdp_err *);
    int (*columns_backward)(struct fsdp_lane *, const struct nn_columns *, struct fsdp_err *);
    int (*copy_blocks)(struct fsdp_lane *, const struct nn_copy_blocks *, struct fsdp_err *);
    int (*logits)(struct fsdp_lane *, const struct nn_logits *, struct fsdp_err *);
    int (*dropout)(struct fsdp_lane *, const struct nn_dropout *, struct fsdp_err *);
    int (*cross_entropy)(struct fsdp_lane *, const struct nn_cross_entropy *, struct fsdp_err *);
    int (*route_forward)(struct fsdp_lane *, const struct nn_route *, struct fsdp_err *);
    int (*route_backward)(struct fsdp_lane *, const struct nn_route_backward *, struct fsdp_err *);
    int (*expert_order)(struct fsdp_lane *, const struct nn_expert_order *, struct fsdp_err *);
    int (*expert_load)(struct fsdp_lane *, const struct nn_expert_load *, struct fsdp_err *);
    int (*balance)(struct fsdp_lane *, const struct nn_balance *, struct fsdp_err *);
    int (*spread_rows)(struct fsdp_lane *, const struct nn_spread_rows *, struct fsdp_err *);
    int (*collect_rows)(struct fsdp_lane *, const struct nn_collect_rows *, struct fsdp_err *);
    int (*weigh_backward)(struct fsdp_lane *, const struct nn_weigh_backward *, struct fsdp_err *);
    /* Elements of nn_grouped.work, enough for all three directions of this shape or one of fewer
     * places. Only sizes and types are read. 0: work may be NULL. */
    size_t (*grouped_work_nelem)(const struct nn_grouped *shape);
    /* On CUDA these wait until the lane knows how many rows each expert has, unless the host does,
     * or experts have few rows each. */
    int (*grouped_forward)(struct fsdp_lane *, const struct nn_grouped *, struct fsdp_err *);
    int (*grouped_backward_input)(struct fsdp_lane *, const struct nn_grouped *, struct fsdp_err *);
    int (*grouped_backward_weight)(struct fsdp_lane *, const struct nn_grouped *,
                                   struct fsdp_err *);
    int (*split_tokens)(struct fsdp_lane *, const struct nn_split_tokens *, struct fsdp_err *);
    int (*positions)(struct fsdp_lane *, const struct nn_positions *, struct fsdp_err *);
    /* (optional) Products that were made on this lane's device so far take the algorithm that the
     * table names, from now on. Those that it lacks are timed, where `measure`, and added to it:
     * once more with the memory of their last call, so that what they gave is lost. A table of
     * another device, or that makes no sense, is as none. Blocks. */
    int (*tune)(struct fsdp_lane *, struct nn_tuning *, bool measure, struct fsdp_err *);
};

/* On oneDNN, CBLAS and the threads of nn_set_threads. Sums are taken in an order that depends on
 * shapes alone, as far as the BLAS library's do. */
extern const struct nn_ops nn_cpu_ops;

/* The operators of a device. FSDP_EUNSUPPORTED: there are none. Those of the CPU keep room for the
 * BLAS library (nn_blas_keep_room); FSDP_ENOMEM: there is too little address space (ulimit -v). */
int nn_ops_of(const struct nn_ops **out, const struct fsdp_device *device, struct fsdp_err *err);

/* Does the device multiply matrices of this type with instructions of its own? GPUs do; CPUs of
 * F32, and of BF16 where they have AVX-512 BF16 or AMX and the build has oneDNN. Others are
 * converted to fp32 first. */
bool nn_multiplies(const struct fsdp_device *device, enum fsdp_dtype dtype);
bool nn_cpu_multiplies(enum fsdp_dtype dtype); /* the CPU's part of it */

/* Name of the BLAS kernels in use, such as "SkylakeX"; "unknown" where the library does not tell.
 */
const char *nn_blas_kernels(void);

/* Where this process has a limit of address space, keeps as much as the BLAS library takes for
 * fsdp_cpu_threads() threads until leave_room, which is called before each of its products.
 * FSDP_ENOMEM where there is not so much. keep_room: by one thread, while no product runs. */
int nn_blas_keep_room(struct fsdp_err *err);
void nn_blas_leave_room(void);

/* Threads that the operators, and the device's arithmetic, use from now on; the BLAS library gets
 * one, since products are divided among these. Before models are described: scratch memory is a
 * thread's own. Until the first call there is one, and the BLAS library has what it takes. */
void nn_set_threads(int nthreads);

/* &x[nelem]; NULL stays NULL */
static inline void *nn_at(const void *x, enum fsdp_dtype dtype, size_t nelem)
{
    return x ? (char *)(uintptr_t)x + nelem * fsdp_dtype_nbytes(dtype) : NULL;
}

#ifdef __cplusplus
}
#endif
#endif
