/* SPDX-License-Identifier: Apache-2.0 */
/* What every store must do, in one suite that is run on each: a new backend is a row of `stores`.
 * Then what the dispatcher adds, which is the same for all. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "../../ckpt/util/crc.h"
#include "../../ckpt/store/store.h"
#include "../../ckpt/util/workers.h"
#include "remove_all.h"
#include "tap.h"

static struct fsdp_err err;

struct store {
    const struct ckpt_store_ops *ops;
    const char *base; /* an empty folder */
};

static const char *at(const struct store *s, const char *name)
{
    static char paths[16][600];
    static int turn;
    turn = (turn + 1) % 16;
    snprintf(paths[turn], sizeof paths[0], "%s/%s", s->base, name);
    return paths[turn];
}

static uint64_t state = 1;

static size_t random_below(size_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return n ? (size_t)(state >> 20) % n : 0;
}

enum { BIG = (9 << 20) + 777 };
static unsigned char *pattern;

/* ---- files ----------------------------------------------------------------------------------- */

static int write_in_pieces(const struct store *s, const char *path, size_t nbytes)
{
    static const size_t pieces[] = {1, 4095, 4097, 100000, 1 << 20, (1 << 20) + 5, (5 << 20) + 3};
    struct ckpt_store_file *file = NULL;
    FSDP_TRY(ckpt_store_open(&file, s->ops, path, CKPT_STORE_CREATE, &err));
    int rc = FSDP_OK;
    for (size_t pos = 0, i = 0; rc == FSDP_OK && pos < nbytes; i++) {
        size_t part = pieces[i % 7] < nbytes - pos ? pieces[i % 7] : nbytes - pos;
        rc = ckpt_store_write(file, pattern + pos, part, &err);
        pos += part;
    }
    if (rc == FSDP_OK)
        rc = ckpt_store_sync(file, &err);
    int rc_close = ckpt_store_close(file, rc ? NULL : &err);
    return rc ? rc : rc_close;
}

static bool holds(const struct store *s, const char *path, const unsigned char *want, size_t nbytes)
{
    struct ckpt_store_file *file = NULL;
    struct ckpt_store_stat st;
    unsigned char *got = malloc(nbytes + 1);
    bool same = !ckpt_store_stat(&st, s->ops, path, &err) && st.nbytes == nbytes && !st.is_folder &&
                !ckpt_store_open(&file, s->ops, path, CKPT_STORE_READ, &err) &&
                !ckpt_store_pread(file, got, nbytes, 0, &err) && !memcmp(got, want, nbytes);
    ckpt_store_close(file, NULL);
    free(got);
    return same;
}

struct reading {
    struct ckpt_store_file *file;
    size_t nbytes;
};

/* Any range, to any address: large transfers may take other ways than small ones. */
static int read_ranges(struct ckpt_workers *workers, int index, struct fsdp_err *error)
{
    struct reading *r = workers->ctx;
    unsigned char *buffer = malloc(r->nbytes + 64);
    int rc = FSDP_OK;
    for (int i = 0; rc == FSDP_OK && i < 40; i++) {
        size_t pos = (size_t)(i * 7919 + index * 104729) * 37 % r->nbytes;
        size_t most = i % 4 ? 70000 : r->nbytes, left = r->nbytes - pos;
        size_t nbytes = left < most ? left : most, skew = (size_t)i % 2 * (size_t)(i % 61);
        if (i % 8 == 0)
            pos = pos / 4096 * 4096;
        rc = ckpt_store_pread(r->file, buffer + skew, nbytes, pos, error);
        if (rc == FSDP_OK && memcmp(buffer + skew, pattern + pos, nbytes))
            rc = fsdp_err_set(error, FSDP_EINTERNAL, "%zu bytes from %zu differ", nbytes, pos);
    }
    free(buffer);
    return rc;
}

