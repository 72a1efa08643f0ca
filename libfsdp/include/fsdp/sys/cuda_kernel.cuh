/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_kernel.cuh: how kernels of this project are written, so that nvcc compiles them for GPUs and
 * a C++ compiler for tests/simt, which runs them on the CPU.
 */
#ifndef FSDP_SYS_CUDA_KERNEL_CUH
#define FSDP_SYS_CUDA_KERNEL_CUH

#include "fsdp/base.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

/* FSDP_LAUNCH((kernel<float>), grid, block, dynamic shared bytes, stream, arguments...) */
#ifdef __CUDACC__
#define FSDP_LAUNCH(kernel, grid, block, nbytes, stream, ...)                                      \
    kernel<<<(grid), (block), (nbytes), (stream)>>>(__VA_ARGS__)
/* In a kernel: its dynamic shared memory, as an array of a type. */
#define FSDP_DYNAMIC_SHARED(type, name)                                                            \
    extern __shared__ __align__(16) unsigned char fsdp_dynamic_shared[];                           \
    type *name = (type *)fsdp_dynamic_shared
#else
#define FSDP_LAUNCH(kernel, grid, block, nbytes, stream, ...)                                      \
    simt_launch((grid), (block), (nbytes), (stream), #kernel, kernel, __VA_ARGS__)
#define FSDP_DYNAMIC_SHARED(type, name) type *name = (type *)simt_dynamic_shared()
#endif

/* N elements that are loaded and stored as one. */
template <class T, int N> struct alignas(sizeof(T) * N) fsdp_pack {
    T at[N];
};

static inline __device__ float fsdp_to_float(float x)
{
    return x;
}
static inline __device__ float fsdp_to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
static inline __device__ float fsdp_to_float(__half x)
{
    return __half2float(x);
}

/* Rounded to nearest, ties to even. */
template <class T> static inline __device__ T fsdp_from_float(float x);
template <> inline __device__ float fsdp_from_float<float>(float x)
{
    return x;
}
template <> inline __device__ __nv_bfloat16 fsdp_from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}
template <> inline __device__ __half fsdp_from_float<__half>(float x)
{
    return __float2half_rn(x);
}

/* Calls fn with a value of the C++ type of dtype (F32, BF16 or F16), which chooses a template. */
template <class F> static inline void fsdp_with_type(int dtype, F fn)
{
    if (dtype == FSDP_BF16)
        fn(__nv_bfloat16());
    else if (dtype == FSDP_F16)
        fn(__half());
    else
        fn(float());
}

static inline bool fsdp_is_aligned(const void *ptr, size_t nbytes)
{
    return (uintptr_t)ptr % nbytes == 0;
}

/* Blocks of `block` threads, each of which takes `per_thread` elements. */
static inline unsigned fsdp_nblocks(size_t nelem, size_t block, size_t per_thread)
{
    return (unsigned)((nelem + block * per_thread - 1) / (block * per_thread));
}

#endif
