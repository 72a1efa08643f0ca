/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fsdp/base.h"

void fsdp_std_fill(void)
{
    static const int flags[] = {O_WRONLY, O_RDONLY, O_RDWR}; /* of 0 and 1, the wrong ones */

    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", flags[fd]) < 0)
            return;
}

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

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Up to nbytes, or to the file's end; *got says how many. */
static int read_up_to(size_t *got, int fd, char *to, size_t nbytes, const char *path,
                      struct fsdp_err *err)
{
    for (*got = 0; *got < nbytes;) {
        ssize_t some = pread(fd, to + *got, nbytes - *got, (off_t)*got);
        if (some < 0 && errno == EINTR)
            continue;
        if (some < 0)
            return fsdp_err_sys(err, errno, "cannot read '%s'", path);
        if (!some)
            break;
        *got += (size_t)some;
    }
    return FSDP_OK;
}

int fsdp_file_read(char **out, size_t *nbytes, const char *path, size_t max_nbytes,
                   struct fsdp_err *err)
{
    struct stat before, after;
    char *data = NULL;
    int fd, rc;

    FSDP_TRY(fsdp_file_open(&fd, path, O_RDONLY, err));
    if (fstat(fd, &before)) {
        rc = fsdp_err_sys(err, errno, "'%s'", path);
        goto out;
    }
    if ((uint64_t)before.st_size > max_nbytes) {
        rc = fsdp_err_set(err, FSDP_EINVAL, "'%s' has %lld bytes; at most %zu are accepted", path,
                          (long long)before.st_size, max_nbytes);
        goto out;
    }
    rc = FSDP_ENOMEM;
    if (!(data = fsdp_alloc_unset((size_t)before.st_size + 1, 1, "file", err)))
        goto out;
    FSDP_TRY_GOTO(read_up_to(nbytes, fd, data, (size_t)before.st_size, path, err), out);
    if (fstat(fd, &after) || !is_same(&before, &after) || *nbytes != (size_t)before.st_size)
        rc = fsdp_err_set(err, FSDP_EIO, "'%s' changed while it was read; try again", path);
    data[*nbytes] = 0;
out:
    close(fd);
    if (rc)
        fsdp_free(data);
    else
        *out = data;
    return rc;
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

bool fsdp_file_is_same(const char *a, const char *b)
{
    struct stat of_a, of_b;
    return !stat(a, &of_a) && !stat(b, &of_b) && of_a.st_dev == of_b.st_dev &&
           of_a.st_ino == of_b.st_ino;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* path: the name that it gets later, for errors. */
static int write_new(const char *other, const char *path, fsdp_file_write_f *write, const void *ctx,
                     struct fsdp_err *err)
{
    FILE *to = fopen(other, "wxe");

    if (!to)
        return fsdp_err_sys(err, errno, "cannot write '%s'", path);
    int rc = write(to, ctx, err);
    errno = 0;
    const bool failed = fflush(to) != 0 || ferror(to);
    const int why = errno;
    if ((fclose(to) != 0 || failed) && rc == FSDP_OK)
        rc = fsdp_err_sys(err,
                          failed && why ? why
                          : errno       ? errno
                                        : EIO,
                          "cannot write '%s'", path);
    return rc;
}

int fsdp_file_replace(const char *path, fsdp_file_write_f *write, const void *ctx,
                      struct fsdp_err *err)
{
    char *other = fsdp_sprintf(err, "%s.tmp%ld", path, (long)getpid());

    if (!other)
        return FSDP_ENOMEM;
    unlink(other); /* of a process that had this number before */
    int rc = write_new(other, path, write, ctx, err);
    if (rc == FSDP_OK && rename(other, path) != 0)
        rc = fsdp_err_sys(err, errno, "cannot write '%s'", path);
    if (rc)
        unlink(other);
    fsdp_free(other);
    return rc;
}

/* ---- folders --------------------------------------------------------------------------------- */

/* Each folder that ends at a slash behind path's first byte. path is as before then. */
static int make_above(char *path, unsigned mode, struct fsdp_err *err)
{
    int rc = FSDP_OK;

    for (char *slash = strchr(path + (*path == '/'), '/'); slash && rc == FSDP_OK;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, (mode_t)mode) && errno != EEXIST)
            rc = fsdp_err_sys(err, errno, "cannot create the folder '%s'", path);
        *slash = '/';
    }
    return rc;
}

int fsdp_folder_make_above(const char *file, unsigned mode, struct fsdp_err *err)
{
    char *path = fsdp_strdup(file, err);
    const int rc = path ? make_above(path, mode, err) : FSDP_ENOMEM;

    fsdp_free(path);
    return rc;
}

int fsdp_folder_make(const char *folder, unsigned mode, struct fsdp_err *err)
{
    char *path = fsdp_sprintf(err, "%s/", folder);
    const int rc = path ? make_above(path, mode, err) : FSDP_ENOMEM;

    fsdp_free(path);
    return rc;
}

int fsdp_folder_temporary(char **out, const char *name, struct fsdp_err *err)
{
    const char *temp = getenv("TMPDIR");
    char *path = fsdp_sprintf(err, "%s/%s-XXXXXX", temp && *temp ? temp : "/tmp", name);

    *out = NULL;
    if (!path)
        return FSDP_ENOMEM;
    if (!mkdtemp(path)) {
        const int rc = fsdp_err_sys(err, errno, "%s (TMPDIR)", path);
        fsdp_free(path);
        return rc;
    }
    *out = path;
    return FSDP_OK;
}
