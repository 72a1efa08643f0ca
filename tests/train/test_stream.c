/* SPDX-License-Identifier: Apache-2.0 */
/* Packed data: gzip's own files and ours, several members, truncation and damage at every byte. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#if HAVE_ZSTD
#include <zstd.h>
#endif

#include "data/data.h"
#include "data/source/remote.h"
#include "data/source/stream.h"
#include "tap.h"

enum { MAX = 1 << 20 };
static char dir[] = "/tmp/test_stream_XXXXXX";
static struct fsdp_err err = FSDP_ERR_INIT;
static unsigned char plain[MAX], packed[MAX], back[MAX];

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

/* All of a file, read `step` bytes at a time: their number, or a status. */
static int64_t read_all(const char *path, size_t step)
{
    struct data_stream *s;
    size_t have = 0, got = 1;
    int rc;

    err.text[0] = 0;
    if ((rc = data_stream_open(&s, path, &err)))
        return rc;
    while (!rc && got > 0) {
        rc = data_stream_read(s, back + have, MAX - have < step ? MAX - have : step, &got, &err);
        have += rc ? 0 : got;
    }
    data_stream_close(s);
    return rc ? rc : (int64_t)have;
}

static void expect(const char *name, size_t nbytes)
{
    static const size_t steps[] = {1, 7, 4096, MAX};
    bool same = true;

    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        memset(back, 'x', nbytes + 1);
        const int64_t got = read_all(in_dir(name), steps[i]);
        same &= got == (int64_t)nbytes && !memcmp(back, plain, nbytes);
    }
    ok(same, "%s: %zu bytes %s", name, nbytes, err.text);
}

/* ---- packing -------------------------------------------------------------------------------- */

static size_t pack_gz(size_t nbytes)
{
    z_stream z = {0};
    if (deflateInit2(&z, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        abort();
    z.next_in = plain;
    z.avail_in = (uInt)nbytes;
    z.next_out = packed;
    z.avail_out = MAX;
    if (deflate(&z, Z_FINISH) != Z_STREAM_END)
        abort();
    deflateEnd(&z);
    return z.total_out;
}

#if HAVE_ZSTD
static size_t pack_zst(size_t nbytes)
{
    ZSTD_CCtx *c = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1);
    const size_t n = ZSTD_compress2(c, packed, MAX, plain, nbytes);
    ZSTD_freeCCtx(c);
    if (ZSTD_isError(n))
        abort();
    return n;
}
#endif

static void fill_plain(void)
{
    srand(3);
    for (int i = 0; i < MAX; i++)
        plain[i] = (unsigned char)(rand() % 50 ? 'a' + i / 3 % 26 : rand());
}

/* ---- what is packed well -------------------------------------------------------------------- */

static void check_whole(const char *name, size_t (*pack)(size_t))
{
    static const size_t sizes[] = {0, 1, 1000, 200000, MAX - 8192};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        put(name, packed, pack(sizes[i]));
        expect(name, sizes[i]);
    }
    /* Two members, or frames, of the same bytes. */
    const size_t half = 5000, n = pack(half);
    memcpy(packed + n, packed, n);
    memcpy(plain + half, plain, half);
    put(name, packed, 2 * n);
    expect(name, 2 * half);
    fill_plain();
}

static void check_gzip(void)
{
    char command[500];

    put("by_gzip", plain, 300000);
    snprintf(command, sizeof command, "gzip -k %s/by_gzip", dir);
    if (system(command) != 0) {
        ok(true, "# SKIP no gzip");
        return;
    }
    expect("by_gzip.gz", 300000);
    snprintf(
        command, sizeof command,
        "cd %s && head -c 100000 by_gzip | gzip -9 >two.gz && tail -c +100001 by_gzip | gzip -1 "
        ">>two.gz && head -c 1000 /dev/zero >>two.gz",
        dir);
    if (system(command) != 0)
        abort();
    expect("two.gz", 300000);
}

/* ---- what is not ---------------------------------------------------------------------------- */

