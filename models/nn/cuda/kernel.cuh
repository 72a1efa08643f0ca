/* SPDX-License-Identifier: Apache-2.0 */
/* kernel.cuh: what the operators' kernels share: loads and stores of eight elements, sums over
 * warps and blocks, the generator of dropout, launches by type. Arithmetic is fp32. */
#ifndef NN_CUDA_KERNEL_H
#define NN_CUDA_KERNEL_H

#include "fsdp/sys/cuda_kernel.cuh"
#include "nn_cuda.h"

enum { WARP = 32, VEC = 8 /* elements that a thread takes at once */ };
#define FULL_MASK 0xffffffffu

/* ---- eight elements at a time -------------------------------------------------------------------
 * Element `at` and the next seven, of `nelem` in all; what is beyond is read as `beyond` and not
 * written. `aligned` says that `x` and all rows begin at multiples of 16 bytes, and then eight
 * elements are one access of 128 bits (two of fp32). */
template <class T> using lot = fsdp_pack<T, 16 / sizeof(T)>;

static inline bool is_aligned(const void *x)
{
    return fsdp_is_aligned(x, 16);
}

template <class T>
static __device__ inline void load8(float out[VEC], const T *x, size_t at, size_t nelem,
                                    bool aligned, float beyond = 0.0f)
{
    enum { N = 16 / sizeof(T) };
    if (aligned && at + VEC <= nelem) {
#pragma unroll
        for (int i = 0; i < VEC; i += N) {
            const lot<T> v = *(const lot<T> *)(x + at + i);
#pragma unroll
            for (int j = 0; j < N; j++)
                out[i + j] = fsdp_to_float(v.at[j]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < VEC; i++)
        out[i] = at + i < nelem ? fsdp_to_float(x[at + i]) : beyond;
}

template <class T>
static __device__ inline void store8(T *x, size_t at, size_t nelem, bool aligned,
                                     const float in[VEC])
{
    enum { N = 16 / sizeof(T) };
    if (aligned && at + VEC <= nelem) {
#pragma unroll
        for (int i = 0; i < VEC; i += N) {
            lot<T> v;
#pragma unroll
            for (int j = 0; j < N; j++)
                v.at[j] = fsdp_from_float<T>(in[i + j]);
            *(lot<T> *)(x + at + i) = v;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < VEC; i++)
        if (at + i < nelem)
            x[at + i] = fsdp_from_float<T>(in[i]);
}

/* The same of memory whose type is known at run time, for what is small or read from a cache. */
static __device__ inline void load8_any(float out[VEC], const void *x, enum fsdp_dtype dtype,
                                        size_t at, size_t nelem, bool aligned)
{
    if (dtype == FSDP_F32)
        load8(out, (const float *)x, at, nelem, aligned);
    else if (dtype == FSDP_BF16)
        load8(out, (const __nv_bfloat16 *)x, at, nelem, aligned);
    else
        load8(out, (const __half *)x, at, nelem, aligned);
}

static __device__ inline void store8_any(void *x, enum fsdp_dtype dtype, size_t at, size_t nelem,
                                         bool aligned, const float in[VEC])
{
    if (dtype == FSDP_F32)
        store8((float *)x, at, nelem, aligned, in);
    else if (dtype == FSDP_BF16)
        store8((__nv_bfloat16 *)x, at, nelem, aligned, in);
    else
        store8((__half *)x, at, nelem, aligned, in);
}

/* &x[nelem], as nn_at. */
static __device__ inline void *nn_elem(const void *x, enum fsdp_dtype dtype, size_t nelem)
{
    return (char *)x + nelem * (dtype == FSDP_F32 ? 4 : 2);
}

static __device__ inline float load_any(const void *x, enum fsdp_dtype dtype, size_t at)
{
    return dtype == FSDP_F32    ? ((const float *)x)[at]
           : dtype == FSDP_BF16 ? fsdp_to_float(((const __nv_bfloat16 *)x)[at])
                                : fsdp_to_float(((const __half *)x)[at]);
}

static __device__ inline void store_any(void *x, enum fsdp_dtype dtype, size_t at, float value)
{
    if (dtype == FSDP_F32)
        ((float *)x)[at] = value;
    else if (dtype == FSDP_BF16)
        ((__nv_bfloat16 *)x)[at] = fsdp_from_float<__nv_bfloat16>(value);
    else
        ((__half *)x)[at] = fsdp_from_float<__half>(value);
}

/* Eight elements of a row of `dim`: which row, and from which column on. */
struct lot_of_row {
    size_t row, col;
};
static __device__ inline lot_of_row my_lot(int dim)
{
    const size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const size_t each = ((size_t)dim + VEC - 1) / VEC;
    return (lot_of_row){at / each, at % each * VEC};
}

/* ---- exponentials and quotients for results of type T
 * -------------------------------------------- Of 16 bits, which do not hold what the shorter
 * instructions lose (some 1e-6): with the full ones a kernel would issue instructions for as long
 * as memory takes. */
template <class T> static __device__ inline float exp_for(float x)
{
    return sizeof(T) == 2 ? __expf(x) : expf(x);
}

/* y of 2^126 or more may count as infinite. */
template <class T> static __device__ inline float quotient_for(float x, float y)
{
    return sizeof(T) == 2 ? __fdividef(x, y) : x / y;
}

/* ---- sums, in an order that depends on the number of threads alone --------------------------- */

template <class T> static __device__ inline T warp_sum(T x)
{
#pragma unroll
    for (int lane = WARP / 2; lane > 0; lane /= 2)
        x += __shfl_xor_sync(FULL_MASK, x, lane);
    return x;
}

/* Every thread of a block of whole warps gets the sum; `room` is shared, for a value a warp. */
template <class T> static __device__ inline T block_sum(T x, T *room)
{
    const int nwarps = (int)blockDim.x / WARP, lane = (int)threadIdx.x % WARP;
    x = warp_sum(x);
    if (nwarps == 1)
        return x;
    __syncthreads(); /* room may still be read by an earlier sum */
    if (lane == 0)
        room[threadIdx.x / WARP] = x;
    __syncthreads();
    return warp_sum(lane < nwarps ? room[lane] : (T)0);
}

/* ---- Philox 4x32-10 (Salmon et al., SC 2011), as libfsdp/device/common/philox.h
 * --------------------- */

static __device__ inline void philox_words(uint32_t c[4], uint64_t key, uint64_t row,
                                           uint64_t counter)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    c[0] = (uint32_t)counter;
    c[1] = (uint32_t)(counter >> 32);
    c[2] = (uint32_t)row;
    c[3] = (uint32_t)(row >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint32_t high0 = __umulhi(0xD2511F53u, c[0]), low0 = 0xD2511F53u * c[0];
        const uint32_t high2 = __umulhi(0xCD9E8D57u, c[2]), low2 = 0xCD9E8D57u * c[2];
        c[0] = high2 ^ c[1] ^ k0;
        c[2] = high0 ^ c[3] ^ k1;
        c[1] = low2;
        c[3] = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* Of one dropout: words below `least` are dropped, others are multiplied by `keep`. */
struct drop_rule {
    uint64_t key, first_row;
    uint32_t least;
    float keep;
};

static inline drop_rule drop_rule_of(const struct nn_drop *drop)
{
    const bool all = drop->p >= 1;
    return (drop_rule){drop->key, drop->first_row,
                       all ? UINT32_MAX : (uint32_t)((double)drop->p * 4294967296.0),
                       all ? 0 : 1 / (1 - drop->p)};
}

/* The factor of element `at` of row `row` of the batch: word at % 32 / 8 of counter
 * at / 32 * 8 + at % 8. */
static __device__ inline float drop_factor(const drop_rule &rule, int row, uint64_t at)
{
    uint32_t c[4];
    philox_words(c, rule.key, rule.first_row + (uint64_t)row, at / 32 * 8 + at % 8);
    const int word = (int)(at % 32 / 8);
    const uint32_t bits = word == 0 ? c[0] : word == 1 ? c[1] : word == 2 ? c[2] : c[3];
    return bits >= rule.least ? rule.keep : 0.0f;
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Blocks that cover nitems, `each` a block. */
static inline unsigned blocks_for(size_t nitems, size_t each)
{
    return (unsigned)((nitems + each - 1) / each);
}

/* Blocks whose threads are the lots of so many rows (my_lot). */
static inline unsigned blocks_for_lots(size_t nrows, int dim, size_t nthreads)
{
    return blocks_for(nrows * (((size_t)dim + VEC - 1) / VEC), nthreads);
}

#define LAUNCH(lane, kernel, grid, block, ...)                                                     \
    FSDP_LAUNCH(kernel, grid, block, 0, (cudaStream_t)fsdp_lane_native(lane), __VA_ARGS__)

/* LAUNCH of `kernel`, an expression of the type `elem` that dtype says; in the arguments, TO and
 * FROM give pointers to it. LAUNCH_FOR: of kernel<elem>. */
#define LAUNCH_FOR_TYPE(dtype, lane, kernel, grid, block, ...)                                     \
    do {                                                                                           \
        if ((dtype) == FSDP_F32) {                                                                 \
            typedef float elem;                                                                    \
            LAUNCH(lane, kernel, grid, block, __VA_ARGS__);                                        \
        } else if ((dtype) == FSDP_BF16) {                                                         \
            typedef __nv_bfloat16 elem;                                                            \
            LAUNCH(lane, kernel, grid, block, __VA_ARGS__);                                        \
        } else {                                                                                   \
            typedef __half elem;                                                                   \
            LAUNCH(lane, kernel, grid, block, __VA_ARGS__);                                        \
        }                                                                                          \
    } while (0)
#define LAUNCH_FOR(dtype, lane, kernel, grid, block, ...)                                          \
    LAUNCH_FOR_TYPE(dtype, lane, (kernel<elem>), grid, block, __VA_ARGS__)
#define TO(x) ((elem *)(x))
#define FROM(x) ((const elem *)(x))

#endif
