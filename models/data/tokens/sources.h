/* SPDX-License-Identifier: Apache-2.0 */
/* sources.h: what is tokenized: a list of files, of text or of lines, cut into items of work. */
#ifndef ENCODE_SOURCES_H
#define ENCODE_SOURCES_H

#include "data/source/list.h"
#include "encode.h"

struct encode_item;

struct encode_sources {
    struct data_list list;
    const struct encode_opts *opts;
};
int encode_sources_open(struct encode_sources *out, const struct encode_opts *opts,
                        struct fsdp_err *err);
void encode_sources_close(struct encode_sources *sources);
/* Is it JSON Lines? */
bool encode_sources_is_lines(const struct encode_sources *sources, size_t file);
/* What errors call it. */
const char *encode_sources_name(const struct encode_sources *sources, size_t file);

/* How far the sources are read. */
struct encode_place {
    uint64_t file, offset, line; /* offset: in its bytes, unpacked */
    uint64_t crc, hash;          /* of this file's bytes so far; of the files before it */
};

struct encode_reader;
int encode_reader_open(struct encode_reader **out, const struct encode_sources *sources,
                       struct fsdp_err *err);
void encode_reader_close(struct encode_reader *reader);
/* The next lines, or text, into item. *end: there was no more. */
int encode_reader_next(struct encode_reader *reader, struct encode_item *item, bool *end,
                       struct fsdp_err *err);
/* Reads the sources to their end, for their hash. */
int encode_reader_skim(struct encode_reader *reader, uint64_t *hash, struct fsdp_err *err);
/* Bytes of the sources as they lie, read and in all (0: not known). */
void encode_reader_progress(const struct encode_reader *reader, uint64_t *done, uint64_t *nbytes);

#endif
