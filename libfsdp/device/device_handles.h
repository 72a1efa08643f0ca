/* SPDX-License-Identifier: Apache-2.0 */
/* device_handles.h: what the handles of device.h hold. */
#ifndef FSDP_DEVICE_HANDLES_H
#define FSDP_DEVICE_HANDLES_H

#include <pthread.h>
#include <stdatomic.h>

#include "fsdp/sys/device_ops.h"

struct fsdp_device {
    const struct fsdp_device_ops *ops;
    void *state;
    _Atomic uint64_t nsyncs, nallocs, alloc_nbytes;
    bool described; /* there is no device: fsdp_device_describe */
    int capability; /* of a described GPU, 90 for 9.0 */
};

struct fsdp_lane {
    struct fsdp_device *device;
    void *state;
    char name[32];
    pthread_mutex_t lock; /* of failure */
    struct fsdp_err failure;
    void *scratch; /* NULL until somebody asks */
};

struct fsdp_event {
    struct fsdp_device *device;
    void *state;
};

#endif
