/* SPDX-License-Identifier: Apache-2.0 */
#include <cblas.h>

#include "nn/nn_cpu.h"

/* The bias goes first, and the product is added to it. */
static void add_bias(const struct nn_affine *a)
{
    const size_t nout = (size_t)a->nout;
    for (int r = 0; r < a->rows; r++) {
        float *restrict y = a->out + (size_t)r * nout;
        const float *restrict b = a->b;
        if (a->beta == 0.0f)
            memcpy(y, b, nout * sizeof *y);
        else
            for (size_t i = 0; i < nout; i++)
                y[i] += b[i];
    }
}

static void affine_forward(const struct nn_affine *a)
{
    add_bias(a);
    if (a->rows == 1) { /* decoding: a matrix times a vector is bound by memory */
        cblas_sgemv(CblasRowMajor, CblasTrans, a->nin, a->nout, 1, a->w, a->ldw, a->x, 1, 1, a->out,
                    1);
        return;
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, a->rows, a->nout, a->nin, 1, a->x,
                a->nin, a->w, a->ldw, 1, a->out, a->nout);
}

static void affine_backward_input(const struct nn_affine *a)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, a->rows, a->nin, a->nout, 1, a->dy,
                a->nout, a->w, a->ldw, a->beta, a->out, a->nin);
}

enum { BLOCK_ROWS = 32, BLOCK_COLS = 512 };

/* db = beta db + sum of the rows of dy, in blocks, which keep the sums short. */
static void sum_rows(const struct nn_affine *a)
{
    const size_t nout = (size_t)a->nout;
    for (size_t from = 0; from < nout; from += BLOCK_COLS) {
        const size_t ncols = nout - from < BLOCK_COLS ? nout - from : BLOCK_COLS;
        float *db = a->db + from;
        for (int row = 0; row < a->rows; row += BLOCK_ROWS) {
            const int end = a->rows - row < BLOCK_ROWS ? a->rows : row + BLOCK_ROWS;
            const bool overwrite = row == 0 && a->beta == 0.0f;
            float sum[BLOCK_COLS] = {0};
            for (int r = row; r < end; r++) {
                const float *dy = a->dy + (size_t)r * nout + from;
                for (size_t i = 0; i < ncols; i++)
                    sum[i] += dy[i];
            }
            for (size_t i = 0; i < ncols; i++)
                db[i] = overwrite ? sum[i] : db[i] + sum[i];
        }
    }
}

static void affine_backward_weight(const struct nn_affine *a)
{
    sum_rows(a);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, a->nin, a->nout, a->rows, 1, a->x, a->nin,
                a->dy, a->nout, a->beta, a->out, a->ldw);
}

NN_CPU_ENQUEUE(affine_forward, nn_affine)
NN_CPU_ENQUEUE(affine_backward_input, nn_affine)
NN_CPU_ENQUEUE(affine_backward_weight, nn_affine)
