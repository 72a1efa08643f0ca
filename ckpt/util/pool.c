/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "pool.h"

const uint64_t ckpt_dims_zero[FSDP_MAX_DIMS];

enum { FIRST_NBYTES = 512, MOST_NBYTES = 256 << 10 };

struct ckpt_pool_block {
    struct ckpt_pool_block *next;
    size_t used, nbytes;
    _Alignas(uint64_t) char data[];
};

/* Blocks double up to 256 KiB: a file of one tensor needs few bytes. */
static int block_add(struct ckpt_pool *pool, size_t least, struct fsdp_err *err)
{
    size_t nbytes = pool->blocks ? 2 * pool->blocks->nbytes : FIRST_NBYTES;
    nbytes = nbytes < MOST_NBYTES ? nbytes : MOST_NBYTES;
    nbytes = nbytes > least ? nbytes : least;
    struct ckpt_pool_block *block =
        fsdp_alloc_unset(sizeof *block + nbytes, 1, "names and shapes", err);
    if (!block)
        return FSDP_ENOMEM;
    *block = (struct ckpt_pool_block){.next = pool->blocks, .nbytes = nbytes};
    pool->blocks = block;
    return FSDP_OK;
}

char *ckpt_pool_text(struct ckpt_pool *pool, size_t nbytes, struct fsdp_err *err)
{
    if ((!pool->blocks || pool->blocks->nbytes - pool->blocks->used < nbytes) &&
        block_add(pool, nbytes, err))
        return NULL;
    char *out = pool->blocks->data + pool->blocks->used;
    pool->blocks->used += nbytes;
    return out;
}

static size_t recent_slot(const uint64_t *dims, int ndim)
{
    uint64_t sum = (uint64_t)ndim;
    for (int d = 0; d < ndim; d++)
        sum = sum * 31 + dims[d];
    return (size_t)(sum ^ sum >> 8 ^ sum >> 16) % CKPT_POOL_NRECENT;
}

const uint64_t *ckpt_pool_dims(struct ckpt_pool *pool, const uint64_t *dims, int ndim,
                               struct fsdp_err *err)
{
    const size_t nbytes = (size_t)ndim * sizeof *dims;
    if (!nbytes || !memcmp(dims, ckpt_dims_zero, nbytes))
        return ckpt_dims_zero;
    const size_t slot = recent_slot(dims, ndim);
    if (pool->recent_ndim[slot] == ndim && !memcmp(pool->recent[slot], dims, nbytes))
        return pool->recent[slot];
    uint64_t *out = (void *)ckpt_pool_text(pool, nbytes, err);
    if (!out)
        return NULL;
    memcpy(out, dims, nbytes);
    pool->recent[slot] = out;
    pool->recent_ndim[slot] = (uint8_t)ndim;
    return out;
}

void ckpt_pool_free(struct ckpt_pool *pool)
{
    while (pool->blocks) {
        struct ckpt_pool_block *next = pool->blocks->next;
        fsdp_free(pool->blocks);
        pool->blocks = next;
    }
    memset(pool, 0, sizeof *pool);
}
