/* SPDX-License-Identifier: Apache-2.0 */
/* Operands of products in 8 bits with one scale. It must be known before the first code is written,
 * so a matrix is read twice: for the greatest absolute value, and to be encoded. Both reads are at
 * the speed of memory, and of a matrix that fits the second cache the second one is faster. A
 * matrix that is codes already is read once, to be transposed, or not at all. */
#include "f8.cuh"

enum { MOST_BLOCKS = 1024 };

/* The same of codes, of which VEC are read as one where it is aligned. */
static matrix matrix_of_codes(const struct nn_cuda_f8 *a)
{
    return (matrix){(size_t)a->ld, a->nrows, a->ncols,
                    fsdp_is_aligned(a->x, VEC) && a->ld % VEC == 0};
}

/* ---- the greatest absolute value ------------------------------------------------------------- */

template <class T> __global__ void f8_amax_kernel(const T *x, matrix m, uint32_t *amax)
{
    __shared__ uint32_t room[THREADS / WARP];
    const size_t each = ((size_t)m.ncols + VEC - 1) / VEC, nlots = (size_t)m.nrows * each;
    uint32_t most = 0;

    for (size_t lot = (size_t)blockIdx.x * THREADS + threadIdx.x; lot < nlots;
         lot += (size_t)gridDim.x * THREADS) {
        float v[VEC];
        load_lot(v, x, m, lot / each, lot % each * VEC);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            most = max(most, nn_f8_magnitude(v[i]));
    }
    most = warp_max(most);
    if (threadIdx.x % WARP == 0)
        room[threadIdx.x / WARP] = most;
    __syncthreads();
    if (threadIdx.x)
        return;
    for (int i = 1; i < THREADS / WARP; i++)
        most = max(most, room[i]);
    if (most)
        atomicMax(amax, most);
}

extern "C" int nn_cuda_f8_greatest(struct fsdp_lane *lane, const struct nn_cuda_f8 *a,
                                   struct fsdp_err *err)
{
    const unsigned nblocks = blocks_for_lots((size_t)a->nrows, a->ncols, THREADS);

    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, f8_amax_kernel,
               nblocks < MOST_BLOCKS ? nblocks : (unsigned)MOST_BLOCKS, THREADS, FROM(a->x),
               matrix_of(a), a->amax);
    return fsdp_cuda_launched(lane, "f8_amax", err);
}

/* ---- codes ----------------------------------------------------------------------------------- */

struct rule {
    enum fsdp_dtype f8;
    const uint32_t *amax;
    float *scale;
};

static rule rule_of(const struct nn_cuda_f8 *a)
{
    return (rule){a->f8, a->shared ? a->shared : a->amax, (float *)a->scale};
}

/* 2^-e; one thread of all writes 2^e. */
static __device__ inline float inverse_of(const rule &r)
{
    const int e = nn_f8_exponent(r.f8, *r.amax);
    if (!blockIdx.x && !blockIdx.y && !threadIdx.x)
        *r.scale = nn_f8_power(e);
    return nn_f8_power(-e);
}

template <class T> __global__ void f8_encode_kernel(uint8_t *out, const T *x, matrix m, rule r)
{
    const size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * CODES;
    const size_t row = at / (size_t)m.ncols, col = at % (size_t)m.ncols;
    const float inverse = inverse_of(r);
    codes made;

    if (row >= (size_t)m.nrows)
        return;
#pragma unroll
    for (int i = 0; i < CODES; i += VEC) {
        float v[VEC];
        load_lot(v, x, m, row, col + (size_t)i);
        encode8(made.at + i, v, r.f8, inverse);
    }
    *(codes *)(out + at) = made;
}

/* A block turns a square of TILE x TILE codes, which lies transposed in shared memory. Lines of out
 * have `padded` codes: zeros behind those of x. */