static void test_files(const struct store *s)
{
    struct ckpt_store_file *file = NULL;
    const char *path = at(s, "big");
    ok(ckpt_store_open(&file, s->ops, path, CKPT_STORE_READ, &err) == FSDP_ENOTFOUND,
       "a file that is not there: %s", err.text);
    ok(write_in_pieces(s, path, BIG) == FSDP_OK, "a file is appended to in pieces of all sizes");
    ok(holds(s, path, pattern, BIG), "and holds them");
    ok(ckpt_store_open(&file, s->ops, path, CKPT_STORE_CREATE, &err) == FSDP_EEXIST,
       "a name is not taken twice: %s", err.text);
    ok(holds(s, path, pattern, BIG), "which leaves the file as it is");

    int rc = ckpt_store_open(&file, s->ops, path, CKPT_STORE_READ, &err);
    struct reading reading = {file, BIG};
    if (rc == FSDP_OK)
        rc = ckpt_workers_run(3, read_ranges, &reading, &err);
    ok(rc == FSDP_OK, "any range is read to any address, by three threads: %s", rc ? err.text : "");
    if (!file)
        return; /* the store is gone, which was said */
    unsigned char few[8];
    ok(ckpt_store_pread(file, few, 8, BIG - 4, &err) == FSDP_ECORRUPT, "beyond the end: %s",
       err.text);
    ok(ckpt_store_pread(file, few, 1, UINT64_MAX - 1, &err) == FSDP_ECORRUPT, "far beyond it: %s",
       err.text);
    unsigned char *much = malloc(2 << 20);
    ok(ckpt_store_pread(file, much, 2 << 20, BIG - (1 << 20), &err) == FSDP_ECORRUPT,
       "much of it beyond: %s", err.text);
    free(much);
    ok(ckpt_store_pread(file, few, 0, 0, &err) == FSDP_OK, "no bytes are always there");
    ckpt_store_close(file, NULL);
    ok(write_in_pieces(s, at(s, "empty"), 0) == FSDP_OK && holds(s, at(s, "empty"), pattern, 0),
       "a file may be empty");
}

struct writing {
    struct ckpt_store_file *file;
    size_t block;
    atomic_size_t next;
};

static int write_blocks(struct ckpt_workers *workers, int index, struct fsdp_err *error)
{
    struct writing *w = workers->ctx;
    (void)index;
    for (;;) {
        size_t pos = atomic_fetch_add(&w->next, 1) * w->block;
        if (pos >= BIG)
            return FSDP_OK;
        size_t nbytes = w->block < BIG - pos ? w->block : BIG - pos;
        FSDP_TRY(ckpt_store_pwrite(w->file, pattern + pos, nbytes, pos, error));
    }
}

static void test_pwrite(const struct store *s)
{
    static const size_t blocks[] = {4096, 65537, 1 << 20, (1 << 20) + 4096, (3 << 20) + 11};
    bool good = true;
    if (!s->ops->pwrite) {
        tap_skip("%s writes in order only", s->ops->name);
        return;
    }
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        struct writing w = {.block = blocks[i]};
        char name[32];
        snprintf(name, sizeof name, "pwrite-%zu", i);
        int rc = ckpt_store_open(&w.file, s->ops, at(s, name), CKPT_STORE_CREATE, &err);
        if (rc == FSDP_OK)
            rc = ckpt_workers_run(3, write_blocks, &w, &err);
        if (rc == FSDP_OK)
            rc = ckpt_store_sync(w.file, &err);
        ckpt_store_close(w.file, NULL);
        if (rc || !holds(s, at(s, name), pattern, BIG)) {
            diag("blocks of %zu: %s", blocks[i], err.text);
            good = false;
        }
    }
    ok(good, "three threads write blocks of any size");
}

static void test_resume(const struct store *s)
{
    struct ckpt_store_file *file = NULL, *other = NULL;
    const char *path = at(s, "resumed");
    int rc = ckpt_store_open(&file, s->ops, path, CKPT_STORE_RESUME, &err);
    if (rc == FSDP_EUNSUPPORTED) {
        tap_skip("%s does not continue with files", s->ops->name);
        return;
    }
    ok(rc == FSDP_OK && !ckpt_store_pwrite(file, pattern, 3 << 20, 0, &err),
       "a file to resume is begun");
    if (!file)
        return;
    ok(ckpt_store_open(&other, s->ops, path, CKPT_STORE_RESUME, &err) == FSDP_EEXIST,
       "by one writer at a time: %s", err.text);
    unsigned char *got = malloc(3 << 20);
    ok(!ckpt_store_pread(file, got, 3 << 20, 0, &err) && !memcmp(got, pattern, 3 << 20),
       "it reads what it wrote");
    free(got);
    ckpt_store_close(file, NULL);
    rc = ckpt_store_open(&file, s->ops, path, CKPT_STORE_RESUME, &err);
    if (rc == FSDP_OK)
        rc = ckpt_store_pwrite(file, pattern + (3 << 20), BIG - (3 << 20), 3 << 20, &err);
    int rc_close = ckpt_store_close(file, &err);
    ok(rc == FSDP_OK && rc_close == FSDP_OK && holds(s, path, pattern, BIG), "and is resumed");
}

