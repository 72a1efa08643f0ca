/* SPDX-License-Identifier: Apache-2.0 */
/* Data: every layout and format, the order, and files that are not what they should be. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/config.h"
#include "data/data.h"
#include "tap.h"

static char dir[] = "/tmp/test_data_XXXXXX";
static char path[200];

static const char *in_dir(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void put(const char *name, const void *bytes, size_t nbytes)
{
    FILE *out = fopen(in_dir(name), "wb");
    if (!out || fwrite(bytes, 1, nbytes, out) != nbytes || fclose(out) != 0)
        abort();
}

static int token_of(int i)
{
    return (i * 37 + i / 11) % 251;
}

/* Tokens first .. first + ntokens - 1 of the sequence, in one of the formats. */
static void put_tokens(const char *name, enum data_format format, int first, int ntokens)
{
    static unsigned char bytes[1024 + 4 * 4096];
    int width = format == DATA_TEXT ? 1 : format == DATA_U32 ? 4 : 2;
    size_t at = 0;

    if (format == DATA_LLMC) {
        int32_t header[256] = {20240520, 1, ntokens};
        memcpy(bytes, header, sizeof header);
        at = sizeof header;
    }
    for (int i = 0; i < ntokens; i++, at += (size_t)width) {
        uint32_t token = (uint32_t)token_of(first + i);
        memcpy(bytes + at, &token, (size_t)width);
    }
    put(name, bytes, at);
}

static int open_one(struct data **out, const char *name, enum data_format format,
                    enum data_layout layout, int seq_len, struct fsdp_err *err)
{
    struct data_opts opts = DATA_OPTS_INIT;
    const char *paths[] = {in_dir(name)};

    opts.npaths = 1;
    opts.paths = paths;
    opts.format = format;
    opts.layout = layout;
    opts.seq_len = seq_len;
    opts.vocab_size = 256;
    opts.seed = 7;
    return data_open(out, &opts, err);
}

/* Row r must be the window `at`. */
static bool is_window(const int32_t *row, int at, int seq_len, int stride)
{
    for (int i = 0; i <= seq_len; i++)
        if (row[i] != token_of(at * stride + i))
            return false;
    return true;
}

static int which_window(const int32_t *row, int nwindows, int seq_len)
{
    for (int w = 0; w < nwindows; w++)
        if (is_window(row, w, seq_len, seq_len))
            return w;
    return -1;
}

static void check_formats(void)
{
    static const char *const names[] = {"text", "u16", "u32", "llmc"};
    enum { NTOKENS = 1000, SEQ = 9 };
    struct fsdp_err err = FSDP_ERR_INIT;
    int32_t row[SEQ + 1];

    for (int f = DATA_TEXT; f <= DATA_LLMC; f++) {
        struct data *data = NULL;
        put_tokens("one", (enum data_format)f, 0, NTOKENS);
        ok(open_one(&data, "one", (enum data_format)f, DATA_ROWS, SEQ, &err) == FSDP_OK,
           "%s rows %s", names[f], err.text);
        bool in_order = data_nrows(data) == NTOKENS / (SEQ + 1);
        for (uint64_t r = 0; r < 2 * data_nrows(data); r++)
            in_order &= data_row(data, r, &(struct data_row){.tokens = row}, &err) == FSDP_OK &&
                        is_window(row, (int)(r % data_nrows(data)), SEQ, SEQ + 1);
        ok(in_order, "%s rows: consecutive, and again from the start", names[f]);
        data_close(data);

        ok(open_one(&data, "one", (enum data_format)f, DATA_STREAM, SEQ, &err) == FSDP_OK,
           "%s stream", names[f]);
        int nwindows = (NTOKENS - 1) / SEQ, moved = 0;
        bool each_once = data_nrows(data) == (uint64_t)nwindows, differs = false;
        int order[2][(NTOKENS - 1) / SEQ];
        for (int pass = 0; pass < 2; pass++) {
            int seen[(NTOKENS - 1) / SEQ] = {0};
            for (int r = 0; r < nwindows; r++) {
                each_once &= data_row(data, (uint64_t)(pass * nwindows + r),
                                      &(struct data_row){.tokens = row}, &err) == FSDP_OK;
                int w = which_window(row, nwindows, SEQ);
                each_once &= w >= 0 && !seen[w]++;
                order[pass][r] = w;
                moved += w != r;
            }
        }
        for (int r = 0; r < nwindows; r++)
            differs |= order[0][r] != order[1][r];
        ok(each_once, "%s stream: every window once a pass", names[f]);
        ok(moved > nwindows && differs, "%s stream: shuffled, each pass anew", names[f]);
        data_close(data);
    }
}

