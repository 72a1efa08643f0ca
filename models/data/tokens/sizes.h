/* SPDX-License-Identifier: Apache-2.0 */
/* sizes.h: how work is divided. The output does not depend on it; tests use small sizes. */
#ifndef ENCODE_SIZES_H
#define ENCODE_SIZES_H

#include "encode.h"

struct encode_sizes {
    size_t batch;   /* bytes of lines that a thread takes at once, or more */
    size_t piece;   /* of a long text: from the beginning of a piece to that of the next */
    size_t overlap; /* bytes by which a piece extends into the next */
    size_t agree;   /* bytes with equal tokens on each side of a joint */
    size_t most;    /* largest text tokenized at once if there is no joint */
    double seconds; /* from a note in the journal to the next, ... */
    double tell;    /* ... and from one call of opts.progress */
    bool by_lines;  /* texts are cut into lines, too */
};
extern const struct encode_sizes encode_sizes_default;
int encode_run_sized(struct tokens_info *out, const char *path, const struct encode_opts *opts,
                     const struct encode_sizes *sizes, struct fsdp_err *err);

#endif
