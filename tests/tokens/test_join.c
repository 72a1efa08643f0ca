/* SPDX-License-Identifier: Apache-2.0 */
/* Long texts are cut into pieces that share text; their tokens are those of the whole. Here, pieces
 * are tiny. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/tokens/sizes.h"
#include "tap.h"
#include "text/tokenizer/tokenizer.h"

enum { TEXT_NBYTES = 6000 };

static struct tokenizer *open_tokenizer(const char *name)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct tokenizer *t = NULL;
    char path[1000];

    snprintf(path, sizeof path, "%s/tests/tokens/data/%s.json", getenv("TOP"), name);
    if (tokenizer_open(&t, path, &err)) {
        diag("%s", err.text);
        exit(99);
    }
    return t;
}

static void write_text(const char *path, const char *text, size_t nbytes)
{
    FILE *f = fopen(path, "w");
    if (!f || fwrite(text, 1, nbytes, f) != nbytes || fclose(f))
        exit(99);
}

/* Token files of both sizes; equal? */
static bool same_files(const char *a, const char *b)
{
    static char x[1 << 20], y[1 << 20];
    FILE *f = fopen(a, "r"), *g = fopen(b, "r");
    const size_t n = f ? fread(x, 1, sizeof x, f) : 1, m = g ? fread(y, 1, sizeof y, g) : 0;

    if (f)
        fclose(f);
    if (g)
        fclose(g);
    return n == m && !memcmp(x, y, n);
}

/* What the file's text is, at once and in pieces of `piece` bytes. */
static bool check_text(const struct data_text *text, const char *path, size_t piece)
{
    const struct encode_opts opts = {.version = ENCODE_OPTS_VERSION,
                                     .npaths = 1,
                                     .paths = &path,
                                     .text = text,
                                     .nthreads = 3,
                                     .overwrite = true};
    const struct encode_sizes sizes = {
        .batch = 64, .piece = piece, .overlap = 400, .agree = 48, .most = 1 << 20, .seconds = 100};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct tokens_info whole, pieces;

    if (encode_run(&whole, "whole.u16", &opts, &err) ||
        encode_run_sized(&pieces, "pieces.u16", &opts, &sizes, &err)) {
        diag("%s", err.text);
        return false;
    }
    return whole.ntokens == pieces.ntokens && whole.nbytes == pieces.nbytes &&
           whole.source_hash == pieces.source_hash && same_files("whole.u16", "pieces.u16") &&
           same_files("whole.u16.index", "pieces.u16.index");
}

/* ---- texts ----------------------------------------------------------------------------------- */

static uint64_t seed = 1;

static unsigned draw(unsigned n)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(seed >> 33) % n;
}

static const char *const words[] = {"the",
                                    "token",
                                    "of",
                                    " ",
                                    "  ",
                                    "      ",
                                    "\n",
                                    "\r\n",
                                    "\n\n",
                                    "a",
                                    "aa",
                                    "Straße",
                                    "\u4e2d\u6587",
                                    "12345",
                                    "<|end|>",
                                    "<|begin|>",
                                    "</s>",
                                    "<s>",
                                    "'ll",
                                    "don't",
                                    "e\u0301",
                                    "\U0001f469\u200d\U0001f680",
                                    ", ",
                                    "return x;",
                                    "\t",
                                    "\u00a0",
                                    "-"};

/* Random words, most with a space between them. */
static size_t random_text(char *out)
{
    size_t n = 0;

    while (n < TEXT_NBYTES - 200) {
        const char *word = words[draw(sizeof words / sizeof words[0])];
        n += (size_t)sprintf(out + n, "%s%s", word, draw(4) ? " " : "");
    }
    return n;
}

