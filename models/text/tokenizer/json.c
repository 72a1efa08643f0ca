/* SPDX-License-Identifier: Apache-2.0 */
/* Hugging Face's tokenizer.json. */
#include <string.h>

#include "impl.h"

/* ---- vocabulary ------------------------------------------------------------------------------ */

/* How tokens are spelled: as they stand, or byte by byte. */
struct speller {
    struct byte_names names;
    bool bytes;
    char *buffer; /* a name's bytes, of SPELLED_NBYTES at most ... */
    char *merged; /* ... and, behind them, a merge's, of UINT16_MAX as vocab_add takes them */
};
enum { SPELLED_NBYTES = (UINT16_MAX + 1) * 4 };

/* The token that `name` spells, in *out; the name itself where it spells none. */
static size_t spell(const struct speller *speller, const char *name, size_t nbytes,
                    const char **out)
{
    const bool bytes = speller->bytes && nbytes <= SPELLED_NBYTES; /* longer ones are refused */
    const int n = bytes ? byte_names_read(speller->buffer, &speller->names, name, nbytes) : -1;

    *out = n < 0 ? name : speller->buffer;
    return n < 0 ? nbytes : (size_t)n;
}

static int read_vocab(struct tokenizer *t, const struct speller *speller, const json_t *vocab,
                      struct fsdp_err *err)
{
    const char *name, *token;
    size_t nname;
    json_t *id;

    if (!json_is_object(vocab))
        return fsdp_err_set(err, FSDP_EINVAL, "model.vocab is no object");
    json_object_keylen_foreach((json_t *)vocab, name, nname, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= VOCAB_MAX_IDS)
            return fsdp_err_set(err, FSDP_EINVAL, "model.vocab: the id of '%.40s' is no token id",
                                name);
        const size_t nbytes = spell(speller, name, nname, &token);
        FSDP_TRY(vocab_add(&t->vocab, (int32_t)json_integer_value(id), token, nbytes, err));
    }
    return vocab_index(&t->vocab, err);
}

static int find_unk(const struct tokenizer *t, const json_t *model, int32_t *unk,
                    struct fsdp_err *err)
{
    const char *name = json_string_value(json_object_get(model, "unk_token"));

    *unk = name ? vocab_find(&t->vocab, name, strlen(name)) : -1;
    if (name && *unk < 0)
        return fsdp_err_set(err, FSDP_EINVAL, "model.unk_token '%.40s' is not in model.vocab",
                            name);
    return FSDP_OK;
}

/* ---- BPE ------------------------------------------------------------------------------------- */

/* A merge is "left right", or a list of the two. */
static int split_merge(const json_t *merge, const char *parts[2], size_t nparts[2])
{
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        for (size_t i = 0; i < 2; i++) {
            parts[i] = json_string_value(json_array_get(merge, i));
            nparts[i] = json_string_length(json_array_get(merge, i));
        }
        return parts[0] && parts[1];
    }
    const char *text = json_string_value(merge);
    const char *space = text ? strchr(text, ' ') : NULL;
    if (!space || strchr(space + 1, ' '))
        return 0;
    parts[0] = text;
    nparts[0] = (size_t)(space - text);
    parts[1] = space + 1;
    nparts[1] = strlen(space + 1);
    return 1;
}

/* How much of a token an error shows. */
static int shown(size_t nbytes)
{
    return nbytes < 40 ? (int)nbytes : 40;
}

static int read_merge(struct tokenizer *t, const struct speller *speller, const json_t *merge,
                      struct fsdp_err *err)
{
    const char *parts[2], *token;
    size_t nparts[2], n = 0;
    int32_t ids[2];

