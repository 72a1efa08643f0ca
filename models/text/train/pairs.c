/* SPDX-License-Identifier: Apache-2.0 */
#include "pairs.h"

enum { FIRST_SLOTS = 1 << 12 };

void pairs_free(struct pairs *pairs)
{
    fsdp_free(pairs->at);
    fsdp_free(pairs->slots);
    fsdp_free(pairs->heap);
    fsdp_free(pairs->positions);
    fsdp_free(pairs->log);
    fsdp_free(pairs->touched);
    *pairs = (struct pairs){0};
}

/* ---- pairs by key ---------------------------------------------------------------------------- */

static size_t hash_key(uint64_t key)
{
    key *= UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(key ^ key >> 32);
}

/* The slot of a pair: its own, or the free one where it belongs. */
static size_t find_slot(const struct pairs *pairs, uint64_t key)
{
    const size_t mask = pairs->nslots - 1;
    size_t i = hash_key(key) & mask;

    while (pairs->slots[i] && pairs->at[pairs->slots[i] - 1].key != key)
        i = (i + 1) & mask;
    return i;
}

/* Keeps the slots at most half full. */
static int grow_slots(struct pairs *pairs, struct fsdp_err *err)
{
    const size_t nslots = pairs->nslots ? pairs->nslots * 2 : FIRST_SLOTS, mask = nslots - 1;
    uint32_t *slots = fsdp_alloc(nslots, sizeof *slots, "pairs of tokens", err);

    if (!slots)
        return FSDP_ENOMEM;
    for (size_t number = 0; number < pairs->npairs; number++) {
        size_t i = hash_key(pairs->at[number].key) & mask;
        while (slots[i])
            i = (i + 1) & mask;
        slots[i] = (uint32_t)number + 1;
    }
    fsdp_free(pairs->slots);
    pairs->slots = slots;
    pairs->nslots = nslots;
    return FSDP_OK;
}

static int find_or_add(uint32_t *number, struct pairs *pairs, uint64_t key, struct fsdp_err *err)
{
    if (pairs->npairs * 2 >= pairs->nslots)
        FSDP_TRY(grow_slots(pairs, err));
    const size_t slot = find_slot(pairs, key);
    if (!pairs->slots[slot]) {
        if (pairs->npairs >= UINT32_MAX - 1)
            return fsdp_err_set(err, FSDP_EUNSUPPORTED, "more than %u pairs of tokens",
                                UINT32_MAX - 1);
        struct pair *at = fsdp_alloc_grow(pairs->at, pairs->npairs, &pairs->max_pairs, sizeof *at,
                                          "pairs of tokens", err);
        if (!at)
            return FSDP_ENOMEM;
        pairs->at = at;
        at[pairs->npairs++] = (struct pair){.key = key};
        pairs->slots[slot] = (uint32_t)pairs->npairs;
    }
    *number = pairs->slots[slot] - 1;
    return FSDP_OK;
}

/* ---- counting -------------------------------------------------------------------------------- */

/* Notes that a pair came up in a word, once for each word. */
static int note_word(struct pairs *pairs, uint32_t number, uint32_t word, struct fsdp_err *err)
{
    struct pair *pair = &pairs->at[number];

    if (pair->nnew && pair->last_word == word)
        return FSDP_OK;
    struct came_up *log = fsdp_alloc_grow(pairs->log, pairs->nlog, &pairs->max_log, sizeof *log,
                                          "places of pairs", err);
    if (!log)
        return FSDP_ENOMEM;
    pairs->log = log;
    if (!pair->nnew) {
        uint32_t *touched = fsdp_alloc_grow(pairs->touched, pairs->ntouched, &pairs->max_touched,
                                            sizeof *touched, "places of pairs", err);
        if (!touched)
            return FSDP_ENOMEM;
        pairs->touched = touched;
        touched[pairs->ntouched++] = number;
    }
    log[pairs->nlog++] = (struct came_up){number, word};
    pair->nnew++;
    pair->last_word = word;
    return FSDP_OK;
}

