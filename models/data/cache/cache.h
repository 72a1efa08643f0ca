/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.h: the cache of token files, which later runs and other jobs share. An entry is a folder
 *
 *      CACHE/KEY/tokens.u16 (or .u32), .index and perhaps .learned (tokens.h)
 *
 * KEY is a hash of the sources' bytes, of the tokenizer and of all settings that affect the tokens.
 * An entry is written under a temporary name and renamed when it is complete, so that any number of
 * processes and nodes may use one cache. Complete entries are never removed; leftovers of old,
 * interrupted runs are. A user may delete an entry while no run uses it.
 */
#ifndef DATA_CACHE_H
#define DATA_CACHE_H

#include "data/tokens/encode.h"

/* The cache's folder from the setting data.cache: auto is $XDG_CACHE_HOME/fsdp, else ~/.cache/fsdp.
 * FSDP_EINVAL: neither is set. The caller frees *out. Local. */
int data_cache_folder(char **out, const char *setting, struct fsdp_err *err);
/* Key of the entry that encode_run writes with these options. Reads all sources, unless it has read
 * the same files before (seen.h). Creates the folder. Local, blocks. */
int data_cache_key(uint64_t *out, const char *folder, const struct encode_opts *opts,
                   struct fsdp_err *err);
/* *out: path of an entry's token file, which the caller frees. *exists: is there such an entry?
 * Local. */
int data_cache_find(char **out, bool *exists, const char *folder, uint64_t key,
                    struct fsdp_err *err);
/* Writes the entry, unless another process has already done so. Local, blocks. */
int data_cache_make(const char *folder, uint64_t key, const struct encode_opts *opts,
                    struct fsdp_err *err);

/* Reads an entry, whose token file is `path`, and compares its checksums. FSDP_ECORRUPT. Blocks. */
int data_cache_check(const char *path, struct fsdp_err *err);

#endif
