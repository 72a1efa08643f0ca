/* SPDX-License-Identifier: Apache-2.0 */
/* Linear and affine maps as matrix products. */
#include "gemm.h"

/* ---- y = x wᵀ -------------------------------------------------------------------------------- */

static struct gemm linear_forward(const struct nn_linear *a)
{
    return (struct gemm){.m = a->rows,
                         .n = a->nout,
                         .k = a->nin,
                         .a = {a->x, a->nin, false, a->dtype},
                         .b = {a->w, a->nin, true, a->w_dtype},
                         .c = a->out,
                         .ldc = nn_linear_ldy(a),
                         .c_dtype = a->y_dtype,
                         .beta = a->beta,
                         .work = a->work};
}

static struct gemm linear_backward_input(const struct nn_linear *a)
{
    return (struct gemm){.m = a->rows,
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

static struct gemm linear_backward_weight(const struct nn_linear *a)
{
    return (struct gemm){.m = a->nout,
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

size_t nn_cuda_linear_work_nelem(const struct nn_linear *shape)
{
    const struct gemm all[] = {linear_forward(shape), linear_backward_input(shape),
                               linear_backward_weight(shape)};
    size_t most = 0;
    for (int i = 0; i < 3; i++) {
        const size_t nelem = gemm_work_nelem(&all[i]);
        most = nelem > most ? nelem : most;
    }
    return most;
}

/* ---- y = x w + b ----------------------------------------------------------------------------- */

static struct gemm affine_forward(const struct nn_affine *a)
{
    return (struct gemm){.m = a->rows,
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

static struct gemm affine_backward_input(const struct nn_affine *a)
{
    return (struct gemm){.m = a->rows,
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

static struct gemm affine_backward_weight(const struct nn_affine *a)
{
    return (struct gemm){.m = a->nin,
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

/* ---- operators ------------------------------------------------------------------------------- */

#define PRODUCT(name, type)                                                                        \
    int nn_cuda_##name(struct fsdp_lane *lane, const struct type *args, struct fsdp_err *err)      \
    {                                                                                              \
        const struct gemm g = name(args);                                                          \
        return args->out ? gemm(lane, &g, err) : FSDP_OK;                                          \
    }
PRODUCT(linear_forward, nn_linear)
PRODUCT(linear_backward_input, nn_linear)
PRODUCT(linear_backward_weight, nn_linear)
PRODUCT(affine_forward, nn_affine)
PRODUCT(affine_backward_input, nn_affine)

int nn_cuda_affine_backward_weight(struct fsdp_lane *lane, const struct nn_affine *a,
                                   struct fsdp_err *err)
{
    const struct gemm g = affine_backward_weight(a);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    if (a->db)
        FSDP_TRY(nn_cuda_sum_rows(lane, a->db, a->dw_dtype, a->dy, a->dtype, a->rows, a->nout,
                                  a->beta, err));
    return a->out ? gemm(lane, &g, err) : FSDP_OK;
}
