/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.h: reads a file, or standard input, from beginning to end. Files named .gz or .zst are
 * decompressed. Memory is bounded for any input.
 */
#ifndef DATA_STREAM_H
#define DATA_STREAM_H

#include "fsdp/base.h"

struct data_remote;
struct data_stream;

/* Does the name end with .gz or .zst? Pure. */
bool data_stream_is_packed(const char *path);

/* path "-": standard input, as it is. FSDP_ENOTFOUND and other errors of fsdp_file_open;
 * FSDP_EUNSUPPORTED: .zst in a build without zstd. Local, blocks. */
int data_stream_open(struct data_stream **out, const char *path, struct fsdp_err *err);
/* The same, where path may be an address, too. remote is the caller's; NULL: addresses are
 * FSDP_EUNSUPPORTED. */
int data_stream_open_at(struct data_stream **out, const char *path,
                        const struct data_remote *remote, struct fsdp_err *err);
/* Up to nbytes bytes; *got is 0 only at the end. FSDP_ECORRUPT names the file and the byte at which
 * a packed one is truncated or damaged. Local, blocks. */
int data_stream_read(struct data_stream *stream, void *out, size_t nbytes, size_t *got,
                     struct fsdp_err *err);
/* Goes to byte `offset` of a stream that has not been read; *found: it is one that can: a file here
 * that is not packed. Local. */
int data_stream_seek(struct data_stream *stream, uint64_t offset, bool *found,
                     struct fsdp_err *err);
/* Bytes of the file that were read so far, and the file's size (0: not known, as of a pipe). */
uint64_t data_stream_position(const struct data_stream *stream, uint64_t *nbytes);
void data_stream_close(struct data_stream *stream);

#endif
