/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sbatch.h: a batch script for this cluster, as fsdp-launch --sbatch writes it.
 *
 *     request (the command line) + cluster (what Slurm says) -> plan -> script -> sbatch
 *
 * A request that the partition cannot give is refused with its numbers and with what to type.
 */
#ifndef SBATCH_H
#define SBATCH_H

#include <stdio.h>

#include "cluster.h"

/* As the command line has it; NULL and -1: not given. */
struct sbatch_request {
    bool wanted, submit, overwrite;
    const char *file; /* the script; NULL: by the configuration's name, "-": standard output */
    const char *partition, *account, *time, *output;
    int nodes, ntasks_per_node, gpus_per_node;
    bool saves_nothing; /* so the configuration says */
};
#define SBATCH_REQUEST_INIT                                                                        \
    {                                                                                              \
        false, false, false, NULL, NULL, NULL, NULL, NULL, -1, -1, -1, false                       \
    }

/* What the configuration says of GPUs. */
enum sbatch_device { SBATCH_DEVICE_AUTO, SBATCH_DEVICE_CPU, SBATCH_DEVICE_GPU };

struct sbatch_plan {
    struct slurm_partition partition;
    struct slurm_shape shape; /* of the nodes that fit; nnodes and nusable: of all that do */
    int nodes, ntasks_per_node, gpus_per_node, cpus_per_task;
    int64_t memory_mib; /* of a node; 0: all of it */
    int64_t seconds;
    const char *account; /* NULL: the user's own default */
    bool pmix;
    bool saves_nothing; /* the run has no checkpoints, so the job is not queued again */
    bool force_cpu;     /* nodes may have GPUs, which the configuration would take */
    char note[512];     /* what the user should know although nothing is refused; "" for nothing */
};

/* Pure. FSDP_EINVAL: the partition cannot give what is asked for. */
int sbatch_plan_make(struct sbatch_plan *out, const struct sbatch_request *request,
                     const struct slurm_cluster *cluster, enum sbatch_device device,
                     struct fsdp_err *err);

/* What the script runs. */
struct sbatch_run {
    const char *launcher; /* absolute paths: fsdp-launch and the folder to run in */
    const char *folder;
    const char *options; /* of fsdp-launch, each after a blank; they need no quotes */
    const char *config;
    int noverrides;
    char *const *overrides;
    char name[SLURM_NAME_NBYTES]; /* of the job */
    const char *output;           /* sbatch's pattern, absolute; '%' of the folder is doubled */
};

/* The pattern of the job's output: request's --output, or logs/%x-%j.out in the folder. Freed with
 * fsdp_free. */
int sbatch_output_make(char **out, const char *given, const char *folder, struct fsdp_err *err);
/* The job's name: the configuration's, without folder and ending, in letters that need no care. */
void sbatch_name_make(char out[SLURM_NAME_NBYTES], const char *config);

/* FSDP_EINVAL: a text that cannot stand in a script. */
int sbatch_script_write(FILE *to, const struct sbatch_plan *plan, const struct sbatch_run *run,
                        const struct slurm_cluster *cluster, struct fsdp_err *err);

/* ---- whose a script is: seal.c ---- */

/* Begins one of the script's first lines. */
#define SBATCH_MARK "# Written by fsdp-launch --sbatch"
/* Writes the script's text and, as its second line, a checksum of the other lines. */
void sbatch_sealed_write(FILE *to, const char *text, size_t nbytes);
enum sbatch_owner {
    SBATCH_NONE,   /* there is no such file */
    SBATCH_OURS,   /* a script as sbatch_script_write wrote it */
    SBATCH_EDITED, /* such a script, which was changed since, or has no checksum */
    SBATCH_FOREIGN /* anything else */
};
enum sbatch_owner sbatch_script_owner(const char *path);

/* A word for the shell, in single quotes where it would see more than a word. */
void sbatch_word_write(FILE *to, const char *word);
/* [D-]HH:MM:SS, into out, which is returned. */
enum { SBATCH_TIME_NBYTES = 32 };
const char *sbatch_time_text(char out[SBATCH_TIME_NBYTES], int64_t seconds);

#endif