static void check_damage(const char *name, size_t (*pack)(size_t), const char *unit)
{
    const size_t nbytes = 3000, n = pack(nbytes);
    unsigned char *copy = malloc(n + 10);
    bool all = true;
    int nsame = 0;

    memcpy(copy, packed, n);
    for (size_t at = 0; at < n; at++) {
        char holds[80];
        put(name, copy, at);
        snprintf(holds, sizeof holds, "truncated: it ends at byte %zu, inside of a %s", at, unit);
        all &= read_all(in_dir(name), 777) == FSDP_ECORRUPT && strstr(err.text, holds) &&
               strstr(err.text, name);
    }
    ok(all, "%s: truncated anywhere: %s", name, err.text);
    all = true;
    for (size_t at = 0; at < n; at++) {
        copy[at] ^= 0x10;
        put(name, copy, n);
        const int64_t got = read_all(in_dir(name), MAX);
        const bool same = got == (int64_t)nbytes && !memcmp(back, plain, nbytes);
        nsame += same; /* the header's time and the like */
        all &= same || (got == FSDP_ECORRUPT && strstr(err.text, name));
        copy[at] ^= 0x10;
    }
    ok(all && nsame < 12, "%s: a bit flipped anywhere is noticed (%d do not matter)", name, nsame);
    memcpy(copy + n, "junk", 4);
    put(name, copy, n + 4);
    ok(read_all(in_dir(name), MAX) == FSDP_ECORRUPT, "%s: %s", name, err.text);
    put(name, "plain words, and no archive at all", 34);
    ok(read_all(in_dir(name), MAX) == FSDP_ECORRUPT &&
           strstr(err.text, "damaged at or before byte"),
       "%s: %s", name, err.text);
    free(copy);
}

static void check_plain(void)
{
    int fds[2];
    const int keep = dup(0);

    put("plain", plain, 5000);
    expect("plain", 5000);
    ok(read_all(in_dir("nothere.gz"), 1) == FSDP_ENOTFOUND, "%s", err.text);
    if (pipe(fds) || write(fds[1], plain, 3000) != 3000 || close(fds[1]) || dup2(fds[0], 0) != 0)
        abort();
    ok(read_all("-", MAX) == 3000 && !memcmp(back, plain, 3000), "standard input");
    dup2(keep, 0);
    close(keep);
    close(fds[0]);
}

/* ---- rows ----------------------------------------------------------------------------------- */

static int open_data(struct data **out, const char *name, enum data_format format)
{
    struct data_opts opts = DATA_OPTS_INIT;
    const char *paths[] = {in_dir(name)};

    opts.npaths = 1;
    opts.paths = paths;
    opts.format = format;
    opts.seq_len = 9;
    opts.seed = 7;
    return data_open(out, &opts, &err);
}

static void compare(const char *name, const char *unpacked, enum data_format format)
{
    struct data *a = NULL, *b = NULL;
    int32_t x[10], y[10], labels[9], starts[9];

    if (!ok(!open_data(&a, name, format) && !open_data(&b, unpacked, format), "%s is opened %s",
            name, err.text))
        return;
    bool same = data_nrows(a) == data_nrows(b) && data_hash(a) == data_hash(b);
    for (uint64_t row = 0; row < 2 * data_nrows(b) && same; row++)
        same = !data_row(a, row, &(struct data_row){x, labels, starts, NULL}, &err) &&
               !data_row(b, row, &(struct data_row){y, labels, starts, NULL}, &err) &&
               !memcmp(x, y, sizeof x);
    ok(same, "%s: the rows of the unpacked files %s", name, err.text);
    data_close(a);
    data_close(b);
}

static void check_rows(void)
{
    static const char *const lines[] = {"{\"text\": \"the first\"}\n{\"text\": \"second\"}",
                                        "{\"text\": \"in another file\"}\n"};
    char command[500];
    struct data *data;

    snprintf(command, sizeof command, "mkdir %s/open %s/packed", dir, dir);
    if (system(command) != 0)
        abort();
    for (int i = 0; i < 2; i++) {
        char name[30];
        snprintf(name, sizeof name, "open/%d", i);
        put(name, lines[i], strlen(lines[i]));
        snprintf(name, sizeof name, "packed/%d", i);
        put(name, lines[i], strlen(lines[i]));
    }
    snprintf(command, sizeof command, "gzip %s/packed/*", dir);
    if (system(command) != 0)
        return;
    compare("packed", "open", DATA_JSONL);
    compare("packed", "open", DATA_TEXT);
    put("open/0", plain, 2000);
    put("ids", plain, 2000);
    snprintf(command, sizeof command, "gzip -k %s/ids", dir);
    if (system(command) != 0)
        abort();
    compare("ids.gz", "ids", DATA_U16);
    ok(open_data(&data, "ids.gz", DATA_LLMC) == FSDP_EUNSUPPORTED, "%s", err.text);
    if (truncate(in_dir("ids.gz"), 100) != 0)
        abort();
    ok(open_data(&data, "ids.gz", DATA_TEXT) == FSDP_ECORRUPT &&
           strstr(err.text, "ids.gz: truncated"),
       "%s", err.text);
    setenv("TMPDIR", in_dir("no/such"), 1);
    ok(open_data(&data, "packed", DATA_TEXT) == FSDP_ENOTFOUND && strstr(err.text, "(TMPDIR)"),
       "%s", err.text);
    unsetenv("TMPDIR");
}

