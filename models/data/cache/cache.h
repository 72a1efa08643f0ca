/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.h: text that became tokens once, for the runs that come. An entry is a folder
 *
 *      CACHE/KEY/tokens.u16 (or .u32), .index and perhaps .learned (tokens.h)
 *
 * whose key is a hash of the sources' bytes, of the tokenizer and of all else that the tokens
 * depend on. It is made under another name and gets its own when it is whole, so that any number of
 * processes and nodes may use one cache. Nothing is ever removed but what was left half made long
 * ago: an entry may be deleted by hand at any time between runs.
 */
#ifndef DATA_CACHE_H
#define DATA_CACHE_H

#include "data/tokens/encode.h"

/* The cache's folder from the setting data.cache: auto is $XDG_CACHE_HOME/fsdp, else ~/.cache/fsdp.
 * FSDP_EINVAL: neither is set. The caller frees *out. Local. */
int data_cache_folder(char **out, const char *setting, struct fsdp_err *err);
/* Key of what encode_run makes with these options. Reads all sources, unless the same files were
 * read before (seen.h). Makes the folder. Local, blocks. */
int data_cache_key(uint64_t *out, const char *folder, const struct encode_opts *opts,
                   struct fsdp_err *err);
/* Path of an entry's token file in *out, which the caller frees; *exists: it is there. Local. */
int data_cache_find(char **out, bool *exists, const char *folder, uint64_t key,
                    struct fsdp_err *err);
/* Makes the entry, unless it is there by then. Local, blocks. */
int data_cache_make(const char *folder, uint64_t key, const struct encode_opts *opts,
                    struct fsdp_err *err);

#endif
