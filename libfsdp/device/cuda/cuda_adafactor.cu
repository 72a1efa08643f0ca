/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adafactor on a GPU, in the three calls that fsdp_adafactor has. Sums are of doubles, in an order
 * that follows from shapes alone.
 *
 *     sums   [ p^2 | row_var | g^2 of column 0 | column 1 | ... ]   of a matrix, cut by rows
 *            [ p^2 | (unused) ]                                     of all else
 */
#include "cuda.h"
#include "cuda_join.cuh"
#include "device/common/formula.h"
#include "fsdp/sys/cuda_kernel.cuh"

enum { BLOCK = 256, COLUMNS = 32, GROUPS = BLOCK / COLUMNS, STRIP = 8, MOST_MATRICES = 65535 };

static inline __device__ bool skips(const struct fsdp_adafactor_args &a)
{
    return a.loss_scale && a.loss_scale->skip;
}

static inline __device__ double sum_of(double mine)
{
    return block_join<join_sums, BLOCK>(mine);
}

/* Rows, and matrices, of this rank. */
static inline __host__ __device__ size_t rows_here(const struct fsdp_adafactor_args &a)
{
    return a.nelem / a.ncols;
}
static inline __host__ __device__ size_t matrices_here(const struct fsdp_adafactor_args &a)
{
    return a.by_rows ? 1 : rows_here(a) / a.nrows;
}

/* ---- measure --------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(BLOCK)
    adafactor_vector_kernel(struct fsdp_adafactor_args a)
{
    if (skips(a))
        return;
    const struct adafactor f = adafactor_of(&a);
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < a.nelem; i += stride) {
        const float g = a.grad[i] * f.scale;
        a.variance[i] = adafactor_mix(a.variance[i], (double)(g * g), f.weight);
    }
}

/* A block a row. */
static __global__ void __launch_bounds__(BLOCK) adafactor_rows_kernel(struct fsdp_adafactor_args a)
{
    if (skips(a))
        return;
    const float scale = a.grad_scale ? *a.grad_scale : 1.0f;
    const float *row = a.grad + (size_t)blockIdx.x * a.ncols;
    double sum = 0;
    for (size_t c = threadIdx.x; c < a.ncols; c += BLOCK) {
        const double g = (double)(row[c] * scale);
        sum += g * g;
    }
    sum = sum_of(sum);
    if (threadIdx.x == 0)
        a.row_var[blockIdx.x] =
            adafactor_mix(a.row_var[blockIdx.x], sum / (double)a.ncols, adafactor_of(&a).weight);
}

/* A thread has a column and every eighth row. */
static __global__ void __launch_bounds__(BLOCK)
    adafactor_columns_kernel(struct fsdp_adafactor_args a)
{
    __shared__ double part[GROUPS][COLUMNS];
    if (skips(a))
        return;
    const struct adafactor f = adafactor_of(&a);
    const size_t lane = threadIdx.x % COLUMNS, group = threadIdx.x / COLUMNS;
    const size_t c = (size_t)blockIdx.x * COLUMNS + lane;
    const size_t nrows = a.by_rows ? rows_here(a) : a.nrows;
    for (size_t m = blockIdx.y; m < matrices_here(a); m += gridDim.y) {
        const float *grad = a.grad + m * nrows * a.ncols;
        double sum = 0;
        for (size_t r = group; r < nrows && c < a.ncols; r += GROUPS) {
            const double g = (double)(grad[r * a.ncols + c] * f.scale);
            sum += g * g;
        }
        __syncthreads(); /* part may still be read */
        part[group][lane] = sum;
        __syncthreads();
        if (group || c >= a.ncols)
            continue;
        for (int g = 1; g < GROUPS; g++)
            sum += part[g][lane];
        if (a.by_rows)
            a.sums[ADAFACTOR_SUM_COLUMNS + c] += sum;
        else
            a.col_var[m * a.ncols + c] =
                adafactor_mix(a.col_var[m * a.ncols + c], sum / (double)a.nrows, f.weight);
    }
}