/* The same tokens in a folder of many files, some empty, some hidden, in folders. */
static void check_folder(void)
{
    enum { NTOKENS = 600, SEQ = 16, NFILES = 40 };
    struct fsdp_err err = FSDP_ERR_INIT;
    struct data *one = NULL, *many = NULL;
    int32_t a[SEQ + 1], b[SEQ + 1];
    char name[64];

    put_tokens("one", DATA_TEXT, 0, NTOKENS);
    mkdir(in_dir("many"), 0777);
    mkdir(in_dir("many/b"), 0777);
    put("many/.hidden", "xyz", 3);
    put("many/a00", "", 0);
    for (int i = 0; i < NFILES; i++) {
        snprintf(name, sizeof name, i < 20 ? "many/a%02d" : i < 30 ? "many/b/f%d" : "many/c%d", i);
        put_tokens(name, DATA_TEXT, i * NTOKENS / NFILES,
                   (i + 1) * NTOKENS / NFILES - i * NTOKENS / NFILES);
    }
    if (symlink("..", in_dir("many/loop")) != 0)
        abort();
    ok(open_one(&one, "one", DATA_TEXT, DATA_STREAM, SEQ, &err) == FSDP_OK &&
           open_one(&many, "many", DATA_TEXT, DATA_STREAM, SEQ, &err) == FSDP_OK,
       "a folder is read, links to folders are not followed %s", err.text);
    bool equal = data_ntokens(one) == data_ntokens(many) && data_nfiles(many) == NFILES;
    for (uint64_t r = 0; r < data_nrows(one); r++)
        equal &= !data_row(one, r, &(struct data_row){.tokens = a}, &err) &&
                 !data_row(many, r, &(struct data_row){.tokens = b}, &err) &&
                 !memcmp(a, b, sizeof a);
    ok(equal, "files sorted by path make one stream");
    ok(data_hash(one) != data_hash(many), "but another data set");
    data_close(one);
    data_close(many);
    ok(data_open(&one, &(struct data_opts){.version = DATA_OPTS_VERSION, .seq_len = 4}, &err) ==
           FSDP_EINVAL,
       "no path: %s", err.text);
}

static void check_permutation(void)
{
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4096, 4097};
    static bool seen[4097];
    bool bijective = true;
    uint64_t fixed = 0;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        memset(seen, 0, sizeof seen);
        for (uint64_t k = 0; k < sizes[i]; k++) {
            uint64_t image = data_permute(k, sizes[i], 99 + i);
            bijective &= image < sizes[i] && !seen[image];
            if (image < sizes[i])
                seen[image] = true;
            fixed += sizes[i] == 4096 && image == k;
        }
    }
    ok(bijective, "the permutation is one, for 13 lengths");
    ok(fixed < 20, "and moves almost everything (%d of 4096 stay)", (int)fixed);
    uint64_t huge = (UINT64_C(1) << 62) + 12345;
    ok(data_permute(5, huge, 1) < huge && data_permute(5, huge, 1) != data_permute(5, huge, 2),
       "also over 2^62");
}

/* The sum of the hashes of a step's rows, as all ranks read them. */
static uint64_t sum_step(struct data *data, const struct config_batch *b, int step, int seq_len)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    int32_t row[64];
    uint64_t sum = 0;

    for (int rank = 0; rank < b->ranks; rank++)
        for (int micro = 0; micro < b->accumulation; micro++)
            for (int k = 0; k < config_batch_nrows(b, rank, micro); k++) {
                int64_t at = step * b->rows + config_batch_first(b, rank, micro) + k;
                if (data_row(data, (uint64_t)at, &(struct data_row){.tokens = row}, &err))
                    abort();
                sum += fsdp_hash(FSDP_HASH_SEED, row, (size_t)(seq_len + 1) * sizeof *row);
            }
    return sum;
}

/* What a step's rows are must not depend on how many ranks there are. */
static void check_worlds(void)
{
    enum { NTOKENS = 1000, SEQ = 7, ROWS = 12, STEPS = 20 };
    static const struct config_batch batches[] = {{1, 12, 1, ROWS}, {2, 3, 2, ROWS},
                                                  {3, 1, 4, ROWS},  {6, 2, 1, ROWS},
                                                  {5, 2, 2, ROWS},  {7, 2, 1, ROWS}};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct data *data = NULL;
    bool equal = true, vary = false;

    put_tokens("one", DATA_U16, 0, NTOKENS);
    ok(open_one(&data, "one", DATA_U16, DATA_STREAM, SEQ, &err) == FSDP_OK, "opened %s", err.text);
    const uint64_t first = sum_step(data, batches, 0, SEQ);
    for (int step = 0; step < STEPS; step++) {
        const uint64_t want = sum_step(data, batches, step, SEQ);
        for (size_t w = 1; w < sizeof batches / sizeof batches[0]; w++)
            equal &= sum_step(data, &batches[w], step, SEQ) == want;
        vary |= want != first;
    }
    ok(equal && vary, "1, 2, 3, 5, 6 and 7 ranks see the same rows in every step");
    data_close(data);
}

