/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "backends.h"
#include "comm_load.h"
#include "fsdp/sys/cuda.h"

/* For the configuration; tests/comm/test_create.c compares it with the rows. */
const char fsdp_comm_backend_words[] = "auto|self|host|mpi|nccl";

/* ---- self ------------------------------------------------------------------------------------ */

static const struct fsdp_comm_ops *load_self(const struct fsdp_device *device, char *why,
                                             size_t why_nbytes)
{
    (void)device;
    (void)why;
    (void)why_nbytes;
    return &fsdp_comm_self_ops;
}

static bool fits_alone(int size, const struct fsdp_device *device)
{
    (void)device;
    return size == 1;
}

/* ---- host ------------------------------------------------------------------------------------ */

static const struct fsdp_comm_ops *load_host(const struct fsdp_device *device, char *why,
                                             size_t why_nbytes)
{
    (void)device;
    (void)why;
    (void)why_nbytes;
    return &fsdp_comm_host_ops;
}

static bool fits_host(int size, const struct fsdp_device *device)
{
    (void)size;
    return fsdp_device_is_host(device);
}

/* ---- mpi, a library of its own --------------------------------------------------------------- */

static const struct fsdp_comm_ops *load_mpi(const struct fsdp_device *device, char *why,
                                            size_t why_nbytes)
{
    (void)device;
    return comm_load_mpi(why, why_nbytes);
}

/* ---- nccl, in the library that has the device ------------------------------------------------ */

static const struct fsdp_comm_ops *load_nccl(const struct fsdp_device *device, char *why,
                                             size_t why_nbytes)
{
    const struct fsdp_cuda_backend *cuda = fsdp_device_cuda_backend(device);

    if (!cuda)
        snprintf(why, why_nbytes, "it moves memory of CUDA devices, and the device is '%s'",
                 fsdp_device_name(device));
    else if (!cuda->comm_ops)
        snprintf(why, why_nbytes, "libfsdp-cuda.so was built without NCCL (make WITH_NCCL=1)");
    return cuda ? cuda->comm_ops : NULL;
}

static bool fits_gpus(int size, const struct fsdp_device *device)
{
    (void)size;
    return !fsdp_device_is_host(device);
}

const struct comm_backend comm_backends[] = {{"self", load_self, fits_alone},
                                             {"host", load_host, fits_host},
                                             {"mpi", load_mpi, NULL},
                                             {"nccl", load_nccl, fits_gpus}};
enum { NBACKENDS = sizeof comm_backends / sizeof comm_backends[0] };

int comm_backends_count(void)
{
    return NBACKENDS;
}

int comm_backend_for(int size, const struct fsdp_device *device)
{
    int i = 0;
    while (!comm_backends[i].fits || !comm_backends[i].fits(size, device))
        i++;
    return i;
}
