/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.h: one fuzz target per file. `make fuzz-NAME` builds test_NAME.c with clang's libFuzzer and
 * runs it on tests/fuzz/corpus/NAME; `make check` builds it without, and replays that folder.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fsdp/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

/* A file of this process alone, in memory where the system has such a place. */
static inline const char *fuzz_file(const char *name, const void *data, size_t nbytes)
{
    static char path[400];
    const char *root = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
    snprintf(path, sizeof path, "%s/fuzz-%d", root, (int)getpid());
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/fuzz-%d/%s", root, (int)getpid(), name);
    FILE *file = fopen(path, "w");
    if (!file || fwrite(data, 1, nbytes, file) != nbytes)
        abort();
    fclose(file);
    return path;
}

/* The folder of those files. */
static inline const char *fuzz_folder(void)
{
    static char path[200];
    const char *root = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
    snprintf(path, sizeof path, "%s/fuzz-%d", root, (int)getpid());
    return path;
}

#ifdef FUZZING
#define FUZZ_TARGET(name)
#else
#include <dirent.h>

#include "tap.h"

/* Replays the corpus: a crash is a failure; so is an empty folder. */
static inline int fuzz_replay(const char *name)
{
    char folder[1000], path[2000];
    const struct dirent *entry;
    int nfiles = 0;
    snprintf(folder, sizeof folder, "%s/tests/fuzz/corpus/%s", getenv("TOP") ? getenv("TOP") : ".",
             name);
    DIR *dir = opendir(folder);
    while (dir && (entry = readdir(dir))) {
        static uint8_t data[1 << 20];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        FILE *file = fopen(path, "r");
        size_t nbytes = file ? fread(data, 1, sizeof data, file) : 0;
        if (file)
            fclose(file);
        LLVMFuzzerTestOneInput(data, nbytes);
        nfiles++;
    }
    if (dir)
        closedir(dir);
    ok(nfiles > 0, "%d inputs of %s were read without harm", nfiles, name);
    snprintf(path, sizeof path, "rm -rf %s", fuzz_folder());
    ok(system(path) == 0, "nothing is left behind");
    return tap_done();
}

#define FUZZ_TARGET(name)                                                                          \
    int main(void)                                                                                 \
    {                                                                                              \
        return fuzz_replay(name);                                                                  \
    }
#endif
#endif