    if (!split_merge(merge, parts, nparts))
        return fsdp_err_set(err, FSDP_EINVAL, "it is not two tokens");
    for (int i = 0; i < 2; i++) {
        const size_t nbytes = spell(speller, parts[i], nparts[i], &token);
        ids[i] = vocab_find(&t->vocab, token, nbytes);
        if (ids[i] < 0)
            return fsdp_err_set(err, FSDP_EINVAL, "'%.*s' is not in model.vocab", shown(nparts[i]),
                                parts[i]);
        if (n + nbytes > UINT16_MAX)
            return fsdp_err_set(err, FSDP_EUNSUPPORTED, "its token is longer than %d bytes",
                                UINT16_MAX);
        memcpy(speller->merged + n, token, nbytes);
        n += nbytes;
    }
    const int32_t merged = vocab_find(&t->vocab, speller->merged, n);
    if (merged < 0)
        return fsdp_err_set(err, FSDP_EINVAL, "'%.*s' + '%.*s' is not in model.vocab",
                            shown(nparts[0]), parts[0], shown(nparts[1]), parts[1]);
    return bpe_add_merge(t->words, ids[0], ids[1], merged, err);
}

static int refuse_affixes(const json_t *model, struct fsdp_err *err)
{
    static const char *const keys[] = {"continuing_subword_prefix", "end_of_word_suffix"};

    for (int i = 0; i < 2; i++) {
        const char *value = json_string_value(json_object_get(model, keys[i]));
        if (value && value[0])
            return fsdp_err_set(err, FSDP_EUNSUPPORTED, "model.%s '%.20s' is not supported",
                                keys[i], value);
    }
    if (json_number_value(json_object_get(model, "dropout")) > 0)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "model.dropout is not supported: ids would be random");
    return FSDP_OK;
}

static int read_bpe(struct tokenizer *t, const struct speller *speller, const json_t *model,
                    struct fsdp_err *err)
{
    const json_t *merges = json_object_get(model, "merges"), *merge;
    struct bpe_opts opts = {
        .vocab = &t->vocab,
        .fuse_unk = json_is_true(json_object_get(model, "fuse_unk")),
        .byte_fallback = json_is_true(json_object_get(model, "byte_fallback")),
        .ignore_merges = json_is_true(json_object_get(model, "ignore_merges")),
        .unit_bytes = speller->bytes,
    };
    size_t i;

    FSDP_TRY(refuse_affixes(model, err));
    FSDP_TRY(read_vocab(t, speller, json_object_get(model, "vocab"), err));
    FSDP_TRY(find_unk(t, model, &opts.unk, err));
    if (!json_is_array(merges))
        return fsdp_err_set(err, FSDP_EINVAL, "model.merges is no list");
    FSDP_TRY(bpe_create(&t->words, &opts, json_array_size(merges), err));
    json_array_foreach(merges, i, merge)
    {
        int rc = read_merge(t, speller, merge, err);
        if (rc != FSDP_OK)
            return fsdp_err_prefix(err, rc, "model.merges[%zu]: ", i);
    }
    return FSDP_OK;
}

/* ---- Unigram --------------------------------------------------------------------------------- */

static int read_unigram(struct tokenizer *t, const struct speller *speller, const json_t *model,
                        struct fsdp_err *err)
{
    const json_t *vocab = json_object_get(model, "vocab"), *item;
    const json_t *unk = json_object_get(model, "unk_id");
    const char *token;
    size_t i;