/* Rows [first, first + nrows)'s averages: the sum, which all threads of a block get. */
static __device__ double sum_rows(const struct fsdp_adafactor_args &a, size_t first, size_t nrows)
{
    double sum = 0;
    for (size_t r = threadIdx.x; r < nrows; r += BLOCK)
        sum += (double)a.row_var[first + r];
    __syncthreads(); /* an earlier sum may still be read */
    return sum_of(sum);
}

/* One block. */
static __global__ void __launch_bounds__(BLOCK)
    adafactor_sum_rows_kernel(struct fsdp_adafactor_args a)
{
    if (skips(a))
        return;
    const double sum = sum_rows(a, 0, rows_here(a));
    if (threadIdx.x == 0)
        a.sums[ADAFACTOR_SUM_ROWS] += sum;
}

static unsigned blocks_of(size_t nitems, size_t each, size_t most)
{
    const size_t nblocks = (nitems + each - 1) / each;
    return (unsigned)(nblocks < most ? nblocks : most);
}

static int measure(struct cuda_lane *l, const struct fsdp_adafactor_args &a, struct fsdp_err *err)
{
    cudaStream_t stream = device_cuda_stream(l);

    FSDP_TRY(device_cuda_sumsq(l, &a.sums[ADAFACTOR_SUM_P], a.master, FSDP_F32, a.nelem, err));
    if (!a.nelem)
        return FSDP_OK;
    if (a.variance)
        FSDP_LAUNCH(adafactor_vector_kernel, blocks_of(a.nelem, BLOCK, 1 << 16), BLOCK, 0, stream,
                    a);
    if (a.row_var) {
        const dim3 grid(blocks_of(a.ncols, COLUMNS, SIZE_MAX),
                        blocks_of(matrices_here(a), 1, MOST_MATRICES));
        FSDP_LAUNCH(adafactor_rows_kernel, (unsigned)rows_here(a), BLOCK, 0, stream, a);
        FSDP_LAUNCH(adafactor_columns_kernel, grid, BLOCK, 0, stream, a);
    }
    if (a.row_var && a.by_rows)
        FSDP_LAUNCH(adafactor_sum_rows_kernel, 1, BLOCK, 0, stream, a);
    return device_cuda_launched(l, "Adafactor's sums", err);
}

/* ---- estimate, apply ------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(BLOCK)
    adafactor_mix_columns_kernel(struct fsdp_adafactor_args a)
{
    if (skips(a))
        return;
    const struct adafactor f = adafactor_of(&a);
    const size_t c = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (c < a.ncols)
        a.col_var[c] = adafactor_mix(a.col_var[c],
                                     a.sums[ADAFACTOR_SUM_COLUMNS + c] / (double)a.nrows, f.weight);
}

/* What an element's update u is for: its square is added, or it is applied. */
template <bool APPLY>
static inline __device__ void use_update(const struct fsdp_adafactor_args &a, double rate, size_t i,
                                         float u, double *sum)
{
    if (APPLY)
        a.master[i] = adafactor_step(&a, rate, a.master[i], u);
    else
        *sum += (double)u * (double)u;
}

