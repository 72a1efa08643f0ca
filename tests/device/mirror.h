/* SPDX-License-Identifier: Apache-2.0 */
/* mirror.h: for tests that compute on a device what they hold in host memory. */
#ifndef DEVICE_MIRROR_H
#define DEVICE_MIRROR_H

#include <stdint.h>
#include <string.h>

#include "fsdp/device.h"

static struct mirror {
    char *host, *device;
    size_t nbytes;
} mirrors[16];
static int nmirrors;

/* The device's copy of host memory, until the next down. */
static void *up(struct fsdp_lane *lane, const void *host, size_t nbytes)
{
    struct fsdp_device *device = fsdp_lane_device(lane);
    if (!host)
        return NULL;
    for (int i = 0; i < nmirrors; i++)
        if (mirrors[i].host == host)
            return mirrors[i].device;
    struct mirror *m = &mirrors[nmirrors++];
    *m = (struct mirror){(char *)(uintptr_t)host, fsdp_device_alloc(device, nbytes, "mirror", NULL),
                         nbytes};
    void *staging = fsdp_host_alloc(device, nbytes, "staging", NULL);
    memcpy(staging, host, nbytes);
    fsdp_copy(lane, m->device, staging, nbytes, NULL);
    fsdp_lane_sync(lane, NULL);
    fsdp_host_free(device, staging);
    return m->device;
}
#define UP(x) up(lane, &(x), sizeof(x))

/* Waits, and copies all mirrors back. */
static void down(struct fsdp_lane *lane)
{
    struct fsdp_device *device = fsdp_lane_device(lane);
    for (int i = 0; i < nmirrors; i++) {
        void *staging = fsdp_host_alloc(device, mirrors[i].nbytes, "staging", NULL);
        fsdp_copy(lane, staging, mirrors[i].device, mirrors[i].nbytes, NULL);
        fsdp_lane_sync(lane, NULL);
        memcpy(mirrors[i].host, staging, mirrors[i].nbytes);
        fsdp_host_free(device, staging);
        fsdp_device_free(device, mirrors[i].device);
    }
    nmirrors = 0;
}

enum { N = 5003 };

static float noise(int i)
{
    return (float)((i * 2654435761u >> 8 & 0xffff) / 32768.0 - 1.0);
}

#endif
