/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seen.h: hashes of files that were read before, so that a run that begins again need not read all
 * of its data. CACHE/seen/ID holds the hash of the sources' bytes; ID is a hash of the files'
 * names, inodes, sizes and times of change.
 */
#ifndef DATA_SEEN_H
#define DATA_SEEN_H

#include "data/tokens/encode.h"

/* Where the hash of these sources is kept: 0 where it cannot be, as of addresses, or of files that
 * changed a moment ago and may change again within the clock's resolution. Local, blocks. */
int data_seen_id(uint64_t *out, const struct encode_opts *opts, struct fsdp_err *err);
/* False: not there. */
bool data_seen_get(uint64_t *hash, const char *folder, uint64_t id);
/* What fails is only time lost. */
void data_seen_put(const char *folder, uint64_t id, uint64_t hash);

#endif
