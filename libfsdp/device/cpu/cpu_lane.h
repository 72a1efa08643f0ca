/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_lane.h: lanes and events, shared by cpu.c and cpu_shuffle.c. */
#ifndef DEVICE_CPU_LANE_H
#define DEVICE_CPU_LANE_H

#include <pthread.h>

#include "fsdp/device.h"

enum { RING = 1024 };

struct call {
    fsdp_lane_f *fn;
    _Alignas(16) unsigned char arg[FSDP_LANE_ARG_NBYTES];
};

struct device {
    bool threaded, shuffled;
    uint64_t random;    /* shuffled: state of the generator */
    struct lane *lanes; /* shuffled: all of them, in order of creation */
    uint64_t slow;      /* shuffled: number of the lane that is seldom drawn; of none */
};

struct lane {
    struct device *device;
    char name[32];
    struct fsdp_err failure; /* sticky; guarded by lock */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    struct call *ring;   /* threaded: [RING]; shuffled: [max_calls], not a ring */
    uint64_t head, tail; /* calls done, calls enqueued */
    size_t max_calls;
    struct lane *next;
    bool stop;
};

struct event {
    pthread_mutex_t lock;
    struct lane *lane; /* that it is recorded on */
    pthread_cond_t changed;
    uint64_t recorded, reached;
    double time; /* when it was reached last */
};
struct event_arg {
    struct event *event;
    uint64_t number;
};

int device_cpu_event_reached(void *arg, struct fsdp_err *err);
int device_cpu_event_block(void *arg, struct fsdp_err *err);
static inline bool device_cpu_is_event(fsdp_lane_f *fn)
{
    return fn == device_cpu_event_reached || fn == device_cpu_event_block;
}

/* Runs one call; its failure becomes the lane's. */
void device_cpu_lane_run(struct lane *lane, fsdp_lane_f *fn, void *arg);
int device_cpu_lane_failure(struct lane *lane, struct fsdp_err *err);

void device_cpu_shuffle_add(struct lane *lane);
void device_cpu_shuffle_remove(struct lane *lane);
int device_cpu_shuffle_call(struct lane *lane, fsdp_lane_f *fn, const void *arg, size_t arg_nbytes,
                            struct fsdp_err *err);
/* Runs lanes until this one is done. FSDP_EINTERNAL if all wait for each other. */
int device_cpu_shuffle_sync(struct lane *lane, struct fsdp_err *err);

#endif
