/* SPDX-License-Identifier: Apache-2.0 */
/* The elements of output tensors, out of the stored ones that they are made of. */
#include <string.h>

#include "ckpt/adapter.h"
#include "average/average.h"
#include "util/crc.h"
#include "job.h"

enum fsdp_dtype ckpt_job_dtype(const struct ckpt_job *job, int stored)
{
    const enum fsdp_dtype dtype = job->ckpt->m.layout.tensors[stored].tensor.dtype;
    return job->args->average && fsdp_dtype_is_float(dtype) ? FSDP_F64 : dtype;
}

/* A box of a stored tensor, as it is stored. */
static int read_stored(const struct ckpt_job_dst *to, struct ckpt *ckpt, int tensor,
                       const struct fsdp_box *box, struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &ckpt->m.layout.tensors[tensor].tensor;
    struct ckpt_plan plan;
    FSDP_TRY(
        ckpt_plan_make(&plan, &ckpt->m.layout, tensor, box, fsdp_box_nelem(box, t->ndim), err));
    int rc = plan.nblocks ? ckpt_block_read(ckpt, &plan, &plan.blocks[0], to->dst, to->scratch,
                                            to->scratch_nbytes, err)
                          : FSDP_OK;
    ckpt_plan_free(&plan);
    if (rc == FSDP_OK && to->sum)
        *to->sum ^= ckpt_fingerprint_part_summed(to->crc32c, t, box, to->dst);
    return rc;
}

/* A box of a stored tensor, averaged and with adapters. */
static int read_box(const struct ckpt_job_dst *to, const struct ckpt_job *job, int tensor,
                    const struct fsdp_box *box, struct fsdp_err *err)
{
    const struct ckpt_tensor *stored = &job->ckpt->m.layout.tensors[tensor];
    struct fsdp_tensor weight = stored->tensor;
    uint64_t unused = 0;

    weight.name = ckpt_own_name(stored); /* as adapters know it */
    weight.dtype = ckpt_job_dtype(job, tensor);
    const struct ckpt_average_dst sums = {.dst = to->dst,
                                          .scratch = to->scratch,
                                          .scratch_nbytes = to->scratch_nbytes,
                                          .narrow = to->narrow,
                                          .sum = to->sum ? to->sum : &unused};
    if (job->args->average)
        FSDP_TRY(ckpt_average_read(&sums, job->args->average, tensor, box, err));
    else
        FSDP_TRY(read_stored(to, job->ckpt, tensor, box, err));
    if (ckpt_adapters_change(to->adapters, weight.name))
        return ckpt_adapters_apply(to->adapters, &weight, box, to->dst, err);
    return FSDP_OK;
}

/* A stored box of the part, where `from` has the box of its rows and columns. */
static struct fsdp_box in_slab(const struct ckpt_job_part *part, const struct fsdp_box *from,
                               int ndim)
{
    struct fsdp_box box = {{0}, {0}};
    box.offset[0] = part->slab;
    box.length[0] = 1;
    for (int i = 0; i < ndim - 1; i++) {
        box.offset[i + 1] = from->offset[i];
        box.length[i + 1] = from->length[i];
    }
    return box;
}

/* dst[r][c] = src[c][r * step]: nrows rows of ncols elements, from ncols rows of row_nelem. */
#define TAKE(type)                                                                                 \
    do {                                                                                           \
        type *to = dst;                                                                            \
        const type *from = src;                                                                    \
        for (uint64_t c = 0; c < ncols; c++)                                                       \
            for (uint64_t r = 0; r < nrows; r++)                                                   \
                to[r * ncols + c] = from[c * row_nelem + r * step];                                \
    } while (0)
static void take_columns(void *dst, const void *src, size_t elem_nbytes, uint64_t nrows,
                         uint64_t ncols, uint64_t step)
{
    const uint64_t row_nelem = (nrows - 1) * step + 1;
    if (elem_nbytes == 8)
        TAKE(uint64_t);
    else if (elem_nbytes == 4)
        TAKE(uint32_t);
    else if (elem_nbytes == 2)
        TAKE(uint16_t);
    else
        TAKE(uint8_t);
}
#undef TAKE

/* Through to->spare: stored columns as rows, or rows between which others are left out. */
static int read_taken(const struct ckpt_job_dst *to, const struct ckpt_job *job,
                      const struct ckpt_job_part *part, const struct fsdp_box *box,
                      struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &job->ckpt->m.layout.tensors[part->tensor].tensor;
    const bool columns = part->order == CKPT_ROWS_COLUMNS;
    const uint64_t step = 1 + (uint64_t)part->skip, nrows = box->length[0];
    const uint64_t first = ckpt_job_src_row(part, box->offset[0]), span = (nrows - 1) * step + 1;
    const size_t elem_nbytes = fsdp_dtype_nbytes(ckpt_job_dtype(job, part->tensor));
    const int ndim = t->ndim - part->in_slab;
    const uint64_t ncols = ndim > 1 ? box->length[1] : 1;
    struct fsdp_box from = *box;

    from.offset[columns] = first;
    from.length[columns] = span;
    if (columns) {
        from.offset[0] = box->offset[1];
        from.length[0] = box->length[1];
    }
    if (part->in_slab)
        from = in_slab(part, &from, t->ndim);
    struct ckpt_job_dst spare = *to;
    spare.dst = to->spare;
    FSDP_TRY(read_box(&spare, job, part->tensor, &from, err));
    if (columns)
        take_columns(to->dst, to->spare, elem_nbytes, nrows, ncols, step);
    for (uint64_t r = 0; !columns && r < nrows; r++)
        memcpy((char *)to->dst + r * ncols * elem_nbytes,
               (char *)to->spare + r * step * ncols * elem_nbytes, ncols * elem_nbytes);
    return FSDP_OK;
}

int ckpt_job_read(const struct ckpt_job_dst *to, const struct ckpt_job *job,
                  const struct ckpt_job_part *part, const struct fsdp_box *box,
                  struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &job->ckpt->m.layout.tensors[part->tensor].tensor;
    struct fsdp_box from = *box;
    if (part->order == CKPT_ROWS_COLUMNS || part->skip)
        return read_taken(to, job, part, box, err);
    if (part->order == CKPT_ROWS_SAME) {
        from.offset[0] = t->ndim ? ckpt_job_src_row(part, box->offset[0]) : 0;
        if (part->in_slab)
            from = in_slab(part, &from, t->ndim);
        return read_box(to, job, part->tensor, &from, err);
    }
    from.length[0] = 1;
    uint64_t row_nbytes =
        fsdp_box_nelem(&from, t->ndim) * fsdp_dtype_nbytes(ckpt_job_dtype(job, part->tensor));
    struct ckpt_job_dst row = *to;
    for (uint64_t r = 0; r < box->length[0]; r++) {
        from.offset[0] = ckpt_job_src_row(part, box->offset[0] + r);
        row.dst = (char *)to->dst + r * row_nbytes;
        FSDP_TRY(read_box(&row, job, part->tensor, &from, err));
    }
    return FSDP_OK;
}
