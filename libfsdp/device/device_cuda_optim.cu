/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers on a GPU: one pass over the flat shard, in loads and stores of 16 bytes. */
#include "device_cuda.h"
#include "formula.h"
#include "fsdp/sys/cuda_kernel.cuh"

enum { BLOCK = 256, PER_THREAD = 4 };
typedef fsdp_pack<float, PER_THREAD> pack;

static inline __device__ bool skipped(const struct fsdp_loss_scale *scale)
{
    return scale && scale->skip;
}

/* ---- AdamW ------------------------------------------------------------------------------------
 */

/* The factors hold powers in double: one thread computes them for its block. T: param_dtype. */
template <class T>
static __global__ void __launch_bounds__(BLOCK) adamw_kernel(struct fsdp_adamw_args a, bool packed)
{
    __shared__ struct adamw factors;
    const size_t first = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * PER_THREAD;
    T *param = (T *)a.param;
    const bool whole = packed && first + PER_THREAD <= a.nelem;
    pack p, m, v, g;

    if (skipped(a.loss_scale))
        return;
    if (whole) { /* on their way while the factors are computed */
        p = *(const pack *)(a.master + first);
        m = *(const pack *)(a.exp_avg + first);
        v = *(const pack *)(a.exp_avg_sq + first);
        g = *(const pack *)(a.grad + first);
    }
    if (threadIdx.x == 0)
        factors = adamw_of(&a);
    __syncthreads();
    if (whole) {
        fsdp_pack<T, PER_THREAD> out;
#pragma unroll
        for (int k = 0; k < PER_THREAD; k++) {
            adamw_element(&factors, &p.at[k], &m.at[k], &v.at[k], g.at[k]);
            out.at[k] = fsdp_from_float<T>(p.at[k]);
        }
        *(pack *)(a.master + first) = p;
        *(pack *)(a.exp_avg + first) = m;
        *(pack *)(a.exp_avg_sq + first) = v;
        if (param)
            *(fsdp_pack<T, PER_THREAD> *)(param + first) = out;
        return;
    }
    for (size_t i = first; i < first + PER_THREAD && i < a.nelem; i++) {
        adamw_element(&factors, &a.master[i], &a.exp_avg[i], &a.exp_avg_sq[i], a.grad[i]);
        if (param)
            param[i] = fsdp_from_float<T>(a.master[i]);
    }
}

int device_cuda_adamw(void *lane, const struct fsdp_adamw_args *args, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    const struct fsdp_adamw_args a = *args;
    const bool packed =
        fsdp_is_aligned(a.master, sizeof(pack)) && fsdp_is_aligned(a.exp_avg, sizeof(pack)) &&
        fsdp_is_aligned(a.exp_avg_sq, sizeof(pack)) && fsdp_is_aligned(a.grad, sizeof(pack)) &&
        fsdp_is_aligned(a.param, PER_THREAD * fsdp_dtype_nbytes(a.param_dtype));
    FSDP_TRY(device_cuda_enter(l, err));
    fsdp_with_type(a.param_dtype, [&](auto t) {
        FSDP_LAUNCH((adamw_kernel<decltype(t)>), fsdp_nblocks(a.nelem, BLOCK, PER_THREAD), BLOCK, 0,
                    device_cuda_stream(l), a, packed);
    });
    return device_cuda_launched(l, "AdamW", err);
}

/* ---- SGD and averages: a grid that strides, an element at a time ------------------------------
 */

static const size_t max_blocks = 1 << 16;

static unsigned striding_blocks(size_t nelem)
{
    const size_t nblocks = (nelem + BLOCK - 1) / BLOCK;
    return (unsigned)(nblocks < max_blocks ? nblocks : max_blocks);
}

static __global__ void __launch_bounds__(BLOCK) sgd_kernel(struct fsdp_sgd_args a)
{
    if (skipped(a.loss_scale))
        return;
    const struct sgd s = sgd_of(&a);
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < a.nelem; i += stride)
        if (a.momentum_buffer)
            sgd_momentum(&s, &a.master[i], &a.momentum_buffer[i], a.grad[i]);
        else
            sgd_plain(&s, &a.master[i], a.grad[i]);
}

int device_cuda_sgd(void *lane, const struct fsdp_sgd_args *args, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_LAUNCH(sgd_kernel, striding_blocks(args->nelem), BLOCK, 0, device_cuda_stream(l), *args);
    return device_cuda_launched(l, "SGD", err);
}

static __global__ void __launch_bounds__(BLOCK)
    ema_kernel(float *average, const float *x, size_t nelem, float weight)
{
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < nelem; i += stride)
        average[i] =
            weight < 0.5f ? ema_near(average[i], x[i], weight) : ema_far(average[i], x[i], weight);
}

int device_cuda_ema(void *lane, float *average, const float *x, size_t nelem, double decay,
                    struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_LAUNCH(ema_kernel, striding_blocks(nelem), BLOCK, 0, device_cuda_stream(l), average, x,
                nelem, (float)(1 - decay));
    return device_cuda_launched(l, "moving average", err);
}
