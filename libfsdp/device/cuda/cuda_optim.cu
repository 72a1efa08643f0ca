/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers on a GPU: one pass over the flat shard, in loads and stores of 16 bytes. An element's
 * bits must not depend on which range it is updated in (the Makefile's -fmad=false). */
#include "cuda.h"
#include "device/common/formula.h"
#include "fsdp/sys/cuda_kernel.cuh"

enum { BLOCK = 256, PER_THREAD = 4 };

static inline __device__ bool skipped(const struct fsdp_loss_scale *scale)
{
    return scale && scale->skip;
}

/* ---- AdamW ----------------------------------------------------------------------------------- */

static inline __device__ float moment_of(float x)
{
    return x;
}
static inline __device__ float moment_of(uint16_t x)
{
    return bf16_value(x);
}

static inline __device__ void keep_moment(float *to, float x, uint32_t)
{
    *to = x;
}
static inline __device__ void keep_moment(uint16_t *to, float x, uint32_t random)
{
    *to = bf16_by_chance(x, random);
}

/* A master and the gathered copy of it: whole, next to a parameter of type T that may not be there;
 * in two halves; or the parameter alone, which `drawn` words round. */
template <class T, int N> struct whole_master {
    typedef fsdp_pack<float, N> pack_p;
    typedef fsdp_pack<T, N> pack_param;
    static const bool draws = false;
    static __device__ void load(float *p, const fsdp_adamw_args &a, size_t at)
    {
        const pack_p in = *(const pack_p *)(a.master + at);
#pragma unroll
        for (int k = 0; k < N; k++)
            p[k] = in.at[k];
    }
    static __device__ void store(const fsdp_adamw_args &a, size_t at, const float *p,
                                 const uint32_t *)
    {
        pack_p out;
        pack_param param;
#pragma unroll
        for (int k = 0; k < N; k++) {
            out.at[k] = p[k];
            param.at[k] = fsdp_from_float<T>(p[k]);
        }
        *(pack_p *)(a.master + at) = out;
        if (a.param)
            *(pack_param *)((T *)a.param + at) = param;
    }
};

template <int N> struct split_master {
    typedef fsdp_pack<uint16_t, N> half;
    static const bool draws = false;
    static __device__ void load(float *p, const fsdp_adamw_args &a, size_t at)
    {
        const half param = *(const half *)((const uint16_t *)a.param + at);
        const half rest = *(const half *)(a.rest + at);
#pragma unroll
        for (int k = 0; k < N; k++)
            p[k] = master_join(param.at[k], rest.at[k]);
    }
    static __device__ void store(const fsdp_adamw_args &a, size_t at, const float *p,
                                 const uint32_t *)
    {
        half param, rest;
#pragma unroll
        for (int k = 0; k < N; k++)
            master_split(&param.at[k], &rest.at[k], p[k]);
        *(half *)((uint16_t *)a.param + at) = param;
        *(half *)(a.rest + at) = rest;
    }
};

template <int N> struct no_master {
    typedef fsdp_pack<uint16_t, N> half;
    static const bool draws = true;
    static __device__ void load(float *p, const fsdp_adamw_args &a, size_t at)
    {
        const half param = *(const half *)((const uint16_t *)a.param + at);
#pragma unroll
        for (int k = 0; k < N; k++)
            p[k] = bf16_value(param.at[k]);
    }
    static __device__ void store(const fsdp_adamw_args &a, size_t at, const float *p,
                                 const uint32_t *drawn)
    {
        half param;
#pragma unroll
        for (int k = 0; k < N; k++)
            param.at[k] = bf16_by_chance(p[k], drawn[k]);
        *(half *)((uint16_t *)a.param + at) = param;
    }
};

/* The random word of an element of a tensor. */
static inline __device__ uint32_t word_of(const fsdp_rounding &r, uint64_t element)
{
    uint32_t words[4];
    philox4x32(words, r.key, r.step, element / 4);
    return element % 4 < 2 ? (element % 2 ? words[1] : words[0])
                           : (element % 2 ? words[3] : words[2]);
}

/* N elements from `at` on; words: their random ones, of moments and of weights. */
template <class MASTER, class M, int N>
static __device__ void adamw_store(const fsdp_adamw_args &a, size_t at, const float *p,
                                   const float *m, const float *v, const uint32_t *words,
                                   const uint32_t *drawn)
{
    fsdp_pack<M, N> new_m, new_v;
#pragma unroll
    for (int k = 0; k < N; k++) {
        keep_moment(&new_m.at[k], m[k], words[k]);
        keep_moment(&new_v.at[k], v[k], words[k] >> 16);
    }
    *(fsdp_pack<M, N> *)((M *)a.exp_avg + at) = new_m;
    *(fsdp_pack<M, N> *)((M *)a.exp_avg_sq + at) = new_v;
    MASTER::store(a, at, p, drawn);
}

template <class G, int N>
static __device__ void adamw_load_grad(const fsdp_adamw_args &a, size_t at, float *g)
{
    const fsdp_pack<G, N> grad = *(const fsdp_pack<G, N> *)((const G *)a.grad + at);
#pragma unroll
    for (int k = 0; k < N; k++)
        g[k] = moment_of(grad.at[k]);
}

template <class MASTER, class M, int N>
static __device__ void adamw_load(const fsdp_adamw_args &a, size_t at, float *p, float *m, float *v,
                                  float *g)
{
    const fsdp_pack<M, N> old_m = *(const fsdp_pack<M, N> *)((const M *)a.exp_avg + at);
    const fsdp_pack<M, N> old_v = *(const fsdp_pack<M, N> *)((const M *)a.exp_avg_sq + at);
    if (a.grad_dtype == FSDP_BF16)
        adamw_load_grad<uint16_t, N>(a, at, g);
    else
        adamw_load_grad<float, N>(a, at, g);
    MASTER::load(p, a, at);
#pragma unroll
    for (int k = 0; k < N; k++) {
        m[k] = moment_of(old_m.at[k]);
        v[k] = moment_of(old_v.at[k]);
    }
}

/* The factors hold powers in double, which take one thread longer than its block's loads and
 * stores: the host has computed them, `known`, unless the number of steps is known to the device
 * alone. Packed ranges begin at a multiple of PER_THREAD of their tensor, so that a thread's words
 * are of one counter. */
template <class MASTER, class ONE, class M>
static __global__ void __launch_bounds__(BLOCK)
    adamw_kernel(struct fsdp_adamw_args a, struct adamw known, bool packed)
{
    __shared__ struct adamw made;
    struct adamw factors = known;
    const size_t first = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * PER_THREAD;
    const bool whole = packed && first + PER_THREAD <= a.nelem;
    float p[PER_THREAD], m[PER_THREAD], v[PER_THREAD], g[PER_THREAD];
    uint32_t words[PER_THREAD] = {0}, drawn[PER_THREAD] = {0};

    if (skipped(a.loss_scale))
        return;
    if (whole) /* on their way while the factors are computed */
        adamw_load<MASTER, M, PER_THREAD>(a, first, p, m, v, g);
    if (a.loss_scale && threadIdx.x == 0)
        made = adamw_of(&a);
    if (sizeof(M) == 2 && whole)
        philox4x32(words, a.rounding.key, a.rounding.step, (a.rounding.first + first) / PER_THREAD);
    if (a.loss_scale) {
        __syncthreads();
        factors = made;
    } else if (a.grad_scale)
        factors.scale = *a.grad_scale;
    if (whole) {
#pragma unroll
        for (int k = 0; k < PER_THREAD; k++)
            adamw_element(&factors, &p[k], &m[k], &v[k], g[k]);
        if (MASTER::draws) /* when the gradients' registers are free */
            philox4x32(drawn, a.weight_rounding.key, a.weight_rounding.step,
                       (a.weight_rounding.first + first) / PER_THREAD);
        adamw_store<MASTER, M, PER_THREAD>(a, first, p, m, v, words, drawn);
        return;
    }
    for (size_t i = first; i < first + PER_THREAD && i < a.nelem; i++) {
        adamw_load<ONE, M, 1>(a, i, p, m, v, g);
        adamw_element(&factors, p, m, v, *g);
        const uint32_t word = sizeof(M) == 2 ? word_of(a.rounding, a.rounding.first + i) : 0;
        const uint32_t draw =
            ONE::draws ? word_of(a.weight_rounding, a.weight_rounding.first + i) : 0;
        adamw_store<ONE, M, 1>(a, i, p, m, v, &word, &draw);
    }
}

template <class MASTER, class ONE>
static void adamw_launch(struct cuda_lane *l, const struct fsdp_adamw_args &a, bool packed)
{
    const unsigned nblocks = fsdp_nblocks(a.nelem, BLOCK, PER_THREAD);
    struct fsdp_adamw_args here = a; /* what the host can read of them */
    here.grad_scale = NULL;
    const struct adamw known = a.loss_scale ? (struct adamw){} : adamw_of(&here);
    if (a.moment_dtype == FSDP_BF16)
        FSDP_LAUNCH((adamw_kernel<MASTER, ONE, uint16_t>), nblocks, BLOCK, 0, device_cuda_stream(l),
                    a, known, packed);
    else
        FSDP_LAUNCH((adamw_kernel<MASTER, ONE, float>), nblocks, BLOCK, 0, device_cuda_stream(l), a,
                    known, packed);
}

/* Of PER_THREAD elements. */
static bool is_packed(const void *ptr, enum fsdp_dtype dtype)
{
    return fsdp_is_aligned(ptr, PER_THREAD * fsdp_dtype_nbytes(dtype));
}

int device_cuda_adamw(void *lane, const struct fsdp_adamw_args *args, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    const struct fsdp_adamw_args a = *args;
    const bool packed = is_packed(a.master, FSDP_F32) && is_packed(a.exp_avg, a.moment_dtype) &&
                        is_packed(a.exp_avg_sq, a.moment_dtype) &&
                        is_packed(a.grad, a.grad_dtype) && is_packed(a.param, a.param_dtype) &&
                        is_packed(a.rest, FSDP_BF16) &&
                        (a.moment_dtype == FSDP_F32 || a.rounding.first % PER_THREAD == 0) &&
                        (a.master || a.rest || a.weight_rounding.first % PER_THREAD == 0);
    FSDP_TRY(device_cuda_enter(l, err));
    if (!a.master && !a.rest)
        adamw_launch<no_master<PER_THREAD>, no_master<1>>(l, a, packed);
    else if (!a.master)
        adamw_launch<split_master<PER_THREAD>, split_master<1>>(l, a, packed);
    else
        fsdp_with_type(a.param_dtype, [&](auto t) {
            typedef decltype(t) T;
            adamw_launch<whole_master<T, PER_THREAD>, whole_master<T, 1>>(l, a, packed);
        });
    return device_cuda_launched(l, "AdamW", err);
}

/* ---- halves, SGD, Lion, schedule-free AdamW and averages: a grid that strides, an element at a
 * time --------------------- */

static const size_t max_blocks = 1 << 16;

static unsigned striding_blocks(size_t nelem)
{
    const size_t nblocks = (nelem + BLOCK - 1) / BLOCK;
    return (unsigned)(nblocks < max_blocks ? nblocks : max_blocks);
}

static __global__ void __launch_bounds__(BLOCK)
    split_kernel(uint16_t *param, uint16_t *rest, const float *x, size_t nelem)
{
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < nelem; i += stride)
        master_split(&param[i], &rest[i], x[i]);
}

