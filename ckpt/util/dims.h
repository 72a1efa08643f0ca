/* SPDX-License-Identifier: Apache-2.0 */
/* dims.h: shapes and offsets of many tensors, each as long as its number of dimensions. An array of
 * FSDP_MAX_DIMS in each would be most of what a list of tensors takes. */
#ifndef CKPT_DIMS_H
#define CKPT_DIMS_H

#include "fsdp/base.h"

/* Zeroed: empty. */
struct ckpt_dims {
    struct ckpt_dims_block *blocks;
};

/* A copy of dims[ndim] that lives until ckpt_dims_free; NULL: out of memory. */
const uint64_t *ckpt_dims_keep(struct ckpt_dims *pool, const uint64_t *dims, int ndim,
                               struct fsdp_err *err);
void ckpt_dims_free(struct ckpt_dims *pool);

/* FSDP_MAX_DIMS zeros. */
extern const uint64_t ckpt_dims_zero[FSDP_MAX_DIMS];

#endif
