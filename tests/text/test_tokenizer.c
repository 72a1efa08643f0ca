/* SPDX-License-Identifier: Apache-2.0 */
/* What the originals made of texts with each tokenizer of tests/text/data/tokenizer (make.py
 * there). */
#include "cases.h"
#include "tap.h"
#include "text/tokenizer/tokenizer.h"

/* ---- one text -------------------------------------------------------------------------------- */

struct reader {
    struct tokenizer *tokenizer;
    struct tokenizer_encoder *encoder;
    struct tokenizer_ids ids, with_ends;
    char *text; /* decoded */
    size_t nbytes;
};

static void close_reader(struct reader *r)
{
    tokenizer_ids_free(&r->ids);
    tokenizer_ids_free(&r->with_ends);
    tokenizer_encoder_destroy(r->encoder);
    tokenizer_close(r->tokenizer);
    free(r->text);
}

static bool same_ids(const struct tokenizer_ids *ids, const json_t *want)
{
    bool same = ids->nids == json_array_size(want);

    for (size_t i = 0; same && i < ids->nids; i++)
        same = ids->at[i] == json_integer_value(json_array_get(want, i));
    return same;
}

static bool is_text(const char *text, size_t nbytes)
{
    uint32_t code;
    int n = 1;

    for (const char *at = text, *end = text + nbytes; at < end && n; at += n)
        n = fsdp_utf8_decode(&code, at, end);
    return n;
}

/* Decodes into r->text. False: an error, or a part of a character. */
static bool decode(struct reader *r, bool skip_special)
{
    struct tokenizer_stream *stream = NULL;
    FILE *out;
    bool good = !tokenizer_stream_create(&stream, r->tokenizer, skip_special, NULL);

    free(r->text);
    r->text = NULL;
    out = open_memstream(&r->text, &r->nbytes);
    for (size_t i = 0; good && i <= r->ids.nids; i++) {
        const char *text;
        size_t nbytes;
        good = i < r->ids.nids ? !tokenizer_stream_put(stream, r->ids.at[i], &text, &nbytes, NULL)
                               : !tokenizer_stream_end(stream, &text, &nbytes, NULL);
        if (good) {
            good = is_text(text, nbytes);
            fwrite(text, 1, nbytes, out);
        }
    }
    fclose(out);
    tokenizer_stream_destroy(stream);
    return good;
}

static bool same_text(struct reader *r, bool skip_special, const json_t *want)
{
    return decode(r, skip_special) && r->nbytes == json_string_length(want) &&
           !memcmp(r->text, json_string_value(want), r->nbytes);
}

/* Ends never go back, and end with the text. */
static bool good_ends(const struct tokenizer_ids *ids, size_t nbytes)
{
    for (size_t i = 0; i < ids->nids; i++)
        if (ids->ends[i] > nbytes || (i && ids->ends[i] < ids->ends[i - 1]))
            return false;
    return true;
}

static bool same_row(struct reader *r, const json_t *row, struct fsdp_err *err)
{
    const json_t *text = json_object_get(row, "text"), *ids = json_object_get(row, "ids"),
                 *special = json_object_get(row, "special") ?: ids,
                 *back = json_object_get(row, "back"), *skipped = json_object_get(row, "skipped");
    const char *bytes = json_string_value(text);
    const size_t nbytes = json_string_length(text);

    r->ids.nids = r->with_ends.nids = 0;
    r->with_ends.with_ends = true;
    if (tokenizer_encode(r->encoder, bytes, nbytes, false, &r->with_ends, err) ||
        tokenizer_encode(r->encoder, bytes, nbytes, false, &r->ids, err))
        return false;
    if (!same_ids(&r->ids, ids) || !same_ids(&r->with_ends, ids) ||
        !good_ends(&r->with_ends, nbytes))
        return false;
    /* SentencePiece gives a text without its special tokens alone. */
    if (json_object_get(row, "spm"))
        return same_text(r, true, skipped ?: text);
    r->ids.nids = 0;
    if (tokenizer_encode(r->encoder, bytes, nbytes, true, &r->ids, err))
        return false;
    return same_ids(&r->ids, special) && same_text(r, false, back ?: text) &&
           same_text(r, true, skipped ?: text);
}

/* ---- one tokenizer --------------------------------------------------------------------------- */

static void test_case(const json_t *models, const json_t *one)
{
    const char *name = json_string_value(json_object_get(one, "name")), *path = "tokenizer.file";
    const json_t *rows = json_object_get(one, "rows"), *row;
    struct fsdp_err err = FSDP_ERR_INIT;
    struct reader r = {.tokenizer = NULL};
    size_t i;
    bool good = cases_write(path, models, one) && !tokenizer_open(&r.tokenizer, path, &err) &&
                !tokenizer_encoder_create(&r.encoder, r.tokenizer, &err);

    json_array_foreach(rows, i, row) if (good && !same_row(&r, row, &err))
    {
        good = false;
        diag("text %zu: %zu ids, decoded to '%s'", i, r.ids.nids, r.text ? r.text : "");
    }
    if (!ok(good && json_array_size(rows) > 10, "%s: ids and texts are the original's", name))
        diag("%s", err.text);
    close_reader(&r);
}

int main(void)
{
    json_error_t why;
    json_t *root = cases_load(&why);
    const json_t *files = json_object_get(root, "files"), *one;
    size_t i;

    if (!ok(json_array_size(files) > 30, "%zu tokenizers", json_array_size(files)))
        diag("%s", why.text);
    json_array_foreach(files, i, one) test_case(json_object_get(root, "models"), one);
    json_decref(root);
    return tap_done();
}
