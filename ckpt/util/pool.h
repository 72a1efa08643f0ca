/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h: names, shapes and offsets of many tensors, each as long as it is, freed together. An
 * array of FSDP_MAX_DIMS or an allocation for each would be most of what a list of tensors takes.
 */
#ifndef CKPT_POOL_H
#define CKPT_POOL_H

#include "fsdp/base.h"

enum { CKPT_POOL_NRECENT = 16 };

/* Zeroed: empty. Holds either texts or dims. */
struct ckpt_pool {
    struct ckpt_pool_block *blocks;
    /* Lists of dims that came last: layers repeat their shapes. */
    const uint64_t *recent[CKPT_POOL_NRECENT];
    uint8_t recent_ndim[CKPT_POOL_NRECENT];
};

/* A copy of dims[ndim] that lives until ckpt_pool_free; equal lists may be one. NULL: out of
 * memory. */
const uint64_t *ckpt_pool_dims(struct ckpt_pool *pool, const uint64_t *dims, int ndim,
                               struct fsdp_err *err);
/* Room for nbytes of text, uninitialized, that lives until ckpt_pool_free. NULL: out of memory. */
char *ckpt_pool_text(struct ckpt_pool *pool, size_t nbytes, struct fsdp_err *err);
void ckpt_pool_free(struct ckpt_pool *pool);

/* FSDP_MAX_DIMS zeros. */
extern const uint64_t ckpt_dims_zero[FSDP_MAX_DIMS];

#endif
