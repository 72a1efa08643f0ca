/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unigram: of all ways to cut a piece into tokens the one with the highest sum of scores (Viterbi).
 * A character that no token covers alone costs the lowest score less 10 and is unknown.
 */
#include <math.h>
#include <string.h>

#include "words.h"

/* A trie over all tokens as one hash table of edges: (node, byte) -> node. Node 0 is the root. */
struct edge {
    uint32_t node, child; /* node EDGE_FREE: none */
    int32_t id;           /* of the token that ends at the child; -1: none */
    uint8_t byte;
};
#define EDGE_FREE UINT32_MAX

struct unigram {
    struct words words;
    const double *scores;
    double unk_score;
    struct edge *edges;
    uint32_t mask, nnodes;
};

/* The best way to the end of a byte. */
struct place {
    double score;
    int32_t id;
    uint32_t from;
    bool reached;
};

struct token_range {
    int32_t id;
    uint32_t first, nbytes;
};

struct scratch {
    struct place *places;
    struct token_range *tokens;
    size_t max_places, max_tokens, ntokens;
};

/* ---- trie ------------------------------------------------------------------------------------ */

static struct edge *find_edge(const struct unigram *u, uint32_t node, uint8_t byte)
{
    uint64_t hash = ((uint64_t)node << 8 | byte) * UINT64_C(0x9e3779b97f4a7c15);

    hash ^= hash >> 32;
    uint32_t at = (uint32_t)hash & u->mask;
    while (u->edges[at].node != EDGE_FREE &&
           (u->edges[at].node != node || u->edges[at].byte != byte))
        at = (at + 1) & u->mask;
    return &u->edges[at];
}

static void add_token(struct unigram *u, int32_t id, const char *token, size_t nbytes)
{
    uint32_t node = 0;

    for (size_t i = 0; i < nbytes; i++) {
        struct edge *edge = find_edge(u, node, (uint8_t)token[i]);
        if (edge->node == EDGE_FREE)
            *edge = (struct edge){node, ++u->nnodes, -1, (uint8_t)token[i]};
        if (i + 1 == nbytes)
            edge->id = id;
        node = edge->child;
    }
}

static int make_trie(struct unigram *u, struct fsdp_err *err)
{
    const struct vocab *vocab = u->words.vocab;
    size_t nslots = 64, nbytes;

    while (nslots < vocab->nbytes * 2)
        nslots *= 2;
    if (nslots > UINT32_MAX)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "a vocabulary of more than 2 GiB");
    u->edges = fsdp_alloc_unset(nslots, sizeof *u->edges, "trie of tokens", err);
    if (!u->edges)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < nslots; i++)
        u->edges[i].node = EDGE_FREE;
    u->mask = (uint32_t)nslots - 1;
    for (int32_t id = 0; (size_t)id < vocab->nids; id++) {
        const char *token = vocab_at(vocab, id, &nbytes);
        if (token && nbytes && !isnan(u->scores[id]))
            add_token(u, id, token, nbytes);
    }
    return FSDP_OK;
}

/* ---- the best path --------------------------------------------------------------------------- */

static void offer(struct place *place, double score, int32_t id, size_t from)
{
    if (!place->reached || score > place->score)
        *place = (struct place){score, id, (uint32_t)from, true};
}

static void step_from(const struct unigram *u, struct scratch *s, const char *piece, size_t nbytes,
                      size_t at, size_t char_nbytes)
{
    const double base = s->places[at].score;
    bool whole_char = false;
    uint32_t node = 0;

    for (size_t i = at; i < nbytes; i++) {
        const struct edge *edge = find_edge(u, node, (uint8_t)piece[i]);
        if (edge->node == EDGE_FREE)
            break;
        node = edge->child;
        if (edge->id >= 0) {
            offer(&s->places[i + 1], base + u->scores[edge->id], edge->id, at);
            whole_char |= i + 1 == at + char_nbytes;
        }
    }
    if (!whole_char)
        offer(&s->places[at + char_nbytes], base + u->unk_score, u->words.unk, at);
}

static int find_path(const struct unigram *u, struct scratch *s, const char *piece, size_t nbytes,
                     struct fsdp_err *err)
{
    struct place *places = fsdp_alloc_reserve(s->places, 0, &s->max_places, nbytes + 1,
                                              sizeof *places, "paths of a word", err);
    if (!places)
        return FSDP_ENOMEM;
    s->places = places;
    memset(places, 0, (nbytes + 1) * sizeof *places);
    for (size_t at = 0, step; at < nbytes; at += step) {
        uint32_t code;
        step = (size_t)fsdp_utf8_decode(&code, piece + at, piece + nbytes);
        if (!step)
            return fsdp_err_set(err, FSDP_EINTERNAL, "a piece of text is not UTF-8");
        step_from(u, s, piece, nbytes, at, step);
    }
    return FSDP_OK;
}

