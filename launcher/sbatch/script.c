/* SPDX-License-Identifier: Apache-2.0 */
/* The script's text. Words of the command line are quoted for the shell; those of #SBATCH lines,
 * which sbatch itself reads, are refused where its reader would take them apart. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sbatch.h"

void sbatch_name_make(char out[SLURM_NAME_NBYTES], const char *config)
{
    const char *slash = strrchr(config, '/'), *name = slash ? slash + 1 : config;
    const char *dot = strrchr(name, '.');
    size_t len = dot && dot != name ? (size_t)(dot - name) : strlen(name);

    len = len < SLURM_NAME_NBYTES ? len : SLURM_NAME_NBYTES - 1;
    for (size_t i = 0; i < len; i++) {
        const char c = name[i];
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                           (c >= '0' && c <= '9') || strchr("._-+", c);
        out[i] = plain ? c : '_';
    }
    out[len] = '\0';
}

int sbatch_output_make(char **out, const char *given, const char *folder, struct fsdp_err *err)
{
    const char *pattern = given ? given : "logs/%x-%j.out";
    const size_t most = 2 * strlen(folder) + strlen(pattern) + 2;
    size_t len = 0;
    char *text = fsdp_alloc(most, 1, "the output's name", err);

    if (!text)
        return FSDP_ENOMEM;
    for (const char *at = folder; *at && pattern[0] != '/'; at++) {
        text[len++] = *at;
        if (*at == '%')
            text[len++] = '%';
    }
    snprintf(text + len, most - len, "%s%s", pattern[0] == '/' ? "" : "/", pattern);
    *out = text;
    return FSDP_OK;
}

void sbatch_word_write(FILE *to, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-+=./:,@%";

    if (*word && strspn(word, plain) == strlen(word)) {
        fputs(word, to);
        return;
    }
    fputc('\'', to);
    for (; *word; word++)
        fputs(*word == '\'' ? "'\\''" : (const char[]){*word, '\0'}, to);
    fputc('\'', to);
}

static int put_option(FILE *to, const char *option, const char *value, struct fsdp_err *err)
{
    if (strpbrk(value, "\"\\'\n\r") || !*value)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "--%s %s: sbatch reads no quotes, backslashes or ends of lines there. "
                            "Type another",
                            option, *value ? value : "''");
    if (strpbrk(value, " \t#"))
        fprintf(to, "#SBATCH --%s=\"%s\"\n", option, value);
    else
        fprintf(to, "#SBATCH --%s=%s\n", option, value);
    return FSDP_OK;
}

static void put_head(FILE *to, const struct sbatch_plan *plan, const struct sbatch_run *run,
                     const struct slurm_cluster *cluster)
{
    const struct slurm_shape *s = &plan->shape;
    char time[SBATCH_TIME_NBYTES] = "no limit", gpus[128] = "", memory[FSDP_NBYTES_TEXT];

    if (s->ngpus)
        snprintf(gpus, sizeof gpus, ", %d GPUs%s%s", s->ngpus, s->gpu[0] ? " of type " : "",
                 s->gpu);
    if (plan->partition.max_seconds != SLURM_UNLIMITED)
        sbatch_time_text(time, plan->partition.max_seconds);
    fputs("#!/bin/bash\n", to);
    fprintf(to, "# %s: %d node%s x %d rank%s.\n", run->name, plan->nodes,
            plan->nodes == 1 ? "" : "s", plan->ntasks_per_node,
            plan->ntasks_per_node == 1 ? "" : "s");
    fprintf(to, SBATCH_MARK " for partition %s%s%s: nodes of %d CPUs%s,\n", plan->partition.name,
            cluster->name[0] ? " of cluster " : "", cluster->name, s->ncpus, gpus);
    fprintf(to, "# %s; a job may run for %s. Edit it as you like.\n",
            fsdp_nbytes_text(memory, (uint64_t)s->memory_mib << 20), time);
    fputs("#\n", to);
}

static int put_options(FILE *to, const struct sbatch_plan *plan, const struct sbatch_run *run,
                       struct fsdp_err *err)
{
    char time[SBATCH_TIME_NBYTES];

    FSDP_TRY(put_option(to, "job-name", run->name, err));
    FSDP_TRY(put_option(to, "output", run->output, err));
    FSDP_TRY(put_option(to, "partition", plan->partition.name, err));
    if (plan->account)
        FSDP_TRY(put_option(to, "account", plan->account, err));
    else
        fputs("##SBATCH --account=NAME\n", to);
    fprintf(to, "#SBATCH --nodes=%d\n#SBATCH --ntasks-per-node=%d\n#SBATCH --cpus-per-task=%d\n",
            plan->nodes, plan->ntasks_per_node, plan->cpus_per_task);
    if (plan->gpus_per_node)
        fprintf(to, "#SBATCH --gpus-per-node=%d\n", plan->gpus_per_node);
    if (plan->memory_mib)
        fprintf(to, "#SBATCH --mem=%" PRId64 "M\n", plan->memory_mib);
    else
        fputs("#SBATCH --mem=0\n", to);
    fprintf(to, "#SBATCH --time=%s\n", sbatch_time_text(time, plan->seconds));
    fprintf(to, "#SBATCH --%s\n", plan->saves_nothing ? "no-requeue" : "requeue");
    fputs("#SBATCH --open-mode=append\n"
          "##SBATCH --qos=NAME\n"
          "##SBATCH --constraint=FEATURE\n"
          "##SBATCH --mail-type=END,FAIL,REQUEUE --mail-user=YOU@EXAMPLE.ORG\n",
          to);
    return FSDP_OK;
}

static void put_promise(FILE *to, const struct sbatch_plan *plan)
{
    static const char saves[] =
        "\n# The run saves before the time limit, when it is warned, and at its own intervals;\n"
        "# --requeue then puts the job back into the queue, and it resumes. Ranks end each\n"
        "# other: srun must not kill those that still save.\n";
    static const char saves_nothing[] =
        "\n# checkpoint.path is not set, so the run saves nothing: at the time limit or after a\n"
        "# failure its work is lost, and the job is not queued again. Ranks end each other:\n"
        "# srun must not kill those that still say why.\n";

    fputs(plan->saves_nothing ? saves_nothing : saves, to);
}

/* The shell only passes signals on: the run itself knows when it ends, saves, and requeues. */
static void put_body(FILE *to, const struct sbatch_plan *plan, const struct sbatch_run *run)
{
    fputs("set -u\ncd ", to);
    sbatch_word_write(to, run->folder);
    fputs(" || exit 1\n\n"
          "# From Slurm 22.05 on srun takes this from no other place.\n"
          "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\n",
          to);
    if (plan->pmix)
        fputs("# Between few nodes Slurm's PMIx waits for all of them only with this fence.\n"
              "export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}\n",
              to);
    put_promise(to, plan);
    fputs("srun --mpi=", to);
    fprintf(to, "%s --kill-on-bad-exit=0 --wait=60 \\\n    ", plan->pmix ? "pmix" : "none");
    sbatch_word_write(to, run->launcher);
    fprintf(to, "%s%s ", plan->saves_nothing ? "" : " --requeue", run->options);
    sbatch_word_write(to, run->config);
    for (int i = 0; i < run->noverrides; i++) {
        fputs(" \\\n    ", to);
        sbatch_word_write(to, run->overrides[i]);
    }
    if (plan->force_cpu)
        fputs(" \\\n    fsdp.device=cpu", to);
    fputs(" &\nstep=$!\n"
          "\n# A warning that reaches this shell is passed on to the ranks.\n"
          "trap 'kill -USR1 $step' USR1 USR2\n"
          "trap 'kill -TERM $step' TERM\n"
          "while :; do\n"
          "    wait \"$step\"\n"
          "    status=$?\n"
          "    kill -0 \"$step\" 2>/dev/null || break # else a signal has ended the wait alone\n"
          "done\n"
          "exit \"$status\"\n",
          to);
}

int sbatch_script_write(FILE *to, const struct sbatch_plan *plan, const struct sbatch_run *run,
                        const struct slurm_cluster *cluster, struct fsdp_err *err)
{
    char *text = NULL;
    size_t nbytes = 0;
    FILE *memory = open_memstream(&text, &nbytes);

    if (!memory)
        return fsdp_err_sys(err, errno, "cannot write the script");
    put_head(memory, plan, run, cluster);
    int rc = put_options(memory, plan, run, err);
    put_body(memory, plan, run);
    if (fclose(memory) != 0 && rc == FSDP_OK)
        rc = fsdp_err_sys(err, errno, "cannot write the script");
    errno = 0;
    if (rc == FSDP_OK)
        sbatch_sealed_write(to, text, nbytes);
    if (rc == FSDP_OK && (fflush(to) != 0 || ferror(to)))
        rc = fsdp_err_sys(err, errno ? errno : EIO, "cannot write the script");
    free(text);
    return rc;
}