    if (!json_is_array(vocab))
        return fsdp_err_set(err, FSDP_EINVAL, "model.vocab is no list");
    if (json_is_integer(unk) && (json_integer_value(unk) < 0 ||
                                 json_integer_value(unk) >= (json_int_t)json_array_size(vocab)))
        return fsdp_err_set(err, FSDP_EINVAL, "model.unk_id is outside model.vocab");
    t->scores = fsdp_alloc(json_array_size(vocab), sizeof *t->scores, "scores of tokens", err);
    if (!t->scores)
        return FSDP_ENOMEM;
    json_array_foreach(vocab, i, item)
    {
        const json_t *name = json_array_get(item, 0), *score = json_array_get(item, 1);
        if (!json_is_string(name) || !json_is_number(score))
            return fsdp_err_set(err, FSDP_EINVAL, "model.vocab[%zu] is no token with its score", i);
        const size_t nbytes =
            spell(speller, json_string_value(name), json_string_length(name), &token);
        FSDP_TRY(vocab_add(&t->vocab, (int32_t)i, token, nbytes, err));
        t->scores[i] = json_number_value(score);
    }
    FSDP_TRY(vocab_index(&t->vocab, err));
    if (speller->bytes)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "Unigram after ByteLevel is not supported");
    return unigram_create(&t->words, &t->vocab, t->scores,
                          json_is_integer(unk) ? (int32_t)json_integer_value(unk) : -1,
                          json_is_true(json_object_get(model, "byte_fallback")), err);
}

/* ---- the post-processor ---------------------------------------------------------------------- */

static int put_special(struct tokenizer *t, bool after, const json_t *id, struct fsdp_err *err)
{
    int *count = after ? &t->nafter : &t->nbefore;

    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= VOCAB_MAX_IDS)
        return fsdp_err_set(err, FSDP_EINVAL, "post-processor: a special token has no id");
    if (*count == MAX_SPECIAL)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "post-processor: more than %d special tokens",
                            MAX_SPECIAL);
    (after ? t->after : t->before)[(*count)++] = (int32_t)json_integer_value(id);
    return FSDP_OK;
}

static int read_template(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    const json_t *single = json_object_get(json, "single"), *item, *id;
    bool after = false;
    size_t i, k;

    json_array_foreach(single, i, item)
    {
        const char *name =
            json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        if (json_object_get(item, "Sequence")) {
            if (after)
                return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                    "post-processor TemplateProcessing: the text twice");
            after = true;
            continue;
        }
        const json_t *ids = json_object_get(
            json_object_get(json_object_get(json, "special_tokens"), name ? name : ""), "ids");
        if (!json_is_array(ids))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "post-processor TemplateProcessing: special token '%.40s' has no "
                                "ids",
                                name ? name : "");
        json_array_foreach(ids, k, id) FSDP_TRY(put_special(t, after, id, err));
    }
    if (!after)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "post-processor TemplateProcessing: its template has no text");
    return FSDP_OK;
}

/* BertProcessing and RobertaProcessing: cls and sep are [token, id]. */
static int read_cls_sep(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    const json_t *cls = json_array_get(json_object_get(json, "cls"), 1),
                 *sep = json_array_get(json_object_get(json, "sep"), 1);

    FSDP_TRY(put_special(t, false, cls, err));
    return put_special(t, true, sep, err);
}

static int read_post(struct tokenizer *t, const json_t *json, struct fsdp_err *err)
{
    const char *type = json_string_value(json_object_get(json, "type"));
    const json_t *list = json_object_get(json, "processors"), *item;
    size_t i;

    if (!json || json_is_null(json) || (type && !strcmp(type, "ByteLevel")))
        return FSDP_OK;
    if (type && !strcmp(type, "TemplateProcessing"))
        return read_template(t, json, err);
    if (type && (!strcmp(type, "RobertaProcessing") || !strcmp(type, "BertProcessing")))
        return read_cls_sep(t, json, err);
    if (!type || strcmp(type, "Sequence") != 0)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "post-processor '%s' is not supported",
                            type ? type : "without a type");
    json_array_foreach(list, i, item)
    {
        if ((t->nbefore || t->nafter) && json_object_get(item, "single"))
            return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                "post-processor: several templates are not supported");
        FSDP_TRY(read_post(t, item, err));
    }
    return FSDP_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

static int read_model(struct tokenizer *t, const struct speller *speller, const json_t *model,
                      struct fsdp_err *err)
{
    const char *type = json_string_value(json_object_get(model, "type"));

