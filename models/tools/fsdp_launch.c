/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-launch: the launcher, running the training program or any other. */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "from/from.h"
#include "launch.h"
#include "train/train.h"

/* A file that is there is not overwritten; one that cannot be written whole does not stay. */
static int write_new(const char *path, const char *text, struct fsdp_err *err)
{
    FILE *file = path ? fopen(path, "wxe") : stdout;
    if (!file && errno == EEXIST)
        return fsdp_err_set(err, FSDP_EEXIST, "%s is there already; -o names another file", path);
    if (!file)
        return fsdp_err_sys(err, errno, "%s", path);
    bool bad = fputs(text, file) < 0;
    bad |= (path ? fclose(file) : fflush(file)) != 0;
    if (!bad)
        return FSDP_OK;
    const int why = errno;
    if (path)
        unlink(path);
    return fsdp_err_sys(err, why, "%s", path ? path : "standard output");
}

static int convert(const char *path, const char *to)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    char *yaml = NULL, *summary = NULL;

    int rc = from_convert(&yaml, &summary, path, &err);
    if (rc == FSDP_OK)
        rc = write_new(to, yaml, &err);
    if (rc)
        fprintf(stderr, "fsdp-launch: %s\n", err.text);
    else
        fputs(summary, stderr);
    fsdp_free(yaml);
    fsdp_free(summary);
    if (rc == FSDP_OK)
        return LAUNCH_DONE;
    return rc == FSDP_EINVAL || rc == FSDP_ENOTFOUND || rc == FSDP_EEXIST ? LAUNCH_USAGE
                                                                          : LAUNCH_FAILED;
}

static const struct launch_program program = {
    .name = "train",
    .check = train_check,
    .keys = train_keys,
    .print_config = train_print_config,
    .print_metrics = train_print_metrics,
    .speaks = true,
    .dump_schedule = train_dump_schedule,
    .trace_key = "log.trace",
    .uses_mpi = train_uses_mpi,
    .setting = train_setting,
    .warn_missing = train_warn_missing,
    .check_ranks = train_check_ranks,
    .begin_mpi = train_begin_mpi,
    .run = train_run,
    .check_nodes = train_check_job,
    .convert = convert,
};

int main(int argc, char **argv)
{
    return launch_main(argc, argv, &program);
}
