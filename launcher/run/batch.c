/* SPDX-License-Identifier: Apache-2.0 */
/* --sbatch: writes a batch script for this cluster, and sends it with --submit. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "impl.h"

struct batch {
    const struct launch_args *args;
    struct slurm_cluster cluster;
    struct sbatch_plan plan;
    struct sbatch_run run;
    char launcher[PATH_MAX], folder[PATH_MAX], options[96], file[PATH_MAX], job[32];
    char *output;
};

/* ---- the command line ---- */

int launch_sbatch_check(const struct launch_args *args)
{
    const struct sbatch_request *r = &args->sbatch;
    const char *alone = r->submit                 ? "--submit"
                        : r->overwrite            ? "--overwrite"
                        : r->partition            ? "--partition"
                        : r->account              ? "--account"
                        : r->time                 ? "--time"
                        : r->output               ? "--output"
                        : r->ntasks_per_node >= 0 ? "--ntasks-per-node"
                        : r->gpus_per_node >= 0   ? "--gpus-per-node"
                                                  : NULL;

    if (!r->wanted && alone) {
        launch_say("%s belongs to --sbatch; type fsdp-launch --sbatch %s ... CONFIG.yaml", alone,
                   alone);
        return LAUNCH_USAGE;
    }
    if (!r->wanted)
        return 0;
    const char *other = args->nranks           ? "-n"
                        : args->by_hand        ? "--nnodes"
                        : args->ranks_per_task ? "--ranks-per-task"
                        : args->ranks_per_gpu  ? "--ranks-per-gpu"
                        : args->check          ? "--check"
                        : args->dump_schedule  ? "--dump-schedule"
                        : args->print_config   ? "--print-config"
                        : args->prefix_output  ? "--prefix-output"
                        : args->program        ? "-- PROGRAM"
                                               : NULL;
    if (other)
        launch_say("--sbatch writes a script that trains, and has no place for %s; the job's size "
                   "is --nodes and --ntasks-per-node",
                   other);
    else if (!args->config)
        launch_say("--sbatch: give a configuration, as in fsdp-launch --sbatch run.yaml --nodes 2");
    return other || !args->config ? LAUNCH_USAGE : 0;
}

/* ---- what the script needs ---- */

static int find_places(struct batch *b, struct fsdp_err *err)
{
    const ssize_t len = readlink("/proc/self/exe", b->launcher, sizeof b->launcher - 1);
    const struct launch_args *args = b->args;

    if (len <= 0)
        return fsdp_err_sys(err, errno, "--sbatch: cannot find this program's own file");
    b->launcher[len] = '\0';
    if (!getcwd(b->folder, sizeof b->folder))
        return fsdp_err_sys(err, errno, "--sbatch: cannot find the name of this folder");
    snprintf(b->options, sizeof b->options, "%s%s", args->verbose ? " -v" : "",
             args->reorder ? " --reorder" : "");
    if (args->timeout_s != 60)
        snprintf(b->options + strlen(b->options), sizeof b->options - strlen(b->options),
                 " --timeout %g", args->timeout_s);
    FSDP_TRY(sbatch_output_make(&b->output, args->sbatch.output, b->folder, err));
    b->run = (struct sbatch_run){.launcher = b->launcher,
                                 .folder = b->folder,
                                 .options = b->options,
                                 .config = args->config,
                                 .noverrides = args->noverrides,
                                 .overrides = args->overrides,
                                 .output = b->output};
    sbatch_name_make(b->run.name, args->config);
    /* A name that begins with '-' would be an option of sbatch. */
    const char *file = args->sbatch.file ? args->sbatch.file : b->run.name;
    snprintf(b->file, sizeof b->file, "%s%s%s", file[0] == '-' && file[1] ? "./" : "", file,
             args->sbatch.file ? "" : ".sbatch");
    return FSDP_OK;
}

static enum sbatch_device device_of(const struct launch_args *args,
                                    const struct launch_program *program)
{
    char word[16] = "";

    if (!program->setting || !program->setting(word, sizeof word, "fsdp.device", args->config,
                                               args->noverrides, args->overrides))
        return SBATCH_DEVICE_AUTO;
    return !strcmp(word, "cpu")    ? SBATCH_DEVICE_CPU
           : !strcmp(word, "cuda") ? SBATCH_DEVICE_GPU
                                   : SBATCH_DEVICE_AUTO;
}

/* Texts of the configuration that a script depends on. */
static bool saves_nothing(const struct launch_args *args, const struct launch_program *program)
{
    char path[PATH_MAX];

    return program->setting && !program->setting(path, sizeof path, "checkpoint.path", args->config,
                                                 args->noverrides, args->overrides);
}

/* ---- writing ---- */

/* The output's name up to `end`. False: patterns of Slurm make it unknown here, or it is too long.
 */
