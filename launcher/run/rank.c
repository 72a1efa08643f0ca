/* SPDX-License-Identifier: Apache-2.0 */
/* Being a rank: bootstrap, run the program, say last words. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "impl.h"
#include "sys/boot_ops.h"

extern char **environ;

/* ---- stop requests ---- */

static volatile sig_atomic_t nstops;
static volatile sig_atomic_t
    alone; /* no launcher forwards signals: this is the foreground process */

/* A second request to a process alone ends it, as fsdp-launch ends its ranks. What comes within a
 * tenth of a second is one request: timeout(1) signals the process and its group. */
static void on_stop(int sig)
{
    static volatile double last;
    double now = fsdp_time_now();
    bool again = nstops && now - last > 0.1;
    last = now;
    nstops = nstops + 1;
    if (again && alone && (sig == SIGINT || sig == SIGTERM)) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
}

bool launch_stop_requested(void)
{
    return nstops > 0;
}

static void install_handlers(void)
{
    static const int stops[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    struct sigaction sa = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    sigset_t set;
    sigemptyset(&sa.sa_mask);
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++) {
        sigaction(stops[i], &sa, NULL);
        sigaddset(&set, stops[i]);
    }
    sigprocmask(SIG_UNBLOCK, &set, NULL); /* fsdp-launch has held them back until now */
    signal(SIGPIPE, SIG_IGN);
}

/* ---- the bootstrap, traced ---- */

struct trace {
    char text[2048];
    size_t len;
};

static void add_trace(void *ctx, const char *method, const char *text)
{
    struct trace *trace = ctx;
    int more = snprintf(trace->text + trace->len, sizeof trace->text - trace->len, "%sboot: %s: %s",
                        trace->len ? "\nfsdp-launch: " : "", method, text);
    trace->len += more > 0 ? (size_t)more : 0;
    trace->len = trace->len < sizeof trace->text ? trace->len : sizeof trace->text - 1;
}

bool launch_is_rank(void)
{
    char why[BOOT_WHY_NBYTES];
    const char *ntasks = getenv("SLURM_STEP_NUM_TASKS");
    if (getenv(BOOT_ENV_RENDEZVOUS))
        return true;
    if (ntasks && atoi(ntasks) > 1 && boot_slurm_ops.probe(why, sizeof why))
        return true;
    if (!getenv("PMIX_RANK"))
        return false;
    for (char **var = environ; *var; var++)
        if (strncmp(*var, "PMIX_SERVER_URI", 15) == 0)
            return true;
    return false;
}

static int code_of_boot_failure(int status)
{
    if (status == FSDP_EINVAL)
        return LAUNCH_USAGE;
    return status == FSDP_ETIMEDOUT || status == FSDP_EPEER ? LAUNCH_PEER_LOST : LAUNCH_FAILED;
}

int launch_open_boot(struct boot **out, const struct launch_args *args)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct trace trace = {.len = 0};
    struct boot_opts opts = BOOT_OPTS_INIT;
    opts.timeout_s = args->timeout_s;
    opts.trace = add_trace;
    opts.trace_ctx = &trace;
    opts.reorder = args->reorder;
    opts.keep = args->uses_mpi;
    opts.count = args->verbose;

    int rc = boot_open(out, &opts, &err);
    if (args->verbose && (rc || boot_info(*out)->rank == 0))
        launch_say("%s", trace.text);
    if (rc) {
        launch_say("%s", err.text);
        return code_of_boot_failure(rc);
    }
    const struct boot_info *info = boot_info(*out);
    if (args->verbose && info->rank == 0)
        launch_say("boot: %d rank%s on %d node%s have met through %s; job %s", info->size,
                   info->size == 1 ? "" : "s", info->nnodes, info->nnodes == 1 ? "" : "s",
                   info->method, info->job);
    if (args->verbose && info->rank == 0 && info->size > 1)
        launch_say("boot: in %.2f s; messages of rank 0: %llu, of another at most %llu; calls of "
                   "%s by each: %d",
                   info->cost.seconds, (unsigned long long)info->cost.root,
                   (unsigned long long)info->cost.most, info->method, info->cost.ncalls);
    return 0;
}

/* -n beside a resource manager is a wish that somebody else has to fulfil. */
/* Rank 0 speaks. The others wait until it has: whoever started the ranks may kill the rest when the
 * first one fails. */
