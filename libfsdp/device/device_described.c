/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices that are described, not opened. Planning makes lanes and events and asks for nothing
 * else, so these are the CPU's; there is no memory that work on them could be for.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "device_handles.h"

enum { CUDA_CAPABILITY = 90 }; /* of "cuda": compute capability 9.0 */

static struct fsdp_device_ops cpu_ops, cuda_ops;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *refuse_use(void *state, size_t nbytes, const char *name, struct fsdp_err *err)
{
    (void)state;
    fsdp_err_set(err, FSDP_EUNSUPPORTED,
                 "%s: %zu bytes of a device that is described alone (fsdp_device_describe); open "
                 "one with fsdp_device_open",
                 name, nbytes);
    return NULL;
}

static void fill_tables(void)
{
    cpu_ops = fsdp_device_cpu_ops;
    cpu_ops.alloc = cpu_ops.host_alloc = refuse_use;
    cuda_ops = cpu_ops;
    cuda_ops.name = "cuda";
    cuda_ops.is_host = false;
}

/* 0: the CPU; -1: no such kind. */
static int capability_of(const char *kind)
{
    int capability, end = 0;

    if (!strcmp(kind, "cpu"))
        return 0;
    if (!strcmp(kind, "cuda"))
        return CUDA_CAPABILITY;
    return sscanf(kind, "sm_%3d%n", &capability, &end) == 1 && !kind[end] && capability > 0
               ? capability
               : -1;
}

int fsdp_device_describe(struct fsdp_device **out, const char *kind, struct fsdp_err *err)
{
    const int capability = capability_of(kind);

    if (capability < 0)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "device '%s' to plan for: use cpu, cuda, or sm_80, sm_90 and so on",
                            kind);
    pthread_once(&once, fill_tables);
    FSDP_TRY(fsdp_device_open_ops(out, capability ? &cuda_ops : &cpu_ops, 0, 0, err));
    (*out)->described = true;
    (*out)->capability = capability;
    return FSDP_OK;
}

bool fsdp_device_is_described(const struct fsdp_device *device, int *capability)
{
    if (capability)
        *capability = device->capability;
    return device->described;
}