static bool plain_output(char *out, size_t nbytes, const struct batch *b, const char *end)
{
    size_t len = 0;

    for (const char *at = b->output; at < end; at++) {
        if ((*at == '%' && at[1] != '%') || len + 1 >= nbytes)
            return false;
        at += *at == '%';
        out[len++] = *at;
    }
    out[len] = '\0';
    return true;
}

/* Slurm ends a job whose output it cannot open, and has no place to say why. */
static int check_output(const struct batch *b, struct fsdp_err *err)
{
    char path[PATH_MAX];
    struct stat st;

    for (const char *at = b->output + 1;; at++) {
        if (*at && *at != '/')
            continue;
        if (!*at && at[-1] == '/')
            return fsdp_err_set(err, FSDP_EINVAL,
                                "--output: %s names a folder. Type a file in it, such as "
                                "%s%%x-%%j.out",
                                b->args->sbatch.output, b->args->sbatch.output);
        if (!plain_output(path, sizeof path, b, at))
            return FSDP_OK;
        const bool there = stat(path, &st) == 0;
        if (there && *at && !S_ISDIR(st.st_mode))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "--output: %s is a file and not a folder, so the job could not "
                                "write its output there. Type --output with another folder",
                                path);
        if (there && !*at && S_ISDIR(st.st_mode))
            return fsdp_err_set(err, FSDP_EINVAL,
                                "--output: %s is a folder. Type a file in it, such as "
                                "%s/%%x-%%j.out",
                                path, path);
        if (!*at)
            return FSDP_OK;
    }
}

/* Slurm creates no folder for --output. A script on standard output may be for another machine, so
 * nothing is created for it. */
static int make_log_folder(const struct batch *b, struct fsdp_err *err)
{
    char path[PATH_MAX];

    if (!plain_output(path, sizeof path, b, strrchr(b->output, '/')) || !path[0])
        return FSDP_OK;
    if (!strcmp(b->file, "-")) {
        if (access(path, F_OK) != 0)
            launch_say("warning: --output: there is no folder %s. Create it before you submit the "
                       "script: Slurm does not, and the job fails without output",
                       path);
        return FSDP_OK;
    }
    return fsdp_err_prefix(err, fsdp_folder_make(path, 0777, err), "--output: ");
}

static int check_script(const struct batch *b, struct fsdp_err *err)
{
    const enum sbatch_owner owner = sbatch_script_owner(b->file);

    if (owner == SBATCH_FOREIGN)
        return fsdp_err_set(err, FSDP_EEXIST,
                            "%s is there already, and --sbatch has not written it. Type "
                            "--sbatch=FILE with another name",
                            b->file);
    if (owner == SBATCH_EDITED && !b->args->sbatch.overwrite)
        return fsdp_err_set(
            err, FSDP_EEXIST,
            "%s was edited since --sbatch wrote it. Type sbatch %s to submit it as it "
            "is, --sbatch=FILE to write another, or --overwrite to lose the edits",
            b->file, b->file);
    return FSDP_OK;
}

static int put_script(FILE *to, const void *ctx, struct fsdp_err *err)
{
    const struct batch *b = ctx;
    return sbatch_script_write(to, &b->plan, &b->run, &b->cluster, err);
}

static int write_script(const struct batch *b, struct fsdp_err *err)
{
    char whole[PATH_MAX];

    if (!strcmp(b->file, "-"))
        return put_script(stdout, b, err);
    FSDP_TRY(check_script(b, err));
    const char *file = realpath(b->file, whole) ? whole : b->file; /* a link stays one */
    return fsdp_file_replace(file, put_script, b, err);
}

/* ---- submitting ---- */

/* sbatch --parsable prints "JOB" or "JOB;CLUSTER"; what it says besides goes to stderr itself. */
static int submit(struct batch *b, struct fsdp_err *err)
{
    int pipe_fd[2], status = -1;
    size_t nbytes = 0;
    ssize_t got;

    fflush(NULL);
    if (pipe(pipe_fd))
        return fsdp_err_sys(err, errno, "cannot start sbatch");
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(pipe_fd[1], STDOUT_FILENO);
        close(pipe_fd[0]);
        close(pipe_fd[1]);
        execlp("sbatch", "sbatch", "--parsable", b->file, (char *)NULL);
        _exit(LAUNCH_NOT_FOUND);
    }
    close(pipe_fd[1]);
    while (pid > 0 && nbytes < sizeof b->job - 1 &&
           (got = read(pipe_fd[0], b->job + nbytes, sizeof b->job - 1 - nbytes)) > 0)
        nbytes += (size_t)got;
    close(pipe_fd[0]);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return fsdp_err_sys(err, errno, "cannot start sbatch");
    b->job[strspn(b->job, "0123456789")] = '\0';
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && b->job[0])
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "sbatch did not take %s (its reason is above). Edit the script and type: "
                        "sbatch %s",
                        b->file, b->file);
}

