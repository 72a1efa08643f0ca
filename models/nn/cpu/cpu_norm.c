/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm: Zhang and Sennrich, arXiv 1910.07467. In blocks of rows and columns: weights are read
 * once for many rows, and the sums of dw stay short, which is what makes them accurate. */
#include <math.h>

#include "cpu.h"

enum { BLOCK_ROWS = NN_BLOCK_ROWS, BLOCK_COLS = 512 };

static size_t ncols_at(size_t from, int dim)
{
    return (size_t)dim - from < BLOCK_COLS ? (size_t)dim - from : BLOCK_COLS;
}

/* offset + w[from, from + nelem). */
static const float *weights(const void *w, enum fsdp_dtype dtype, float offset, size_t from,
                            size_t nelem, float *room)
{
    const float *in = nn_read(w, dtype, from, nelem, room);
    if (offset == 0.0f)
        return in;
    for (size_t i = 0; i < nelem; i++)
        room[i] = offset + in[i];
    return room;
}

FSDP_CPU_CLONES static void scale_piece(float *restrict y, const float *restrict x,
                                        const float *restrict w, float rstd, size_t nelem)
{
    for (size_t i = 0; i < nelem; i++)
        y[i] = x[i] * rstd * w[i];
}

static float rstd_of_row(const struct nn_rmsnorm *a, int row)
{
    const size_t dim = (size_t)a->dim;
    float room[BLOCK_COLS], sum = 0;
    for (size_t from = 0; from < dim; from += BLOCK_COLS) {
        const size_t n = ncols_at(from, a->dim);
        const float *x = nn_read(a->x, a->dtype, (size_t)row * dim + from, n, room);
        sum += nn_dot(x, x, n);
    }
    return 1.0f / sqrtf(sum / (float)dim + a->eps);
}

static void forward_rows(void *arg, int worker, size_t begin, size_t finish)
{
    const struct nn_rmsnorm *a = arg;
    const size_t dim = (size_t)a->dim;
    float w_room[BLOCK_COLS], x_room[BLOCK_COLS], y_room[BLOCK_COLS];

    (void)worker;
    for (int first = (int)begin; first < (int)finish; first += BLOCK_ROWS) {
        const int end = (int)finish - first < BLOCK_ROWS ? (int)finish : first + BLOCK_ROWS;
        for (int r = first; r < end; r++)
            a->rstd[r] = rstd_of_row(a, r);
        for (size_t from = 0; from < dim; from += BLOCK_COLS) {
            const size_t n = ncols_at(from, a->dim);
            const float *w = weights(a->w, a->w_dtype, a->w_offset, from, n, w_room);
            for (int r = first; r < end; r++) {
                const size_t at = (size_t)r * dim + from;
                const float *x = nn_read(a->x, a->dtype, at, n, x_room);
                float *y = nn_piece(a->y, a->dtype, at, y_room);
                scale_piece(y, x, w, a->rstd[r], n);
                nn_write(a->y, a->dtype, at, n, y);
                if (a->x_copy)
                    memcpy(nn_at(a->x_copy, a->dtype, at), nn_at(a->x, a->dtype, at),
                           n * fsdp_dtype_nbytes(a->dtype));
            }
        }
    }
}

static void rmsnorm_forward(struct nn_rmsnorm *a)
{
    fsdp_cpu_for((size_t)a->rows, BLOCK_ROWS, forward_rows, a);
}

/* With xhat = x rstd and g = dy w: dx = rstd (g - xhat mean(g xhat)); coef is rstd² mean(g xhat).
 * dx may be x. */
FSDP_CPU_CLONES static void backward_piece(float *dx, float *restrict dy, float *restrict dw,
                                           const float *x, const float *restrict w, float rstd,
                                           float coef, float beta, size_t nelem)
{
    if (beta == 0.0f) {
        FSDP_INDEPENDENT
        for (size_t i = 0; i < nelem; i++) {
            float xhat = x[i] * rstd, d = dy[i];
            dx[i] = (d * w[i] - xhat * coef) * rstd;
            dw[i] += d * xhat;
            dy[i] = xhat * w[i];
        }
    } else {
        FSDP_INDEPENDENT
        for (size_t i = 0; i < nelem; i++) {
            float xhat = x[i] * rstd, d = dy[i];
            dx[i] += (d * w[i] - xhat * coef) * rstd;
            dw[i] += d * xhat;
            dy[i] = xhat * w[i];
        }
    }
}