template <class T>
__global__ void f8_turn_kernel(uint8_t *out, int padded, const T *x, matrix m, rule r)
{
    __shared__ codes tile[TILE][TILE / CODES + 1]; /* one more: fewer conflicts of banks */
    const size_t row0 = (size_t)blockIdx.y * TILE, col0 = (size_t)blockIdx.x * TILE;
    const float inverse = inverse_of(r);

    for (int lot = (int)threadIdx.x; lot < TILE * TILE / VEC; lot += THREADS) {
        const int row = lot / (TILE / VEC), col = lot % (TILE / VEC) * VEC;
        float v[VEC] = {};
        uint8_t made[VEC];
        if (row0 + (size_t)row >= (size_t)padded || col0 + (size_t)col >= (size_t)m.ncols)
            continue;
        if (row0 + (size_t)row < (size_t)m.nrows)
            load_lot(v, x, m, row0 + (size_t)row, col0 + (size_t)col);
        encode8(made, v, r.f8, inverse);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            tile[col + i][row / CODES].at[row % CODES] = made[i];
    }
    __syncthreads();
    const int col = (int)threadIdx.x / (TILE / CODES), part = (int)threadIdx.x % (TILE / CODES);
    const int row = part * CODES;
    if (col0 + (size_t)col < (size_t)m.ncols && row0 + (size_t)row < (size_t)padded)
        *(codes *)(out + (col0 + (size_t)col) * (size_t)padded + row0 + (size_t)row) =
            tile[col][part];
}

/* ---- of a matrix that is codes --------------------------------------------------------------- */

/* 2^e, for a matrix whose codes stay where they are. */
__global__ void f8_scale_kernel(float *scale, const double *amax)
{
    *scale = nn_f8_gathered_scale(*amax);
}

/* As f8_turn_kernel; rows begin at multiples of CODES. Also writes 2^e. */
__global__ void f8_turn_codes_kernel(uint8_t *out, const uint8_t *x, matrix m, float *scale,
                                     const double *amax)
{
    __shared__ codes tile[TILE][TILE / CODES + 1];
    const size_t row0 = (size_t)blockIdx.y * TILE, col0 = (size_t)blockIdx.x * TILE;
    const int line = (int)threadIdx.x / (TILE / CODES);
    const int from = (int)threadIdx.x % (TILE / CODES) * CODES;

    if (!blockIdx.x && !blockIdx.y && !threadIdx.x)
        *scale = nn_f8_gathered_scale(*amax);
    if (row0 + (size_t)line < (size_t)m.nrows && col0 + (size_t)from < (size_t)m.ncols) {
        const codes read = *(const codes *)(x + (row0 + (size_t)line) * m.ld + col0 + (size_t)from);
#pragma unroll
        for (int i = 0; i < CODES; i++)
            tile[from + i][line / CODES].at[line % CODES] = read.at[i];
    }
    __syncthreads();
    if (col0 + (size_t)line < (size_t)m.ncols && row0 + (size_t)from < (size_t)m.nrows)
        *(codes *)(out + (col0 + (size_t)line) * (size_t)m.nrows + row0 + (size_t)from) =
            tile[line][from / CODES];
}

static int encode_codes(struct fsdp_lane *lane, const struct nn_cuda_f8 *a, dim3 tiles,
                        struct fsdp_err *err)
{
    if (a->down)
        LAUNCH(lane, (f8_turn_codes_kernel), tiles, THREADS, (uint8_t *)a->out,
               (const uint8_t *)a->x, matrix_of_codes(a), (float *)a->scale, a->codes_amax);
    else
        LAUNCH(lane, (f8_scale_kernel), 1, 1, (float *)a->scale, a->codes_amax);
    return fsdp_cuda_launched(lane, "f8_codes", err);
}

