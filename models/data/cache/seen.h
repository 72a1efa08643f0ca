/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seen.h: hashes of files that earlier runs read, so that a restarted run need not read all of its
 * data again. CACHE/seen/ID holds the hash of the sources' bytes; ID is a hash of the files'
 * names, inodes, sizes and times of change.
 */
#ifndef DATA_SEEN_H
#define DATA_SEEN_H

#include "data/tokens/encode.h"

/* *out: ID of these sources, or 0 if their hash cannot be kept. That is so for addresses, and for
 * files that changed within the clock's resolution and may change again. Local, blocks. */
int data_seen_id(uint64_t *out, const struct encode_opts *opts, struct fsdp_err *err);
/* False: there is no such hash. */
bool data_seen_get(uint64_t *hash, const char *folder, uint64_t id);
/* Errors are ignored: they only cost time in the next run. */
void data_seen_put(const char *folder, uint64_t id, uint64_t hash);

#endif
