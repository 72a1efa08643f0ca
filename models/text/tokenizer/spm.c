/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SentencePiece's tokenizer.model: a protocol buffer of pieces, the trainer's settings and the
 * normalizer's. Field numbers are those of sentencepiece_model.proto.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "impl.h"

/* ---- protocol buffers ------------------------------------------------------------------------ */

struct proto {
    const char *at, *end;
};

struct field {
    uint32_t number, wire;
    uint64_t value;   /* wire 0; the bits of wire 1 and 5 */
    struct proto sub; /* wire 2 */
};

static bool read_varint(struct proto *p, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; shift < 64 && p->at < p->end; shift += 7) {
        const unsigned char byte = (unsigned char)*p->at++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

static bool read_fixed(struct proto *p, size_t nbytes, uint64_t *out)
{
    *out = 0;
    if ((size_t)(p->end - p->at) < nbytes)
        return false;
    for (size_t i = 0; i < nbytes; i++)
        *out |= (uint64_t)(unsigned char)p->at[i] << 8 * i;
    p->at += nbytes;
    return true;
}

/* The next field: 1, 0 at the end, -1 where the bytes are no protocol buffer. */
static int next_field(struct proto *p, struct field *out)
{
    uint64_t key, nbytes;

    if (p->at == p->end)
        return 0;
    if (!read_varint(p, &key) || key >> 3 > UINT32_MAX)
        return -1;
    *out = (struct field){.number = (uint32_t)(key >> 3), .wire = key & 7};
    switch (out->wire) {
    case 0:
        return read_varint(p, &out->value) ? 1 : -1;
    case 1:
        return read_fixed(p, 8, &out->value) ? 1 : -1;
    case 5:
        return read_fixed(p, 4, &out->value) ? 1 : -1;
    case 2:
        if (!read_varint(p, &nbytes) || nbytes > (uint64_t)(p->end - p->at))
            return -1;
        out->sub = (struct proto){p->at, p->at + nbytes};
        p->at += nbytes;
        return 1;
    default:
        return -1;
    }
}

/* ---- the model ------------------------------------------------------------------------------- */

enum piece_type {
    PIECE_NORMAL = 1,
    PIECE_UNKNOWN = 2,
    PIECE_CONTROL = 3,
    PIECE_USER_DEFINED = 4,
    PIECE_UNUSED = 5,
    PIECE_BYTE = 6
};
enum { MODEL_UNIGRAM = 1, MODEL_BPE = 2 };

struct spm {
    int32_t npieces, unk, bos, eos;
    uint64_t model_type;
    bool byte_fallback, dummy_prefix, collapse_spaces, escape_spaces, treat_as_suffix, has_charsmap;
    const char *normalizer; /* its name; NULL: none */
    size_t nnormalizer;
    bool has_unused, has_user_defined;
};

static int refuse_bytes(const char *what, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_ECORRUPT, "%s is damaged: not a protocol buffer", what);
}

static float float_of_bits(uint64_t bits)
{
    const uint32_t low = (uint32_t)bits;
    float value;

    memcpy(&value, &low, sizeof value);
    return value;
}

static int add_piece(struct tokenizer *t, struct spm *spm, struct proto text, double score,
                     uint64_t type, struct fsdp_err *err)
{
    static size_t const most = VOCAB_MAX_IDS;
    const size_t nbytes = (size_t)(text.end - text.at);
    struct added_token token = {.id = spm->npieces,
                                .content = (char *)text.at,
                                .nbytes = nbytes,
                                .special = type != PIECE_USER_DEFINED,
                                .normalized = true,
                                .is_normal = true};

    if ((size_t)spm->npieces >= most)
        return fsdp_err_set(err, FSDP_EINVAL, "more than %zu pieces", most);
    FSDP_TRY(vocab_add(&t->vocab, spm->npieces, text.at, nbytes, err));
    /* Text never becomes a piece of another type, whatever it spells: unscored pieces are not
     * found.
     */
    t->scores[spm->npieces] = type == PIECE_NORMAL || type == PIECE_USER_DEFINED ? score : NAN;
    spm->has_unused |= type == PIECE_UNUSED;
    spm->has_user_defined |= type == PIECE_USER_DEFINED;
    if (type == PIECE_UNKNOWN)
        spm->unk = spm->npieces;
    if (type == PIECE_CONTROL || type == PIECE_UNKNOWN || type == PIECE_USER_DEFINED)
        FSDP_TRY(added_add(t, &token, err));
    spm->npieces++;
    return FSDP_OK;
}