extern "C" int nn_cuda_f8_encode(struct fsdp_lane *lane, const struct nn_cuda_f8 *a,
                                 struct fsdp_err *err)
{
    const rule r = rule_of(a);
    const size_t nelem = (size_t)a->nrows * (size_t)a->ncols;
    const int padded = a->padded ? a->padded : a->nrows;
    const dim3 tiles(blocks_for((size_t)a->ncols, TILE), blocks_for((size_t)padded, TILE));

    FSDP_TRY(fsdp_cuda_enter(lane, err));
    if (a->codes_amax)
        return encode_codes(lane, a, tiles, err);
    if (a->down)
        LAUNCH_FOR(a->dtype, lane, f8_turn_kernel, tiles, THREADS, (uint8_t *)a->out, padded,
                   FROM(a->x), matrix_of(a), r);
    else
        LAUNCH_FOR(a->dtype, lane, f8_encode_kernel, blocks_for(nelem, (size_t)THREADS * CODES),
                   THREADS, (uint8_t *)a->out, FROM(a->x), matrix_of(a), r);
    return fsdp_cuda_launched(lane, "f8_encode", err);
}

/* ---- their values ---------------------------------------------------------------------------- */

template <class T>
__global__ void f8_decode_kernel(__nv_bfloat16 *out, int to_ld, const T *x, matrix m, rule r)
{
    const lot_of_row at = my_lot(m.ncols);
    const float inverse = inverse_of(r), scale = nn_f8_power(nn_f8_exponent(r.f8, *r.amax));
    const size_t to = at.row * (size_t)to_ld;
    float v[VEC];

    if (at.row >= (size_t)m.nrows)
        return;
    load_lot(v, x, m, at.row, at.col);
#pragma unroll
    for (int i = 0; i < VEC; i++)
        v[i] = nn_f8_round(nn_f8_type(r.f8), v[i] * inverse) * scale;
    store8_last(out, to + at.col, to + (size_t)m.ncols, true, v);
}

/* Those of row r are amax[r * step]. */
__global__ void f8_value_kernel(__nv_bfloat16 *out, int to_ld, const uint8_t *x, matrix m,
                                const double *amax, size_t step)
{
    typedef fsdp_pack<uint8_t, VEC> few;
    const lot_of_row at = my_lot(m.ncols);
    const size_t from = at.row * m.ld + at.col, to = at.row * (size_t)to_ld;
    few read;
    float v[VEC];

    if (at.row >= (size_t)m.nrows)
        return;
    const float scale = nn_f8_gathered_scale(amax[at.row * step]);
    if (m.aligned && at.col + VEC <= (size_t)m.ncols)
        read = *(const few *)(x + from);
    else
#pragma unroll
        for (int i = 0; i < VEC; i++)
            read.at[i] = at.col + (size_t)i < (size_t)m.ncols ? x[from + (size_t)i] : 0;
#pragma unroll
    for (int i = 0; i < VEC; i++)
        v[i] = nn_f8_value(read.at[i]) * scale;
    store8_last(out, to + at.col, to + (size_t)m.ncols, true, v);
}

extern "C" int nn_cuda_f8_decode(struct fsdp_lane *lane, const struct nn_cuda_f8 *a,
                                 struct fsdp_err *err)
{
    const rule r = rule_of(a);
    const unsigned nblocks = blocks_for_lots((size_t)a->nrows, a->ncols, THREADS);

    FSDP_TRY(fsdp_cuda_enter(lane, err));
    if (a->codes_amax) {
        LAUNCH(lane, (f8_value_kernel), nblocks, THREADS, (__nv_bfloat16 *)a->out, a->to_ld,
               (const uint8_t *)a->x, matrix_of_codes(a), a->codes_amax, a->amax_step);
        return fsdp_cuda_launched(lane, "f8_decode", err);
    }
    LAUNCH_FOR(a->dtype, lane, f8_decode_kernel, nblocks, THREADS, (__nv_bfloat16 *)a->out,
               a->to_ld, FROM(a->x), matrix_of(a), r);
    return fsdp_cuda_launched(lane, "f8_decode", err);
}