/* The output's name as far as it is known: of the job's name and number. */
static void expand_output(char *out, size_t nbytes, const struct batch *b)
{
    size_t len = 0;

    for (const char *at = b->output; *at && len + SLURM_NAME_NBYTES < nbytes; at++) {
        const char *put = NULL;
        if (at[0] == '%' && strchr("xjA%", at[1]) && at[1])
            put = at[1] == 'x' ? b->run.name : at[1] == '%' ? "%" : b->job;
        at += put != NULL;
        len +=
            (size_t)snprintf(out + len, nbytes - len, "%s", put ? put : (const char[]){*at, '\0'});
    }
    out[len] = '\0';
}

static void say_written(const struct batch *b)
{
    const struct sbatch_plan *p = &b->plan;
    char time[SBATCH_TIME_NBYTES], gpus[48] = "";

    if (p->gpus_per_node)
        snprintf(gpus, sizeof gpus, ", %d GPUs a node", p->gpus_per_node);
    printf("%s: %d node%s x %d = %d rank%s of %d CPUs%s, partition %s, %s\n", b->file, p->nodes,
           p->nodes == 1 ? "" : "s", p->ntasks_per_node, p->nodes * p->ntasks_per_node,
           p->nodes * p->ntasks_per_node == 1 ? "" : "s", p->cpus_per_task, gpus, p->partition.name,
           sbatch_time_text(time, p->seconds));
    if (!b->args->sbatch.submit) {
        fputs("submit it: sbatch ", stdout);
        sbatch_word_write(stdout, b->file);
        fputc('\n', stdout);
    }
}

static void say_submitted(const struct batch *b)
{
    char output[2 * PATH_MAX];

    expand_output(output, sizeof output, b);
    printf("job %s is in the queue\n"
           "  its state        squeue --jobs=%s\n"
           "  its output       tail -F ",
           b->job, b->job);
    sbatch_word_write(stdout, output);
    putchar('\n');
    if (!b->plan.saves_nothing)
        printf("  save, run again  scancel --signal=USR1 --batch %s\n", b->job);
    printf("  end it           scancel %s\n", b->job);
}

/* ---- all of it ---- */

static int plan_and_write(struct batch *b, const struct launch_program *program, int *code,
                          struct fsdp_err *err)
{
    const struct launch_args *args = b->args;
    struct sbatch_request request = args->sbatch;

    request.saves_nothing = saves_nothing(args, program);
    FSDP_TRY(find_places(b, err));
    FSDP_TRY(check_output(b, err));
    if (args->sbatch.submit && !strcmp(b->file, "-"))
        return fsdp_err_set(err, FSDP_EINVAL, "--submit needs a file: leave =- out of --sbatch");
    FSDP_TRY(slurm_cluster_ask(&b->cluster, err));
    FSDP_TRY(sbatch_plan_make(&b->plan, &request, &b->cluster, device_of(args, program), err));
    if (args->uses_mpi && !b->plan.pmix)
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "fsdp.backend=mpi needs srun --mpi=pmix, which this Slurm has not. Type "
            "fsdp.backend=host behind the configuration");
    if (program->check_ranks &&
        (*code = program->check_ranks(args->config, args->noverrides, args->overrides,
                                      b->plan.nodes * b->plan.ntasks_per_node)))
        return FSDP_OK;
    FSDP_TRY(make_log_folder(b, err));
    FSDP_TRY(write_script(b, err));
    if (b->plan.note[0])
        launch_say("note: %s", b->plan.note);
    if (program->warn_missing)
        program->warn_missing(args->config, args->noverrides, args->overrides);
    if (request.saves_nothing)
        launch_say("warning: checkpoint.path is not set, so the job saves nothing: at the time "
                   "limit or after a failure its work is lost, and it is not queued again");
    if (!strcmp(b->file, "-"))
        return FSDP_OK;
    say_written(b);
    if (!args->sbatch.submit)
        return FSDP_OK;
    FSDP_TRY(submit(b, err));
    say_submitted(b);
    return FSDP_OK;
}

int launch_sbatch(const struct launch_args *args, const struct launch_program *program)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    int code = launch_check(args, program);

    if (code)
        return code;
    struct batch *b = fsdp_alloc(1, sizeof *b, "a batch script", &err);
    int rc = b ? FSDP_OK : FSDP_ENOMEM;
    if (b) {
        b->args = args;
        rc = plan_and_write(b, program, &code, &err);
        slurm_cluster_destroy(&b->cluster);
        fsdp_free(b->output);
        fsdp_free(b);
    }
    if (rc == FSDP_OK)
        return code;
    launch_say("%s", err.text);
    return rc == FSDP_EINVAL || rc == FSDP_EEXIST || rc == FSDP_ENOTFOUND ? LAUNCH_USAGE
                                                                          : LAUNCH_FAILED;
}
