/* SPDX-License-Identifier: Apache-2.0 */
#include <cblas.h>

#include "cpu.h"

static void linear_forward(const struct nn_linear *a)
{
    if (a->rows == 1 && !a->dtype && !a->y_dtype && !a->w_dtype) {
        /* decoding: a matrix times a vector is bound by memory */
        cblas_sgemv(CblasRowMajor, CblasNoTrans, a->nout, a->nin, 1, a->w, a->nin, a->x, 1, a->beta,
                    a->out, 1);
        return;
    }
    nn_gemm(&(struct nn_gemm){.m = a->rows,
                              .n = a->nout,
                              .k = a->nin,
                              .a = {a->x, a->nin, false, a->dtype},
                              .b = {a->w, a->nin, true, a->w_dtype},
                              .c = a->out,
                              .ldc = nn_linear_ldy(a),
                              .c_dtype = a->y_dtype,
                              .alpha = 1,
                              .beta = a->beta,
                              .work = a->work});
}

static void linear_backward_input(const struct nn_linear *a)
{
    nn_gemm(&(struct nn_gemm){.m = a->rows,
                              .n = a->nin,
                              .k = a->nout,
                              .a = {a->dy, nn_linear_ldy(a), false, a->y_dtype},
                              .b = {a->w, a->nin, false, a->w_dtype},
                              .c = a->out,
                              .ldc = a->nin,
                              .c_dtype = a->dtype,
                              .alpha = 1,
                              .beta = a->beta,
                              .work = a->work});
}

static void linear_backward_weight(const struct nn_linear *a)
{
    if (!a->out)
        return;
    nn_gemm(&(struct nn_gemm){.m = a->nout,
                              .n = a->nin,
                              .k = a->rows,
                              .a = {a->dy, nn_linear_ldy(a), true, a->y_dtype},
                              .b = {a->x, a->nin, false, a->dtype},
                              .c = a->out,
                              .ldc = a->nin,
                              .c_dtype = a->dw_dtype,
                              .alpha = 1,
                              .beta = a->beta,
                              .work = a->work});
}

NN_CPU_ENQUEUE(linear_forward, nn_linear)
NN_CPU_ENQUEUE(linear_backward_input, nn_linear)
NN_CPU_ENQUEUE(linear_backward_weight, nn_linear)
