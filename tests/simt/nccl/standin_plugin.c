/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library like libfsdp-cuda.so (FSDP_CUDA_LIBRARY names it) for machines without a GPU: its
 * device "cuda" is the CPU's with a thread per lane, its communicators are comm_nccl*.c on the
 * stand-in.
 */
#include <string.h>

#include "fsdp/sys/comm_ops.h"
#include "fsdp/sys/cuda.h"
#include "fsdp/sys/device_ops.h"
#include "standin.h"

struct launch {
    int (*fn)(void *arg);
    char arg[FSDP_LANE_ARG_NBYTES - 64];
};
_Static_assert(sizeof(struct op) <= sizeof((struct launch *)0)->arg, "an operation fits");

static int run_launch(void *arg, struct fsdp_err *err)
{
    struct launch *launch = arg;
    (void)err;
    return launch->fn(launch->arg);
}

void standin_launch(cudaStream_t stream, int (*fn)(void *arg), const void *arg, size_t nbytes)
{
    struct launch launch = {.fn = fn};
    memcpy(launch.arg, arg, nbytes);
    /* A lane that has failed drops its work, as a GPU does whose context is lost. */
    fsdp_device_cpu_ops.lane_call(stream, run_launch, &launch, sizeof launch, NULL);
}

static int dev_open(void **state, int ordinal, unsigned flags, struct fsdp_err *err)
{
    return fsdp_device_cpu_ops.open(state, ordinal, flags | FSDP_DEVICE_THREADED, err);
}

static int event_done(void *event, bool *done, struct fsdp_err *err)
{
    if (!atomic_load(&standin_gpu_lost))
        return fsdp_device_cpu_ops.event_done(event, done, err);
    *done = false;
    return fsdp_err_set(err, FSDP_EINTERNAL, "the GPU failed: an illegal memory access");
}

static void *lane_native(void *lane)
{
    return lane;
}

static int probe(int *ndevices, struct fsdp_err *err)
{
    (void)err;
    *ndevices = MAX_RANKS;
    return FSDP_OK;
}

static struct fsdp_device_ops device_ops;

const struct fsdp_cuda_backend fsdp_cuda_backend = {
    .abi = FSDP_CUDA_ABI,
    .version = FSDP_VERSION_STRING,
    .built = "NCCL stand-in",
    .log_set = fsdp_log_set,
    .probe = probe,
    .device_ops = &device_ops,
    .comm_ops = &fsdp_comm_nccl_ops,
};

__attribute__((constructor)) static void fill(void)
{
    device_ops = fsdp_device_cpu_ops;
    device_ops.name = "cuda";
    device_ops.is_host = false;
    device_ops.open = dev_open;
    device_ops.event_done = event_done;
    device_ops.lane_native = lane_native;
}
