/* SPDX-License-Identifier: Apache-2.0 */
/* The table that libfsdp-cuda.so exports: the device, its communicator and its operators. It stands
 * above all three. */
#include <cuda_runtime_api.h>

#include "fsdp/sys/comm_ops.h"
#include "nn_cuda.h"
#if HAVE_NCCL
#include <nccl.h>
#endif
#if HAVE_CUDNN
#include <cudnn_version.h>
#endif

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#if HAVE_NCCL
#define NCCL_TEXT ", NCCL " TEXT(NCCL_MAJOR) "." TEXT(NCCL_MINOR) "." TEXT(NCCL_PATCH)
#else
#define NCCL_TEXT ", no NCCL"
#endif
#if HAVE_CUDNN
#define CUDNN_TEXT ", cuDNN " TEXT(CUDNN_MAJOR) "." TEXT(CUDNN_MINOR) "." TEXT(CUDNN_PATCHLEVEL)
#else
#define CUDNN_TEXT ", no cuDNN"
#endif

__attribute__((visibility("default"))) const struct fsdp_cuda_backend fsdp_cuda_backend = {
    .abi = FSDP_CUDA_ABI,
    .version = FSDP_VERSION_STRING,
    .built = "CUDA runtime " TEXT(CUDART_VERSION) NCCL_TEXT CUDNN_TEXT,
    .log_set = fsdp_log_set,
    .probe = fsdp_cuda_probe,
    .device_ops = &fsdp_device_cuda_ops,
#if HAVE_NCCL
    .comm_ops = &fsdp_comm_nccl_ops,
#endif
    .nn_ops = &nn_cuda_ops,
};
