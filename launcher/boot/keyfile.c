/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "keyfile.h"
#include "channel/wire.h"

#define KEY_FILE_HINT "; " BOOT_ENV_KEY_FILE " names another file, which all nodes must see"

static int choose_path(char *path, size_t nbytes, struct fsdp_err *err)
{
    const char *given = getenv(BOOT_ENV_KEY_FILE), *home = getenv("HOME");
    const struct passwd *user = home && home[0] ? NULL : getpwuid(getuid());
    int len;

    if (!home || !home[0])
        home = user && user->pw_dir ? user->pw_dir : "";
    if (given && given[0])
        len = snprintf(path, nbytes, "%s", given);
    else if (home[0])
        len = snprintf(path, nbytes, "%s/.config/fsdp/key", home);
    else
        return fsdp_err_set(err, FSDP_EINVAL, "no home folder for the job's key" KEY_FILE_HINT);
    if (len < 0 || (size_t)len >= nbytes)
        return fsdp_err_set(err, FSDP_EINVAL, "%.100s...: this path is too long" KEY_FILE_HINT,
                            path);
    return FSDP_OK;
}

static int write_key(int fd, struct fsdp_err *err)
{
    struct boot_secret key;
    FSDP_TRY(boot_secret_create(&key, err));
    if (write(fd, key.bytes, sizeof key.bytes) != (ssize_t)sizeof key.bytes || fsync(fd))
        return fsdp_err_sys(err, errno, "cannot write the job's key");
    return FSDP_OK;
}

/* Ranks of many nodes may come here at once: a whole file gets the name, and the first one wins. */
static int make_key(const char *path, struct fsdp_err *err)
{
    char temp[1100];
    uint64_t salt;
    int rc, fd;

    FSDP_TRY(fsdp_err_hint(err, fsdp_folder_make_above(path, 0700, err),
                           " for the job's key" KEY_FILE_HINT));
    FSDP_TRY(boot_random(&salt, sizeof salt, err));
    snprintf(temp, sizeof temp, "%s.%016llx", path, (unsigned long long)salt);
    fd = open(temp, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0)
        return fsdp_err_sys(err, errno, "cannot make the job's key %s" KEY_FILE_HINT, temp);
    rc = write_key(fd, err);
    if (close(fd) && rc == FSDP_OK)
        rc = fsdp_err_sys(err, errno, "cannot write the job's key %s" KEY_FILE_HINT, temp);
    if (rc == FSDP_OK && link(temp, path) && errno != EEXIST)
        rc = fsdp_err_sys(err, errno, "cannot make the job's key %s" KEY_FILE_HINT, path);
    unlink(temp);
    return rc;
}

static int read_key(struct boot_secret *out, int fd, const char *path, struct fsdp_err *err)
{
    struct stat st;
    char more;
    if (fstat(fd, &st))
        return fsdp_err_sys(err, errno, "%s", path);
    if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s, the key that keeps strangers out of the job, can be read by "
                            "others; chmod 600 it, or remove it and a new one is made",
                            path);
    if (read(fd, out->bytes, sizeof out->bytes) != (ssize_t)sizeof out->bytes ||
        read(fd, &more, 1) != 0)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s is not a key (%d random bytes); remove it and a new one is made",
                            path, BOOT_SECRET_NBYTES);
    return FSDP_OK;
}

int boot_keyfile_find(bool *here, char *path, size_t path_nbytes, struct fsdp_err *err)
{
    struct stat st;

    FSDP_TRY(choose_path(path, path_nbytes, err));
    *here = lstat(path, &st) == 0;
    return FSDP_OK;
}

int boot_keyfile_secret(struct boot_secret *out, char *path, size_t path_nbytes, const char *job,
                        struct fsdp_err *err)
{
    struct boot_secret key;
    unsigned int len = sizeof out->bytes;
    int fd = -1, rc;

    FSDP_TRY(choose_path(path, path_nbytes, err));
    for (int tries = 0; fd < 0 && tries < 2; tries++) {
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0 && errno != ENOENT)
            return fsdp_err_sys(err, errno, "cannot read the job's key %s" KEY_FILE_HINT, path);
        if (fd < 0)
            FSDP_TRY(make_key(path, err));
    }
    if (fd < 0)
        return fsdp_err_set(err, FSDP_EIO,
                            "the job's key %s is not there after it was made" KEY_FILE_HINT, path);
    rc = read_key(&key, fd, path, err);
    close(fd);
    if (rc)
        return rc;
    if (!HMAC(EVP_sha256(), key.bytes, sizeof key.bytes, (const unsigned char *)job, strlen(job),
              out->bytes, &len))
        return fsdp_err_set(err, FSDP_EINTERNAL, "HMAC-SHA256 is not available in libcrypto");
    return FSDP_OK;
}
