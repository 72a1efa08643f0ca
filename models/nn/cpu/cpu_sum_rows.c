/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over the rows of a matrix, in blocks, which keep the sums short. */
#include "cpu.h"

enum { BLOCK_ROWS = 32, BLOCK_COLS = 512 };

/* total += rows [first, end) of `ncols` columns from `from`. */
static void add_block(const struct nn_row_sum *a, float *total, int first, int end, size_t from,
                      size_t ncols)
{
    float room[BLOCK_COLS], sum[BLOCK_COLS] = {0};

    for (int r = first; r < end; r++) {
        const size_t at = (size_t)r * (size_t)a->ld + from;
        const float *in = nn_read(a->in, a->in_dtype, at, ncols, room);
        for (size_t i = 0; i < ncols; i++)
            sum[i] += in[i];
    }
    for (size_t i = 0; i < ncols; i++)
        total[i] += sum[i];
}

void nn_sum_rows(const struct nn_row_sum *a)
{
    const size_t width = (size_t)a->ncols;

    for (size_t from = 0; from < width; from += BLOCK_COLS) {
        const size_t ncols = width - from < BLOCK_COLS ? width - from : BLOCK_COLS;
        void *out = nn_at(a->out, a->out_dtype, from);
        float total[BLOCK_COLS] = {0};
        if (a->beta != 0.0f)
            fsdp_cpu_convert(total, FSDP_F32, out, a->out_dtype, ncols);
        for (int row = 0; row < a->nrows; row += BLOCK_ROWS)
            add_block(a, total, row, a->nrows - row < BLOCK_ROWS ? a->nrows : row + BLOCK_ROWS,
                      from, ncols);
        fsdp_cpu_convert(out, a->out_dtype, total, FSDP_F32, ncols);
    }
}
