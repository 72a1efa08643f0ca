/* SPDX-License-Identifier: Apache-2.0 */
/* The elements of output tensors, out of the stored ones that they are made of. */
#include "util/crc.h"
#include "job.h"

/* A box of a stored tensor. */
static int read_box(uint64_t *sum, uint32_t *crc32c, struct ckpt *ckpt, int tensor,
                    const struct fsdp_box *box, void *dst, void *scratch, size_t scratch_nbytes,
                    struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &ckpt->m.layout.tensors[tensor].tensor;
    struct ckpt_plan plan;
    FSDP_TRY(
        ckpt_plan_make(&plan, &ckpt->m.layout, tensor, box, fsdp_box_nelem(box, t->ndim), err));
    int rc = plan.nblocks
                 ? ckpt_block_read(ckpt, &plan, &plan.blocks[0], dst, scratch, scratch_nbytes, err)
                 : FSDP_OK;
    ckpt_plan_free(&plan);
    if (rc == FSDP_OK && sum)
        *sum ^= ckpt_fingerprint_part_summed(crc32c, t, box, dst);
    return rc;
}

int ckpt_job_read(uint64_t *sum, uint32_t *crc32c, const struct ckpt_job *job,
                  const struct ckpt_job_part *part, const struct fsdp_box *box, void *dst,
                  void *scratch, size_t scratch_nbytes, struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &job->ckpt->m.layout.tensors[part->tensor].tensor;
    struct fsdp_box from = *box;
    if (part->order == CKPT_ROWS_SAME) {
        from.offset[0] = t->ndim ? ckpt_job_src_row(part, box->offset[0]) : 0;
        return read_box(sum, crc32c, job->ckpt, part->tensor, &from, dst, scratch, scratch_nbytes,
                        err);
    }
    from.length[0] = 1;
    uint64_t row_nbytes = fsdp_box_nelem(&from, t->ndim) * fsdp_dtype_nbytes(t->dtype);
    for (uint64_t r = 0; r < box->length[0]; r++) {
        from.offset[0] = ckpt_job_src_row(part, box->offset[0] + r);
        FSDP_TRY(read_box(sum, crc32c, job->ckpt, part->tensor, &from, (char *)dst + r * row_nbytes,
                          scratch, scratch_nbytes, err));
    }
    return FSDP_OK;
}
