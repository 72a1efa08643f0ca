/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of JSON: what it gives, and that it accepts exactly what jansson accepts. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../ckpt/util/json.h"
#include "tap.h"

/* A copy without a byte to spare: a reader that runs over the end is caught by the sanitizer. */
static int read_all(const char *data, size_t nbytes, struct fsdp_err *err)
{
    struct ckpt_json_reader r;
    struct ckpt_json_text raw;
    char *exact = malloc(nbytes ? nbytes : 1);
    memcpy(exact, data, nbytes);
    ckpt_json_read_begin(&r, exact, nbytes, "x", "", err);
    ckpt_json_read_skip(&r, &raw);
    int rc = ckpt_json_read_end(&r, FSDP_OK);
    if (rc == FSDP_OK && *raw.data != '{' && *raw.data != '[')
        rc = FSDP_ECORRUPT; /* as jansson has it */
    free(exact);
    return rc;
}

static bool agrees(const char *data, size_t nbytes)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    json_t *tree = json_loadb(data, nbytes, JSON_REJECT_DUPLICATES, NULL);
    bool accepted = read_all(data, nbytes, &err) == FSDP_OK;
    if (accepted != !!tree)
        diag("%s '%.*s': %s", accepted ? "accepts" : "refuses", (int)nbytes, data, err.text);
    json_decref(tree);
    return accepted == !!tree;
}

static void test_agrees(void)
{
    static const char *const texts[] = {
        "",
        " ",
        "{}",
        "[]",
        "[ ]",
        "{ }",
        "[1]",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\":1,}",
        "{,}",
        "{\"a\"}",
        "{\"a\" 1}",
        "{a:1}",
        "{1:1}",
        "[1}",
        "{\"a\":1]",
        "[[]",
        "[]]",
        "[] []",
        "[true,false,null]",
        "[tru]",
        "[nul",
        "[truex]",
        "[True]",
        "[-]",
        "[-0]",
        "[01]",
        "[-01]",
        "[0]",
        "[00]",
        "[1.]",
        "[.5]",
        "[1.5]",
        "[1e]",
        "[1e+]",
        "[1e+5]",
        "[1E-5]",
        "[+1]",
        "[0x10]",
        "[9223372036854775807]",
        "[9223372036854775808]",
        "[-9223372036854775808]",
        "[-9223372036854775809]",
        "[99999999999999999999999]",
        "[\"a]",
        "[\"\\\"]",
        "[\"\\x\"]",
        "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"]",
        "[\"\\u00e9\"]",
        "[\"\\u00E9\\u20ac\"]",
        "[\"\\u00g0\"]",
        "[\"\\u00\"]",
        "[\"\\u0000\"]",
        "[\"\\ud83d\\ude00\"]",
        "[\"\\ud83d\"]",
        "[\"\\ude00\"]",
        "[\"\\ud83d\\u0041\"]",
        "[\"\\ud83dxxxxxx\"]",
        "[\"a\tb\"]",
        "[\"a\nb\"]",
        "[\"\x7f\"]",
        "[\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"]",
        "[\"\xc3\"]",
        "[\"\xc0\xaf\"]",
        "[\"\x80\"]",
        "[\"\xe0\x80\xaf\"]",
        "[\"\xed\xa0\x80\"]",
        "[\"\xf0\x80\x80\xaf\"]",
        "[\"\xf4\x90\x80\x80\"]",
        "[\"\xf5\x80\x80\x80\"]",
        "[\"\xe2\x82\"]",
        "[\"12345678\xff\"]",
        "{\"a\":1,\"a\":1}",
        "{\"a\":1,\"\\u0061\":1}",
        "{\"a\":{\"a\":1},\"b\":{\"a\":1}}",
        "[{\"b\":{\"c\":1,\"d\":2,\"c\":3}}]",
        "{\"\":1}",
        "{\"\":1,\"\":1}",
        "\xef\xbb\xbf{}",
        "{} x",
        "/**/{}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        ok(agrees(texts[i], strlen(texts[i])), "as jansson: %s", texts[i]);
    ok(agrees("[1]\0", 4) && agrees("[\"\0\"]", 5) && agrees("[\0]", 3), "0 bytes");
}

