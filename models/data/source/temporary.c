/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "temporary.h"

const char *data_temporary_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    return tmp && *tmp ? tmp : "/tmp";
}

int data_temporary_open(int *fd, struct fsdp_err *err)
{
    char *name = fsdp_sprintf(err, "%s/fsdp-data-XXXXXX", data_temporary_folder());

    if (!name)
        return FSDP_ENOMEM;
    *fd = mkostemp(name, O_CLOEXEC);
    const int errnum = errno;
    if (*fd >= 0)
        unlink(name);
    fsdp_free(name);
    return *fd >= 0 ? FSDP_OK
                    : fsdp_err_sys(err, errnum, "data: cannot put data into %s (TMPDIR)",
                                   data_temporary_folder());
}

int data_temporary_write(int fd, const char *name, const void *from, size_t nbytes, uint64_t offset,
                         struct fsdp_err *err)
{
    for (size_t have = 0; have < nbytes;) {
        const ssize_t n =
            pwrite(fd, (const char *)from + have, nbytes - have, (off_t)(offset + have));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fsdp_err_sys(err, errno, "%s: cannot be put into %s (TMPDIR)", name,
                                data_temporary_folder());
        have += (size_t)n;
    }
    return FSDP_OK;
}

int data_temporary_read(int fd, const char *name, void *to, size_t nbytes, uint64_t offset,
                        struct fsdp_err *err)
{
    for (size_t have = 0; have < nbytes;) {
        const ssize_t n = pread(fd, (char *)to + have, nbytes - have, (off_t)(offset + have));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fsdp_err_sys(err, n ? errno : EIO, "%s: its copy in %s (TMPDIR)", name,
                                data_temporary_folder());
        have += (size_t)n;
    }
    return FSDP_OK;
}
