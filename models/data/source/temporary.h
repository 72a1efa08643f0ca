/* SPDX-License-Identifier: Apache-2.0 */
/* temporary.h: a file without a name, which goes with the process. */
#ifndef DATA_TEMPORARY_H
#define DATA_TEMPORARY_H

#include "fsdp/base.h"

/* TMPDIR, else /tmp. */
const char *data_temporary_folder(void);
/* The caller closes *fd. Local. */
int data_temporary_open(int *fd, struct fsdp_err *err);
/* All nbytes at offset; name: of whose data they are, for errors. Thread safe. */
int data_temporary_write(int fd, const char *name, const void *from, size_t nbytes, uint64_t offset,
                         struct fsdp_err *err);
int data_temporary_read(int fd, const char *name, void *to, size_t nbytes, uint64_t offset,
                        struct fsdp_err *err);

#endif