static int refuse_counts(struct boot *boot, const char *text)
{
    struct fsdp_oob *oob = boot_oob(boot);

    if (oob->rank == 0)
        launch_say("%s", text);
    fsdp_oob_agree(oob, FSDP_OK, NULL);
    return LAUNCH_USAGE;
}

static int check_counts(const struct launch_args *args, struct boot *boot)
{
    const struct boot_info *info = boot_info(boot);
    char text[256];

    if (args->nranks && args->nranks != info->size) {
        snprintf(
            text, sizeof text,
            "-n %d, but whoever started this rank (%s) started %d; leave -n out, or say it there",
            args->nranks, info->method, info->size);
        return refuse_counts(boot, text);
    }
    if (args->nranks && args->nnodes != 1 && args->nnodes != info->nnodes) {
        snprintf(text, sizeof text, "--nodes %d, but the ranks are on %d nodes", args->nnodes,
                 info->nnodes);
        return refuse_counts(boot, text);
    }
    return 0;
}

/* ---- the configuration's check ---- */

int launch_check(const struct launch_args *args, const struct launch_program *program)
{
    if (!args->config)
        return 0;
    if (access(args->config, R_OK)) {
        launch_say("%s: %s", args->config, strerror(errno));
        return LAUNCH_USAGE;
    }
    return program->check ? program->check(args->config, args->noverrides, args->overrides) : 0;
}

static int check_quietly(const struct launch_args *args, const struct launch_program *program)
{
    int null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    int kept = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    fflush(stderr);
    dup2(null_fd, STDERR_FILENO);
    int code = launch_check(args, program);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(null_fd);
    close(kept);
    return code;
}

/* Nobody has checked before the ranks started: all do, and the lowest with a complaint prints it.
 */
static int check_together(const struct launch_args *args, const struct launch_program *program,
                          struct boot *boot)
{
    struct fsdp_oob *oob = boot_oob(boot);
    struct fsdp_err err = FSDP_ERR_INIT;
    int32_t mine = check_quietly(args, program);
    int32_t *all = fsdp_alloc((size_t)oob->size, sizeof *all, "check", &err);
    int code = 0;

    if (!all || oob->allgather(oob, &mine, sizeof mine, all, &err)) {
        launch_say("%s", err.text);
        code = LAUNCH_PEER_LOST;
    }
    for (int r = 0; all && r < oob->size && !code; r++) {
        code = all[r];
        if (code && r == oob->rank)
            launch_check(args, program);
    }
    fsdp_free(all);
    return code;
}

/* ---- who is lost, where no launcher of ours watches ---- */

/* One rank prints it: rank 0, or rank 1 where rank 0 is the lost one. A rank that gave up and said
 * why has been heard. */
static void print_loss(const struct launch_args *args, struct boot *boot)
{
    struct fsdp_oob *oob = boot_oob(boot);
    struct fsdp_err err = FSDP_ERR_INIT;
    int lost = -1;
    if (oob->health(oob, &err) == FSDP_OK || (args->speaks && strstr(err.text, " gave up (code")))
        return;
    if (sscanf(err.text, "rank %d", &lost) == 1 && oob->rank == (lost == 0))
        launch_say("%s", err.text);
}

struct watchdog {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const struct launch_args *args;
    struct boot *boot;
    bool running, stop;
};

/* A rank that computes for long, or hangs, does not look at its channel. When another is lost it
 * gets some seconds to notice, then it is ended. */
static void *watchdog_thread(void *arg)
{
    enum { NOTICE_S = 15 };
    struct watchdog *dog = arg;
    struct fsdp_oob *oob = boot_oob(dog->boot);
    double lost_at = 0;

    pthread_mutex_lock(&dog->lock);
    while (!dog->stop) {
        struct timespec ts;
        clock_gettime(CLOCK_REALTIME, &ts);
        ts.tv_sec += 1;
        pthread_cond_timedwait(&dog->changed, &dog->lock, &ts);
        if (dog->stop || oob->health(oob, NULL) == FSDP_OK)
            continue;
        if (lost_at == 0)
            lost_at = fsdp_time_now();
        if (fsdp_time_now() - lost_at > NOTICE_S) {
            print_loss(dog->args, dog->boot);
            _exit(LAUNCH_PEER_LOST);
        }
    }
    pthread_mutex_unlock(&dog->lock);
    return NULL;
}