int device_cuda_split(void *lane, void *param, uint16_t *rest, const float *x, size_t nelem,
                      struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_LAUNCH(split_kernel, striding_blocks(nelem), BLOCK, 0, device_cuda_stream(l),
                (uint16_t *)param, rest, x, nelem);
    return device_cuda_launched(l, "split of masters", err);
}

static __global__ void __launch_bounds__(BLOCK)
    join_kernel(float *x, const uint16_t *param, const uint16_t *rest, size_t nelem)
{
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < nelem; i += stride)
        x[i] = master_join(param[i], rest[i]);
}

int device_cuda_join(void *lane, float *x, const void *param, const uint16_t *rest, size_t nelem,
                     struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_LAUNCH(join_kernel, striding_blocks(nelem), BLOCK, 0, device_cuda_stream(l), x,
                (const uint16_t *)param, rest, nelem);
    return device_cuda_launched(l, "join of masters", err);
}

/* A thread has the elements of one counter: up to PER_THREAD of the tensor. */
static __global__ void __launch_bounds__(BLOCK)
    narrow_kernel(uint16_t *dst, const float *src, size_t nelem, struct fsdp_rounding r)
{
    const uint64_t end = r.first + nelem, counter0 = r.first / PER_THREAD;
    const size_t ncounters = (size_t)((end + PER_THREAD - 1) / PER_THREAD - counter0);
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t t = (size_t)blockIdx.x * BLOCK + threadIdx.x; t < ncounters; t += stride) {
        uint32_t words[PER_THREAD];
        philox4x32(words, r.key, r.step, counter0 + t);
#pragma unroll
        for (int k = 0; k < PER_THREAD; k++) {
            const uint64_t element = (counter0 + t) * PER_THREAD + k;
            if (element >= r.first && element < end)
                dst[element - r.first] = bf16_by_chance(src[element - r.first], words[k]);
        }
    }
}

