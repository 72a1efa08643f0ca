/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's arithmetic on a GPU: casts, sums, norms, 8-bit floats, weights in 4 bits, initial
 * values.
 *
 * Memory-bound all of it: a thread takes 8 elements in loads and stores of 16 bytes where operands
 * are aligned to that, which those of flat buffers are. Sums over all elements are taken in two
 * kernels and an order that depends on the length alone. As for optimizers, nothing is contracted.
 */
#include "cuda.h"
#include "cuda_join.cuh"
#include "device/common/formula.h"
#include "device/common/nf4.h"
#include "fsdp/sys/cuda_kernel.cuh"

enum { BLOCK = 256, PER_THREAD = 8 };

/* ---- casts and accumulation ------------------------------------------------------------------ */

struct assign {
    static inline __device__ float apply(float old, float x)
    {
        (void)old;
        return x;
    }
    static const bool reads = false;
};
struct add {
    static inline __device__ float apply(float old, float x)
    {
        return old + x;
    }
    static const bool reads = true;
};

/* dst[i] = OP(dst[i], src[i]); packed: both are aligned to packs. */
template <class D, class S, class OP>
static __global__ void __launch_bounds__(BLOCK)
    map_kernel(D *dst, const S *src, size_t nelem, bool packed)
{
    const size_t first = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * PER_THREAD;
    if (packed && first + PER_THREAD <= nelem) {
        const fsdp_pack<S, PER_THREAD> in = *(const fsdp_pack<S, PER_THREAD> *)(src + first);
        fsdp_pack<D, PER_THREAD> out;
        if (OP::reads)
            out = *(const fsdp_pack<D, PER_THREAD> *)(dst + first);
#pragma unroll
        for (int k = 0; k < PER_THREAD; k++)
            out.at[k] = fsdp_from_float<D>(
                OP::apply(OP::reads ? fsdp_to_float(out.at[k]) : 0, fsdp_to_float(in.at[k])));
        *(fsdp_pack<D, PER_THREAD> *)(dst + first) = out;
        return;
    }
    for (size_t i = first; i < first + PER_THREAD && i < nelem; i++)
        dst[i] = fsdp_from_float<D>(
            OP::apply(OP::reads ? fsdp_to_float(dst[i]) : 0, fsdp_to_float(src[i])));
}

template <class D, class S, class OP>
static void map(cudaStream_t stream, void *dst, const void *src, size_t nelem)
{
    const bool packed = fsdp_is_aligned(dst, PER_THREAD * sizeof(D)) &&
                        fsdp_is_aligned(src, PER_THREAD * sizeof(S));
    FSDP_LAUNCH((map_kernel<D, S, OP>), fsdp_nblocks(nelem, BLOCK, PER_THREAD), BLOCK, 0, stream,
                (D *)dst, (const S *)src, nelem, packed);
}

int device_cuda_cast(void *lane, void *dst, enum fsdp_dtype dst_dtype, const void *src,
                     enum fsdp_dtype src_dtype, size_t nelem, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    FSDP_TRY(device_cuda_enter(l, err));
    fsdp_with_type(dst_dtype, [&](auto d) {
        fsdp_with_type(src_dtype, [&](auto s) {
            map<decltype(d), decltype(s), assign>(device_cuda_stream(l), dst, src, nelem);
        });
    });
    return device_cuda_launched(l, "cast", err);
}

int device_cuda_accumulate(void *lane, void *dst, enum fsdp_dtype dst_dtype, const void *src,
                           enum fsdp_dtype src_dtype, size_t nelem, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    FSDP_TRY(device_cuda_enter(l, err));
    fsdp_with_type(dst_dtype, [&](auto d) {
        fsdp_with_type(src_dtype, [&](auto s) {
            map<decltype(d), decltype(s), add>(device_cuda_stream(l), dst, src, nelem);
        });
    });
    return device_cuda_launched(l, "accumulate", err);
}

/* ---- sums of squares, greatest values -------------------------------------------------------- */

