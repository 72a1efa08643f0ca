/* SPDX-License-Identifier: Apache-2.0 */
/* vocab.h: tokens as bytes, by id and by content. */
#ifndef TOKENIZER_VOCAB_H
#define TOKENIZER_VOCAB_H

#include "fsdp/base.h"

enum { VOCAB_MAX_IDS = 1 << 24 };

struct vocab_token {
    uint32_t first;  /* into the bytes */
    uint32_t nbytes; /* VOCAB_NONE: no token has this id */
};
#define VOCAB_NONE UINT32_MAX

/* Zeros are an empty vocabulary. */
struct vocab {
    struct vocab_token *tokens; /* by id */
    size_t nids, max_ids;
    char *bytes;
    size_t nbytes, max_bytes;
    int32_t *slots; /* open addressing by content; -1: free */
    uint32_t mask;
    size_t longest;
};

/* FSDP_EINVAL: the id is taken, or out of range. */
int vocab_add(struct vocab *vocab, int32_t id, const char *token, size_t nbytes,
              struct fsdp_err *err);
/* After the last vocab_add, before vocab_find. Of two ids with one content the last added wins. */
int vocab_index(struct vocab *vocab, struct fsdp_err *err);
void vocab_free(struct vocab *vocab);

/* -1: no such token. */
int32_t vocab_find(const struct vocab *vocab, const char *token, size_t nbytes);
/* NULL: no token has this id. */
static inline const char *vocab_at(const struct vocab *vocab, int32_t id, size_t *nbytes)
{
    if (id < 0 || (size_t)id >= vocab->nids || vocab->tokens[id].nbytes == VOCAB_NONE)
        return NULL;
    *nbytes = vocab->tokens[id].nbytes;
    return vocab->bytes + vocab->tokens[id].first;
}

/* Mixes well and fast; short texts. */
uint64_t vocab_hash(const char *text, size_t nbytes);

#endif