/* ---- names ----------------------------------------------------------------------------------- */

static void put(const struct store *s, const char *name, const char *text)
{
    if (ckpt_store_put(s->ops, at(s, name), text, strlen(text), false, &err))
        diag("%s", err.text);
}

static bool is(const struct store *s, const char *name, const char *text)
{
    return holds(s, at(s, name), (const unsigned char *)text, strlen(text));
}

static bool is_absent(const struct store *s, const char *name)
{
    struct ckpt_store_stat st;
    return ckpt_store_stat(&st, s->ops, at(s, name), &err) == FSDP_ENOTFOUND;
}

/* An object store's folder is there while something is in it. */
static void test_flat_folders(const struct store *s)
{
    struct ckpt_store_stat st;
    struct ckpt_store_file *file = NULL;
    ok(ckpt_store_mkdir(s->ops, at(s, "folder"), &err) == FSDP_OK && is_absent(s, "folder"),
       "a folder needs no making");
    put(s, "folder/file", "one");
    ok(!ckpt_store_stat(&st, s->ops, at(s, "folder"), &err) && st.is_folder && is_absent(s, "fold"),
       "it is there with the first file in it");
    ok(ckpt_store_replace(s->ops, at(s, "folder/file"), "three", 5, &err) == FSDP_OK &&
           is(s, "folder/file", "three"),
       "a file is replaced");
    int rc = ckpt_store_open(&file, s->ops, at(s, "folder/unwanted"), CKPT_STORE_CREATE, &err);
    if (rc == FSDP_OK)
        rc = ckpt_store_write(file, pattern, BIG, &err);
    ckpt_store_abandon(file);
    ok(rc == FSDP_OK && is_absent(s, "folder/unwanted"), "what is abandoned never appears");
    ok(ckpt_store_remove(s->ops, at(s, "folder/file"), &err) == FSDP_OK && is_absent(s, "folder"),
       "it goes with the last");
    ok(ckpt_store_rename(s->ops, at(s, "big"), at(s, "other"), false, &err) == FSDP_EUNSUPPORTED,
       "nothing is renamed: %s", err.text);
    uint64_t nuploads = 1;
    ok(ckpt_store_sweep(&nuploads, s->ops, s->base, INT64_MAX, false, &err) == FSDP_OK && !nuploads,
       "no upload is left open");
}

static void test_folders(const struct store *s)
{
    struct ckpt_store_stat st;
    struct ckpt_names names;
    if (!s->ops->object_store) {
        ok(ckpt_store_mkdir(s->ops, at(s, "folder"), &err) == FSDP_OK &&
               !ckpt_store_stat(&st, s->ops, at(s, "folder"), &err) && st.is_folder,
           "a folder");
        ok(ckpt_store_mkdir(s->ops, at(s, "folder"), &err) == FSDP_EEXIST, "is made once: %s",
           err.text);
    }
    char name[32];
    for (int i = 0; i < 150; i++) {
        snprintf(name, sizeof name, "folder/entry-%03d", i);
        put(s, name, name);
    }
    ckpt_store_mkdir(s->ops, at(s, "folder/below"), &err);
    put(s, "folder/below/file", "deep");
    int rc = ckpt_store_names(&names, s->ops, at(s, "folder"), &err);
    ok(rc == FSDP_OK && names.nnames == 151 && !strcmp(names.names[0], "below") &&
           !strcmp(names.names[150], "entry-149"),
       "lists all that is in it, and nothing else");
    ckpt_names_free(&names);
    ok(ckpt_store_names(&names, s->ops, at(s, "nowhere"), &err) == FSDP_ENOTFOUND,
       "no list of a folder that is not there: %s", err.text);
    ok(ckpt_store_remove(s->ops, at(s, "folder"), &err) != FSDP_OK &&
           is(s, "folder/entry-000", "folder/entry-000"),
       "a folder that is not empty is not removed: %s", err.text);
    ok(ckpt_store_remove(s->ops, at(s, "folder/entry-000"), &err) == FSDP_OK &&
           is_absent(s, "folder/entry-000"),
       "a file is removed");
    ok(ckpt_store_remove(s->ops, at(s, "folder/entry-000"), &err) == FSDP_ENOTFOUND, "once: %s",
       err.text);
    ok(remove_all(s->ops, at(s, "folder"), &err) == FSDP_OK && is_absent(s, "folder"),
       "a folder with all that is in it");
    ok(ckpt_store_mkdirs(s->ops, at(s, "a/b/c"), &err) == FSDP_OK &&
           ckpt_store_mkdirs(s->ops, at(s, "a/b/c"), &err) == FSDP_OK,
       "folders with their parents");
    ok(ckpt_store_sync_folder(s->ops, at(s, "a/b"), &err) == FSDP_OK, "are made durable");
}

