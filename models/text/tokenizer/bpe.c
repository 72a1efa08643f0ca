/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte-pair encoding. A piece begins as its characters or bytes, each a symbol; again and again the
 * pair of neighbours whose merge has the lowest rank becomes one symbol, the leftmost of equal ones
 * first.
 *
 * A short piece is scanned for its best pair. A long one has a heap of pairs over a linked list, so
 * that a megabyte without a space takes n log n steps.
 */
#include <string.h>

#include "words.h"

struct pair {
    uint64_t key; /* left << 32 | right; PAIR_FREE: none */
    uint32_t rank;
    int32_t merged;
};
#define PAIR_FREE UINT64_MAX

struct bpe {
    struct words words;
    bool ignore_merges, unit_bytes, merge_by_content;
    const uint32_t *ranks;
    int32_t units[256]; /* tokens of one byte each; -1: none */
    struct pair *pairs;
    uint64_t mask;
    uint32_t nmerges;
};

/* A token in the making: bytes [first, first + nbytes) of the piece. Its rank is that of the merge
 * with the next one. id UNKNOWN: no token. */
struct symbol {
    int32_t id;
    uint32_t first, nbytes;
    uint32_t rank;
    int32_t merged;
    int32_t prev, next; /* of long pieces; -1: none */
};
enum { SHORT = 48, UNKNOWN = -1 };

struct entry {
    uint32_t rank, at;
    int32_t merged;
};

struct scratch {
    struct symbol *symbols;
    struct entry *heap;
    size_t nsymbols, max_symbols, nheap, max_heap;
};

/* ---- merges ---------------------------------------------------------------------------------- */

