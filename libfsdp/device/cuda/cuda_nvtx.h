/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_nvtx.h: NVTX ranges of the calling thread; the tables' functions of device_ops.h. */
#ifndef FSDP_DEVICE_CUDA_NVTX_H
#define FSDP_DEVICE_CUDA_NVTX_H

#include <stdbool.h>

bool device_cuda_is_profiled(void);
void device_cuda_range_push(const char *name);
void device_cuda_range_pop(void);

#endif
