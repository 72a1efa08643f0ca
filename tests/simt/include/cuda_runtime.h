/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_runtime.h: the language of kernels, for a C++ compiler (tests/simt/block.cc). */
#ifndef SIMT_CUDA_RUNTIME_H
#define SIMT_CUDA_RUNTIME_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
/* Blocks run one after another in one thread, so what they share may be static. */
#define __shared__ static
#define __constant__
#define __restrict__ __restrict
#define __noinline__ __attribute__((noinline))

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
static inline float2 make_float2(float x, float y)
{
    return float2{x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return float4{x, y, z, w};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return uint4{x, y, z, w};
}

/* Of the thread that runs. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static const int warpSize = 32;

/* A barrier of the block, or of the lanes of a warp that mask names; all must come. */
void simt_barrier(void);
void simt_warp_barrier(unsigned mask);
/* Each lane of the mask gives 8 bytes; returns those of all 32. */
const uint64_t *simt_warp_exchange(unsigned mask, uint64_t mine);
void *simt_dynamic_shared(void);
unsigned simt_lane(void);
void simt_launch_body(dim3 grid, dim3 block, size_t nbytes, cudaStream_t stream, const char *name,
                      std::function<void()> body, const void *kernel, std::vector<char> arguments);

/* Pointers among a kernel's arguments must be ones that a GPU can follow. */
template <class A> static inline void simt_check(const A &, const char *)
{
}
template <class A> static inline void simt_check(A *ptr, const char *kernel)
{
    simt_check_pointer(ptr, kernel);
}

/* Arguments as PTX has them: one after the other, each aligned as its type. */
template <class P> static inline void simt_append(std::vector<char> &to, P argument)
{
    const size_t at = (to.size() + alignof(P) - 1) / alignof(P) * alignof(P);
    to.resize(at + sizeof argument);
    std::memcpy(to.data() + at, (const void *)&argument, sizeof argument);
}

/* As CUDA does, arguments are copied when the kernel is launched. */
template <class... P, class... A>
static inline void simt_launch(dim3 grid, dim3 block, size_t nbytes, cudaStream_t stream,
                               const char *name, void (*kernel)(P...), A... args)
{
    (simt_check(args, name), ...);
    std::vector<char> bytes;
    (simt_append<P>(bytes, (P)args), ...);
    simt_launch_body(
        grid, block, nbytes, stream, name, [=]() { kernel((P)args...); }, (const void *)kernel,
        std::move(bytes));
}

static inline void __syncthreads(void)
{
    simt_barrier();
}
static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    simt_warp_barrier(mask);
}
static inline void __threadfence(void)
{
}

template <class T> static inline T simt_shuffle(unsigned mask, T value, unsigned from)
{
    static_assert(sizeof(T) <= 8, "a shuffle moves 8 bytes at most");
    uint64_t bits = 0;
    T out;
    std::memcpy(&bits, &value, sizeof value);
    bits = simt_warp_exchange(mask, bits)[from & 31];
    std::memcpy(&out, &bits, sizeof out);
    return out;
}
template <class T> static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32)
{
    return simt_shuffle(mask, value,
                        (simt_lane() & ~(width - 1u)) | ((unsigned)from & (width - 1u)));
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32)
{
    unsigned from = simt_lane() ^ (unsigned)by;
    bool same = (from & ~(width - 1u)) == (simt_lane() & ~(width - 1u));
    return simt_shuffle(mask, value, same ? from : simt_lane());
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    unsigned place = simt_lane() & (width - 1u);
    return simt_shuffle(mask, value, place + by < (unsigned)width ? simt_lane() + by : simt_lane());
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    unsigned place = simt_lane() & (width - 1u);
    return simt_shuffle(mask, value, place >= by ? simt_lane() - by : simt_lane());
}
static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    const uint64_t *all = simt_warp_exchange(mask, predicate != 0);
    unsigned bits = 0;
    for (int i = 0; i < 32; i++)
        bits |= (mask >> i & 1) && all[i] ? 1u << i : 0;
    return bits;
}
static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) == mask;
}

/* One thread runs at a time. */
template <class T> static inline T atomicAdd(T *at, T value)
{
    T old = *at;
    *at = old + value;
    return old;
}
template <class T> static inline T atomicMax(T *at, T value)
{
    T old = *at;
    *at = old < value ? value : old;
    return old;
}
template <class T> static inline T __ldg(const T *at)
{
    return *at;
}
template <class T> static inline T __ldcs(const T *at)
{
    return *at;
}
template <class T> static inline void __stcs(T *at, T value)
{
    *at = value;
}

static inline unsigned __umulhi(unsigned x, unsigned y)
{
    return (unsigned)((uint64_t)x * y >> 32);
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

/* Names that the C library has for itself. */
#define __expf expf
#define __logf logf
static inline float __fdividef(float x, float y)
{
    return x / y;
}
static inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}
static inline float __frcp_rn(float x)
{
    return 1 / x;
}
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
template <class T> static inline T min(T a, T b)
{
    return b < a ? b : a;
}
template <class T> static inline T max(T a, T b)
{
    return a < b ? b : a;
}

#endif
