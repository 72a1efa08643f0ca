/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With arguments this program is fsdp-launch around fake_program.h, for launch.sh and mpirun.sh.
 * Without, it tests what a shell cannot: Ctrl-C, terminals, and what the launcher leaves in the
 * process that calls it.
 */
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>

#include "fake_program.h"
#include "fsdp/base.h"
#include "tap.h"

static char config[64];

/* Runs this program as the launcher on a terminal of its own; its output up to `want`, then sends
 * `key` (0: none) and reads on to the end. Returns the wait status. */
static int on_terminal(char *const argv[], const char *want, char key, char *out, size_t nbytes)
{
    int fd, status = -1;
    size_t len = 0;
    bool sent = false;
    pid_t pid = forkpty(&fd, NULL, NULL, NULL);
    if (pid == 0) {
        alarm(300);
        execv("/proc/self/exe", argv);
        _exit(99);
    }
    out[0] = 0;
    for (;;) {
        ssize_t got = read(fd, out + len, nbytes - 1 - len);
        if (got <= 0)
            break;
        len += (size_t)got;
        out[len] = 0;
        if (!sent && key && strstr(out, want)) {
            sent = true;
            got = write(fd, &key, 1);
        }
    }
    waitpid(pid, &status, 0);
    close(fd);
    return status;
}

#define ARGS(...)                                                                                  \
    (char *[])                                                                                     \
    {                                                                                              \
        (char *)"fsdp-launch", __VA_ARGS__, NULL                                                   \
    }

static void check_terminal(void)
{
    char out[8192];
    int status = on_terminal(
        ARGS((char *)"-n", (char *)"2", (char *)"--", (char *)"sh", (char *)"-c",
             (char *)"test -t 1 && echo rank $RANK has a terminal; test -t 0 || echo no input"),
        "", 0, out, sizeof out);
    ok(status == 0 && strstr(out, "rank 0 has a terminal") && !strstr(out, "rank 1 has"),
       "rank 0 writes to the terminal, others through the launcher");
    ok(strstr(out, "no input") != NULL, "and nobody reads from it in the background");
}

static void check_ctrl_c(void)
{
    char out[8192];
    int status = on_terminal(
        ARGS((char *)"-n", (char *)"3", config, (char *)"fake.mode=stop", (char *)"fake.say=1"),
        "running", 3, out, sizeof out);
    ok(WIFEXITED(status) && WEXITSTATUS(status) == LAUNCH_REQUEUE, "Ctrl-C: requeue me (%x)",
       status);
    ok(strstr(out, "rank 0 saved") && strstr(out, "rank 1 saved") && strstr(out, "rank 2 saved"),
       "Ctrl-C: all ranks save");
    status = on_terminal(ARGS(config, (char *)"fake.mode=stop", (char *)"fake.say=1"), "running", 3,
                         out, sizeof out);
    ok(WIFEXITED(status) && WEXITSTATUS(status) == LAUNCH_REQUEUE && strstr(out, "rank 0 saved"),
       "Ctrl-C: a single rank saves");
    status = on_terminal(ARGS((char *)"-n", (char *)"2", (char *)"--", (char *)"sh", (char *)"-c",
                              (char *)"echo running; exec sleep 1000"),
                         "running", 3, out, sizeof out);
    ok(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM,
       "Ctrl-C: a program gets SIGTERM (%x)", status);
}

static int count_fds(void)
{
    int nfds = 0;
    for (int fd = 0; fd < 256; fd++)
        nfds += fcntl(fd, F_GETFD) >= 0;
    return nfds;
}

static void check_in_process(void)
{
    int before = count_fds();
    sigset_t old, now;
    bool same = true;
    sigprocmask(SIG_SETMASK, NULL, &old);
    int code = launch_main(5, ARGS((char *)"-n", (char *)"2", (char *)"--", (char *)"true"),
                           &fake_program);
    sigprocmask(SIG_SETMASK, NULL, &now);
    for (int sig = 1; sig < NSIG; sig++)
        same &= sigismember(&old, sig) == sigismember(&now, sig);
    ok(code == 0, "launch_main runs a program");
    ok(count_fds() == before && same, "and leaves descriptors and signals as they were");
    ok(waitpid(-1, NULL, WNOHANG) < 0, "and no child");
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return launch_main(argc, argv, &fake_program);
    snprintf(config, sizeof config, "/tmp/test-launch-%d.yaml", (int)getpid());
    FILE *file = fopen(config, "w");
    fprintf(file, "fake: {}\n");
    fclose(file);
    check_in_process();
    check_terminal();
    check_ctrl_c();
    unlink(config);
    return tap_done();
}
