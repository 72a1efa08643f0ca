/* SPDX-License-Identifier: Apache-2.0 */
/* Watches over ranks that are started here: one thread, one poll. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "supervise.h"

enum { TERM_GRACE_S = 5, DRAIN_S = 2, TICK_MS = 250, ONE_REQUEST_MS = 100 };

/* ---- signals to ranks ---- */

static void signal_ranks(struct launch_super *s, int sig)
{
    for (int i = 0; i < s->nstarted; i++)
        if (s->procs[i].live)
            kill(s->procs[i].pid, sig);
}

/* A group lives as long as anything of it does, and keeps its number; then the number is free for
 * strangers, who must not get what was meant for it. */
static void note_groups(struct launch_super *s)
{
    for (int i = 0; i < s->nstarted; i++) {
        struct launch_proc *proc = &s->procs[i];
        if (proc->live || proc->group_gone || kill(-proc->pid, 0) == 0 || errno != ESRCH)
            continue;
        proc->group_gone = true;
        if (s->guard.pid)
            launch_guard_remove(&s->guard, proc->pid);
    }
}

/* Groups outlive their leaders: whatever a rank has started goes too. */
static void kill_groups(struct launch_super *s)
{
    note_groups(s);
    for (int i = 0; i < s->nstarted; i++)
        if (!s->procs[i].group_gone)
            kill(-s->procs[i].pid, SIGKILL);
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

/* The first request goes to the ranks, which save and leave in their own time, however long that
 * takes; the second is an order. timeout(1) and others signal the process and its group: what comes
 * at once is one request. */
static void on_stop(struct launch_super *s, int sig)
{
    double now = fsdp_time_now();
    if (s->nstops && now - s->stopped < ONE_REQUEST_MS / 1e3)
        return;
    s->stop_signal = sig;
    s->stopped = now;
    if (++s->nstops > 1)
        kill_groups(s);
    else
        signal_ranks(s, SIGTERM);
}

static void hear_nodes(struct launch_super *s)
{
    int most = s->pulse ? launch_pulse_tell(s->pulse, s->nstops) : 0;
    if (most <= s->nstops)
        return;
    s->nstops = most - 1;
    s->stopped = 0;
    on_stop(s, SIGTERM);
}

/* ---- events ---- */

static void reap(struct launch_super *s)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == s->guard.pid) /* somebody killed it; the job does without */
            s->guard.pid = 0;
        for (int i = 0; i < s->nstarted; i++) {
            struct launch_proc *proc = &s->procs[i];
            if (proc->pid != pid || !proc->live)
                continue;
            proc->live = false;
            proc->status = status;
            s->nlive--;
            launch_judge(s, i);
        }
    }
    note_groups(s);
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
    if (s->kvs)
        pf[nfds++] = (struct pollfd){boot_kvs_server_fd(s->kvs), POLLIN, 0};
    for (int i = 0; i < 2; i++)
        if (s->sinks[i].nbytes)
            pf[nfds++] = (struct pollfd){s->sinks[i].fd, POLLOUT, 0};
    for (int i = 0; i < s->nstarted; i++) {
        struct launch_relay *both[2] = {&s->procs[i].out, &s->procs[i].err};
        for (int which = 0; which < 2; which++)
            if (both[which]->fd >= 0 && launch_sink_hungry(both[which]->to))
                pf[nfds++] = (struct pollfd){both[which]->fd, POLLIN, 0};
    }
    return nfds;
}

static void serve_ranks(struct launch_super *s)
{
    if (s->kvs)
        boot_kvs_server_step(s->kvs);
}

/* Returns whether a rank's output is still open. */
static bool relay_all(struct launch_super *s)
{
    bool open = false;
    for (int i = 0; i < s->nstarted; i++) {
        if (s->procs[i].out.fd >= 0)
            launch_relay_read(&s->procs[i].out);
        if (s->procs[i].err.fd >= 0)
            launch_relay_read(&s->procs[i].err);
        open |= s->procs[i].out.fd >= 0 || s->procs[i].err.fd >= 0;
    }
    launch_sink_flush(&s->sinks[0]);
    launch_sink_flush(&s->sinks[1]);
    return open;
}

