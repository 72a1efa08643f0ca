/* SPDX-License-Identifier: Apache-2.0 */
/* LayerNorm: Ba, Kiros and Hinton, arXiv 1607.06450. In blocks of rows and columns: weights are
 * read once for many rows, and the sums of dw and db stay short, which makes them accurate. */
#include <math.h>

#include "cpu.h"

enum { BLOCK_ROWS = NN_BLOCK_ROWS, BLOCK_COLS = 512 };

static size_t ncols_at(size_t from, int dim)
{
    return (size_t)dim - from < BLOCK_COLS ? (size_t)dim - from : BLOCK_COLS;
}

/* Two passes, so that a mean that is large compared with the deviation costs no digits. */
static void statistics(const struct nn_layernorm *a, int row)
{
    const size_t dim = (size_t)a->dim;
    float room[BLOCK_COLS], centred[BLOCK_COLS], sum = 0, square = 0;

    for (size_t from = 0; from < dim; from += BLOCK_COLS) {
        const size_t n = ncols_at(from, a->dim);
        sum += nn_sum(nn_read(a->x, a->dtype, (size_t)row * dim + from, n, room), n);
    }
    const float mean = sum / (float)dim;
    for (size_t from = 0; from < dim; from += BLOCK_COLS) {
        const size_t n = ncols_at(from, a->dim);
        const float *x = nn_read(a->x, a->dtype, (size_t)row * dim + from, n, room);
        for (size_t i = 0; i < n; i++)
            centred[i] = x[i] - mean;
        square += nn_dot(centred, centred, n);
    }
    a->mean[row] = mean;
    a->rstd[row] = 1.0f / sqrtf(square / (float)dim + a->eps);
}

FSDP_CPU_CLONES static void scale_piece(float *restrict y, const float *restrict x,
                                        const float *restrict w, const float *restrict b,
                                        float mean, float rstd, size_t nelem)
{
    for (size_t i = 0; i < nelem; i++)
        y[i] = (x[i] - mean) * rstd * w[i] + b[i];
}

static void forward_rows(void *arg, int worker, size_t begin, size_t finish)
{
    const struct nn_layernorm *a = arg;
    const size_t dim = (size_t)a->dim;
    float w_room[BLOCK_COLS], b_room[BLOCK_COLS], x_room[BLOCK_COLS], y_room[BLOCK_COLS];

    (void)worker;
    for (int first = (int)begin; first < (int)finish; first += BLOCK_ROWS) {
        const int end = (int)finish - first < BLOCK_ROWS ? (int)finish : first + BLOCK_ROWS;
        for (int r = first; r < end; r++)
            statistics(a, r);
        for (size_t from = 0; from < dim; from += BLOCK_COLS) {
            const size_t n = ncols_at(from, a->dim);
            const float *w = nn_read(a->w, a->w_dtype, from, n, w_room);
            const float *b = nn_read(a->b, a->w_dtype, from, n, b_room);
            for (int r = first; r < end; r++) {
                const size_t at = (size_t)r * dim + from;
                const float *x = nn_read(a->x, a->dtype, at, n, x_room);
                float *y = nn_piece(a->y, a->dtype, at, y_room);
                scale_piece(y, x, w, b, a->mean[r], a->rstd[r], n);
                nn_write(a->y, a->dtype, at, n, y);
                if (a->x_copy)
                    memcpy(nn_at(a->x_copy, a->dtype, at), nn_at(a->x, a->dtype, at),
                           n * fsdp_dtype_nbytes(a->dtype));
            }
        }
    }
}

static void layernorm_forward(struct nn_layernorm *a)
{
    fsdp_cpu_for((size_t)a->rows, BLOCK_ROWS, forward_rows, a);
}

/* Means over a row of g = dy w and of g xhat. */
static void row_means(const struct nn_layernorm_backward *a, int row, float *g_mean, float *gx_mean)
{
    const size_t dim = (size_t)a->dim;
    const float mean = a->mean[row], rstd = a->rstd[row];
    float x_room[BLOCK_COLS], dy_room[BLOCK_COLS], w_room[BLOCK_COLS];
    float g[BLOCK_COLS], xhat[BLOCK_COLS], sum = 0, sum_x = 0;

    for (size_t from = 0; from < dim; from += BLOCK_COLS) {
        const size_t n = ncols_at(from, a->dim), at = (size_t)row * dim + from;
        const float *w = nn_read(a->w, a->w_dtype, from, n, w_room);
        const float *x = nn_read(a->x, a->dtype, at, n, x_room);
        const float *dy = nn_read(a->dy, a->dtype, at, n, dy_room);
        for (size_t i = 0; i < n; i++) {
            g[i] = dy[i] * w[i];
            xhat[i] = (x[i] - mean) * rstd;
        }
        sum += nn_sum(g, n);
        sum_x += nn_dot(g, xhat, n);
    }
    *g_mean = sum / (float)dim;
    *gx_mean = sum_x / (float)dim;
}

/* A row's part of what backward_piece reads and changes. */
struct row {
    const float *x, *w, *b;
    float *dx, *dy, *dw, *db;
    float mean, rstd, g_mean, gx_mean, beta;
};

