/* SPDX-License-Identifier: Apache-2.0 */
/* sizes.h: how work is divided. What is made does not depend on it; tests divide it finely. */
#ifndef ENCODE_SIZES_H
#define ENCODE_SIZES_H

#include "encode.h"

struct encode_sizes {
    size_t batch;   /* bytes of lines that a thread takes at once, or more */
    size_t piece;   /* of a long text: from the beginning of a piece to that of the next */
    size_t overlap; /* and so much further a piece goes */
    size_t agree;   /* on each side of a place where pieces are joined, they are the same */
    size_t most;    /* that become tokens at once where there is no such place */
    double seconds; /* from a note in the journal to the next, ... */
    double tell;    /* ... and from one call of opts.progress */
    bool by_lines;  /* texts are cut into lines, too */
};
extern const struct encode_sizes encode_sizes_default;
int encode_run_sized(struct tokens_info *out, const char *path, const struct encode_opts *opts,
                     const struct encode_sizes *sizes, struct fsdp_err *err);

#endif
