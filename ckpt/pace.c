/* SPDX-License-Identifier: Apache-2.0 */
#include <time.h>

#include "pace.h"

static double thread_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void ckpt_pace_keep(struct ckpt_pace *p)
{
    if (p->share <= 0)
        return;
    double wall = fsdp_time_now(), cpu = thread_seconds();
    if (p->wall > 0)
        p->ahead += cpu - p->cpu - p->share * (wall - p->wall);
    p->wall = wall;
    p->cpu = cpu;
    if (p->ahead <= 0) {
        p->ahead = 0; /* long waits earn no burst */
        return;
    }
    double rest = p->ahead / p->share;
    struct timespec ts = {.tv_sec = (time_t)rest,
                          .tv_nsec = (long)(1e9 * (rest - (double)(time_t)rest))};
    nanosleep(&ts, NULL);
}