struct sumsq {
    static inline __device__ double apply(double total, float x)
    {
        return total + (double)x * (double)x;
    }
    static inline __device__ double join(double a, double b)
    {
        return a + b;
    }
    static inline __device__ double last(double old, double total)
    {
        (void)old;
        return total;
    }
};
struct absmax {
    static inline __device__ double apply(double total, float x)
    {
        return greater(total, (double)fabsf(x));
    }
    static inline __device__ double join(double a, double b)
    {
        return greater(a, b);
    }
    static inline __device__ double last(double old, double total)
    {
        return greater(old, total);
    }
};

/* part[block] of the block's `span` elements, a multiple of BLOCK. */
template <class OP, class T>
static __global__ void __launch_bounds__(BLOCK)
    reduce_kernel(double *part, const T *x, size_t nelem, size_t span)
{
    const size_t first = blockIdx.x * span, end = first + span < nelem ? first + span : nelem;
    double total = 0;
    for (size_t i = first + threadIdx.x; i < end; i += BLOCK)
        total = OP::apply(total, fsdp_to_float(x[i]));
    total = block_join<OP, BLOCK>(total);
    if (threadIdx.x == 0)
        part[blockIdx.x] = total;
}

template <class OP>
static __global__ void __launch_bounds__(BLOCK)
    join_kernel(double *out, const double *part, int nparts)
{
    double total = 0;
    for (int i = (int)threadIdx.x; i < nparts; i += BLOCK)
        total = OP::join(total, part[i]);
    total = block_join<OP, BLOCK>(total);
    if (threadIdx.x == 0)
        *out = OP::last(*out, total);
}

template <class OP>
static int reduce(void *lane, double *out, const void *x, enum fsdp_dtype dtype, size_t nelem,
                  const char *what, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    cudaStream_t stream = device_cuda_stream(l);
    double *part = device_cuda_partials(l);
    const size_t least = BLOCK * 16, even = (nelem + CUDA_PARTIALS - 1) / CUDA_PARTIALS;
    const size_t span = even <= least ? least : (even + BLOCK - 1) / BLOCK * BLOCK;
    const int nparts = (int)((nelem + span - 1) / span);

    FSDP_TRY(device_cuda_enter(l, err));
    if (nparts)
        fsdp_with_type(dtype, [&](auto t) {
            typedef decltype(t) T;
            FSDP_LAUNCH((reduce_kernel<OP, T>), nparts, BLOCK, 0, stream, part, (const T *)x, nelem,
                        span);
        });
    FSDP_LAUNCH((join_kernel<OP>), 1, BLOCK, 0, stream, out, (const double *)part, nparts);
    return device_cuda_launched(l, what, err);
}

int device_cuda_sumsq(void *lane, double *out, const void *x, enum fsdp_dtype dtype, size_t nelem,
                      struct fsdp_err *err)
{
    return reduce<sumsq>(lane, out, x, dtype, nelem, "sum of squares", err);
}

int device_cuda_absmax(void *lane, double *out, const void *x, enum fsdp_dtype dtype, size_t nelem,
                       struct fsdp_err *err)
{
    return reduce<absmax>(lane, out, x, dtype, nelem, "greatest value", err);
}

static __global__ void __launch_bounds__(BLOCK)
    max_rows_kernel(double *out, const double *in, size_t nrows, size_t ncols)
{
    const size_t column = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (column < ncols) {
        double most = in[column];
        for (size_t row = 1; row < nrows; row++)
            most = greater(most, in[row * ncols + column]);
        out[column] = most;
    }
}

int device_cuda_max_rows(void *lane, double *out, const double *in, size_t nrows, size_t ncols,
                         struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_LAUNCH(max_rows_kernel, fsdp_nblocks(ncols, BLOCK, 1), BLOCK, 0, device_cuda_stream(l),
                out, in, nrows, ncols);
    return device_cuda_launched(l, "greatest of rows", err);
}

/* ---- scalars: one thread --------------------------------------------------------------------- */

static __global__ void clip_kernel(struct fsdp_clip_args a)
{
    clip_of(a.coef, a.norm, a.partial, a.npartials, a.type, a.max_norm, a.scale);
}

int device_cuda_clip_coef(void *lane, const struct fsdp_clip_args *args, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_LAUNCH(clip_kernel, 1, 1, 0, device_cuda_stream(l), *args);
    return device_cuda_launched(l, "clip factor", err);
}

static __global__ void loss_scale_kernel(struct fsdp_loss_scale *scale, const float *norm,
                                         struct fsdp_loss_scale_rule rule)
{
    loss_scale_next(scale, *norm, rule);
}

