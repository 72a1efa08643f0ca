/* SPDX-License-Identifier: Apache-2.0 */
/* product.h: linear maps as matrix products, the same on every device. Private to
 * models/nn. */
#ifndef NN_PRODUCT_H
#define NN_PRODUCT_H

#include "nn.h"

/* op(x): x or its transpose, row-major, its rows ld elements apart. */
struct nn_matrix {
    const void *at;
    int ld;
    bool transposed;
    enum fsdp_dtype dtype;
    enum fsdp_dtype f8; /* that it is rounded to before it is multiplied; 0: it is not */
};

/* What a product does on its way, on CUDA, where `aux` is read or written besides: */
enum nn_epilogue {
    NN_NO_EPILOGUE,
    NN_GELU_OF_SUM, /* aux (m, n) = the sum with its bias, c = gelu(that), the tanh approximation */
    NN_GELU_GRADIENT, /* c = the sum times the slope of gelu at aux (m, n) */
    NN_SUMS_OF_A,     /* aux (m) = sums over k of op(a), of c's type */
    NN_SUMS_OF_B      /* aux (n) = sums over k of op(b), of c's type */
};

/* c (m, n) = op(a) (m, k) op(b) (k, n) + bias + beta c; bias (n) goes to every row. */
struct nn_product {
    int m, n, k;
    struct nn_matrix a, b;
    void *c;
    int ldc;
    enum fsdp_dtype c_dtype;
    const void *bias; /* NULL: none */
    enum fsdp_dtype bias_dtype;
    float beta;
    float *work;   /* nn_ops.linear_work_nelem */
    bool passing;  /* of a size that may not come again: algorithms for it are not timed */
    bool is_split; /* work begins with the halves of the F32 matrix, from a product before */
    enum nn_f8_scale f8_scale; /* where a and b have an f8, both or none */
    const double *b_amax;      /* b is codes of its f8, as nn_linear.w_amax says; NULL: it is not */
    const uint32_t *b_shared;  /* as nn_linear.w_shared */
    /* Then work begins with the rounded a, or with b where b_first, and *made is what the product
     * before left there of the same operand; NULL: nothing, and it is not asked for. */
    bool b_first;
    enum nn_f8_made *made;
    enum nn_epilogue epilogue;
    void *aux;
    /* CUDA: so many products (0: one), whose operands lie so many elements behind one another; step
     * of the bias, or of sums. */
    int count;
    size_t a_step, b_step, c_step, bias_step;
    /* CUDA: a and b are codes, whose values are multiplied by these; NULL: they are not. Of
     * f8_scale: one; one for each row of op(a) and each column of op(b), in fp32; or those of
     * blocks (nn_cuda_f8_scales_nbytes). */
    const void *a_scale, *b_scale;
};

static inline enum fsdp_dtype nn_f8_grad_dtype(const struct nn_f8 *f8)
{
    return f8->dtype ? f8->grad_dtype : FSDP_F32;
}

/* ---- linear maps ----------------------------------------------------------------------------- */

/* w as an operand: wᵀ where `to_output`, w else. */
static inline struct nn_matrix nn_linear_weight(const struct nn_linear *a, bool to_output)
{
    return (struct nn_matrix){a->w, a->ldw ? a->ldw : a->nin, to_output == !a->ldw, a->w_dtype,
                              a->f8.dtype};
}

static inline struct nn_product nn_linear_forward_product(const struct nn_linear *a)
{
    return (struct nn_product){.m = a->rows,
                               .n = a->nout,
                               .k = a->nin,
                               .a = {a->x, a->nin, false, a->dtype, a->f8.dtype},
                               .b = nn_linear_weight(a, true),
                               .c = a->out,
                               .ldc = nn_linear_ldy(a),
                               .c_dtype = a->y_dtype,
                               .bias = a->b,
                               .bias_dtype = a->w_dtype,
                               .beta = a->beta,
                               .work = a->work,
                               .f8_scale = a->f8.scale,
                               .b_amax = a->w_amax,
                               .b_shared = a->w_shared,
                               .made = a->made};
}

static inline struct nn_product nn_linear_backward_input_product(const struct nn_linear *a)
{
    return (struct nn_product){
        .m = a->rows,
        .n = a->nin,
        .k = a->nout,
        .a = {a->dy, nn_linear_ldy(a), false, a->y_dtype, nn_f8_grad_dtype(&a->f8)},
        .b = nn_linear_weight(a, false),
        .c = a->out,
        .ldc = a->nin,
        .c_dtype = a->dtype,
        .beta = a->beta,
        .work = a->work,
        /* backward_weight made halves of x's type, here they have w's */
        .is_split = a->after_weight && a->w_dtype == a->dtype,
        .f8_scale = a->f8.scale,
        .b_amax = a->w_amax,
        .b_shared = a->w_shared};
}

