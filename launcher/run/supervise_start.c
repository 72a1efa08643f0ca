/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "boot/resolve.h"
#include "supervise.h"

/* ---- what ranks need before they start ---- */

/* The secret in an anonymous file that ranks inherit. Returns the descriptor or a status. */
static int keep_secret(const struct boot_secret *secret, struct fsdp_err *err)
{
    int fd = memfd_create("boot-secret", MFD_CLOEXEC);
    if (fd < 0)
        return fsdp_err_sys(err, errno, "cannot make a file for the job's secret");
    if (write(fd, secret->bytes, sizeof secret->bytes) != (ssize_t)sizeof secret->bytes) {
        int why = errno;
        close(fd);
        return fsdp_err_sys(err, why, "cannot write the job's secret");
    }
    return fd;
}

static const char *host_of_rank(void *ctx, int rank)
{
    static char host[FSDP_HOST_NBYTES]; /* the launcher has one thread */
    return launch_host_of(ctx, rank, host);
}

static int init_job(struct launch_job *job, const struct launch_args *args, struct fsdp_err *err)
{
    uint32_t salt;
    job->args = args;
    job->nranks = job->nlocal = args->nranks ? args->nranks : 1;
    job->nnodes = args->nnodes;
    snprintf(job->master_addr, sizeof job->master_addr, "127.0.0.1");
    if (gethostname(job->host, sizeof job->host - 1))
        snprintf(job->host, sizeof job->host, "localhost");
    FSDP_TRY(boot_random(&salt, sizeof salt, err));
    snprintf(job->name, sizeof job->name, "fsdp-%d-%08x", (int)getpid(), salt);
    job->master_port = launch_free_port(args->by_hand ? args->master_port + 1 : 0);
    return FSDP_OK;
}

/* What agent 0 tells the others before any rank is started. */
struct together {
    struct boot_secret secret;
    struct boot_contact at;
    char name[64];
    int32_t master_port;
};

static int serve_meeting(struct launch_super *s, struct together *all, bool loopback,
                         struct fsdp_err *err)
{
    FSDP_TRY(boot_secret_create(&all->secret, err));
    FSDP_TRY(boot_kvs_server_create(&s->kvs, s->job.nranks, &all->secret, loopback, 0, host_of_rank,
                                    &s->job, err));
    boot_kvs_server_contact(s->kvs, &all->at);
    memcpy(all->name, s->job.name, sizeof all->name);
    all->master_port = s->job.master_port;
    return FSDP_OK;
}

static int tell_agents(struct launch_super *s, struct together *all, struct fsdp_err *err)
{
    const struct fsdp_node_map *nodes = s->job.agents;
    int rc = s->agents->rank ? FSDP_OK : serve_meeting(s, all, s->loopback, err);

    FSDP_TRY(fsdp_oob_agree(s->agents, rc, err));
    FSDP_TRY(fsdp_oob_broadcast(s->agents, all, sizeof *all, 0, err));
    memcpy(s->job.name, all->name, sizeof s->job.name);
    s->job.master_port = all->master_port;
    if (s->job.args->by_hand)
        snprintf(s->job.master_addr, sizeof s->job.master_addr, "%s", s->job.args->master_addr);
    else if (nodes->nnodes > 1)
        snprintf(s->job.master_addr, sizeof s->job.master_addr, "%s", nodes->host[0]);
    return FSDP_OK;
}

/* Which ranks each agent starts. Those of a resource manager have one command line, and another
 * number is a mistake in it; nodes that were started by hand may differ. */
