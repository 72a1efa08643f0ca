/* SPDX-License-Identifier: Apache-2.0 */
/*
 * far.h: random reads of files at addresses. Blocks of them are cached in one temporary file of
 * bounded size. Background threads fetch blocks ahead of their use. The block that was unused for
 * the longest time is replaced first.
 */
#ifndef DATA_FAR_H
#define DATA_FAR_H

#include "fsdp/base.h"
#include "remote.h"

struct data_far;
struct data_far_opts {
    const struct data_remote *remote; /* the caller's; pread is called by several threads at once */
    uint64_t room_nbytes;             /* size limit of the temporary file, at least a few blocks */
    size_t block_nbytes;              /* 0: 256 KiB */
};

/* The temporary file has no name and lies in the folder TMPDIR, else in /tmp. Local, blocks. */
int data_far_create(struct data_far **out, const struct data_far_opts *opts, struct fsdp_err *err);
void data_far_destroy(struct data_far *far);
/* *file: its number in the calls below; *nbytes: its size. Errors come from the store. Blocks. */
int data_far_open(struct data_far *far, const char *address, int *file, uint64_t *nbytes,
                  struct fsdp_err *err);
/* Reads nbytes at offset, all within the file. Blocks. */
int data_far_read(struct data_far *far, int file, uint64_t offset, size_t nbytes, char *to,
                  struct fsdp_err *err);
/* Announces a later read of these bytes. Never blocks. If there is no room, or the fetch fails,
 * data_far_read fetches them itself. */
void data_far_ahead(struct data_far *far, int file, uint64_t offset, size_t nbytes);

#endif
