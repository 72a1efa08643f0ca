/* SPDX-License-Identifier: Apache-2.0 */
/* Where token ids come in: batches, embedding, cross-entropy. */
#include <math.h>

#include "cpu.h"

static void split_tokens(const struct nn_split_tokens *a)
{
    for (int b = 0; b < a->B; b++) {
        const int32_t *row = a->tokens + (size_t)b * (size_t)(a->T + 1);
        const size_t at = (size_t)b * (size_t)a->T, nbytes = (size_t)a->T * sizeof *row;
        memcpy(a->inputs + at, row, nbytes);
        if (a->targets)
            memcpy(a->targets + at, row + 1, nbytes);
    }
}

static void positions(const struct nn_positions *a)
{
    for (int b = 0; b < a->B; b++)
        for (int t = 0; t < a->T; t++) {
            const size_t at = (size_t)b * (size_t)a->T + (size_t)t;
            a->out[at] = a->first + t - (a->starts ? a->starts[at] : 0);
        }
}

/* to[at ..] += x, or = x where `overwrite`. */
static void add_row(void *to, enum fsdp_dtype to_dtype, size_t at, const void *x,
                    enum fsdp_dtype x_dtype, size_t x_at, size_t nelem, bool overwrite)
{
    float to_room[NN_PIECE], x_room[NN_PIECE];

    if (overwrite) {
        fsdp_cpu_convert(nn_at(to, to_dtype, at), to_dtype, nn_at(x, x_dtype, x_at), x_dtype,
                         nelem);
        return;
    }
    for (size_t from = 0; from < nelem; from += NN_PIECE) {
        const size_t n = nelem - from < NN_PIECE ? nelem - from : NN_PIECE;
        const float *restrict in = nn_read(x, x_dtype, x_at + from, n, x_room);
        float *restrict out = nn_change(to, to_dtype, at + from, n, to_room);
        for (size_t i = 0; i < n; i++)
            out[i] += in[i];
        nn_write(to, to_dtype, at + from, n, out);
    }
}

static void embedding_forward(const struct nn_embedding *a)
{
    const size_t dim = (size_t)a->dim;
    for (int r = 0; r < a->rows; r++)
        add_row(a->out, a->dtype, (size_t)r * dim, a->w, a->w_dtype, (size_t)a->tokens[r] * dim,
                dim, a->beta == 0.0f);
}

/* In the order of the rows, so that repeated tokens give the same sums in every run. */
static void embedding_backward(const struct nn_embedding *a)
{
    const size_t dim = (size_t)a->dim;
    if (!a->out)
        return;
    if (a->beta == 0.0f)
        memset(a->out, 0, (size_t)a->vocab * dim * fsdp_dtype_nbytes(a->dw_dtype));
    for (int r = 0; r < a->rows; r++)
        add_row(a->out, a->dw_dtype, (size_t)a->tokens[r] * dim, a->dy, a->dtype, (size_t)r * dim,
                dim, false);
}

FSDP_CPU_CLONES static void exp_piece(float *to, const float *in, size_t nelem, float most)
{
    FSDP_INDEPENDENT
    for (size_t i = 0; i < nelem; i++)
        to[i] = nn_exp(in[i] - most);
}

FSDP_CPU_CLONES static void scale_row(float *x, size_t nelem, float scale)
{
    for (size_t i = 0; i < nelem; i++)
        x[i] *= scale;
}

/* exp(x - most) of one row into out (which may be x), and the sum of it. Pieces are summed while
 * they are in the nearest cache. */
static double exp_row(float *out, const float *x, size_t nelem, float most)
{
    enum { PIECE = 1024 };
    double sum = 0;
    for (size_t from = 0; from < nelem; from += PIECE) {
        size_t n = nelem - from < PIECE ? nelem - from : PIECE;
        exp_piece(out + from, x + from, n, most);
        sum += (double)nn_sum(out + from, n);
    }
    return sum;
}

