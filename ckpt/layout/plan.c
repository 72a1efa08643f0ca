/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "plan.h"

/* Row-major strides of a box, in elements. */
static void strides_of(uint64_t *stride, const struct fsdp_box *box, int ndim)
{
    uint64_t next = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        stride[d] = next;
        next *= box->length[d];
    }
}

static void extent_make(struct ckpt_extent *out, const struct ckpt_piece *piece,
                        const struct fsdp_box *block, const struct fsdp_box *both, int ndim,
                        size_t elem_nbytes)
{
    const struct fsdp_box stored = ckpt_piece_box(piece, ndim);
    uint64_t src_stride[FSDP_MAX_DIMS], dst_stride[FSDP_MAX_DIMS], src = 0;
    int d = ndim;

    *out = (struct ckpt_extent){.file = piece->file, .run_nelem = 1};
    strides_of(src_stride, &stored, ndim);
    strides_of(dst_stride, block, ndim);
    for (int k = 0; k < ndim; k++) {
        src += (both->offset[k] - piece->offset[k]) * src_stride[k];
        out->dst += (both->offset[k] - block->offset[k]) * dst_stride[k];
    }
    out->pos = (piece->blob_nbytes ? 0 : piece->pos) + src * elem_nbytes;
    /* Dimensions that both boxes span whole are one run with the dimension before them. */
    while (d > 0) {
        d--;
        out->run_nelem *= both->length[d];
        if (both->length[d] != piece->length[d] || both->length[d] != block->length[d])
            break;
    }
    out->span_nelem = out->run_nelem;
    for (int k = 0; k < d; k++) {
        if (both->length[k] == 1)
            continue;
        out->count[out->nloops] = both->length[k];
        out->src_stride[out->nloops] = src_stride[k];
        out->dst_stride[out->nloops++] = dst_stride[k];
        out->span_nelem += (both->length[k] - 1) * src_stride[k];
    }
}

static int extent_add(struct ckpt_plan *plan, const struct ckpt_extent *extent,
                      struct fsdp_err *err)
{
    struct ckpt_extent *extents = fsdp_alloc_grow(plan->extents, plan->nextents, &plan->max_extents,
                                                  sizeof *extents, "plan", err);
    if (!extents)
        return FSDP_ENOMEM;
    plan->extents = extents;
    plan->extents[plan->nextents++] = *extent;
    return FSDP_OK;
}

static int block_add(struct ckpt_plan *plan, const struct ckpt_layout *layout,
                     const struct fsdp_box *box, uint64_t pos, struct fsdp_err *err)
{
    const struct fsdp_tensor *tensor = &layout->tensors[plan->tensor].tensor;
    size_t low = layout->first[plan->tensor], high = layout->first[plan->tensor + 1], end = high;

    struct ckpt_block *blocks = fsdp_alloc_grow(plan->blocks, plan->nblocks, &plan->max_blocks,
                                                sizeof *blocks, "plan", err);
    if (!blocks)
        return FSDP_ENOMEM;
    plan->blocks = blocks;
    struct ckpt_block *block = &plan->blocks[plan->nblocks++];
    *block = (struct ckpt_block){.box = *box,
                                 .pos = pos,
                                 .nelem = fsdp_box_nelem(box, tensor->ndim),
                                 .first = plan->nextents};
    /* Pieces are sorted by offset and `reach` never falls: skip those that end before the block. */
    while (tensor->ndim && low < high) {
        size_t mid = low + (high - low) / 2;
        if (layout->pieces[mid].reach <= box->offset[0])
            low = mid + 1;
        else
            high = mid;
    }
    for (; low < end; low++) {
        const struct ckpt_piece *piece = &layout->pieces[low];
        struct fsdp_box both;
        struct ckpt_extent extent;
        if (tensor->ndim && piece->offset[0] >= box->offset[0] + box->length[0])
            break;
        const struct fsdp_box stored = ckpt_piece_box(piece, tensor->ndim);
        if (!fsdp_box_intersect(&both, &stored, box, tensor->ndim))
            continue;
        extent_make(&extent, piece, box, &both, tensor->ndim, fsdp_dtype_nbytes(tensor->dtype));
        extent.piece = low;
        FSDP_TRY(extent_add(plan, &extent, err));
        block->nextents++;
    }
    return FSDP_OK;
}

/* Cuts `box` along dimension d into blocks; where one index of d is too large, along the next. */
static int cut_box(struct ckpt_plan *plan, const struct ckpt_layout *layout,
                   const struct fsdp_box *box, int d, uint64_t pos, uint64_t block_nelem,
                   struct fsdp_err *err)
{
    int ndim = layout->tensors[plan->tensor].tensor.ndim;
    uint64_t nelem = fsdp_box_nelem(box, ndim);

    if (nelem <= block_nelem || d == ndim)
        return block_add(plan, layout, box, pos, err);
    uint64_t row = nelem / box->length[d], rows = row < block_nelem ? block_nelem / row : 1;
    for (uint64_t i = 0; i < box->length[d]; i += rows) {
        struct fsdp_box part = *box;
        part.offset[d] += i;
        part.length[d] = box->length[d] - i < rows ? box->length[d] - i : rows;
        FSDP_TRY(cut_box(plan, layout, &part, d + 1, pos + i * row, block_nelem, err));
    }
    return FSDP_OK;
}

int ckpt_plan_make(struct ckpt_plan *out, const struct ckpt_layout *layout, int tensor,
                   const struct fsdp_box *want, uint64_t block_nelem, struct fsdp_err *err)
{
    memset(out, 0, sizeof *out);
    out->tensor = tensor;
    if (!fsdp_box_nelem(want, layout->tensors[tensor].tensor.ndim))
        return FSDP_OK;
    int rc = cut_box(out, layout, want, 0, 0, block_nelem ? block_nelem : 1, err);
    if (rc)
        ckpt_plan_free(out);
    return rc;
}

void ckpt_plan_free(struct ckpt_plan *plan)
{
    fsdp_free(plan->blocks);
    fsdp_free(plan->extents);
    memset(plan, 0, sizeof *plan);
}
