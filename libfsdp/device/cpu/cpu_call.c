/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on lanes: all that a lane does comes through here. */
#include <pthread.h>
#include <string.h>

#include "cpu.h"
#include "cpu_lane.h"

int device_cpu_lane_call(void *ptr, fsdp_lane_f *fn, const void *arg, size_t arg_nbytes,
                         struct fsdp_err *err)
{
    struct lane *l = ptr;
    if (l->device->shuffled)
        return device_cpu_shuffle_call(l, fn, arg, arg_nbytes, err);
    if (!l->device->threaded) {
        if (l->failure.status)
            return device_cpu_lane_failure(l, err);
        /* A copy, because fn may change its argument and the caller's is const. */
        struct call c;
        memcpy(c.arg, arg, arg_nbytes);
        device_cpu_lane_run(l, fn, c.arg);
        return device_cpu_lane_failure(l, err);
    }
    pthread_mutex_lock(&l->lock);
    while (l->tail - l->head == RING)
        pthread_cond_wait(&l->changed, &l->lock);
    int rc = device_cpu_is_event(fn) ? FSDP_OK : device_cpu_lane_failure(l, err);
    if (!rc) {
        struct call *c = &l->ring[l->tail % RING];
        c->fn = fn;
        memcpy(c->arg, arg, arg_nbytes);
        l->tail++;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return rc;
}
