/* SPDX-License-Identifier: Apache-2.0 */
/* product.h: linear and affine maps as matrix products, the same on every device. Private to
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
    bool is_split; /* work begins with the halves of the F32 matrix, from a product before */
};

/* ---- y = x wᵀ + b ---------------------------------------------------------------------------- */

static inline struct nn_product nn_linear_forward_product(const struct nn_linear *a)
{
    return (struct nn_product){.m = a->rows,
                               .n = a->nout,
                               .k = a->nin,
                               .a = {a->x, a->nin, false, a->dtype},
                               .b = {a->w, a->nin, true, a->w_dtype},
                               .c = a->out,
                               .ldc = nn_linear_ldy(a),
                               .c_dtype = a->y_dtype,
                               .bias = a->b,
                               .bias_dtype = a->w_dtype,
                               .beta = a->beta,
                               .work = a->work};
}

static inline struct nn_product nn_linear_backward_input_product(const struct nn_linear *a)
{
    return (struct nn_product){.m = a->rows,
                               .n = a->nin,
                               .k = a->nout,
                               .a = {a->dy, nn_linear_ldy(a), false, a->y_dtype},
                               .b = {a->w, a->nin, false, a->w_dtype},
                               .c = a->out,
                               .ldc = a->nin,
                               .c_dtype = a->dtype,
                               .beta = a->beta,
                               .work = a->work,
                               /* backward_weight made halves of x's type, here they have w's */
                               .is_split = a->after_weight && a->w_dtype == a->dtype};
}

static inline struct nn_product nn_linear_backward_weight_product(const struct nn_linear *a)
{
    return (struct nn_product){.m = a->nout,
                               .n = a->nin,
                               .k = a->rows,
                               .a = {a->dy, nn_linear_ldy(a), true, a->y_dtype},
                               .b = {a->x, a->nin, false, a->dtype},
                               .c = a->out,
                               .ldc = a->nin,
                               .c_dtype = a->dw_dtype,
                               .beta = a->beta,
                               .work = a->work};
}

/* ---- y = x w + b ----------------------------------------------------------------------------- */

static inline struct nn_product nn_affine_forward_product(const struct nn_affine *a)
{
    return (struct nn_product){.m = a->rows,
                               .n = a->nout,
                               .k = a->nin,
                               .a = {a->x, a->nin, false, a->dtype},
                               .b = {a->w, a->ldw, false, a->w_dtype},
                               .c = a->out,
                               .ldc = a->nout,
                               .c_dtype = a->dtype,
                               .bias = a->b,
                               .bias_dtype = a->w_dtype,
                               .beta = a->beta,
                               .work = a->work};
}

static inline struct nn_product nn_affine_backward_input_product(const struct nn_affine *a)
{
    return (struct nn_product){.m = a->rows,
                               .n = a->nin,
                               .k = a->nout,
                               .a = {a->dy, a->nout, false, a->dtype},
                               .b = {a->w, a->ldw, true, a->w_dtype},
                               .c = a->out,
                               .ldc = a->nin,
                               .c_dtype = a->dtype,
                               .beta = a->beta,
                               .work = a->work};
}

static inline struct nn_product nn_affine_backward_weight_product(const struct nn_affine *a)
{
    return (struct nn_product){.m = a->nin,
                               .n = a->nout,
                               .k = a->rows,
                               .a = {a->x, a->nin, true, a->dtype},
                               .b = {a->dy, a->nout, false, a->dtype},
                               .c = a->out,
                               .ldc = a->ldw,
                               .c_dtype = a->dw_dtype,
                               .beta = a->beta,
                               .work = a->work};
}

#endif
