/* SPDX-License-Identifier: Apache-2.0 */
/* Operands of products in 8 bits whose lines, or blocks of 32 elements of a line, have scales of
 * their own. Lines are rows or columns. Blocks are read once: their greatest absolute value is that
 * of a few threads. Rows are read twice, by one block of threads, the second time from a cache. Of
 * columns a kernel before finds the greatest absolute values. What lies down columns becomes codes
 * in squares of TILE x TILE, which are turned in shared memory. */
#include "f8.cuh"

enum {
    LOTS = TILE / VEC,     /* of a row of a square: lanes lie LOTS apart in a column of lots */
    PASS = THREADS / LOTS, /* rows that a block reads at once */
    PASSES = TILE / PASS,
    NWARPS = THREADS / WARP,
    MOST_PASSES = 16 /* of a block that looks for what is greatest */
};
static_assert((int)PASS == (int)NN_F8_BLOCK_NELEM,
              "a pass over a square is a block of each column");

struct line_rule {
    enum fsdp_dtype f8;
    const uint32_t *amax; /* of columns */
    void *scale;          /* fp32, or bytes of blocks; NULL: it is not wanted */
    int to_ld;            /* of values */
};

static line_rule rule_of(const struct nn_cuda_f8 *a, bool values)
{
    return (line_rule){a->f8, a->amax, values ? NULL : a->scale, a->to_ld};
}

static __device__ inline void store_scale(const line_rule &r, size_t line, int e)
{
    if (r.scale)
        ((float *)r.scale)[line] = nn_f8_power(e);
}

static __device__ inline void store_block_scale(const line_rule &r, size_t line, size_t block,
                                                size_t nsum, int e)
{
    const size_t nblocks = (nsum + NN_F8_BLOCK_NELEM - 1) / NN_F8_BLOCK_NELEM;
    if (r.scale)
        ((uint8_t *)r.scale)[nn_f8_scale_at(line, block, nblocks)] = (uint8_t)(e + 127);
}

static __device__ inline uint32_t greatest8(const float v[VEC], uint32_t most)
{
#pragma unroll
    for (int i = 0; i < VEC; i++)
        most = max(most, nn_f8_magnitude(v[i]));
    return most;
}

/* v becomes the values of its codes, by the scale 2^e. */
static __device__ inline void decode8(float v[VEC], enum fsdp_dtype f8, int e)
{
#pragma unroll
    for (int i = 0; i < VEC; i++)
        v[i] = nn_f8_round(nn_f8_type(f8), v[i] * nn_f8_power(-e)) * nn_f8_power(e);
}

static __device__ inline void store_values(void *out, const line_rule &r, const matrix &m,
                                           size_t row, size_t col, const float v[VEC])
{
    const size_t begin = row * (size_t)r.to_ld;
    store8_last((__nv_bfloat16 *)out, begin + col, begin + (size_t)m.ncols, true, v);
}

/* ---- lines are rows -------------------------------------------------------------------------- */

/* A block of threads takes a row. */
template <class T, bool VALUES>
__global__ void f8_row_kernel(void *out, const T *x, matrix m, line_rule r)
{
    __shared__ uint32_t room[NWARPS];
    const size_t row = blockIdx.x, first = (size_t)threadIdx.x * CODES;
    uint32_t most = 0;
    float v[VEC];

    for (size_t col = first; col < (size_t)m.ncols; col += (size_t)THREADS * CODES)
#pragma unroll
        for (size_t i = 0; i < CODES; i += VEC) {
            load_lot(v, x, m, row, col + i);
            most = greatest8(v, most);
        }
    most = warp_max(most);
    if (threadIdx.x % WARP == 0)
        room[threadIdx.x / WARP] = most;
    __syncthreads();
    most = warp_max(room[threadIdx.x % NWARPS]);
    const int e = nn_f8_exponent(r.f8, most);
    if (!threadIdx.x)
        store_scale(r, row, e);
    for (size_t col = first; col < (size_t)m.ncols; col += (size_t)THREADS * CODES) {
        codes made;
#pragma unroll
        for (size_t i = 0; i < CODES; i += VEC) {
            load_lot(v, x, m, row, col + i);
            if (VALUES) {
                decode8(v, r.f8, e);
                store_values(out, r, m, row, col + i, v);
            } else
                encode8(made.at + i, v, r.f8, nn_f8_power(-e));
        }
        if (!VALUES)
            *(codes *)((uint8_t *)out + row * (size_t)m.ncols + col) = made;
    }
}

