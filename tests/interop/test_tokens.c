/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokenizer as a filter, which tokens.py compares with the originals: test_tokens PATH
 * [special]. Standard input is texts, each after its length of 32 bits; standard output is for each
 * the number of ids, the ids, where they end in the text, and the decoded text after its length. A
 * number of ids of 0xffffffff is an error, whose text follows after its length. Without a path it
 * has nothing to do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"
#include "text/tokenizer/tokenizer.h"

static void put_u32(uint32_t value)
{
    fwrite(&value, sizeof value, 1, stdout);
}

static void put_text(const char *text, size_t nbytes)
{
    put_u32((uint32_t)nbytes);
    fwrite(text, 1, nbytes, stdout);
}

static int decode(struct tokenizer_stream *stream, const struct tokenizer_ids *ids,
                  struct fsdp_err *err)
{
    char *all = NULL;
    size_t nbytes = 0, n;
    const char *text;
    FILE *out = open_memstream(&all, &nbytes);
    int rc = FSDP_OK;

    for (size_t i = 0; i < ids->nids && rc == FSDP_OK; i++) {
        rc = tokenizer_stream_put(stream, ids->at[i], &text, &n, err);
        if (rc == FSDP_OK)
            fwrite(text, 1, n, out);
    }
    if (rc == FSDP_OK)
        rc = tokenizer_stream_end(stream, &text, &n, err);
    if (rc == FSDP_OK)
        fwrite(text, 1, n, out);
    fclose(out);
    put_text(all, nbytes);
    free(all);
    return rc;
}

static int run(const char *path, bool special, struct fsdp_err *err)
{
    struct tokenizer *tokenizer;
    struct tokenizer_encoder *encoder;
    struct tokenizer_stream *stream;
    struct tokenizer_ids ids = {.with_ends = true}, plain = {0};
    uint32_t nbytes;

    FSDP_TRY(tokenizer_open(&tokenizer, path, err));
    FSDP_TRY(tokenizer_encoder_create(&encoder, tokenizer, err));
    FSDP_TRY(tokenizer_stream_create(&stream, tokenizer, false, err));
    while (fread(&nbytes, sizeof nbytes, 1, stdin) == 1) {
        char *text = malloc((size_t)nbytes + 1);
        if (!text || fread(text, 1, nbytes, stdin) != nbytes)
            return fsdp_err_set(err, FSDP_EIO, "standard input ends in a text");
        ids.nids = plain.nids = 0;
        int rc = tokenizer_encode(encoder, text, nbytes, special, &ids, err);
        if (rc == FSDP_OK)
            rc = tokenizer_encode(encoder, text, nbytes, special, &plain, err);
        if (rc == FSDP_OK &&
            (plain.nids != ids.nids || memcmp(plain.at, ids.at, ids.nids * sizeof *ids.at) != 0))
            rc = fsdp_err_set(err, FSDP_EINTERNAL, "ids differ where their ends are wanted");
        free(text);
        if (rc != FSDP_OK) {
            put_u32(UINT32_MAX);
            put_text(err->text, strlen(err->text));
            continue;
        }
        put_u32((uint32_t)ids.nids);
        fwrite(ids.at, sizeof *ids.at, ids.nids, stdout);
        for (size_t i = 0; i < ids.nids; i++)
            put_u32((uint32_t)ids.ends[i]);
        FSDP_TRY(decode(stream, &ids, err));
        fflush(stdout);
    }
    tokenizer_ids_free(&ids);
    tokenizer_ids_free(&plain);
    tokenizer_stream_destroy(stream);
    tokenizer_encoder_destroy(encoder);
    tokenizer_close(tokenizer);
    return FSDP_OK;
}

int main(int argc, char **argv)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    if (argc < 2) {
        tap_skip("tests/interop/tokens.sh runs it");
        return tap_done();
    }
    if (run(argv[1], argc > 2 && !strcmp(argv[2], "special"), &err) == FSDP_OK)
        return 0;
    fprintf(stderr, "%s\n", err.text);
    return 1;
}