/* dx = rstd (g - mean(g) - xhat mean(g xhat)) + beta dx, which may be x; dy becomes y. */
FSDP_CPU_CLONES static void backward_piece(const struct row *row, size_t nelem)
{
    const struct row r = *row;
    FSDP_INDEPENDENT
    for (size_t i = 0; i < nelem; i++) {
        float xhat = (r.x[i] - r.mean) * r.rstd, d = r.dy[i];
        float out = (d * r.w[i] - r.g_mean - xhat * r.gx_mean) * r.rstd;
        r.dx[i] = r.beta == 0.0f ? out : r.dx[i] + out;
        r.dw[i] += d * xhat;
        r.db[i] += d;
        r.dy[i] = xhat * r.w[i] + r.b[i];
    }
}

/* Columns from `from` of rows [first, end): dx, y, and their part of dw and db is added to the
 * sums that row holds. */
static void backward_block(const struct nn_layernorm_backward *a, int first, int end, size_t from,
                           struct row row, const float *g_mean, const float *gx_mean)
{
    const size_t dim = (size_t)a->dim, n = ncols_at(from, a->dim);
    float x_room[BLOCK_COLS], dx_room[BLOCK_COLS], dy_room[BLOCK_COLS];
    float dw[BLOCK_COLS] = {0}, db[BLOCK_COLS] = {0}, *dw_sum = row.dw, *db_sum = row.db;

    row.dw = dw;
    row.db = db;
    for (int r = first; r < end; r++) {
        const size_t at = (size_t)r * dim + from;
        row.mean = a->mean[r];
        row.rstd = a->rstd[r];
        row.g_mean = g_mean[r - first];
        row.gx_mean = gx_mean[r - first];
        row.x = nn_read(a->x, a->dtype, at, n, x_room);
        row.dy = nn_change(a->dy, a->dtype, at, n, dy_room);
        row.dx = nn_piece(a->dx, a->dtype, at, dx_room);
        if (a->dx_beta != 0.0f)
            nn_read(a->dx, a->dtype, at, n, dx_room);
        backward_piece(&row, n);
        nn_write(a->dy, a->dtype, at, n, row.dy);
        nn_write(a->dx, a->dtype, at, n, row.dx);
    }
    for (size_t i = 0; i < n; i++) {
        dw_sum[i] += dw[i];
        db_sum[i] += db[i];
    }
}

/* Sums so far, of a gradient that is wanted. */
static void read_sums(float *sums, const void *grad, enum fsdp_dtype dtype, size_t from, size_t n)
{
    if (grad)
        fsdp_cpu_convert(sums, FSDP_F32, nn_at((void *)(uintptr_t)grad, dtype, from), dtype, n);
}

static void write_sums(void *grad, enum fsdp_dtype dtype, size_t from, const float *sums, size_t n)
{
    if (grad)
        fsdp_cpu_convert(nn_at(grad, dtype, from), dtype, sums, FSDP_F32, n);
}

/* Columns from `from` of a span of rows. */
static void backward_span(const struct nn_layernorm_backward *a, int first, int end, size_t from,
                          const float *g_mean, const float *gx_mean)
{
    const size_t n = ncols_at(from, a->dim);
    float w_room[BLOCK_COLS], b_room[BLOCK_COLS], dw[BLOCK_COLS] = {0}, db[BLOCK_COLS] = {0};
    const struct row row = {.w = nn_read(a->w, a->w_dtype, from, n, w_room),
                            .b = nn_read(a->b, a->w_dtype, from, n, b_room),
                            .dw = dw,
                            .db = db,
                            .beta = a->dx_beta};

    if (first > 0 || a->dw_beta != 0.0f) {
        read_sums(dw, a->dw, a->dw_dtype, from, n);
        read_sums(db, a->db, a->dw_dtype, from, n);
    }
    for (int r = first; r < end; r += BLOCK_ROWS)
        backward_block(a, r, end - r < BLOCK_ROWS ? end : r + BLOCK_ROWS, from, row,
                       g_mean + (r - first), gx_mean + (r - first));
    write_sums(a->dw, a->dw_dtype, from, dw, n);
    write_sums(a->db, a->dw_dtype, from, db, n);
}

static void layernorm_backward(const struct nn_layernorm_backward *a)
{
    const int span = nn_span(a->dw_dtype);
    float g_mean[NN_SPAN_ROWS], gx_mean[NN_SPAN_ROWS];
    for (int first = 0; first < a->rows; first += span) {
        const int end = a->rows - first < span ? a->rows : first + span;
        for (int r = first; r < end; r++)
            row_means(a, r, &g_mean[r - first], &gx_mean[r - first]);
        for (size_t from = 0; from < (size_t)a->dim; from += BLOCK_COLS)
            backward_span(a, first, end, from, g_mean, gx_mean);
    }
}

NN_CPU_ENQUEUE(layernorm_forward, nn_layernorm)
NN_CPU_ENQUEUE(layernorm_backward, nn_layernorm_backward)
