/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call to the store and every allocation of a reshard or merge is struck once, for every
 * format that is read or written: it fails, memory is short, the process is killed. Whatever
 * happens, the output is there whole or not at all, and the same command completes it.
 *
 * In memory where there is a tmpfs, for thousands of runs sync their files.
 * run: long
 * run: timeout=900
 */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_state.h"

enum { SEED = 33, MOST = 6000 };
static char root[300], faulty[400];

struct conversion {
    const char *name;
    const char *from, *expected; /* names in root */
    enum ckpt_output output;
    enum ckpt_compress compress;
    uint64_t max_shard_nbytes;
};

/* A later one reads what an earlier one writes. */
static const struct conversion conversions[] = {
    {"native", "real/step-00000007", "native", CKPT_OUTPUT_NATIVE, CKPT_COMPRESS_NONE, 0},
    {"compressing", "native", "zstd", CKPT_OUTPUT_NATIVE, CKPT_COMPRESS_ZSTD, 0},
    {"decompressing", "zstd", "unzstd", CKPT_OUTPUT_NATIVE, CKPT_COMPRESS_NONE, 0},
    {"to torch's", "native", "dcp", CKPT_OUTPUT_DCP, CKPT_COMPRESS_NONE, 0},
    {"from torch's", "dcp", "undcp", CKPT_OUTPUT_NATIVE, CKPT_COMPRESS_NONE, 0},
    {"to torch's Hugging Face shards", "native", "hf", CKPT_OUTPUT_HF_DCP, CKPT_COMPRESS_NONE, 0},
    {"from them", "hf", "unhf", CKPT_OUTPUT_NATIVE, CKPT_COMPRESS_NONE, 0},
    {"merging torch's", "dcp", "merged", CKPT_OUTPUT_WEIGHTS, CKPT_COMPRESS_NONE, 9000},
};

static void in_root(char path[700], const char *name)
{
    snprintf(path, 700, "%s/%s", root, name);
}

static int convert(const struct conversion *conversion, const char *out, struct fsdp_err *err)
{
    struct ckpt_reshard_args args = CKPT_RESHARD_ARGS_INIT;
    struct ckpt *c = NULL;
    char from[700];
    in_root(from, conversion->from);
    args.output = conversion->output;
    args.compress = conversion->compress;
    args.max_shard_nbytes = conversion->max_shard_nbytes;
    args.all = true;
    args.out = out;
    args.shard_size = 2;
    args.replicate_size = 1;
    args.nthreads = 1;
    int rc = ckpt_open(&c, from, err);
    if (rc == FSDP_OK)
        rc = ckpt_reshard(NULL, c, &args, err);
    ckpt_close(c);
    return rc;
}

/* Two folders hold the same. */
static bool same_tree(const char *a, const char *b)
{
    struct ckpt_names x = {0}, y = {0};
    bool same = !ckpt_store_names(&x, &ckpt_store_posix, a, NULL) &&
                !ckpt_store_names(&y, &ckpt_store_posix, b, NULL) && x.nnames == y.nnames;
    for (int i = 0; same && i < x.nnames; i++) {
        char pa[1000], pb[1000];
        struct stat st;
        snprintf(pa, sizeof pa, "%s/%s", a, x.names[i]);
        snprintf(pb, sizeof pb, "%s/%s", b, x.names[i]);
        same = !stat(pa, &st) && (S_ISDIR(st.st_mode) ? same_tree(pa, pb) : same_bytes(pa, pb));
        if (!same)
            diag("'%s' is not '%s'", pb, pa);
    }
    if (x.nnames != y.nnames)
        diag("'%s' holds %d entries, '%s' %d", a, x.nnames, b, y.nnames);
    ckpt_names_free(&x);
    ckpt_names_free(&y);
    return same;
}

/* The same call gives the same output, and leaves nothing next to it. */
static bool completes(const struct conversion *conversion, const char *expected)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    int rc = convert(conversion, faulty, &err);
    bool good = (rc == FSDP_OK || rc == FSDP_EEXIST) && same_tree(expected, faulty) &&
                count_entries(root, "faulty.") == 0;
    if (!good)
        diag("the next run: %s", err.text);
    return good;
}

/* ---- one strike ------------------------------------------------------------------------------ */

enum weapon { FAILURE, NO_MEMORY, KILL };

