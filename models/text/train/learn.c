/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Learning merges: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units",
 * arXiv 1508.07909, with each distinct word held once.
 *
 * Of pairs that are equally frequent, the one with the lower left token is merged first, then the
 * one with the lower right token. A merge whose text is a token already gives that token, and a
 * later merge of a pair replaces the earlier one.
 */
#include <string.h>

#include "impl.h"
#include "pairs.h"
#include "text/tokenizer/vocab.h"

enum { PROGRESS_EVERY = 64, AHEAD = 8 };

/* A word of at least two symbols, and how many are left of them. */
struct word {
    size_t first; /* into the symbols */
    uint64_t count;
    uint32_t nsymbols;
};

struct learner {
    struct vocab_train *train;
    uint32_t *symbols; /* ids of tokens */
    struct word *words;
    uint32_t nwords;
    struct pairs pairs;
    struct texts tokens; /* those of the training, and the new ones */
    struct merge *merges;
    size_t nmerges, max_merges;
    char *name; /* of the token in the making */
    uint64_t last_frequency;
};

/* ---- words as symbols ------------------------------------------------------------------------ */

static void fill_words(struct learner *l)
{
    const struct vocab_train *t = l->train;
    size_t nsymbols = 0;

    for (size_t i = 0; i < t->words.ntexts; i++) {
        const struct text *text = &t->words.at[i];
        const unsigned char *bytes = (const unsigned char *)t->words.bytes + text->first;
        if (text->nbytes < 2)
            continue;
        l->words[l->nwords++] = (struct word){nsymbols, text->count, text->nbytes};
        for (uint32_t k = 0; k < text->nbytes; k++)
            l->symbols[nsymbols++] = t->units[bytes[k]];
    }
}

static int count_pairs(struct learner *l, struct fsdp_err *err)
{
    for (uint32_t w = 0; w < l->nwords; w++) {
        const struct word *word = &l->words[w];
        const uint32_t *s = l->symbols + word->first;
        for (uint32_t i = 0; i + 1 < word->nsymbols; i++)
            FSDP_TRY(pairs_count_up(&l->pairs, pair_key(s[i], s[i + 1]), w, word->count, err));
    }
    FSDP_TRY(pairs_publish(&l->pairs, err));
    fsdp_free(l->pairs.log); /* much larger than any later one */
    l->pairs.log = NULL;
    l->pairs.max_log = 0;
    return FSDP_OK;
}

/* The words' texts stay as they are until the end, so that a failure changes nothing. */
static int prepare(struct learner *l, struct fsdp_err *err)
{
    const struct vocab_train *t = l->train;
    uint32_t id = 0;

    l->symbols = fsdp_alloc_unset(t->words.nbytes, sizeof *l->symbols, "symbols of words", err);
    l->words = fsdp_alloc_unset(t->words.ntexts, sizeof *l->words, "words", err);
    l->name = fsdp_alloc_unset(2 * UINT16_MAX, 1, "token", err);
    if (!l->symbols || !l->words || !l->name)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < t->tokens.ntexts; i++) {
        const struct text *token = &t->tokens.at[i];
        FSDP_TRY(texts_add(&id, &l->tokens, t->tokens.bytes + token->first, token->nbytes, 1, err));
    }
    fill_words(l);
    return count_pairs(l, err);
}

/* ---- merging --------------------------------------------------------------------------------- */

/* The token that a pair becomes. */
static int name_token(uint32_t *id, struct learner *l, const struct merge *merge,
                      struct fsdp_err *err)
{
    const struct text *left = &l->tokens.at[merge->left], *right = &l->tokens.at[merge->right];
    const size_t nbytes = (size_t)left->nbytes + right->nbytes;

    if (nbytes > UINT16_MAX)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "merge %zu would make a token of %zu bytes, and %d are the most: the "
                            "texts repeat themselves; give a smaller vocabulary, or other texts",
                            l->nmerges + 1, nbytes, UINT16_MAX);
    memcpy(l->name, l->tokens.bytes + left->first, left->nbytes);
    memcpy(l->name + left->nbytes, l->tokens.bytes + right->first, right->nbytes);
    FSDP_TRY(texts_add(id, &l->tokens, l->name, nbytes, 1, err));
    struct merge *merges =
        fsdp_alloc_grow(l->merges, l->nmerges, &l->max_merges, sizeof *merges, "merges", err);
    if (!merges)
        return FSDP_ENOMEM;
    l->merges = merges;
    merges[l->nmerges++] = *merge;
    return FSDP_OK;
}

/* Replaces a pair in a word, from left to right, and counts what its neighbours lose and win. */
static int merge_word(struct learner *l, uint32_t w, const struct merge *merge, uint32_t id,
                      struct fsdp_err *err)
{
    struct word *word = &l->words[w];
    uint32_t *s = l->symbols + word->first, n = 0, i = 0;
    const uint32_t nsymbols = word->nsymbols;

