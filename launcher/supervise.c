/* SPDX-License-Identifier: Apache-2.0 */
/* Watches over ranks that are started here: one thread, one poll. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "supervise.h"

enum { TERM_GRACE_S = 5, DRAIN_S = 2, TICK_MS = 250 };

/* ---- signals to ranks ---- */

static void signal_ranks(struct launch_super *s, int sig)
{
    for (int r = 0; r < s->nstarted; r++)
        if (s->procs[r].live)
            kill(s->procs[r].pid, sig);
}

/* Groups outlive their leaders: whatever a rank has started goes too. */
static void kill_groups(struct launch_super *s)
{
    for (int r = 0; r < s->nstarted; r++)
        kill(-s->procs[r].pid, SIGKILL);
    s->phase = LAUNCH_KILLING;
}

static void advance(struct launch_super *s)
{
    if (fsdp_time_now() < s->next)
        return;
    if (s->phase == LAUNCH_FAILING) {
        s->phase = LAUNCH_ENDING;
        s->next = fsdp_time_now() + TERM_GRACE_S;
        signal_ranks(s, SIGTERM);
    } else if (s->phase == LAUNCH_ENDING) {
        kill_groups(s);
    }
}

/* The first request goes to the ranks, which save and leave in their own time; the second is an
 * order. */
static void on_stop(struct launch_super *s, int sig)
{
    s->stop_signal = sig;
    if (++s->nstops > 1)
        kill_groups(s);
    else
        signal_ranks(s, SIGTERM);
}

/* ---- events ---- */

static void reap(struct launch_super *s)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == s->guard.pid) /* somebody killed it; the job does without */
            s->guard.pid = 0;
        for (int r = 0; r < s->nstarted; r++) {
            struct launch_proc *proc = &s->procs[r];
            if (proc->pid != pid || !proc->live)
                continue;
            proc->live = false;
            proc->status = status;
            s->nlive--;
            if (kill(-pid, 0) && errno == ESRCH)
                launch_guard_remove(&s->guard, pid);
            launch_judge(s, r);
        }
    }
}

static void on_signals(struct launch_super *s)
{
    struct signalfd_siginfo info;
    while (read(s->sig_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        int sig = (int)info.ssi_signo;
        if (sig == SIGCHLD)
            reap(s);
        else if (sig == SIGUSR1 || sig == SIGUSR2)
            signal_ranks(s, sig);
        else
            on_stop(s, sig);
    }
}

static nfds_t list_fds(struct launch_super *s, struct pollfd *pf)
{
    nfds_t nfds = 0;
    pf[nfds++] = (struct pollfd){s->sig_fd, POLLIN, 0};
    pf[nfds++] = (struct pollfd){boot_kvs_server_fd(s->kvs), POLLIN, 0};
    for (int i = 0; i < 2; i++)
        if (s->sinks[i].nbytes)
            pf[nfds++] = (struct pollfd){s->sinks[i].fd, POLLOUT, 0};
    for (int r = 0; r < s->nstarted; r++) {
        struct launch_relay *both[2] = {&s->procs[r].out, &s->procs[r].err};
        for (int i = 0; i < 2; i++)
            if (both[i]->fd >= 0 && launch_sink_hungry(both[i]->to))
                pf[nfds++] = (struct pollfd){both[i]->fd, POLLIN, 0};
    }
    return nfds;
}

/* Returns whether a rank's output is still open. */
static bool relay_all(struct launch_super *s, bool all)
{
    bool open = false;
    for (int r = 0; r < s->nstarted; r++) {
        if (s->procs[r].out.fd >= 0)
            launch_relay_read(&s->procs[r].out);
        if (s->procs[r].err.fd >= 0)
            launch_relay_read(&s->procs[r].err);
        open |= s->procs[r].out.fd >= 0 || s->procs[r].err.fd >= 0;
    }
    launch_sink_flush(&s->sinks[0], all);
    launch_sink_flush(&s->sinks[1], all);
    return open;
}

static void watch(struct launch_super *s, struct pollfd *pf)
{
    while (s->nlive) {
        double left = (s->next - fsdp_time_now()) * 1e3;
        bool timed = s->phase == LAUNCH_FAILING || s->phase == LAUNCH_ENDING;
        int ms = timed && left < TICK_MS ? (left > 0 ? (int)left + 1 : 0) : TICK_MS;
        poll(pf, list_fds(s, pf), ms);
        boot_kvs_server_step(s->kvs); /* before exits: last words come before their rank's end */
        on_signals(s);
        reap(s);
        relay_all(s, false);
        advance(s);
    }
}

/* All ranks have ended: nothing of them may stay, and nothing they wrote may be lost. */
static void clean_up(struct launch_super *s)
{
    for (int r = 0; r < s->nstarted; r++)
        kill(-s->procs[r].pid, SIGKILL);
    launch_sweep_processes(&s->spare, s->guard.pid);
    double until = fsdp_time_now() + DRAIN_S;
    while (relay_all(s, true) && fsdp_time_now() < until)
        poll(NULL, 0, 5);
    for (int r = 0; r < s->nstarted; r++) {
        launch_relay_close(&s->procs[r].out);
        launch_relay_close(&s->procs[r].err);
    }
    relay_all(s, true);
    launch_sweep_shm(s->job.name);
    boot_kvs_server_step(s->kvs);
}

int launch_supervise(const struct launch_args *args)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct launch_super super;
    struct pollfd *pf = NULL;
    int code = LAUNCH_FAILED;

    int rc = launch_super_init(&super, args, &err);
    if (rc == FSDP_OK &&
        !(pf = fsdp_alloc(4 + 2 * (size_t)super.job.nranks, sizeof *pf, "poll table", &err)))
        rc = FSDP_ENOMEM;
    if (rc) {
        launch_say("%s", err.text);
        goto out;
    }
    code = launch_super_start(&super);
    if (code)
        kill_groups(&super);
    watch(&super, pf);
    clean_up(&super);
    if (!code)
        code = launch_conclude(&super);
out:
    fsdp_free(pf);
    launch_super_destroy(&super);
    return code;
}
