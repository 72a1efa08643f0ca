/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "words.h"

void generate_words_close(struct generate_words *words)
{
    if (words->ops && words->ops->close)
        words->ops->close(words);
    *words = (struct generate_words){0};
}

int generate_words_utf8(char **out, size_t *out_nbytes, const char *text, size_t nbytes,
                        struct fsdp_err *err)
{
    const char *end = text + nbytes;
    char *clean = fsdp_alloc(nbytes, 3, "text", err);
    size_t len = 0;
    uint32_t code;

    if (!clean)
        return FSDP_ENOMEM;
    for (const char *at = text; at < end;) {
        const int n = fsdp_utf8_decode(&code, at, end);
        memcpy(clean + len, n ? at : "\xef\xbf\xbd", n ? (size_t)n : 3);
        len += n ? (size_t)n : 3;
        at += n ? n : 1;
    }
    *out = clean;
    *out_nbytes = len;
    return FSDP_OK;
}

/* ---- streams of both kinds ------------------------------------------------------------------- */

struct stream {
    char text[24]; /* what is put out */
    char held[4];  /* the first bytes of a character */
    int nheld;
    bool begun;
};

static int stream_create(void **out, const struct generate_words *words, const int32_t *prompt,
                         int nprompt, struct fsdp_err *err)
{
    (void)words;
    (void)prompt;
    (void)nprompt;
    *out = fsdp_alloc(1, sizeof(struct stream), "output", err);
    return *out ? FSDP_OK : FSDP_ENOMEM;
}

static void stream_destroy(void *stream)
{
    fsdp_free(stream);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static int bytes_encode(int32_t **out, int *ntokens, const struct generate_words *words,
                        const char *text, size_t nbytes, bool with_special, struct fsdp_err *err)
{
    (void)with_special;
    if (nbytes > INT_MAX)
        return fsdp_err_set(err, FSDP_EINVAL, "prompt of %zu bytes is too long", nbytes);
    int32_t *tokens = fsdp_alloc(nbytes, sizeof *tokens, "prompt", err);
    if (!tokens)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < nbytes; i++) {
        tokens[i] = (unsigned char)text[i];
        if (tokens[i] >= words->vocab) {
            int byte = tokens[i];
            fsdp_free(tokens);
            return fsdp_err_set(err, FSDP_EINVAL,
                                "byte %d of the prompt is %d, but the vocabulary has %d tokens",
                                (int)i, byte, words->vocab);
        }
    }
    *out = tokens;
    *ntokens = (int)nbytes;
    return FSDP_OK;
}

/* Could more bytes make a character of these? */
static bool begins_character(const char *text, int nbytes)
{
    const unsigned char lead = (unsigned char)text[0];
    const int whole = lead < 0xc2 || lead > 0xf4 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;

    for (int i = 1; i < nbytes; i++)
        if (((unsigned char)text[i] & 0xc0) != 0x80)
            return false;
    return nbytes < whole;
}

/* Moves held bytes to the text: characters, and bytes that are part of none. With `all`, what may
 * become a character too. */
static size_t release(struct stream *s, bool all)
{
    size_t nbytes = 0;
    uint32_t code;

    while (s->nheld && (all || !begins_character(s->held, s->nheld))) {
        const int n = fsdp_utf8_decode(&code, s->held, s->held + s->nheld), taken = n ? n : 1;
        memcpy(s->text + nbytes, s->held, (size_t)taken);
        s->nheld -= taken;
        memmove(s->held, s->held + taken, (size_t)s->nheld);
        nbytes += (size_t)taken;
    }
    return nbytes;
}

static int bytes_put(const char **out, size_t *nbytes, void *stream, int32_t token,
                     struct fsdp_err *err)
{
    struct stream *s = stream;
    (void)err;

    if (token >= 0 && token < 256)
        s->held[s->nheld++] = (char)token;
    *out = s->text;
    *nbytes = release(s, token < 0 || token >= 256);
    if (token >= 256)
        *nbytes += (size_t)snprintf(s->text + *nbytes, sizeof s->text - *nbytes, "<%d>", token);
    return FSDP_OK;
}

const struct generate_words_ops generate_words_bytes = {
    .name = "bytes",
    .is_text = true,
    .encode = bytes_encode,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_put = bytes_put,
};

/* ---- ids ------------------------------------------------------------------------------------- */

/* One number of a list, up to its comma or the end; NULL and err where it is none. */
static const char *list_item(const char *at, int32_t *token, int vocab, struct fsdp_err *err)
{
    char *end;
    errno = 0;
    long value = strtol(at, &end, 10);
    if (end == at || errno || (*end && *end != ',')) {
        fsdp_err_set(err, FSDP_EINVAL, "'%.40s' does not begin with a token id", at);
        return NULL;
    }
    if (value < 0 || value >= vocab) {
        fsdp_err_set(err, FSDP_EINVAL, "token %ld: the vocabulary has %d", value, vocab);
        return NULL;
    }
    *token = (int32_t)value;
    return end;
}

static int ids_encode(int32_t **out, int *ntokens, const struct generate_words *words,
                      const char *text, size_t nbytes, bool with_special, struct fsdp_err *err)
{
    size_t count = 1;
    (void)with_special;
    for (size_t i = 0; i < nbytes; i++)
        count += text[i] == ',';
    if (count > INT_MAX)
        return fsdp_err_set(err, FSDP_EINVAL, "prompt of %zu tokens is too long", count);
    int32_t *tokens = fsdp_alloc(count, sizeof *tokens, "prompt", err);
    if (!tokens)
        return FSDP_ENOMEM;
    const char *at = text;
    for (size_t i = 0; i < count; i++) {
        at = list_item(at, &tokens[i], words->vocab, err);
        if (!at) {
            fsdp_free(tokens);
            return FSDP_EINVAL;
        }
        at += *at == ',';
    }
    *out = tokens;
    *ntokens = (int)count;
    return FSDP_OK;
}

static int ids_put(const char **out, size_t *nbytes, void *stream, int32_t token,
                   struct fsdp_err *err)
{
    struct stream *s = stream;
    (void)err;

    *out = s->text;
    *nbytes = 0;
    if (token >= 0)
        *nbytes = (size_t)snprintf(s->text, sizeof s->text, "%s%d", s->begun ? "," : "", token);
    s->begun = true;
    return FSDP_OK;
}

const struct generate_words_ops generate_words_ids = {
    .name = "ids",
    .encode = ids_encode,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_put = ids_put,
};
