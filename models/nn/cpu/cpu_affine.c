/* SPDX-License-Identifier: Apache-2.0 */
#include <cblas.h>

#include "cpu.h"

/* Decoding: a matrix times a vector is bound by memory. */
static void affine_one_row(const struct nn_affine *a)
{
    const float *b = a->b;
    float *y = a->out;
    for (int i = 0; i < a->nout && b; i++)
        y[i] = b[i] + (a->beta == 0.0f ? 0.0f : y[i]);
    cblas_sgemv(CblasRowMajor, CblasTrans, a->nin, a->nout, 1, a->w, a->ldw, a->x, 1,
                b ? 1 : a->beta, y, 1);
}

void nn_run_affine(const struct nn_affine *a)
{
    if (a->rows == 1 && !a->dtype && !a->w_dtype && !a->f8.dtype) {
        affine_one_row(a);
        return;
    }
    nn_run_product(nn_affine_forward_product(a));
}

static void affine_forward(const struct nn_affine *a)
{
    nn_run_affine(a);
}

static void affine_backward_input(const struct nn_affine *a)
{
    nn_run_product(nn_affine_backward_input_product(a));
}

static void affine_backward_weight(const struct nn_affine *a)
{
    const struct nn_row_sum sum = {.out = a->db,
                                   .in = a->dy,
                                   .nrows = a->rows,
                                   .ncols = a->nout,
                                   .ld = a->nout,
                                   .beta = a->beta,
                                   .out_dtype = a->dw_dtype,
                                   .in_dtype = a->dtype};
    if (a->db)
        nn_sum_rows(&sum);
    nn_run_product(nn_affine_backward_weight_product(a));
}

NN_CPU_ENQUEUE_PRODUCT(affine_forward, nn_affine)
NN_CPU_ENQUEUE(affine_backward_input, nn_affine)
NN_CPU_ENQUEUE_PRODUCT(affine_backward_weight, nn_affine)