static void test_rename(const struct store *s)
{
    put(s, "from", "one");
    put(s, "to", "two");
    ok(ckpt_store_rename(s->ops, at(s, "from"), at(s, "to"), false, &err) == FSDP_EEXIST &&
           is(s, "from", "one") && is(s, "to", "two"),
       "a rename that must not replace leaves both: %s", err.text);
    ok(ckpt_store_rename(s->ops, at(s, "from"), at(s, "fresh"), false, &err) == FSDP_OK &&
           is_absent(s, "from") && is(s, "fresh", "one"),
       "but takes a free name");
    ok(ckpt_store_rename(s->ops, at(s, "fresh"), at(s, "to"), true, &err) == FSDP_OK &&
           is_absent(s, "fresh") && is(s, "to", "one"),
       "one that may replace does");
    ok(ckpt_store_rename(s->ops, at(s, "nobody"), at(s, "x"), true, &err) == FSDP_ENOTFOUND,
       "nothing cannot be renamed: %s", err.text);

    ckpt_store_mkdir(s->ops, at(s, "full"), &err);
    put(s, "full/file", "kept");
    ckpt_store_mkdir(s->ops, at(s, "new"), &err);
    put(s, "new/file", "new");
    ok(ckpt_store_rename(s->ops, at(s, "new"), at(s, "full"), false, &err) == FSDP_EEXIST &&
           is(s, "full/file", "kept") && is(s, "new/file", "new"),
       "a folder does not replace a full one: %s", err.text);
    ok(ckpt_store_rename(s->ops, at(s, "new"), at(s, "published"), false, &err) == FSDP_OK &&
           is_absent(s, "new") && is(s, "published/file", "new"),
       "it moves as a whole");
    ok(ckpt_store_rename(s->ops, at(s, "full"), at(s, "to"), false, &err) == FSDP_EEXIST &&
           is(s, "to", "one"),
       "nor a file: %s", err.text);
    int rc = ckpt_store_exchange(s->ops, at(s, "full"), at(s, "published"), &err);
    if (rc == FSDP_EUNSUPPORTED)
        tap_skip("%s does not exchange names: %s", s->ops->name, err.text);
    else
        ok(rc == FSDP_OK && is(s, "full/file", "new") && is(s, "published/file", "kept"),
           "two folders exchange their names");
    uint64_t space = 0;
    ok(ckpt_store_space(&space, s->ops, s->base, &err) == FSDP_OK && space > 0,
       "there is room, or no telling");
}

/* Many publish under one name: one wins, and what is there is the winner's. */
struct race {
    const struct store *s;
    atomic_int nwon, nlost;
};

static int race_run(struct ckpt_workers *workers, int index, struct fsdp_err *error)
{
    struct race *r = workers->ctx;
    char mine[512], name[512];
    snprintf(mine, sizeof mine, "%s/racer-%d", r->s->base, index);
    snprintf(name, sizeof name, "%s/prize", r->s->base);
    int rc;
    if (r->s->ops->object_store) {
        rc = ckpt_store_put(r->s->ops, name, mine, strlen(mine), true, error);
    } else {
        FSDP_TRY(ckpt_store_put(r->s->ops, mine, mine, strlen(mine), false, error));
        rc = ckpt_store_rename(r->s->ops, mine, name, false, error);
    }
    atomic_fetch_add(rc == FSDP_OK ? &r->nwon : &r->nlost, 1);
    return rc == FSDP_EEXIST ? FSDP_OK : rc;
}

static void test_race(const struct store *s)
{
    struct race race = {.s = s};
    int rc = ckpt_workers_run(12, race_run, &race, &err);
    ok(rc == FSDP_OK && race.nwon == 1 && race.nlost == 11, "of 12 racers for a name 1 wins");
}