int device_cuda_loss_scale_update(void *lane, struct fsdp_loss_scale *scale, const float *norm,
                                  struct fsdp_loss_scale_rule rule, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_LAUNCH(loss_scale_kernel, 1, 1, 0, device_cuda_stream(l), scale, norm, rule);
    return device_cuda_launched(l, "loss scale", err);
}

/* ---- 8-bit floats ---------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(BLOCK)
    quantize_kernel(uint8_t *dst, const float *src, size_t nelem, const double *amax, bool packed)
{
    const float scale = e4m3_scale(*amax);
    const size_t first = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * PER_THREAD;
    if (packed && first + PER_THREAD <= nelem) {
        const fsdp_pack<float, PER_THREAD> in =
            *(const fsdp_pack<float, PER_THREAD> *)(src + first);
        fsdp_pack<uint8_t, PER_THREAD> out;
#pragma unroll
        for (int k = 0; k < PER_THREAD; k++)
            out.at[k] = e4m3_encode(in.at[k] * scale);
        *(fsdp_pack<uint8_t, PER_THREAD> *)(dst + first) = out;
        return;
    }
    for (size_t i = first; i < first + PER_THREAD && i < nelem; i++)
        dst[i] = e4m3_encode(src[i] * scale);
}

int device_cuda_quantize(void *lane, void *dst, enum fsdp_dtype narrow, const float *src,
                         size_t nelem, const double *amax, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    const bool packed = fsdp_is_aligned(dst, PER_THREAD) && fsdp_is_aligned(src, PER_THREAD * 4);
    (void)narrow;
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_LAUNCH(quantize_kernel, fsdp_nblocks(nelem, BLOCK, PER_THREAD), BLOCK, 0,
                device_cuda_stream(l), (uint8_t *)dst, src, nelem, amax, packed);
    return device_cuda_launched(l, "quantize", err);
}

/* blockIdx.y: the piece. */
template <class D>
static __global__ void __launch_bounds__(BLOCK)
    dequantize_kernel(D *dst, const uint8_t *src, size_t nelem, struct fsdp_pieces pieces,
                      const double *amax, bool packed)
{
    dst = (D *)((char *)dst + blockIdx.y * pieces.dst_step);
    src += blockIdx.y * pieces.src_step;
    const float scale = e4m3_scale(*amax);
    const size_t first = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * PER_THREAD;
    if (packed && first + PER_THREAD <= nelem) {
        const fsdp_pack<uint8_t, PER_THREAD> in =
            *(const fsdp_pack<uint8_t, PER_THREAD> *)(src + first);
        fsdp_pack<D, PER_THREAD> out;
#pragma unroll
        for (int k = 0; k < PER_THREAD; k++)
            out.at[k] = fsdp_from_float<D>(e4m3_decode(in.at[k]) / scale);
        *(fsdp_pack<D, PER_THREAD> *)(dst + first) = out;
        return;
    }
    for (size_t i = first; i < first + PER_THREAD && i < nelem; i++)
        dst[i] = fsdp_from_float<D>(e4m3_decode(src[i]) / scale);
}

int device_cuda_dequantize(void *lane, const struct fsdp_dequantize_args *args,
                           struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    const struct fsdp_pieces *p = &args->pieces;
    const size_t pack_nbytes = PER_THREAD * fsdp_dtype_nbytes(args->dst_dtype);
    const bool packed =
        fsdp_is_aligned(args->dst, pack_nbytes) && fsdp_is_aligned(args->src, PER_THREAD) &&
        (p->count <= 1 || (p->dst_step % pack_nbytes == 0 && p->src_step % PER_THREAD == 0));
    const dim3 grid(fsdp_nblocks(args->nelem, BLOCK, PER_THREAD),
                    p->count ? (unsigned)p->count : 1);
    FSDP_TRY(device_cuda_enter(l, err));
    fsdp_with_type(args->dst_dtype, [&](auto d) {
        FSDP_LAUNCH((dequantize_kernel<decltype(d)>), grid, BLOCK, 0, device_cuda_stream(l),
                    (decltype(d) *)args->dst, (const uint8_t *)args->src, args->nelem, *p,
                    args->amax, packed);
    });
    return device_cuda_launched(l, "dequantize", err);
}

