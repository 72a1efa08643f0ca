/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ids to text, token by token. Bytes that are not yet characters wait: of ByteLevel until their
 * character is whole, of byte fallback until a token follows that is no byte, because an invalid
 * one among them turns all of them into U+FFFD.
 */
#include <string.h>

#include "impl.h"

static const char replacement[] = "\xef\xbf\xbd";

struct tokenizer_stream {
    const struct tokenizer *t;
    bool skip_special;
    size_t ntokens;              /* so far, skipped ones not counted */
    int to_strip;                /* characters that may still be stripped at the start */
    struct unicode_text waiting; /* bytes that are no characters yet */
    struct unicode_text token, text;
};

/* Appends to the text, less what is stripped at its start. */
static int append(struct tokenizer_stream *s, const char *text, size_t nbytes, struct fsdp_err *err)
{
    const char *strip = s->t->decoder.strip;
    const size_t nstrip = strlen(strip);
    size_t at = 0;

    while (s->to_strip && nbytes > at) {
        if (nbytes - at >= nstrip && !memcmp(text + at, strip, nstrip)) {
            at += nstrip;
            s->to_strip--;
        } else {
            s->to_strip = 0;
        }
    }
    return at < nbytes ? unicode_text_add(&s->text, text + at, nbytes - at, err) : FSDP_OK;
}

/* ---- bytes to characters --------------------------------------------------------------------- */

/* How many bytes of a sequence that is not UTF-8 are one U+FFFD: the longest beginning of a valid
 * one. *cut: the bytes end before it could be decided. */
static size_t invalid_nbytes(const char *text, size_t nbytes, bool *cut)
{
    const unsigned char *p = (const unsigned char *)text;
    const size_t want = p[0] >= 0xf0 && p[0] <= 0xf4   ? 4
                        : p[0] >= 0xe0 && p[0] <= 0xef ? 3
                        : p[0] >= 0xc2 && p[0] <= 0xdf ? 2
                                                       : 1;
    size_t i = 1;

    *cut = false;
    for (; i < want && i < nbytes; i++) {
        unsigned char low = 0x80, high = 0xbf;
        if (i == 1) {
            low = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
            high = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
        }
        if (p[i] < low || p[i] > high)
            return i;
    }
    *cut = i < want;
    return i;
}

/* Moves the characters of the waiting bytes to the text; with `all` nothing waits any longer. */
static int release_bytes(struct tokenizer_stream *s, bool all, struct fsdp_err *err)
{
    size_t at = 0;

    while (at < s->waiting.nbytes) {
        const char *text = s->waiting.at + at, *end = s->waiting.at + s->waiting.nbytes;
        uint32_t code;
        bool cut = false;
        const int step = fsdp_utf8_decode(&code, text, end);
        if (step) {
            FSDP_TRY(append(s, text, (size_t)step, err));
            at += (size_t)step;
            continue;
        }
        const size_t invalid = invalid_nbytes(text, (size_t)(end - text), &cut);
        if (cut && !all)
            break;
        FSDP_TRY(append(s, replacement, 3, err));
        at += invalid;
    }
    s->waiting.nbytes -= at;
    if (s->waiting.nbytes)
        memmove(s->waiting.at, s->waiting.at + at, s->waiting.nbytes);
    return FSDP_OK;
}

static bool is_utf8(const struct unicode_text *text)
{
    for (size_t i = 0; i < text->nbytes;) {
        uint32_t code;
        const int step = fsdp_utf8_decode(&code, text->at + i, text->at + text->nbytes);
        if (!step)
            return false;
        i += (size_t)step;
    }
    return true;
}

/* A run of byte tokens has ended. */
static int release_run(struct tokenizer_stream *s, struct fsdp_err *err)
{
    const bool valid = is_utf8(&s->waiting);

    if (valid || s->t->decoder.each_byte)
        return release_bytes(s, true, err);
    for (size_t i = 0; i < s->waiting.nbytes; i++)
        FSDP_TRY(append(s, replacement, 3, err));
    s->waiting.nbytes = 0;
    return FSDP_OK;
}

