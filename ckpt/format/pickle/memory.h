/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a pickle's values: chunks that are freed together, and blocks that values gave back
 * while they were made. */
#ifndef CKPT_PICKLE_MEMORY_H
#define CKPT_PICKLE_MEMORY_H

#include "pickle.h"

enum { CKPT_PK_GIVEN_NBYTES = 256 }; /* larger blocks are not kept for reuse */

struct ckpt_pk_chunk {
    struct ckpt_pk_chunk *next;
    size_t used, nbytes;
    _Alignas(8) char data[];
};

struct ckpt_pk_memory {
    struct ckpt_pickle *pickle; /* has the chunks */
    size_t input_nbytes;        /* sizes the chunks */
    size_t room;                /* that values may still take */
    bool exhausted;             /* more than that was asked for */
    struct ckpt_pk_block {
        struct ckpt_pk_block *next;
    } * given[CKPT_PK_GIVEN_NBYTES / 8 + 1]; /* by bytes / 8 */
    struct fsdp_err *err;
};

/* From a new chunk. Large blocks have one of their own. */
void *ckpt_pk_take_more(struct ckpt_pk_memory *mem, size_t nbytes);
/* Takes back what ckpt_pk_take gave for nbytes. */
void ckpt_pk_give(struct ckpt_pk_memory *mem, void *block, size_t nbytes);
void ckpt_pk_chunks_free(struct ckpt_pk_chunk *chunk);

/* An object and its values. */
static inline size_t ckpt_pk_object_nbytes(size_t nvalues)
{
    return sizeof(struct ckpt_pk) + nvalues * sizeof(struct ckpt_pk *);
}

/* nbytes, not 0, aligned for pointers and integers. NULL: out of memory, or exhausted. */
static inline void *ckpt_pk_take(struct ckpt_pk_memory *mem, size_t nbytes)
{
    struct ckpt_pk_chunk *chunk = mem->pickle->chunks;
    nbytes = (nbytes + 7) & ~(size_t)7;
    if (nbytes > mem->room) {
        mem->exhausted = true;
        return NULL;
    }
    if (nbytes <= CKPT_PK_GIVEN_NBYTES && mem->given[nbytes / 8]) {
        struct ckpt_pk_block *block = mem->given[nbytes / 8];
        mem->given[nbytes / 8] = block->next;
        mem->room -= nbytes;
        return block;
    }
    if (!chunk || chunk->nbytes - chunk->used < nbytes)
        return ckpt_pk_take_more(mem, nbytes);
    void *at = chunk->data + chunk->used;
    chunk->used += nbytes;
    mem->room -= nbytes;
    return at;
}

#endif
