/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu.h"

/* Single elements, which are what gate and up in turn are made of. */
#define COPY_ELEMENTS(name, type)                                                                  \
    static void name(type *restrict out, const type *restrict x, size_t nelem, size_t out_step,    \
                     size_t x_step)                                                                \
    {                                                                                              \
        if (out_step == 1 && x_step == 2)                                                          \
            for (size_t i = 0; i < nelem; i++)                                                     \
                out[i] = x[2 * i];                                                                 \
        else                                                                                       \
            for (size_t i = 0; i < nelem; i++)                                                     \
                out[i * out_step] = x[i * x_step];                                                 \
    }
COPY_ELEMENTS(copy_32, uint32_t)
COPY_ELEMENTS(copy_16, uint16_t)

static void copy_rows_of_elements(void *arg, int worker, size_t from, size_t to)
{
    const struct nn_copy_blocks *a = arg;
    const size_t nelem = (size_t)a->nblocks, out_step = (size_t)a->out_block;
    const size_t x_step = (size_t)a->x_block;

    (void)worker;
    for (size_t r = from; r < to; r++) {
        void *out = nn_at(a->out, a->dtype, r * (size_t)a->out_row);
        const void *x = nn_at(a->x, a->dtype, r * (size_t)a->x_row);
        if (fsdp_dtype_nbytes(a->dtype) == 4)
            copy_32(out, x, nelem, out_step, x_step);
        else
            copy_16(out, x, nelem, out_step, x_step);
    }
}

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
                 a->width == 1 ? copy_rows_of_elements : copy_rows, a);
}

NN_CPU_ENQUEUE(copy_blocks, nn_copy_blocks)
