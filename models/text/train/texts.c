/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "text/tokenizer/vocab.h"
#include "texts.h"

enum { FIRST_SLOTS = 1 << 10 };

void texts_free(struct texts *texts)
{
    fsdp_free(texts->bytes);
    fsdp_free(texts->at);
    fsdp_free(texts->slots);
    *texts = (struct texts){0};
}

/* The slot of a text: its own, or the free one where it belongs. */
static size_t find_slot(const struct texts *texts, uint32_t hash, const char *text, size_t nbytes)
{
    const size_t mask = texts->nslots - 1;

    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        if (!texts->slots[i])
            return i;
        const struct text *at = &texts->at[texts->slots[i] - 1];
        if (at->hash == hash && at->nbytes == nbytes &&
            !memcmp(texts->bytes + at->first, text, nbytes))
            return i;
    }
}

/* Keeps the slots at most half full. */
static int grow_slots(struct texts *texts, struct fsdp_err *err)
{
    const size_t nslots = texts->nslots ? texts->nslots * 2 : FIRST_SLOTS, mask = nslots - 1;
    uint32_t *slots = fsdp_alloc(nslots, sizeof *slots, "words", err);

    if (!slots)
        return FSDP_ENOMEM;
    for (size_t number = 0; number < texts->ntexts; number++) {
        size_t i = texts->at[number].hash & mask;
        while (slots[i])
            i = (i + 1) & mask;
        slots[i] = (uint32_t)number + 1;
    }
    fsdp_free(texts->slots);
    texts->slots = slots;
    texts->nslots = nslots;
    return FSDP_OK;
}

static int append_text(struct texts *texts, uint32_t hash, const char *text, size_t nbytes,
                       uint64_t count, struct fsdp_err *err)
{
    const size_t want = texts->nbytes + nbytes;

    if (texts->ntexts >= UINT32_MAX - 1)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "more than %u distinct words", UINT32_MAX - 1);
    struct text *at =
        fsdp_alloc_grow(texts->at, texts->ntexts, &texts->max_texts, sizeof *at, "words", err);
    if (!at)
        return FSDP_ENOMEM;
    texts->at = at;
    if (want > texts->max_bytes) {
        char *bytes = fsdp_alloc_reserve(texts->bytes, texts->nbytes, &texts->max_bytes,
                                         want + want / 2 + 4096, 1, "words", err);
        if (!bytes)
            return FSDP_ENOMEM;
        texts->bytes = bytes;
    }
    memcpy(texts->bytes + texts->nbytes, text, nbytes);
    at[texts->ntexts++] = (struct text){texts->nbytes, (uint32_t)nbytes, hash, count};
    texts->nbytes = want;
    return FSDP_OK;
}

int texts_add(uint32_t *number, struct texts *texts, const char *text, size_t nbytes,
              uint64_t count, struct fsdp_err *err)
{
    const uint32_t hash = (uint32_t)vocab_hash(text, nbytes);

    if (texts->ntexts * 2 >= texts->nslots)
        FSDP_TRY(grow_slots(texts, err));
    const size_t slot = find_slot(texts, hash, text, nbytes);
    if (texts->slots[slot]) {
        *number = texts->slots[slot] - 1;
        texts->at[*number].count += count;
        return FSDP_OK;
    }
    FSDP_TRY(append_text(texts, hash, text, nbytes, count, err));
    *number = (uint32_t)texts->ntexts - 1;
    texts->slots[slot] = *number + 1;
    return FSDP_OK;
}
