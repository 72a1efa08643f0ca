/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POSIX file systems: ext4, XFS, NFS, Lustre, GPFS, tmpfs.
 *
 * No mmap: a file truncated by somebody else would kill the process instead of failing a call. No
 * locks: they are off on many shared file systems. A failed fsync is final. NFS clients remember
 * for up to 30 s that a name was absent; opening the folder makes them look again.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "posix_file.h"
#include "posix_tree.h"
#include "store.h"

/* Makes an NFS client forget absent names on the way to path. */
static void refresh_parents(const char *path)
{
    char part[PATH_MAX];
    for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
        size_t len = slash == path ? 1 : (size_t)(slash - path);
        if (len >= sizeof part)
            return;
        memcpy(part, path, len);
        part[len] = 0;
        int fd = open(part, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0)
            close(fd);
    }
}

/* One writer at a time, of the file that has the name: its owner before may just have removed it.
 * Where locks are off, as on some shared file systems, all may write. */
static int lock(int fd, const char *path, struct fsdp_err *err)
{
    struct stat locked, named;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        if (fstat(fd, &locked) || (stat(path, &named) == 0 && named.st_ino == locked.st_ino))
            return FSDP_OK;
    } else if (errno != EWOULDBLOCK) {
        return FSDP_OK;
    }
    return fsdp_err_set(err, FSDP_EEXIST, "'%s' is being written by another process", path);
}

/* Network file systems of one server's speed; parallel ones (Lustre, GPFS) outrun a compressor. */
static bool posix_is_remote(const char *path)
{
    static const uint32_t magics[] = {0x6969 /* NFS */,      0xff534d42 /* CIFS */,
                                      0xfe534d42 /* SMB2 */, 0x00c36400 /* CephFS */,
                                      0x5346414f /* AFS */,  0x65735546 /* FUSE */};
    struct statfs fs;
    if (statfs(path, &fs))
        return false;
    for (size_t i = 0; i < sizeof magics / sizeof magics[0]; i++)
        if ((uint32_t)fs.f_type == magics[i])
            return true;
    return false;
}

/* What is written to a file that is there would change it under its other names, too. */
static int refuse_shared(int fd, const char *path, struct fsdp_err *err)
{
    struct stat st;

    if (fstat(fd, &st))
        return fsdp_err_sys(err, errno, "'%s'", path);
    if (st.st_nlink <= 1)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EEXIST,
                        "'%s' is also a file of another name (a hard link) and is not written to; "
                        "remove it here, and give the same command again",
                        path);
}

static int posix_open(void **file, const char *path, enum ckpt_store_mode mode,
                      struct fsdp_err *err)
{
    int flags = mode == CKPT_STORE_READ     ? O_RDONLY
                : mode == CKPT_STORE_CREATE ? O_WRONLY | O_CREAT | O_EXCL
                                            : O_RDWR | O_CREAT | O_NOFOLLOW;
    int fd, rc = fsdp_file_open(&fd, path, flags, err);
    if (rc == FSDP_ENOTFOUND) {
        refresh_parents(path);
        rc = fsdp_file_open(&fd, path, flags, err);
    }
    FSDP_TRY(rc);
    if (mode == CKPT_STORE_RESUME &&
        ((rc = refuse_shared(fd, path, err)) || (rc = lock(fd, path, err)))) {
        close(fd);
        return rc;
    }
    struct posix_file *opened;
    FSDP_TRY(posix_file_create(&opened, fd, !posix_is_remote(path), err));
    *file = opened;
    return FSDP_OK;
}

static int posix_pread(void *file, const char *path, void *dst, size_t nbytes, uint64_t offset,
                       struct fsdp_err *err)
{
    return posix_file_pread(file, path, dst, nbytes, offset, err);
}

static int posix_write(void *file, const char *path, const void *src, size_t nbytes,
                       struct fsdp_err *err)
{
    return posix_file_write(file, path, src, nbytes, err);
}

static int posix_pwrite(void *file, const char *path, const void *src, size_t nbytes,
                        uint64_t offset, struct fsdp_err *err)
{
    return posix_file_pwrite(file, path, src, nbytes, offset, err);
}

static int posix_sync(void *file, const char *path, struct fsdp_err *err)
{
    return posix_file_sync(file, path, err);
}

static int posix_close(void *file, const char *path, struct fsdp_err *err)
{
    return posix_file_close(file, path, err);
}

static int posix_stat(struct ckpt_store_stat *out, const char *path, struct fsdp_err *err)
{
    struct stat st;
    if (stat(path, &st)) {
        int first = errno;
        if (first == ENOENT)
            refresh_parents(path);
        if (first != ENOENT || stat(path, &st)) /* below a file there is nothing */
            return fsdp_err_sys(err, first == ENOTDIR ? ENOENT : first, "'%s'", path);
    }
    *out = posix_file_stat_of(&st);
    return FSDP_OK;
}

static int posix_stat_open(struct ckpt_store_stat *out, void *file, const char *path,
                           struct fsdp_err *err)
{
    return posix_file_stat(out, file, path, err);
}

