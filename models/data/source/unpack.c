/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "stream.h"
#include "unpack.h"

enum { BUFFER_NBYTES = 1 << 22 };

static const char *folder(void)
{
    const char *tmp = getenv("TMPDIR");
    return tmp && *tmp ? tmp : "/tmp";
}

static int open_temporary(struct data_unpacked *u, struct fsdp_err *err)
{
    char *name = fsdp_sprintf(err, "%s/fsdp-unpacked-XXXXXX", folder());

    if (!name)
        return FSDP_ENOMEM;
    u->fd = mkostemp(name, O_CLOEXEC);
    const int errnum = errno;
    if (u->fd >= 0)
        unlink(name);
    fsdp_free(name);
    return u->fd >= 0
               ? FSDP_OK
               : fsdp_err_sys(err, errnum, "data: cannot unpack files into %s (TMPDIR)", folder());
}

static int put_bytes(struct data_unpacked *u, const char *path, const unsigned char *bytes,
                     size_t nbytes, struct fsdp_err *err)
{
    for (size_t have = 0; have < nbytes;) {
        const ssize_t n = pwrite(u->fd, bytes + have, nbytes - have, (off_t)u->nbytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fsdp_err_sys(err, errno, "data: %s: cannot be unpacked into %s (TMPDIR)", path,
                                folder());
        have += (size_t)n;
        u->nbytes += (size_t)n;
    }
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
        FSDP_TRY(open_temporary(u, err));
    FSDP_TRY(data_stream_open_at(&from, path, remote, err));
    *offset = u->nbytes;
    int rc = copy_stream(u, from, path, err);
    *nbytes = u->nbytes - *offset;
    if (rc == FSDP_OK)
        rc = put_bytes(u, path, (const unsigned char *)"\n", 1, err);
    data_stream_close(from);
    return rc;
}

void data_unpacked_close(struct data_unpacked *u)
{
    if (u->fd >= 0)
        close(u->fd);
    u->fd = -1;
}
