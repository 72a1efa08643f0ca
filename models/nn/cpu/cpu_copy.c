/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu.h"

static void copy_rows(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_copy_blocks *a = arg;
    const size_t nbytes = (size_t)a->width * fsdp_dtype_nbytes(a->dtype);

    (void)worker;
    for (size_t r = from; r < to; r++)
        for (size_t j = 0; j < (size_t)a->nblocks; j++)
            memcpy(nn_at(a->out, a->dtype, r * (size_t)a->out_row + j * (size_t)a->out_block),
                   nn_at(a->x, a->dtype, r * (size_t)a->x_row + j * (size_t)a->x_block), nbytes);
}

static void copy_blocks(struct nn_copy_blocks *a)
{
    const size_t row_nelem = (size_t)a->nblocks * (size_t)a->width;
    fsdp_cpu_for((size_t)a->rows, row_nelem < NN_GRAIN ? NN_GRAIN / (row_nelem + 1) + 1 : 1,
                 copy_rows, a);
}

NN_CPU_ENQUEUE(copy_blocks, nn_copy_blocks)
