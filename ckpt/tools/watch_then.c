/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "watch.h"

/* SIGTERM that comes between a look at the flag and a wait would be missed by waitpid alone. */
static int wait_for_end(pid_t pid, const char *command, struct fsdp_err *err)
{
    const struct timespec moment = {.tv_nsec = 20000000};
    int status = 0;
    pid_t got;
    while ((got = waitpid(pid, &status, WNOHANG)) == 0) {
        if (tool_is_stopped()) {
            kill(pid, SIGTERM);
            return fsdp_err_set(err, FSDP_ECANCELED, "stopped while '%s' ran", command);
        }
        nanosleep(&moment, NULL);
    }
    if (got < 0)
        return fsdp_err_sys(err, errno, "cannot wait for '%s'", command);
    if (WIFEXITED(status) && !WEXITSTATUS(status))
        return FSDP_OK;
    return WIFEXITED(status)
               ? fsdp_err_set(err, FSDP_EIO, "'%s' ended with status %d", command,
                              WEXITSTATUS(status))
               : fsdp_err_set(err, FSDP_EIO, "'%s' died of signal %d", command, WTERMSIG(status));
}

static bool is_address(const char *text)
{
    return !strncmp(text, "http://", 7) || !strncmp(text, "https://", 8);
}

static int post(const char *url, int64_t step, const char *source, const char *output,
                struct fsdp_err *err)
{
    json_t *root =
        json_pack("{s:I, s:s, s:s}", "step", (json_int_t)step, "source", source, "output", output);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    const int rc = text ? ckpt_post(url, text, tool_is_stopped, err)
                        : fsdp_err_set(err, FSDP_EINVAL,
                                       "the names of '%s' and '%s' are not UTF-8, as JSON needs "
                                       "them",
                                       source, output);

    free(text);
    json_decref(root);
    return rc;
}

static int call(const char *command, int64_t step, const char *source, const char *output,
                struct fsdp_err *err)
{
    char *const argv[] = {"sh", "-c", (char *)(uintptr_t)command, NULL};
    char number[24];
    pid_t pid;

    snprintf(number, sizeof number, "%lld", (long long)step);
    if (setenv("CKPT_STEP", number, 1) || setenv("CKPT_SOURCE", source, 1) ||
        setenv("CKPT_OUTPUT", output, 1))
        return fsdp_err_set(err, FSDP_ENOMEM, "environment of '%s': out of memory", command);
    const int failed = posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ);
    if (failed)
        return fsdp_err_sys(err, failed, "cannot start a shell for '%s'", command);
    return wait_for_end(pid, command, err);
}

int watch_then(const char *command, int64_t step, const char *source, const char *output,
               struct fsdp_err *err)
{
    return is_address(command) ? post(command, step, source, output, err)
                               : call(command, step, source, output, err);
}
