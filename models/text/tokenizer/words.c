/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "text/unicode/unicode.h"
#include "words.h"

int word_ids_add(struct word_ids *ids, int32_t id, size_t covers, struct fsdp_err *err)
{
    int32_t *at = fsdp_alloc_grow(ids->ids, ids->nids, &ids->max_ids, sizeof *at, "token ids", err);

    if (!at)
        return FSDP_ENOMEM;
    ids->ids = at;
    uint32_t *cover =
        fsdp_alloc_grow(ids->covers, ids->nids, &ids->max_covers, sizeof *cover, "token ids", err);
    if (!cover)
        return FSDP_ENOMEM;
    ids->covers = cover;
    at[ids->nids] = id;
    cover[ids->nids++] = (uint32_t)covers;
    return FSDP_OK;
}

void word_ids_free(struct word_ids *ids)
{
    fsdp_free(ids->ids);
    fsdp_free(ids->covers);
    *ids = (struct word_ids){0};
}

int words_find_bytes(struct words *words, struct fsdp_err *err)
{
    for (int i = 0; i < 256; i++) {
        char name[8];
        int nbytes = snprintf(name, sizeof name, "<0x%02X>", i);
        words->bytes[i] = vocab_find(words->vocab, name, (size_t)nbytes);
        if (words->bytes[i] < 0)
            return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                "byte_fallback needs 256 tokens of bytes, and the vocabulary has "
                                "no %s",
                                name);
    }
    return FSDP_OK;
}

static void add_joins(struct words *words, const char *token, size_t nbytes)
{
    size_t n;

    for (size_t at = 0; at < nbytes; at += n) {
        const uint32_t code = unicode_decode(token + at, &n);
        if (at) {
            const uint32_t bit = words_join(token[at - 1], code);
            words->joins[bit / 64] |= UINT64_C(1) << bit % 64;
        }
    }
}

int words_find_joins(struct words *words, struct fsdp_err *err)
{
    const struct vocab *vocab = words->vocab;
    size_t nbytes, bad;

    words->joins = fsdp_alloc(((size_t)1 << WORDS_JOIN_BITS) / 64, sizeof *words->joins,
                              "joins of characters", err);
    if (!words->joins)
        return FSDP_ENOMEM;
    for (size_t id = 0; id < vocab->nids; id++) {
        const char *token = vocab_at(vocab, (int32_t)id, &nbytes);
        /* What is not text is no token of a text. */
        if (token && unicode_valid(token, nbytes, &bad))
            add_joins(words, token, nbytes);
    }
    return FSDP_OK;
}
