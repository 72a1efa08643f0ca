/* SPDX-License-Identifier: Apache-2.0 */
/* Text to ids: the steps of impl.h, with a cache of words. */
#include <string.h>

#include "impl.h"

/* A word of text and its few tokens, in a cache line. Words that are longer are not kept. */
enum { CACHE_SLOTS = 1 << 15, CACHE_NBYTES = 28, CACHE_NIDS = 8 };
struct cached {
    char text[CACHE_NBYTES];
    uint8_t nbytes, nids;
    uint8_t covers[CACHE_NIDS];
    int32_t ids[CACHE_NIDS];
};

struct tokenizer_encoder {
    const struct tokenizer *t;
    struct regex_scan *scans[MAX_REGEXES];
    struct scratch *scratch;
    struct cached *cache;
    struct run runs[4];
    struct pieces pieces[2];
    struct word_ids words;
    const char *text; /* that is being encoded */
    size_t nbytes;
};

void tokenizer_ids_free(struct tokenizer_ids *ids)
{
    fsdp_free(ids->at);
    fsdp_free(ids->ends);
    ids->at = NULL;
    ids->ends = NULL;
    ids->nids = ids->room = ids->ends_room = 0;
}

static int add_id(struct tokenizer_ids *ids, int32_t id, size_t end, struct fsdp_err *err)
{
    int32_t *at = fsdp_alloc_grow(ids->at, ids->nids, &ids->room, sizeof *at, "token ids", err);

    if (!at)
        return FSDP_ENOMEM;
    ids->at = at;
    if (ids->with_ends) {
        size_t *ends =
            fsdp_alloc_grow(ids->ends, ids->nids, &ids->ends_room, sizeof *ends, "token ids", err);
        if (!ends)
            return FSDP_ENOMEM;
        ids->ends = ends;
        ends[ids->nids] = end;
    }
    at[ids->nids++] = id;
    return FSDP_OK;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* Where in the text the first `at` bytes of the run end: behind the character that the last of them
 * stems from. */
static size_t original_end(const struct tokenizer_encoder *e, const struct run *run, size_t at)
{
    if (!at)
        return 0;
    size_t end = run->origin[at - 1] + (size_t)1;
    while (end < e->nbytes && ((unsigned char)e->text[end] & 0xc0) == 0x80)
        end++;
    return end;
}

/* Tokens of a word that begins at `first` of the run. */
static int add_words(const struct tokenizer_encoder *e, const struct run *run, size_t first,
                     const struct word_ids *words, struct tokenizer_ids *ids, struct fsdp_err *err)
{
    for (size_t i = 0; i < words->nids; i++) {
        first += words->covers[i];
        FSDP_TRY(add_id(ids, words->ids[i], ids->with_ends ? original_end(e, run, first) : 0, err));
    }
    return FSDP_OK;
}

static void keep_word(struct cached *slot, const char *text, size_t nbytes,
                      const struct word_ids *words)
{
    if (words->nids > CACHE_NIDS)
        return;
    memcpy(slot->text, text, nbytes);
    slot->nbytes = (uint8_t)nbytes;
    slot->nids = (uint8_t)words->nids;
    for (size_t i = 0; i < CACHE_NIDS && i < words->nids; i++) {
        slot->ids[i] = words->ids[i];
        slot->covers[i] = (uint8_t)words->covers[i];
    }
}

static int encode_word(struct tokenizer_encoder *e, const struct run *run, size_t first,
                       size_t nbytes, struct tokenizer_ids *ids, struct fsdp_err *err)
{
    const char *text = run->text.at + first;
    struct cached *slot = NULL;

    if (nbytes <= CACHE_NBYTES) {
        slot = &e->cache[vocab_hash(text, nbytes) % CACHE_SLOTS];
        if (slot->nbytes == nbytes && !memcmp(slot->text, text, nbytes)) {
            uint32_t covers[CACHE_NIDS];
            for (int i = 0; i < slot->nids; i++)
                covers[i] = slot->covers[i];
            const struct word_ids words = {slot->ids, covers, slot->nids, 0, 0};
            return add_words(e, run, first, &words, ids, err);
        }
    }
    e->words.nids = 0;
    FSDP_TRY(e->t->words->ops->encode(e->t->words, e->scratch, text, nbytes, &e->words, err));
    if (slot)
        keep_word(slot, text, nbytes, &e->words);
    return add_words(e, run, first, &e->words, ids, err);
}

/* A piece is a word, or several where it may be cut. */
static int encode_piece(struct tokenizer_encoder *e, const struct run *run,
                        const struct piece *piece, struct tokenizer_ids *ids, struct fsdp_err *err)
{
    const char *text = run->text.at + piece->first;
    const struct words *words = e->t->words;
    size_t done = 0, n;

    for (size_t at = 0; words->joins && at < piece->nbytes; at += n) {
        const uint32_t code = unicode_decode(text + at, &n);
        if (at == done || words_may_join(words, text[at - 1], code))
            continue;
        FSDP_TRY(encode_word(e, run, piece->first + done, at - done, ids, err));
        done = at;
    }
    return encode_word(e, run, piece->first + done, piece->nbytes - done, ids, err);
}

/* ---- segments between added tokens ----------------------------------------------------------- */

/* Normalized text without added tokens as pieces, in *work. */
static int split_plain(struct split_work *work, struct tokenizer_encoder *e, struct run *run,
                       bool at_start, struct fsdp_err *err)
{
    *work = (struct split_work){run, &e->runs[3], &e->pieces[0], &e->pieces[1]};
    e->pieces[0].npieces = 0;
    if (run->text.nbytes)
        FSDP_TRY(pieces_add(&e->pieces[0], 0, run->text.nbytes, at_start, err));
    return splitter_apply(&e->t->splitter, e->scans, work, err);
}

static int encode_plain(struct tokenizer_encoder *e, struct run *run, bool at_start,
                        struct tokenizer_ids *ids, struct fsdp_err *err)
{
    struct split_work work;

    FSDP_TRY(split_plain(&work, e, run, at_start, err));
    for (size_t i = 0; i < work.pieces->npieces; i++)
        FSDP_TRY(encode_piece(e, work.run, &work.pieces->at[i], ids, err));
    return FSDP_OK;
}

/* A stretch of a run as a run of its own, in runs[0], which the run itself must not be. */
static int encode_stretch(struct tokenizer_encoder *e, const struct run *run, size_t first,
                          size_t end, bool at_start, struct tokenizer_ids *ids,
                          struct fsdp_err *err)
{
    struct run *own = &e->runs[0];

    if (first >= end) /* white space that a token has taken may hold the next token */
        return FSDP_OK;
    run_clear(own, run->with_origin);
    FSDP_TRY(run_add(own, run->text.at + first, end - first, 0,
                     run->with_origin ? run->origin + first : NULL, err));
    return encode_plain(e, own, at_start, ids, err);
}

/* Text between added tokens that are matched as they stand: normalizes it, and cuts it at those
 * that are matched then. The text is in runs[0]. */
static int encode_segment(struct tokenizer_encoder *e, bool at_start, struct tokenizer_ids *ids,
                          struct fsdp_err *err)
{
    const struct added_set *set = &e->t->added.sets[1];
    struct added_match match = {0};
    struct run *run;
    size_t done = 0;

    FSDP_TRY(normalizer_apply(&e->t->normalizer, e->scans, &e->runs[0], &e->runs[1], &run, err));
    if (!set->ntokens)
        return encode_plain(e, run, at_start, ids, err);
    if (run == &e->runs[0]) { /* stretches are copied there */
        struct run swap = e->runs[0];
        e->runs[0] = e->runs[1];
        e->runs[1] = swap;
        run = &e->runs[1];
    }
    while (added_next(e->t, set, e->scans, run->text.at, run->text.nbytes, &match)) {
        FSDP_TRY(encode_stretch(e, run, done, match.first, at_start && !done, ids, err));
        FSDP_TRY(add_id(ids, match.token->id, ids->with_ends ? original_end(e, run, match.end) : 0,
                        err));
        done = match.end;
    }
    return encode_stretch(e, run, done, run->text.nbytes, at_start && !done, ids, err);
}

static int encode_text(struct tokenizer_encoder *e, const char *text, size_t nbytes,
                       struct tokenizer_ids *ids, struct fsdp_err *err)
{
    const struct added_set *set = &e->t->added.sets[0];
    struct added_match match = {0};
    size_t done = 0;

    for (bool more = true; more;) {
        more = added_next(e->t, set, e->scans, text, nbytes, &match);
        const size_t end = more ? match.first : nbytes;
        if (end > done) {
            run_clear(&e->runs[0], ids->with_ends);
            FSDP_TRY(run_add(&e->runs[0], text + done, end - done, done, NULL, err));
            FSDP_TRY(encode_segment(e, done == 0, ids, err));
        }
        if (more)
            FSDP_TRY(add_id(ids, match.token->id, match.end, err));
        done = match.end;
    }
    return FSDP_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* The first byte that is not UTF-8, or nbytes. */
static size_t find_invalid(const char *text, size_t nbytes)
{
    size_t i = 0;

    while (i < nbytes) {
        uint64_t word;
        uint32_t code;
        if (i + 8 <= nbytes &&
            (memcpy(&word, text + i, 8), !(word & UINT64_C(0x8080808080808080)))) {
            i += 8;
            continue;
        }
        const int step =
            (unsigned char)text[i] < 0x80 ? 1 : fsdp_utf8_decode(&code, text + i, text + nbytes);
        if (!step)
            break;
        i += (size_t)step;
    }
    return i;
}

static int check_utf8(const char *text, size_t nbytes, struct fsdp_err *err)
{
    const size_t invalid = find_invalid(text, nbytes);

    return invalid == nbytes
               ? FSDP_OK
               : fsdp_err_set(err, FSDP_EINVAL, "byte %zu of the text, 0x%02x, is not valid UTF-8",
                              invalid, (unsigned char)text[invalid]);
}

int tokenizer_encode(struct tokenizer_encoder *e, const char *text, size_t nbytes, bool add_special,
                     struct tokenizer_ids *ids, struct fsdp_err *err)
{
    const struct tokenizer *t = e->t;

    if (t->words)
        FSDP_TRY(check_utf8(text, nbytes, err));
    for (int i = 0; add_special && i < t->nbefore; i++)
        FSDP_TRY(add_id(ids, t->before[i], 0, err));
    for (size_t i = 0; !t->words && i < nbytes; i++)
        FSDP_TRY(add_id(ids, (unsigned char)text[i], i + 1, err));
    e->text = text;
    e->nbytes = nbytes;
    if (t->words)
        FSDP_TRY(encode_text(e, text, nbytes, ids, err));
    for (int i = 0; add_special && i < t->nafter; i++)
        FSDP_TRY(add_id(ids, t->after[i], nbytes, err));
    return FSDP_OK;
}

int tokenizer_split(struct tokenizer_encoder *e, const char *text, size_t nbytes,
                    tokenizer_word_f *word, void *ctx, struct fsdp_err *err)
{
    struct split_work work;
    struct run *run;

    FSDP_TRY(check_utf8(text, nbytes, err));
    run_clear(&e->runs[0], false);
    FSDP_TRY(run_add(&e->runs[0], text, nbytes, 0, NULL, err));
    FSDP_TRY(normalizer_apply(&e->t->normalizer, e->scans, &e->runs[0], &e->runs[1], &run, err));
    FSDP_TRY(split_plain(&work, e, run, true, err));
    for (size_t i = 0; i < work.pieces->npieces; i++) {
        const struct piece *piece = &work.pieces->at[i];
        FSDP_TRY(word(ctx, work.run->text.at + piece->first, piece->nbytes, err));
    }
    return FSDP_OK;
}

int tokenizer_encoder_create(struct tokenizer_encoder **out, const struct tokenizer *tokenizer,
                             struct fsdp_err *err)
{
    struct tokenizer_encoder *e = fsdp_alloc(1, sizeof *e, "encoder", err);
    int rc = FSDP_OK;

    if (!e)
        return FSDP_ENOMEM;
    e->t = tokenizer;
    for (int i = 0; i < tokenizer->nregexes; i++)
        FSDP_TRY_GOTO(regex_scan_create(&e->scans[i], tokenizer->regexes[i], err), out);
    if (tokenizer->words) {
        FSDP_TRY_GOTO(tokenizer->words->ops->scratch_create(&e->scratch, tokenizer->words, err),
                      out);
        e->cache = fsdp_alloc(CACHE_SLOTS, sizeof *e->cache, "cache of words", err);
        rc = e->cache ? FSDP_OK : FSDP_ENOMEM;
    }
out:
    if (rc == FSDP_OK)
        *out = e;
    else
        tokenizer_encoder_destroy(e);
    return rc;
}

void tokenizer_encoder_destroy(struct tokenizer_encoder *e)
{
    if (!e)
        return;
    for (int i = 0; i < e->t->nregexes; i++)
        regex_scan_destroy(e->scans[i]);
    if (e->t->words && e->scratch)
        e->t->words->ops->scratch_destroy(e->scratch);
    for (int i = 0; i < 4; i++)
        run_free(&e->runs[i]);
    fsdp_free(e->pieces[0].at);
    fsdp_free(e->pieces[1].at);
    word_ids_free(&e->words);
    fsdp_free(e->cache);
    fsdp_free(e);
}