/* Four threads, which are neighbours, take a block of a row. */
template <class T, bool VALUES>
__global__ void f8_block_kernel(void *out, const T *x, matrix m, line_rule r)
{
    typedef fsdp_pack<uint8_t, VEC> few;
    enum { EACH = NN_F8_BLOCK_NELEM / VEC };
    const size_t lot = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const size_t nblocks = ((size_t)m.ncols + NN_F8_BLOCK_NELEM - 1) / NN_F8_BLOCK_NELEM;
    const size_t row = lot / (nblocks * EACH), col = lot % (nblocks * EACH) * VEC;
    float v[VEC] = {0};

    if (row < (size_t)m.nrows)
        load_lot(v, x, m, row, col);
    uint32_t most = greatest8(v, 0);
#pragma unroll
    for (int lane = EACH / 2; lane > 0; lane /= 2)
        most = max(most, __shfl_xor_sync(FULL_MASK, most, lane));
    const int e = nn_f8_exponent(r.f8, most);
    if (row >= (size_t)m.nrows)
        return;
    if (VALUES) {
        decode8(v, r.f8, e);
        store_values(out, r, m, row, col, v);
        return;
    }
    few made;
    encode8(made.at, v, r.f8, nn_f8_power(-e));
    *(few *)((uint8_t *)out + row * (size_t)m.ncols + col) = made;
    if (threadIdx.x % EACH == 0)
        store_block_scale(r, row, col / NN_F8_BLOCK_NELEM, (size_t)m.ncols, e);
}

/* ---- lines are columns ----------------------------------------------------------------------- */

/* Of what each thread has of its eight columns, the greatest of each warp. */
static __device__ inline void keep_greatest(uint32_t room[TILE], uint32_t most[VEC])
{
#pragma unroll
    for (int i = 0; i < VEC; i++)
#pragma unroll
        for (int lane = LOTS; lane < WARP; lane *= 2)
            most[i] = max(most[i], __shfl_xor_sync(FULL_MASK, most[i], lane));
    if (threadIdx.x % WARP < LOTS)
#pragma unroll
        for (int i = 0; i < VEC; i++)
            room[threadIdx.x % WARP * VEC + (unsigned)i] = most[i];
}

static __device__ inline uint32_t greatest_of_warps(const uint32_t room[NWARPS][TILE], int col)
{
    uint32_t most = 0;
#pragma unroll
    for (int warp = 0; warp < NWARPS; warp++)
        most = max(most, room[warp][col]);
    return most;
}

template <class T> __global__ void f8_columns_amax_kernel(const T *x, matrix m, uint32_t *amax)
{
    __shared__ uint32_t room[NWARPS][TILE];
    const size_t col0 = (size_t)blockIdx.x * TILE, col = col0 + threadIdx.x % LOTS * VEC;
    uint32_t most[VEC] = {0};

    for (size_t row = (size_t)blockIdx.y * PASS + threadIdx.x / LOTS;
         row < (size_t)m.nrows && col < (size_t)m.ncols; row += (size_t)gridDim.y * PASS) {
        float v[VEC];
        load_lot(v, x, m, row, col);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            most[i] = max(most[i], nn_f8_magnitude(v[i]));
    }
    keep_greatest(room[threadIdx.x / WARP], most);
    __syncthreads();
    if (threadIdx.x < TILE && col0 + threadIdx.x < (size_t)m.ncols)
        atomicMax(&amax[col0 + threadIdx.x], greatest_of_warps(room, (int)threadIdx.x));
}

/* Eight columns from `col` on and the rows of a pass, of a square. */
struct square {
    size_t row0, col0;
    int row, col; /* in the square, of the first pass */
};
static __device__ inline square my_square(void)
{
    return (square){(size_t)blockIdx.y * TILE, (size_t)blockIdx.x * TILE, (int)threadIdx.x / LOTS,
                    (int)threadIdx.x % LOTS * VEC};
}

/* The exponents of all columns of a pass, from what their elements are or from what is known. */
template <bool BLOCKS>
static __device__ inline void find_exponents(int e[PASSES][TILE], float v[PASSES][VEC],
                                             const square &at, const matrix &m, const line_rule &r)
{
    __shared__ uint32_t room[PASSES][NWARPS][TILE];
    const int col = (int)threadIdx.x % TILE, pass = (int)threadIdx.x / TILE;
    const size_t line = at.col0 + (size_t)col, block = at.row0 / PASS + (size_t)pass;
    const bool is_there = line < (size_t)m.ncols && block * PASS < (size_t)m.nrows;

    for (int p = 0; p < PASSES && BLOCKS; p++) {
        uint32_t most[VEC];
#pragma unroll
        for (int i = 0; i < VEC; i++)
            most[i] = nn_f8_magnitude(v[p][i]);
        keep_greatest(room[p][threadIdx.x / WARP], most);
    }
    __syncthreads();
    if (pass < PASSES) {
        const uint32_t most = BLOCKS     ? greatest_of_warps(room[pass], col)
                              : is_there ? r.amax[line]
                                         : 0;
        e[pass][col] = nn_f8_exponent(r.f8, most);
        if (is_there && BLOCKS)
            store_block_scale(r, line, block, (size_t)m.nrows, e[pass][col]);
        else if (is_there && !block)
            store_scale(r, line, e[pass][col]);
    }
    __syncthreads();
}

