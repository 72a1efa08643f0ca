/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_join.cuh: one value of all threads of a block, in an order that is always the same. */
#ifndef FSDP_CUDA_JOIN_H
#define FSDP_CUDA_JOIN_H

#include "fsdp/sys/cuda_kernel.cuh"

struct join_sums {
    static inline __device__ double join(double a, double b)
    {
        return a + b;
    }
};

/* OP::join of the block's THREADS values, a power of two; all of them have it. Between two calls
 * lies a barrier. */
template <class OP, int THREADS> static __device__ double block_join(double mine)
{
    __shared__ double part[THREADS];
    part[threadIdx.x] = mine;
    __syncthreads();
    for (int half = THREADS / 2; half; half /= 2) {
        if (threadIdx.x < (unsigned)half)
            part[threadIdx.x] = OP::join(part[threadIdx.x], part[threadIdx.x + half]);
        __syncthreads();
    }
    return part[0];
}

#endif