static int posix_list(const char *path, ckpt_store_entry_f *fn, void *ctx, struct fsdp_err *err)
{
    DIR *dir = opendir(path);
    if (!dir)
        return fsdp_err_sys(err, errno, "cannot list '%s'", path);
    int rc = FSDP_OK;
    while (rc == FSDP_OK) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry) {
            if (errno)
                rc = fsdp_err_sys(err, errno, "cannot list '%s'", path);
            break;
        }
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            rc = fn(ctx, entry->d_name, err);
    }
    closedir(dir);
    return rc;
}

/* A link whose target is missing: there is a name, but no folder. */
static int refuse_dangling(const char *path, struct fsdp_err *err)
{
    char target[PATH_MAX];
    struct stat st;
    const ssize_t len = readlink(path, target, sizeof target - 1);

    if (len < 0 || stat(path, &st) == 0 || errno != ENOENT)
        return FSDP_OK;
    target[len] = '\0';
    return fsdp_err_set(err, FSDP_EINVAL,
                        "'%s' is a link to '%s', which is not there; make that folder, or remove "
                        "the link",
                        path, target);
}

static int posix_mkdir(const char *path, struct fsdp_err *err)
{
    if (mkdir(path, 0777) == 0)
        return FSDP_OK;
    const int why = errno;
    if (why == EEXIST)
        FSDP_TRY(refuse_dangling(path, err));
    return fsdp_err_sys(err, why, "cannot create the folder '%s'", path);
}

static int posix_remove(const char *path, struct fsdp_err *err)
{
    return remove(path) ? fsdp_err_sys(err, errno, "cannot remove '%s'", path) : FSDP_OK;
}

/* A hard link refuses an existing target on every file system that has links. */
static int rename_file_fresh(const char *from, const char *to, struct fsdp_err *err)
{
    if (link(from, to) == 0) {
        if (unlink(from))
            return fsdp_err_sys(err, errno, "cannot remove '%s'", from);
        return FSDP_OK;
    }
    int first = errno;
    if (first == EEXIST)
        return fsdp_err_sys(err, first, "cannot publish '%s'", to);
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return FSDP_OK;
    if (errno == EEXIST)
        return fsdp_err_sys(err, errno, "cannot publish '%s'", to);
    struct stat st;
    if (lstat(to, &st) == 0)
        return fsdp_err_sys(err, EEXIST, "cannot publish '%s'", to);
    return rename(from, to) ? fsdp_err_sys(err, errno, "cannot publish '%s'", to) : FSDP_OK;
}

static int posix_rename(const char *from, const char *to, bool replace, struct fsdp_err *err)
{
    struct stat st;
    if (lstat(from, &st))
        return fsdp_err_sys(err, errno, "cannot rename '%s'", from);
    if (!S_ISDIR(st.st_mode) && !replace)
        return rename_file_fresh(from, to, err);
    if (rename(from, to)) {
        int why = errno == ENOTDIR || errno == EISDIR ? EEXIST : errno;
        return fsdp_err_sys(err, why, "cannot rename '%s' to '%s'", from, to);
    }
    return FSDP_OK;
}

static int posix_exchange(const char *a, const char *b, struct fsdp_err *err)
{
    if (renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0)
        return FSDP_OK;
    if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%s': the file system cannot exchange names",
                            b);
    return fsdp_err_sys(err, errno, "cannot exchange '%s' and '%s'", a, b);
}

static int posix_sync_folder(const char *path, struct fsdp_err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return fsdp_err_sys(err, errno, "cannot open folder '%s'", path);
    /* Some file systems cannot sync a folder and say EINVAL; their renames need none. */
    int rc = fsync(fd) && errno != EINVAL && errno != EINTR
                 ? fsdp_err_sys(err, errno, "cannot sync folder '%s'", path)
                 : FSDP_OK;
    close(fd);
    return rc;
}

static int posix_space(uint64_t *out, const char *path, struct fsdp_err *err)
{
    struct statvfs vfs;
    if (statvfs(path, &vfs))
        return fsdp_err_sys(err, errno, "'%s'", path);
    if (__builtin_mul_overflow((uint64_t)vfs.f_bavail, (uint64_t)vfs.f_frsize, out))
        *out = UINT64_MAX;
    return FSDP_OK;
}

const struct ckpt_store_ops ckpt_store_posix = {
    .abi = CKPT_STORE_ABI,
    .name = "posix",
    .open = posix_open,
    .pread = posix_pread,
    .write = posix_write,
    .pwrite = posix_pwrite,
    .sync = posix_sync,
    .close = posix_close,
    .stat = posix_stat,
    .stat_open = posix_stat_open,
    .list = posix_list,
    .mkdir = posix_mkdir,
    .remove = posix_remove,
    .walk = posix_tree_walk,
    .remove_items = posix_tree_remove,
    .rename = posix_rename,
    .exchange = posix_exchange,
    .sync_folder = posix_sync_folder,
    .is_remote = posix_is_remote,
    .space = posix_space,
    .cached_nbytes = POSIX_FILE_CACHED_NBYTES,
};