/* dw = dyᵀ x, or xᵀ dy where w lies the other way round. */
static inline struct nn_product nn_linear_backward_weight_product(const struct nn_linear *a)
{
    const struct nn_matrix x = {a->x, a->nin, a->ldw != 0, a->dtype, a->f8.dtype};
    const struct nn_matrix dy = {a->dy, nn_linear_ldy(a), !a->ldw, a->y_dtype,
                                 nn_f8_grad_dtype(&a->f8)};
    return (struct nn_product){.m = a->ldw ? a->nin : a->nout,
                               .n = a->ldw ? a->nout : a->nin,
                               .k = a->rows,
                               .a = a->ldw ? x : dy,
                               .b = a->ldw ? dy : x,
                               .c = a->out,
                               .ldc = a->ldw ? a->ldw : a->nin,
                               .c_dtype = a->dw_dtype,
                               .beta = a->beta,
                               .work = a->work,
                               .f8_scale = a->f8.scale,
                               .b_first = !a->ldw,
                               .made = a->made};
}

/* ---- experts --------------------------------------------------------------------------------- */

/* Expert e's w, and the greatest absolute value of its tensor (NULL: it is no codes). */
static inline const void *nn_grouped_w(const struct nn_grouped *a, int e)
{
    const size_t at = (size_t)e * a->stride;
    return a->w_each   ? a->w_each[e]
           : a->w_amax ? (const uint8_t *)a->w + at
                       : nn_at(a->w, a->w_dtype, at);
}
static inline const double *nn_grouped_amax(const struct nn_grouped *a, int e)
{
    return a->w_amax ? a->w_amax + (size_t)e * a->amax_step : NULL;
}

/* Expert e's linear map of its `rows` rows, from place `begin` on. */
static inline struct nn_linear nn_grouped_linear(const struct nn_grouped *a, enum nn_way way, int e,
                                                 int begin, int rows)
{
    const size_t at = (size_t)begin, weight = (size_t)e * a->stride;
    const size_t bias = (size_t)e * (size_t)a->nout;
    void *const out[] = {nn_at(a->out, a->dtype, at * (size_t)a->nout),
                         nn_at(a->out, a->dtype, at * (size_t)a->nin),
                         nn_at(a->out, a->dw_dtype, weight)};
    struct nn_linear one = {.out = out[way],
                            .db = nn_at(a->db, a->dw_dtype, bias),
                            .b = nn_at(a->b, a->w_dtype, bias),
                            .x = nn_at(a->x, a->dtype, at * (size_t)a->nin),
                            .w = nn_grouped_w(a, e),
                            .dy = nn_at(a->dy, a->dtype, at * (size_t)a->nout),
                            .work = a->work,
                            .rows = rows,
                            .nin = a->nin,
                            .nout = a->nout,
                            .ldw = a->transposed ? a->nout : 0,
                            .beta = a->beta,
                            .dtype = a->dtype,
                            .y_dtype = a->dtype,
                            .w_dtype = a->w_dtype,
                            .dw_dtype = a->dw_dtype};
    return one;
}

/* The product of a linear map. */
static inline struct nn_product nn_linear_product(const struct nn_linear *a, enum nn_way way)
{
    return way == NN_FORWARD    ? nn_linear_forward_product(a)
           : way == NN_TO_INPUT ? nn_linear_backward_input_product(a)
                                : nn_linear_backward_weight_product(a);
}

/* The linear map of all places, whose sizes and types say how much work products take. */
static inline struct nn_linear nn_grouped_whole(const struct nn_grouped *a)
{
    return nn_grouped_linear(a, NN_FORWARD, 0, 0, a->nplaces);
}

/* Operands of experts' products in 8 bits as the values of their codes, in bf16: x and dy of all
 * places, without space between rows, and w of expert 0, the others w_stride elements behind one
 * another. NULL: not there, as the way does not read it. */
struct nn_grouped_values {
    const void *x, *w, *dy;
    size_t w_stride;
};

/* Is x the product's operand a, or dy? */
static inline bool nn_grouped_x_is_a(const struct nn_grouped *a, enum nn_way way)
{
    return way == NN_FORWARD || (way == NN_TO_WEIGHT && a->transposed);
}

/* Expert e's product, whose rows begin at place `begin`, takes these values. */
static inline void nn_grouped_take_values(struct nn_product *g, const struct nn_grouped *a,
                                          enum nn_way way, const struct nn_grouped_values *v, int e,
                                          int begin)
{
    const void *x = nn_at(v->x, FSDP_BF16, (size_t)begin * (size_t)a->nin);
    const void *dy = nn_at(v->dy, FSDP_BF16, (size_t)begin * (size_t)a->nout);
    const bool x_is_a = nn_grouped_x_is_a(a, way);

    g->a.at = x_is_a ? x : dy;
    g->b.at = way != NN_TO_WEIGHT ? nn_at(v->w, FSDP_BF16, (size_t)e * v->w_stride)
              : x_is_a            ? dy
                                  : x;
    g->a.dtype = g->b.dtype = FSDP_BF16;
}

/* An expert without rows has gradients that are zeroed, where they are not added to. */
static inline size_t nn_grouped_matrix_nbytes(const struct nn_grouped *a)
{
    return (size_t)a->nin * (size_t)a->nout * fsdp_dtype_nbytes(a->dw_dtype);
}
static inline size_t nn_grouped_bias_nbytes(const struct nn_grouped *a)
{
    return (size_t)a->nout * fsdp_dtype_nbytes(a->dw_dtype);
}

#endif
