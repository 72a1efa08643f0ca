/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding: Su et al., arXiv 2104.09864, with Hugging Face's pairing (i, i + D/2).
 */
#include "kernel.cuh"

enum { THREADS = 256, FREQUENCIES = 128 };

/* By value, as an argument of the launch: the caller's list is in host memory. */
struct frequencies {
    double x[FREQUENCIES];
};

static __device__ inline float round_to(double x, enum fsdp_dtype dtype)
{
    const float value = (float)x;
    return dtype == FSDP_BF16  ? fsdp_to_float(fsdp_from_float<__nv_bfloat16>(value))
           : dtype == FSDP_F16 ? fsdp_to_float(fsdp_from_float<__half>(value))
                               : value;
}

/* Columns [column, column + ncols) of the tables. */
__global__ void rope_table_kernel(float *cosine, float *sine, frequencies freq, int column,
                                  int ncols, int first, int T, int half, enum fsdp_dtype dtype)
{
    const int at = (int)(blockIdx.x * THREADS + threadIdx.x), t = at / ncols, i = at % ncols;
    if (t >= T)
        return;
    double s, c;
    sincos((double)(first + t) * freq.x[i], &s, &c);
    const size_t to = (size_t)t * (size_t)half + (size_t)(column + i);
    cosine[to] = round_to(c, dtype);
    sine[to] = round_to(s, dtype);
}

extern "C" int nn_cuda_rope_table(struct fsdp_lane *lane, const struct nn_rope_table *a,
                                  struct fsdp_err *err)
{
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    for (int column = 0; column < a->half; column += FREQUENCIES) {
        const int ncols = a->half - column < FREQUENCIES ? a->half - column : FREQUENCIES;
        frequencies freq = {};
        for (int i = 0; i < ncols; i++)
            freq.x[i] = a->inv_freq[column + i];
        LAUNCH(lane, rope_table_kernel, blocks_for((size_t)a->T * (size_t)ncols, THREADS), THREADS,
               a->cos, a->sin, freq, column, ncols, a->first, a->T, a->half, a->dtype);
    }
    return fsdp_cuda_launched(lane, "rope_table", err);
}

/* A thread turns eight pairs: the lower halves are eight elements in a row, the upper ones, too. */
template <class T>
__global__ void rope_kernel(T *x, const float *cosine, const float *sine, const int32_t *positions,
                            size_t nlots, int Tn, int heads, int half, float sign, bool aligned)
{
    const size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const size_t per_head = ((size_t)half + VEC - 1) / VEC;
    const size_t head = at / per_head, pair = at % per_head * VEC, row = head / (size_t)heads;
    float lo[VEC], hi[VEC], c[VEC], s[VEC];

    if (at >= nlots)
        return;
    const size_t position = positions ? (size_t)positions[row] : row % (size_t)Tn;
    T *lower = x + head * 2 * (size_t)half, *upper = lower + half;
    load8(lo, lower, pair, (size_t)half, aligned);
    load8(hi, upper, pair, (size_t)half, aligned);
    load8(c, cosine + position * (size_t)half, pair, (size_t)half, aligned);
    load8(s, sine + position * (size_t)half, pair, (size_t)half, aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        const float a = lo[i], b = hi[i], turn = sign * s[i];
        lo[i] = a * c[i] - b * turn;
        hi[i] = b * c[i] + a * turn;
    }
    store8(lower, pair, (size_t)half, aligned, lo);
    store8(upper, pair, (size_t)half, aligned, hi);
}

extern "C" int nn_cuda_rope(struct fsdp_lane *lane, const struct nn_rope *a, struct fsdp_err *err)
{
    const int half = a->D / 2;
    const size_t nheads = (size_t)a->B * (size_t)a->T * (size_t)a->heads;
    const size_t nlots = nheads * blocks_for((size_t)half, VEC);
    const bool aligned =
        half % VEC == 0 && is_aligned(a->x) && is_aligned(a->cos) && is_aligned(a->sin);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, rope_kernel, blocks_for(nlots, THREADS), THREADS, TO(a->x), a->cos,
               a->sin, a->positions, nlots, a->T, a->heads, half, a->inverse ? -1.0f : 1.0f,
               aligned);
    return fsdp_cuda_launched(lane, "rope", err);
}