static void check_eval(void)
{
    enum { NTOKENS = 1001, SEQ = 10 };
    struct fsdp_err err = FSDP_ERR_INIT;
    struct data *data = NULL;
    int32_t row[SEQ + 1];
    struct data_opts opts = DATA_OPTS_INIT;

    put_tokens("one", DATA_TEXT, 0, NTOKENS);
    const char *paths[] = {in_dir("one")};
    opts.npaths = 1;
    opts.paths = paths;
    opts.seq_len = SEQ;
    opts.shuffle = false;
    opts.max_rows = 25;
    ok(data_open(&data, &opts, &err) == FSDP_OK && data_nrows(data) == 25, "25 of 100 rows");
    bool spread = true;
    for (uint64_t r = 0; r < 25; r++)
        spread &= !data_row(data, r, &(struct data_row){.tokens = row}, &err) &&
                  is_window(row, (int)r * 4, SEQ, SEQ);
    ok(spread, "spread evenly, in order");
    data_close(data);
}

static void refuse(const char *what, enum data_format format, enum data_layout layout, int seq_len,
                   int status, const char *holds)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct data *data = NULL;
    int rc = open_one(&data, "bad", format, layout, seq_len, &err);

    ok(rc == status && strstr(err.text, "bad") && strstr(err.text, holds), "%s: %s", what,
       err.text);
    if (rc == FSDP_OK)
        data_close(data);
}

static void check_bad(void)
{
    unsigned char bytes[2048] = {0};
    int32_t header[256] = {20240520, 1, 100};

    refuse("missing", DATA_TEXT, DATA_STREAM, 4, FSDP_ENOTFOUND, "No such file");
    put("bad", "", 0);
    refuse("empty", DATA_TEXT, DATA_STREAM, 4, FSDP_EINVAL, "empty");
    put("bad", "abcd", 4);
    refuse("smaller than a row", DATA_TEXT, DATA_STREAM, 4, FSDP_EINVAL, "fewer than one row of 5");
    put("bad", bytes, 41);
    refuse("half a token", DATA_U16, DATA_ROWS, 4, FSDP_ECORRUPT, "truncated: 41 bytes");
    refuse("part of a token", DATA_U32, DATA_STREAM, 4, FSDP_ECORRUPT, "(1 left over)");
    put("bad", bytes, 38);
    refuse("part of a row", DATA_U16, DATA_ROWS, 4, FSDP_ECORRUPT, "19 tokens are not whole rows");
    put("bad", bytes, 100);
    refuse("part of a header", DATA_LLMC, DATA_STREAM, 4, FSDP_ECORRUPT, "truncated");
    put("bad", bytes, 1100);
    refuse("no llm.c file", DATA_LLMC, DATA_STREAM, 4, FSDP_EINVAL, "magic 0 version 0");
    memcpy(bytes, header, sizeof header);
    put("bad", bytes, 1024 + 198);
    refuse("truncated llm.c file", DATA_LLMC, DATA_STREAM, 4, FSDP_ECORRUPT, "promises 100 tokens");
    put("bad", bytes, 1024 + 202);
    refuse("llm.c file with a tail", DATA_LLMC, DATA_STREAM, 4, FSDP_ECORRUPT, "too long");
    unlink(in_dir("bad"));
    mkdir(in_dir("bad"), 0777);
    refuse("empty folder", DATA_TEXT, DATA_STREAM, 4, FSDP_EINVAL, "holds no files");
    rmdir(in_dir("bad"));
    if (mkfifo(in_dir("bad"), 0666) != 0)
        abort();
    refuse("a pipe", DATA_TEXT, DATA_STREAM, 4, FSDP_EINVAL, "is a pipe, not a regular file");
    unlink(in_dir("bad"));
}

/* Found only as the rows are read. */
static void check_bad_rows(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct data *data = NULL;
    uint16_t tokens[100] = {0};
    int32_t row[10];

    tokens[57] = 256;
    put("bad", tokens, sizeof tokens);
    if (open_one(&data, "bad", DATA_U16, DATA_ROWS, 9, &err))
        abort();
    ok(data_row(data, 4, &(struct data_row){.tokens = row}, &err) == FSDP_OK,
       "a row without it is read");
    ok(data_row(data, 5, &(struct data_row){.tokens = row}, &err) == FSDP_EINVAL &&
           strstr(err.text, "bad") && strstr(err.text, "token 57 is 256") &&
           strstr(err.text, "vocabulary of 256"),
       "over the vocabulary: %s", err.text);
    if (truncate(in_dir("bad"), 150) != 0)
        abort();
    ok(data_row(data, 9, &(struct data_row){.tokens = row}, &err) == FSDP_ECORRUPT &&
           strstr(err.text, "has no byte 180"),
       "truncated while it is read: %s", err.text);
    data_close(data);
    put("bad", "\xff\xff\xff\xff\0\0\0\0", 8);
    if (open_one(&data, "bad", DATA_U32, DATA_ROWS, 1, &err))
        abort();
    ok(data_row(data, 0, &(struct data_row){.tokens = row}, &err) == FSDP_EINVAL &&
           strstr(err.text, "4294967295"),
       "no negative tokens: %s", err.text);
    data_close(data);
}

int main(void)
{
    char command[64];

    if (!mkdtemp(dir))
        return 1;
    check_formats();
    check_folder();
    check_permutation();
    check_worlds();
    check_eval();
    check_bad();
    check_bad_rows();
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ok(system(command) == 0, "cleaned up");
    return tap_done();
}
