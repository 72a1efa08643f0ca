/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tensor costs in memory, beyond buffers: the tools' peak memory on checkpoints of many
 * small tensors, of which one has five times as many as the other. The bounds are those that --help
 * and docs/ckpt-merge.md state.
 *
 * run: long
 * run: timeout=600
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../ckpt/file/safetensors.h"
#include "tap.h"

enum { FEW = 10000, MANY = 50000, NELEM = 2 };

static char root[400];

/* A safetensors file of `count` tensors of zeros. */
static bool make_file(const char *path, int count)
{
    static const uint64_t shape[2] = {NELEM, 1};
    struct ckpt_st_entry *entries = calloc((size_t)count, sizeof *entries);
    char(*names)[64] = calloc((size_t)count, sizeof *names), *header = NULL;
    size_t nbytes = 0;
    for (int i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "model.layers.%d.self_attn.part_%d.weight", i / 9,
                 i % 9);
        entries[i] =
            (struct ckpt_st_entry){.name = names[i], .dtype = FSDP_F32, .ndim = 2, .shape = shape};
    }
    bool good = ckpt_st_format(&header, &nbytes, entries, count, false, NULL) == FSDP_OK;
    FILE *file = good ? fopen(path, "w") : NULL;
    good = file && fwrite(header, 1, nbytes, file) == nbytes;
    good = file && !fclose(file) && good &&
           !truncate(path, (off_t)(nbytes + (size_t)count * NELEM * sizeof(float)));
    fsdp_free(header);
    free(entries);
    free(names);
    return good;
}

/* KiB of peak memory of a tool; -1: it failed. args end with NULL. */
static long peak_of(const char *tool, const char *const *args)
{
    char path[600];
    const char *argv[16] = {tool, "-q"};
    struct rusage usage;
    int n = 2, status;
    for (; *args; args++)
        argv[n++] = *args;
    snprintf(path, sizeof path, "%s/%s", getenv("BIN") ? getenv("BIN") : "build/bin", tool);
    pid_t pid = fork();
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stdout))
            _exit(126);
        execv(path, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    if (pid < 0 || wait4(pid, &status, 0, &usage) != pid)
        return -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? usage.ru_maxrss : -1;
}

/* The input of a format with `count` tensors, made from the safetensors file of as many. */
static const char *input_of(char *out, const char *format, int count)
{
    sprintf(out, "%s/%s-%d%s", root, format, count,
            strcmp(format, "safetensors") ? "" : ".safetensors");
    return out;
}

static bool make_inputs(int count)
{
    char plain[500], out[500];
    input_of(plain, "safetensors", count);
    if (!make_file(plain, count))
        return false;
    return peak_of("ckpt-reshard", (const char *[]){plain, "-o", input_of(out, "native", count),
                                                    "--world", "2", NULL}) > 0 &&
           peak_of("ckpt-reshard", (const char *[]){plain, "-o", input_of(out, "dcp", count),
                                                    "--world", "2", "--format", "dcp", NULL}) > 0;
}

/* The tool's memory on an input of `count` tensors. */
static long measure(const char *tool, const char *format, int count)
{
    char in[500], out[500], command[600];
    input_of(in, format, count);
    snprintf(out, sizeof out, "%s/out%s", root, strcmp(tool, "ckpt-merge") ? "" : ".safetensors");
    snprintf(command, sizeof command, "rm -rf %s", out);
    if (system(command))
        return -1;
    if (!strcmp(tool, "ckpt-verify"))
        return peak_of(tool, (const char *[]){in, NULL});
    if (!strcmp(tool, "ckpt-diff"))
        return peak_of(tool, (const char *[]){in, in, "--mem", "16M", "--threads", "1", NULL});
    if (!strcmp(tool, "ckpt-cp"))
        return peak_of(tool, (const char *[]){in, out, NULL});
    if (!strcmp(tool, "ckpt-merge"))
        return peak_of(tool,
                       (const char *[]){in, "-o", out, "--mem", "16M", "--threads", "1", NULL});
    return peak_of(tool, (const char *[]){in, "-o", out, "--mem", "16M", "--threads", "1",
                                          "--world", "3", NULL});
}

int main(void)
{
    /* For each tensor, in one piece (safetensors) or two. */
    enum { BOUND_NBYTES = 1024 };
    static const char *const formats[] = {"safetensors", "native", "dcp"};
    static const char *const tools[] = {"ckpt-verify", "ckpt-merge", "ckpt-reshard", "ckpt-cp",
                                        "ckpt-diff"};
    if (getenv("TEST_SANITIZER") && *getenv("TEST_SANITIZER")) {
        tap_skip("not under a sanitizer, which has memory of its own");
        return tap_done();
    }
    if (tap_emulated()) {
        tap_skip("not under an emulator, which has memory of its own");
        return tap_done();
    }
    snprintf(root, sizeof root, "%s", getenv("TEST_TMP") ? getenv("TEST_TMP") : "/tmp");
    ok(make_inputs(FEW) && make_inputs(MANY), "checkpoints of %d and %d tensors", FEW, MANY);
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (size_t t = 0; t < sizeof tools / sizeof *tools; t++) {
            const int nopen = strcmp(tools[t], "ckpt-diff") ? 1 : 2; /* checkpoints */
            const long few = measure(tools[t], formats[f], FEW);
            const long many = measure(tools[t], formats[f], MANY);
            const long each = (many - few) * 1024 / (MANY - FEW) / nopen;
            ok(few > 0 && many > few && each <= BOUND_NBYTES, "%s, %s: %ld bytes for each tensor%s",
               formats[f], tools[t], each, nopen == 2 ? " of each checkpoint" : "");
        }
    return tap_done();
}
