/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums over the rows of a matrix, in an order that depends on its shape alone. A block takes 64
 * columns of a strip of rows: 8 threads have eight columns each, and 32 such groups take every 32nd
 * row. What the strips give is a matrix itself, and summed likewise.
 */
#include "kernel.cuh"

enum { GROUPS = 32, WIDE = 8, COLS = WIDE * VEC, THREADS = GROUPS * WIDE, STRIP = 512 };

template <class T>
__global__ void sum_rows_kernel(void *out, enum fsdp_dtype out_dtype, const T *in, int nrows,
                                int ncols, int strip, float beta, bool aligned)
{
    __shared__ float sums[GROUPS][COLS + 1];
    const int group = (int)threadIdx.x / WIDE, lot = (int)threadIdx.x % WIDE * VEC;
    const int first = (int)blockIdx.y * strip;
    const int end = nrows - first < strip ? nrows : first + strip;
    const size_t at = (size_t)blockIdx.x * COLS + (size_t)lot;
    float sum[VEC] = {}, v[VEC];

    if (at < (size_t)ncols)
#pragma unroll 4
        for (int r = first + group; r < end; r += GROUPS) {
            load8(v, in + (size_t)r * (size_t)ncols, at, (size_t)ncols, aligned);
#pragma unroll
            for (int i = 0; i < VEC; i++)
                sum[i] += v[i];
        }
#pragma unroll
    for (int i = 0; i < VEC; i++)
        sums[group][lot + i] = sum[i];
    __syncthreads();
    const size_t col = (size_t)blockIdx.x * COLS + threadIdx.x;
    if (threadIdx.x >= COLS || col >= (size_t)ncols)
        return;
    float total = 0;
    for (int g = 0; g < GROUPS; g++)
        total += sums[g][threadIdx.x];
    const size_t to = (size_t)blockIdx.y * (size_t)ncols + col;
    store_any(out, out_dtype, to,
              beta == 0.0f ? total : total + beta * load_any(out, out_dtype, to));
}

static int launch(struct fsdp_lane *lane, void *out, enum fsdp_dtype out_dtype, const void *in,
                  enum fsdp_dtype in_dtype, int nrows, int ncols, int strip, float beta,
                  struct fsdp_err *err)
{
    const bool aligned = ncols % VEC == 0 && is_aligned(in);
    const dim3 grid(blocks_for((size_t)ncols, COLS), blocks_for((size_t)nrows, (size_t)strip));
    LAUNCH_FOR(in_dtype, lane, sum_rows_kernel, grid, THREADS, out, out_dtype, FROM(in), nrows,
               ncols, strip, beta, aligned);
    return fsdp_cuda_launched(lane, "sum_rows", err);
}

extern "C" int nn_cuda_sum_rows(struct fsdp_lane *lane, void *out, enum fsdp_dtype out_dtype,
                                const void *in, enum fsdp_dtype in_dtype, int nrows, int ncols,
                                float beta, struct fsdp_err *err)
{
    void *scratch;

    if (nrows <= STRIP)
        return launch(lane, out, out_dtype, in, in_dtype, nrows, ncols, nrows, beta, err);
    FSDP_TRY(nn_cuda_scratch(&scratch, lane, err));
    /* As many strips as the scratch has rows, at most; and one row of strips is summed at once. */
    const int room = (int)(NN_CUDA_SCRATCH_NBYTES / sizeof(float) / (size_t)ncols);
    const int nstrips = room < STRIP ? room : STRIP, share = (nrows + nstrips - 1) / nstrips;
    const int strip = share < STRIP ? STRIP : share;
    FSDP_TRY(launch(lane, scratch, FSDP_F32, in, in_dtype, nrows, ncols, strip, 0, err));
    return launch(lane, out, out_dtype, scratch, FSDP_F32,
                  (int)blocks_for((size_t)nrows, (size_t)strip), ncols,
                  (int)blocks_for((size_t)nrows, (size_t)strip), beta, err);
}
