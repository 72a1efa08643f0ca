/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "fsdp/base.h"
#include "end.h"

/* More than the communicators take to give up (comm_nccl*.c: 5 s each, side by side). */
enum { END_S = 30 };

static void *wait_for_end(void *arg)
{
    struct train_end *end = arg;
    struct timespec until;
    int rc = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += END_S;
    pthread_mutex_lock(&end->lock);
    while (!end->done && rc == 0)
        rc = pthread_cond_timedwait(&end->changed, &end->lock, &until);
    const bool stuck = !end->done;
    pthread_mutex_unlock(&end->lock);
    if (stuck) {
        fsdp_log(FSDP_LOG_ERROR,
                 "rank %d on %s: its GPU hangs: the work on it did not end within %d s of the "
                 "abort; the process ends without it",
                 end->rank, end->host, END_S);
        _exit(end->code);
    }
    return NULL;
}

void train_end_arm(struct train_end *end, int rank, const char *host, int code)
{
    pthread_condattr_t attr;
    sigset_t all, old;

    *end = (struct train_end){.rank = rank, .host = host, .code = code};
    pthread_mutex_init(&end->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&end->changed, &attr);
    pthread_condattr_destroy(&attr);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    end->armed = pthread_create(&end->thread, NULL, wait_for_end, end) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void train_end_disarm(struct train_end *end)
{
    if (end->armed) {
        pthread_mutex_lock(&end->lock);
        end->done = true;
        pthread_cond_signal(&end->changed);
        pthread_mutex_unlock(&end->lock);
        pthread_join(end->thread, NULL);
        pthread_mutex_destroy(&end->lock);
        pthread_cond_destroy(&end->changed);
        end->armed = false;
    }
}
