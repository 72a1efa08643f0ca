/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slurm_job.h: what Slurm says of the job that this process is in, by `scontrol show job`. A
 * container may have no scontrol; then nothing is known.
 */
#ifndef SLURM_JOB_H
#define SLURM_JOB_H

#include "fsdp/base.h"

struct slurm_job {
    bool running;     /* JobState=RUNNING: nobody has ended it yet */
    bool out_of_time; /* its time limit has passed */
    int64_t end;      /* seconds since 1970, -1: none */
};

/* False where this is no Slurm job or scontrol does not answer. Local, blocks. */
bool slurm_job_ask(struct slurm_job *out);
/* From the line that `scontrol -o show job` prints, in local time. Pure but for the time zone. */
void slurm_job_parse(struct slurm_job *out, const char *line);

#endif