/* ---- weights in 4 bits ----------------------------------------------------------------------- */

/* A thread's elements are of one block. blockIdx.y: the piece. */
template <class D>
static __global__ void __launch_bounds__(BLOCK)
    nf4_decode_kernel(D *dst, struct fsdp_nf4_args a, bool packed)
{
    dst = (D *)((char *)dst + blockIdx.y * a.pieces.dst_step);
    a.codes += blockIdx.y * a.pieces.src_step;
    a.scale_codes += blockIdx.y * a.pieces.src_step;
    a.first_block += blockIdx.y * (a.nelem / FSDP_NF4_BLOCK);
    const size_t first = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * PER_THREAD;
    if (first >= a.nelem)
        return;
    const float scale = nf4_scale(dynamic_signed, &a, first / FSDP_NF4_BLOCK);
    if (packed && first + PER_THREAD <= a.nelem) {
        const fsdp_pack<uint8_t, PER_THREAD / 2> in =
            *(const fsdp_pack<uint8_t, PER_THREAD / 2> *)(a.codes + first / 2);
        fsdp_pack<D, PER_THREAD> out;
#pragma unroll
        for (int k = 0; k < PER_THREAD; k++)
            out.at[k] =
                fsdp_from_float<D>(nf4_values[in.at[k / 2] >> (k % 2 ? 0 : 4) & 15] * scale);
        *(fsdp_pack<D, PER_THREAD> *)(dst + first) = out;
        return;
    }
    for (size_t i = first; i < first + PER_THREAD && i < a.nelem; i++)
        dst[i] = fsdp_from_float<D>(nf4_values[a.codes[i / 2] >> (i % 2 ? 0 : 4) & 15] * scale);
}

int device_cuda_nf4_decode(void *lane, const struct fsdp_nf4_args *args, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    const size_t pack_nbytes = PER_THREAD * fsdp_dtype_nbytes(args->dst_dtype);
    const struct fsdp_pieces *p = &args->pieces;
    const bool packed =
        fsdp_is_aligned(args->dst, pack_nbytes) && fsdp_is_aligned(args->codes, PER_THREAD / 2) &&
        (p->count <= 1 || (p->dst_step % pack_nbytes == 0 && p->src_step % (PER_THREAD / 2) == 0));
    const dim3 grid(fsdp_nblocks(args->nelem, BLOCK, PER_THREAD),
                    p->count ? (unsigned)p->count : 1);
    FSDP_TRY(device_cuda_enter(l, err));
    fsdp_with_type(args->dst_dtype, [&](auto d) {
        FSDP_LAUNCH((nf4_decode_kernel<decltype(d)>), grid, BLOCK, 0, device_cuda_stream(l),
                    (decltype(d) *)args->dst, *args, packed);
    });
    return device_cuda_launched(l, "decoding of NF4", err);
}

/* ---- initial values -------------------------------------------------------------------------- */

/* A thread takes one block of four of the generator, of which the range may have a part. */
static __global__ void __launch_bounds__(BLOCK)
    init_kernel(float *dst, uint64_t first, size_t nelem, struct fsdp_init init, uint64_t seed,
                uint64_t stream)
{
    const uint64_t block = first / 4 + (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    float out[4] = {0, 0, 0, 0};
    if (block * 4 >= first + nelem)
        return;
    if (init.kind == FSDP_INIT_ONES)
        out[0] = out[1] = out[2] = out[3] = 1;
    else if (init.kind != FSDP_INIT_ZEROS)
        init_block(out, init, seed, stream, block);
    for (int k = 0; k < 4; k++) {
        const uint64_t element = block * 4 + k;
        if (element >= first && element < first + nelem)
            dst[element - first] = out[k];
    }
}

int device_cuda_init_fill(void *lane, float *dst, uint64_t first, size_t nelem,
                          struct fsdp_init init, uint64_t seed, uint64_t stream,
                          struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    const size_t nblocks = (first + nelem + 3) / 4 - first / 4;
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_LAUNCH(init_kernel, fsdp_nblocks(nblocks, BLOCK, 1), BLOCK, 0, device_cuda_stream(l), dst,
                first, nelem, init, seed, stream);
    return device_cuda_launched(l, "initial values", err);
}
