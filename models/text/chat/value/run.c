/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

struct chat_block {
    struct chat_block *next;
    size_t nbytes;
};

enum { FIRST_BLOCK_NBYTES = 16 << 10, BLOCK_HEAD_NBYTES = 64 };

int chat_fail(struct chat_run *r, const char *fmt, ...)
{
    va_list args;
    char text[FSDP_ERR_TEXT_NBYTES];

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return fsdp_err_set(r->err, FSDP_EINVAL, "%s:%d: %s", r->name, r->line, text);
}

int chat_refuse(struct chat_run *r, const char *fmt, ...)
{
    va_list args;
    char text[FSDP_ERR_TEXT_NBYTES];

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return fsdp_err_set(r->err, FSDP_EUNSUPPORTED, "%s:%d: %s", r->name, r->line, text);
}

int chat_step(struct chat_run *r, uint64_t nsteps)
{
    r->nsteps += nsteps;
    if (r->nsteps <= CHAT_MAX_STEPS)
        return FSDP_OK;
    return chat_fail(r, "the template takes more than %llu steps",
                     (unsigned long long)CHAT_MAX_STEPS);
}

int chat_enter(struct chat_run *r)
{
    if (r->depth >= CHAT_MAX_DEPTH)
        return chat_fail(r, "nested more than %d levels deep", CHAT_MAX_DEPTH);
    r->depth++;
    return FSDP_OK;
}

void chat_leave(struct chat_run *r)
{
    r->depth--;
}

/* Room for nbytes in a new block, of which the pool keeps what is left. */
static int add_block(struct chat_run *r, struct chat_pool *pool, size_t nbytes)
{
    size_t room = pool->blocks ? 2 * pool->blocks->nbytes : FIRST_BLOCK_NBYTES;
    struct chat_block *block;

    room = room > (1u << 20) ? 1u << 20 : room;
    if (nbytes + BLOCK_HEAD_NBYTES > room)
        room = nbytes + nbytes / 2 + BLOCK_HEAD_NBYTES;
    if (nbytes > CHAT_MAX_MEMORY_NBYTES || room > CHAT_MAX_MEMORY_NBYTES - r->nbytes)
        return chat_fail(r, "the template takes more than %zu MiB of memory",
                         CHAT_MAX_MEMORY_NBYTES >> 20);
    if (!(block = fsdp_alloc_unset(room, 1, "chat template", r->err)))
        return FSDP_ENOMEM;
    r->nbytes += room;
    block->next = pool->blocks;
    block->nbytes = room;
    pool->blocks = block;
    pool->at = (char *)block + BLOCK_HEAD_NBYTES;
    pool->end = (char *)block + room;
    return FSDP_OK;
}

int chat_new(struct chat_run *r, void *out, size_t nelem, size_t elem_nbytes)
{
    size_t nbytes;

    if (__builtin_mul_overflow(nelem, elem_nbytes, &nbytes) || nbytes > CHAT_MAX_MEMORY_NBYTES)
        nbytes = CHAT_MAX_MEMORY_NBYTES;
    nbytes = (nbytes + 15) & ~(size_t)15;
    if ((size_t)(r->objects.end - r->objects.at) < nbytes || !r->objects.at)
        FSDP_TRY(add_block(r, &r->objects, nbytes));
    memset(r->objects.at, 0, nbytes);
    *(void **)out = r->objects.at;
    r->objects.at += nbytes;
    return FSDP_OK;
}

int chat_new_bytes(struct chat_run *r, char **out, size_t nbytes)
{
    if ((size_t)(r->bytes.end - r->bytes.at) < nbytes || !r->bytes.at)
        FSDP_TRY(add_block(r, &r->bytes, nbytes));
    *out = r->bytes.at;
    r->bytes.at += nbytes;
    return chat_step(r, nbytes >> 8);
}

bool chat_extend_bytes(struct chat_run *r, const char *end, size_t more)
{
    if (end != r->bytes.at || !end || (size_t)(r->bytes.end - r->bytes.at) < more)
        return false;
    r->bytes.at += more;
    return true;
}

static void free_pool(struct chat_pool *pool)
{
    for (struct chat_block *block = pool->blocks, *next; block; block = next) {
        next = block->next;
        fsdp_free(block);
    }
    *pool = (struct chat_pool){0};
}

void chat_run_free(struct chat_run *r)
{
    free_pool(&r->objects);
    free_pool(&r->bytes);
}
