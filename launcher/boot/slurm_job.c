/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "slurm_job.h"

static int64_t parse_time(const char *line, const char *key)
{
    const char *at = strstr(line, key);
    struct tm tm = {.tm_isdst = -1};

    if (!at || sscanf(at + strlen(key), "%d-%d-%dT%d:%d:%d", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
                      &tm.tm_hour, &tm.tm_min, &tm.tm_sec) != 6)
        return -1;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    return (int64_t)mktime(&tm);
}

/* "[days-]hours:minutes:seconds"; -1 for UNLIMITED and other text. */
static int64_t parse_duration(const char *line, const char *key)
{
    const char *at = strstr(line, key);
    int64_t days = 0, h, m, s;

    if (!at)
        return -1;
    at += strlen(key);
    if (strcspn(at, "-") < strcspn(at, " ") && sscanf(at, "%" SCNd64 "-", &days) == 1)
        at += strcspn(at, "-") + 1;
    return sscanf(at, "%" SCNd64 ":%" SCNd64 ":%" SCNd64, &h, &m, &s) == 3
               ? ((days * 24 + h) * 60 + m) * 60 + s
               : -1;
}

void slurm_job_parse(struct slurm_job *out, const char *line)
{
    int64_t ran = parse_duration(line, " RunTime="), limit = parse_duration(line, " TimeLimit=");

    *out = (struct slurm_job){.running = strstr(line, " JobState=RUNNING ") != NULL,
                              .out_of_time = limit >= 0 && ran >= limit,
                              .end = parse_time(line, " EndTime=")};
}

bool slurm_job_ask(struct slurm_job *out)
{
    const char *job = getenv("SLURM_JOB_ID");
    char command[96], line[8192] = "";
    FILE *from;

    if (!job || !job[0] || strspn(job, "0123456789_") != strlen(job))
        return false;
    /* A controller that does not answer must not hold the job. */
    snprintf(command, sizeof command, "timeout 20 scontrol -o show job %.40s 2>/dev/null", job);
    if (!(from = popen(command, "re")))
        return false;
    bool said = fgets(line, sizeof line, from) != NULL && strstr(line, " JobState=");
    pclose(from);
    if (said)
        slurm_job_parse(out, line);
    return said;
}
