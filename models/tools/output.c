/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* What is written, and what became of it. */
struct content {
    fsdp_file_write_f *write;
    const void *ctx;
    int *status;
};

static int put_content(FILE *to, const void *ctx, struct fsdp_err *err)
{
    const struct content *c = ctx;
    return *c->status = c->write(to, c->ctx, err);
}

/* A stream that is open, which is closed unless it is standard output. */
static int write_through(FILE *to, const char *path, const struct content *c, struct fsdp_err *err)
{
    int rc = put_content(to, c, err);
    const bool bad = ferror(to);

    errno = 0;
    if (((to == stdout ? fflush(to) : fclose(to)) || bad) && rc == FSDP_OK)
        rc = fsdp_err_sys(err, errno ? errno : EIO, "cannot write %s", path);
    return rc;
}

static int open_and_write(const char *path, const struct content *c, struct fsdp_err *err)
{
    FILE *to = fopen(path, "we");
    return to ? write_through(to, path, c, err)
              : fsdp_err_sys(err, errno, "cannot write '%s'", path);
}

int output_write(const char *path, fsdp_file_write_f *write, const void *ctx, struct fsdp_err *err)
{
    int status = FSDP_OK;
    const struct content c = {write, ctx, &status};
    struct stat st;

    const int rc = !strcmp(path, "-") ? write_through(stdout, "standard output", &c, err)
                   : lstat(path, &st) || S_ISREG(st.st_mode)
                       ? fsdp_file_replace(path, put_content, &c, err)
                       : open_and_write(path, &c, err);
    return rc && !status ? FSDP_EIO : rc;
}
