/* SPDX-License-Identifier: Apache-2.0 */
/* temporary.h: an unnamed temporary file, which disappears with the process. */
#ifndef DATA_TEMPORARY_H
#define DATA_TEMPORARY_H

#include "fsdp/base.h"

/* TMPDIR, else /tmp. */
const char *data_temporary_folder(void);
/* The caller closes *fd. Local. */
int data_temporary_open(int *fd, struct fsdp_err *err);
/* Writes or reads all nbytes at offset. name: the source of the data, for errors. Thread safe. */
int data_temporary_write(int fd, const char *name, const void *from, size_t nbytes, uint64_t offset,
                         struct fsdp_err *err);
int data_temporary_read(int fd, const char *name, void *to, size_t nbytes, uint64_t offset,
                        struct fsdp_err *err);

#endif
