/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "share.h"
#include "util/text.h"

enum { NRECENT = 8192, FIRST_TEXTS = 1024 };

int ckpt_pk_share_create(struct ckpt_pk_share *share, struct fsdp_err *err)
{
    share->recent = fsdp_alloc(NRECENT, sizeof *share->recent, "pickle values", err);
    share->texts = fsdp_alloc(FIRST_TEXTS, sizeof *share->texts, "pickle texts", err);
    share->max_texts = FIRST_TEXTS;
    return share->recent && share->texts ? FSDP_OK : FSDP_ENOMEM;
}

void ckpt_pk_share_free(struct ckpt_pk_share *share)
{
    fsdp_free(share->recent);
    fsdp_free(share->texts);
}

/* ---- recent values --------------------------------------------------------------------------- */

/* What a value consists of, as words that are equal where it is. */
static const void *words_of(size_t *nbytes, const struct ckpt_pk *value)
{
    switch (value->type) {
    case CKPT_PK_T_TUPLE:
    case CKPT_PK_T_CALL:
        *nbytes = value->nitems * sizeof *value->u.items;
        return value->u.items;
    case CKPT_PK_T_OBJECT:
        *nbytes = sizeof value->u + value->nitems * sizeof value;
        return &value->u; /* the shape, and the values behind it */
    default:
        *nbytes = sizeof value->u;
        return &value->u;
    }
}

struct ckpt_pk **ckpt_pk_share_at(struct ckpt_pk_share *share, const struct ckpt_pk *value)
{
    size_t nbytes, mine_nbytes;
    const void *words = words_of(&nbytes, value);
    uint64_t hash = value->type;
    for (size_t i = 0; i < nbytes / 8; i++) {
        uint64_t word;
        memcpy(&word, (const char *)words + 8 * i, 8);
        hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    struct ckpt_pk **at = &share->recent[hash % NRECENT];
    if (*at && ((*at)->type != value->type || (*at)->nitems != value->nitems ||
                memcmp(words_of(&mine_nbytes, *at), words, nbytes) != 0))
        *at = NULL; /* makes room */
    return at;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static struct ckpt_pk **text_at(const struct ckpt_pk_share *share, const char *text, size_t nbytes)
{
    size_t at = (size_t)ckpt_hash((uintptr_t)share, text, nbytes) & (share->max_texts - 1);
    for (; share->texts[at]; at = (at + 1) & (share->max_texts - 1))
        if (share->texts[at]->nitems == nbytes && !memcmp(share->texts[at]->u.text, text, nbytes))
            break;
    return &share->texts[at];
}

static int texts_grow(struct ckpt_pk_share *share, struct fsdp_err *err)
{
    struct ckpt_pk_share grown = {.max_texts = 2 * share->max_texts};
    grown.texts = fsdp_alloc(grown.max_texts, sizeof *grown.texts, "pickle texts", err);
    if (!grown.texts)
        return FSDP_ENOMEM;
    struct ckpt_pk **old = share->texts;
    const size_t count = share->max_texts;
    share->texts = grown.texts;
    share->max_texts = grown.max_texts;
    for (size_t i = 0; i < count; i++)
        if (old[i])
            *text_at(share, old[i]->u.text, old[i]->nitems) = old[i];
    fsdp_free(old);
    return FSDP_OK;
}

int ckpt_pk_share_text(struct ckpt_pk ***out, struct ckpt_pk_share *share, const char *text,
                       size_t nbytes, struct fsdp_err *err)
{
    if (share->ntexts >= share->max_texts / 4 * 3)
        FSDP_TRY(texts_grow(share, err));
    *out = text_at(share, text, nbytes);
    share->ntexts += !**out;
    return FSDP_OK;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static bool shape_fits(const struct ckpt_pk_shape *shape, const struct ckpt_pk_global *global,
                       const struct ckpt_pk *state)
{
    bool fits = shape->global == global && 2 * shape->nkeys == state->nitems;
    for (uint32_t i = 0; fits && i < shape->nkeys; i++)
        fits = shape->keys[i] == state->u.items[2 * (size_t)i];
    return fits;
}

const struct ckpt_pk_shape *ckpt_pk_share_shape(struct ckpt_pk_share *share,
                                                struct ckpt_pk_memory *mem,
                                                const struct ckpt_pk_global *global,
                                                const struct ckpt_pk *state)
{
    for (int i = 0; i < share->nshapes; i++)
        if (shape_fits(share->shapes[i], global, state))
            return share->shapes[i];
    const uint32_t nkeys = state->nitems / 2;
    if (share->nshapes == CKPT_PK_NSHAPES || nkeys > CKPT_PK_NKEYS)
        return NULL;
    for (uint32_t i = 0; i < nkeys; i++)
        if (state->u.items[2 * (size_t)i]->type != CKPT_PK_T_TEXT)
            return NULL;
    struct ckpt_pk_shape *fresh = ckpt_pk_take(mem, sizeof *fresh);
    if (!fresh)
        return NULL;
    *fresh = (struct ckpt_pk_shape){.global = global, .nkeys = nkeys};
    for (uint32_t i = 0; i < nkeys; i++)
        fresh->keys[i] = state->u.items[2 * (size_t)i];
    share->shapes[share->nshapes++] = fresh;
    return fresh;
}