int device_cuda_narrow(void *lane, void *dst, const float *src, size_t nelem,
                       const struct fsdp_rounding *rounding, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_LAUNCH(narrow_kernel, striding_blocks(nelem / PER_THREAD + 2), BLOCK, 0,
                device_cuda_stream(l), (uint16_t *)dst, src, nelem, *rounding);
    return device_cuda_launched(l, "rounding of weights", err);
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

static __global__ void __launch_bounds__(BLOCK) lion_kernel(struct fsdp_lion_args a)
{
    if (skipped(a.loss_scale))
        return;
    const struct lion s = lion_of(&a);
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < a.nelem; i += stride)
        lion_element(&s, &a.master[i], &a.exp_avg[i], a.grad[i]);
}

int device_cuda_lion(void *lane, const struct fsdp_lion_args *args, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_LAUNCH(lion_kernel, striding_blocks(args->nelem), BLOCK, 0, device_cuda_stream(l), *args);
    return device_cuda_launched(l, "Lion", err);
}

/* ---- schedule-free AdamW --------------------------------------------------------------------- */

template <typename T>
static __global__ void __launch_bounds__(BLOCK)
    schedulefree_kernel(struct fsdp_schedulefree_args a, T *y)
{
    const struct schedulefree s = schedulefree_of(&a);
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < a.nelem; i += stride)
        y[i] = fsdp_from_float<T>(
            schedulefree_element(&s, &a.x[i], &a.z[i], &a.exp_avg_sq[i], a.grad[i]));
}

