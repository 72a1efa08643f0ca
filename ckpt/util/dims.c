/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "dims.h"

const uint64_t ckpt_dims_zero[FSDP_MAX_DIMS];

enum { FIRST_NELEM = 64, MOST_NELEM = 32 << 10 };

struct ckpt_dims_block {
    struct ckpt_dims_block *next;
    size_t used, nelem;
    uint64_t elems[];
};

/* Blocks double up to 256 KiB: a file of one tensor needs few bytes. */
static int block_add(struct ckpt_dims *pool, struct fsdp_err *err)
{
    size_t nelem = pool->blocks ? 2 * pool->blocks->nelem : FIRST_NELEM;
    nelem = nelem < MOST_NELEM ? nelem : MOST_NELEM;
    struct ckpt_dims_block *block =
        fsdp_alloc_unset(sizeof *block + nelem * sizeof *block->elems, 1, "shapes", err);
    if (!block)
        return FSDP_ENOMEM;
    *block = (struct ckpt_dims_block){.next = pool->blocks, .nelem = nelem};
    pool->blocks = block;
    return FSDP_OK;
}

const uint64_t *ckpt_dims_keep(struct ckpt_dims *pool, const uint64_t *dims, int ndim,
                               struct fsdp_err *err)
{
    const size_t nelem = (size_t)ndim;
    if (!nelem || !memcmp(dims, ckpt_dims_zero, nelem * sizeof *dims))
        return ckpt_dims_zero;
    if ((!pool->blocks || pool->blocks->nelem - pool->blocks->used < nelem) && block_add(pool, err))
        return NULL;
    struct ckpt_dims_block *block = pool->blocks;
    uint64_t *out = block->elems + block->used;
    memcpy(out, dims, nelem * sizeof *dims);
    block->used += nelem;
    return out;
}

void ckpt_dims_free(struct ckpt_dims *pool)
{
    while (pool->blocks) {
        struct ckpt_dims_block *next = pool->blocks->next;
        fsdp_free(pool->blocks);
        pool->blocks = next;
    }
}
