/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "impl.h"
#include "slurm_job.h"

enum { MOMENT_S = 3 };

/* Ranks may see different ends of one job, so rank 0 does it whatever it saw; rank 1 stands in
 * where it is about rank 0, which may be gone, or be ended before it comes to this. */
static bool stands_in(struct fsdp_oob *oob)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    return oob && oob->rank == 1 && oob->health(oob, &err) != FSDP_OK && err.rank == 0;
}

/* No shell, and nothing of the environment that srun might take for its own matters to scontrol. */
static int run_scontrol(const char *job)
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        execlp("scontrol", "scontrol", "requeue", job, (char *)NULL);
        _exit(LAUNCH_NOT_FOUND);
    }
    if (pid > 0 && waitpid(pid, &status, 0) != pid)
        status = -1;
    return pid < 0 || !WIFEXITED(status) ? -1 : WEXITSTATUS(status);
}

/* Somebody else has ended it: its owner, who does not want it back, or one who has queued it again
 * already. */
static bool ended_by_others(void)
{
    struct slurm_job now;
    return slurm_job_ask(&now) && !now.running && !now.out_of_time;
}

static void queue_again(const char *job, int code)
{
    launch_say("queueing job %s again", job);
    int failed = run_scontrol(job);
    if (failed == LAUNCH_NOT_FOUND)
        launch_say("--requeue: there is no scontrol here; let the batch script call "
                   "'scontrol requeue %s' on exit status %d",
                   job, code);
    else if (failed)
        launch_say("--requeue: 'scontrol requeue %s' failed; was the job submitted with "
                   "--requeue?",
                   job);
}

void launch_requeue(const struct launch_args *args, int code, struct fsdp_oob *oob)
{
    const char *job = getenv("SLURM_JOB_ID");

    if (!args->requeue || (code != LAUNCH_REQUEUE && code != LAUNCH_PEER_LOST))
        return;
    if (stands_in(oob)) {
        sleep(MOMENT_S); /* rank 0's own */
        if (job && !ended_by_others())
            queue_again(job, code);
        return;
    }
    if (oob && oob->rank != 0)
        return;
    if (!job)
        launch_say("--requeue: not a Slurm job (SLURM_JOB_ID is not set), so nothing is queued "
                   "again");
    else if (ended_by_others())
        launch_say("job %s was ended from outside, so it is not queued again from here", job);
    else
        queue_again(job, code);
}

/* Task 0 does it; should it be the one that did not come, task 1, which gives it a moment. */
void launch_requeue_unmet(const struct launch_args *args, int code)
{
    enum { MOST_RESTARTS = 10 };
    const char *job = getenv("SLURM_JOB_ID"), *task = getenv("SLURM_PROCID");
    const char *again = getenv("SLURM_RESTART_COUNT");
    int restarts = again ? atoi(again) : 0;

    if (!args->requeue || code != LAUNCH_PEER_LOST || !job || !task || atoi(task) > 1)
        return;
    if (atoi(task) == 1)
        sleep(MOMENT_S);
    if (ended_by_others())
        return;
    if (restarts >= 1 && restarts <= MOST_RESTARTS)
        queue_again(job, code);
    else if (atoi(task) == 0)
        launch_say("job %s is not queued again: %s", job,
                   restarts ? "it has been, often enough" : "its ranks have never met");
}
