/* SPDX-License-Identifier: Apache-2.0 */
/* Being a rank: bootstrap, run the program, say last words. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "impl.h"
#include "rank/rank.h"
#include "sys/boot_ops.h"

extern char **environ;

bool launch_stop_requested(void)
{
    return rank_stop_requested();
}

/* ---- the bootstrap, traced ---- */

/* A rank whose MPI does not begin meets the others to say it with one voice. They may wait for it
 * inside of MPI, so that it speaks for itself after this time. */
enum { UNWELL_S = 10 };

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

int launch_open_boot(struct boot **out, const struct launch_args *args,
                     const struct fsdp_err *earlier)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct trace trace = {.len = 0};
    struct boot_opts opts = BOOT_OPTS_INIT;
    opts.timeout_s = args->timeout_s;
    if (earlier && opts.timeout_s > UNWELL_S)
        opts.timeout_s = UNWELL_S;
    opts.trace = add_trace;
    opts.trace_ctx = &trace;
    opts.reorder = args->reorder;
    opts.keep = args->uses_mpi || args->by_hand; /* a node that comes too late hears why */
    opts.methods = args->by_hand ? "nodes" : NULL;
    opts.count = args->verbose;

    int rc = boot_open(out, &opts, &err);
    if (args->verbose && (rc || boot_info(*out)->rank == 0))
        launch_say("%s", trace.text);
    if (rc && earlier) {
        launch_say("rank %s: %s", getenv("PMIX_RANK"), earlier->text);
        return code_of_boot_failure(earlier->status);
    }
    if (rc) {
        launch_say("%s", err.text);
        return code_of_boot_failure(rc);
    }
    const struct boot_info *info = boot_info(*out);
    if (args->verbose && info->rank == 0)
        launch_say("boot: %d %s%s on %d node%s have met through %s; job %s", info->size,
                   args->by_hand ? "launcher" : "rank", info->size == 1 ? "" : "s", info->nnodes,
                   info->nnodes == 1 ? "" : "s", info->method, info->job);
    if (args->verbose && info->rank == 0 && info->size > 1)
        launch_say("boot: in %.2f s; messages of rank 0: %llu, of another at most %llu; calls of "
                   "%s by each: %d",
                   info->cost.seconds, (unsigned long long)info->cost.root,
                   (unsigned long long)info->cost.most, info->method, info->cost.ncalls);
    return 0;
}

/* -n under a resource manager is a wish that somebody else has to fulfil. */
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

/* A program without the -- before it. */
static bool is_program(const char *path)
{
    struct stat st;
    char head[4] = "";
    FILE *in = !stat(path, &st) && S_ISREG(st.st_mode) ? fopen(path, "rb") : NULL;
    const size_t n = in ? fread(head, 1, sizeof head, in) : 0;

    if (in)
        fclose(in);
    return (n == 4 && !memcmp(head, "\177ELF", 4)) || (n >= 2 && !memcmp(head, "#!", 2));
}

int launch_check(const struct launch_args *args, const struct launch_program *program)
{
    if (!args->config)
        return 0;
    if (access(args->config, R_OK)) {
        const bool absent = errno == ENOENT && program->print_config;
        launch_say("%s: %s%s", args->config, strerror(errno),
                   absent ? " ('fsdp-launch --print-config' prints one to begin with)" : "");
        return LAUNCH_USAGE;
    }
    if (is_program(args->config)) {
        launch_say("%s is a program, not a configuration: put -- before it, as in -- %s%s",
                   args->config, strchr(args->config, '/') ? "" : "./", args->config);
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
    struct rank_watchdog *dog = NULL;

    if (!watched && oob->size > 1)
        dog = rank_watchdog_start(oob, "fsdp-launch", args->speaks);
    int code = (args->check ? program->check_nodes : program->run)(
        boot, args->config, args->noverrides, args->overrides, args->verbose);
    fflush(NULL);
    rank_watchdog_stop(dog);
    if (code != LAUNCH_DONE && code != LAUNCH_REQUEUE && code != LAUNCH_PEER_LOST && !args->check) {
        struct fsdp_err why = FSDP_ERR_INIT;
        fsdp_err_set(&why, FSDP_ECANCELED, "see its messages above");
        why.culprit = oob->rank;
        await_words(oob);
        oob->abort(oob, code, &why); /* unless a program has said more */
    }
    if (!watched && !(args->speaks && code == LAUNCH_PEER_LOST))
        rank_print_loss(oob, "fsdp-launch", args->speaks);
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
    int32_t port = info->rank == 0 ? launch_free_port(0) : 0;

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
    const int why = errno;
    launch_say_not_run(args->program[0], why);
    return why == ENOENT ? LAUNCH_NOT_FOUND : LAUNCH_CANNOT_EXECUTE;
}

int launch_run_rank(const struct launch_args *args, const struct launch_program *program)
{
    bool watched = rank_is_watched(); /* by fsdp-launch, which has checked */
    bool alone = !launch_is_rank();
    struct fsdp_err err = FSDP_ERR_INIT;
    struct boot *boot;
    int code;

    if (args->program) {
        if ((code = launch_open_boot(&boot, args, NULL)))
            return code;
        return exec_program(args, boot);
    }
    if (alone && (code = launch_check(args, program)))
        return code;
    rank_stop_install(alone);
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    bool begun = !args->uses_mpi || alone || !program->begin_mpi || !program->begin_mpi(&err);
    if ((code = launch_open_boot(&boot, args, begun ? NULL : &err))) {
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