    if (!type)
        type = json_object_get(model, "merges") ? "BPE" : "without a type";
    if (!strcmp(type, "BPE"))
        return read_bpe(t, speller, model, err);
    if (!strcmp(type, "Unigram"))
        return read_unigram(t, speller, model, err);
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "model '%s' is not supported; BPE and Unigram are",
                        type);
}

/* "first" is decided by where a piece stems from in the original text, of which the original keeps
 * count in its own way where characters have become fewer or more. */
static int check_first(const struct tokenizer *t, struct fsdp_err *err)
{
    bool moves = false;

    for (int i = 0; i < t->normalizer.nsteps; i++)
        moves |= t->normalizer.steps[i].moves_start;
    for (int i = 0; i < t->splitter.nsteps; i++)
        if (t->splitter.steps[i].is_prefix && t->splitter.steps[i].when == PREFIX_FIRST &&
            (moves || (i && t->normalizer.nsteps)))
            return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                "pre-tokenizer Metaspace with prepend_scheme 'first' after %s is "
                                "not supported",
                                moves ? "normalizer Strip, StripAccents or Replace"
                                      : "a normalizer and another pre-tokenizer");
    return FSDP_OK;
}

/* Is each byte a token whose id is the byte's value, and is there nothing else? */
static bool is_bytes(const struct tokenizer *t)
{
    const char *token;
    size_t nbytes;

    if (t->normalizer.nsteps || t->splitter.nsteps || !t->splitter.bytes || t->added.ntokens ||
        t->nbefore || t->nafter || t->decoder.nreplaces || t->decoder.strip[0] ||
        t->vocab.nids != 256)
        return false;
    for (int id = 0; id < 256; id++) {
        token = vocab_at(&t->vocab, id, &nbytes);
        if (!token || nbytes != 1 || (unsigned char)token[0] != id)
            return false;
    }
    return true;
}

static int read_parts(struct tokenizer *t, struct speller *speller, const json_t *root,
                      struct fsdp_err *err)
{
    const json_t *model = json_object_get(root, "model");

    FSDP_TRY(normalizer_parse(t, json_object_get(root, "normalizer"), err));
    FSDP_TRY(splitter_parse(t, json_object_get(root, "pre_tokenizer"), err));
    FSDP_TRY(check_first(t, err));
    speller->bytes = t->splitter.bytes;
    FSDP_TRY(read_model(t, speller, model, err));
    FSDP_TRY(tokenizer_read_added(t, root, err));
    FSDP_TRY(decoder_parse(&t->decoder, json_object_get(root, "decoder"), err));
    t->decoder.byte_names = t->decoder.bytes;
    if (t->decoder.bytes != t->splitter.bytes)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "ByteLevel as only one of pre-tokenizer and decoder is not supported");
    FSDP_TRY(read_post(t, json_object_get(root, "post_processor"), err));
    if (is_bytes(t)) {
        t->words->ops->destroy(t->words);
        t->words = NULL;
    }
    return FSDP_OK;
}

int tokenizer_read_json(struct tokenizer *t, const char *text, size_t nbytes, struct fsdp_err *err)
{
    struct speller speller = {.buffer = NULL};
    json_error_t why;
    json_t *root = json_loadb(text, nbytes, JSON_ALLOW_NUL, &why);
    int rc;

    if (!root)
        return fsdp_err_set(err, FSDP_EINVAL, "line %d: not valid JSON: %s", why.line, why.text);
    byte_names_make(&speller.names);
    speller.buffer = fsdp_alloc(SPELLED_NBYTES + UINT16_MAX, 1, "token", err);
    speller.merged = speller.buffer ? speller.buffer + SPELLED_NBYTES : NULL;
    rc = !speller.buffer ? FSDP_ENOMEM
         : json_is_object(json_object_get(root, "model"))
             ? read_parts(t, &speller, root, err)
             : fsdp_err_set(err, FSDP_EINVAL, "it has no model: is this a tokenizer.json?");
    fsdp_free(speller.buffer);
    json_decref(root);
    return rc;
}
