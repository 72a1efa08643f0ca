/* SPDX-License-Identifier: Apache-2.0 */
/* Learning a vocabulary, on texts whose merges can be found by hand; tests/interop/
 * train_tokenizer.sh compares with the original. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tap.h"
#include "text/tokenizer/tokenizer.h"
#include "text/train/vocab_train.h"

static const char *const end_of_text[] = {"<|endoftext|>"};

static struct vocab_train_opts opts_of(int vocab_size)
{
    struct vocab_train_opts opts = VOCAB_TRAIN_OPTS_INIT;

    opts.vocab_size = vocab_size;
    opts.special = end_of_text;
    opts.nspecial = 1;
    return opts;
}

static struct vocab_train *make(const struct vocab_train_opts *opts)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct vocab_train *t = NULL;

    if (!ok(vocab_train_create(&t, opts, &err) == FSDP_OK, "a training begins"))
        diag("%s", err.text);
    return t;
}

static void add(struct vocab_train *t, const char *text)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    if (vocab_train_add(t, text, strlen(text), &err) != FSDP_OK)
        ok(false, "'%s' is counted: %s", text, err.text);
}

static void finish(struct vocab_train *t)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    if (vocab_train_finish(t, NULL, NULL, &err) != FSDP_OK)
        ok(false, "the merges are learned: %s", err.text);
}

/* All merges as "a b|ab c|". */
static const char *merges_of(char out[4096], const struct vocab_train *t)
{
    struct vocab_train_stats stats;
    struct vocab_train_name halves[2];
    size_t n = 0;

    vocab_train_stats(&stats, t);
    out[0] = 0;
    for (int i = 0; i < stats.nmerges && n < 4000; i++) {
        vocab_train_merge_at(halves, t, i);
        n += (size_t)sprintf(out + n, "%.*s %.*s|", (int)halves[0].nbytes, halves[0].at,
                             (int)halves[1].nbytes, halves[1].at);
    }
    return out;
}

static void check_merges(const char *what, const struct vocab_train *t, const char *want)
{
    char got[4096];

    if (!ok(!strcmp(merges_of(got, t), want), "%s", what))
        diag("%s, not %s", got, want);
}

/* ---- what is learned ------------------------------------------------------------------------- */

/* Texts one after another are given as a list that ends with NULL. */
static void check_texts(const char *what, const struct vocab_train_opts *opts,
                        const char *const *texts, const char *want)
{
    struct vocab_train *t = make(opts);

    for (; *texts; texts++)
        add(t, *texts);
    finish(t);
    check_merges(what, t, want);
    vocab_train_destroy(t);
}

static void check_order(void)
{
    struct vocab_train_opts opts = opts_of(1000);

    check_texts("the most frequent pair first", &opts, (const char *const[]){"bc bc bc ab", NULL},
                "b c|\xc4\xa0 bc|a b|\xc4\xa0 ab|");
    check_texts("of equal ones the lower left token, then the lower right one", &opts,
                (const char *const[]){"zb", "za", "ya", NULL}, "y a|z a|z b|");
    check_texts("a space's name is above the letters'", &opts,
                (const char *const[]){" a", "za", NULL}, "z a|\xc4\xa0 a|");
    check_texts("pairs overlap from the left", &opts, (const char *const[]){"aaa", NULL},
                "a a|aa a|");
    check_texts("no merge reaches over the end of a text", &opts,
                (const char *const[]){"a", "b", NULL}, "");
    check_texts("nor over the end of a word", &opts, (const char *const[]){"ab1ab", NULL}, "a b|");
    opts.min_frequency = 2;
    check_texts("rare pairs are left alone", &opts, (const char *const[]){"ab ab cd", NULL},
                "a b|");
    opts.min_frequency = 0;
    opts.vocab_size = 258;
    check_texts("no more tokens than asked for", &opts, (const char *const[]){"abcd", NULL},
                "a b|");
}

static void check_options(void)
{
    struct vocab_train_opts opts = opts_of(1000);

    opts.add_prefix_space = true;
    check_texts("a prefix", &opts, (const char *const[]){"a", " a", NULL}, "\xc4\xa0 a|");
    opts.add_prefix_space = false;
    opts.pattern = "[^x]+";
    check_texts("a pattern", &opts, (const char *const[]){"1 1x1", NULL},
                "1 \xc4\xa0|1\xc4\xa0 1|");
    opts.pattern = NULL;
    /* "ab" is token 0: a merge gives it without making the vocabulary larger. */
    opts.special = (const char *const[]){"ab", "c"};
    opts.nspecial = 2;
    opts.vocab_size = 258;
    check_texts("special tokens that merges give", &opts,
                (const char *const[]){"abab", "abab", "ab", NULL}, "a b|ab ab|");
}

static void check_stats(void)
{
    struct vocab_train_opts opts = opts_of(300);
    struct vocab_train *t = make(&opts);
    struct vocab_train_stats stats;

    add(t, "ab ab");
    add(t, "");
    vocab_train_stats(&stats, t);
    ok(stats.ntexts == 2 && stats.nbytes == 5 && stats.nwords == 2 && stats.ndistinct == 2 &&
           !stats.ntokens && !stats.nmerges,
       "what was counted");
    finish(t);
    vocab_train_stats(&stats, t);
    ok(stats.ntokens == 259 && stats.nmerges == 2 && stats.last_frequency == 1,
       "fewer merges than asked for are told: %d tokens, %d merges", stats.ntokens, stats.nmerges);
    vocab_train_destroy(t);
}

