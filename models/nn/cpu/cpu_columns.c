/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths of the rows of adapted weights, and products of columns with them. */
#include <math.h>

#include "cpu.h"

/* ---- lengths --------------------------------------------------------------------------------- */

static float element_of(const void *x, enum fsdp_dtype dtype, size_t at)
{
    float value;
    fsdp_cpu_convert(&value, FSDP_F32, nn_at(x, dtype, at), dtype, 1);
    return value;
}

/* Weights [at, at + n) of an output. */
static void read_weights(float *row, const struct nn_lengths *x, size_t output, size_t at, size_t n)
{
    if (!x->ldw) {
        const size_t from = output * (size_t)x->nin + at;
        fsdp_cpu_convert(row, FSDP_F32, nn_at(x->w, x->dtype, from), x->dtype, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        row[i] = element_of(x->w, x->dtype, (at + i) * (size_t)x->ldw + output);
}

FSDP_CPU_CLONES static void add_scaled(float *restrict row, const float *restrict a, float factor,
                                       size_t n)
{
    for (size_t i = 0; i < n; i++)
        row[i] += factor * a[i];
}

static void lengths_part(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_lengths *x = arg;
    const size_t nin = (size_t)x->nin, r = (size_t)x->r;
    float row[NN_PIECE], room[NN_PIECE];

    (void)worker;
    for (size_t o = from; o < to; o++) {
        double sum = 0;
        for (size_t at = 0; at < nin; at += NN_PIECE) {
            const size_t n = nin - at < NN_PIECE ? nin - at : NN_PIECE;
            read_weights(row, x, o, at, n);
            for (size_t k = 0; k < r; k++)
                add_scaled(row, nn_read(x->a, x->dtype, k * nin + at, n, room),
                           x->scale * element_of(x->b, x->dtype, o * r + k), n);
            sum += (double)nn_dot(row, row, n);
        }
        x->length[o] = (float)sqrt(sum);
    }
}

static void lengths(struct nn_lengths *x)
{
    const size_t each = (size_t)x->nin * (size_t)(x->r + 1);
    fsdp_cpu_for((size_t)x->nout, each < NN_GRAIN ? NN_GRAIN / each : 1, lengths_part, x);
}

/* ---- columns --------------------------------------------------------------------------------- */

FSDP_CPU_CLONES static void scale_row(float *out, const float *x, const float *factor,
                                      const float *b, size_t n)
{
    FSDP_INDEPENDENT
    for (size_t i = 0; i < n; i++)
        out[i] = x[i] * factor[i] + b[i];
}

/* Columns [from, from + n) of all rows. */
static void scale_block(const struct nn_columns *a, size_t from, size_t n)
{
    float factor[NN_PIECE], bias[NN_PIECE] = {0}, sum[NN_PIECE], room[2][NN_PIECE];

    fsdp_cpu_convert(factor, FSDP_F32, nn_at(a->magnitude, a->w_dtype, from), a->w_dtype, n);
    for (size_t i = 0; i < n; i++)
        factor[i] /= a->length[from + i];
    if (a->b)
        fsdp_cpu_convert(bias, FSDP_F32, nn_at(a->b, a->w_dtype, from), a->w_dtype, n);
    for (int r = 0; r < a->rows; r++) {
        const size_t at = (size_t)r * (size_t)nn_columns_ld(a) + from;
        const float *x = nn_read(a->x, a->dtype, at, n, room[0]), *added = bias;
        if (a->beta != 0.0f) {
            const float *was = nn_read(a->out, a->dtype, at, n, room[1]);
            memcpy(sum, bias, n * sizeof *sum);
            add_scaled(sum, was, a->beta, n);
            added = sum;
        }
        float *out = nn_piece(a->out, a->dtype, at, room[1]);
        scale_row(out, x, factor, added, n);
        nn_write(a->out, a->dtype, at, n, out);
    }
}

static void columns_forward_part(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_columns *a = arg;

    (void)worker;
    for (size_t at = from; at < to; at += NN_PIECE)
        scale_block(a, at, to - at < NN_PIECE ? to - at : NN_PIECE);
}

FSDP_CPU_CLONES static void add_products(float *restrict sum, const float *restrict x,
                                         const float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += x[i] * y[i];
}

/* total += products of rows [first, end), columns [from, from + n). */
static void add_rows(float *total, const struct nn_columns *a, int first, int end, size_t from,
                     size_t n)
{
    float sum[NN_PIECE] = {0}, room[2][NN_PIECE];

    for (int r = first; r < end; r++) {
        const size_t at = (size_t)r * (size_t)nn_columns_ld(a) + from;
        add_products(sum, nn_read(a->x, a->dtype, at, n, room[0]),
                     nn_read(a->dy, a->dtype, at, n, room[1]), n);
    }
    for (size_t i = 0; i < n; i++)
        total[i] += sum[i];
}

/* The order of the sum follows from the number of rows alone. */
static void sum_block(const struct nn_columns *a, size_t from, size_t n)
{
    float total[NN_PIECE] = {0}, room[NN_PIECE];

    for (int row = 0; row < a->rows; row += NN_BLOCK_ROWS)
        add_rows(total, a, row, a->rows - row < NN_BLOCK_ROWS ? a->rows : row + NN_BLOCK_ROWS, from,
                 n);
    for (size_t i = 0; i < n; i++)
        total[i] /= a->length[from + i];
    if (a->beta != 0.0f)
        add_scaled(total, nn_read(a->out, a->dw_dtype, from, n, room), a->beta, n);
    fsdp_cpu_convert(nn_at(a->out, a->dw_dtype, from), a->dw_dtype, total, FSDP_F32, n);
}

static void columns_backward_part(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_columns *a = arg;

    (void)worker;
    for (size_t at = from; at < to; at += NN_PIECE)
        sum_block(a, at, to - at < NN_PIECE ? to - at : NN_PIECE);
}

/* Columns are divided among threads, a cache line at least for each. */
enum { COLUMNS_GRAIN = 64 };

static void columns_forward(struct nn_columns *a)
{
    fsdp_cpu_for((size_t)a->cols, COLUMNS_GRAIN, columns_forward_part, a);
}

static void columns_backward(struct nn_columns *a)
{
    fsdp_cpu_for((size_t)a->cols, COLUMNS_GRAIN, columns_backward_part, a);
}

NN_CPU_ENQUEUE(lengths, nn_lengths)
NN_CPU_ENQUEUE(columns_forward, nn_columns)
NN_CPU_ENQUEUE(columns_backward, nn_columns)
