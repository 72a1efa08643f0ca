/* SPDX-License-Identifier: Apache-2.0 */
/* unpack.h: packed files, behind each other in one temporary file, which can be read anywhere. */
#ifndef DATA_UNPACK_H
#define DATA_UNPACK_H

#include "fsdp/base.h"

struct data_remote;

/* The file has no name and goes with the process. It lies in the folder TMPDIR, else in /tmp. */
struct data_unpacked {
    int fd; /* -1: none yet; begin so */
    uint64_t nbytes;
};

/* Unpacks a file (data_stream_open_at): it is then `nbytes` bytes from `offset` on, and a line feed
 * follows them. Errors are those of stream.h, and of the temporary file. Local, blocks. */
int data_unpack(struct data_unpacked *unpacked, const char *path, const struct data_remote *remote,
                uint64_t *offset, uint64_t *nbytes, struct fsdp_err *err);
void data_unpacked_close(struct data_unpacked *unpacked);

#endif