static uint64_t pair_key(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static struct pair *find_pair(const struct bpe *bpe, uint64_t key)
{
    uint64_t at = key * UINT64_C(0x9e3779b97f4a7c15);

    at ^= at >> 32;
    for (at &= bpe->mask; bpe->pairs[at].key != key && bpe->pairs[at].key != PAIR_FREE;
         at = (at + 1) & bpe->mask)
        ;
    return &bpe->pairs[at];
}

/* A token that stands for other text than it spells joins what its spelling does not say. */
static void drop_joins(struct words *words)
{
    fsdp_free(words->joins);
    words->joins = NULL;
}

int bpe_add_merge(struct words *words, int32_t left, int32_t right, int32_t merged,
                  struct fsdp_err *err)
{
    struct bpe *bpe = (struct bpe *)words;
    struct pair *pair = find_pair(bpe, pair_key(left, right));

    if ((uint64_t)bpe->nmerges * 2 > bpe->mask)
        return fsdp_err_set(err, FSDP_EINTERNAL, "more merges than were announced");
    for (int i = 0; i < 256 && bpe->words.joins && words_have_bytes(words); i++)
        if (words->bytes[i] == left || words->bytes[i] == right)
            drop_joins(words);
    if (left == words->unk || right == words->unk)
        drop_joins(words);
    /* Of a repeated pair the last rank counts, as in a map that is filled in order. */
    *pair = (struct pair){pair_key(left, right), bpe->nmerges++, merged};
    return FSDP_OK;
}

/* The rank of merging two neighbours, and what they become. */
static void rank_pair(const struct bpe *bpe, const char *piece, struct symbol *left,
                      const struct symbol *right)
{
    left->rank = WORDS_NO_RANK;
    if (left->id == UNKNOWN || right->id == UNKNOWN)
        return;
    if (bpe->merge_by_content) {
        int32_t id =
            vocab_find(bpe->words.vocab, piece + left->first, left->nbytes + right->nbytes);
        if (id >= 0) {
            left->rank = bpe->ranks ? bpe->ranks[id] : (uint32_t)id;
            left->merged = id;
        }
        return;
    }
    const struct pair *pair = find_pair(bpe, pair_key(left->id, right->id));
    if (pair->key != PAIR_FREE) {
        left->rank = pair->rank;
        left->merged = pair->merged;
    }
}

/* ---- symbols --------------------------------------------------------------------------------- */

static int add_symbol(struct scratch *s, int32_t id, size_t first, size_t nbytes,
                      struct fsdp_err *err)
{
    struct symbol *symbols = fsdp_alloc_grow(s->symbols, s->nsymbols, &s->max_symbols,
                                             sizeof *symbols, "symbols of a word", err);
    if (!symbols)
        return FSDP_ENOMEM;
    s->symbols = symbols;
    symbols[s->nsymbols++] = (struct symbol){
        .id = id, .first = (uint32_t)first, .nbytes = (uint32_t)nbytes, .rank = WORDS_NO_RANK};
    return FSDP_OK;
}

/* A character without a token: its bytes, or the unknown token, or nothing. */
static int add_unknown(const struct bpe *bpe, struct scratch *s, const char *piece, size_t first,
                       size_t nbytes, struct fsdp_err *err)
{
    const struct words *words = &bpe->words;
    struct symbol *last = s->nsymbols ? &s->symbols[s->nsymbols - 1] : NULL;

    if (words_have_bytes(words)) {
        for (size_t i = 0; i < nbytes; i++)
            FSDP_TRY(
                add_symbol(s, words->bytes[(unsigned char)piece[first + i]], first + i, 1, err));
        return FSDP_OK;
    }
    if (words->unk < 0)
        return FSDP_OK;
    if (words->fuse_unk && last && last->id == words->unk && last->first + last->nbytes == first) {
        last->nbytes += (uint32_t)nbytes;
        return FSDP_OK;
    }
    return add_symbol(s, words->unk, first, nbytes, err);
}

static int split_units(const struct bpe *bpe, struct scratch *s, const char *piece, size_t nbytes,
                       struct fsdp_err *err)
{
    s->nsymbols = 0;
    for (size_t i = 0, step; i < nbytes; i += step) {
        uint32_t code;
        const bool one = bpe->unit_bytes || (unsigned char)piece[i] < 0x80;
        step = one ? 1 : (size_t)fsdp_utf8_decode(&code, piece + i, piece + nbytes);
        if (!step)
            return fsdp_err_set(err, FSDP_EINTERNAL, "a piece of text is not UTF-8");
        int32_t id = step == 1 ? bpe->units[(unsigned char)piece[i]]
                               : vocab_find(bpe->words.vocab, piece + i, step);
        if (id >= 0)
            FSDP_TRY(add_symbol(s, id, i, step, err));
        else
            FSDP_TRY(add_unknown(bpe, s, piece, i, step, err));
    }
    return FSDP_OK;
}

/* ---- merging --------------------------------------------------------------------------------- */

static void merge_short(const struct bpe *bpe, struct scratch *s, const char *piece)
{
    struct symbol *symbols = s->symbols;
    size_t n = s->nsymbols;

    for (size_t i = 0; i + 1 < n; i++)
        rank_pair(bpe, piece, &symbols[i], &symbols[i + 1]);
    for (;;) {
        uint32_t best = WORDS_NO_RANK;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            if (symbols[i].rank < best) {
                best = symbols[i].rank;
                at = i;
            }
        if (best == WORDS_NO_RANK)
            break;
        symbols[at].id = symbols[at].merged;
        symbols[at].nbytes += symbols[at + 1].nbytes;
        n--;
        memmove(&symbols[at + 1], &symbols[at + 2], (n - at - 1) * sizeof *symbols);
        symbols[at].rank = WORDS_NO_RANK;
        if (at + 1 < n)
            rank_pair(bpe, piece, &symbols[at], &symbols[at + 1]);
        if (at > 0)
            rank_pair(bpe, piece, &symbols[at - 1], &symbols[at]);
    }
    s->nsymbols = n;
}

static bool entry_before(const struct entry *a, const struct entry *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static int push_pair(const struct bpe *bpe, struct scratch *s, const char *piece, int32_t at,
                     struct fsdp_err *err)
{
    struct symbol *left = &s->symbols[at];

    left->rank = WORDS_NO_RANK;
    if (left->next < 0)
        return FSDP_OK;
    rank_pair(bpe, piece, left, &s->symbols[left->next]);
    if (left->rank == WORDS_NO_RANK)
        return FSDP_OK;
    struct entry *heap =
        fsdp_alloc_grow(s->heap, s->nheap, &s->max_heap, sizeof *heap, "merges of a word", err);
    if (!heap)
        return FSDP_ENOMEM;
    s->heap = heap;
    struct entry entry = {left->rank, (uint32_t)at, left->merged};
    size_t i = s->nheap++;
    for (; i && entry_before(&entry, &heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = entry;
    return FSDP_OK;
}

static struct entry pop_pair(struct scratch *s)
{
    struct entry *heap = s->heap, top = heap[0], last = heap[--s->nheap];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < s->nheap) {
        child += child + 1 < s->nheap && entry_before(&heap[child + 1], &heap[child]);
        if (!entry_before(&heap[child], &last))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

static int merge_long(const struct bpe *bpe, struct scratch *s, const char *piece,
                      struct fsdp_err *err)
{
    const int32_t n = (int32_t)s->nsymbols;

    s->nheap = 0;
    for (int32_t i = 0; i < n; i++) {
        s->symbols[i].prev = i - 1;
        s->symbols[i].next = i + 1 < n ? i + 1 : -1;
    }
    for (int32_t i = 0; i < n; i++)
        FSDP_TRY(push_pair(bpe, s, piece, i, err));
    while (s->nheap) {
        const struct entry top = pop_pair(s);
        struct symbol *left = &s->symbols[top.at];
        /* An entry is stale where either of its symbols has changed. */
        if (!left->nbytes || left->rank != top.rank || left->merged != top.merged)
            continue;
        struct symbol *right = &s->symbols[left->next];
        left->id = top.merged;
        left->nbytes += right->nbytes;
        right->nbytes = 0;
        left->next = right->next;
        if (left->next >= 0)
            s->symbols[left->next].prev = (int32_t)top.at;
        FSDP_TRY(push_pair(bpe, s, piece, (int32_t)top.at, err));
        if (left->prev >= 0)
            FSDP_TRY(push_pair(bpe, s, piece, left->prev, err));
    }
    size_t left = 0;
    for (int32_t i = 0; i >= 0; i = s->symbols[i].next)
        s->symbols[left++] = s->symbols[i];
    s->nsymbols = left;
    return FSDP_OK;
}

static int bpe_encode(const struct words *words, struct scratch *s, const char *piece,
                      size_t nbytes, struct word_ids *out, struct fsdp_err *err)
{
    const struct bpe *bpe = (const struct bpe *)words;

    if (nbytes > INT32_MAX / 2)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "a word of %zu bytes", nbytes);
    if (bpe->ignore_merges) {
        const int32_t id = vocab_find(words->vocab, piece, nbytes);
        if (id >= 0)
            return word_ids_add(out, id, nbytes, err);
    }
    FSDP_TRY(split_units(bpe, s, piece, nbytes, err));
    if (s->nsymbols <= SHORT)
        merge_short(bpe, s, piece);
    else
        FSDP_TRY(merge_long(bpe, s, piece, err));
    for (size_t i = 0; i < s->nsymbols; i++) {
        const struct symbol *symbol = &s->symbols[i];
        const uint32_t end = i + 1 < s->nsymbols ? symbol[1].first : (uint32_t)nbytes;
        FSDP_TRY(word_ids_add(out, symbol->id, end - symbol->first, err));
    }
    return FSDP_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void bpe_destroy(struct words *words)
{
    if (words) {
        fsdp_free(((struct bpe *)words)->pairs);
        fsdp_free(words->joins);
    }
    fsdp_free(words);
}

static int bpe_scratch_create(struct scratch **out, const struct words *words, struct fsdp_err *err)
{
    (void)words;
    *out = fsdp_alloc(1, sizeof **out, "tokenizer scratch", err);
    return *out ? FSDP_OK : FSDP_ENOMEM;
}

static void bpe_scratch_destroy(struct scratch *s)
{
    if (s) {
        fsdp_free(s->symbols);
        fsdp_free(s->heap);
    }
    fsdp_free(s);
}

static const struct words_ops bpe_ops = {
    .destroy = bpe_destroy,
    .scratch_create = bpe_scratch_create,
    .scratch_destroy = bpe_scratch_destroy,
    .encode = bpe_encode,
};

static int make_pairs(struct bpe *bpe, size_t nmerges, struct fsdp_err *err)
{
    size_t nslots = 64;

    while (nslots < nmerges * 2 + 2)
        nslots *= 2;
    bpe->pairs = fsdp_alloc_unset(nslots, sizeof *bpe->pairs, "merges", err);
    if (!bpe->pairs)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < nslots; i++)
        bpe->pairs[i].key = PAIR_FREE;
    bpe->mask = nslots - 1;
    return FSDP_OK;
}

int bpe_create(struct words **out, const struct bpe_opts *opts, size_t nmerges,
               struct fsdp_err *err)
{
    struct bpe *bpe = fsdp_alloc(1, sizeof *bpe, "tokenizer", err);
    int rc = FSDP_OK;

    if (!bpe)
        return FSDP_ENOMEM;
    bpe->words = (struct words){
        .ops = &bpe_ops, .vocab = opts->vocab, .unk = opts->unk, .fuse_unk = opts->fuse_unk};
    bpe->words.bytes[0] = -1;
    bpe->ignore_merges = opts->ignore_merges;
    bpe->unit_bytes = opts->unit_bytes;
    bpe->merge_by_content = opts->merge_by_content;
    bpe->ranks = opts->ranks;
    for (int i = 0; i < 256; i++) {
        const char byte = (char)i;
        bpe->units[i] = vocab_find(opts->vocab, &byte, 1);
    }
    if (opts->byte_fallback)
        rc = words_find_bytes(&bpe->words, err);
    if (rc == FSDP_OK)
        rc = make_pairs(bpe, nmerges, err);
    /* A piece that is a token is not cut; nor is a run of unknown characters that become one token,
     * or none, so that their neighbours meet. */
    if (rc == FSDP_OK && !opts->ignore_merges && !opts->unit_bytes &&
        (opts->byte_fallback || (opts->unk >= 0 && !opts->fuse_unk)))
        rc = words_find_joins(&bpe->words, err);
    if (rc != FSDP_OK) {
        bpe_destroy(&bpe->words);
        return rc;
    }
    *out = &bpe->words;
    return FSDP_OK;
}
