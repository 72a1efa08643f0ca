/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>

#include "bad.h"

enum { MAX_SHOWN = 8 };

static struct data_bad_file *last_file(struct data_bad *bad, const char *path)
{
    struct data_bad_file *last = bad->nfiles ? &bad->files[bad->nfiles - 1] : NULL;
    return last && last->path == path ? last : NULL;
}

int data_bad_add(struct data_bad *bad, const char *path, const struct fsdp_err *why,
                 struct fsdp_err *err)
{
    struct data_bad_file *file = last_file(bad, path);

    if (!file) {
        struct data_bad_file *files = fsdp_alloc_grow(bad->files, bad->nfiles, &bad->room,
                                                      sizeof *files, "list of bad lines", err);
        if (!files)
            return FSDP_ENOMEM;
        bad->files = files;
        file = &files[bad->nfiles++];
        *file = (struct data_bad_file){.path = path};
        snprintf(file->first, sizeof file->first, "%.*s", (int)sizeof file->first - 1, why->text);
    }
    file->nbad++;
    return FSDP_OK;
}

void data_bad_end(struct data_bad *bad, const char *path, uint64_t nlines)
{
    struct data_bad_file *file = last_file(bad, path);
    if (file)
        file->nlines = nlines;
}

void data_bad_warn(const struct data_bad *bad)
{
    uint64_t nbad = 0;

    for (size_t i = 0; i < bad->nfiles; i++) {
        const struct data_bad_file *file = &bad->files[i];
        nbad += file->nbad;
        if (i < MAX_SHOWN)
            fsdp_log(FSDP_LOG_WARN,
                     "%s: %" PRIu64 " of %" PRIu64
                     " lines are left out (data.on_bad_line); the first: %s",
                     file->path, file->nbad, file->nlines, file->first);
    }
    if (bad->nfiles > MAX_SHOWN)
        fsdp_log(FSDP_LOG_WARN, "data: in all, %" PRIu64 " lines of %zu files are left out", nbad,
                 bad->nfiles);
}

void data_bad_free(struct data_bad *bad)
{
    fsdp_free(bad->files);
    *bad = (struct data_bad){0};
}
