/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW with moments in 8 bits on a GPU: a warp decodes a block of codes, updates it in fp32, and
 * encodes it again. Bits are the CPU's (the Makefile's -fmad=false). */
#include "cuda.h"
#include "device/common/dynamic_code.h"
#include "device/common/formula.h"
#include "fsdp/sys/cuda_kernel.cuh"

enum {
    BLOCK = 256, /* a thread for each code of the tables */
    WARP = 32,
    WARPS = BLOCK / WARP,
    PER_THREAD = FSDP_CUT_ALIGN / WARP,
    BLOCKS_PER_WARP = 16, /* of codes, so that the tables are copied seldom */
};

/* The greatest x of a warp's threads, which all of them get. */
static __device__ float warp_greatest(float x)
{
    for (int lane = WARP / 2; lane; lane /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
    return x;
}

/* A thread's elements. */
struct elements {
    float p[PER_THREAD], g[PER_THREAD];
    uint8_t code1[PER_THREAD], code2[PER_THREAD];
};

/* N elements from `at` on, which are those from k on of the thread. */
template <int N>
static __device__ void load_elements(elements &e, int k, const fsdp_adamw8bit_args &a, size_t at)
{
    const fsdp_pack<float, N> p = *(const fsdp_pack<float, N> *)(a.master + at);
    const fsdp_pack<float, N> g = *(const fsdp_pack<float, N> *)(a.grad + at);
    const fsdp_pack<uint8_t, N> code1 = *(const fsdp_pack<uint8_t, N> *)(a.state1 + at);
    const fsdp_pack<uint8_t, N> code2 = *(const fsdp_pack<uint8_t, N> *)(a.state2 + at);
#pragma unroll
    for (int i = 0; i < N; i++) {
        e.p[k + i] = p.at[i];
        e.g[k + i] = g.at[i];
        e.code1[k + i] = code1.at[i];
        e.code2[k + i] = code2.at[i];
    }
}

template <int N>
static __device__ void store_elements(const fsdp_adamw8bit_args &a, size_t at, const elements &e,
                                      int k)
{
    fsdp_pack<float, N> p;
    fsdp_pack<uint8_t, N> code1, code2;
#pragma unroll
    for (int i = 0; i < N; i++) {
        p.at[i] = e.p[k + i];
        code1.at[i] = e.code1[k + i];
        code2.at[i] = e.code2[k + i];
    }
    *(fsdp_pack<float, N> *)(a.master + at) = p;
    *(fsdp_pack<uint8_t, N> *)(a.state1 + at) = code1;
    *(fsdp_pack<uint8_t, N> *)(a.state2 + at) = code2;
}

/* A warp's block. signs, squares: the tables of codes. */
static __device__ void update_block(const fsdp_adamw8bit_args &a, const adamw &factors,
                                    const float *signs, const float *squares, unsigned block,
                                    bool packed)
{
    const unsigned lane = threadIdx.x % WARP;
    const size_t at = (size_t)block * FSDP_CUT_ALIGN + lane * PER_THREAD;
    const bool whole = packed && at + PER_THREAD <= a.nelem;
    const float scale1 = a.absmax1[block], scale2 = a.absmax2[block];
    float m[PER_THREAD], v[PER_THREAD], most1 = 0, most2 = 0;
    elements e = {};

    if (whole)
        load_elements<PER_THREAD>(e, 0, a, at);
#pragma unroll
    for (int k = 0; k < PER_THREAD; k++)
        if (at + k < a.nelem) {
            if (!whole)
                load_elements<1>(e, k, a, at + k);
            m[k] = signs[e.code1[k]] * scale1;
            v[k] = squares[e.code2[k]] * scale2;
            adamw_element(&factors, &e.p[k], &m[k], &v[k], e.g[k]);
            most1 = fmaxf(most1, fabsf(m[k]));
            most2 = fmaxf(most2, v[k]);
        }
    most1 = adamw8bit_scale(warp_greatest(most1));
    most2 = adamw8bit_scale(warp_greatest(most2));
#pragma unroll
    for (int k = 0; k < PER_THREAD; k++)
        if (at + k < a.nelem) {
            e.code1[k] = dynamic_code_signed(signs, m[k] / most1);
            e.code2[k] = dynamic_code_unsigned(squares, v[k] / most2);
            if (!whole)
                store_elements<1>(a, at + k, e, k);
        }
    if (whole)
        store_elements<PER_THREAD>(a, at, e, 0);
    if (lane == 0) {
        a.absmax1[block] = most1;
        a.absmax2[block] = most2;
    }
}

static __global__ void __launch_bounds__(BLOCK, 4)
    adamw8bit_kernel(struct fsdp_adamw8bit_args a, struct adamw known, unsigned nblocks,
                     bool packed)
{
    __shared__ float signs[BLOCK], squares[BLOCK];
    __shared__ struct adamw factors;
    const unsigned first = blockIdx.x * WARPS * BLOCKS_PER_WARP + threadIdx.x / WARP;

    if (a.loss_scale && a.loss_scale->skip)
        return;
    signs[threadIdx.x] = dynamic_signed[threadIdx.x];
    squares[threadIdx.x] = dynamic_unsigned[threadIdx.x];
    if (threadIdx.x == 0) {
        factors = known;
        if (a.loss_scale)
            factors = adamw8bit_of(&a);
        else if (a.grad_scale)
            factors.scale = *a.grad_scale;
    }
    __syncthreads();
    for (int k = 0; k < BLOCKS_PER_WARP && first + k * WARPS < nblocks; k++)
        update_block(a, factors, signs, squares, first + k * WARPS, packed);
}

int device_cuda_adamw8bit(void *lane, const struct fsdp_adamw8bit_args *args, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    const unsigned nblocks = fsdp_nblocks(args->nelem, WARP, PER_THREAD);
    const bool packed = fsdp_is_aligned(args->master, sizeof(float) * PER_THREAD) &&
                        fsdp_is_aligned(args->grad, sizeof(float) * PER_THREAD) &&
                        fsdp_is_aligned(args->state1, PER_THREAD) &&
                        fsdp_is_aligned(args->state2, PER_THREAD);
    struct fsdp_adamw8bit_args here = *args; /* what the host can read of them */
    here.grad_scale = NULL;
    const struct adamw known = args->loss_scale ? (struct adamw){} : adamw8bit_of(&here);
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_LAUNCH(adamw8bit_kernel, fsdp_nblocks(nblocks, WARPS, BLOCKS_PER_WARP), BLOCK, 0,
                device_cuda_stream(l), *args, known, nblocks, packed);
    return device_cuda_launched(l, "AdamW with moments in 8 bits", err);
}