int pairs_count_up(struct pairs *pairs, uint64_t key, uint32_t word, uint64_t times,
                   struct fsdp_err *err)
{
    uint32_t number = 0;

    FSDP_TRY(find_or_add(&number, pairs, key, err));
    pairs->at[number].count += (int64_t)times;
    return note_word(pairs, number, word, err);
}

void pairs_count_down(struct pairs *pairs, uint64_t key, uint64_t times)
{
    pairs->at[pairs->slots[find_slot(pairs, key)] - 1].count -= (int64_t)times;
}

/* ---- the heap -------------------------------------------------------------------------------- */

static bool goes_before(const struct candidate *a, const struct candidate *b)
{
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static void sift_up(struct pairs *pairs, size_t i)
{
    const struct candidate moving = pairs->heap[i];

    for (; i && goes_before(&moving, &pairs->heap[(i - 1) / 2]); i = (i - 1) / 2)
        pairs->heap[i] = pairs->heap[(i - 1) / 2];
    pairs->heap[i] = moving;
}

static void sift_down(struct pairs *pairs)
{
    const struct candidate moving = pairs->heap[0];
    size_t i = 0;

    for (size_t child; (child = 2 * i + 1) < pairs->nheap; i = child) {
        if (child + 1 < pairs->nheap && goes_before(&pairs->heap[child + 1], &pairs->heap[child]))
            child++;
        if (!goes_before(&pairs->heap[child], &moving))
            break;
        pairs->heap[i] = pairs->heap[child];
    }
    pairs->heap[i] = moving;
}

bool pairs_pop(struct candidate *out, struct pairs *pairs, uint64_t min_frequency)
{
    while (pairs->nheap) {
        struct candidate *top = &pairs->heap[0];
        const int64_t count = pairs->at[top->pair].count;
        if (top->count != count) {
            top->count = count;
            sift_down(pairs);
            continue;
        }
        if (count < 1 || (uint64_t)count < min_frequency)
            return false;
        *out = *top;
        *top = pairs->heap[--pairs->nheap];
        if (pairs->nheap)
            sift_down(pairs);
        return true;
    }
    return false;
}

/* ---- candidates ------------------------------------------------------------------------------ */

static int reserve(struct pairs *pairs, struct fsdp_err *err)
{
    const size_t nheap = pairs->nheap + pairs->ntouched, npos = pairs->npositions + pairs->nlog;

    if (nheap > pairs->max_heap) {
        struct candidate *heap =
            fsdp_alloc_reserve(pairs->heap, pairs->nheap, &pairs->max_heap, nheap + nheap / 2,
                               sizeof *heap, "pairs of tokens", err);
        if (!heap)
            return FSDP_ENOMEM;
        pairs->heap = heap;
    }
    if (npos > pairs->max_positions) {
        uint32_t *positions =
            fsdp_alloc_reserve(pairs->positions, pairs->npositions, &pairs->max_positions,
                               npos + npos / 2, sizeof *positions, "places of pairs", err);
        if (!positions)
            return FSDP_ENOMEM;
        pairs->positions = positions;
    }
    return FSDP_OK;
}

int pairs_publish(struct pairs *pairs, struct fsdp_err *err)
{
    FSDP_TRY(reserve(pairs, err));
    for (size_t i = 0; i < pairs->ntouched; i++) {
        const uint32_t number = pairs->touched[i];
        struct pair *pair = &pairs->at[number];
        pair->fill = pairs->npositions;
        pairs->npositions += pair->nnew;
        if (pair->count > 0) {
            pairs->heap[pairs->nheap++] =
                (struct candidate){pair->count, pair->key, number, pair->nnew, pair->fill};
            sift_up(pairs, pairs->nheap - 1);
        }
        pair->nnew = 0;
    }
    for (size_t i = 0; i < pairs->nlog; i++)
        pairs->positions[pairs->at[pairs->log[i].pair].fill++] = pairs->log[i].word;
    pairs->nlog = pairs->ntouched = 0;
    return FSDP_OK;
}
