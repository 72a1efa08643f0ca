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
    nn_run_product(nn_linear_forward_product(a));
}

static void linear_backward_input(const struct nn_linear *a)
{
    nn_run_product(nn_linear_backward_input_product(a));
}

static void linear_backward_weight(const struct nn_linear *a)
{
    nn_run_product(nn_linear_backward_weight_product(a));
}

NN_CPU_ENQUEUE(linear_forward, nn_linear)
NN_CPU_ENQUEUE(linear_backward_input, nn_linear)
NN_CPU_ENQUEUE(linear_backward_weight, nn_linear)
