/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a training, and the counting of words. */
#include <stdlib.h>
#include <string.h>

#include "impl.h"
#include "text/tokenizer/vocab.h"

/* ---- options --------------------------------------------------------------------------------- */

static bool is_utf8(const char *text)
{
    const char *end = text + strlen(text);
    uint32_t code;
    int step = 1;

    for (; text < end && step; text += step)
        step = fsdp_utf8_decode(&code, text, end);
    return step;
}

static int find_special(const struct vocab_train_opts *opts, const char *token)
{
    int i = 0;

    while (i < opts->nspecial && strcmp(opts->special[i], token) != 0)
        i++;
    return i;
}

static int check_special(const struct vocab_train_opts *opts, struct fsdp_err *err)
{
    for (int i = 0; i < opts->nspecial; i++) {
        const char *token = opts->special[i];
        if (!token || !token[0])
            return fsdp_err_set(err, FSDP_EINVAL, "special token %d is empty", i + 1);
        if (!is_utf8(token) || strlen(token) > UINT16_MAX)
            return fsdp_err_set(err, FSDP_EINVAL, "special token %d, '%.40s', is %s", i + 1, token,
                                is_utf8(token) ? "too long" : "not valid UTF-8");
        if (find_special(opts, token) < i)
            return fsdp_err_set(err, FSDP_EINVAL, "special token '%.40s' is given twice", token);
    }
    return FSDP_OK;
}

/* The number of the special token that begins or ends texts. */
static int choose_special(int *out, const struct vocab_train_opts *opts, const char *token,
                          struct fsdp_err *err)
{
    *out = !token && !opts->nspecial ? -1 : token ? find_special(opts, token) : 0;
    return *out < opts->nspecial
               ? FSDP_OK
               : fsdp_err_set(err, FSDP_EINVAL, "'%.40s' is not one of the special tokens", token);
}

static int copy_opts(struct vocab_train *t, const struct vocab_train_opts *opts,
                     struct fsdp_err *err)
{
    if (opts->version != VOCAB_TRAIN_VERSION)
        return fsdp_err_set(err, FSDP_EINVAL, "vocab_train_opts: version %u, not %d", opts->version,
                            VOCAB_TRAIN_VERSION);
    FSDP_TRY(check_special(opts, err));
    FSDP_TRY(choose_special(&t->bos, opts, opts->bos, err));
    FSDP_TRY(choose_special(&t->eos, opts, opts->eos, err));
    t->vocab_size = opts->vocab_size;
    t->min_frequency = opts->min_frequency;
    t->add_prefix_space = opts->add_prefix_space;
    if (opts->pattern && !is_utf8(opts->pattern))
        return fsdp_err_set(err, FSDP_EINVAL, "the pattern is not valid UTF-8");
    if (opts->pattern && !(t->pattern = fsdp_strdup(opts->pattern, err)))
        return FSDP_ENOMEM;
    t->special = fsdp_alloc((size_t)opts->nspecial, sizeof *t->special, "special tokens", err);
    if (!t->special)
        return FSDP_ENOMEM;
    for (; t->nspecial < opts->nspecial; t->nspecial++)
        if (!(t->special[t->nspecial] = fsdp_strdup(opts->special[t->nspecial], err)))
            return FSDP_ENOMEM;
    return FSDP_OK;
}

/* ---- the first tokens ------------------------------------------------------------------------ */

static int name_byte(char out[2], unsigned code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    return 2;
}

/* The special tokens, then the bytes in the order of their names. A special token that is the name
 * of a byte is that byte's token, too. */
static int add_first_tokens(struct vocab_train *t, struct fsdp_err *err)
{
    struct byte_names names;
    uint32_t id = 0;
    char name[2];

    for (int i = 0; i < t->nspecial; i++)
        FSDP_TRY(texts_add(&id, &t->tokens, t->special[i], strlen(t->special[i]), 1, err));
    byte_names_make(&names);
    for (unsigned code = 0; code < BYTE_NAMES_CODES; code++) {
        if (names.bytes[code] < 0)
            continue;
        FSDP_TRY(texts_add(&id, &t->tokens, name, (size_t)name_byte(name, code), 1, err));
        t->units[names.bytes[code]] = id;
    }
    const int first = (int)t->tokens.ntexts;
    if (t->vocab_size < first)
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "a vocabulary of %d tokens has no room for the 256 bytes and %d special "
            "token%s: it needs %d at least",
            t->vocab_size, t->nspecial, t->nspecial == 1 ? "" : "s", first);
    if (t->vocab_size > VOCAB_MAX_IDS)
        return fsdp_err_set(err, FSDP_EINVAL, "a vocabulary of %d tokens: %d is the most",
                            t->vocab_size, VOCAB_MAX_IDS);
    return FSDP_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Texts are cut by the tokenizer that the written file will describe. */
