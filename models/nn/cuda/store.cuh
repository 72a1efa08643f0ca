/* SPDX-License-Identifier: Apache-2.0 */
/* store.cuh: store8 for kernels that end with it. There the compiler moves what the branches of
 * store8 share out of both, and a store of 128 bits becomes stores of 16. */
#ifndef NN_CUDA_STORE_H
#define NN_CUDA_STORE_H

#include <string.h>

#include "kernel.cuh"

/* Stores a lot in global memory as one access. */
template <class T> static __device__ inline void store_lot(T *to, const lot<T> &v)
{
#ifdef __CUDACC__
    uint4 words;
    memcpy(&words, &v, sizeof words);
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(to)), "r"(words.x), "r"(words.y), "r"(words.z),
                   "r"(words.w)
                 : "memory");
#else
    *(lot<T> *)to = v;
#endif
}

template <class T>
static __device__ inline void store8_last(T *x, size_t at, size_t nelem, bool aligned,
                                          const float in[VEC])
{
    enum { N = 16 / sizeof(T) };
    if (!aligned || at + VEC > nelem) {
        store8(x, at, nelem, false, in);
        return;
    }
#pragma unroll
    for (int i = 0; i < VEC; i += N) {
        lot<T> v;
#pragma unroll
        for (int j = 0; j < N; j++)
            v.at[j] = fsdp_from_float<T>(in[i + j]);
        store_lot(x + at + i, v);
    }
}

#endif
