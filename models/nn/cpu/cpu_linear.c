/* SPDX-License-Identifier: Apache-2.0 */
#include <cblas.h>

#include "cpu.h"

/* Decoding: a matrix times a vector is bound by memory. */
static void linear_one_row(const struct nn_linear *a)
{
    const float *b = a->b;
    float *y = a->out;
    const float beta = b ? 1 : a->beta;

    for (int i = 0; i < a->nout && b; i++)
        y[i] = b[i] + (a->beta == 0.0f ? 0.0f : a->beta * y[i]);
    if (a->ldw)
        cblas_sgemv(CblasRowMajor, CblasTrans, a->nin, a->nout, 1, a->w, a->ldw, a->x, 1, beta, y,
                    1);
    else
        cblas_sgemv(CblasRowMajor, CblasNoTrans, a->nout, a->nin, 1, a->w, a->nin, a->x, 1, beta, y,
                    1);
}

void nn_run_linear(const struct nn_linear *a)
{
    if (a->rows == 1 && !a->dtype && !a->y_dtype && !a->w_dtype && !a->f8.dtype)
        linear_one_row(a);
    else
        nn_run_product(nn_linear_forward_product(a));
}

static void linear_forward(const struct nn_linear *a)
{
    nn_run_linear(a);
}

static void linear_backward_input(const struct nn_linear *a)
{
    nn_run_product(nn_linear_backward_input_product(a));
}

static void linear_backward_weight(const struct nn_linear *a)
{
    const struct nn_row_sum sum = {.out = a->db,
                                   .in = a->dy,
                                   .nrows = a->rows,
                                   .ncols = a->nout,
                                   .ld = nn_linear_ldy(a),
                                   .beta = a->beta,
                                   .out_dtype = a->dw_dtype,
                                   .in_dtype = a->y_dtype};
    if (a->db)
        nn_sum_rows(&sum);
    nn_run_product(nn_linear_backward_weight_product(a));
}

NN_CPU_ENQUEUE_PRODUCT(linear_forward, nn_linear)
NN_CPU_ENQUEUE(linear_backward_input, nn_linear)
NN_CPU_ENQUEUE_PRODUCT(linear_backward_weight, nn_linear)
