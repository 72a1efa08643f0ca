/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding: Su et al., arXiv 2104.09864, with Hugging Face's pairing (i, i + D/2).
 */
#include "store.cuh"

enum { THREADS = 256, FREQUENCIES = 128 };

/* Columns [column, column + ncols) of the tables, by value as an argument of the launch: the
 * caller's list is in host memory. */
struct table_part {
    double freq[FREQUENCIES];
    int column, ncols;
    int first, T, half, growth_span;
    double scale, growth;
    enum fsdp_dtype dtype;
};

static __device__ inline float round_to(double x, enum fsdp_dtype dtype)
{
    const float value = (float)x;
    return dtype == FSDP_BF16  ? fsdp_to_float(fsdp_from_float<__nv_bfloat16>(value))
           : dtype == FSDP_F16 ? fsdp_to_float(fsdp_from_float<__half>(value))
                               : value;
}

__global__ void rope_table_kernel(float *cosine, float *sine, table_part p)
{
    const int at = (int)(blockIdx.x * THREADS + threadIdx.x), t = at / p.ncols, i = at % p.ncols;
    if (t >= p.T)
        return;
    const double position = (double)(p.first + t);
    double s, c, scale = p.scale;
    if (p.growth != 0)
        scale *= 1 + p.growth * log1p(floor(position / p.growth_span));
    sincos(position * p.freq[i], &s, &c);
    const size_t to = (size_t)t * (size_t)p.half + (size_t)(p.column + i);
    cosine[to] = round_to(scale * c, p.dtype);
    sine[to] = round_to(scale * s, p.dtype);
}

extern "C" int nn_cuda_rope_table(struct fsdp_lane *lane, const struct nn_rope_table *a,
                                  struct fsdp_err *err)
{
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    for (int column = 0; column < a->half; column += FREQUENCIES) {
        table_part part = {};
        part.column = column;
        part.ncols = a->half - column < FREQUENCIES ? a->half - column : FREQUENCIES;
        part.first = a->first;
        part.T = a->T;
        part.half = a->half;
        part.scale = a->scale == 0 ? 1 : a->scale;
        part.growth = a->growth;
        part.growth_span = a->growth_span;
        part.dtype = a->dtype;
        for (int i = 0; i < part.ncols; i++)
            part.freq[i] = a->inv_freq[column + i];
        LAUNCH(lane, rope_table_kernel, blocks_for((size_t)a->T * (size_t)part.ncols, THREADS),
               THREADS, a->cos, a->sin, part);
    }
    return fsdp_cuda_launched(lane, "rope_table", err);
}

struct rope_args {
    const float *cosine, *sine;
    const int32_t *positions;  /* NULL: each row's place */
    size_t nlots, ld, from_ld; /* elements of x, and of from, from a row to the next */
    int T, heads, D, half;
    float sign;
    bool aligned;
};

/* A thread turns eight pairs: the lower halves are eight elements in a row, the upper ones, too.
 * `from` may be x. */
template <class T> __global__ void rope_kernel(T *x, const T *from, rope_args p)
{
    const int half = p.half;
    const bool aligned = p.aligned;
    const size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const size_t per_head = ((size_t)half + VEC - 1) / VEC;
    const size_t head = at / per_head, pair = at % per_head * VEC, row = head / (size_t)p.heads;
    const size_t column = head % (size_t)p.heads * (size_t)p.D;
    float lo[VEC], hi[VEC], c[VEC], s[VEC];

    if (at >= p.nlots)
        return;
    const size_t position = p.positions ? (size_t)p.positions[row] : row % (size_t)p.T;
    T *lower = x + row * p.ld + column, *upper = lower + half;
    from += row * p.from_ld + column;
    load8(lo, from, pair, (size_t)half, aligned);
    load8(hi, from + half, pair, (size_t)half, aligned);
    load8(c, p.cosine + position * (size_t)half, pair, (size_t)half, aligned);
    load8(s, p.sine + position * (size_t)half, pair, (size_t)half, aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        const float a = lo[i], b = hi[i], turn = p.sign * s[i];
        lo[i] = a * c[i] - b * turn;
        hi[i] = b * c[i] + a * turn;
    }
    store8_last(lower, pair, (size_t)half, aligned, lo);
    store8_last(upper, pair, (size_t)half, aligned, hi);
}

extern "C" int nn_cuda_rope(struct fsdp_lane *lane, const struct nn_rope *a, struct fsdp_err *err)
{
    const int half = nn_rope_R(a) / 2;
    const size_t nheads = (size_t)a->B * (size_t)a->T * (size_t)a->heads;
    const int ld = nn_rope_ld(a), width = a->heads * a->D;
    const void *from = a->from ? a->from : a->x;
    rope_args p = {};
    p.cosine = a->cos;
    p.sine = a->sin;
    p.positions = a->positions;
    p.nlots = nheads * blocks_for((size_t)half, VEC);
    p.T = a->T;
    p.heads = a->heads;
    p.D = a->D;
    p.half = half;
    p.sign = a->inverse ? -1.0f : 1.0f;
    p.aligned = half % VEC == 0 && a->D % VEC == 0 && ld % VEC == 0 && is_aligned(a->x) &&
                is_aligned(from) && is_aligned(a->cos) && is_aligned(a->sin);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    if (from != a->x && nn_rope_R(a) < a->D) { /* the kernel sees pairs alone */
        struct nn_copy_blocks all = {};
        all.out = a->x;
        all.x = from;
        all.rows = a->B * a->T;
        all.nblocks = 1;
        all.width = all.x_row = width;
        all.out_row = ld;
        all.dtype = a->dtype;
        FSDP_TRY(nn_cuda_copy_blocks(lane, &all, err));
        from = a->x;
    }
    p.ld = (size_t)ld;
    p.from_ld = (size_t)(from == a->x ? ld : width);
    LAUNCH_FOR(a->dtype, lane, rope_kernel, blocks_for(p.nlots, THREADS), THREADS, TO(a->x),
               FROM(from), p);
    return fsdp_cuda_launched(lane, "rope", err);
}