/* Every byte of a text replaced by each other one, and every beginning of it. */
static void test_mutations(void)
{
    static const char text[] =
        "{\"k\\u00e9\\n\": [1, -20, 2.5e1], \"long enough \xc3\xa9 \\ud83d\\ude00\": "
        "{\"x\": true, \"y\": null}, \"l\": [[], {}, \"\"]}\n";
    char copy[sizeof text];
    bool same = true;
    for (size_t i = 0; i < sizeof text - 1; i++) {
        same &= agrees(text, i);
        memcpy(copy, text, sizeof text);
        copy[i] = 0; /* jansson overlooks one behind a number */
        same &= read_all(copy, sizeof text - 1, NULL) == FSDP_ECORRUPT;
        for (int byte = 1; byte < 256; byte++) {
            copy[i] = (char)byte;
            same &= agrees(copy, sizeof text - 1);
        }
    }
    ok(same, "%zu texts with one wrong byte, and all beginnings, as jansson", 256 * sizeof text);
}

/* Plain bytes are read many at a time: each byte at each place of a text longer than that. */
static void test_long_texts(void)
{
    enum { N = 70 };
    char text[N + 4];
    bool same = true;
    for (int at = 0; at < N; at++)
        for (int byte = 0; byte < 256; byte++) {
            memset(text, 'x', sizeof text);
            memcpy(text, "[\"", 2);
            memcpy(text + 2 + N, "\"]", 2);
            text[2 + at] = (char)byte;
            same &= agrees(text, sizeof text);
        }
    ok(same, "each byte at each place of a text of %d, as jansson", N);
}

static void test_depth(void)
{
    enum { DEEP = 1 << 20 };
    struct fsdp_err err = FSDP_ERR_INIT;
    char *deep = malloc(DEEP);
    memset(deep, '[', DEEP);
    ok(read_all(deep, DEEP, &err) == FSDP_ECORRUPT && strstr(err.text, "depth"), "%s", err.text);
    memset(deep, '[', CKPT_JSON_DEPTH - 1);
    memset(deep + CKPT_JSON_DEPTH - 1, ']', CKPT_JSON_DEPTH - 1);
    ok(read_all(deep, 2 * (CKPT_JSON_DEPTH - 1), &err) == FSDP_OK, "the deepest that is read");
    free(deep);
}

/* Twice the same key among a thousand: at the first and last, far from each other. */
static void test_many_keys(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    char *text = malloc(1 << 16), *p = text;
    for (int i = 0; i < 1000; i++)
        p += sprintf(p, "%s\"key%d\": %d", i ? ",\n" : "{", i, i);
    size_t nbytes = (size_t)(p - text);
    strcpy(p, "}");
    ok(read_all(text, nbytes + 1, &err) == FSDP_OK, "a thousand keys");
    p += sprintf(p, ",\"\\u006bey0\": 1}");
    ok(read_all(text, (size_t)(p - text), &err) == FSDP_ECORRUPT &&
           strstr(err.text, "duplicate object key 'key0' (line 1000"),
       "%s", err.text);
    free(text);
}

static void test_values(void)
{
    static const char text[] = "{\"n\": 18, \"minus\": -1, \"hex\": \"0aff\", \"dims\": [2, 3], "
                               "\"bad\": [1, \"x\", [2]], \"yes\": true, \"raw\": {\"a\": [1]} }";
    struct ckpt_json_reader r;
    struct ckpt_json_text key, raw = {0};
    struct fsdp_err err = FSDP_ERR_INIT;
    uint64_t n = 0, hex = 0, other, dims[FSDP_MAX_DIMS];
    bool fine = true;
    int ndim, nkeys = 0;

    ckpt_json_read_begin(&r, text, sizeof text - 1, "x", "", &err);
    fine &= ckpt_json_read_object(&r);
    for (; ckpt_json_read_key(&r, &key); nkeys++) {
        if (ckpt_json_text_is(&key, "n"))
            fine &= ckpt_json_read_u64(&r, &n);
        else if (ckpt_json_text_is(&key, "minus"))
            fine &= !ckpt_json_read_u64(&r, &other);
        else if (ckpt_json_text_is(&key, "hex"))
            fine &= ckpt_json_read_hex(&r, &hex, 4);
        else if (ckpt_json_text_is(&key, "dims"))
            fine &= ckpt_json_read_dims(&r, dims, &ndim) && ndim == 2 && dims[1] == 3;
        else if (ckpt_json_text_is(&key, "bad"))
            fine &= !ckpt_json_read_dims(&r, dims, &ndim);
        else
            ckpt_json_read_skip(&r, &raw);
    }
    ok(ckpt_json_read_end(&r, FSDP_OK) == FSDP_OK && fine && nkeys == 7 && n == 18 &&
           hex == 0x0aff && ckpt_json_text_is(&raw, "{\"a\": [1]}"),
       "values of every kind, and wrong ones passed over: %s", err.text);
}

int main(void)
{
    test_agrees();
    test_mutations();
    test_long_texts();
    test_depth();
    test_many_keys();
    test_values();
    return tap_done();
}