static int count_ranks(struct launch_super *s, struct fsdp_err *err)
{
    struct launch_job *job = &s->job;
    const int nagents = s->agents->size;
    int32_t mine = job->args->ranks_per_task;
    int rc = FSDP_OK;

    job->firsts = fsdp_alloc((size_t)nagents + 1, sizeof *job->firsts, "ranks of agents", err);
    FSDP_TRY(fsdp_oob_agree(s->agents, job->firsts ? FSDP_OK : FSDP_ENOMEM, err));
    FSDP_TRY(s->agents->allgather(s->agents, &mine, sizeof mine, job->firsts + 1, err));
    if (job->firsts[1] != mine && !job->args->by_hand)
        rc = fsdp_err_set(err, FSDP_EMISMATCH, "--ranks-per-task %d here and %d at task 0", mine,
                          job->firsts[1]);
    FSDP_TRY(fsdp_oob_agree(s->agents, rc, err));
    for (int i = 0; i < nagents; i++)
        job->firsts[i + 1] += job->firsts[i];
    job->nlocal = mine;
    job->nranks = job->firsts[nagents];
    job->first = job->firsts[s->agents->rank];
    return FSDP_OK;
}

static int init_rendezvous(struct launch_super *s, struct fsdp_err *err)
{
    struct together all = {.master_port = 0};
    char *to = s->job.rendezvous;
    size_t len = 0, room = sizeof s->job.rendezvous;

    FSDP_TRY(s->agents ? tell_agents(s, &all, err) : serve_meeting(s, &all, true, err));
    for (int i = 0; i < all.at.naddrs; i++)
        len += (size_t)snprintf(to + len, room - len, "%s%s", i ? "," : "", all.at.addr[i]);
    snprintf(to + len, room - len, ":%u", all.at.port);
    s->job.secret_fd = keep_secret(&all.secret, err);
    return s->job.secret_fd < 0 ? s->job.secret_fd : FSDP_OK;
}

