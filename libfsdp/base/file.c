/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fsdp/base.h"

static int open_retry(const char *path, int flags)
{
    int fd;
    do {
        fd = open(path, flags, 0666);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

/* NULL: a regular file. */
static const char *kind_of(mode_t mode)
{
    if (S_ISREG(mode))
        return NULL;
    return S_ISDIR(mode)    ? "a folder"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

int fsdp_file_open(int *out, const char *path, int flags, struct fsdp_err *err)
{
    const char *kind = NULL;
    struct stat st;

    flags |= O_CLOEXEC | O_NOCTTY;
    /* Without O_NONBLOCK, opening a pipe waits for its other end. */
    int fd = open_retry(path, flags | O_NONBLOCK);
    int why = fd < 0 || fstat(fd, &st) ? errno : 0;
    /* With it, the kernel refuses a file whose lease another process has still to give back. */
    if (why == EWOULDBLOCK && stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
        fd = open_retry(path, flags);
        why = fd < 0 || fstat(fd, &st) ? errno : 0;
    }
    /* ENXIO: a socket, or a pipe opened for writing that nobody reads. */
    if (!why || (why == ENXIO && stat(path, &st) == 0))
        kind = kind_of(st.st_mode);
    if (!why && !kind) {
        *out = fd;
        return FSDP_OK;
    }
    if (fd >= 0)
        close(fd);
    if (kind)
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' is %s, not a regular file", path, kind);
    return fsdp_err_sys(err, why, "cannot %s '%s'", flags & O_CREAT ? "create" : "open", path);
}

int fsdp_file_stream(FILE **out, const char *path, struct fsdp_err *err)
{
    int fd;
    FSDP_TRY(fsdp_file_open(&fd, path, O_RDONLY, err));
    *out = fdopen(fd, "r");
    if (*out)
        return FSDP_OK;
    int why = errno;
    close(fd);
    return fsdp_err_sys(err, why, "cannot open '%s'", path);
}