/* ---- the dispatcher -------------------------------------------------------------------------- */

/* Each of the calls of a small life of a file fails in turn, with the status of what struck it. */
static int live(const struct store *s, struct fsdp_err *error)
{
    struct ckpt_store_file *file = NULL;
    struct ckpt_store_stat st;
    char byte;
    FSDP_TRY(ckpt_store_mkdir(s->ops, at(s, "life"), error));
    FSDP_TRY(ckpt_store_open(&file, s->ops, at(s, "life/file"), CKPT_STORE_CREATE, error));
    int rc = ckpt_store_write(file, "text", 4, error);
    if (rc && ckpt_store_sync(file, NULL) != FSDP_EIO)
        rc = FSDP_EINTERNAL; /* a file that failed once takes no more */
    if (rc == FSDP_OK)
        rc = ckpt_store_sync(file, error);
    int rc_close = ckpt_store_close(file, rc ? NULL : error);
    FSDP_TRY(rc ? rc : rc_close);
    FSDP_TRY(ckpt_store_stat(&st, s->ops, at(s, "life/file"), error));
    FSDP_TRY(ckpt_store_open(&file, s->ops, at(s, "life/file"), CKPT_STORE_READ, error));
    rc = ckpt_store_pread(file, &byte, 1, 0, error);
    ckpt_store_close(file, NULL);
    FSDP_TRY(rc);
    if (s->ops->object_store)
        return remove_all(s->ops, at(s, "life"), error);
    FSDP_TRY(ckpt_store_rename(s->ops, at(s, "life"), at(s, "after"), false, error));
    return remove_all(s->ops, at(s, "after"), error);
}

static void test_faults(const struct store *s)
{
    static const enum ckpt_store_fault faults[] = {CKPT_FAULT_FAIL, CKPT_FAULT_NOSPACE};
    static const int statuses[] = {FSDP_EIO, FSDP_ENOSPC};
    uint64_t before = ckpt_store_calls();
    bool good = live(s, &err) == FSDP_OK;
    int ncalls = (int)(ckpt_store_calls() - before), nfailed = 0;
    for (int kind = 0; kind < 2; kind++) {
        for (int nth = 1; nth <= ncalls; nth++) {
            struct fsdp_err why = FSDP_ERR_INIT;
            ckpt_store_fault_at((uint64_t)nth, faults[kind]);
            int rc = live(s, &why);
            ckpt_store_fault_at(0, CKPT_FAULT_NONE);
            nfailed += rc != FSDP_OK;
            /* Closing what was read does not matter. */
            if (rc && (rc != statuses[kind] || !strstr(why.text, s->base))) {
                diag("call %d: %d %s", nth, rc, why.text);
                good = false;
            }
            remove_all(s->ops, at(s, "life"), NULL);
            remove_all(s->ops, at(s, "after"), NULL);
        }
    }
    ok(good && nfailed == 2 * (ncalls - 1),
       "each of %d calls fails with the status and the name of what struck it", ncalls);
}

static int count_moved(void *ctx, uint64_t nbytes)
{
    *(uint64_t *)ctx += nbytes;
    return 0;
}

static int stop_at_once(void *ctx, uint64_t nbytes)
{
    (void)ctx, (void)nbytes;
    return 1;
}

/* What a store copies itself. */
static void test_copy(const struct store *s)
{
    struct ckpt_store_copied copied;
    uint64_t moved = 0;
    char from[600], to[600];
    snprintf(from, sizeof from, "%s", at(s, "copy from here"));
    snprintf(to, sizeof to, "%s", at(s, "copy to %there"));
    if (!s->ops->copy) {
        ok(ckpt_store_copy_within(&copied, s->ops, from, to, 1, NULL, NULL, &err) ==
               FSDP_EUNSUPPORTED,
           "a store that does not copy says so: %s", err.text);
        return;
    }
    int rc = write_in_pieces(s, from, BIG);
    if (rc == FSDP_OK)
        rc = ckpt_store_copy_within(&copied, s->ops, from, to, BIG, count_moved, &moved, &err);
    ok(rc == FSDP_OK && moved == BIG && holds(s, to, pattern, BIG) &&
           (!copied.has_crc || copied.crc32c == ckpt_crc32c(0, pattern, BIG)),
       "a file is copied by the store: %s", err.text);
    ok(ckpt_store_copy_within(&copied, s->ops, to, from, BIG, NULL, NULL, &err) ==
           FSDP_EUNSUPPORTED,
       "not from a name that stores read differently: %s", err.text);
    snprintf(to, sizeof to, "%s", at(s, "another"));
    ok(ckpt_store_copy_within(&copied, s->ops, from, to, BIG - 1, NULL, NULL, &err) ==
           FSDP_ECORRUPT,
       "not if it has another size: %s", err.text);
    ok(ckpt_store_copy_within(&copied, s->ops, from, to, BIG, stop_at_once, NULL, &err) ==
           FSDP_ECANCELED,
       "not if it is stopped: %s", err.text);
    struct ckpt_store_stat st;
    uint64_t nuploads = 1;
    ok(ckpt_store_stat(&st, s->ops, to, &err) == FSDP_ENOTFOUND &&
           ckpt_store_sweep(&nuploads, s->ops, s->base, INT64_MAX, true, &err) == FSDP_OK &&
           !nuploads,
       "and nothing is left of those");
}

