/* SPDX-License-Identifier: Apache-2.0 */
/* offload_io.h: threads that read and write a file, in pieces side by side. */
#ifndef CORE_OFFLOAD_IO_H
#define CORE_OFFLOAD_IO_H

#include "fsdp/base.h"

struct offload_io;

/* Bytes of a file, and of memory. */
struct offload_range {
    char *mem;
    uint64_t pos;
    size_t nbytes;
    bool write; /* from memory to the file */
};

/* Moves one piece; blocks. Of several threads at once. */
typedef int offload_move_f(void *ctx, const struct offload_range *piece, struct fsdp_err *err);

/* The threads move pieces by move(ctx). */
int offload_io_create(struct offload_io **out, offload_move_f *move, void *ctx,
                      struct fsdp_err *err);
void offload_io_destroy(struct offload_io *io); /* what was begun is done then; NULL: nothing */

/* Of any thread. All of them first wait for what was begun and has bytes in common with the range,
 * and fail with the error of a write that was begun, from then on.
 *
 * run: returns when the range was moved.
 * begin: returns at once; the range's memory must stay as it is until it was moved.
 * wait: waits for what was begun and has bytes of memory in common.
 * settle: waits for all that was begun. */
int offload_io_run(struct offload_io *io, const struct offload_range *range, struct fsdp_err *err);
int offload_io_begin(struct offload_io *io, const struct offload_range *range,
                     struct fsdp_err *err);
int offload_io_wait(struct offload_io *io, const char *mem, size_t nbytes, struct fsdp_err *err);
int offload_io_settle(struct offload_io *io, struct fsdp_err *err);

#endif
