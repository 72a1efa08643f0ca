/* SPDX-License-Identifier: Apache-2.0 */
/* What is understood of `scontrol -o show job`. */
#include <stdlib.h>
#include <time.h>

#include "slurm_job.h"
#include "tap.h"

int main(void)
{
    struct slurm_job job;

    setenv("TZ", "UTC", 1);
    tzset();
    slurm_job_parse(&job,
                    "JobId=7 JobState=RUNNING Reason=None RunTime=00:00:05 TimeLimit=01:00:00 "
                    "StartTime=2026-11-22T17:00:00 EndTime=2026-11-22T18:00:01 Deadline=N/A");
    ok(job.running && !job.out_of_time && job.end == 1795370401, "a job that runs, and its end");
    slurm_job_parse(&job, "JobId=7 JobState=COMPLETING Reason=None RunTime=00:00:05 "
                          "TimeLimit=UNLIMITED EndTime=Unknown Deadline=N/A");
    ok(!job.running && !job.out_of_time && job.end == -1, "one that was cancelled, without an end");
    slurm_job_parse(&job, "JobId=7 JobState=COMPLETING RunTime=1-02:00:03 TimeLimit=1-02:00:00 x");
    ok(!job.running && job.out_of_time, "one whose time is over");
    slurm_job_parse(&job, "JobId=7 JobState=COMPLETING RunTime=02:00:03 TimeLimit=1-02:00:00 x");
    ok(!job.out_of_time, "one that has a day left");
    slurm_job_parse(&job, "slurm_load_jobs error");
    ok(!job.running && job.end == -1, "no answer");
    return tap_done();
}
