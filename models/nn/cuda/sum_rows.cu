/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums over the rows of a matrix, in an order that depends on its shape alone. A block takes 64
 * columns of a strip of rows: 8 threads have eight columns each, and 32 such groups take every 32nd
 * row. What the strips give is a matrix itself, and summed likewise.
 */
#include "kernel.cuh"

enum { GROUPS = 32, WIDE = 8, COLS = WIDE * VEC, THREADS = GROUPS * WIDE, STRIP = 512 };

struct sum_args {
    void *out;
    enum fsdp_dtype out_dtype;
    const void *times;
    const float *divisor;
    const int32_t *first;
    int nrows, ncols, ld, strip;
    float beta;
    bool aligned;
};

template <class T> __global__ void sum_rows_kernel(const T *in, sum_args a)
{
    __shared__ float sums[GROUPS][COLS + 1];
    const int group = (int)threadIdx.x / WIDE, lot = (int)threadIdx.x % WIDE * VEC;
    const int first = a.first ? a.first[blockIdx.y] : (int)blockIdx.y * a.strip;
    const int end = a.first                     ? a.first[blockIdx.y + 1]
                    : a.nrows - first < a.strip ? a.nrows
                                                : first + a.strip;
    const size_t ncols = (size_t)a.ncols;
    const size_t at = (size_t)blockIdx.x * COLS + (size_t)lot;
    float sum[VEC] = {}, v[VEC], w[VEC];

    if (at < ncols)
#pragma unroll 4
        for (int r = first + group; r < end; r += GROUPS) {
            const size_t row = (size_t)r * (size_t)a.ld;
            load8(v, in + row, at, ncols, a.aligned);
            if (a.times) {
                load8(w, (const T *)a.times + row, at, ncols, a.aligned);
#pragma unroll
                for (int i = 0; i < VEC; i++)
                    v[i] *= w[i];
            }
#pragma unroll
            for (int i = 0; i < VEC; i++)
                sum[i] += v[i];
        }
#pragma unroll
    for (int i = 0; i < VEC; i++)
        sums[group][lot + i] = sum[i];
    __syncthreads();
    const size_t col = (size_t)blockIdx.x * COLS + threadIdx.x;
    if (threadIdx.x >= COLS || col >= ncols)
        return;
    float total = 0;
    for (int g = 0; g < GROUPS; g++)
        total += sums[g][threadIdx.x];
    const size_t to = (size_t)blockIdx.y * ncols + col;
    if (a.divisor)
        total /= a.divisor[col];
    if (a.beta != 0.0f)
        total += a.beta * load_any(a.out, a.out_dtype, to);
    store_any(a.out, a.out_dtype, to, total);
}

/* Each strip of rows to a row of out. */
static int sum_strips(struct fsdp_lane *lane, const struct nn_cuda_sum *a, int strip,
                      struct fsdp_err *err)
{
    const bool aligned = a->ld % VEC == 0 && is_aligned(a->in) && is_aligned(a->times);
    const dim3 grid(blocks_for((size_t)a->ncols, COLS),
                    a->first ? (unsigned)a->ngroups : blocks_for((size_t)a->nrows, (size_t)strip));
    const sum_args args = {a->out,   a->out_dtype, a->times, a->divisor, a->first, a->nrows,
                           a->ncols, a->ld,        strip,    a->beta,    aligned};
    LAUNCH_FOR(a->in_dtype, lane, sum_rows_kernel, grid, THREADS, FROM(a->in), args);
    return fsdp_cuda_launched(lane, "sum_rows", err);
}

extern "C" int nn_cuda_sum_rows(struct fsdp_lane *lane, const struct nn_cuda_sum *a,
                                struct fsdp_err *err)
{
    struct nn_cuda_sum parts = *a, sum = *a;

    if (a->first || a->nrows <= STRIP)
        return sum_strips(lane, a, a->nrows, err);
    FSDP_TRY(nn_cuda_scratch(&parts.out, lane, err));
    /* As many strips as the scratch has rows, at most; and one row of strips is summed at once. */
    const int room = (int)(NN_CUDA_SCRATCH_NBYTES / sizeof(float) / (size_t)a->ncols);
    const int nstrips = room < STRIP ? room : STRIP, share = (a->nrows + nstrips - 1) / nstrips;
    const int strip = share < STRIP ? STRIP : share;
    parts.out_dtype = FSDP_F32;
    parts.divisor = NULL;
    parts.beta = 0;
    FSDP_TRY(sum_strips(lane, &parts, strip, err));
    sum.in = parts.out;
    sum.in_dtype = FSDP_F32;
    sum.times = NULL;
    sum.ld = a->ncols;
    sum.nrows = (int)blocks_for((size_t)a->nrows, (size_t)strip);
    return sum_strips(lane, &sum, sum.nrows, err);
}
