/* SPDX-License-Identifier: Apache-2.0 */
/*
 * posix_file.h: an open file of store_posix. Large transfers go past the page cache (O_DIRECT)
 * where the file system can: several times as fast where the cache's own work is what limits a
 * disk, and nothing of the machine's memory is used up. Everything else, and what is cached
 * already, goes through it.
 */
#ifndef CKPT_POSIX_FILE_H
#define CKPT_POSIX_FILE_H

#include <sys/stat.h>

#include "ckpt/sys/store_ops.h"

struct posix_file;

/* Transfers of more may go past the page cache. */
enum { POSIX_FILE_CACHED_NBYTES = (1 << 20) - 1 };

/* Takes fd over, in any case. may_bypass: large transfers may do so. */
int posix_file_create(struct posix_file **out, int fd, bool may_bypass, struct fsdp_err *err);
/* As the members of ckpt_store_ops. path: of the file, while it has that name. */
int posix_file_pread(struct posix_file *file, const char *path, void *dst, size_t nbytes,
                     uint64_t offset, struct fsdp_err *err);
int posix_file_write(struct posix_file *file, const char *path, const void *src, size_t nbytes,
                     struct fsdp_err *err);
int posix_file_pwrite(struct posix_file *file, const char *path, const void *src, size_t nbytes,
                      uint64_t offset, struct fsdp_err *err);
int posix_file_stat(struct ckpt_store_stat *out, struct posix_file *file, const char *path,
                    struct fsdp_err *err);
struct ckpt_store_stat posix_file_stat_of(const struct stat *st);
int posix_file_sync(struct posix_file *file, const char *path, struct fsdp_err *err);
int posix_file_close(struct posix_file *file, const char *path, struct fsdp_err *err);

#endif
