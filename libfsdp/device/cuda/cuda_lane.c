/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of CUDA, and lanes that have failed. */
#include <stdio.h>

#include "cuda_lane.h"

int fsdp_cuda_check(int cuda_error, struct fsdp_err *err, const char *what, ...)
{
    if (cuda_error == cudaSuccess)
        return FSDP_OK;
    cudaGetLastError(); /* it is reported here, and not again by the thread's next launch */
    char text[256];
    va_list ap;
    va_start(ap, what);
    vsnprintf(text, sizeof text, what, ap);
    va_end(ap);
    const cudaError_t e = (cudaError_t)cuda_error;
    return fsdp_err_set(err, e == cudaErrorMemoryAllocation ? FSDP_ENOMEM : FSDP_EINTERNAL,
                        "%s: %s (%s)", text, cudaGetErrorString(e), cudaGetErrorName(e));
}

void cuda_lane_fail(struct cuda_lane *l, const struct fsdp_err *failure)
{
    pthread_mutex_lock(&l->lock);
    if (!l->failure.status)
        l->failure = *failure;
    pthread_mutex_unlock(&l->lock);
    atomic_store(&l->failed, true);
}

int cuda_lane_failure(struct cuda_lane *l, struct fsdp_err *err)
{
    if (!atomic_load(&l->failed))
        return FSDP_OK;
    pthread_mutex_lock(&l->lock);
    if (err)
        *err = l->failure;
    int rc = l->failure.status;
    pthread_mutex_unlock(&l->lock);
    return rc;
}

int cuda_lane_check(struct cuda_lane *l, cudaError_t error, const char *what, struct fsdp_err *err)
{
    struct fsdp_err failure = FSDP_ERR_INIT;
    if (error == cudaSuccess)
        return FSDP_OK;
    fsdp_cuda_check((int)error, &failure, "lane %s: %s", l->name, what);
    if (l->captures) {
        if (err)
            *err = failure;
        return failure.status;
    }
    cuda_lane_fail(l, &failure);
    return cuda_lane_failure(l, err);
}

int cuda_lane_refuse(const struct cuda_lane *l, const char *what, struct fsdp_err *err)
{
    return l->captures ? fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                      "lane %s: %s while a graph is captured", l->name, what)
                       : FSDP_OK;
}

int device_cuda_enter(struct cuda_lane *l, struct fsdp_err *err)
{
    FSDP_TRY(cuda_lane_failure(l, err));
    return cuda_lane_check(l, cudaSetDevice(l->device->ordinal), "choosing its GPU", err);
}

int device_cuda_launched(struct cuda_lane *l, const char *kernel, struct fsdp_err *err)
{
    return cuda_lane_check(l, cudaGetLastError(), kernel, err);
}

double *device_cuda_partials(const struct cuda_lane *l)
{
    return l->partials;
}

cudaStream_t device_cuda_stream(const struct cuda_lane *l)
{
    return l->stream;
}

int fsdp_cuda_ordinal(const struct fsdp_lane *lane)
{
    const struct cuda_lane *l = fsdp_lane_state(lane);
    return l->device->ordinal;
}

int fsdp_cuda_enter(const struct fsdp_lane *lane, struct fsdp_err *err)
{
    return device_cuda_enter(fsdp_lane_state(lane), err);
}

int fsdp_cuda_launched(const struct fsdp_lane *lane, const char *kernel, struct fsdp_err *err)
{
    return device_cuda_launched(fsdp_lane_state(lane), kernel, err);
}