static void check_empty(void)
{
    struct vocab_train_opts opts = opts_of(257);
    struct vocab_train *t = make(&opts);
    struct vocab_train_stats stats;

    finish(t);
    vocab_train_stats(&stats, t);
    ok(stats.ntokens == 257 && stats.nmerges == 0, "without texts there are the first tokens");
    vocab_train_destroy(t);
}

/* ---- counts of two --------------------------------------------------------------------------- */

static void check_two_threads(void)
{
    static const char *const texts[] = {"the cat sat", "on the mat", "that the", "cat", "mattress"};
    struct vocab_train_opts opts = opts_of(280);
    struct vocab_train *one = make(&opts), *a = make(&opts), *b = make(&opts), *other;
    struct vocab_train_stats stats[2];
    struct fsdp_err err = FSDP_ERR_INIT;
    char want[4096];

    for (int i = 0; i < 5; i++) {
        add(one, texts[i]);
        add(i % 2 ? a : b, texts[i]);
    }
    ok(vocab_train_merge(a, b, &err) == FSDP_OK, "counts are added");
    opts.pattern = "a";
    other = make(&opts);
    ok(vocab_train_merge(a, other, &err) == FSDP_EINVAL && strstr(err.text, "pattern"),
       "those of another pattern are not");
    ok(vocab_train_merge(a, a, &err) == FSDP_EINVAL, "nor a training's own");
    finish(one);
    finish(a);
    vocab_train_stats(&stats[0], one);
    vocab_train_stats(&stats[1], a);
    ok(!memcmp(&stats[0], &stats[1], sizeof stats[0]), "two counts are as one");
    check_merges("and give its merges", a, merges_of(want, one));
    ok(want[0], "there are some");
    vocab_train_destroy(one);
    vocab_train_destroy(a);
    vocab_train_destroy(b);
    vocab_train_destroy(other);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refuse(const char *what, const struct vocab_train_opts *opts, int status,
                   const char *words)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct vocab_train *t = NULL;
    const int rc = vocab_train_create(&t, opts, &err);

    if (!ok(rc == status && !t && strstr(err.text, words), "%s", what))
        diag("%s: %s", fsdp_status_name(rc), err.text);
    vocab_train_destroy(t);
}

static void check_refusals(void)
{
    struct vocab_train_opts opts = opts_of(256);

    refuse("a vocabulary without room", &opts, FSDP_EINVAL, "needs 257 at least");
    opts = opts_of(-1);
    refuse("a negative one", &opts, FSDP_EINVAL, "-1");
    opts = opts_of(1 << 30);
    refuse("a huge one", &opts, FSDP_EINVAL, "is the most");
    opts = opts_of(300);
    opts.version = 7;
    refuse("another version", &opts, FSDP_EINVAL, "version 7");
    opts = opts_of(300);
    opts.pattern = "(";
    refuse("a broken pattern", &opts, FSDP_EUNSUPPORTED, "new tokenizer");
    opts.pattern = "\xff";
    refuse("a pattern that is no text", &opts, FSDP_EINVAL, "pattern");
    opts = opts_of(300);
    opts.nspecial = 2;
    opts.special = (const char *const[]){"<a>", ""};
    refuse("an empty special token", &opts, FSDP_EINVAL, "token 2 is empty");
    opts.special = (const char *const[]){"<a>", "<a>"};
    refuse("one that is given twice", &opts, FSDP_EINVAL, "'<a>'");
    opts.special = (const char *const[]){"\xff", "<a>"};
    refuse("one that is no UTF-8", &opts, FSDP_EINVAL, "UTF-8");
    opts.special = (const char *const[]){"<a>", "<b>"};
    opts.eos = "<c>";
    refuse("an end of text that is no special token", &opts, FSDP_EINVAL, "'<c>'");
}

static int stop(void *ctx, int nmerges, int nwanted, struct fsdp_err *err)
{
    int *calls = ctx;

    ++*calls;
    return nwanted == 43 && nmerges == 0 ? fsdp_err_set(err, FSDP_ECANCELED, "stopped") : FSDP_OK;
}

static void check_text(void)
{
    struct vocab_train_opts opts = opts_of(300);
    struct vocab_train *t = make(&opts);
    struct vocab_train_stats stats;
    struct fsdp_err err = FSDP_ERR_INIT;
    int calls = 0;

    ok(vocab_train_add(t, "ab ab\xe2\x82", 7, &err) == FSDP_EINVAL && strstr(err.text, "byte 5"),
       "a text that is no UTF-8: %s", err.text);
    vocab_train_stats(&stats, t);
    ok(!stats.ndistinct && !stats.nwords && !stats.ntexts, "nothing of it is counted");
    add(t, "ab");
    ok(vocab_train_write(t, "nowhere", &err) == FSDP_EINVAL && access("nowhere", F_OK) != 0,
       "nothing is written before it is learned");
    ok(vocab_train_finish(t, stop, &calls, &err) == FSDP_ECANCELED && calls == 1, "it is stopped");
    add(t, "cd cd");
    finish(t);
    check_merges("and begins again with all counts", t, "c d|a b|\xc4\xa0 cd|");
    ok(vocab_train_add(t, "x", 1, &err) == FSDP_EINVAL &&
           vocab_train_finish(t, NULL, NULL, &err) == FSDP_EINVAL,
       "a finished one takes no more");
    vocab_train_destroy(t);
}

