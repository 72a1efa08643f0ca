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

/* ---- streams of both kinds ------------------------------------------------------------------- */

struct stream {
    char text[16];
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
                        const char *text, size_t nbytes, struct fsdp_err *err)
{
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

static int bytes_put(const char **out, size_t *nbytes, void *stream, int32_t token,
                     struct fsdp_err *err)
{
    struct stream *s = stream;
    (void)err;

    *out = s->text;
    *nbytes = 0;
    if (token >= 256)
        *nbytes = (size_t)snprintf(s->text, sizeof s->text, "<%d>", token);
    else if (token >= 0)
        s->text[(*nbytes)++] = (char)token;
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
                      const char *text, size_t nbytes, struct fsdp_err *err)
{
    size_t count = 1;
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
