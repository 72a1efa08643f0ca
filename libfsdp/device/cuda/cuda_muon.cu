/* SPDX-License-Identifier: Apache-2.0 */
/* What Muon is made of, on a GPU: its elements, and products of matrices in fp32, whose elements
 * are one sum each in the order of the inner dimension. */
#include "cuda.h"
#include "cuda_join.cuh"
#include "device/common/formula.h"
#include "fsdp/sys/cuda_kernel.cuh"

enum { BLOCK = 256, MOST_BLOCKS = 1 << 16 };

static unsigned blocks_of(size_t nelem, size_t most)
{
    const size_t nblocks = (nelem + BLOCK - 1) / BLOCK;
    return (unsigned)(nblocks < most ? nblocks : most);
}

/* ---- a rank's rows --------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(BLOCK) muon_begin_kernel(struct fsdp_muon_args a)
{
    if (a.loss_scale && a.loss_scale->skip)
        return;
    const float scale = a.grad_scale ? *a.grad_scale : 1.0f;
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < a.nelem; i += stride)
        a.rows[i] = (double)muon_element(&a, &a.momentum_buffer[i], a.grad[i] * scale);
}

int device_cuda_muon_begin(void *lane, const struct fsdp_muon_args *args, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_LAUNCH(muon_begin_kernel, blocks_of(args->nelem, MOST_BLOCKS), BLOCK, 0,
                device_cuda_stream(l), *args);
    return device_cuda_launched(l, "Muon's momentum", err);
}

static __global__ void __launch_bounds__(BLOCK) muon_end_kernel(struct fsdp_muon_args a)
{
    if (a.loss_scale && a.loss_scale->skip)
        return;
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < a.nelem; i += stride)
        a.master[i] = a.master[i] * a.keep - a.rate * (float)a.rows[i];
}

int device_cuda_muon_end(void *lane, const struct fsdp_muon_args *args, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_LAUNCH(muon_end_kernel, blocks_of(args->nelem, MOST_BLOCKS), BLOCK, 0,
                device_cuda_stream(l), *args);
    return device_cuda_launched(l, "Muon", err);
}

/* ---- the whole matrix ------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(BLOCK)
    muon_squares_kernel(double *part, const double *x, size_t nelem)
{
    const size_t stride = (size_t)gridDim.x * BLOCK;
    double sum = 0;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < nelem; i += stride)
        sum += x[i] * x[i];
    sum = block_join<join_sums, BLOCK>(sum);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

/* Where element i of the matrix, row by row, lies in its copy. */
static inline __device__ size_t place_of(const struct fsdp_muon_matrix &a, size_t i)
{
    return a.rows > a.cols ? i % a.cols * a.rows + i / a.cols : i;
}

static __global__ void __launch_bounds__(BLOCK)
    muon_unit_kernel(struct fsdp_muon_matrix a, const double *part, int nparts)
{
    const size_t stride = (size_t)gridDim.x * BLOCK;
    double sum = 0;
    for (int i = (int)threadIdx.x; i < nparts; i += BLOCK)
        sum += part[i];
    const float norm = muon_scale(block_join<join_sums, BLOCK>(sum));
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < a.rows * a.cols; i += stride)
        a.x[place_of(a, i)] = (float)a.wide[i] / norm;
}

int device_cuda_muon_unit(void *lane, const struct fsdp_muon_matrix *args, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    const size_t nelem = args->rows * args->cols;
    const unsigned nparts = blocks_of(nelem, CUDA_PARTIALS);
    double *part = device_cuda_partials(l);
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_LAUNCH(muon_squares_kernel, nparts, BLOCK, 0, device_cuda_stream(l), part,
                (const double *)args->wide, nelem);
    FSDP_LAUNCH(muon_unit_kernel, blocks_of(nelem, MOST_BLOCKS), BLOCK, 0, device_cuda_stream(l),
                *args, (const double *)part, (int)nparts);
    return device_cuda_launched(l, "Muon's matrix", err);
}

static __global__ void __launch_bounds__(BLOCK) muon_back_kernel(struct fsdp_muon_matrix a)
{
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < a.rows * a.cols; i += stride)
        a.wide[i] = (double)a.x[place_of(a, i)];
}

int device_cuda_muon_back(void *lane, const struct fsdp_muon_matrix *args, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_LAUNCH(muon_back_kernel, blocks_of(args->rows * args->cols, MOST_BLOCKS), BLOCK, 0,
                device_cuda_stream(l), *args);
    return device_cuda_launched(l, "Muon's matrix", err);
}

/* ---- products --------------------------------------------------------------------------------
 * A block makes a tile of c, a thread every 16th row and column of it. */
enum { TILE = 64, STEP = 16, EACH = TILE / STEP, PADDED = TILE + 4 };

/* to[k][i] = x[first + i][from + k], zeros beyond the ends: of a matrix whose rows are the inner
 * dimension. */
static inline __device__ void load_rows(float (*to)[PADDED], const float *x, size_t first,
                                        size_t from, size_t nrows, size_t ncols)
{
    const size_t k = threadIdx.x % STEP;
#pragma unroll
    for (size_t i = threadIdx.x / STEP; i < TILE; i += STEP)
        to[k][i] = first + i < nrows && from + k < ncols ? x[(first + i) * ncols + from + k] : 0.0f;
}

/* to[k][i] = x[from + k][first + i] likewise. */
static inline __device__ void load_columns(float (*to)[PADDED], const float *x, size_t first,
                                           size_t from, size_t nrows, size_t ncols)
{
    const size_t i = threadIdx.x % TILE;
#pragma unroll
    for (size_t k = threadIdx.x / TILE; k < STEP; k += BLOCK / TILE)
        to[k][i] = from + k < nrows && first + i < ncols ? x[(from + k) * ncols + first + i] : 0.0f;
}

static __global__ void __launch_bounds__(BLOCK, 4) matmul_kernel(struct fsdp_matmul_args p)
{
    __shared__ float a[STEP][PADDED], b[STEP][PADDED];
    const size_t first_row = (size_t)blockIdx.y * TILE, first_col = (size_t)blockIdx.x * TILE;
    const size_t row = threadIdx.x / STEP, col = threadIdx.x % STEP;
    float sum[EACH][EACH] = {};

    for (size_t from = 0; from < p.inner; from += STEP) {
        __syncthreads();
        load_rows(a, p.a, first_row, from, p.rows, p.inner);
        if (p.b_transposed)
            load_rows(b, p.b, first_col, from, p.cols, p.inner);
        else
            load_columns(b, p.b, first_col, from, p.inner, p.cols);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < STEP; k++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    sum[i][j] = fmaf(a[k][row + i * STEP], b[k][col + j * STEP], sum[i][j]);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const size_t r = first_row + row + (size_t)i * STEP;
            const size_t c = first_col + col + (size_t)j * STEP;
            if (r < p.rows && c < p.cols)
                p.c[r * p.cols + c] =
                    p.alpha * sum[i][j] + (p.beta == 0.0f ? 0.0f : p.beta * p.add[r * p.cols + c]);
        }
}

int device_cuda_matmul(void *lane, const struct fsdp_matmul_args *args, struct fsdp_err *err)
{
    struct cuda_lane *l = (struct cuda_lane *)lane;
    const dim3 grid((unsigned)((args->cols + TILE - 1) / TILE),
                    (unsigned)((args->rows + TILE - 1) / TILE));
    FSDP_TRY(device_cuda_enter(l, err));
    FSDP_LAUNCH(matmul_kernel, grid, BLOCK, 0, device_cuda_stream(l), *args);
    return device_cuda_launched(l, "product of matrices", err);
}
