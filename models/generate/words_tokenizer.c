/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>

#include "text/tokenizer/tokenizer.h"
#include "words.h"

struct spelling {
    struct tokenizer *tokenizer;
    struct tokenizer_encoder *encoder;
};

static int tokenizer_words(int32_t **out, int *ntokens, const struct generate_words *words,
                           const char *text, size_t nbytes, bool with_special, struct fsdp_err *err)
{
    const struct spelling *s = words->ctx;
    struct tokenizer_ids ids = {0};
    int rc = tokenizer_encode(s->encoder, text, nbytes, with_special, &ids, err);

    if (rc == FSDP_OK && ids.nids > INT_MAX)
        rc = fsdp_err_set(err, FSDP_EINVAL, "prompt of %zu tokens is too long", ids.nids);
    for (size_t i = 0; rc == FSDP_OK && i < ids.nids; i++)
        if (ids.at[i] < 0 || ids.at[i] >= words->vocab)
            rc = fsdp_err_set(err, FSDP_EINVAL,
                              "the tokenizer gives token %d, but the model has %d tokens",
                              ids.at[i], words->vocab);
    if (rc) {
        tokenizer_ids_free(&ids);
        return rc;
    }
    *out = ids.at;
    *ntokens = (int)ids.nids;
    ids.at = NULL;
    tokenizer_ids_free(&ids);
    return FSDP_OK;
}

static void destroy_stream(void *stream)
{
    tokenizer_stream_destroy(stream);
}

/* Ids that the model has and the tokenizer lacks, as where a vocabulary is padded, have no text. */
static int put_token(const char **out, size_t *nbytes, void *stream, int32_t token,
                     struct fsdp_err *err)
{
    struct fsdp_err none = FSDP_ERR_INIT;

    *out = "";
    *nbytes = 0;
    if (token < 0)
        return tokenizer_stream_end(stream, out, nbytes, err);
    const int rc = tokenizer_stream_put(stream, token, out, nbytes, &none);
    return !rc || rc == FSDP_EINVAL ? FSDP_OK : fsdp_err_pass(err, rc, &none);
}

static int begin_stream(void **out, const struct generate_words *words, const int32_t *prompt,
                        int nprompt, struct fsdp_err *err)
{
    const struct spelling *s = words->ctx;
    struct tokenizer_stream *stream;
    const char *text;
    size_t nbytes;

    FSDP_TRY(tokenizer_stream_create(&stream, s->tokenizer, true, err));
    for (int i = 0; i < nprompt; i++) {
        const int rc = put_token(&text, &nbytes, stream, prompt[i], err);
        if (rc) {
            tokenizer_stream_destroy(stream);
            return rc;
        }
    }
    *out = stream;
    return FSDP_OK;
}

static void close_spelling(struct generate_words *words)
{
    struct spelling *s = words->ctx;

    if (s) {
        tokenizer_encoder_destroy(s->encoder);
        tokenizer_close(s->tokenizer);
        fsdp_free(s);
    }
}

static const struct generate_words_ops ops = {
    .name = "tokenizer",
    .is_text = true,
    .encode = tokenizer_words,
    .stream_create = begin_stream,
    .stream_destroy = destroy_stream,
    .stream_put = put_token,
    .close = close_spelling,
};

int generate_words_tokenizer(struct generate_words *words, const char *path, struct fsdp_err *err)
{
    struct spelling *s = fsdp_alloc(1, sizeof *s, "tokenizer", err);

    if (!s)
        return FSDP_ENOMEM;
    words->ops = &ops;
    words->ctx = s;
    FSDP_TRY(tokenizer_open(&s->tokenizer, path, err));
    words->eos = tokenizer_eos(s->tokenizer);
    if (tokenizer_is_bytes(s->tokenizer)) {
        close_spelling(words);
        words->ops = &generate_words_bytes;
        words->ctx = NULL;
        return FSDP_OK;
    }
    return tokenizer_encoder_create(&s->encoder, s->tokenizer, err);
}
