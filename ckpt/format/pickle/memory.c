/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"

enum {
    CHUNK_NBYTES = 256 << 10,
    SMALL_CHUNK_NBYTES = 4 << 10,
    LARGE_CHUNK_NBYTES = 4 << 20, /* has huge pages */
    OWN_CHUNK_NBYTES = 64 << 10,  /* a block of so many bytes has a chunk of its own */
};

static struct ckpt_pk_chunk *chunk_new(struct ckpt_pk_memory *mem, size_t nbytes)
{
    struct ckpt_pk_chunk *fresh = fsdp_alloc_unset(sizeof *fresh + nbytes, 1, "pickle", mem->err);
    if (fresh)
        *fresh = (struct ckpt_pk_chunk){.nbytes = nbytes};
    return fresh;
}

/* Behind the first chunk, from which small blocks are taken. */
static void *take_own(struct ckpt_pk_memory *mem, size_t nbytes)
{
    struct ckpt_pk_chunk *fresh = chunk_new(mem, nbytes), *first = mem->pickle->chunks;
    if (!fresh)
        return NULL;
    fresh->used = nbytes;
    fresh->next = first ? first->next : NULL;
    *(first ? &first->next : &mem->pickle->chunks) = fresh;
    mem->room -= nbytes;
    return fresh->data;
}

void *ckpt_pk_take_more(struct ckpt_pk_memory *mem, size_t nbytes)
{
    if (nbytes >= OWN_CHUNK_NBYTES)
        return take_own(mem, nbytes);
    struct ckpt_pk_chunk *fresh =
        chunk_new(mem, mem->input_nbytes < SMALL_CHUNK_NBYTES && nbytes <= SMALL_CHUNK_NBYTES
                           ? SMALL_CHUNK_NBYTES
                       : mem->input_nbytes < LARGE_CHUNK_NBYTES ? CHUNK_NBYTES
                                                                : LARGE_CHUNK_NBYTES);
    if (!fresh)
        return NULL;
    fresh->next = mem->pickle->chunks;
    fresh->used = nbytes;
    mem->pickle->chunks = fresh;
    mem->room -= nbytes;
    return fresh->data;
}

void ckpt_pk_give(struct ckpt_pk_memory *mem, void *block, size_t nbytes)
{
    nbytes = (nbytes + 7) & ~(size_t)7;
    if (nbytes <= CKPT_PK_GIVEN_NBYTES) {
        struct ckpt_pk_block *given = block;
        given->next = mem->given[nbytes / 8];
        mem->given[nbytes / 8] = given;
        mem->room += nbytes;
        return;
    }
    if (nbytes < OWN_CHUNK_NBYTES)
        return;
    struct ckpt_pk_chunk **at = &mem->pickle->chunks;
    while (*at && (*at)->data != (char *)block)
        at = &(*at)->next;
    struct ckpt_pk_chunk *own = *at;
    if (!own || own->nbytes != nbytes)
        return;
    *at = own->next;
    fsdp_free(own);
    mem->room += nbytes;
}

void ckpt_pk_chunks_free(struct ckpt_pk_chunk *chunk)
{
    while (chunk) {
        struct ckpt_pk_chunk *next = chunk->next;
        fsdp_free(chunk);
        chunk = next;
    }
}
