/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pairs.h: counts pairs of adjacent tokens, records the words that contain them, and finds the most
 * frequent pair.
 *
 * A pair's count is always exact. Candidates, in a heap, hold the count at the time of their
 * insertion, and the words in which the pair had appeared until then:
 *
 *      pairs        key = left << 32 | right, count
 *      candidates   count once, pair, [first, first + npos) of positions
 *      positions    numbers of words, ascending
 *
 * If a merge gives an existing token, a pair can appear again. It then has two candidates, each
 * with its own words. A merged pair keeps its count. Both are rules of the original, and they
 * decide ties.
 */
#ifndef VOCAB_TRAIN_PAIRS_H
#define VOCAB_TRAIN_PAIRS_H

#include "fsdp/base.h"

struct pair {
    uint64_t key;
    int64_t count;
    size_t fill;        /* while positions are laid out */
    uint32_t nnew;      /* words in which it came up since the last pairs_publish ... */
    uint32_t last_word; /* ... and the last of them */
};

struct candidate {
    int64_t count;
    uint64_t key;
    uint32_t pair;
    uint32_t npos;
    size_t first;
};

struct came_up {
    uint32_t pair, word;
};

/* Zeros are no pairs. */
struct pairs {
    struct pair *at;
    size_t npairs, max_pairs;
    uint32_t *slots; /* open addressing by key: number + 1; 0: free */
    size_t nslots;
    struct candidate *heap;
    size_t nheap, max_heap;
    uint32_t *positions;
    size_t npositions, max_positions;
    /* Since the last pairs_publish: where pairs came up, and which pairs. */
    struct came_up *log;
    size_t nlog, max_log;
    uint32_t *touched;
    size_t ntouched, max_touched;
};
void pairs_free(struct pairs *pairs);

static inline uint64_t pair_key(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 32 | right;
}

/* Counts `times` new occurrences of a pair in a word. Words must come in ascending order. */
int pairs_count_up(struct pairs *pairs, uint64_t key, uint32_t word, uint64_t times,
                   struct fsdp_err *err);
/* Removes `times` occurrences of an existing pair. */
void pairs_count_down(struct pairs *pairs, uint64_t key, uint64_t times);
/* Inserts candidates for the pairs that appeared. */
int pairs_publish(struct pairs *pairs, struct fsdp_err *err);
/* Removes the most frequent candidate; among equal ones, that with the lowest tokens. False: none
 * occurs min_frequency times. */
bool pairs_pop(struct candidate *out, struct pairs *pairs, uint64_t min_frequency);

#endif