static int open_cutter(struct vocab_train *t, struct fsdp_err *err)
{
    json_t *json = vocab_train_json(t);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    int rc = text ? FSDP_OK : fsdp_err_set(err, FSDP_ENOMEM, "no memory for a tokenizer");

    json_decref(json);
    if (rc == FSDP_OK)
        rc = tokenizer_open_json(&t->cutter, "the new tokenizer", text, strlen(text), err);
    free(text);
    return rc == FSDP_OK ? tokenizer_encoder_create(&t->encoder, t->cutter, err) : rc;
}

int vocab_train_create(struct vocab_train **out, const struct vocab_train_opts *opts,
                       struct fsdp_err *err)
{
    struct vocab_train *t = fsdp_alloc(1, sizeof *t, "vocabulary", err);
    int rc;

    if (!t)
        return FSDP_ENOMEM;
    rc = copy_opts(t, opts, err);
    if (rc == FSDP_OK)
        rc = add_first_tokens(t, err);
    if (rc == FSDP_OK)
        rc = open_cutter(t, err);
    if (rc == FSDP_OK)
        *out = t;
    else
        vocab_train_destroy(t);
    return rc;
}

void vocab_train_destroy(struct vocab_train *t)
{
    if (!t)
        return;
    tokenizer_encoder_destroy(t->encoder);
    tokenizer_close(t->cutter);
    texts_free(&t->words);
    texts_free(&t->tokens);
    for (int i = 0; i < t->nspecial; i++)
        fsdp_free(t->special[i]);
    fsdp_free(t->special);
    fsdp_free(t->pattern);
    fsdp_free(t->merges);
    fsdp_free(t);
}

/* ---- counting -------------------------------------------------------------------------------- */

static int refuse_finished(const struct vocab_train *t, struct fsdp_err *err)
{
    return t->finished ? fsdp_err_set(err, FSDP_EINVAL, "the vocabulary is finished") : FSDP_OK;
}

static int count_word(void *ctx, const char *word, size_t nbytes, struct fsdp_err *err)
{
    struct vocab_train *t = ctx;
    uint32_t number = 0;

    FSDP_TRY(texts_add(&number, &t->words, word, nbytes, 1, err));
    t->nwords++;
    return FSDP_OK;
}

int vocab_train_add(struct vocab_train *t, const char *text, size_t nbytes, struct fsdp_err *err)
{
    FSDP_TRY(refuse_finished(t, err));
    FSDP_TRY(tokenizer_split(t->encoder, text, nbytes, count_word, t, err));
    t->ntexts++;
    t->nbytes += nbytes;
    return FSDP_OK;
}

static bool is_same_cut(const struct vocab_train *a, const struct vocab_train *b)
{
    return a->add_prefix_space == b->add_prefix_space && !a->pattern == !b->pattern &&
           (!a->pattern || !strcmp(a->pattern, b->pattern));
}

int vocab_train_merge(struct vocab_train *into, const struct vocab_train *from,
                      struct fsdp_err *err)
{
    uint32_t number = 0;

    FSDP_TRY(refuse_finished(into, err));
    if (into == from || !is_same_cut(into, from))
        return fsdp_err_set(err, FSDP_EINVAL, "the other counts were made with another pattern");
    for (size_t i = 0; i < from->words.ntexts; i++) {
        const struct text *word = &from->words.at[i];
        FSDP_TRY(texts_add(&number, &into->words, from->words.bytes + word->first, word->nbytes,
                           word->count, err));
    }
    into->ntexts += from->ntexts;
    into->nbytes += from->nbytes;
    into->nwords += from->nwords;
    return FSDP_OK;
}

void vocab_train_stats(struct vocab_train_stats *out, const struct vocab_train *t)
{
    *out = (struct vocab_train_stats){
        .ntexts = t->ntexts,
        .nbytes = t->nbytes,
        .nwords = t->nwords,
        .ndistinct = t->words.ntexts,
        .ntokens = t->finished ? (int)t->tokens.ntexts : 0,
        .nmerges = t->nmerges,
        .last_frequency = t->last_frequency,
    };
}