/* Strips of rows of one matrix, which share the mean of its rows' averages. */
template <bool APPLY>
static __device__ double each_of_matrices(const struct fsdp_adafactor_args &a,
                                          const struct adafactor &f, double rate)
{
    const size_t nrows = a.by_rows ? rows_here(a) : a.nrows, per = (nrows + STRIP - 1) / STRIP;
    size_t known = SIZE_MAX; /* the matrix whose mean is known */
    double sum = 0;
    float mean = 1;

    for (size_t s = blockIdx.x; s < per * matrices_here(a); s += gridDim.x) {
        const size_t m = s / per, first = s % per * STRIP;
        const float *col_var = a.col_var + m * a.ncols;
        if (m != known)
            mean = adafactor_mean(
                a.by_rows ? a.sums[ADAFACTOR_SUM_ROWS] : sum_rows(a, m * nrows, nrows), a.nrows);
        known = m;
        for (size_t r = m * nrows + first; r < m * nrows + min(first + STRIP, nrows); r++)
            for (size_t c = threadIdx.x; c < a.ncols; c += BLOCK) {
                const size_t i = r * a.ncols + c;
                const float root = adafactor_root(a.row_var[r] * col_var[c] / mean);
                use_update<APPLY>(a, rate, i, a.grad[i] * f.scale / root, &sum);
            }
    }
    return sum;
}

template <bool APPLY>
static __device__ double each_of_vector(const struct fsdp_adafactor_args &a,
                                        const struct adafactor &f, double rate)
{
    const size_t stride = (size_t)gridDim.x * BLOCK;
    double sum = 0;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < a.nelem; i += stride)
        use_update<APPLY>(a, rate, i, a.grad[i] * f.scale / adafactor_root(a.variance[i]), &sum);
    return sum;
}

/* part [gridDim.x] is written where updates are not applied. */
template <bool APPLY>
static __global__ void __launch_bounds__(BLOCK)
    adafactor_update_kernel(struct fsdp_adafactor_args a, double *part)
{
    if (skips(a))
        return;
    const struct adafactor f = adafactor_of(&a);
    const double rate = APPLY ? adafactor_rate(&a, &f) : 0;
    double sum =
        a.variance ? each_of_vector<APPLY>(a, f, rate) : each_of_matrices<APPLY>(a, f, rate);
    if (APPLY)
        return;
    __syncthreads(); /* the sum of rows may still be read */
    sum = sum_of(sum);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

/* One block. */
static __global__ void __launch_bounds__(BLOCK)
    adafactor_sum_updates_kernel(struct fsdp_adafactor_args a, const double *part, int nparts)
{
    if (skips(a))
        return;
    double sum = 0;
    for (int i = (int)threadIdx.x; i < nparts; i += BLOCK)
        sum += part[i];
    sum = sum_of(sum);
    if (threadIdx.x == 0)
        *a.update_sum += sum;
}

static int update(struct cuda_lane *l, const struct fsdp_adafactor_args &a, struct fsdp_err *err)
{
    const bool apply = a.phase == FSDP_ADAFACTOR_APPLY;
    cudaStream_t stream = device_cuda_stream(l);
    double *part = device_cuda_partials(l);

    if (a.row_var && a.by_rows && !apply)
        FSDP_LAUNCH(adafactor_mix_columns_kernel, blocks_of(a.ncols, BLOCK, SIZE_MAX), BLOCK, 0,
                    stream, a);
    if (!a.nelem || !(a.variance || a.row_var))
        return device_cuda_launched(l, "Adafactor", err);
    const unsigned nblocks = a.variance ? blocks_of(a.nelem, BLOCK, CUDA_PARTIALS)
                                        : blocks_of(rows_here(a), 1, CUDA_PARTIALS);
    if (apply)
        FSDP_LAUNCH(adafactor_update_kernel<true>, nblocks, BLOCK, 0, stream, a, part);
    else {
        FSDP_LAUNCH(adafactor_update_kernel<false>, nblocks, BLOCK, 0, stream, a, part);
        FSDP_LAUNCH(adafactor_sum_updates_kernel, 1, BLOCK, 0, stream, a, (const double *)part,
                    (int)nblocks);
    }
    return device_cuda_launched(l, "Adafactor", err);
}

int device_cuda_adafactor(void *lane, const struct fsdp_adafactor_args *args, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    FSDP_TRY(device_cuda_enter(l, err));
    return args->phase == FSDP_ADAFACTOR_MEASURE ? measure(l, *args, err) : update(l, *args, err);
}