static float coef_of_row(const struct nn_rmsnorm_backward *a, int row)
{
    const size_t dim = (size_t)a->dim;
    float x_room[BLOCK_COLS], dy_room[BLOCK_COLS], w_room[BLOCK_COLS], part[BLOCK_COLS], sum = 0;
    for (size_t from = 0; from < dim; from += BLOCK_COLS) {
        const size_t n = ncols_at(from, a->dim), at = (size_t)row * dim + from;
        const float *w = weights(a->w, a->w_dtype, a->w_offset, from, n, w_room);
        const float *dy = nn_read(a->dy, a->dtype, at, n, dy_room);
        for (size_t i = 0; i < n; i++)
            part[i] = dy[i] * w[i];
        sum += nn_dot(part, nn_read(a->x, a->dtype, at, n, x_room), n);
    }
    return sum * a->rstd[row] / (float)dim;
}

/* Columns from `from` of rows [first, end): dx, y, and sum += their part of dw. */
static void backward_block(const struct nn_rmsnorm_backward *a, int first, int end, size_t from,
                           const float *w, const float *coef, float *sum)
{
    const size_t dim = (size_t)a->dim, n = ncols_at(from, a->dim);
    float x_room[BLOCK_COLS], dx_room[BLOCK_COLS], dy_room[BLOCK_COLS], dw[BLOCK_COLS] = {0};

    for (int r = first; r < end; r++) {
        const size_t at = (size_t)r * dim + from;
        const float *x = nn_read(a->x, a->dtype, at, n, x_room);
        float *dy = nn_change(a->dy, a->dtype, at, n, dy_room);
        float *dx = nn_piece(a->dx, a->dtype, at, dx_room);
        if (a->dx_beta != 0.0f)
            nn_read(a->dx, a->dtype, at, n, dx_room);
        backward_piece(dx, dy, dw, x, w, a->rstd[r], coef[r - first], a->dx_beta, n);
        nn_write(a->dy, a->dtype, at, n, dy);
        nn_write(a->dx, a->dtype, at, n, dx);
    }
    for (size_t i = 0; i < n; i++)
        sum[i] += dw[i];
}

/* Columns from `from` of a span of rows. */
static void backward_span(const struct nn_rmsnorm_backward *a, int first, int end, size_t from,
                          const float *coef)
{
    const size_t n = ncols_at(from, a->dim);
    float w_room[BLOCK_COLS], sum[BLOCK_COLS] = {0};
    const float *w = weights(a->w, a->w_dtype, a->w_offset, from, n, w_room);

    if (a->dw && (first > 0 || a->dw_beta != 0.0f))
        fsdp_cpu_convert(sum, FSDP_F32, nn_at(a->dw, a->dw_dtype, from), a->dw_dtype, n);
    for (int row = first; row < end; row += BLOCK_ROWS)
        backward_block(a, row, end - row < BLOCK_ROWS ? end : row + BLOCK_ROWS, from, w,
                       coef + (row - first), sum);
    if (a->dw)
        fsdp_cpu_convert(nn_at(a->dw, a->dw_dtype, from), a->dw_dtype, sum, FSDP_F32, n);
}

static void rmsnorm_backward(const struct nn_rmsnorm_backward *a)
{
    const int span = nn_span(a->dw_dtype);
    float coef[NN_SPAN_ROWS];
    for (int first = 0; first < a->rows; first += span) {
        const int end = a->rows - first < span ? a->rows : first + span;
        for (int r = first; r < end; r++)
            coef[r - first] = coef_of_row(a, r);
        for (size_t from = 0; from < (size_t)a->dim; from += BLOCK_COLS)
            backward_span(a, first, end, from, coef);
    }
}

NN_CPU_ENQUEUE(rmsnorm_forward, nn_rmsnorm)
NN_CPU_ENQUEUE(rmsnorm_backward, nn_rmsnorm_backward)