static int read_piece(struct tokenizer *t, struct spm *spm, struct proto p, struct fsdp_err *err)
{
    struct proto text = {NULL, NULL};
    uint64_t type = PIECE_NORMAL;
    double score = 0;
    struct field f;
    int rc;

    while ((rc = next_field(&p, &f)) > 0) {
        if (f.number == 1 && f.wire == 2)
            text = f.sub;
        else if (f.number == 2 && f.wire == 5)
            score = (double)float_of_bits(f.value);
        else if (f.number == 3 && f.wire == 0)
            type = f.value;
    }
    return rc < 0 || !text.at ? refuse_bytes("a piece", err)
                              : add_piece(t, spm, text, score, type, err);
}

static int read_trainer(struct spm *spm, struct proto p, struct fsdp_err *err)
{
    struct field f;
    int rc;

    while ((rc = next_field(&p, &f)) > 0) {
        if (f.wire != 0)
            continue;
        switch (f.number) {
        case 3:
            spm->model_type = f.value;
            break;
        case 24:
            spm->treat_as_suffix = f.value;
            break;
        case 35:
            spm->byte_fallback = f.value;
            break;
        case 41:
            spm->bos = (int32_t)f.value;
            break;
        case 42:
            spm->eos = (int32_t)f.value;
            break;
        }
    }
    return rc < 0 ? refuse_bytes("the trainer's settings", err) : FSDP_OK;
}

static int read_normalizer(struct spm *spm, struct proto p, struct fsdp_err *err)
{
    struct field f;
    int rc;

    while ((rc = next_field(&p, &f)) > 0) {
        if (f.number == 1 && f.wire == 2) {
            spm->normalizer = f.sub.at;
            spm->nnormalizer = (size_t)(f.sub.end - f.sub.at);
        } else if (f.number == 2 && f.wire == 2) {
            spm->has_charsmap = f.sub.end > f.sub.at;
        } else if (f.number == 3 && f.wire == 0) {
            spm->dummy_prefix = f.value;
        } else if (f.number == 4 && f.wire == 0) {
            spm->collapse_spaces = f.value;
        } else if (f.number == 5 && f.wire == 0) {
            spm->escape_spaces = f.value;
        }
    }
    return rc < 0 ? refuse_bytes("the normalizer's settings", err) : FSDP_OK;
}

static int read_fields(struct tokenizer *t, struct spm *spm, const char *text, size_t nbytes,
                       struct fsdp_err *err)
{
    struct proto p = {text, text + nbytes};
    struct field f;
    int rc;

    /* A piece takes four bytes at least. */
    t->scores = fsdp_alloc_unset(nbytes / 4 + 1, sizeof *t->scores, "scores of tokens", err);
    if (!t->scores)
        return FSDP_ENOMEM;
    while ((rc = next_field(&p, &f)) > 0) {
        if (f.number == 1 && f.wire == 2)
            FSDP_TRY(read_piece(t, spm, f.sub, err));
        else if (f.number == 2 && f.wire == 2)
            FSDP_TRY(read_trainer(spm, f.sub, err));
        else if (f.number == 3 && f.wire == 2)
            FSDP_TRY(read_normalizer(spm, f.sub, err));
    }
    return rc < 0 ? refuse_bytes("it", err) : vocab_index(&t->vocab, err);
}

/* ---- BPE ------------------------------------------------------------------------------------- */

static int by_score(const void *a, const void *b, void *ctx)
{
    const double *scores = ctx, one = scores[*(const uint32_t *)a],
                 two = scores[*(const uint32_t *)b];

    if (isnan(one) || isnan(two))
        return isnan(one) - isnan(two);
    return one > two ? -1 : one < two;
}

/* The highest score has the lowest rank; equal ones have one, so that the leftmost pair merges. */
static int rank_scores(struct tokenizer *t, int32_t npieces, struct fsdp_err *err)
{
    uint32_t *order = fsdp_alloc((size_t)npieces, sizeof *order, "ranks of tokens", err);
    uint32_t rank = 0;

    t->ranks = fsdp_alloc((size_t)npieces, sizeof *t->ranks, "ranks of tokens", err);
    if (!order || !t->ranks) {
        fsdp_free(order);
        return FSDP_ENOMEM;
    }
    for (int32_t i = 0; i < npieces; i++)
        order[i] = (uint32_t)i;
    qsort_r(order, (size_t)npieces, sizeof *order, by_score, t->scores);
    for (int32_t i = 0; i < npieces; i++) {
        rank += i && t->scores[order[i]] < t->scores[order[i - 1]];
        t->ranks[order[i]] = isnan(t->scores[order[i]]) ? WORDS_NO_RANK : rank;
    }
    fsdp_free(order);
    return FSDP_OK;
}

