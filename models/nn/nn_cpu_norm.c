/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm: Zhang and Sennrich, arXiv 1910.07467. */
#include <math.h>

#include "nn/nn_cpu.h"

static void rmsnorm_forward(const struct nn_rmsnorm *a)
{
    const size_t dim = (size_t)a->dim;
    for (int r = 0; r < a->rows; r++) {
        const float *x = a->x + (size_t)r * dim, *w = a->w;
        float *y = a->y + (size_t)r * dim;
        float rstd = 1.0f / sqrtf(nn_dot(x, x, dim) / (float)dim + a->eps);
        a->rstd[r] = rstd;
#pragma GCC ivdep
        for (size_t i = 0; i < dim; i++)
            y[i] = x[i] * rstd * w[i];
        if (a->x_copy)
            memcpy(a->x_copy + (size_t)r * dim, x, dim * sizeof *x);
    }
}

enum { BLOCK_ROWS = 32, BLOCK_COLS = 512 };

/* Columns [from, to) of rows [row, row + rows): dx, y and the block's part of dw.
 * With xhat = x rstd and g = dy w: dx = rstd (g - xhat mean(g xhat)); coef is rstd² mean(g xhat).
 */
static void backward_block(const struct nn_rmsnorm_backward *a, int row, int rows, size_t from,
                           size_t to, const float *coef, float dw_beta)
{
    const size_t dim = (size_t)a->dim, ncols = to - from;
    float dw[BLOCK_COLS] = {0};
    const float *w = a->w + from;

    for (int r = 0; r < rows; r++) {
        const size_t at = (size_t)(row + r) * dim + from;
        const float *x = a->x + at, rstd = a->rstd[row + r], c = coef[r], beta = a->dx_beta;
        float *dy = a->dy + at, *dx = a->dx + at;
        if (beta == 0.0f) {
#pragma GCC ivdep
            for (size_t i = 0; i < ncols; i++) {
                float xhat = x[i] * rstd, d = dy[i];
                dx[i] = (d * w[i] - xhat * c) * rstd;
                dw[i] += d * xhat;
                dy[i] = xhat * w[i];
            }
        } else {
#pragma GCC ivdep
            for (size_t i = 0; i < ncols; i++) {
                float xhat = x[i] * rstd, d = dy[i];
                dx[i] += (d * w[i] - xhat * c) * rstd;
                dw[i] += d * xhat;
                dy[i] = xhat * w[i];
            }
        }
    }
    float *out = a->dw + from;
    for (size_t i = 0; i < ncols; i++)
        out[i] = dw_beta == 0.0f ? dw[i] : out[i] + dw[i];
}

/* Blocks of rows keep the sums of dw short, which is what makes them accurate. */
static void rmsnorm_backward(const struct nn_rmsnorm_backward *a)
{
    const size_t dim = (size_t)a->dim;
    for (int row = 0; row < a->rows; row += BLOCK_ROWS) {
        int rows = a->rows - row < BLOCK_ROWS ? a->rows - row : BLOCK_ROWS;
        float coef[BLOCK_ROWS];
        for (int r = 0; r < rows; r++) {
            const float *x = a->x + (size_t)(row + r) * dim, *dy = a->dy + (size_t)(row + r) * dim;
            float part[BLOCK_COLS], sum = 0;
            for (size_t from = 0; from < dim; from += BLOCK_COLS) {
                size_t ncols = dim - from < BLOCK_COLS ? dim - from : BLOCK_COLS;
                for (size_t i = 0; i < ncols; i++)
                    part[i] = dy[from + i] * a->w[from + i];
                sum += nn_dot(part, x + from, ncols);
            }
            coef[r] = sum * a->rstd[row + r] / (float)dim;
        }
        for (size_t from = 0; from < dim; from += BLOCK_COLS) {
            size_t to = from + BLOCK_COLS < dim ? from + BLOCK_COLS : dim;
            backward_block(a, row, rows, from, to, coef, row ? 1.0f : a->dw_beta);
        }
    }
}

NN_CPU_ENQUEUE(rmsnorm_forward, nn_rmsnorm)
NN_CPU_ENQUEUE(rmsnorm_backward, nn_rmsnorm_backward)
