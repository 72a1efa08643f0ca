/* SPDX-License-Identifier: Apache-2.0 */
/*
 * far.h: files at addresses, read anywhere. Their bytes come in blocks into one temporary file of
 * bounded size, some of them ahead of their use, by threads of its own: what is asked for next is
 * then here already. The block that was not used for longest makes room.
 */
#ifndef DATA_FAR_H
#define DATA_FAR_H

#include "fsdp/base.h"
#include "remote.h"

struct data_far;
struct data_far_opts {
    const struct data_remote *remote; /* the caller's; pread is called by several threads at once */
    uint64_t room_nbytes;             /* of the temporary file; at least some blocks are taken */
    size_t block_nbytes;              /* 0: 256 KiB */
};

/* The temporary file has no name and lies in the folder TMPDIR, else in /tmp. Local, blocks. */
int data_far_create(struct data_far **out, const struct data_far_opts *opts, struct fsdp_err *err);
void data_far_destroy(struct data_far *far);
/* *file is its number in the calls below, *nbytes its size. Errors are the store's. Blocks. */
int data_far_open(struct data_far *far, const char *address, int *file, uint64_t *nbytes,
                  struct fsdp_err *err);
/* Reads nbytes from offset, which lie within the file. Blocks. */
int data_far_read(struct data_far *far, int file, uint64_t offset, size_t nbytes, char *to,
                  struct fsdp_err *err);
/* These bytes are read soon. Never blocks: what there is no room for, now, is read when it is asked
 * for; so is what fails. */
void data_far_ahead(struct data_far *far, int file, uint64_t offset, size_t nbytes);

#endif
