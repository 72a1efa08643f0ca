/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nf4.h: frozen matrices in 4 bits. A rank's shard of a flat of s elements is
 *
 *   [ s / 2: codes, two a byte | s / 64: codes of the scales of blocks ]
 *
 * and is sent so. What the scales themselves are scaled by belongs to a whole tensor and is on
 * every rank: 4 bytes for 16,384 elements.
 *
 * Values that are written wait in host memory until all of the rank's part of a tensor is there,
 * and are quantized then. Scales follow when all ranks are done (nf4_settle): their offset is the
 * mean over the tensor. They are the same at every number of ranks.
 */
#ifndef CORE_NF4_H
#define CORE_NF4_H

#include "core/engine.h"

/* ---- sizes: pure ---- */

static inline uint64_t nf4_shard_nbytes(const struct flat *flat)
{
    return flat->cut.shard_nelem / 2 + flat->cut.shard_nelem / FSDP_NF4_BLOCK;
}

/* ---- planning ---- */

/* Lists the tensors. */
int nf4_plan(struct fsdp *f, struct fsdp_err *err);
void nf4_destroy(struct fsdp *f);
/* Memory of the device for what scales are scaled by, and where it is. */
uint64_t nf4_scales_nbytes(const struct fsdp *f);
void nf4_place(struct fsdp *f, char *mem);

/* ---- decoding ---- */

/* Elements [first, first + nelem) of a tensor, which lie from `pos` on in a shard. */
struct nf4_part {
    const struct flat *flat;
    int tensor;
    const char *shard;
    uint64_t pos, first, nelem;
    uint64_t count, step; /* so many ranks' parts, whose shards lie so far apart; 0: one */
    void *dst;
    enum fsdp_dtype dst_dtype;
};
/* Enqueues. */
int nf4_decode(const struct fsdp *f, const struct nf4_part *part, struct fsdp_lane *lane,
               struct fsdp_err *err);

/* ---- values, as if there were a master ---- */

/* A piece of one tensor in this rank's shard of a flat, from a block on: out of it, to device
 * memory, and into it. Enqueue on the compute lane; the second blocks. */
int nf4_get(struct fsdp *f, int flat, uint64_t pos, float *x, uint64_t nelem, struct fsdp_err *err);
int nf4_put(struct fsdp *f, int flat, uint64_t pos, const float *x, uint64_t nelem,
            struct fsdp_err *err);

/* This rank's part of a tensor as bytes of fp32, to host memory and from it. Block. */
struct nf4_slice {
    struct fsdp *f;
    int flat, tensor;
};
int nf4_read(const struct nf4_slice *slice, uint64_t pos, void *dst, size_t nbytes,
             struct fsdp_err *err);
int nf4_write(const struct nf4_slice *slice, uint64_t pos, const void *src, size_t nbytes,
              struct fsdp_err *err);

/* ---- after values were written ---- */

/* Quantizes the scales of tensors that were written, from replica 0's values; FSDP_EINVAL names one
 * that was written in part. Then nf4_share gives rank 0's numbers of whole tensors to all, and
 * codes go to replicas like any shard. Collective, block. */
int nf4_settle(struct fsdp *f, struct fsdp_err *err);
int nf4_share(struct fsdp *f, struct fsdp_err *err);

#endif
