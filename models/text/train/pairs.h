/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pairs.h: how often each pair of neighbouring tokens occurs, in which words, and which pair is the
 * most frequent.
 *
 * A pair's count is kept exact. The candidates, in a heap, hold the count that was true when they
 * were put there, and the words in which the pair had come up then:
 *
 *      pairs        key = left << 32 | right, count
 *      candidates   count once, pair, [first, first + npos) of positions
 *      positions    numbers of words, ascending
 *
 * Where a merge gives a token that is there already, a pair can come up again, and it then has two
 * candidates, with the words of each time. A pair that has been merged keeps its count. Both are
 * the original's rules, and decide about ties.
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

/* A pair has come up in a word so many times. Words come in ascending order. */
int pairs_count_up(struct pairs *pairs, uint64_t key, uint32_t word, uint64_t times,
                   struct fsdp_err *err);
/* A pair, which is there, has gone from a word. */
void pairs_count_down(struct pairs *pairs, uint64_t key, uint64_t times);
/* Makes candidates of the pairs that came up. */
int pairs_publish(struct pairs *pairs, struct fsdp_err *err);
/* The most frequent candidate, of equal ones that with the lowest tokens; false: none occurs
 * min_frequency times. */
bool pairs_pop(struct candidate *out, struct pairs *pairs, uint64_t min_frequency);

#endif