/* The path, from its end to its beginning. */
static int trace_path(struct scratch *s, size_t nbytes, struct fsdp_err *err)
{
    s->ntokens = 0;
    for (size_t at = nbytes; at; at = s->places[at].from) {
        const struct place *place = &s->places[at];
        struct token_range *tokens = fsdp_alloc_grow(s->tokens, s->ntokens, &s->max_tokens,
                                                     sizeof *tokens, "paths of a word", err);
        if (!tokens)
            return FSDP_ENOMEM;
        s->tokens = tokens;
        tokens[s->ntokens++] =
            (struct token_range){place->id, place->from, (uint32_t)at - place->from};
    }
    return FSDP_OK;
}

/* A run of unknown characters: one token, or the tokens of its bytes. Text that spells the unknown
 * token is no token of its own in a path, but a run alone that spells a token is that token. */
static int add_unknown(const struct unigram *u, const char *piece, size_t nbytes,
                       struct word_ids *out, struct fsdp_err *err)
{
    const int32_t id = vocab_find(u->words.vocab, piece, nbytes);

    if (id >= 0 && !isnan(u->scores[id]))
        return word_ids_add(out, id, nbytes, err);
    if (!words_have_bytes(&u->words))
        return word_ids_add(out, u->words.unk, nbytes, err);
    for (size_t i = 0; i < nbytes; i++)
        FSDP_TRY(word_ids_add(out, u->words.bytes[(unsigned char)piece[i]], 1, err));
    return FSDP_OK;
}

static int unigram_encode(const struct words *words, struct scratch *s, const char *piece,
                          size_t nbytes, struct word_ids *out, struct fsdp_err *err)
{
    const struct unigram *u = (const struct unigram *)words;

    if (nbytes > INT32_MAX / 2)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "a word of %zu bytes", nbytes);
    FSDP_TRY(find_path(u, s, piece, nbytes, err));
    FSDP_TRY(trace_path(s, nbytes, err));
    for (size_t i = s->ntokens; i-- > 0;) {
        const struct token_range token = s->tokens[i];
        size_t all = token.nbytes;
        if (token.id != words->unk) {
            FSDP_TRY(word_ids_add(out, token.id, all, err));
            continue;
        }
        for (; i && s->tokens[i - 1].id == words->unk; i--)
            all += s->tokens[i - 1].nbytes;
        FSDP_TRY(add_unknown(u, piece + token.first, all, out, err));
    }
    return FSDP_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void unigram_destroy(struct words *words)
{
    if (words)
        fsdp_free(((struct unigram *)words)->edges);
    fsdp_free(words);
}

static int unigram_scratch_create(struct scratch **out, const struct words *words,
                                  struct fsdp_err *err)
{
    (void)words;
    *out = fsdp_alloc(1, sizeof **out, "tokenizer scratch", err);
    return *out ? FSDP_OK : FSDP_ENOMEM;
}

static void unigram_scratch_destroy(struct scratch *s)
{
    if (s) {
        fsdp_free(s->places);
        fsdp_free(s->tokens);
    }
    fsdp_free(s);
}

static const struct words_ops unigram_ops = {
    .destroy = unigram_destroy,
    .scratch_create = unigram_scratch_create,
    .scratch_destroy = unigram_scratch_destroy,
    .encode = unigram_encode,
};

int unigram_create(struct words **out, const struct vocab *vocab, const double *scores, int32_t unk,
                   bool byte_fallback, struct fsdp_err *err)
{
    enum { UNK_PENALTY = 10 };
    struct unigram *u = fsdp_alloc(1, sizeof *u, "tokenizer", err);
    double lowest = HUGE_VAL;
    size_t nbytes;
    int rc;

    if (!u)
        return FSDP_ENOMEM;
    u->words = (struct words){.ops = &unigram_ops, .vocab = vocab, .unk = unk, .fuse_unk = true};
    u->words.bytes[0] = -1;
    u->scores = scores;
    for (int32_t id = 0; (size_t)id < vocab->nids; id++)
        if (vocab_at(vocab, id, &nbytes) && scores[id] < lowest)
            lowest = scores[id];
    u->unk_score = lowest - UNK_PENALTY;
    rc = byte_fallback ? words_find_bytes(&u->words, err) : FSDP_OK;
    if (rc == FSDP_OK && unk < 0)
        rc = fsdp_err_set(err, FSDP_EINVAL, "a Unigram vocabulary without an unknown token");
    if (rc == FSDP_OK)
        rc = make_trie(u, err);
    if (rc != FSDP_OK) {
        unigram_destroy(&u->words);
        return rc;
    }
    *out = &u->words;
    return FSDP_OK;
}
