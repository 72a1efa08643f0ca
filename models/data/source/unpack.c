/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "stream.h"
#include "temporary.h"
#include "unpack.h"

enum { BUFFER_NBYTES = 1 << 22 };

static int put_bytes(struct data_unpacked *u, const char *path, const void *bytes, size_t nbytes,
                     struct fsdp_err *err)
{
    FSDP_TRY(data_temporary_write(u->fd, path, bytes, nbytes, u->nbytes, err));
    u->nbytes += nbytes;
    return FSDP_OK;
}

static int copy_stream(struct data_unpacked *u, struct data_stream *from, const char *path,
                       struct fsdp_err *err)
{
    unsigned char *buffer = fsdp_alloc_unset(BUFFER_NBYTES, 1, "unpacked bytes", err);
    int rc = buffer ? FSDP_OK : FSDP_ENOMEM;

    for (size_t got = 1; rc == FSDP_OK && got > 0;) {
        rc = data_stream_read(from, buffer, BUFFER_NBYTES, &got, err);
        if (rc == FSDP_OK)
            rc = put_bytes(u, path, buffer, got, err);
    }
    fsdp_free(buffer);
    return rc;
}

int data_unpack(struct data_unpacked *u, const char *path, const struct data_remote *remote,
                uint64_t *offset, uint64_t *nbytes, struct fsdp_err *err)
{
    struct data_stream *from;

    if (u->fd < 0)
        FSDP_TRY(data_temporary_open(&u->fd, err));
    FSDP_TRY(data_stream_open_at(&from, path, remote, err));
    *offset = u->nbytes;
    int rc = copy_stream(u, from, path, err);
    *nbytes = u->nbytes - *offset;
    if (rc == FSDP_OK)
        rc = put_bytes(u, path, "\n", 1, err);
    data_stream_close(from);
    return rc;
}

void data_unpacked_close(struct data_unpacked *u)
{
    if (u->fd >= 0)
        close(u->fd);
    u->fd = -1;
}