template <class T, bool BLOCKS, bool VALUES>
__global__ void f8_square_kernel(void *out, const T *x, matrix m, line_rule r)
{
    __shared__ codes tile[TILE][TILE / CODES + 1]; /* one more: fewer conflicts of banks */
    __shared__ int e[PASSES][TILE];
    const square at = my_square();
    const size_t first = at.col0 + (size_t)at.col;
    float v[PASSES][VEC] = {{0}};

#pragma unroll
    for (int p = 0; p < PASSES; p++)
        if (at.row0 + (size_t)(at.row + p * PASS) < (size_t)m.nrows && first < (size_t)m.ncols)
            load_lot(v[p], x, m, at.row0 + (size_t)(at.row + p * PASS), first);
    find_exponents<BLOCKS>(e, v, at, m, r);
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        const int row = at.row + p * PASS;
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            const float scale = nn_f8_power(e[p][at.col + i]);
            const float inverse = nn_f8_power(-e[p][at.col + i]);
            const float rounded = nn_f8_round(nn_f8_type(r.f8), v[p][i] * inverse);
            if (VALUES)
                v[p][i] = rounded * scale;
            else
                tile[at.col + i][row / CODES].at[row % CODES] = nn_f8_code(r.f8, rounded);
        }
        if (VALUES && at.row0 + (size_t)row < (size_t)m.nrows && first < (size_t)m.ncols)
            store_values(out, r, m, at.row0 + (size_t)row, first, v[p]);
    }
    if (VALUES)
        return;
    __syncthreads();
    const int col = (int)threadIdx.x / (TILE / CODES), part = (int)threadIdx.x % (TILE / CODES);
    const size_t line = at.col0 + (size_t)col, from = at.row0 + (size_t)part * CODES;
    if (line < (size_t)m.ncols && from < (size_t)m.nrows)
        *(codes *)((uint8_t *)out + line * (size_t)m.nrows + from) = tile[col][part];
}

/* ---- launches -------------------------------------------------------------------------------- */

extern "C" int nn_cuda_f8_columns_amax(struct fsdp_lane *lane, const struct nn_cuda_f8 *a,
                                       struct fsdp_err *err)
{
    const dim3 blocks(blocks_for((size_t)a->ncols, TILE),
                      blocks_for((size_t)a->nrows, (size_t)PASS * MOST_PASSES));

    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, f8_columns_amax_kernel, blocks, THREADS, FROM(a->x), matrix_of(a),
               a->amax);
    return fsdp_cuda_launched(lane, "f8_columns_amax", err);
}

#define LAUNCH_LINES(kernel, blocks)                                                               \
    LAUNCH_FOR_TYPE(a->dtype, lane, kernel, blocks, THREADS, a->out, FROM(a->x), matrix_of(a),     \
                    rule_of(a, values))

static void run_columns(struct fsdp_lane *lane, const struct nn_cuda_f8 *a, bool values)
{
    const dim3 squares(blocks_for((size_t)a->ncols, TILE), blocks_for((size_t)a->nrows, TILE));

    if (a->kind == NN_F8_BLOCK && values)
        LAUNCH_LINES((f8_square_kernel<elem, true, true>), squares);
    else if (a->kind == NN_F8_BLOCK)
        LAUNCH_LINES((f8_square_kernel<elem, true, false>), squares);
    else if (values)
        LAUNCH_LINES((f8_square_kernel<elem, false, true>), squares);
    else
        LAUNCH_LINES((f8_square_kernel<elem, false, false>), squares);
}

static void run_rows(struct fsdp_lane *lane, const struct nn_cuda_f8 *a, bool values)
{
    const size_t each =
        ((size_t)a->ncols + NN_F8_BLOCK_NELEM - 1) / NN_F8_BLOCK_NELEM * (NN_F8_BLOCK_NELEM / VEC);
    const unsigned lots = blocks_for((size_t)a->nrows * each, THREADS);

    if (a->kind == NN_F8_BLOCK && values)
        LAUNCH_LINES((f8_block_kernel<elem, true>), lots);
    else if (a->kind == NN_F8_BLOCK)
        LAUNCH_LINES((f8_block_kernel<elem, false>), lots);
    else if (values)
        LAUNCH_LINES((f8_row_kernel<elem, true>), (unsigned)a->nrows);
    else
        LAUNCH_LINES((f8_row_kernel<elem, false>), (unsigned)a->nrows);
}

extern "C" int nn_cuda_f8_lines(struct fsdp_lane *lane, const struct nn_cuda_f8 *a, bool values,
                                struct fsdp_err *err)
{
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    if (a->down)
        run_columns(lane, a, values);
    else
        run_rows(lane, a, values);
    return fsdp_cuda_launched(lane, "f8_lines", err);
}
