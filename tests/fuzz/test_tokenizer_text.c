/* SPDX-License-Identifier: Apache-2.0 */
/* Any text with the tokenizers of tests/text/data/tokenizer; the first byte chooses one. What is
 * not UTF-8 is refused; byte-level BPE alone gives the text back. */
#include <sys/stat.h>

#include "../text/cases.h"
#include "fuzz.h"
#include "text/tokenizer/tokenizer.h"

enum { MAX_CASES = 64 };
static struct {
    struct tokenizer *tokenizer;
    struct tokenizer_encoder *encoder;
    bool lossless;
} cases[MAX_CASES];
static size_t ncases;

static bool is_lossless(const json_t *one)
{
    static const char *const names[] = {"byte-level BPE", "a pattern", "merges as texts"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(json_string_value(json_object_get(one, "name")), names[i]))
            return true;
    return false;
}

static void open_cases(void)
{
    json_t *root = cases_load(NULL);
    const json_t *one;
    size_t i;

    json_array_foreach(json_object_get(root, "files"), i, one)
    {
        const char *path = fuzz_file("case", "", 0);
        if (ncases == MAX_CASES || !cases_write(path, json_object_get(root, "models"), one) ||
            tokenizer_open(&cases[ncases].tokenizer, path, NULL) ||
            tokenizer_encoder_create(&cases[ncases].encoder, cases[ncases].tokenizer, NULL))
            abort();
        cases[ncases++].lossless = is_lossless(one);
    }
    json_decref(root);
    if (!ncases)
        abort();
}

static bool is_utf8(const char *text, size_t nbytes)
{
    uint32_t code;
    int n;

    for (const char *at = text, *end = text + nbytes; at < end; at += n)
        if (!(n = fsdp_utf8_decode(&code, at, end)))
            return false;
    return true;
}

static void check_ends(const struct tokenizer_ids *ids, size_t nbytes, bool covers)
{
    for (size_t i = 0; i < ids->nids; i++)
        if (ids->ends[i] > nbytes || (i && ids->ends[i] < ids->ends[i - 1]))
            abort();
    if (covers && ids->nids && ids->ends[ids->nids - 1] != nbytes)
        abort();
}

static void decode(const struct tokenizer *t, const struct tokenizer_ids *ids, const char *want,
                   size_t nwant)
{
    struct tokenizer_stream *stream = NULL;
    const char *text;
    size_t nbytes, done = 0;
    int rc;

    if (tokenizer_stream_create(&stream, t, false, NULL))
        abort();
    for (size_t i = 0; i <= ids->nids; i++) {
        rc = i < ids->nids ? tokenizer_stream_put(stream, ids->at[i], &text, &nbytes, NULL)
                           : tokenizer_stream_end(stream, &text, &nbytes, NULL);
        if (rc || !is_utf8(text, nbytes))
            abort();
        if (want && (nbytes > nwant - done || memcmp(text, want + done, nbytes) != 0))
            abort();
        done += nbytes;
    }
    if (want && done != nwant)
        abort();
    tokenizer_stream_destroy(stream);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    const char *text = (const char *)data + 1;
    struct tokenizer_ids ids = {.with_ends = true}, plain = {.at = NULL};

    if (!ncases)
        open_cases();
    if (!nbytes--)
        return 0;
    const size_t i = data[0] % ncases;
    const int rc = tokenizer_encode(cases[i].encoder, text, nbytes, false, &ids, NULL);
    if ((rc == FSDP_OK) != is_utf8(text, nbytes))
        abort();
    if (rc == FSDP_OK) {
        check_ends(&ids, nbytes, cases[i].lossless);
        decode(cases[i].tokenizer, &ids, cases[i].lossless ? text : NULL, nbytes);
        if (tokenizer_encode(cases[i].encoder, text, nbytes, false, &plain, NULL) ||
            plain.nids != ids.nids ||
            (ids.nids && memcmp(plain.at, ids.at, ids.nids * sizeof *ids.at) != 0))
            abort();
    }
    tokenizer_ids_free(&ids);
    tokenizer_ids_free(&plain);
    return 0;
}

FUZZ_TARGET("tokenizer_text")
