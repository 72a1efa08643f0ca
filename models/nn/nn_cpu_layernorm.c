/* SPDX-License-Identifier: Apache-2.0 */
/* LayerNorm: Ba, Kiros and Hinton, arXiv 1607.06450. */
#include <math.h>

#include "nn/nn_cpu.h"

/* Two passes, so that a mean that is large beside the deviation costs no digits. y is scratch for
 * the centred row. */
static void layernorm_forward(const struct nn_layernorm *a)
{
    const size_t dim = (size_t)a->dim;
    for (int r = 0; r < a->rows; r++) {
        const float *x = a->x + (size_t)r * dim, *w = a->w, *b = a->b;
        float *y = a->y + (size_t)r * dim;
        const float mean = nn_sum(x, dim) / (float)dim;
        for (size_t i = 0; i < dim; i++)
            y[i] = x[i] - mean;
        const float rstd = 1.0f / sqrtf(nn_dot(y, y, dim) / (float)dim + a->eps);
        a->mean[r] = mean;
        a->rstd[r] = rstd;
#pragma GCC ivdep
        for (size_t i = 0; i < dim; i++)
            y[i] = y[i] * rstd * w[i] + b[i];
        if (a->x_copy)
            memcpy(a->x_copy + (size_t)r * dim, x, dim * sizeof *x);
    }
}

enum { BLOCK_ROWS = 32, BLOCK_COLS = 512 };

/* Means over a row of g = dy w and of g xhat. */
static void row_means(const struct nn_layernorm_backward *a, int row, float *g_mean, float *gx_mean)
{
    const size_t dim = (size_t)a->dim;
    const float *x = a->x + (size_t)row * dim, *dy = a->dy + (size_t)row * dim;
    const float mean = a->mean[row], rstd = a->rstd[row];
    float g[BLOCK_COLS], xhat[BLOCK_COLS], sum = 0, sum_x = 0;

    for (size_t from = 0; from < dim; from += BLOCK_COLS) {
        size_t ncols = dim - from < BLOCK_COLS ? dim - from : BLOCK_COLS;
        for (size_t i = 0; i < ncols; i++) {
            g[i] = dy[from + i] * a->w[from + i];
            xhat[i] = (x[from + i] - mean) * rstd;
        }
        sum += nn_sum(g, ncols);
        sum_x += nn_dot(g, xhat, ncols);
    }
    *g_mean = sum / (float)dim;
    *gx_mean = sum_x / (float)dim;
}

/* Columns [from, to) of rows [row, row + rows): dx, y and the block's part of dw and db.
 * dx = rstd (g - mean(g) - xhat mean(g xhat)). */
static void backward_block(const struct nn_layernorm_backward *a, int row, int rows, size_t from,
                           size_t to, const float *g_mean, const float *gx_mean, float dw_beta)
{
    const size_t dim = (size_t)a->dim, ncols = to - from;
    float dw[BLOCK_COLS] = {0}, db[BLOCK_COLS] = {0};
    const float *w = a->w + from, *b = a->b + from;

    for (int r = 0; r < rows; r++) {
        const size_t at = (size_t)(row + r) * dim + from;
        const float mean = a->mean[row + r], rstd = a->rstd[row + r], beta = a->dx_beta;
        const float gm = g_mean[r], gx = gx_mean[r], *x = a->x + at;
        float *dy = a->dy + at, *dx = a->dx + at;
#pragma GCC ivdep
        for (size_t i = 0; i < ncols; i++) {
            float xhat = (x[i] - mean) * rstd, d = dy[i];
            float out = (d * w[i] - gm - xhat * gx) * rstd;
            dx[i] = beta == 0.0f ? out : dx[i] + out;
            dw[i] += d * xhat;
            db[i] += d;
            dy[i] = xhat * w[i] + b[i];
        }
    }
    for (size_t i = 0; i < ncols; i++) {
        a->dw[from + i] = dw_beta == 0.0f ? dw[i] : a->dw[from + i] + dw[i];
        a->db[from + i] = dw_beta == 0.0f ? db[i] : a->db[from + i] + db[i];
    }
}

/* Blocks of rows keep the sums of dw and db short, which is what makes them accurate. */
static void layernorm_backward(const struct nn_layernorm_backward *a)
{
    const size_t dim = (size_t)a->dim;
    for (int row = 0; row < a->rows; row += BLOCK_ROWS) {
        int rows = a->rows - row < BLOCK_ROWS ? a->rows - row : BLOCK_ROWS;
        float g_mean[BLOCK_ROWS], gx_mean[BLOCK_ROWS];
        for (int r = 0; r < rows; r++)
            row_means(a, row + r, &g_mean[r], &gx_mean[r]);
        for (size_t from = 0; from < dim; from += BLOCK_COLS) {
            size_t to = from + BLOCK_COLS < dim ? from + BLOCK_COLS : dim;
            backward_block(a, row, rows, from, to, g_mean, gx_mean, row ? 1.0f : a->dw_beta);
        }
    }
}

NN_CPU_ENQUEUE(layernorm_forward, nn_layernorm)
NN_CPU_ENQUEUE(layernorm_backward, nn_layernorm_backward)