/* ---- one token ------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* <0x41> is byte 0x41; -1: another token. */
static int byte_of_token(const char *token, size_t nbytes)
{
    if (nbytes != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>')
        return -1;
    const int high = hex_digit(token[3]), low = hex_digit(token[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static int replace_all(struct tokenizer_stream *s, const char *from, const char *to,
                       struct fsdp_err *err)
{
    const size_t nfrom = strlen(from), nto = strlen(to);
    struct unicode_text in = s->token;
    size_t at = 0;
    int rc = FSDP_OK;

    if (!in.nbytes || !memmem(in.at, in.nbytes, from, nfrom))
        return FSDP_OK;
    s->token = (struct unicode_text){0};
    while (rc == FSDP_OK && at < in.nbytes) {
        const char *found = memmem(in.at + at, in.nbytes - at, from, nfrom);
        const size_t end = found ? (size_t)(found - in.at) : in.nbytes;
        rc = unicode_text_add(&s->token, in.at + at, end - at, err);
        if (rc == FSDP_OK && found)
            rc = unicode_text_add(&s->token, to, nto, err);
        at = end + (found ? nfrom : 0);
    }
    unicode_text_free(&in);
    return rc;
}

/* The token's text as the decoder's steps before Fuse make it, in s->token. */
static int transform_token(struct tokenizer_stream *s, const char *token, size_t nbytes,
                           struct fsdp_err *err)
{
    const struct decoder *d = &s->t->decoder;

    s->token.nbytes = 0;
    FSDP_TRY(unicode_text_add(&s->token, token, nbytes, err));
    for (int i = 0; i < d->nreplaces; i++)
        FSDP_TRY(replace_all(s, d->replaces[i].from, d->replaces[i].to, err));
    if (d->metaspace[0])
        FSDP_TRY(replace_all(s, d->metaspace, d->drop_first && !s->ntokens ? "" : " ", err));
    return FSDP_OK;
}

static int put_bytes(struct tokenizer_stream *s, const char *bytes, size_t nbytes,
                     struct fsdp_err *err)
{
    FSDP_TRY(unicode_text_add(&s->waiting, bytes, nbytes, err));
    return release_bytes(s, false, err);
}

static int put_token(struct tokenizer_stream *s, const char *token, size_t nbytes,
                     struct fsdp_err *err)
{
    const struct decoder *d = &s->t->decoder;
    const int byte = d->byte_fallback ? byte_of_token(token, nbytes) : -1;
    const char one = (char)byte;

    if (d->bytes)
        return put_bytes(s, token, nbytes, err);
    if (byte >= 0) {
        s->to_strip = d->special_apart ? 0 : s->to_strip;
        return unicode_text_add(&s->waiting, &one, 1, err);
    }
    FSDP_TRY(release_run(s, err));
    FSDP_TRY(transform_token(s, token, nbytes, err));
    if (d->join_with_space && s->ntokens)
        FSDP_TRY(append(s, " ", 1, err));
    return append(s, s->token.at, s->token.nbytes, err);
}

/* ---- streams --------------------------------------------------------------------------------- */

/* Content and length of a token; NULL: there is none. */
static const char *token_content(const struct tokenizer *t, int32_t id, size_t *nbytes,
                                 bool *special)
{
    const struct added_token *added = added_by_id(&t->added, id);

    *special = added && added->special;
    if (!added)
        return vocab_at(&t->vocab, id, nbytes);
    *nbytes = added->nshown;
    return added->shown;
}

int tokenizer_stream_put(struct tokenizer_stream *s, int32_t id, const char **text, size_t *nbytes,
                         struct fsdp_err *err)
{
    size_t ntoken;
    bool special;

    s->text.nbytes = 0;
    if (id < 0 || id >= tokenizer_vocab_size(s->t))
        return fsdp_err_set(err, FSDP_EINVAL, "%s: token %d: the vocabulary has %d", s->t->path, id,
                            tokenizer_vocab_size(s->t));
    const char *token = token_content(s->t, id, &ntoken, &special);
    if (token && special && !s->skip_special && s->t->decoder.special_apart) {
        FSDP_TRY(release_run(s, err));
        FSDP_TRY(unicode_text_add(&s->text, token, ntoken, err));
    } else if (token && !(special && s->skip_special)) {
        FSDP_TRY(put_token(s, token, ntoken, err));
        s->ntokens++;
    }
    *text = s->text.at ? s->text.at : "";
    *nbytes = s->text.nbytes;
    return FSDP_OK;
}

int tokenizer_stream_end(struct tokenizer_stream *s, const char **text, size_t *nbytes,
                         struct fsdp_err *err)
{
    s->text.nbytes = 0;
    FSDP_TRY(s->t->decoder.bytes ? release_bytes(s, true, err) : release_run(s, err));
    *text = s->text.at ? s->text.at : "";
    *nbytes = s->text.nbytes;
    s->ntokens = 0;
    s->to_strip = s->t->decoder.strip_start;
    return FSDP_OK;
}

int tokenizer_stream_create(struct tokenizer_stream **out, const struct tokenizer *tokenizer,
                            bool skip_special, struct fsdp_err *err)
{
    struct tokenizer_stream *s = fsdp_alloc(1, sizeof *s, "decoder", err);

    if (!s)
        return FSDP_ENOMEM;
    s->t = tokenizer;
    s->skip_special = skip_special;
    s->to_strip = tokenizer->decoder.strip_start;
    *out = s;
    return FSDP_OK;
}

void tokenizer_stream_destroy(struct tokenizer_stream *s)
{
    if (s) {
        unicode_text_free(&s->waiting);
        unicode_text_free(&s->token);
        unicode_text_free(&s->text);
    }
    fsdp_free(s);
}

size_t tokenizer_nbytes(const struct tokenizer *t, int32_t id)
{
    const struct decoder *d = &t->decoder;
    size_t nbytes = 0, saved = 0;
    bool special;
    const char *token = token_content(t, id, &nbytes, &special);

    if (!token || special)
        return 0;
    if (d->byte_fallback && byte_of_token(token, nbytes) >= 0)
        return 1;
    for (int i = -1; i < d->nreplaces; i++) {
        const char *from = i < 0 ? d->metaspace : d->replaces[i].from;
        const size_t nfrom = strlen(from), nto = i < 0 ? 1 : strlen(d->replaces[i].to);
        const char *at = token, *end = token + nbytes;
        while (nfrom && (at = memmem(at, (size_t)(end - at), from, nfrom))) {
            saved += nfrom - nto;
            at += nfrom;
        }
    }
    return nbytes - saved;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int refuse_decoder(const char *what, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "decoder %s is not supported", what);
}

static int parse_replace(struct decoder *d, const json_t *json, struct fsdp_err *err)
{
    const char *from =
        json_string_value(json_object_get(json_object_get(json, "pattern"), "String"));
    const char *to = json_string_value(json_object_get(json, "content"));

    if (d->metaspace[0])
        return refuse_decoder("Replace after Metaspace", err);
    if (!from || !from[0] || !to || d->nreplaces == MAX_REPLACES)
        return refuse_decoder("Replace with this pattern", err);
    d->replaces[d->nreplaces].from = fsdp_strdup(from, err);
    d->replaces[d->nreplaces].to = fsdp_strdup(to, err);
    d->nreplaces++;
    return d->replaces[d->nreplaces - 1].from && d->replaces[d->nreplaces - 1].to ? FSDP_OK
                                                                                  : FSDP_ENOMEM;
}

static int parse_strip(struct decoder *d, const json_t *json, struct fsdp_err *err)
{
    const char *content = json_string_value(json_object_get(json, "content"));
    const json_int_t start = json_integer_value(json_object_get(json, "start"));

    if (!content || !content[0] || strlen(content) >= sizeof d->strip || !d->fused || start < 0 ||
        start > 1000 || json_integer_value(json_object_get(json, "stop")))
        return refuse_decoder("Strip before Fuse, or at the end of a text,", err);
    strcpy(d->strip, content);
    d->strip_start = (int)start;
    return FSDP_OK;
}

static int parse_metaspace(struct decoder *d, const json_t *json, struct fsdp_err *err)
{
    const char *mark = json_string_value(json_object_get(json, "replacement"));
    const char *scheme = json_string_value(json_object_get(json, "prepend_scheme"));
    const bool never = scheme ? !strcmp(scheme, "never")
                              : json_is_false(json_object_get(json, "add_prefix_space"));

    if (!mark || !mark[0] || strlen(mark) >= sizeof d->metaspace)
        return refuse_decoder("Metaspace without a character as its replacement", err);
    strcpy(d->metaspace, mark);
    d->drop_first = !never;
    return FSDP_OK;
}

static int parse_byte_level(struct decoder *d, const json_t *json, struct fsdp_err *err)
{
    (void)json;
    (void)err;
    d->bytes = true;
    return FSDP_OK;
}

static int parse_byte_fallback(struct decoder *d, const json_t *json, struct fsdp_err *err)
{
    (void)json;
    (void)err;
    d->byte_fallback = true;
    return FSDP_OK;
}

static int parse_fuse(struct decoder *d, const json_t *json, struct fsdp_err *err)
{
    (void)json;
    (void)err;
    d->fused = true;
    return FSDP_OK;
}

static int parse_decoder(struct decoder *d, const json_t *json, struct fsdp_err *err);

static int parse_sequence(struct decoder *d, const json_t *json, struct fsdp_err *err)
{
    const json_t *list = json_object_get(json, "decoders"), *item;
    size_t i;

    json_array_foreach(list, i, item) FSDP_TRY(parse_decoder(d, item, err));
    return FSDP_OK;
}

/* Stages must come in this order: what works on tokens, what makes characters of bytes, what works
 * on the whole text. */
static const struct {
    const char *type;
    int stage;
    int (*parse)(struct decoder *d, const json_t *json, struct fsdp_err *err);
} kinds[] = {
    {"Sequence", 0, parse_sequence},
    {"Replace", 1, parse_replace},
    {"Metaspace", 1, parse_metaspace},
    {"ByteLevel", 1, parse_byte_level},
    {"ByteFallback", 2, parse_byte_fallback},
    {"Fuse", 3, parse_fuse},
    {"Strip", 4, parse_strip},
};

static int parse_decoder(struct decoder *d, const json_t *json, struct fsdp_err *err)
{
    const char *type = json_string_value(json_object_get(json, "type"));

    for (size_t i = 0; type && i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(type, kinds[i].type) != 0)
            continue;
        if (kinds[i].stage && kinds[i].stage < d->stage)
            return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                "decoder '%s' at this place of a Sequence is not supported", type);
        d->stage = kinds[i].stage ? kinds[i].stage : d->stage;
        return kinds[i].parse(d, json, err);
    }
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "decoder '%s' is not supported",
                        type ? type : "without a type");
}

int decoder_parse(struct decoder *d, const json_t *json, struct fsdp_err *err)
{
    if (!json || json_is_null(json)) {
        d->join_with_space = true;
        return FSDP_OK;
    }
    return parse_decoder(d, json, err);
}
