/* SPDX-License-Identifier: Apache-2.0 */
/* reader.h: the sources' bytes in their order, as items of work: lines, or pieces of a text. */
#ifndef ENCODE_READER_H
#define ENCODE_READER_H

#include "sizes.h"
#include "sources.h"

struct encode_item;

/* How far the sources are read. */
struct encode_place {
    uint64_t file, offset, line; /* offset: in its bytes, unpacked */
    uint64_t crc, hash;          /* of this file's bytes so far; of the files before it */
};
extern const struct encode_place encode_place_first;

struct encode_reader;
/* place: where to begin. */
int encode_reader_open(struct encode_reader **out, const struct encode_sources *sources,
                       const struct encode_sizes *sizes, const struct encode_place *place,
                       struct fsdp_err *err);
void encode_reader_close(struct encode_reader *reader);
/* *end: there is no more. FSDP_EMISMATCH: a source is not what it was. Local, blocks. */
int encode_reader_next(struct encode_reader *reader, struct encode_item *item, bool *end,
                       struct fsdp_err *err);
/* Reads the sources to their end, for their hash. */
int encode_reader_skim(struct encode_reader *reader, uint64_t *hash, struct fsdp_err *err);
/* Bytes of the sources as they lie that were read. */
uint64_t encode_reader_done(const struct encode_reader *reader);

#endif
