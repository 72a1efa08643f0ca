/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>

#include "fsdp/sys/thread.h"

int fsdp_thread_start(pthread_t *thread, void *(*main)(void *), void *arg)
{
    sigset_t all, old;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* it inherits what its starter blocks */
    const int errnum = pthread_create(thread, NULL, main, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return errnum;
}

void fsdp_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

struct timespec fsdp_cond_time(double seconds)
{
    const double longest = 1e9;
    struct timespec ts;

    seconds = seconds < 0 ? 0 : seconds < longest ? seconds : longest;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    const double end = (double)ts.tv_nsec * 1e-9 + seconds;
    ts.tv_sec += (time_t)end;
    ts.tv_nsec = (long)((end - (double)(time_t)end) * 1e9);
    return ts;
}
