/* SPDX-License-Identifier: Apache-2.0 */
/* One pass over memory, eight elements a thread: SwiGLU, GELU, dropout, and the ways of fp32 sums
 * and 16-bit numbers into each other that products need. */
#include "kernel.cuh"

enum { THREADS = 256 };

/* First element of this thread. */
static __device__ inline size_t my_first(void)
{
    return ((size_t)blockIdx.x * THREADS + threadIdx.x) * VEC;
}

static unsigned grid_for(size_t nelem)
{
    return blocks_for(nelem, THREADS * VEC);
}

/* ---- SwiGLU: Shazeer, arXiv 2002.05202 ------------------------------------------------------- */

template <class T>
__global__ void swiglu_forward_kernel(T *y, const T *gate, const T *up, size_t nelem, bool aligned)
{
    const size_t at = my_first();
    float g[VEC], u[VEC];
    if (at >= nelem)
        return;
    load8(g, gate, at, nelem, aligned);
    load8(u, up, at, nelem, aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++)
        g[i] = quotient_for<T>(g[i], 1.0f + exp_for<T>(-g[i])) * u[i];
    store8(y, at, nelem, aligned, g);
}

/* With s = sigmoid(gate) and silu = gate s: d silu / d gate = s (1 + gate (1 - s)). */
template <class T>
__global__ void swiglu_backward_kernel(T *y, T *gate, T *up, size_t nelem, bool aligned)
{
    const size_t at = my_first();
    float g[VEC], u[VEC], dy[VEC];
    if (at >= nelem)
        return;
    load8(g, gate, at, nelem, aligned);
    load8(u, up, at, nelem, aligned);
    load8(dy, y, at, nelem, aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        const float s = quotient_for<T>(1.0f, 1.0f + exp_for<T>(-g[i])), silu = g[i] * s, d = dy[i];
        g[i] = d * u[i] * (s + silu * (1.0f - s));
        dy[i] = silu * u[i];
        u[i] = d * silu;
    }
    store8(gate, at, nelem, aligned, g);
    store8(up, at, nelem, aligned, u);
    store8(y, at, nelem, aligned, dy);
}

extern "C" int nn_cuda_swiglu_forward(struct fsdp_lane *lane, const struct nn_swiglu *a,
                                      struct fsdp_err *err)
{
    const bool aligned = is_aligned(a->y) && is_aligned(a->gate) && is_aligned(a->up);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, swiglu_forward_kernel, grid_for(a->nelem), THREADS, TO(a->y),
               FROM(a->gate), FROM(a->up), a->nelem, aligned);
    return fsdp_cuda_launched(lane, "swiglu_forward", err);
}

extern "C" int nn_cuda_swiglu_backward(struct fsdp_lane *lane, const struct nn_swiglu *a,
                                       struct fsdp_err *err)
{
    const bool aligned = is_aligned(a->y) && is_aligned(a->gate) && is_aligned(a->up);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, swiglu_backward_kernel, grid_for(a->nelem), THREADS, TO(a->y),
               TO(a->gate), TO(a->up), a->nelem, aligned);
    return fsdp_cuda_launched(lane, "swiglu_backward", err);
}

/* ---- GELU: Hendrycks and Gimpel, arXiv 1606.08415, with tanh: x sigmoid(2u), where
 * 2u = A x + B x³ ------------------------------------------------------------------------------ */

#define GELU_A 1.5957691216057308f /* 2 sqrt(2 / pi) */
#define GELU_B (GELU_A * 0.044715f)

template <class T> __global__ void gelu_forward_kernel(T *y, const T *x, size_t nelem, bool aligned)
{
    const size_t at = my_first();
    float v[VEC];
    if (at >= nelem)
        return;
    load8(v, x, at, nelem, aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++)
        v[i] = quotient_for<T>(v[i], 1.0f + exp_for<T>(-v[i] * (GELU_A + GELU_B * v[i] * v[i])));
    store8(y, at, nelem, aligned, v);
}

/* With s = sigmoid(2u): d (x s) / dx = s + x s (1 - s) (A + 3 B x²). 1 - s is sigmoid(-2u), made
 * of its own exponential's inverse, which keeps its digits near s = 1 and stays finite. */
template <class T> __global__ void gelu_backward_kernel(T *y, T *x, size_t nelem, bool aligned)
{
    const size_t at = my_first();
    float v[VEC], dy[VEC];
    if (at >= nelem)
        return;
    load8(v, x, at, nelem, aligned);
    load8(dy, y, at, nelem, aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        const float sq = v[i] * v[i], u2 = v[i] * (GELU_A + GELU_B * sq);
        const float e = exp_for<T>(-fabsf(u2)), most = quotient_for<T>(1.0f, 1.0f + e),
                    least = e * most;
        const float s = u2 >= 0 ? most : least, rest = u2 >= 0 ? least : most;
        const float out = v[i] * s, slope = GELU_A + 3.0f * GELU_B * sq;
        v[i] = dy[i] * (s + out * rest * slope);
        dy[i] = out;
    }
    store8(x, at, nelem, aligned, v);
    store8(y, at, nelem, aligned, dy);
}

extern "C" int nn_cuda_gelu_forward(struct fsdp_lane *lane, const struct nn_gelu *a,
                                    struct fsdp_err *err)
{
    const bool aligned = is_aligned(a->y) && is_aligned(a->x);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, gelu_forward_kernel, grid_for(a->nelem), THREADS, TO(a->y),
               FROM(a->x), a->nelem, aligned);
    return fsdp_cuda_launched(lane, "gelu_forward", err);
}

