/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.h: the interface to data that is not on this machine, such as s3://bucket/folder. The
 * caller that opens data provides an implementation; this folder does not depend on stores.
 */
#ifndef DATA_REMOTE_H
#define DATA_REMOTE_H

#include <string.h>

#include "fsdp/base.h"

/* Receives the file at an address, or each file below it, in sorted order. An error ends `each`. */
typedef int data_remote_file_f(void *ctx, const char *address, struct fsdp_err *err);

struct data_remote {
    int (*each)(const char *address, data_remote_file_f *fn, void *ctx, struct fsdp_err *err);
    int (*open)(void **file, uint64_t *nbytes, const char *address, struct fsdp_err *err);
    /* Exactly nbytes from offset. Thread safe. */
    int (*pread)(void *file, void *dst, size_t nbytes, uint64_t offset, struct fsdp_err *err);
    void (*close)(void *file);
};

static inline bool data_is_remote(const char *path)
{
    return strstr(path, "://");
}

#endif
