/* SPDX-License-Identifier: Apache-2.0 */
/* Where token ids come in: batches, embedding. */
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

NN_CPU_ENQUEUE(split_tokens, nn_split_tokens)
NN_CPU_ENQUEUE(positions, nn_positions)
NN_CPU_ENQUEUE(embedding_forward, nn_embedding)
NN_CPU_ENQUEUE(embedding_backward, nn_embedding)