/* ---- addresses ------------------------------------------------------------------------------ */

/* far://NAME is the file NAME of the test's folder; far://packed two of them. */
static int far_each(const char *address, data_remote_file_f *fn, void *ctx, struct fsdp_err *e)
{
    if (strcmp(address, "far://packed") != 0)
        return fn(ctx, address, e);
    FSDP_TRY(fn(ctx, "far://packed/0.gz", e));
    return fn(ctx, "far://packed/1.gz", e);
}

static int far_open(void **file, uint64_t *nbytes, const char *address, struct fsdp_err *e)
{
    struct stat st;
    FILE *in = fopen(in_dir(address + strlen("far://")), "rb");

    if (!in)
        return fsdp_err_set(e, FSDP_ENOTFOUND, "'%s': not there", address);
    fstat(fileno(in), &st);
    *nbytes = (uint64_t)st.st_size;
    *file = in;
    return FSDP_OK;
}

static int far_pread(void *file, void *dst, size_t nbytes, uint64_t offset, struct fsdp_err *e)
{
    if (pread(fileno(file), dst, nbytes, (off_t)offset) == (ssize_t)nbytes)
        return FSDP_OK;
    return fsdp_err_set(e, FSDP_ECORRUPT, "short");
}

static void far_close(void *file)
{
    fclose(file);
}

static void check_far(void)
{
    static const struct data_remote far = {far_each, far_open, far_pread, far_close};
    struct data_opts opts = DATA_OPTS_INIT;
    const char *paths[] = {"far://packed"}, *near[1];
    struct data *a = NULL, *b = NULL;
    int32_t x[10], y[10], labels[9], starts[9];
    static const char lines[] = "{\"text\": \"the first\"}\n{\"text\": \"second\"}";

    put("open/0", lines, strlen(lines));
    opts.npaths = 1;
    opts.format = DATA_JSONL;
    opts.seq_len = 9;
    opts.paths = paths;
    ok(data_open(&a, &opts, &err) == FSDP_EUNSUPPORTED, "%s", err.text);
    opts.remote = &far;
    if (!ok(!data_open(&a, &opts, &err), "far files are opened %s", err.text))
        return;
    near[0] = in_dir("open"); /* far_open has its memory, too */
    opts.paths = near;
    if (data_open(&b, &opts, &err))
        abort();
    bool same = data_nrows(a) == data_nrows(b);
    for (uint64_t row = 0; row < data_nrows(b) && same; row++)
        same = !data_row(a, row, &(struct data_row){x, labels, starts, NULL}, &err) &&
               !data_row(b, row, &(struct data_row){y, labels, starts, NULL}, &err) &&
               !memcmp(x, y, sizeof x);
    ok(same, "and have the rows of near ones: %d of %d", (int)data_nrows(a), (int)data_nrows(b));
    data_close(a);
    data_close(b);
    opts.paths = paths;
    paths[0] = "far://nothere";
    ok(data_open(&a, &opts, &err) == FSDP_ENOTFOUND, "%s", err.text);
    paths[0] = "far://a*";
    ok(data_open(&a, &opts, &err) == FSDP_EUNSUPPORTED && !strcmp(err.setting, "path"), "%s",
       err.text);
}

static void check_memory(void)
{
    struct data *data;
    const uint64_t before = fsdp_alloc_count();
    bool all = true;

    if (open_data(&data, "packed", DATA_JSONL)) {
        ok(true, "# SKIP no gzip");
        return;
    }
    const uint64_t count = fsdp_alloc_count() - before;
    data_close(data);
    for (uint64_t nth = 1; nth <= count; nth++) {
        fsdp_alloc_fail_at(nth);
        all &= open_data(&data, "packed", DATA_JSONL) == FSDP_ENOMEM;
    }
    fsdp_alloc_fail_at(0);
    ok(all && count > 10, "each of %d allocations may fail", (int)count);
}

int main(void)
{
    char command[64];

    if (!mkdtemp(dir))
        return 1;
    fill_plain();
    check_plain();
    check_whole("a.gz", pack_gz);
    check_gzip();
    check_damage("a.gz", pack_gz, "gzip member");
#if HAVE_ZSTD
    check_whole("a.zst", pack_zst);
    check_damage("a.zst", pack_zst, "zstd frame");
#endif
    check_rows();
    check_far();
    check_memory();
    snprintf(command, sizeof command, "rm -rf %s", dir);
    ok(system(command) == 0, "cleaned up");
    return tap_done();
}
