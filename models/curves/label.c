/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "curves.h"

/* Length of what both paths begin with, up to a slash. */
static size_t common_start(const char *a, const char *b, size_t most)
{
    size_t len = 0;

    for (size_t i = 0; i < most && a[i] && a[i] == b[i]; i++)
        if (a[i] == '/')
            len = i + 1;
    return len;
}

/* Length of what both end with, from a slash on. */
static size_t common_end(const char *a, const char *b, size_t most)
{
    const size_t na = strlen(a), nb = strlen(b);
    size_t len = 0;

    for (size_t i = 1; i <= most && i <= na && i <= nb && a[na - i] == b[nb - i]; i++)
        if (a[na - i] == '/')
            len = i;
    return len;
}

static char *middle_part(const char *path, size_t start, size_t end, struct fsdp_err *err)
{
    const size_t nbytes = strlen(path);

    if (start + end >= nbytes) /* one is a part of the other */
        return fsdp_strdup(path, err);
    return fsdp_sprintf(err, "%.*s", (int)(nbytes - start - end), path + start);
}

int curves_label(struct run *runs, int nruns, struct fsdp_err *err)
{
    size_t start = nruns > 1 ? strlen(runs[0].path) : 0, end = start;

    for (int i = 1; i < nruns; i++) {
        start = common_start(runs[0].path, runs[i].path, start);
        end = common_end(runs[0].path, runs[i].path, end);
    }
    for (int i = 0; i < nruns; i++) {
        fsdp_free(runs[i].label);
        runs[i].label = middle_part(runs[i].path, start, end, err);
        if (!runs[i].label)
            return FSDP_ENOMEM;
    }
    return FSDP_OK;
}