extern "C" int nn_cuda_gelu_backward(struct fsdp_lane *lane, const struct nn_gelu *a,
                                     struct fsdp_err *err)
{
    const bool aligned = is_aligned(a->y) && is_aligned(a->x);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, gelu_backward_kernel, grid_for(a->nelem), THREADS, TO(a->y),
               TO(a->x), a->nelem, aligned);
    return fsdp_cuda_launched(lane, "gelu_backward", err);
}

/* ---- dropout -----------------------------------------------------------------------------------
 * A thread takes elements j, 8 + j, 16 + j and 24 + j of a block of 32, which are the four words of
 * one counter; eight threads side by side write 32 in a row. */

template <class T>
__global__ void dropout_kernel(T *out, const T *x, size_t row_nelem, float beta, drop_rule rule)
{
    const size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x; /* of counters */
    const size_t row = (size_t)blockIdx.y * row_nelem;
    uint32_t c[4];

    philox_words(c, rule.key, rule.first_row + blockIdx.y, at);
#pragma unroll
    for (int w = 0; w < 4; w++) {
        const size_t i = at / 8 * 32 + (size_t)w * 8 + at % 8;
        if (i >= row_nelem)
            return;
        const float v = (c[w] >= rule.least ? rule.keep : 0.0f) * fsdp_to_float(x[row + i]);
        out[row + i] = fsdp_from_float<T>(beta == 0.0f ? v : fsdp_to_float(out[row + i]) + v);
    }
}

extern "C" int nn_cuda_dropout(struct fsdp_lane *lane, const struct nn_dropout *a,
                               struct fsdp_err *err)
{
    const size_t ncounters = (a->row_nelem + 31) / 32 * 8;
    const drop_rule rule = drop_rule_of(&a->drop);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, dropout_kernel, dim3(blocks_for(ncounters, THREADS), (unsigned)a->B),
               THREADS, TO(a->out), FROM(a->x), a->row_nelem, a->beta, rule);
    return fsdp_cuda_launched(lane, "dropout", err);
}

/* ---- for products ---------------------------------------------------------------------------- */

/* Matrices: a thread has a column of a row, and a grid at most 65535 rows of blocks. */
enum { MOST_ROWS = 65535 };

static dim3 matrix_grid(int nrows, int ncols, int first)
{
    return dim3(blocks_for((size_t)ncols, THREADS),
                (unsigned)(nrows - first < MOST_ROWS ? nrows - first : MOST_ROWS));
}

template <class T>
__global__ void split_kernel(T *high, T *low, int to_ld, const float *x, int ld, int ncols)
{
    const int col = (int)(blockIdx.x * THREADS + threadIdx.x);
    const size_t row = blockIdx.y, to = row * (size_t)to_ld + (size_t)col;
    if (col >= ncols)
        return;
    const float v = x[row * (size_t)ld + (size_t)col];
    high[to] = fsdp_from_float<T>(v);
    low[to] = fsdp_from_float<T>(v - fsdp_to_float(high[to]));
}

extern "C" int nn_cuda_split(struct fsdp_lane *lane, const struct nn_cuda_halves *a,
                             struct fsdp_err *err)
{
    for (int row = 0; row < a->nrows; row += MOST_ROWS) {
        const size_t to = (size_t)row * (size_t)a->to_ld;
        LAUNCH_FOR(a->narrow, lane, split_kernel, matrix_grid(a->nrows, a->ncols, row), THREADS,
                   TO(a->high) + to, TO(a->low) + to, a->to_ld,
                   a->x + (size_t)row * (size_t)a->ld, a->ld, a->ncols);
    }
    return fsdp_cuda_launched(lane, "split", err);
}

template <class T>
__global__ void add_row_kernel(T *c, int ld, const void *row, enum fsdp_dtype row_dtype, int ncols)
{
    const int col = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (col >= ncols)
        return;
    T *to = &c[(size_t)blockIdx.y * (size_t)ld + (size_t)col];
    *to = fsdp_from_float<T>(fsdp_to_float(*to) + load_any(row, row_dtype, (size_t)col));
}

extern "C" int nn_cuda_add_row(struct fsdp_lane *lane, const struct nn_cuda_rows *c,
                               const void *row, enum fsdp_dtype row_dtype, struct fsdp_err *err)
{
    for (int first = 0; first < c->nrows; first += MOST_ROWS)
        LAUNCH_FOR(c->dtype, lane, add_row_kernel, matrix_grid(c->nrows, c->ncols, first), THREADS,
                   TO(c->at) + (size_t)first * (size_t)c->ld, c->ld, row, row_dtype, c->ncols);
    return fsdp_cuda_launched(lane, "add_row", err);
}

template <class T>
__global__ void store_kernel(T *dst, int ld, const float *src, int ncols, float beta)
{
    const int col = (int)(blockIdx.x * THREADS + threadIdx.x);
    const size_t row = blockIdx.y;
    if (col >= ncols)
        return;
    T *to = &dst[row * (size_t)ld + (size_t)col];
    const float v = src[row * (size_t)ncols + (size_t)col];
    *to = fsdp_from_float<T>(beta == 0.0f ? v : v + beta * fsdp_to_float(*to));
}

extern "C" int nn_cuda_store(struct fsdp_lane *lane, const struct nn_cuda_rows *dst,
                             const float *src, float beta, struct fsdp_err *err)
{
    for (int row = 0; row < dst->nrows; row += MOST_ROWS)
        LAUNCH_FOR(dst->dtype, lane, store_kernel, matrix_grid(dst->nrows, dst->ncols, row),
                   THREADS, TO(dst->at) + (size_t)row * (size_t)dst->ld, dst->ld,
                   src + (size_t)row * (size_t)dst->ncols, dst->ncols, beta);
    return fsdp_cuda_launched(lane, "store", err);
}