    while (i < nsymbols) {
        if (s[i] != merge->left || i + 1 == nsymbols || s[i + 1] != merge->right) {
            s[n++] = s[i++];
            continue;
        }
        if (n) {
            pairs_count_down(&l->pairs, pair_key(s[n - 1], merge->left), word->count);
            FSDP_TRY(pairs_count_up(&l->pairs, pair_key(s[n - 1], id), w, word->count, err));
        }
        i += 2;
        if (i < nsymbols) {
            pairs_count_down(&l->pairs, pair_key(merge->right, s[i]), word->count);
            FSDP_TRY(pairs_count_up(&l->pairs, pair_key(id, s[i]), w, word->count, err));
        }
        s[n++] = id;
    }
    word->nsymbols = n;
    return FSDP_OK;
}

static int merge_pair(struct learner *l, const struct candidate *best, struct fsdp_err *err)
{
    const struct merge merge = {(uint32_t)(best->key >> 32), (uint32_t)best->key};
    uint32_t id = 0;

    FSDP_TRY(name_token(&id, l, &merge, err));
    l->last_frequency = (uint64_t)best->count;
    for (size_t i = 0; i < best->npos; i++) {
        const uint32_t *at = l->pairs.positions + best->first + i;
        if (i + 2 * AHEAD < best->npos)
            __builtin_prefetch(&l->words[at[2 * AHEAD]]);
        if (i + AHEAD < best->npos)
            __builtin_prefetch(&l->symbols[l->words[at[AHEAD]].first]);
        FSDP_TRY(merge_word(l, *at, &merge, id, err));
    }
    return pairs_publish(&l->pairs, err);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Of a pair that was merged twice the last time counts. */
static int drop_repeated(struct learner *l, struct fsdp_err *err)
{
    struct texts seen = {0};
    size_t n = l->nmerges;
    uint32_t number = 0;
    int rc = FSDP_OK;

    for (size_t i = l->nmerges; i--;) {
        const struct merge merge = l->merges[i];
        const size_t nseen = seen.ntexts;
        FSDP_TRY_GOTO(texts_add(&number, &seen, (const char *)&merge, sizeof merge, 1, err), out);
        if (seen.ntexts > nseen)
            l->merges[--n] = merge;
    }
    memmove(l->merges, l->merges + n, (l->nmerges - n) * sizeof *l->merges);
    l->nmerges -= n;
out:
    texts_free(&seen);
    return rc;
}

static int learn(struct learner *l, vocab_train_progress_f *progress, void *ctx,
                 struct fsdp_err *err)
{
    const size_t vocab_size = (size_t)l->train->vocab_size;
    const int nwanted = (int)(vocab_size - l->tokens.ntexts);
    struct candidate best;

    while (l->tokens.ntexts < vocab_size && pairs_pop(&best, &l->pairs, l->train->min_frequency)) {
        if (progress && l->nmerges % PROGRESS_EVERY == 0)
            FSDP_TRY(progress(ctx, (int)l->nmerges, nwanted, err));
        FSDP_TRY(merge_pair(l, &best, err));
    }
    if (l->nmerges)
        FSDP_TRY(drop_repeated(l, err));
    return progress ? progress(ctx, (int)l->nmerges, nwanted, err) : FSDP_OK;
}

static void keep_learned(struct learner *l)
{
    struct vocab_train *t = l->train;

    texts_free(&t->tokens);
    t->tokens = l->tokens;
    l->tokens = (struct texts){0};
    t->merges = l->merges;
    l->merges = NULL;
    t->nmerges = (int)l->nmerges;
    t->last_frequency = l->last_frequency;
    t->finished = true;
}

int vocab_train_finish(struct vocab_train *t, vocab_train_progress_f *progress, void *ctx,
                       struct fsdp_err *err)
{
    struct learner l = {.train = t};
    int rc;

    if (t->finished)
        return fsdp_err_set(err, FSDP_EINVAL, "the vocabulary is finished");
    rc = prepare(&l, err);
    if (rc == FSDP_OK)
        rc = learn(&l, progress, ctx, err);
    if (rc == FSDP_OK)
        keep_learned(&l);
    fsdp_free(l.symbols);
    fsdp_free(l.words);
    fsdp_free(l.name);
    fsdp_free(l.merges);
    texts_free(&l.tokens);
    pairs_free(&l.pairs);
    return rc;
}

void vocab_train_merge_at(struct vocab_train_name halves[2], const struct vocab_train *t, int merge)
{
    const uint32_t ids[2] = {t->merges[merge].left, t->merges[merge].right};

    for (int i = 0; i < 2; i++) {
        const struct text *token = &t->tokens.at[ids[i]];
        halves[i] = (struct vocab_train_name){t->tokens.bytes + token->first, token->nbytes};
    }
}