static void watchdog_start(struct watchdog *dog, const struct launch_args *args, struct boot *boot)
{
    sigset_t all, old;
    *dog = (struct watchdog){.args = args, .boot = boot};
    pthread_mutex_init(&dog->lock, NULL);
    pthread_cond_init(&dog->changed, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    dog->running = pthread_create(&dog->thread, NULL, watchdog_thread, dog) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void watchdog_stop(struct watchdog *dog)
{
    pthread_mutex_lock(&dog->lock);
    dog->stop = true;
    pthread_cond_signal(&dog->changed);
    pthread_mutex_unlock(&dog->lock);
    if (dog->running)
        pthread_join(dog->thread, NULL);
    pthread_cond_destroy(&dog->changed);
    pthread_mutex_destroy(&dog->lock);
}

/* ---- running ---- */

/* Ranks that make the same mistake leave the words to one of them, which may be a moment later. */
static void await_words(struct fsdp_oob *oob)
{
    enum { AWAIT_MS = 500, STEP_MS = 10 };
    for (int ms = 0; ms < AWAIT_MS && oob->health(oob, NULL) == FSDP_OK; ms += STEP_MS)
        usleep(STEP_MS * 1000);
}

static int run_config(const struct launch_args *args, const struct launch_program *program,
                      struct boot *boot, bool watched)
{
    struct fsdp_oob *oob = boot_oob(boot);
    struct watchdog dog;

    if (!watched && oob->size > 1)
        watchdog_start(&dog, args, boot);
    int code = (args->check ? program->check_nodes : program->run)(
        boot, args->config, args->noverrides, args->overrides, args->verbose);
    fflush(NULL);
    if (!watched && oob->size > 1)
        watchdog_stop(&dog);
    if (code != LAUNCH_DONE && code != LAUNCH_REQUEUE && code != LAUNCH_PEER_LOST && !args->check) {
        await_words(oob);
        oob->abort(oob, code, "see its messages above"); /* unless a program has said more */
    }
    if (!watched && !(args->speaks && code == LAUNCH_PEER_LOST))
        print_loss(args, boot);
    return code;
}

static void set_var(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* A foreign program in the place of this rank, under a resource manager. */
static int exec_program(const struct launch_args *args, struct boot *boot)
{
    const struct boot_info *info = boot_info(boot);
    const struct fsdp_node_map *nodes = boot_nodes(boot);
    struct fsdp_oob *oob = boot_oob(boot);
    struct fsdp_err err = FSDP_ERR_INIT;
    int32_t port = info->rank == 0 ? launch_free_port() : 0;

    if (fsdp_oob_broadcast(oob, &port, sizeof port, 0, &err)) {
        launch_say("%s", err.text);
        return LAUNCH_PEER_LOST;
    }
    set_var("RANK", info->rank);
    set_var("WORLD_SIZE", info->size);
    set_var("LOCAL_RANK", info->local_rank);
    set_var("LOCAL_WORLD_SIZE", info->local_size);
    set_var("NODE_RANK", info->node);
    set_var("MASTER_PORT", port);
    setenv("MASTER_ADDR", info->nnodes == 1 ? "127.0.0.1" : nodes->host[0], 1);
    boot_close(boot);
    execvp(args->program[0], args->program);
    launch_say("%s: %s", args->program[0], strerror(errno));
    return errno == ENOENT ? LAUNCH_NOT_FOUND : LAUNCH_CANNOT_EXECUTE;
}

int launch_run_rank(const struct launch_args *args, const struct launch_program *program)
{
    bool watched = getenv(BOOT_ENV_RENDEZVOUS) != NULL; /* by fsdp-launch, which has checked */
    struct boot *boot;
    int code;

    if (args->program) {
        if ((code = launch_open_boot(&boot, args)))
            return code;
        return exec_program(args, boot);
    }
    alone = !launch_is_rank();
    if (alone && (code = launch_check(args, program)))
        return code;
    install_handlers();
    setvbuf(stdout, NULL, _IOLBF, 0);
    if ((code = launch_open_boot(&boot, args))) {
        if (!watched)
            launch_requeue_unmet(args, code);
        return code;
    }
    code = check_counts(args, boot);
    if (!code && !watched && !alone)
        code = check_together(args, program, boot);
    if (!code)
        code = run_config(args, program, boot, watched);
    if (!watched)
        launch_requeue(args, code, boot_oob(boot));
    boot_close(boot);
    return code;
}
