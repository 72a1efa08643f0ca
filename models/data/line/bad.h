/* SPDX-License-Identifier: Apache-2.0 */
/* bad.h: counts the lines that were left out because they are not documents. */
#ifndef DATA_BAD_H
#define DATA_BAD_H

#include "fsdp/base.h"

struct data_bad_file {
    const char *path; /* the caller's */
    uint64_t nbad, nlines;
    char first[240]; /* why the first one was left out */
};
struct data_bad {
    struct data_bad_file *files; /* those with bad lines */
    size_t nfiles, room;
};

/* Counts a line of `path`. The lines of one file must come together. FSDP_ENOMEM. Local. */
int data_bad_add(struct data_bad *bad, const char *path, const struct fsdp_err *why,
                 struct fsdp_err *err);
/* Call at the end of a file: it had nlines lines. */
void data_bad_end(struct data_bad *bad, const char *path, uint64_t nlines);
/* Logs a warning for each of the first files, and one for all. */
void data_bad_warn(const struct data_bad *bad);
void data_bad_free(struct data_bad *bad);

#endif