/* All signals of interest arrive through one descriptor. Those that the caller ignores stay so. */
static int init_signals(struct launch_super *s, struct fsdp_err *err)
{
    static const int wanted[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    struct sigaction ignore = {.sa_handler = SIG_IGN}, plain = {.sa_handler = SIG_DFL};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        sigaddset(&set, wanted[i]);
    sigprocmask(SIG_BLOCK, &set, &s->old_mask);
    sigaction(SIGPIPE, &ignore, &s->old_pipe);
    sigaction(SIGCHLD, &plain, &s->old_child);
    s->sig_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->sig_fd < 0 ? fsdp_err_sys(err, errno, "signalfd") : FSDP_OK;
}

int launch_super_init(struct launch_super *s, const struct launch_args *args,
                      struct fsdp_oob *agents, const struct fsdp_node_map *nodes,
                      struct fsdp_err *err)
{
    *s = (struct launch_super){.cause = -1, .sig_fd = -1, .job.secret_fd = -1, .guard = {0, -1}};
    s->sinks[0].fd = STDOUT_FILENO;
    s->sinks[1].fd = STDERR_FILENO;
    FSDP_TRY(init_job(&s->job, args, err));
    if (agents) {
        s->agents = agents;
        s->job.agents = nodes;
        s->loopback =
            nodes->nnodes == 1 || (args->by_hand && boot_host_is_loopback(args->master_addr));
        memcpy(s->job.host, nodes->host[agents->rank], sizeof s->job.host);
        FSDP_TRY(count_ranks(s, err));
    }
    if (!(s->procs = fsdp_alloc((size_t)s->job.nlocal, sizeof *s->procs, "ranks", err)))
        return FSDP_ENOMEM;
    for (int i = 0; i < s->job.nlocal; i++)
        s->procs[i].out.fd = s->procs[i].err.fd = -1;
    launch_children_list(&s->spare);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    FSDP_TRY(init_rendezvous(s, err));
    if (args->by_hand)
        FSDP_TRY(launch_pulse_start(&s->pulse, agents, err));
    return init_signals(s, err);
}

void launch_super_destroy(struct launch_super *s)
{
    launch_pulse_stop(s->pulse);
    if (s->guard.pid)
        launch_guard_stop(&s->guard);
    else if (s->guard.fd >= 0)
        close(s->guard.fd);
    boot_kvs_server_destroy(s->kvs);
    if (s->job.secret_fd >= 0)
        close(s->job.secret_fd);
    if (s->sig_fd >= 0) {
        close(s->sig_fd);
        sigaction(SIGPIPE, &s->old_pipe, NULL);
        sigaction(SIGCHLD, &s->old_child, NULL);
        sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
    }
    fsdp_free(s->sinks[0].data);
    fsdp_free(s->sinks[1].data);
    fsdp_free(s->procs);
    fsdp_free(s->job.firsts);
}

/* ---- starting a rank ---- */

/* Everything that may allocate is done before the fork. */
struct start {
    char **env, **argv;
    const char *path; /* NULL: search argv[0] on PATH */
    int fds[3];       /* the rank's stdin, stdout, stderr */
    int report_fd;    /* gets the errno of a failed exec */
    pid_t launcher;
};

/* A Ctrl-C that came before the rank had its own process group was meant for the launcher, which
 * has got it too: ignoring a pending signal drops it. */
static void drop_terminal_signals(void)
{
    static const int sigs[] = {SIGINT, SIGQUIT, SIGHUP};
    struct sigaction ignore = {.sa_handler = SIG_IGN}, old;
    for (size_t i = 0; i < sizeof sigs / sizeof sigs[0]; i++) {
        sigaction(sigs[i], &ignore, &old);
        sigaction(sigs[i], &old, NULL);
    }
}

/* A configuration's rank gets its requests to stop when it can understand them; see rank.c.
 */
static void set_child_mask(const struct launch_super *s)
{
    sigset_t mask = s->old_mask;
    if (!s->job.args->program) {
        sigaddset(&mask, SIGTERM);
        sigaddset(&mask, SIGUSR1);
        sigaddset(&mask, SIGUSR2);
    }
    sigprocmask(SIG_SETMASK, &mask, NULL);
}

static void child_exec(const struct launch_super *s, const struct start *start, int rank)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != start->launcher)
        _exit(LAUNCH_FAILED);
    for (int i = 0; i < 3; i++)
        if (start->fds[i] != i)
            dup2(start->fds[i], i);
    fcntl(s->job.secret_fd, F_SETFD, 0);
    sigaction(SIGPIPE, &s->old_pipe, NULL);
    sigaction(SIGCHLD, &s->old_child, NULL);
    if (rank == 0) /* it writes to the terminal although it is not in its foreground group */
        signal(SIGTTOU, SIG_IGN);
    drop_terminal_signals();
    set_child_mask(s);
    if (start->path)
        execve(start->path, start->argv, start->env);
    else
        execvpe(start->argv[0], start->argv, start->env);
    int why = errno;
    ssize_t done = write(start->report_fd, &why, sizeof why);
    (void)done;
    _exit(why == ENOENT ? LAUNCH_NOT_FOUND : LAUNCH_CANNOT_EXECUTE);
}

static int open_relay(struct launch_super *s, struct launch_relay *relay, int i, int which,
                      int *theirs)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return -1;
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    *relay = (struct launch_relay){.fd = ends[0],
                                   .rank = s->job.first + i,
                                   .prefix = s->job.args->prefix_output,
                                   .to = &s->sinks[which]};
    *theirs = ends[1];
    return 0;
}

/* Rank 0 has what the launcher has, except a terminal's input, which belongs to the foreground. */
static int choose_fds(struct launch_super *s, int i, int null_fd, int fds[3])
{
    struct launch_proc *proc = &s->procs[i];
    bool root = s->job.first + i == 0;
    fds[0] = root && !isatty(STDIN_FILENO) ? STDIN_FILENO : null_fd;
    fds[1] = STDOUT_FILENO;
    fds[2] = STDERR_FILENO;
    if (root)
        return 0;
    return open_relay(s, &proc->out, i, 0, &fds[1]) || open_relay(s, &proc->err, i, 1, &fds[2]);
}

