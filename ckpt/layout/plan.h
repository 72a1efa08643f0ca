/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner: from stored pieces to a wanted box, under a budget. A pure function of numbers.
 *
 * The wanted box is cut into blocks that are boxes themselves, contiguous in it, and at most
 * block_nelem elements, so that an executor fills one buffer, hands it on whole and in order, and
 * needs no more memory. Each block lists the extents of files that fill it.
 */
#ifndef CKPT_PLAN_H
#define CKPT_PLAN_H

#include "layout.h"

/* Elements of one piece that belong to one block: runs of run_nelem, repeated over nloops loops
 * (outermost first). Positions and strides count elements. */
struct ckpt_extent {
    int file;
    size_t piece; /* of the layout */
    uint64_t pos; /* byte of the file where the first run starts; in the piece, if in a blob */
    uint64_t span_nelem; /* from the first run's start to the last one's end, in the file */
    uint64_t dst;        /* where in the block the first run goes */
    uint64_t run_nelem;
    int nloops;
    uint64_t count[FSDP_MAX_DIMS], src_stride[FSDP_MAX_DIMS], dst_stride[FSDP_MAX_DIMS];
};

struct ckpt_block {
    struct fsdp_box box; /* of the tensor */
    uint64_t pos, nelem; /* where it lies in the wanted box */
    size_t first, nextents;
};

struct ckpt_plan {
    int tensor;
    size_t nblocks, max_blocks;
    struct ckpt_block *blocks;
    size_t nextents, max_extents;
    struct ckpt_extent *extents;
};

/* The layout is sealed (its coverage is proved) and the box lies in the tensor. */
int ckpt_plan_make(struct ckpt_plan *out, const struct ckpt_layout *layout, int tensor,
                   const struct fsdp_box *want, uint64_t block_nelem, struct fsdp_err *err);
void ckpt_plan_free(struct ckpt_plan *plan);

#endif