/* A run without a space in the middle, of random letters, digits, or one letter. */
static size_t run_text(char *out, const char *of)
{
    const size_t before = 900 + draw(300), run = 2000 + draw(1000), kinds = strlen(of);
    size_t n = 0;

    while (n < before)
        n += (size_t)sprintf(out + n, "%s ", words[draw(3)]);
    for (size_t i = 0; i < run; i++)
        out[n++] = of[draw((unsigned)kinds)];
    while (n < TEXT_NBYTES - 200)
        n += (size_t)sprintf(out + n, " %s", words[draw(3)]);
    return n;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_tokenizer(const char *name)
{
    static const char *const runs[] = {
        "a", "0123456789", "abcdefghijklmnopqrstuvwxyz", " ", "\n", "\r\n", "ab"};
    struct tokenizer *t = open_tokenizer(name);
    struct data_text text = {.tokenizer = t, .end = 0, .special = DATA_SPECIAL_EOS};
    static char out[TEXT_NBYTES + 1000];
    int nwrong = 0;

    for (unsigned i = 0; i < 60; i++) {
        text.special = (enum data_special)(i % 3);
        write_text("a.txt", out, random_text(out));
        if (!check_text(&text, "a.txt", 250 + draw(500)) && !nwrong++)
            diag("text %u of %s", i, name);
    }
    ok(!nwrong, "%s: random texts in pieces have the tokens of the whole", name);
    nwrong = 0;
    for (unsigned i = 0; i < 42; i++) {
        write_text("a.txt", out, run_text(out, runs[i % 7]));
        if (!check_text(&text, "a.txt", 250 + draw(500)) && !nwrong++)
            diag("run %u of %s", i, name);
    }
    ok(!nwrong, "%s: and texts with long runs without a space", name);
    tokenizer_close(t);
}

static void test_bytes(void)
{
    const struct data_text text = {.end = -1};
    static char out[TEXT_NBYTES];

    for (size_t i = 0; i < sizeof out; i++)
        out[i] = (char)draw(256);
    write_text("a.txt", out, sizeof out);
    ok(check_text(&text, "a.txt", 700), "bytes: any at all");
}

static void test_refusals(void)
{
    struct tokenizer *t = open_tokenizer("bytes");
    const struct data_text text = {.tokenizer = t, .end = -1};
    const char *path = "a.txt";
    const struct encode_opts opts = {.version = ENCODE_OPTS_VERSION,
                                     .npaths = 1,
                                     .paths = &path,
                                     .text = &text,
                                     .overwrite = true};
    const struct encode_sizes sizes = {
        .batch = 64, .piece = 300, .overlap = 300, .agree = 32, .most = 1500, .seconds = 100};
    static char out[TEXT_NBYTES];
    struct fsdp_err err = FSDP_ERR_INIT;
    struct tokens_info info;

    memset(out, 'a', sizeof out);
    write_text("a.txt", out, sizeof out);
    ok(encode_run_sized(&info, "r.u16", &opts, &sizes, &err) == FSDP_EUNSUPPORTED &&
           strstr(err.text, "a.txt: from byte 0 on"),
       "%s", err.text);
    for (size_t i = 0; i < sizeof out; i += 7)
        out[i] = ' ';
    int nwrong = 0;
    for (size_t at = 0; at < 2000; at += 37) {
        char want[100];
        const char kept = out[at];
        out[at] = (char)0xff;
        write_text("a.txt", out, sizeof out);
        snprintf(want, sizeof want, "a.txt: byte %zu, 0xff, is not valid UTF-8", at);
        nwrong += encode_run_sized(&info, "r.u16", &opts, &sizes, &err) != FSDP_EINVAL ||
                  !strstr(err.text, want);
        out[at] = kept;
    }
    ok(!nwrong, "bytes that are not UTF-8 are named with their place in the file");
    tokenizer_close(t);
}

int main(void)
{
    if (chdir(getenv("TEST_TMP")))
        return 1;
    test_tokenizer("bytes");
    test_tokenizer("unigram");
    test_tokenizer("sentence");
    test_bytes();
    test_refusals();
    return tap_done();
}
