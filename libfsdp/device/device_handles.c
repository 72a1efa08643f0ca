/* SPDX-License-Identifier: Apache-2.0 */
/* What backends ask of handles: libfsdp-cuda.so has a copy of its own. */
#include "device_handles.h"
#include "fsdp/sys/cuda.h"

const char *fsdp_lane_name(const struct fsdp_lane *lane)
{
    return lane->name;
}

struct fsdp_device *fsdp_lane_device(const struct fsdp_lane *lane)
{
    return lane->device;
}

void *fsdp_lane_state(const struct fsdp_lane *lane)
{
    return lane->state;
}

void *fsdp_lane_native(const struct fsdp_lane *lane)
{
    const struct fsdp_device_ops *ops = lane->device->ops;
    return ops->lane_native ? ops->lane_native(lane->state) : NULL;
}

void fsdp_lane_fail(struct fsdp_lane *lane, const struct fsdp_err *err)
{
    pthread_mutex_lock(&lane->lock);
    if (!lane->failure.status)
        lane->failure = *err;
    pthread_mutex_unlock(&lane->lock);
}

void fsdp_device_count_alloc(struct fsdp_device *device, size_t nbytes)
{
    atomic_fetch_add(&device->nallocs, 1);
    atomic_fetch_add(&device->alloc_nbytes, nbytes);
}