static int start_rank(struct launch_super *s, struct start *start, int i, int null_fd)
{
    struct launch_proc *proc = &s->procs[i];
    int rank = s->job.first + i, rc = choose_fds(s, i, null_fd, start->fds) ? -errno : 0;

    start->env = rc ? NULL : launch_env_create(&s->job, rank);
    if (!rc && !start->env)
        rc = -ENOMEM;
    proc->pid = rc ? -1 : fork();
    if (proc->pid == 0)
        child_exec(s, start, rank);
    if (proc->pid < 0)
        rc = rc ? rc : -errno;
    launch_env_destroy(start->env);
    for (int fd = 1; fd < 3; fd++)
        if (start->fds[fd] > 2)
            close(start->fds[fd]);
    if (rc)
        return rc;
    setpgid(proc->pid, proc->pid); /* whoever is first: a signal must not miss the group */
    proc->live = true;
    s->nstarted++;
    s->nlive++;
    return 0;
}

/* argv of a rank that runs a configuration: this program again, as a rank. */
static char **own_argv(const struct launch_args *args, char *timeout, size_t timeout_nbytes)
{
    size_t nargs = 7 + (size_t)args->noverrides, i = 0;
    char **argv = fsdp_alloc(nargs, sizeof *argv, "command line", NULL);
    if (!argv)
        return NULL;
    snprintf(timeout, timeout_nbytes, "--timeout=%g", args->timeout_s);
    argv[i++] = (char *)(uintptr_t) "fsdp-launch";
    argv[i++] = timeout;
    if (args->verbose)
        argv[i++] = (char *)(uintptr_t) "-v";
    if (args->check)
        argv[i++] = (char *)(uintptr_t) "--check";
    if (args->config)
        argv[i++] = (char *)(uintptr_t)args->config;
    for (int o = 0; o < args->noverrides; o++)
        argv[i++] = args->overrides[o];
    return argv;
}

static int report_exec(const struct launch_super *s, int report_fd)
{
    int why = 0;
    ssize_t got;
    do
        got = read(report_fd, &why, sizeof why); /* ends when every rank runs its program */
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof why)
        return 0;
    launch_say_not_run(s->job.args->program ? s->job.args->program[0] : "fsdp-launch", why);
    return why == ENOENT ? LAUNCH_NOT_FOUND : LAUNCH_CANNOT_EXECUTE;
}

/* After the ranks, so that the ranks are the launcher's first children, in their order. */
static int start_guard(struct launch_super *s)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    if (launch_guard_start(&s->guard, s->job.name, &err)) {
        launch_say("%s", err.text);
        return LAUNCH_FAILED;
    }
    for (int i = 0; i < s->nstarted; i++)
        launch_guard_add(&s->guard, s->procs[i].pid);
    return 0;
}

int launch_super_start(struct launch_super *s)
{
    const struct launch_args *args = s->job.args;
    char exe[PATH_MAX] = "", timeout[40];
    struct start start = {.argv = args->program, .launcher = getpid()};
    int report[2] = {-1, -1}, null_fd = open("/dev/null", O_RDWR | O_CLOEXEC), rc = 0;

    if (!args->program) {
        ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
        start.path = len > 0 && access(exe, X_OK) == 0 ? exe : "/proc/self/exe";
        start.argv = own_argv(args, timeout, sizeof timeout);
    }
    if (!start.argv || null_fd < 0 || pipe2(report, O_CLOEXEC))
        rc = -errno;
    start.report_fd = report[1];
    fflush(NULL);
    for (int i = 0; i < s->job.nlocal && rc == 0; i++)
        rc = start_rank(s, &start, i, null_fd);
    if (report[1] >= 0)
        close(report[1]);
    if (rc)
        launch_say("cannot start rank %d of %d: %s", s->job.first + s->nstarted, s->job.nranks,
                   strerror(-rc));
    rc = rc ? LAUNCH_FAILED : report_exec(s, report[0]);
    rc = rc ? rc : start_guard(s);
    if (report[0] >= 0)
        close(report[0]);
    if (null_fd >= 0)
        close(null_fd);
    if (!args->program)
        fsdp_free(start.argv);
    return rc;
}
