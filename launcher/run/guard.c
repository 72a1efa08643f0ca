/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard holds the reading end of a pipe whose writing end only the launcher holds. When the
 * launcher dies in any way, SIGKILL included, the pipe ends, and the guard kills the process groups
 * that it was told of. (Each rank also gets a death signal from the kernel; its children do not.)
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "impl.h"

enum { MAX_GROUPS = 4096 };

/* What the launcher writes: a process group to add (> 0), to forget (< 0), or 0 for a good end. */
static void serve_guard(int fd, const char *job)
{
    static int32_t groups[MAX_GROUPS];
    int ngroups = 0;
    int32_t word;
    ssize_t got;

    while ((got = read(fd, &word, sizeof word)) != 0) {
        if (got != (ssize_t)sizeof word)
            continue;
        if (word == 0)
            return;
        if (word > 0 && ngroups < MAX_GROUPS)
            groups[ngroups++] = word;
        for (int i = 0; word < 0 && i < ngroups; i++)
            if (groups[i] == -word)
                groups[i] = groups[--ngroups];
    }
    for (int i = 0; i < ngroups; i++)
        kill(-groups[i], SIGKILL);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    launch_sweep_shm(job);
}

int launch_guard_start(struct launch_guard *out, const char *job, struct fsdp_err *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return fsdp_err_sys(err, errno, "cannot make a pipe");
    pid_t pid = fork();
    if (pid < 0) {
        int why = errno;
        close(ends[0]);
        close(ends[1]);
        return fsdp_err_sys(err, why, "cannot start the guard process");
    }
    if (pid == 0) {
        /* Out of the terminal's reach, and holding nothing open that somebody waits for. */
        setsid();
        prctl(PR_SET_NAME, "launch-guard");
        dup2(ends[0], 0);
        closefrom(1);
        serve_guard(0, job);
        _exit(0);
    }
    close(ends[0]);
    *out = (struct launch_guard){pid, ends[1]};
    return FSDP_OK;
}

static void tell_guard(struct launch_guard *guard, int32_t word)
{
    ssize_t done = write(guard->fd, &word, sizeof word);
    (void)done; /* a guard that was killed is missed, no more */
}

void launch_guard_add(struct launch_guard *guard, pid_t pgid)
{
    tell_guard(guard, (int32_t)pgid);
}

void launch_guard_remove(struct launch_guard *guard, pid_t pgid)
{
    tell_guard(guard, -(int32_t)pgid);
}

void launch_guard_stop(struct launch_guard *guard)
{
    enum { STOP_MS = 2000, STEP_MS = 2 };

    tell_guard(guard, 0);
    close(guard->fd);
    /* It ends at once, unless somebody has stopped it; then it has nothing left to guard. */
    for (int ms = 0; ms < STOP_MS; ms += STEP_MS) {
        pid_t got = waitpid(guard->pid, NULL, WNOHANG);
        if (got == guard->pid || (got < 0 && errno != EINTR))
            return;
        usleep(STEP_MS * 1000);
    }
    kill(guard->pid, SIGKILL);
    while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR)
        ;
}
