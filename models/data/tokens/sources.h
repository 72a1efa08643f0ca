/* SPDX-License-Identifier: Apache-2.0 */
/* sources.h: what is tokenized: a list of files, each of text or of lines. */
#ifndef ENCODE_SOURCES_H
#define ENCODE_SOURCES_H

#include "data/source/list.h"
#include "encode.h"

struct encode_source {
    const char *path;
    const char *name; /* what errors call it */
    bool is_lines, has_size;
    uint64_t nbytes;              /* where has_size: as it lies, packed or not */
    int64_t seconds, nanoseconds; /* when it was changed last */
};
struct encode_sources {
    const struct encode_opts *opts;
    struct data_list list;
    struct encode_source *at;
    size_t nsources;
    uint64_t nbytes; /* of all; 0: not known */
};
/* path: the token file that is made. Its own files are no sources, and refused where they are named
 * as such; NULL: there is none. */
int encode_sources_open(struct encode_sources *out, const struct encode_opts *opts,
                        const char *path, struct fsdp_err *err);
/* FSDP_EINVAL: a file has another size or time than when it was listed, so that what was read of it
 * may be neither what it was nor what it is. */
int encode_sources_check(const struct encode_sources *sources, struct fsdp_err *err);
void encode_sources_close(struct encode_sources *sources);

#endif