/* A row of a 16-bit type, in pieces that are converted: as a row of fp32 with these values. */
static double entropy_narrow_row(const struct nn_cross_entropy *a, void *row, size_t target,
                                 float grad_scale)
{
    const size_t vocab = (size_t)a->vocab;
    float room[NN_PIECE], most = -INFINITY, x_target = 0;
    double sum = 0;

    for (size_t from = 0, n; from < vocab; from += n) {
        n = vocab - from < NN_PIECE ? vocab - from : NN_PIECE;
        most = fmaxf(most, nn_max(nn_read(row, a->dtype, from, n, room), n));
        if (target >= from && target - from < n)
            x_target = room[target - from];
    }
    for (size_t from = 0, n; from < vocab; from += n) {
        n = vocab - from < NN_PIECE ? vocab - from : NN_PIECE;
        exp_piece(room, nn_read(row, a->dtype, from, n, room), n, most);
        sum += (double)nn_sum(room, n);
    }
    for (size_t from = 0, n; from < vocab && a->grad; from += n) {
        n = vocab - from < NN_PIECE ? vocab - from : NN_PIECE;
        exp_piece(room, nn_read(row, a->dtype, from, n, room), n, most);
        scale_row(room, n, (float)((double)grad_scale / sum));
        if (target >= from && target - from < n)
            room[target - from] -= grad_scale;
        fsdp_cpu_convert(nn_at(row, a->dtype, from), a->dtype, room, FSDP_F32, n);
    }
    return log(sum) - ((double)x_target - (double)most);
}

/* The row's loss; its logits become gradients if they are wanted. */
static double entropy_row(const struct nn_cross_entropy *a, size_t row)
{
    const size_t vocab = (size_t)a->vocab;
    const float grad_scale = a->scale * (a->loss_scale ? *a->loss_scale : 1);
    float *x = nn_at(a->logits, a->dtype, row * (size_t)nn_cross_entropy_ld(a));

    if (a->targets[row] < 0) {
        if (a->grad)
            memset(x, 0, vocab * fsdp_dtype_nbytes(a->dtype));
        return 0;
    }
    const size_t target = (size_t)a->targets[row];
    if (a->dtype != FSDP_F32)
        return entropy_narrow_row(a, x, target, grad_scale);
    const float most = nn_max(x, vocab), x_target = x[target];
    const double sum = exp_row(x, x, vocab, most);
    if (a->grad) {
        scale_row(x, vocab, (float)((double)grad_scale / sum));
        x[target] -= grad_scale;
    }
    return log(sum) - ((double)x_target - (double)most);
}

enum { SPAN_ROWS = 256 };

/* Rows from `first` on; their losses are added up afterwards, in order. */
struct span {
    const struct nn_cross_entropy *a;
    int first;
    double loss[SPAN_ROWS];
};

static void entropy_rows(void *arg, int worker, size_t from, size_t to)
{
    struct span *span = arg;
    (void)worker;
    for (size_t r = from; r < to; r++)
        span->loss[r] = entropy_row(span->a, (size_t)span->first + r);
}

static void cross_entropy(const struct nn_cross_entropy *a)
{
    struct span span = {.a = a};
    double loss = 0;
    for (; span.first < a->rows; span.first += SPAN_ROWS) {
        const int rest = a->rows - span.first, nrows = rest < SPAN_ROWS ? rest : SPAN_ROWS;
        fsdp_cpu_for((size_t)nrows, 4, entropy_rows, &span);
        for (int r = 0; r < nrows; r++)
            loss += span.loss[r];
    }
    *a->loss_sum += loss;
}

NN_CPU_ENQUEUE(split_tokens, nn_split_tokens)
NN_CPU_ENQUEUE(positions, nn_positions)
NN_CPU_ENQUEUE(embedding_forward, nn_embedding)
NN_CPU_ENQUEUE(embedding_backward, nn_embedding)
NN_CPU_ENQUEUE(cross_entropy, nn_cross_entropy)