int device_cuda_schedulefree(void *lane, const struct fsdp_schedulefree_args *args,
                             struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    const struct fsdp_schedulefree_args a = *args;
    FSDP_TRY(device_cuda_enter(l, err));
    fsdp_with_type(a.y_dtype, [&](auto t) {
        typedef decltype(t) T;
        FSDP_LAUNCH(schedulefree_kernel<T>, striding_blocks(a.nelem), BLOCK, 0,
                    device_cuda_stream(l), a, (T *)a.y);
    });
    return device_cuda_launched(l, "schedule-free AdamW", err);
}

template <typename T>
static __global__ void __launch_bounds__(BLOCK)
    schedulefree_y_kernel(T *y, const float *x, const float *z, size_t nelem, float b1, float nb1)
{
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < nelem; i += stride)
        y[i] = fsdp_from_float<T>(schedulefree_y(b1, nb1, x[i], z[i]));
}

int device_cuda_schedulefree_y(void *lane, void *y, enum fsdp_dtype y_dtype, const float *x,
                               const float *z, size_t nelem, double beta1, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    FSDP_TRY(device_cuda_enter(l, err));
    fsdp_with_type(y_dtype, [&](auto t) {
        typedef decltype(t) T;
        FSDP_LAUNCH(schedulefree_y_kernel<T>, striding_blocks(nelem), BLOCK, 0,
                    device_cuda_stream(l), (T *)y, x, z, nelem, (float)beta1, (float)(1 - beta1));
    });
    return device_cuda_launched(l, "schedule-free AdamW", err);
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
