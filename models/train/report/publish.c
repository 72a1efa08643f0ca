/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "publish.h"

/* ---- whose it is ----------------------------------------------------------------------------- */

enum { HEAD_NBYTES = 4096 };

static int check_head(const char *path, const char *mark, const char *key, struct fsdp_err *err)
{
    char head[HEAD_NBYTES];
    FILE *from = NULL;

    const int rc = fsdp_file_stream(&from, path, err);
    if (rc)
        return fsdp_err_prefix(err, rc, "%s: ", key);
    const size_t nbytes = fread(head, 1, sizeof head, from);
    fclose(from);
    if (!nbytes || memmem(head, nbytes, mark, strlen(mark)))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EEXIST,
                        "%s: '%s' is there already, and no run has written it; name another file, "
                        "or remove it",
                        key, path);
}

int publish_place(char **out, const char *path, const char *mark, const char *metrics,
                  const char *key, struct fsdp_err *err)
{
    char whole[PATH_MAX];

    if (access(path, F_OK) == 0) {
        if (metrics[0] && fsdp_file_is_same(path, metrics))
            return fsdp_err_set(err, FSDP_EEXIST, "%s: '%s' is the file of log.metrics, too", key,
                                path);
        FSDP_TRY(check_head(path, mark, key, err));
    }
    *out = fsdp_strdup(realpath(path, whole) ? whole : path, err);
    return *out ? FSDP_OK : FSDP_ENOMEM;
}

/* ---- writing --------------------------------------------------------------------------------- */

static int write_other(const char *other, publish_f *write, const void *ctx, struct fsdp_err *err)
{
    FILE *to = fopen(other, "wxe");

    if (!to)
        return fsdp_err_sys(err, errno, "cannot write '%s'", other);
    int rc = write(to, ctx, err);
    errno = 0;
    const bool failed = fflush(to) != 0 || ferror(to);
    const int why = errno;
    if ((fclose(to) != 0 || failed) && !rc)
        rc = fsdp_err_sys(err,
                          failed && why ? why
                          : errno       ? errno
                                        : EIO,
                          "cannot write '%s'", other);
    return rc;
}

/* The other name is this process's own, so that two runs never share a half. */
int publish_file(const char *path, publish_f *write, const void *ctx, struct fsdp_err *err)
{
    char *other = fsdp_sprintf(err, "%s.tmp%ld", path, (long)getpid());

    if (!other)
        return FSDP_ENOMEM;
    unlink(other); /* of a process that had this number before */
    int rc = write_other(other, write, ctx, err);
    if (!rc && rename(other, path) != 0)
        rc = fsdp_err_sys(err, errno, "cannot write '%s'", path);
    if (rc)
        unlink(other);
    fsdp_free(other);
    return rc;
}
