/* SPDX-License-Identifier: Apache-2.0 */
#include <time.h>

#include "pace.h"

enum { TICK_NS = 10000000 };

static double thread_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Until a tick, at the earliest in so many seconds. The clock is the machines' own: those of a
 * cluster are set alike to less than a tick. It may be set meanwhile, so that it does not time the
 * sleep. */
static void rest_until_tick(double seconds)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    int64_t rest = (int64_t)(1e9 * seconds);
    rest += TICK_NS - (ts.tv_nsec + rest) % TICK_NS; /* a second is whole ticks */
    ts = (struct timespec){.tv_sec = rest / 1000000000, .tv_nsec = rest % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, NULL);
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
    /* Long waits earn no burst, but what was slept for a tick is made up for. */
    double most = 1e-9 * TICK_NS * p->share;
    if (p->ahead < -most)
        p->ahead = -most;
    if (p->ahead > 0)
        rest_until_tick(p->ahead / p->share);
}
