/* SPDX-License-Identifier: Apache-2.0 */
/* offload_file.h: a file that stands in for the host memory of offloaded state. */
#ifndef CORE_OFFLOAD_FILE_H
#define CORE_OFFLOAD_FILE_H

#include "fsdp/device.h"

struct offload_file;

enum { OFFLOAD_FILE_BLOCK = 4096 };

/* A file in the folder dir, of nbytes (a multiple of OFFLOAD_FILE_BLOCK) that are all allocated and
 * zero. It has no name: whatever ends the process frees its space. rank is for messages. Local,
 * blocks. FSDP_EIO: the folder cannot be had, or has too little room. */
int offload_file_create(struct offload_file **out, const char *dir, uint64_t nbytes, int rank,
                        struct fsdp_err *err);
void offload_file_destroy(struct offload_file *file); /* no lane uses it any more */

/* The file's bytes have addresses from base on, that nothing can be read or written at: they are
 * what state that lives in the file points to. file may be NULL: it holds nothing. */
char *offload_file_base(const struct offload_file *file);
bool offload_file_holds(const struct offload_file *file, const void *at);

/* Between host memory and the file, on the lane, which waits for it as for any call of the host: a
 * failure is its sticky error. Any address and length; multiples of OFFLOAD_FILE_BLOCK pass without
 * a copy, and bypassing the page cache where the file system can do so. Long ranges are moved by
 * several threads. Enqueue. */
int offload_file_read(struct offload_file *file, struct fsdp_lane *lane, void *to, const void *from,
                      size_t nbytes, struct fsdp_err *err);
int offload_file_write(struct offload_file *file, struct fsdp_lane *lane, void *to,
                       const void *from, size_t nbytes, struct fsdp_err *err);
/* Begins to write, and the lane continues. Until the file is settled, or waited for on some lane,
 * `from` may only be read, or be what offload_file_read reads into, which waits for what was begun
 * and has bytes in common. A failure is that of the next of these calls. */
int offload_file_write_behind(struct offload_file *file, struct fsdp_lane *lane, void *to,
                              const void *from, size_t nbytes, struct fsdp_err *err);
/* The lane waits for writes that were begun from this memory. */
int offload_file_wait(struct offload_file *file, struct fsdp_lane *lane, const void *mem,
                      size_t nbytes, struct fsdp_err *err);
int offload_file_settle(struct offload_file *file, struct fsdp_lane *lane, struct fsdp_err *err);

#endif
