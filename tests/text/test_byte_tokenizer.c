/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizers of the examples, whose models read bytes: the id of a byte is its value. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"
#include "text/tokenizer/tokenizer.h"

static const char *const examples[] = {"examples/llama-2m", "examples/llama-tiny"};

static struct tokenizer *open_file(const char *folder)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct tokenizer *tokenizer = NULL;
    char *path = fsdp_sprintf(&err, "%s/%s", getenv("TOP") ? getenv("TOP") : ".", folder);

    if (!ok(path && tokenizer_open(&tokenizer, path, &err) == FSDP_OK, "%s", folder))
        diag("%s", err.text);
    fsdp_free(path);
    return tokenizer;
}

static int encode(struct tokenizer_ids *ids, const struct tokenizer *tokenizer, const char *text,
                  size_t nbytes, struct fsdp_err *err)
{
    struct tokenizer_encoder *encoder = NULL;

    FSDP_TRY(tokenizer_encoder_create(&encoder, tokenizer, err));
    const int rc = tokenizer_encode(encoder, text, nbytes, true, ids, err);
    tokenizer_encoder_destroy(encoder);
    return rc;
}

static void check_example(const char *folder)
{
    struct tokenizer *tokenizer = open_file(folder);
    struct tokenizer_ids ids = {0};
    struct fsdp_err err = FSDP_ERR_INIT;
    char all[256];
    bool equal = true;

    for (int byte = 0; byte < 256; byte++)
        all[byte] = (char)byte;
    ok(tokenizer_is_bytes(tokenizer) && tokenizer_vocab_size(tokenizer) == 256, "it is the bytes");
    ok(tokenizer_bos(tokenizer) < 0 && tokenizer_eos(tokenizer) < 0, "without special tokens");
    ok(encode(&ids, tokenizer, all, 256, &err) == FSDP_OK && ids.nids == 256,
       "it takes all bytes, which are no UTF-8");
    for (int byte = 0; byte < 256; byte++)
        equal = equal && ids.at[byte] == byte && tokenizer_find(tokenizer, all + byte, 1) == byte &&
                tokenizer_nbytes(tokenizer, byte) == 1;
    ok(equal, "each has its own value as id");
    tokenizer_ids_free(&ids);
    tokenizer_close(tokenizer);
}

/* The same file with something changed. */
static void check_other(const char *what, const char *from, const char *to)
{
    struct tokenizer *tokenizer = NULL;
    struct tokenizer_ids ids = {0};
    struct fsdp_err err = FSDP_ERR_INIT;
    char *path = fsdp_sprintf(&err, "%s/examples/llama-2m/tokenizer.json",
                              getenv("TOP") ? getenv("TOP") : ".");
    char *text = NULL, *changed = NULL, *at;
    size_t nbytes;

    if (fsdp_file_read(&text, &nbytes, path, 1 << 20, &err) == FSDP_OK && (at = strstr(text, from)))
        changed = fsdp_sprintf(&err, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    if (!ok(changed &&
                tokenizer_open_json(&tokenizer, what, changed, strlen(changed), &err) == FSDP_OK &&
                !tokenizer_is_bytes(tokenizer),
            "more than the bytes: %s", what))
        diag("%s", err.text);
    ok(tokenizer && encode(&ids, tokenizer, "a\xff", 2, &err) == FSDP_EINVAL,
       "it takes no text that is no UTF-8");
    tokenizer_ids_free(&ids);
    tokenizer_close(tokenizer);
    fsdp_free(changed);
    fsdp_free(text);
    fsdp_free(path);
}

static void check_bad_file(void)
{
    struct tokenizer *tokenizer = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;

    ok(tokenizer_open_json(&tokenizer, "a name", "{}", 2, &err) == FSDP_EINVAL && !tokenizer &&
           !strncmp(err.text, "a name: ", 8),
       "errors name the file: %s", err.text);
}

/* Names of more bytes than a token may have are refused, not read beyond a buffer. */
static void check_long_name(void)
{
    static const char before[] =
        "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false},"
        " \"decoder\": {\"type\": \"ByteLevel\"},"
        " \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {\"";
    struct tokenizer *tokenizer = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    char *text = malloc(600000);
    size_t n = strlen(before);

    memcpy(text, before, n);
    memset(text + n, 'a', 500000);
    strcpy(text + n + 500000, "\": 0}}}");
    ok(tokenizer_open_json(&tokenizer, "long", text, strlen(text), &err) == FSDP_EINVAL &&
           strstr(err.text, "bytes"),
       "a name of 500,000 bytes: %s", err.text);
    free(text);
}

/* Splits words, which it does not change. */
static int join_words(void *ctx, const char *word, size_t nbytes, struct fsdp_err *err)
{
    char *joined = ctx;

    if (nbytes > 20 || strlen(joined) > 50)
        return fsdp_err_set(err, FSDP_EINVAL, "stopped at '%.*s'", (int)nbytes, word);
    strncat(joined, word, nbytes);
    strcat(joined, "|");
    return FSDP_OK;
}

static void check_split(void)
{
    static const char json[] =
        "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true},"
        " \"decoder\": {\"type\": \"ByteLevel\"},"
        " \"added_tokens\": [{\"id\": 0, \"content\": \"a\", \"special\": true}],"
        " \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {\"a\": 0}}}";
    struct tokenizer *tokenizer = NULL;
    struct tokenizer_encoder *encoder = NULL;
    struct fsdp_err err = FSDP_ERR_INIT;
    char joined[128] = "";

    int rc = tokenizer_open_json(&tokenizer, "split", json, strlen(json), &err);
    if (rc == FSDP_OK)
        rc = tokenizer_encoder_create(&encoder, tokenizer, &err);
    if (rc == FSDP_OK)
        rc = tokenizer_split(encoder, "bad it's  12", 12, join_words, joined, &err);
    if (!ok(rc == FSDP_OK && !strcmp(joined, " bad| it|'s| | 12|"), "a text is cut into words"))
        diag("%s %s", joined, err.text);
    ok(tokenizer_split(encoder, "", 0, join_words, joined, &err) == FSDP_OK, "an empty one");
    joined[0] = 0;
    ok(tokenizer_split(encoder, "a b\xff", 4, join_words, joined, &err) == FSDP_EINVAL &&
           !joined[0],
       "nothing of one that is no UTF-8");
    ok(tokenizer_split(encoder, "a abcdefghijklmnopqrstuvwxyz b", 30, join_words, joined, &err) ==
               FSDP_EINVAL &&
           !strcmp(joined, " a|"),
       "the call ends with the word that fails: %s", err.text);
    tokenizer_encoder_destroy(encoder);
    tokenizer_close(tokenizer);
}

int main(void)
{
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++)
        check_example(examples[i]);
    check_other("a merge", "\"vocab\": {", "\"vocab\": {\"ab\": 256,");
    check_other("a space before a text", "\"add_prefix_space\": false",
                "\"add_prefix_space\": true");
    check_other("words", "\"use_regex\": false", "\"use_regex\": true");
    check_bad_file();
    check_long_name();
    check_split();
    return tap_done();
}
