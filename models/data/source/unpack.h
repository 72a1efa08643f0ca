/* SPDX-License-Identifier: Apache-2.0 */
/* unpack.h: decompresses files into one temporary file, so that they can be read at random. */
#ifndef DATA_UNPACK_H
#define DATA_UNPACK_H

#include "fsdp/base.h"

struct data_remote;

/* The unnamed file is in TMPDIR, else in /tmp, and disappears with the process. */
struct data_unpacked {
    int fd; /* -1: none yet; begin so */
    uint64_t nbytes;
};

/* Appends the decompressed file (data_stream_open_at): *nbytes bytes at *offset, then a line feed.
 * Errors are those of stream.h, and of the temporary file. Local, blocks. */
int data_unpack(struct data_unpacked *unpacked, const char *path, const struct data_remote *remote,
                uint64_t *offset, uint64_t *nbytes, struct fsdp_err *err);
void data_unpacked_close(struct data_unpacked *unpacked);

#endif