/* A disk that fills up while a file is written: said as such, and with the file goes its share. */
static void test_full_disk(const struct store *s)
{
    char base[512];
    snprintf(base, sizeof base, "%s/small", s->base);
    const struct store small = {s->ops, base};
    if (s->ops != &ckpt_store_posix) /* others have no end that could be near */
        return;
    bool made = ckpt_store_mkdirs(s->ops, base, &err) == FSDP_OK;
    if (!made || mount("store-test", base, "tmpfs", 0, "size=1m")) {
        tap_skip("full disk: no tmpfs can be mounted here: %s", made ? strerror(errno) : err.text);
        return;
    }
    int rc = write_in_pieces(&small, at(&small, "large"), BIG);
    ok(rc == FSDP_ENOSPC && strstr(err.text, "large"), "a full disk: %s", err.text);
    ok(ckpt_store_remove(s->ops, at(&small, "large"), &err) == FSDP_OK &&
           write_in_pieces(&small, at(&small, "fits"), 500000) == FSDP_OK &&
           holds(&small, at(&small, "fits"), pattern, 500000),
       "without the file there is room again: %s", err.text);
    umount(base);
}

static void test_refusals(void)
{
    const struct ckpt_store_ops *ops;
    ok(ckpt_store_of(&ops, "gopher://bucket/x", &err) == FSDP_EUNSUPPORTED,
       "a store that no build has: %s", err.text);
#if !HAVE_CURL
    ok(ckpt_store_of(&ops, "s3://bucket/x", &err) == FSDP_EUNSUPPORTED &&
           strstr(err.text, "libcurl"),
       "a store that this build lacks: %s", err.text);
#endif
    ok(ckpt_store_of(&ops, "a/b://c", &err) == FSDP_OK && ops == &ckpt_store_posix,
       "a path is a path");
}

int main(void)
{
    char base[512];
    const char *tmp = getenv("TEST_TMP");
    snprintf(base, sizeof base, "%s/store", tmp ? tmp : ".");
    const char *url = getenv("S3_TEST_URL"); /* set by `make check-s3` */
    char s3_base[512];
    snprintf(s3_base, sizeof s3_base, "%s/store-%d", url ? url : "", (int)getpid());
    struct store stores[2] = {{&ckpt_store_posix, base}};
    stores[1].base = s3_base;
    if (url && ckpt_store_of(&stores[1].ops, s3_base, &err))
        url = NULL;
    ok(url || !getenv("S3_TEST_URL"), "the store that is asked for is there: %s", err.text);
    if (url)
        ckpt_store_memory(stores[1].ops, 16 << 20); /* small parts: BIG has several */

    pattern = malloc(BIG);
    for (size_t i = 0; i < BIG; i++)
        pattern[i] = (unsigned char)random_below(256);
    test_refusals();
    for (size_t i = 0; i < (url ? 2 : 1); i++) {
        const struct store *s = &stores[i];
        ok(ckpt_store_mkdirs(s->ops, s->base, &err) == FSDP_OK, "store %s", s->ops->name);
        test_files(s);
        test_pwrite(s);
        test_resume(s);
        test_folders(s);
        if (s->ops->object_store)
            test_flat_folders(s);
        else
            test_rename(s);
        test_race(s);
        test_copy(s);
        test_faults(s);
        test_full_disk(s);
        ok(remove_all(s->ops, s->base, &err) == FSDP_OK, "all is removed");
    }
    free(pattern);
    return tap_done();
}
