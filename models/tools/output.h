/* SPDX-License-Identifier: Apache-2.0 */
/* output.h: one file that a program was told to write. */
#ifndef OUTPUT_H
#define OUTPUT_H

#include "fsdp/base.h"

/* Calls `write` with the file, or with standard output for "-". A regular file takes the place of
 * one that is there at once, which stays as it was after an error; what a pipe, a device or a link
 * leads to is written. Errors: write's; FSDP_EIO where the file cannot be written, whatever the
 * reason is. */
int output_write(const char *path, fsdp_file_write_f *write, const void *ctx, struct fsdp_err *err);

#endif
