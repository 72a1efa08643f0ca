/* SPDX-License-Identifier: Apache-2.0 */
/*
 * words.h: the model of a tokenizer, BPE (bpe.c) or Unigram (unigram.c). It encodes one piece of
 * text from the pre-tokenizer, and counts the bytes that each token covers.
 */
#ifndef TOKENIZER_WORDS_H
#define TOKENIZER_WORDS_H

#include "tokenizer.h"
#include "vocab.h"

/* Tokens of one piece. covers[i]: bytes of the piece that token i stands for; 0 for all but the
 * last where one character has become several tokens. */
struct word_ids {
    int32_t *ids;
    uint32_t *covers;
    size_t nids, max_ids, max_covers;
};
int word_ids_add(struct word_ids *ids, int32_t id, size_t covers, struct fsdp_err *err);
void word_ids_free(struct word_ids *ids);

struct words;   /* constant, shared */
struct scratch; /* one thread's */

struct words_ops {
    void (*destroy)(struct words *words);
    int (*scratch_create)(struct scratch **out, const struct words *words, struct fsdp_err *err);
    void (*scratch_destroy)(struct scratch *scratch);
    /* Appends the tokens of a piece of valid UTF-8 (of any bytes where units are bytes). */
    int (*encode)(const struct words *words, struct scratch *scratch, const char *piece,
                  size_t nbytes, struct word_ids *out, struct fsdp_err *err);
};

/* Begins each kind's own struct. */
struct words {
    const struct words_ops *ops;
    const struct vocab *vocab; /* the tokenizer's */
    int32_t unk;               /* what no token covers; -1: such characters are left out */
    bool fuse_unk;             /* several unknown characters in a row are one unknown token */
    int32_t bytes[256];        /* tokens of single bytes, <0x00> to <0xFF>; [0] -1: none */
    /* Where a piece may be cut without other ids: see words_find_joins. NULL: nowhere. Owned. */
    uint64_t *joins;
};
static inline bool words_have_bytes(const struct words *words)
{
    return words->bytes[0] >= 0;
}
/* Two neighbouring characters that stand next to each other in no token never become one token: a
 * piece may be cut between them. The bits of `joins` are those that do stand so, by a hash of the
 * last byte of the left one and of the right one. */
enum { WORDS_JOIN_BITS = 18 };
static inline uint32_t words_join(char last, uint32_t code)
{
    const uint32_t odd = 0x9e3779b1u;

    return ((code << 8 | (unsigned char)last) * odd) >> (32 - WORDS_JOIN_BITS);
}
static inline bool words_may_join(const struct words *words, char last, uint32_t code)
{
    const uint32_t bit = words_join(last, code);

    return words->joins[bit / 64] >> bit % 64 & 1;
}
int words_find_joins(struct words *words, struct fsdp_err *err);

/* Finds <0x00> to <0xFF> in the vocabulary. FSDP_EINVAL names the first that is missing. */
int words_find_bytes(struct words *words, struct fsdp_err *err);

/* ---- BPE ------------------------------------------------------------------------------------- */

#define WORDS_NO_RANK UINT32_MAX

struct bpe_opts {
    const struct vocab *vocab; /* borrowed */
    int32_t unk;
    bool fuse_unk, byte_fallback;
    bool ignore_merges; /* a piece that is a token is that token */
    bool unit_bytes;    /* pieces are merged from bytes, not from characters */
    /* Without merges: two tokens merge where their concatenation is one; the lowest rank first,
     * which is ranks[id], or the id itself where ranks is NULL; WORDS_NO_RANK: none. Borrowed. */
    const uint32_t *ranks;
    bool merge_by_content;
};
/* Merges are then added in their order. */
int bpe_create(struct words **out, const struct bpe_opts *opts, size_t nmerges,
               struct fsdp_err *err);
/* The next merge: tokens left and right become `merged`. Of a pair given twice the last
 * rank counts. */
int bpe_add_merge(struct words *words, int32_t left, int32_t right, int32_t merged,
                  struct fsdp_err *err);

/* ---- Unigram --------------------------------------------------------------------------------- */

/* scores: by id, borrowed; NaN: text never becomes this token. */
int unigram_create(struct words **out, const struct vocab *vocab, const double *scores, int32_t unk,
                   bool byte_fallback, struct fsdp_err *err);

#endif
