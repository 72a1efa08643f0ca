/* SPDX-License-Identifier: Apache-2.0 */
/* A tokenizer's file of any kind, then a byte 0xff and a text: what is opened reads any text. */
#include "fuzz.h"
#include "text/tokenizer/tokenizer.h"

static void check_ids(const struct tokenizer *t, const struct tokenizer_ids *ids, size_t nbytes)
{
    for (size_t i = 0; i < ids->nids; i++)
        if (ids->at[i] < 0 || ids->at[i] >= tokenizer_vocab_size(t) || ids->ends[i] > nbytes)
            abort();
}

/* Every call gives whole characters. */
static void check_text(const char *text, size_t nbytes)
{
    uint32_t code;
    int n;

    for (const char *at = text, *end = text + nbytes; at < end; at += n)
        if (!(n = fsdp_utf8_decode(&code, at, end)))
            abort();
}

static void decode(const struct tokenizer *t, const struct tokenizer_ids *ids)
{
    struct tokenizer_stream *stream = NULL;
    const char *text;
    size_t nbytes;

    if (tokenizer_stream_create(&stream, t, ids->nids & 1, NULL))
        abort();
    for (size_t i = 0; i < ids->nids; i++) {
        if (tokenizer_stream_put(stream, ids->at[i], &text, &nbytes, NULL))
            abort();
        check_text(text, nbytes);
        tokenizer_nbytes(t, ids->at[i]);
    }
    if (tokenizer_stream_end(stream, &text, &nbytes, NULL))
        abort();
    check_text(text, nbytes);
    tokenizer_stream_destroy(stream);
}

static void encode(const struct tokenizer *t, const char *text, size_t nbytes)
{
    struct tokenizer_ids ids = {.with_ends = true}, plain = {.at = NULL};
    struct tokenizer_encoder *encoder = NULL;

    if (tokenizer_encoder_create(&encoder, t, NULL))
        abort();
    if (!tokenizer_encode(encoder, text, nbytes, true, &ids, NULL)) {
        check_ids(t, &ids, nbytes);
        decode(t, &ids);
        if (tokenizer_encode(encoder, text, nbytes, true, &plain, NULL) || plain.nids != ids.nids ||
            (ids.nids && memcmp(plain.at, ids.at, ids.nids * sizeof *ids.at) != 0))
            abort();
    }
    tokenizer_ids_free(&ids);
    tokenizer_ids_free(&plain);
    tokenizer_encoder_destroy(encoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    const uint8_t *mark = nbytes ? memrchr(data, 0xff, nbytes) : NULL;
    const size_t nfile = mark ? (size_t)(mark - data) : nbytes;
    struct tokenizer *t = NULL;

    if (!tokenizer_open(&t, fuzz_file("t", data, nfile), NULL)) {
        encode(t, mark ? (const char *)mark + 1 : "", mark ? nbytes - nfile - 1 : 0);
        encode(t, "a  b\xc3\xa9\xe4\xb8\xad<s>", 13);
    }
    tokenizer_close(t);
    return 0;
}

FUZZ_TARGET("tokenizer")
