/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron-LM's indexed data sets, from a small writer of this test's own
 * (tests/interop/megatron.sh has files of the original): rows, documents, and damage.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/data.h"
#include "tap.h"

enum { T = 6, HEADER = 34 };
static char dir[] = "/tmp/test_megatron_XXXXXX";
static struct fsdp_err err = FSDP_ERR_INIT;

static const char *in_dir(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void put(const char *name, const void *bytes, size_t nbytes)
{
    FILE *out = fopen(in_dir(name), "wb");
    if (!out || fwrite(bytes, 1, nbytes, out) != nbytes || fclose(out) != 0)
        abort();
}

struct bytes {
    unsigned char at[2000];
    size_t nbytes;
};

static void add(struct bytes *b, uint64_t value, int nbytes)
{
    for (int i = 0; i < nbytes; i++)
        b->at[b->nbytes++] = (unsigned char)(value >> 8 * i);
}

/* Sequences: their letters, one text each. documents: their first sequences, and the end. */
struct sample {
    int width;
    const char *sequences[8];
    int documents[8]; /* ends with the number of sequences */
};

static void make(struct bytes *bin, struct bytes *idx, const struct sample *s)
{
    uint64_t nsequences = 0, ndocuments = 0, place = 0;

    *bin = *idx = (struct bytes){0};
    while (s->sequences[nsequences])
        nsequences++;
    while ((uint64_t)s->documents[ndocuments] < nsequences)
        ndocuments++;
    memcpy(idx->at, "MMIDIDX\0\0", 9);
    idx->nbytes = 9;
    add(idx, 1, 8);
    add(idx, s->width == 2 ? 8 : 4, 1);
    add(idx, nsequences, 8);
    add(idx, ndocuments + 1, 8);
    for (uint64_t i = 0; i < nsequences; i++)
        add(idx, strlen(s->sequences[i]), 4);
    for (uint64_t i = 0; i < nsequences; place += (size_t)s->width * strlen(s->sequences[i++]))
        add(idx, place, 8);
    for (uint64_t i = 0; i <= ndocuments; i++)
        add(idx, (uint64_t)s->documents[i], 8);
    for (uint64_t i = 0; i < nsequences; i++)
        for (const char *c = s->sequences[i]; *c; c++)
            add(bin, (unsigned char)*c, s->width);
}

static void put_sample(const char *name, const struct sample *s)
{
    struct bytes bin, idx;
    char full[40];

    make(&bin, &idx, s);
    snprintf(full, sizeof full, "%s.bin", name);
    put(full, bin.at, bin.nbytes);
    snprintf(full, sizeof full, "%s.idx", name);
    put(full, idx.at, idx.nbytes);
}

static int open_data(struct data **out, const char *name, bool documents)
{
    struct data_opts opts = DATA_OPTS_INIT;
    const char *paths[] = {in_dir(name)};

    opts.npaths = 1;
    opts.paths = paths;
    opts.format = DATA_MEGATRON;
    opts.shuffle = false;
    opts.seq_len = T;
    opts.vocab_size = 128;
    opts.documents = documents;
    err.text[0] = 0;
    return data_open(out, &opts, &err);
}

/* "abcdef|000333|bc-ef-": tokens, where the document begins, labels. */
static const char *row_text(struct data *data, uint64_t index)
{
    static char text[3 * (T + 1)];
    int32_t tokens[T + 1], labels[T] = {0}, starts[T] = {0};
    char *to = text;

    if (data_row(data, index, &(struct data_row){tokens, labels, starts, NULL}, &err))
        return err.text;
    for (int t = 0; t < T; t++)
        *to++ = (char)tokens[t];
    *to++ = '|';
    for (int t = 0; t < T; t++)
        *to++ = (char)('0' + starts[t]);
    *to++ = '|';
    for (int t = 0; t < T; t++)
        *to++ = (char)(labels[t] == DATA_IGNORE ? '-' : labels[t]);
    *to = 0;
    return text;
}

static void expect(const char *name, bool documents, const char *const *rows)
{
    struct data *data;
    uint64_t nrows = 0;

    if (!ok(!open_data(&data, name, documents), "%s is opened %s", name, err.text))
        return;
    for (; rows[nrows]; nrows++) {
        const char *got = row_text(data, nrows);
        ok(!strcmp(got, rows[nrows]), "%s row %d: %s", name, (int)nrows, got);
    }
    ok(data_nrows(data) == nrows, "%s: %d rows", name, (int)nrows);
    data_close(data);
}

static void check_rows(void)
{
    /* One document of two sequences, one that is empty, one of one, and two at the end. */
    static const struct sample wide = {
        4, {"ab", "cd", "", "efghi", "j", "klmn"}, {0, 2, 3, 3, 4, 5, 6}};
    static const struct sample other = {4, {"op", "qrstuvw"}, {0, 1, 2}};
    static const struct sample narrow = {2, {"abcd", "ef", "g", "hijklmnop"}, {0, 1, 2, 3, 4}};
    static const char *const rows[] = {"abcdef|000044|bcd-fg", "ghijkl|000344|hi--lm", NULL};
    static const char *const both[] = {"abcdef|000044|bcd-fg", "ghijkl|000344|hi--lm",
                                       "mnopqr|002244|n-p-rs", NULL};
    static const char *const small[] = {"abcdef|000044|bcd-f-", "ghijkl|011111|-ijklm", NULL};
    char command[200];
    struct data *data;
    int32_t tokens[T + 1];

    put_sample("wide", &wide);
    put_sample("narrow", &narrow);
    expect("wide.bin", true, rows);
    expect("wide.idx", true, rows);
    expect("wide", true, rows);
    expect("narrow", true, small);
    snprintf(command, sizeof command, "mkdir %s/both && cp %s/wide.* %s/both", dir, dir, dir);
    if (system(command) != 0)
        abort();
    put_sample("both/x", &other);
    expect("both", true, both);
    expect("both/*", true, both);
    unlink(in_dir("both/x.bin"));
    ok(open_data(&data, "both", true) == FSDP_ENOTFOUND &&
           strstr(err.text, "both/x.bin, which belongs to "),
       "a folder with an index alone: %s", err.text);
    if (!ok(!open_data(&data, "wide", false) && !data_has_labels(data), "a stream of tokens"))
        return;
    ok(!data_row(data, 1, &(struct data_row){.tokens = tokens}, &err) && tokens[0] == 'g' &&
           tokens[T] == 'm' && data_ntokens(data) == 14,
       "goes over all documents");
    data_close(data);
}

static struct bytes good_bin, good_idx;

static void refuse(const char *what, const struct bytes *bin, const struct bytes *idx, int status,
                   const char *holds)
{
    struct data *data;

    put("bad.bin", bin->at, bin->nbytes);
    put("bad.idx", idx->at, idx->nbytes);
    const int rc = open_data(&data, "bad", true);
    if (!ok(rc == status && strstr(err.text, "bad.") && strstr(err.text, holds), "%s: %s", what,
            err.text) &&
        !rc)
        data_close(data);
}

/* The index with a byte replaced. */
static void refuse_byte(const char *what, size_t at, int byte, int status, const char *holds)
{
    struct bytes idx = good_idx;
    idx.at[at] = (unsigned char)byte;
    refuse(what, &good_bin, &idx, status, holds);
}

static void check_damage(void)
{
    static const struct sample sample = {2, {"abcd", "ef", "g", "hijklmnop"}, {0, 1, 3, 4}};
    enum { LENGTHS = HEADER, PLACES = HEADER + 4 * 4, DOCUMENTS = HEADER + 12 * 4 };
    struct bytes bin, idx;
    struct data *data;
    bool all = true;

    make(&good_bin, &good_idx, &sample);
    bin = good_bin, idx = good_idx;
    refuse_byte("magic", 3, 'x', FSDP_EINVAL, "bad.idx: not an index of Megatron-LM");
    refuse_byte("version", 9, 2, FSDP_EUNSUPPORTED, "version 2");
    refuse_byte("type", 17, 5, FSDP_EUNSUPPORTED, "its ids are int64; uint16 and int32 are read");
    refuse_byte("no type", 17, 99, FSDP_ECORRUPT, "unknown type 99");
    refuse_byte("sequences", 18, 200, FSDP_ECORRUPT, "do not fit its");
    refuse_byte("sequences", 25, 0x80, FSDP_ECORRUPT, "do not fit its");
    refuse_byte("documents", 26, 0, FSDP_ECORRUPT, "do not fit its");
    refuse_byte("documents", 33, 0xff, FSDP_ECORRUPT, "do not fit its");
    refuse_byte("length", LENGTHS, 5, FSDP_ECORRUPT, "sequence 1 does not begin where");
    refuse_byte("length", LENGTHS + 3, 0x80, FSDP_ECORRUPT, "sequence 0 does not begin where");
    refuse_byte("last length", LENGTHS + 12, 10, FSDP_ECORRUPT,
                "bad.bin: truncated: " /* and the index's path */);
    refuse_byte("place", PLACES + 8, 9, FSDP_ECORRUPT, "sequence 1 does not begin where");
    refuse_byte("first document", DOCUMENTS, 1, FSDP_ECORRUPT, "document 0 begins at sequence 1");
    refuse_byte("order of documents", DOCUMENTS + 8, 4, FSDP_ECORRUPT,
                "document 2 begins at sequence 3 of 4, and the one before at 4");
    refuse_byte("document", DOCUMENTS + 8, 5, FSDP_ECORRUPT, "begins at sequence 5 of 4");
    refuse_byte("last document", DOCUMENTS + 24, 3, FSDP_ECORRUPT, "end at sequence 3 of 4");
    for (size_t nbytes = 0; nbytes < good_idx.nbytes; nbytes++) {
        idx.nbytes = nbytes;
        put("bad.bin", bin.at, bin.nbytes);
        put("bad.idx", idx.at, idx.nbytes);
        all &= open_data(&data, "bad", true) == FSDP_ECORRUPT;
    }
    ok(all, "an index that is truncated anywhere is refused: %s", err.text);
    idx = good_idx;
    add(&idx, 0, 4);
    refuse("modes", &good_bin, &idx, FSDP_EUNSUPPORTED, "multimodal");
    add(&idx, 0, 1);
    refuse("too long an index", &good_bin, &idx, FSDP_ECORRUPT, "5 bytes are left over");
    bin.nbytes -= 2;
    refuse("truncated ids", &bin, &good_idx, FSDP_ECORRUPT, "bad.bin: truncated");
    bin.nbytes += 4;
    refuse("too many ids", &bin, &good_idx, FSDP_ECORRUPT, "bad.bin: too long");
    unlink(in_dir("bad.idx"));
    ok(open_data(&data, "bad.bin", true) == FSDP_ENOTFOUND && strstr(err.text, "bad.idx"),
       "no index: %s", err.text);
    put("bad.idx", good_idx.at, good_idx.nbytes);
    unlink(in_dir("bad.bin"));
    ok(open_data(&data, "bad.idx", true) == FSDP_ENOTFOUND && strstr(err.text, "bad.bin"),
       "no ids: %s", err.text);
    ok(open_data(&data, "bad", true) == FSDP_ENOTFOUND, "neither: %s", err.text);
}

int main(void)
{
    char command[64];

    if (!mkdtemp(dir))
        return 1;
    check_rows();
    check_damage();
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ok(system(command) == 0, "cleaned up");
    return tap_done();
}
