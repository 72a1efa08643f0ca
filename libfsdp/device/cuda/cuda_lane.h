/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_lane.h: a lane's state, for cuda.c (what lanes do) and cuda_lane.c (how they fail). */
#ifndef FSDP_DEVICE_CUDA_LANE_H
#define FSDP_DEVICE_CUDA_LANE_H

#include <pthread.h>
#include <stdatomic.h>

#include "cuda.h"

struct cuda_device {
    int ordinal;
    int least, greatest; /* priorities of streams */
    char model[128];     /* "": not asked for yet */
    pthread_mutex_t lock;
    struct block *blocks;
};

struct call {
    struct cuda_lane *lane;
    fsdp_lane_f *fn;
    _Alignas(16) unsigned char arg[FSDP_LANE_ARG_NBYTES];
};

struct cuda_lane {
    struct cuda_device *device;
    cudaStream_t stream;
    char name[32];
    pthread_mutex_t lock;
    struct fsdp_err failure; /* sticky; guarded by lock once `failed` */
    atomic_bool failed;
    struct call *ring;     /* [RING] */
    uint64_t tail;         /* calls enqueued */
    _Atomic uint64_t head; /* calls done */
    double *partials;      /* [CUDA_PARTIALS] */
    struct cuda_stamps stamps;
    bool captures; /* between begin and end of a capture; of the thread that enqueues */
};

/* The first failure is the lane's from then on. */
void cuda_lane_fail(struct cuda_lane *lane, const struct fsdp_err *failure);
/* FSDP_OK, or that failure. */
int cuda_lane_failure(struct cuda_lane *lane, struct fsdp_err *err);
/* An error of CUDA is the lane's from then on, but not while the lane captures: nothing has run. */
int cuda_lane_check(struct cuda_lane *lane, cudaError_t error, const char *what,
                    struct fsdp_err *err);
/* FSDP_EUNSUPPORTED while the lane captures: `what` has no place in a graph. */
int cuda_lane_refuse(const struct cuda_lane *lane, const char *what, struct fsdp_err *err);

#endif