static int make_words(struct tokenizer *t, const struct spm *spm, struct fsdp_err *err)
{
    const struct bpe_opts opts = {.vocab = &t->vocab,
                                  .unk = spm->unk,
                                  .fuse_unk = true,
                                  .byte_fallback = spm->byte_fallback,
                                  .merge_by_content = true,
                                  .ranks = t->ranks};

    return spm->model_type == MODEL_BPE
               ? bpe_create(&t->words, &opts, 0, err)
               : unigram_create(&t->words, &t->vocab, t->scores, spm->unk, spm->byte_fallback, err);
}

/* ---- what is supported ----------------------------------------------------------------------- */

static int check_model(const struct spm *spm, struct fsdp_err *err)
{
    const bool user_defined = spm->has_user_defined && spm->model_type == MODEL_UNIGRAM;

    if (!spm->npieces || spm->unk < 0)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "no pieces, or none that is unknown: is this "
                            "SentencePiece's tokenizer.model?");
    if (spm->model_type != MODEL_BPE && spm->model_type != MODEL_UNIGRAM)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "SentencePiece model type %d is not supported; unigram and bpe are",
                            (int)spm->model_type);
    if (spm->has_charsmap)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "SentencePiece normalizer '%.*s' is not supported, only identity: use "
                            "the model's tokenizer.json",
                            (int)spm->nnormalizer, spm->normalizer ? spm->normalizer : "");
    if (spm->collapse_spaces || !spm->escape_spaces || spm->treat_as_suffix || spm->has_unused ||
        user_defined)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "SentencePiece %s is not supported: use the model's tokenizer.json",
                            spm->collapse_spaces  ? "remove_extra_whitespaces"
                            : !spm->escape_spaces ? "without escape_whitespaces"
                            : spm->has_unused     ? "with unused pieces"
                            : user_defined        ? "unigram with user-defined pieces"
                                                  : "treat_whitespace_as_suffix");
    return FSDP_OK;
}

static int make_steps(struct tokenizer *t, const struct spm *spm, struct fsdp_err *err)
{
    static const char mark[] = "\xe2\x96\x81"; /* U+2581 */

    /* Spaces are marked, and the text begins with one. User-defined pieces are matched after that:
     * they are spelled with the mark. */
    if (spm->dummy_prefix)
        FSDP_TRY(normalizer_add_prepend(t, mark, err));
    FSDP_TRY(normalizer_add_replace(t, " ", mark, err));
    t->decoder.replaces[0].from = fsdp_strdup(mark, err);
    t->decoder.replaces[0].to = fsdp_strdup(" ", err);
    t->decoder.nreplaces = 1;
    t->decoder.byte_fallback = spm->byte_fallback;
    t->decoder.each_byte = t->decoder.special_apart = true;
    strcpy(t->decoder.strip, " ");
    t->decoder.strip_start = spm->dummy_prefix;
    return t->decoder.replaces[0].from && t->decoder.replaces[0].to ? FSDP_OK : FSDP_ENOMEM;
}

int tokenizer_read_spm(struct tokenizer *t, const char *text, size_t nbytes, struct fsdp_err *err)
{
    struct spm spm = {.unk = -1,
                      .bos = 1,
                      .eos = 2,
                      .model_type = MODEL_UNIGRAM,
                      .dummy_prefix = true,
                      .collapse_spaces = true,
                      .escape_spaces = true};

    FSDP_TRY(read_fields(t, &spm, text, nbytes, err));
    FSDP_TRY(check_model(&spm, err));
    FSDP_TRY(rank_scores(t, spm.npieces, err));
    FSDP_TRY(make_words(t, &spm, err));
    FSDP_TRY(make_steps(t, &spm, err));
    t->bos = spm.bos < spm.npieces ? spm.bos : -1;
    t->eos = spm.eos < spm.npieces ? spm.eos : -1;
    if (t->bos >= 0)
        t->before[t->nbefore++] = t->bos;
    /* Control pieces are not looked for in text; user-defined ones are. */
    t->skip_special = true;
    return FSDP_OK;
}
