/* SPDX-License-Identifier: Apache-2.0 */
/* format.h: the names of a token file's three parts, and the header of its index (tokens.h). */
#ifndef TOKENS_FORMAT_H
#define TOKENS_FORMAT_H

#include "tokens.h"

enum { TOKENS_HEADER_NBYTES = 128, TOKENS_END_NBYTES = 8 };

/* The ids, which bear the name itself; which are learned; the index, which gets its name last. */
enum tokens_part { TOKENS_IDS, TOKENS_LEARNED, TOKENS_INDEX, TOKENS_NPARTS };
extern const char *const tokens_ends[TOKENS_NPARTS]; /* "", ".learned", ".index" */

#define TOKENS_PART ".part" /* while they are made */
#define TOKENS_JOURNAL ".part.journal"

struct tokens_header {
    struct tokens_info info;
    uint64_t crc[TOKENS_NPARTS]; /* of the index: what is behind the header */
};
/* Bytes that a part has where the header is right. Pure. */
uint64_t tokens_part_nbytes(const struct tokens_header *header, enum tokens_part part);
uint64_t tokens_crc(uint64_t crc, const void *data, size_t nbytes);

void tokens_header_put(unsigned char out[TOKENS_HEADER_NBYTES], const struct tokens_header *header);
/* FSDP_ECORRUPT; FSDP_EUNSUPPORTED: another version. path is what errors name. */
int tokens_header_get(struct tokens_header *out, const unsigned char in[TOKENS_HEADER_NBYTES],
                      const char *path, struct fsdp_err *err);

#endif
