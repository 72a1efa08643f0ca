/* SPDX-License-Identifier: Apache-2.0 */
/* The copies lie in a folder of their own while they are opened, next to an empty file that has the
 * size of the token file. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/source/temporary.h"
#include "index.h"

enum { BUFFER_NBYTES = 1 << 20 };

static int copy_bytes(int fd, void *from, uint64_t nbytes, const char *address,
                      const struct data_remote *remote, struct fsdp_err *err)
{
    char *buffer = fsdp_alloc_unset(BUFFER_NBYTES, 1, "index", err);
    int rc = buffer ? FSDP_OK : FSDP_ENOMEM;

    for (uint64_t at = 0; rc == FSDP_OK && at < nbytes;) {
        const size_t here = nbytes - at < BUFFER_NBYTES ? (size_t)(nbytes - at) : BUFFER_NBYTES;
        rc = remote->pread(from, buffer, here, at, err);
        if (rc == FSDP_OK)
            rc = data_temporary_write(fd, address, buffer, here, at, err);
        at += here;
    }
    fsdp_free(buffer);
    return rc;
}

static int create_file(int *fd, const char *path, struct fsdp_err *err)
{
    *fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return *fd >= 0 ? FSDP_OK : fsdp_err_sys(err, errno, "%s", path);
}

/* *exists: it is there, and lies at `path` now. */
static int copy_file(bool *exists, const char *address, const char *path,
                     const struct data_remote *remote, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    uint64_t nbytes;
    void *from;
    int fd, rc = remote->open(&from, &nbytes, address, &why);

    *exists = false;
    if (rc == FSDP_ENOTFOUND)
        return FSDP_OK;
    if (rc)
        return fsdp_err_pass(err, rc, &why);
    rc = create_file(&fd, path, err);
    if (rc == FSDP_OK) {
        rc = copy_bytes(fd, from, nbytes, address, remote, err);
        close(fd);
    }
    remote->close(from);
    *exists = rc == FSDP_OK;
    return rc;
}

static int make_size(const char *path, uint64_t nbytes, struct fsdp_err *err)
{
    int fd, rc;

    FSDP_TRY(create_file(&fd, path, err));
    rc = ftruncate(fd, (off_t)nbytes) ? fsdp_err_sys(err, errno, "%s", path) : FSDP_OK;
    close(fd);
    return rc;
}

/* names: the token file, its index, which tokens are learned; of the copies and of the store. */
static int open_copies(struct tokens **out, char *const copies[3], char *const addresses[3],
                       uint64_t nbytes, const struct data_remote *remote, struct fsdp_err *err)
{
    bool exists;

    FSDP_TRY(copy_file(&exists, addresses[1], copies[1], remote, err));
    if (!exists)
        return FSDP_OK;
    FSDP_TRY(copy_file(&exists, addresses[2], copies[2], remote, err));
    FSDP_TRY(make_size(copies[0], nbytes, err));
    return fsdp_err_prefix(err, tokens_open(out, copies[0], err), "%s: ", addresses[0]);
}

int data_index_fetch(struct tokens **out, const char *address, uint64_t nbytes,
                     const struct data_remote *remote, struct fsdp_err *err)
{
    static const char *const ends[3] = {"", ".index", ".learned"};
    char *copies[3] = {NULL}, *addresses[3] = {NULL};
    char *folder;
    int rc = fsdp_folder_temporary(&folder, "fsdp-index", err);

    *out = NULL;
    for (int i = 0; rc == FSDP_OK && i < 3; i++) {
        copies[i] = fsdp_sprintf(err, "%s/tokens%s", folder, ends[i]);
        addresses[i] = fsdp_sprintf(err, "%s%s", address, ends[i]);
        rc = copies[i] && addresses[i] ? FSDP_OK : FSDP_ENOMEM;
    }
    if (rc == FSDP_OK)
        rc = open_copies(out, copies, addresses, nbytes, remote, err);
    for (int i = 0; i < 3; i++) {
        if (copies[i])
            unlink(copies[i]);
        fsdp_free(copies[i]);
        fsdp_free(addresses[i]);
    }
    if (folder)
        rmdir(folder);
    fsdp_free(folder);
    return rc;
}