/* Runs with the nth call (or allocation) struck. *over: there were not so many. */
static int strike(bool *over, const struct conversion *conversion, enum weapon weapon, uint64_t nth)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    uint64_t before = weapon == NO_MEMORY ? fsdp_alloc_count() : ckpt_store_calls();
    if (weapon == NO_MEMORY)
        fsdp_alloc_fail_at(nth);
    else
        ckpt_store_fault_at(nth, weapon == KILL ? CKPT_FAULT_KILL
                                 : nth % 2      ? CKPT_FAULT_FAIL
                                                : CKPT_FAULT_NOSPACE);
    int rc = convert(conversion, faulty, &err);
    *over = (weapon == NO_MEMORY ? fsdp_alloc_count() : ckpt_store_calls()) - before < nth;
    fsdp_alloc_fail_at(0);
    ckpt_store_fault_at(0, CKPT_FAULT_NONE);
    if (rc && rc != FSDP_ENOMEM && weapon == NO_MEMORY)
        diag("without memory: %s", err.text);
    if (rc && !err.text[0])
        diag("a failure without a word");
    return rc && !err.text[0] ? FSDP_EINTERNAL : rc;
}

/* The same in a process that it ends. */
static bool is_killed(bool *over, const struct conversion *conversion, uint64_t nth)
{
    int status;
    pid_t pid = fork();
    if (pid == 0)
        _exit(strike(over, conversion, KILL, nth) || !*over);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return false;
    *over = WIFEXITED(status);
    return *over ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL;
}

/* Is all as it must be after the nth strike, and after the next run? */
static bool survives(bool *over, const struct conversion *conversion, const char *expected,
                     enum weapon weapon, uint64_t nth)
{
    int rc = FSDP_OK;
    bool good = true;
    if (weapon == KILL)
        good = is_killed(over, conversion, nth);
    else
        rc = strike(over, conversion, weapon, nth);
    if (weapon == NO_MEMORY) /* only the clearing up, after the last word, does without */
        good = rc == FSDP_OK || rc == FSDP_ENOMEM;
    else if (weapon == FAILURE)
        good = rc != FSDP_EINTERNAL && (rc || exists(faulty));
    if (exists(faulty))
        good = good && same_tree(expected, faulty);
    if (weapon != NO_MEMORY || count_entries(root, "faulty"))
        good = good && completes(conversion, expected);
    if (!good)
        diag("%s: %s %llu: status %d", conversion->name,
             weapon == NO_MEMORY ? "allocation"
             : weapon == KILL    ? "killed at call"
                                 : "call",
             (unsigned long long)nth, rc);
    remove_all(&ckpt_store_posix, faulty, NULL);
    return good;
}

static void strike_each(const struct conversion *conversion, enum weapon weapon)
{
    static const char *const words[] = {"failed", "found no memory", "was killed"};
    char expected[700];
    /* A sanitizer makes each strike slow, and looks for other faults. */
    const uint64_t stride = getenv("TEST_SANITIZER") ? 11 : 1;
    bool good = true, over = false;
    uint64_t nth = 1;
    in_root(expected, conversion->expected);
    for (; good && !over && nth < MOST; nth += stride)
        good = survives(&over, conversion, expected, weapon, nth);
    ok(good && over && nth > 60, "%s: all or nothing, and completed, where %s of %llu %s %s",
       conversion->name, stride > 1 ? "one in eleven" : "each",
       (unsigned long long)(nth - 1 - stride), weapon == NO_MEMORY ? "allocations" : "store calls",
       words[weapon]);
}

int main(void)
{
    if (access("/dev/shm", W_OK) == 0)
        setenv("TMPDIR", "/dev/shm", 1);
    snprintf(root, sizeof root, "%s", scratch_create());
    snprintf(faulty, sizeof faulty, "%s/faulty", root);
    char path[700];
    in_root(path, "real");
    ok(fake_save(path, 7, 3, 1, SEED) == 0, "a checkpoint of 3 ranks");
    for (size_t i = 0; i < sizeof conversions / sizeof conversions[0]; i++) {
        const struct conversion *conversion = &conversions[i];
        struct fsdp_err err = FSDP_ERR_INIT;
        in_root(path, conversion->expected);
        int rc = convert(conversion, path, &err);
        if (rc == FSDP_EUNSUPPORTED) {
            tap_skip("%s: %s", conversion->name, err.text);
            i++; /* nor is there anything to decompress */
            continue;
        }
        ok(rc == FSDP_OK, "%s, undisturbed%s%s", conversion->name, rc ? ": " : "",
           rc ? err.text : "");
        for (int weapon = FAILURE; rc == FSDP_OK && weapon <= KILL; weapon++)
            strike_each(conversion, (enum weapon)weapon);
    }
    scratch_remove(root);
    return tap_done();
}
