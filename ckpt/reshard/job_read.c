/* SPDX-License-Identifier: Apache-2.0 */
/* The elements of output tensors, out of the stored ones that they are made of. */
#include "util/crc.h"
#include "job.h"

/* A box of a stored tensor. */
static int read_box(const struct ckpt_job_dst *to, struct ckpt *ckpt, int tensor,
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

int ckpt_job_read(const struct ckpt_job_dst *to, const struct ckpt_job *job,
                  const struct ckpt_job_part *part, const struct fsdp_box *box,
                  struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &job->ckpt->m.layout.tensors[part->tensor].tensor;
    struct fsdp_box from = *box;
    if (part->order == CKPT_ROWS_SAME) {
        from.offset[0] = t->ndim ? ckpt_job_src_row(part, box->offset[0]) : 0;
        return read_box(to, job->ckpt, part->tensor, &from, err);
    }
    from.length[0] = 1;
    uint64_t row_nbytes = fsdp_box_nelem(&from, t->ndim) * fsdp_dtype_nbytes(t->dtype);
    struct ckpt_job_dst row = *to;
    for (uint64_t r = 0; r < box->length[0]; r++) {
        from.offset[0] = ckpt_job_src_row(part, box->offset[0] + r);
        row.dst = (char *)to->dst + r * row_nbytes;
        FSDP_TRY(read_box(&row, job->ckpt, part->tensor, &from, err));
    }
    return FSDP_OK;
}
