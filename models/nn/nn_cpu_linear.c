/* SPDX-License-Identifier: Apache-2.0 */
#include <cblas.h>

#include "nn/nn_cpu.h"

static void linear_forward(const struct nn_linear *a)
{
    if (a->rows == 1) { /* decoding: a matrix times a vector is bound by memory */
        cblas_sgemv(CblasRowMajor, CblasNoTrans, a->nout, a->nin, 1, a->w, a->nin, a->x, 1, a->beta,
                    a->out, 1);
        return;
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, a->rows, a->nout, a->nin, 1, a->x, a->nin,
                a->w, a->nin, a->beta, a->out, a->nout);
}

static void linear_backward_input(const struct nn_linear *a)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, a->rows, a->nin, a->nout, 1, a->dy,
                a->nout, a->w, a->nin, a->beta, a->out, a->nin);
}

static void linear_backward_weight(const struct nn_linear *a)
{
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, a->nout, a->nin, a->rows, 1, a->dy,
                a->nout, a->x, a->nin, a->beta, a->out, a->nin);
}

NN_CPU_ENQUEUE(linear_forward, nn_linear)
NN_CPU_ENQUEUE(linear_backward_input, nn_linear)
NN_CPU_ENQUEUE(linear_backward_weight, nn_linear)
