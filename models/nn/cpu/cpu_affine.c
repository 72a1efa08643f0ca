/* SPDX-License-Identifier: Apache-2.0 */
#include <cblas.h>

#include "cpu.h"

/* Decoding: a matrix times a vector is bound by memory. */
static void affine_one_row(const struct nn_affine *a)
{
    const float *b = a->b;
    float *y = a->out;
    for (int i = 0; i < a->nout; i++)
        y[i] = b[i] + (a->beta == 0.0f ? 0.0f : y[i]);
    cblas_sgemv(CblasRowMajor, CblasTrans, a->nin, a->nout, 1, a->w, a->ldw, a->x, 1, 1, y, 1);
}

static void affine_forward(const struct nn_affine *a)
{
    if (a->rows == 1 && !a->dtype && !a->w_dtype) {
        affine_one_row(a);
        return;
    }
    nn_run_product(nn_affine_forward_product(a));
}

static void affine_backward_input(const struct nn_affine *a)
{
    nn_run_product(nn_affine_backward_input_product(a));
}

enum { BLOCK_ROWS = 32, BLOCK_COLS = 512 };

/* db = beta db + sum of the rows of dy, in blocks, which keep the sums short. */
static void sum_rows(const struct nn_affine *a)
{
    const size_t nout = (size_t)a->nout;
    float dy_room[BLOCK_COLS], total[BLOCK_COLS], sum[BLOCK_COLS];

    for (size_t from = 0; from < nout; from += BLOCK_COLS) {
        const size_t ncols = nout - from < BLOCK_COLS ? nout - from : BLOCK_COLS;
        memset(total, 0, sizeof total);
        if (a->beta != 0.0f)
            fsdp_cpu_convert(total, FSDP_F32, nn_at(a->db, a->dw_dtype, from), a->dw_dtype, ncols);
        for (int row = 0; row < a->rows; row += BLOCK_ROWS) {
            const int end = a->rows - row < BLOCK_ROWS ? a->rows : row + BLOCK_ROWS;
            memset(sum, 0, sizeof sum);
            for (int r = row; r < end; r++) {
                const float *dy = nn_read(a->dy, a->dtype, (size_t)r * nout + from, ncols, dy_room);
                for (size_t i = 0; i < ncols; i++)
                    sum[i] += dy[i];
            }
            for (size_t i = 0; i < ncols; i++)
                total[i] += sum[i];
        }
        fsdp_cpu_convert(nn_at(a->db, a->dw_dtype, from), a->dw_dtype, total, FSDP_F32, ncols);
    }
}

static void affine_backward_weight(const struct nn_affine *a)
{
    if (a->db)
        sum_rows(a);
    nn_run_product(nn_affine_backward_weight_product(a));
}

NN_CPU_ENQUEUE(affine_forward, nn_affine)
NN_CPU_ENQUEUE(affine_backward_input, nn_affine)
NN_CPU_ENQUEUE(affine_backward_weight, nn_affine)
