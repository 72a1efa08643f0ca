/* SPDX-License-Identifier: Apache-2.0 */
/* The files that fsdp-plan writes. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plan.h"

/* ---- may they be written? -------------------------------------------------------------------- */

/* One file under two names, or through a link. */
static bool is_same(const char *a, const char *b)
{
    struct stat x, y;
    return a && b && !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static int check_file(const char *option, const char *path, const struct plan_settings *set,
                      const char *config, struct fsdp_err *err)
{
    char model[4096] = "";
    struct stat st;

    if (set->model)
        snprintf(model, sizeof model, "%s/config.json", set->model);
    const char *const inputs[] = {config, set->cluster, set->model ? model : NULL, set->against,
                                  set->calibrate};
    for (size_t i = 0; path && i < sizeof inputs / sizeof inputs[0]; i++)
        if (is_same(path, inputs[i]))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "--%s %s: that is %s, which the plan is made of; name another file",
                                option, path, inputs[i]);
    if (path && !stat(path, &st) && S_ISDIR(st.st_mode))
        return fsdp_err_set(err, FSDP_EINVAL, "--%s %s is a folder: name a file in it", option,
                            path);
    return FSDP_OK;
}

int plan_check_files(const struct plan_settings *set, const char *config, struct fsdp_err *err)
{
    const struct {
        const char *option, *path;
    } outputs[] = {
        {"json", set->json}, {"trace", set->trace}, {"chart", set->chart}, {"output", set->output}};
    const size_t n = sizeof outputs / sizeof outputs[0];

    for (size_t i = 0; i < n; i++) {
        FSDP_TRY(check_file(outputs[i].option, outputs[i].path, set, config, err));
        for (size_t k = 0; k < i; k++)
            if (outputs[i].path && outputs[k].path && strcmp(outputs[i].path, "/dev/null") != 0 &&
                (!strcmp(outputs[i].path, outputs[k].path) ||
                 is_same(outputs[i].path, outputs[k].path)))
                return fsdp_err_set(err, FSDP_EINVAL, "--%s and --%s are one file: name two",
                                    outputs[k].option, outputs[i].option);
    }
    return FSDP_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* The reason is in *err; a file that cannot be written is FSDP_EIO whatever it is. */
static int refuse_file(struct fsdp_err *err, const char *path)
{
    fsdp_err_sys(err, errno ? errno : EIO, "cannot write %s", path);
    return FSDP_EIO;
}

static int write_to(FILE *to, const char *path, plan_write_f *write, void *ctx,
                    struct fsdp_err *err)
{
    int rc = write(ctx, to, err);
    const bool bad = ferror(to);

    errno = 0;
    if ((to == stdout ? fflush(to) : fclose(to)) || bad)
        rc = rc ? rc : refuse_file(err, path);
    return rc;
}

static int replace_file(const char *path, plan_write_f *write, void *ctx, struct fsdp_err *err)
{
    char *unfinished = fsdp_sprintf(err, "%s.tmp%ld", path, (long)getpid());

    if (!unfinished)
        return FSDP_ENOMEM;
    FILE *to = fopen(unfinished, "wxe");
    int rc = to ? write_to(to, path, write, ctx, err) : refuse_file(err, path);
    if (!rc && rename(unfinished, path))
        rc = refuse_file(err, path);
    if (rc && to)
        unlink(unfinished);
    fsdp_free(unfinished);
    return rc;
}

int plan_write(const char *path, plan_write_f *write, void *ctx, struct fsdp_err *err)
{
    struct stat st;

    if (!strcmp(path, "-"))
        return write_to(stdout, "standard output", write, ctx, err);
    if (lstat(path, &st) || S_ISREG(st.st_mode))
        return replace_file(path, write, ctx, err);
    FILE *to = fopen(path, "we"); /* a pipe, a device or a link: what it names is written */
    return to ? write_to(to, path, write, ctx, err) : refuse_file(err, path);
}
