/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a call on a lane, and of a wait for an event. */
#include <pthread.h>

#include "cpu.h"
#include "cpu_lane.h"

/* After a failure the lane drops its work: what follows would compute on garbage. */
void device_cpu_lane_run(struct lane *l, fsdp_lane_f *fn, void *arg)
{
    struct fsdp_err failure = FSDP_ERR_INIT;
    int rc = fn(arg, &failure);
    if (rc) {
        failure.status = rc;
        pthread_mutex_lock(&l->lock);
        if (!l->failure.status)
            l->failure = failure;
        pthread_mutex_unlock(&l->lock);
    }
}

int device_cpu_lane_failure(struct lane *l, struct fsdp_err *err)
{
    if (l->failure.status && err)
        *err = l->failure;
    return l->failure.status;
}

int device_cpu_event_reached(void *arg, struct fsdp_err *err)
{
    struct event_arg *a = arg;
    (void)err;
    pthread_mutex_lock(&a->event->lock);
    if (a->event->reached < a->number) {
        a->event->reached = a->number;
        a->event->time = fsdp_time_now();
    }
    pthread_cond_broadcast(&a->event->changed);
    pthread_mutex_unlock(&a->event->lock);
    return FSDP_OK;
}

int device_cpu_event_block(void *arg, struct fsdp_err *err)
{
    struct event_arg *a = arg;
    (void)err;
    pthread_mutex_lock(&a->event->lock);
    while (a->event->reached < a->number)
        pthread_cond_wait(&a->event->changed, &a->event->lock);
    pthread_mutex_unlock(&a->event->lock);
    return FSDP_OK;
}
