/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "vocab.h"

uint64_t vocab_hash(const char *text, size_t nbytes)
{
    const uint64_t odd = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t hash = nbytes * odd, word;

    for (; nbytes >= 8; nbytes -= 8, text += 8) {
        memcpy(&word, text, 8);
        hash = (hash ^ word) * odd;
        hash ^= hash >> 29;
    }
    if (nbytes) {
        word = 0;
        memcpy(&word, text, nbytes);
        hash = (hash ^ word) * odd;
    }
    hash ^= hash >> 32;
    hash *= UINT64_C(0xd6e8feb86659fd93);
    return hash ^ hash >> 32;
}

static int reserve_ids(struct vocab *vocab, size_t nids, struct fsdp_err *err)
{
    if (nids <= vocab->nids)
        return FSDP_OK;
    size_t want = nids <= vocab->max_ids ? vocab->max_ids : nids + nids / 2;
    struct vocab_token *tokens = fsdp_alloc_reserve(vocab->tokens, vocab->nids, &vocab->max_ids,
                                                    want, sizeof *tokens, "vocabulary", err);
    if (!tokens)
        return FSDP_ENOMEM;
    vocab->tokens = tokens;
    for (; vocab->nids < nids; vocab->nids++)
        tokens[vocab->nids] = (struct vocab_token){0, VOCAB_NONE};
    return FSDP_OK;
}

int vocab_add(struct vocab *vocab, int32_t id, const char *token, size_t nbytes,
              struct fsdp_err *err)
{
    if (id < 0 || id >= VOCAB_MAX_IDS || nbytes > UINT16_MAX)
        return fsdp_err_set(err, FSDP_EINVAL, "token id %d: ids end at %d, tokens at %d bytes", id,
                            VOCAB_MAX_IDS - 1, UINT16_MAX);
    FSDP_TRY(reserve_ids(vocab, (size_t)id + 1, err));
    if (vocab->tokens[id].nbytes != VOCAB_NONE)
        return fsdp_err_set(err, FSDP_EINVAL, "two tokens have the id %d", id);
    size_t want = vocab->nbytes + nbytes;
    if (want > vocab->max_bytes)
        want += want / 2 + 64;
    if (want > UINT32_MAX)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "a vocabulary of more than 4 GiB");
    char *bytes = fsdp_alloc_reserve(vocab->bytes, vocab->nbytes, &vocab->max_bytes, want + 1, 1,
                                     "vocabulary", err);
    if (!bytes)
        return FSDP_ENOMEM;
    vocab->bytes = bytes;
    if (nbytes)
        memcpy(bytes + vocab->nbytes, token, nbytes);
    vocab->tokens[id] = (struct vocab_token){(uint32_t)vocab->nbytes, (uint32_t)nbytes};
    vocab->nbytes += nbytes;
    vocab->longest = nbytes > vocab->longest ? nbytes : vocab->longest;
    return FSDP_OK;
}

/* The slot of a content: its own, or the free one where it belongs. */
static uint32_t find_slot(const struct vocab *vocab, const char *token, size_t nbytes)
{
    for (uint32_t i = (uint32_t)vocab_hash(token, nbytes) & vocab->mask;;
         i = (i + 1) & vocab->mask) {
        const int32_t id = vocab->slots[i];
        if (id < 0 || (vocab->tokens[id].nbytes == nbytes &&
                       !memcmp(vocab->bytes + vocab->tokens[id].first, token, nbytes)))
            return i;
    }
}

int vocab_index(struct vocab *vocab, struct fsdp_err *err)
{
    size_t nslots = 64;

    while (nslots < vocab->nids * 2)
        nslots *= 2;
    fsdp_free(vocab->slots);
    vocab->slots = fsdp_alloc_unset(nslots, sizeof *vocab->slots, "vocabulary", err);
    if (!vocab->slots)
        return FSDP_ENOMEM;
    memset(vocab->slots, 0xff, nslots * sizeof *vocab->slots);
    vocab->mask = (uint32_t)nslots - 1;
    for (size_t id = 0; id < vocab->nids; id++) {
        const struct vocab_token *token = &vocab->tokens[id];
        if (token->nbytes != VOCAB_NONE)
            vocab->slots[find_slot(vocab, vocab->bytes + token->first, token->nbytes)] =
                (int32_t)id;
    }
    return FSDP_OK;
}

void vocab_free(struct vocab *vocab)
{
    fsdp_free(vocab->tokens);
    fsdp_free(vocab->bytes);
    fsdp_free(vocab->slots);
    *vocab = (struct vocab){0};
}

int32_t vocab_find(const struct vocab *vocab, const char *token, size_t nbytes)
{
    return nbytes > vocab->longest ? -1 : vocab->slots[find_slot(vocab, token, nbytes)];
}