static void watch_ranks(struct launch_super *s, struct pollfd *pf)
{
    while (s->nlive) {
        double left = (s->next - fsdp_time_now()) * 1e3;
        bool timed = s->phase == LAUNCH_FAILING || s->phase == LAUNCH_ENDING;
        int ms = timed && left < TICK_MS ? (left > 0 ? (int)left + 1 : 0) : TICK_MS;
        poll(pf, list_fds(s, pf), ms);
        serve_ranks(s); /* before exits: last words come before their rank's end */
        on_signals(s);
        reap(s);
        launch_judge_agents(s);
        hear_nodes(s);
        relay_all(s);
        advance(s);
    }
}

static void close_relays(struct launch_super *s)
{
    for (int i = 0; i < s->nstarted; i++) {
        launch_relay_close(&s->procs[i].out);
        launch_relay_close(&s->procs[i].err);
    }
}

/* Nothing that the ranks wrote may be lost on a slow reader, who has all the time of a job that
 * went well. After a failure one that takes nothing for DRAIN_S is given up; DRAIN_S after a second
 * request to stop (which may come now) every one is, however many requests follow. Pipes that
 * somebody else holds open are left after DRAIN_S. */
static void drain(struct launch_super *s, struct pollfd *pf)
{
    double moved = fsdp_time_now(), ordered = moved, closing = moved + DRAIN_S;
    size_t before = 0;
    bool is_ordered = s->nstops > 1;

    for (;;) {
        serve_ranks(s); /* hang-ups would keep poll from waiting */
        bool open = relay_all(s);
        size_t nbytes = s->sinks[0].nbytes + s->sinks[1].nbytes;
        double now = fsdp_time_now();
        if (nbytes != before)
            moved = now;
        before = nbytes;
        if (!nbytes && (!open || now >= closing)) {
            if (!open)
                return;
            close_relays(s); /* may pass on a last line */
            continue;
        }
        on_signals(s);
        if (s->nstops > 1 && !is_ordered) {
            is_ordered = true;
            ordered = now;
        }
        if ((s->cause >= 0 && now - moved > DRAIN_S) || (is_ordered && now - ordered > DRAIN_S))
            return;
        poll(pf, list_fds(s, pf), open ? 5 : TICK_MS);
    }
}

/* All ranks have ended: nothing of them may stay. */
static void clean_up(struct launch_super *s, struct pollfd *pf)
{
    kill_groups(s);
    launch_sweep_processes(&s->spare, s->guard.pid);
    drain(s, pf);
    close_relays(s);
    launch_sink_flush(&s->sinks[0]);
    launch_sink_flush(&s->sinks[1]);
    launch_sweep_shm(s->job.name);
}

int launch_supervise(const struct launch_args *args, struct fsdp_oob *agents,
                     const struct fsdp_node_map *nodes)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct launch_super super;
    struct pollfd *pf = NULL;
    int code = LAUNCH_FAILED;

    int rc = launch_super_init(&super, args, agents, nodes, &err);
    if (rc == FSDP_OK &&
        !(pf = fsdp_alloc(4 + 2 * (size_t)super.job.nlocal, sizeof *pf, "poll table", &err)))
        rc = FSDP_ENOMEM;
    if (rc) {
        launch_say("%s", err.text);
        goto out;
    }
    code = launch_super_start(&super);
    if (code)
        kill_groups(&super);
    watch_ranks(&super, pf);
    launch_judge_end(&super);
    clean_up(&super, pf);
    if (!code)
        code = launch_conclude(&super);
    launch_pulse_stop(super.pulse);
    super.pulse = NULL;
out:
    fsdp_free(pf);
    launch_super_destroy(&super);
    return code;
}