/* Twice as long with each merge. */
static void check_long(void)
{
    struct vocab_train_opts opts = opts_of(280);
    struct vocab_train *t = make(&opts);
    struct fsdp_err err = FSDP_ERR_INIT;
    char *text = malloc(1 << 18);

    memset(text, 'a', 1 << 18);
    ok(vocab_train_add(t, text, 1 << 18, &err) == FSDP_OK, "a long word");
    ok(vocab_train_finish(t, NULL, NULL, &err) == FSDP_EUNSUPPORTED && strstr(err.text, "65536"),
       "a token that is too long for a file: %s", err.text);
    free(text);
    vocab_train_destroy(t);
}

static void check_memory(void)
{
    struct vocab_train_opts opts = opts_of(270);
    struct fsdp_err err = FSDP_ERR_INIT;
    bool good = true;
    int nfailed = 0;

    opts.pattern = "[a-z]+";
    for (bool failed = true; failed && good; nfailed += failed) {
        struct vocab_train *t = NULL;
        fsdp_alloc_fail_at((uint64_t)nfailed + 1);
        int rc = vocab_train_create(&t, &opts, &err);
        if (rc == FSDP_OK)
            rc = vocab_train_add(t, "abcabc", 6, &err);
        if (rc == FSDP_OK)
            rc = vocab_train_finish(t, NULL, NULL, &err);
        if (rc == FSDP_OK)
            rc = vocab_train_write(t, "small", &err);
        fsdp_alloc_fail_at(0);
        failed = rc != FSDP_OK;
        good = !failed || rc == FSDP_ENOMEM;
        vocab_train_destroy(t);
    }
    ok(good && nfailed > 30, "each of %d allocations may fail: %s", nfailed, good ? "" : err.text);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void check_ids(struct tokenizer *tokenizer, const char *text, const int32_t *want, size_t n)
{
    struct tokenizer_encoder *encoder = NULL;
    struct tokenizer_ids ids = {0};
    struct fsdp_err err = FSDP_ERR_INIT;

    int rc = tokenizer_encoder_create(&encoder, tokenizer, &err);
    if (rc == FSDP_OK)
        rc = tokenizer_encode(encoder, text, strlen(text), false, &ids, &err);
    ok(rc == FSDP_OK && ids.nids == n && !memcmp(ids.at, want, n * sizeof *want), "ids of '%s'",
       text);
    tokenizer_ids_free(&ids);
    tokenizer_encoder_destroy(encoder);
}

static void check_files(void)
{
    struct vocab_train_opts opts = opts_of(260);
    struct fsdp_err err = FSDP_ERR_INIT;
    struct tokenizer *tokenizer = NULL;
    struct vocab_train *t;
    struct stat st;

    opts.special = (const char *const[]){"<a>", "<b>"};
    opts.nspecial = 2;
    opts.eos = "<b>";
    t = make(&opts);
    add(t, "ababab ab");
    finish(t);
    check_merges("two merges", t, "a b|ab ab|");
    for (int i = 0; i < 2; i++) /* the second time over the first */
        if (!ok(vocab_train_write(t, "folder", &err) == FSDP_OK, "a folder is written"))
            diag("%s", err.text);
    ok(stat("folder/tokenizer.json.part", &st) != 0, "nothing else is left there");
    if (!ok(tokenizer_open(&tokenizer, "folder", &err) == FSDP_OK, "and read"))
        diag("%s", err.text);
    ok(tokenizer_vocab_size(tokenizer) == 260 && tokenizer_bos(tokenizer) == 0 &&
           tokenizer_eos(tokenizer) == 1,
       "its size and special tokens");
    /* '!' is byte 2; 'a' is 'a' - '!' further. The space comes after all that print. */
    check_ids(tokenizer, "ababab!<b>a", (const int32_t[]){259, 258, 2, 1, 2 + 'a' - '!'}, 5);
    ok(!tokenizer_is_bytes(tokenizer), "it is more than the bytes");
    tokenizer_close(tokenizer);
    ok(vocab_train_write(t, "folder/tokenizer.json/x", &err) == FSDP_EIO &&
           strstr(err.text, "folder/tokenizer.json/x"),
       "a folder that cannot be: %s", err.text);
    vocab_train_destroy(t);
}

int main(void)
{
    check_order();
    check_options();
    check_stats();
    check_empty();
    check_two_threads();
    check_refusals();
    check_text();
    check_long();
    check_files();
    check_memory();
    vocab_train_destroy(NULL);
    return tap_done();
}
