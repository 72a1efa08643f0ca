/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "fsdp/base.h"
#include "fsdp/sys/thread.h"
#include "end.h"

/* More than the communicators take to give up (comm_nccl*.c: 5 s each, side by side). */
enum { END_S = 30 };

static void *wait_for_end(void *arg)
{
    struct train_end *end = arg;
    const struct timespec until = fsdp_cond_time(END_S);
    int rc = 0;

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
    *end = (struct train_end){.rank = rank, .host = host, .code = code};
    pthread_mutex_init(&end->lock, NULL);
    fsdp_cond_init(&end->changed);
    end->armed = fsdp_thread_start(&end->thread, wait_for_end, end) == 0;
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
