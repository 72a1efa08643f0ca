/* SPDX-License-Identifier: Apache-2.0 */
/* credential_process: a command of the profile that prints credentials as JSON. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "creds.h"

enum { DEADLINE_SECONDS = 60, MAX_NBYTES = 64 << 10 };

static int start_process(pid_t *pid, int *fd, const char *command, struct fsdp_err *err)
{
    char *const argv[] = {"sh", "-c", (char *)(uintptr_t)command, NULL};
    posix_spawn_file_actions_t actions;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return fsdp_err_sys(err, errno, "credential_process: no pipe");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    int failed = posix_spawn(pid, "/bin/sh", &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (failed) {
        close(ends[0]);
        return fsdp_err_sys(err, failed, "credential_process: cannot start a shell");
    }
    *fd = ends[0];
    return FSDP_OK;
}

/* All that it prints; false if it takes too long, or prints too much. */
static bool read_all(char *data, size_t *nbytes, int fd)
{
    double deadline = fsdp_time_now() + DEADLINE_SECONDS;
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    *nbytes = 0;
    for (;;) {
        double left = deadline - fsdp_time_now();
        int ready = left > 0 ? poll(&poller, 1, (int)(left * 1000) + 1) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0 || *nbytes == MAX_NBYTES)
            return false;
        ssize_t got = read(fd, data + *nbytes, MAX_NBYTES - *nbytes);
        if (got == 0)
            return true;
        if (got < 0 && errno != EINTR)
            return false;
        *nbytes += got > 0 ? (size_t)got : 0;
    }
}

int ckpt_s3_creds_process(struct ckpt_s3_creds *out, const char *command, struct fsdp_err *err)
{
    size_t nbytes = 0;
    pid_t pid;
    int fd = -1, status = 0;
    char *data = fsdp_alloc(MAX_NBYTES, 1, "credentials", err);
    if (!data)
        return FSDP_ENOMEM;
    int rc = start_process(&pid, &fd, command, err);
    if (rc == FSDP_OK) {
        bool whole = read_all(data, &nbytes, fd);
        close(fd);
        if (!whole)
            kill(pid, SIGKILL);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
        if (!whole)
            rc = fsdp_err_set(err, FSDP_ETIMEDOUT,
                              "credential_process of profile '%s' gave no answer within %d s",
                              ckpt_s3_profile_name(), DEADLINE_SECONDS);
        else if (!WIFEXITED(status) || WEXITSTATUS(status))
            rc = fsdp_err_set(err, FSDP_EIO, "credential_process of profile '%s' failed (%s %d)",
                              ckpt_s3_profile_name(), WIFEXITED(status) ? "status" : "signal",
                              WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    }
    if (rc == FSDP_OK)
        rc = ckpt_s3_creds_json(out, data, nbytes, "SessionToken", "credential_process", err);
    OPENSSL_cleanse(data, MAX_NBYTES);
    fsdp_free(data);
    return rc;
}
