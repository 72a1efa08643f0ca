/* SPDX-License-Identifier: Apache-2.0 */
/* device_cuda.h: private to the CUDA device: lanes in device_cuda.c, arithmetic in the .cu files. */
#ifndef FSDP_DEVICE_CUDA_H
#define FSDP_DEVICE_CUDA_H

#include <cuda_runtime_api.h>

#include "fsdp/sys/cuda.h"
#include "fsdp/sys/device_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_lane;

cudaStream_t device_cuda_stream(const struct cuda_lane *lane);
/* As fsdp_cuda_enter and fsdp_cuda_launched. */
int device_cuda_enter(struct cuda_lane *lane, struct fsdp_err *err);
int device_cuda_launched(struct cuda_lane *lane, const char *kernel, struct fsdp_err *err);

#ifdef __cplusplus
}
#endif
#endif
