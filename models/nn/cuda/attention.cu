/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention, tile by tile with the softmax made on the way (Dao et al., arXiv 2205.14135):
 * what cuDNN has no plan for (documents, dropout, caps, sinks, fp32, odd heads), and what its plans
 * are held against. In fp32 without tensor cores; without atomics, so that it gives the same bits
 * again.
 *
 * A block has R rows (queries, or keys), four threads to a row. Each computes a quarter of the
 * row's scores with a tile of R keys, and owns a quarter of the row's D sums:
 *
 *                 keys of the tile                   sums over D
 *        row r  [ 0 1 2 3 0 1 2 3 ... ]        [ 0000 1111 2222 3333 0000 ... ]    thread of four
 */
#include "kernel.cuh"

enum { QUAD = 4 };

struct attention_args {
    int Tq, Tk, NH, NKV, D, window;
    float scale, cap, inv_cap;
    const int32_t *starts;
    const void *sinks;
    enum fsdp_dtype sinks_dtype;
    float *lse, *delta;
    bool drops, aligned;
    drop_rule drop;
};

/* A tile of R rows of at most W elements, rows W + 4 apart so that those of a warp lie in different
 * banks. */
template <int R, int W> struct tile {
    float x[R][W + 4];
};

static __device__ inline int padded(int D)
{
    return (D + 3) / 4 * 4;
}

/* Rows [first, first + R) of one head, zeros after the last and up to a multiple of four columns.
 */
template <int R, int W, class T>
static __device__ inline void load_tile(tile<R, W> *to, const T *x, int first, int nrows,
                                        size_t row_nelem, const attention_args &a)
{
    for (int i = (int)threadIdx.x; i < R * (W / VEC); i += R * QUAD) {
        const int r = i / (W / VEC), col = i % (W / VEC) * VEC;
        float v[VEC] = {};
        if (first + r < nrows && col < a.D)
            load8(v, x + (size_t)(first + r) * row_nelem, (size_t)col, (size_t)a.D, a.aligned);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            to->x[r][col + k] = v[k];
    }
}

/* s[j] = a row of x times row lane + 4 j of y. */
template <int R, int W>
static __device__ inline void multiply_rows(float s[R / QUAD], const float *x, const tile<R, W> &y,
                                            int lane, int D)
{
#pragma unroll
    for (int j = 0; j < R / QUAD; j++)
        s[j] = 0;
#pragma unroll 2
    for (int d = 0; d < D; d += 4) {
        const lot<float> u = *(const lot<float> *)(x + d);
#pragma unroll
        for (int j = 0; j < R / QUAD; j++) {
            const lot<float> v = *(const lot<float> *)(&y.x[lane + QUAD * j][d]);
#pragma unroll
            for (int k = 0; k < 4; k++)
                s[j] += u.at[k] * v.at[k];
        }
    }
}

/* sums[j] += sum over the tile's rows, in their order, of p[i] times this thread's columns. */
template <int R, int W>
static __device__ inline void add_rows(float sums[W / 16][4], const float *p, const tile<R, W> &y,
                                       int lane, int D)
{
#pragma unroll 2
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < W / 16; j++)
            if (lane * 4 + j * 16 < D) {
                const lot<float> v = *(const lot<float> *)(&y.x[i][lane * 4 + j * 16]);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    sums[j][k] = fmaf(p[i], v.at[k], sums[j][k]);
            }
}

template <class T, int W>
static __device__ inline void store_sums(T *to, const float sums[W / 16][4], int lane, int D,
                                         float factor)
{
#pragma unroll
    for (int j = 0; j < W / 16; j++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (lane * 4 + j * 16 + k < D)
                to[lane * 4 + j * 16 + k] = fsdp_from_float<T>(sums[j][k] * factor);
}

static __device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync(FULL_MASK, x, 1);
    return x + __shfl_xor_sync(FULL_MASK, x, 2);
}

static __device__ inline float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(FULL_MASK, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_MASK, x, 2));
}

/* Of the probability of query t and key j. */
static __device__ inline float factor_of(const attention_args &a, int b, int h, int t, int j)
{
    const uint64_t row = ((uint64_t)a.Tk + 31) / 32 * 32;
    return a.drops ? drop_factor(a.drop, b, (uint64_t)(h * a.Tq + t) * row + (uint64_t)j) : 1.0f;
}

/* First key of query t's document, the first that its window shows, and the one after the last it
 * sees; none for a query past the last. */
static __device__ inline int first_key(const attention_args &a, int b, int t)
{
    return a.starts && t < a.Tq ? a.starts[(size_t)b * (size_t)a.Tq + (size_t)t] : 0;
}

static __device__ inline int end_key(const attention_args &a, int t)
{
    return t < a.Tq ? a.Tk - a.Tq + t + 1 : 0;
}

static __device__ inline int window_key(const attention_args &a, int t)
{
    return max(end_key(a, t) - a.window, 0);
}

static __device__ inline float sink_of(const attention_args &a, int h)
{
    return a.sinks ? load_any(a.sinks, a.sinks_dtype, (size_t)h) : -INFINITY;
}

/* ---- forward ------------------------------------------------------------------------------------
 * Queries of several documents may share a block. It then goes through the keys of one document
 * after the other, in tiles that lie as they do in the document alone, and rows of other documents
 * stay as they are: a document's results are those it has alone. Tiles before the window of a
 * document's first row are passed over. A sink is the first score that every row has seen. */

template <class T, int R, int W>
__global__ void __launch_bounds__(R *QUAD, 2)
    attention_forward_kernel(T *o, const T *q, const T *k, const T *v, attention_args a)
{
    __shared__ tile<R, W> queries, keys;
    __shared__ float probs[R][R + 1];
    const int row = (int)threadIdx.x / QUAD, lane = (int)threadIdx.x % QUAD;
    const int first = (int)blockIdx.x * R, t = first + row, h = (int)blockIdx.y,
              b = (int)blockIdx.z;
    const int kv_head = h / (a.NH / a.NKV), D = padded(a.D), last = min(first + R, a.Tq) - 1;
    const size_t nq = (size_t)a.NH * (size_t)a.D, nk = (size_t)a.NKV * (size_t)a.D;
    const int begin = first_key(a, b, t), end = end_key(a, t), shown = window_key(a, t);
    float s[R / QUAD], sums[W / 16][4] = {}, most = sink_of(a, h), total = a.sinks ? 1.0f : 0.0f;

    q += (size_t)b * (size_t)a.Tq * nq + (size_t)h * (size_t)a.D;
    k += (size_t)b * (size_t)a.Tk * nk + (size_t)kv_head * (size_t)a.D;
    v += (size_t)b * (size_t)a.Tk * nk + (size_t)kv_head * (size_t)a.D;
    load_tile(&queries, q, first, a.Tq, nq, a);
    for (int document = first_key(a, b, first), next; document >= 0; document = next) {
        int last_of = last;
        next = -1;
        for (int r = first; a.starts && r <= last; r++)
            if (first_key(a, b, r) > document) {
                next = first_key(a, b, r);
                last_of = r - 1;
                break;
            }
        const int before = max(window_key(a, max(first, document)) - document, 0) / R * R;
        for (int from = document + before; from < end_key(a, last_of); from += R) {
            __syncthreads();
            load_tile(&keys, k, from, a.Tk, nk, a);
            __syncthreads();
            multiply_rows<R, W>(s, queries.x[row], keys, lane, D);
            float here = -INFINITY, sum = 0;
#pragma unroll
            for (int j = 0; j < R / QUAD; j++) {
                const int key = from + lane + QUAD * j;
                s[j] = begin == document && key >= shown && key < end ? s[j] * a.scale : -INFINITY;
                if (a.cap > 0 && s[j] > -INFINITY)
                    s[j] = a.cap * tanhf(s[j] * a.inv_cap);
                here = fmaxf(here, s[j]);
            }
            const float now = fmaxf(most, quad_max(here));
            const float keep = most == now ? 1.0f : expf(most - now);
#pragma unroll
            for (int j = 0; j < R / QUAD; j++) {
                const int key = from + lane + QUAD * j;
                const float p = s[j] == -INFINITY ? 0.0f : expf(s[j] - now);
                sum += p;
                probs[row][lane + QUAD * j] = p > 0 ? p * factor_of(a, b, h, t, key) : 0.0f;
            }
            total = total * keep + quad_sum(sum);
            most = now;
#pragma unroll
            for (int j = 0; j < W / 16; j++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sums[j][i] *= keep;
            __syncthreads();
            load_tile(&keys, v, from, a.Tk, nk, a);
            __syncthreads();
            add_rows<R, W>(sums, probs[row], keys, lane, D);
        }
    }
    if (t >= a.Tq)
        return;
    if (lane == 0)
        a.lse[((size_t)b * (size_t)a.NH + (size_t)h) * (size_t)a.Tq + (size_t)t] =
            most + logf(total);
    store_sums<T, W>(o + ((size_t)b * (size_t)a.Tq + (size_t)t) * nq + (size_t)h * (size_t)a.D,
                     sums, lane, a.D, 1.0f / total);
}

/* ---- backward -----------------------------------------------------------------------------------
 * delta = d_o · o of every query and head; then dq from a pass over the keys of each tile of
 * queries; then dk and dv from a pass over the queries, of all heads of the group, of each tile of
 * keys. dq waits in scratch memory until the last pass has read q; a tile of keys is its block's
 * own, so that dk and dv may take its place. */

template <class T>
__global__ void attention_delta_kernel(float *delta, const T *o, const T *d_o, size_t n, int Tq,
                                       int NH, int D, bool aligned)
{
    const size_t at = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP; /* of (b, t, h) */
    const int lane = (int)threadIdx.x % WARP;
    float sum = 0, x[VEC], y[VEC];
    if (at >= n)
        return;
    for (int d = lane * VEC; d < D; d += WARP * VEC) {
        load8(x, o + at * (size_t)D, (size_t)d, (size_t)D, aligned);
        load8(y, d_o + at * (size_t)D, (size_t)d, (size_t)D, aligned);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            sum += x[i] * y[i];
    }
    sum = warp_sum(sum);
    const size_t h = at % (size_t)NH, t = at / (size_t)NH % (size_t)Tq,
                 b = at / (size_t)NH / (size_t)Tq;
    if (lane == 0)
        delta[(b * (size_t)NH + h) * (size_t)Tq + t] = sum;
}

/* The score of query t and key j: s and dp are their products. */
struct score {
    int b, h, t, j;
    float s, dp, lse, delta;
};

/* Its probability and its gradient; a cap has the slope 1 - tanh². */
static __device__ inline float score_gradient(float *p, const attention_args &a, const score &x)
{
    const bool seen =
        x.j >= max(first_key(a, x.b, x.t), window_key(a, x.t)) && x.j < end_key(a, x.t);
    float power = x.s * a.scale - x.lse, slope = a.scale;
    if (a.cap > 0) {
        const float bend = tanhf(x.s * a.scale * a.inv_cap);
        power = a.cap * bend - x.lse;
        slope *= 1.0f - bend * bend;
    }
    const float full = seen ? expf(power) : 0.0f;
    const float factor = seen ? factor_of(a, x.b, x.h, x.t, x.j) : 0.0f;
    *p = full * factor;
    return full * (x.dp * factor - x.delta) * slope;
}

template <class T, int R, int W>
__global__ void __launch_bounds__(R *QUAD, 2)
    attention_dq_kernel(T *dq, const T *q, const T *k, const T *v, const T *d_o, attention_args a)
{
    __shared__ tile<R, W> queries, grads, keys, values;
    __shared__ float ds[R][R + 1];
    const int row = (int)threadIdx.x / QUAD, lane = (int)threadIdx.x % QUAD;
    const int first = (int)blockIdx.x * R, t = first + row, h = (int)blockIdx.y,
              b = (int)blockIdx.z;
    const int kv_head = h / (a.NH / a.NKV), D = padded(a.D), last = min(first + R, a.Tq) - 1;
    const size_t nq = (size_t)a.NH * (size_t)a.D, nk = (size_t)a.NKV * (size_t)a.D;
    const size_t at = (size_t)b * (size_t)a.Tq * nq + (size_t)h * (size_t)a.D;
    const size_t kv = (size_t)b * (size_t)a.Tk * nk + (size_t)kv_head * (size_t)a.D;
    const size_t stat = ((size_t)b * (size_t)a.NH + (size_t)h) * (size_t)a.Tq + (size_t)t;
    const float lse = t < a.Tq ? a.lse[stat] : 0, delta = t < a.Tq ? a.delta[stat] : 0;
    float s[R / QUAD], dp[R / QUAD], sums[W / 16][4] = {}, p;

    load_tile(&queries, q + at, first, a.Tq, nq, a);
    load_tile(&grads, d_o + at, first, a.Tq, nq, a);
    for (int from = max(first_key(a, b, first), window_key(a, first)); from < end_key(a, last);
         from += R) {
        __syncthreads();
        load_tile(&keys, k + kv, from, a.Tk, nk, a);
        load_tile(&values, v + kv, from, a.Tk, nk, a);
        __syncthreads();
        multiply_rows<R, W>(s, queries.x[row], keys, lane, D);
        multiply_rows<R, W>(dp, grads.x[row], values, lane, D);
#pragma unroll
        for (int j = 0; j < R / QUAD; j++)
            ds[row][lane + QUAD * j] =
                score_gradient(&p, a, {b, h, t, from + lane + QUAD * j, s[j], dp[j], lse, delta});
        __syncthreads();
        add_rows<R, W>(sums, ds[row], keys, lane, D);
    }
    if (t < a.Tq)
        store_sums<T, W>(dq + at + (size_t)t * nq, sums, lane, a.D, 1.0f);
}

template <class T, int R, int W>
__global__ void __launch_bounds__(R *QUAD, 2)
    attention_dkv_kernel(T *k, T *v, const T *q, const T *d_o, attention_args a)
{
    __shared__ tile<R, W> queries, grads, keys, values;
    __shared__ float probs[R][R + 1], ds[R][R + 1];
    const int row = (int)threadIdx.x / QUAD, lane = (int)threadIdx.x % QUAD;
    const int first = (int)blockIdx.x * R, j = first + row, b = (int)blockIdx.z;
    const int group = a.NH / a.NKV, D = padded(a.D), last = min(first + R, a.Tk) - 1;
    const size_t nq = (size_t)a.NH * (size_t)a.D, nk = (size_t)a.NKV * (size_t)a.D;
    const size_t kv = (size_t)b * (size_t)a.Tk * nk + (size_t)blockIdx.y * (size_t)a.D;
    /* From the first query that sees the tile's first key, to the last whose window shows one. */
    const int begin = max(first - (a.Tk - a.Tq), 0);
    const int end = min(last - (a.Tk - a.Tq) + a.window, a.Tq);
    float s[R / QUAD], dp[R / QUAD], dk[W / 16][4] = {}, dv[W / 16][4] = {};

    load_tile(&keys, k + kv, first, a.Tk, nk, a);
    load_tile(&values, v + kv, first, a.Tk, nk, a);
    for (int h = (int)blockIdx.y * group; h < ((int)blockIdx.y + 1) * group; h++) {
        const size_t at = (size_t)b * (size_t)a.Tq * nq + (size_t)h * (size_t)a.D;
        const size_t stat = ((size_t)b * (size_t)a.NH + (size_t)h) * (size_t)a.Tq;
        for (int from = begin; from < end; from += R) {
            if (first_key(a, b, from) > last)
                break;
            __syncthreads();
            load_tile(&queries, q + at, from, a.Tq, nq, a);
            load_tile(&grads, d_o + at, from, a.Tq, nq, a);
            __syncthreads();
            multiply_rows<R, W>(s, keys.x[row], queries, lane, D);
            multiply_rows<R, W>(dp, values.x[row], grads, lane, D);
#pragma unroll
            for (int i = 0; i < R / QUAD; i++) {
                const int col = lane + QUAD * i, t = from + col;
                const float lse = t < a.Tq ? a.lse[stat + (size_t)t] : 0;
                const float delta = t < a.Tq ? a.delta[stat + (size_t)t] : 0;
                ds[row][col] =
                    score_gradient(&probs[row][col], a, {b, h, t, j, s[i], dp[i], lse, delta});
            }
            __syncthreads();
            add_rows<R, W>(dv, probs[row], grads, lane, D);
            add_rows<R, W>(dk, ds[row], queries, lane, D);
        }
    }
    if (j >= a.Tk)
        return;
    store_sums<T, W>(k + kv + (size_t)j * nk, dk, lane, a.D, 1.0f);
    store_sums<T, W>(v + kv + (size_t)j * nk, dv, lane, a.D, 1.0f);
}

/* dsinks[h] = beta dsinks[h] - sum over the rows of the sink's share of the softmax times delta. A
 * block sums a head, each thread every SINK_THREADS-th row. */
enum { SINK_THREADS = 256 };

static __global__ void attention_dsinks_kernel(void *dsinks, enum fsdp_dtype dtype, int B,
                                               float beta, attention_args a)
{
    __shared__ float room[SINK_THREADS / WARP];
    const int h = (int)blockIdx.x;
    const float sink = sink_of(a, h);
    float sum = 0;
    for (size_t i = threadIdx.x; i < (size_t)B * (size_t)a.Tq; i += SINK_THREADS) {
        const size_t b = i / (size_t)a.Tq, t = i % (size_t)a.Tq;
        const size_t stat = (b * (size_t)a.NH + (size_t)h) * (size_t)a.Tq + t;
        sum -= expf(sink - a.lse[stat]) * a.delta[stat];
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        store_any(dsinks, dtype, (size_t)h,
                  beta == 0.0f ? sum : sum + beta * load_any(dsinks, dtype, (size_t)h));
}

/* ---- operators ------------------------------------------------------------------------------- */

enum { MOST_D = 256, DELTA_THREADS = 256 };

/* LAUNCH_FOR_TYPE of KERNEL<type, rows, width>: more rows where heads are narrow. */
#define LAUNCH_HEADS(D, dtype, lane, kernel, rows, T, heads, B, ...)                               \
    do {                                                                                           \
        if ((D) <= 64)                                                                             \
            LAUNCH_FOR_TYPE(dtype, lane, (kernel<elem, rows, 64>),                                 \
                            dim3(blocks_for((size_t)(T), rows), (unsigned)(heads), (unsigned)(B)), \
                            rows *QUAD, __VA_ARGS__);                                              \
        else if ((D) <= 128)                                                                       \
            LAUNCH_FOR_TYPE(                                                                       \
                dtype, lane, (kernel<elem, rows / 2, 128>),                                        \
                dim3(blocks_for((size_t)(T), rows / 2), (unsigned)(heads), (unsigned)(B)),         \
                rows / 2 * QUAD, __VA_ARGS__);                                                     \
        else                                                                                       \
            LAUNCH_FOR_TYPE(                                                                       \
                dtype, lane, (kernel<elem, rows / 4, 256>),                                        \
                dim3(blocks_for((size_t)(T), rows / 4), (unsigned)(heads), (unsigned)(B)),         \
                rows / 4 * QUAD, __VA_ARGS__);                                                     \
    } while (0)

static int prepare_attention(attention_args *out, struct fsdp_lane *lane,
                             const struct nn_attention *x, struct fsdp_err *err)
{
    attention_args a = {};
    if (x->D > MOST_D)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "attention with heads of %d elements: on CUDA at most %d are supported",
                            x->D, (int)MOST_D);
    a.Tq = x->Tq;
    a.Tk = x->Tk;
    a.NH = x->NH;
    a.NKV = x->NKV;
    a.D = x->D;
    a.window = x->window > 0 && x->window < x->Tk ? x->window : x->Tk;
    a.scale = x->scale;
    a.cap = x->softcap;
    a.inv_cap = x->softcap > 0 ? 1.0f / x->softcap : 0.0f;
    a.starts = x->starts;
    a.sinks = x->sinks;
    a.sinks_dtype = x->w_dtype;
    a.lse = x->lse;
    a.drops = x->drop.p > 0;
    a.drop = drop_rule_of(&x->drop);
    a.aligned = x->D % VEC == 0 && is_aligned(x->q) && is_aligned(x->k) && is_aligned(x->v) &&
                is_aligned(x->o) && is_aligned(x->d_o);
    *out = a;
    return fsdp_cuda_enter(lane, err);
}

extern "C" int nn_cuda_plain_attention_forward(struct fsdp_lane *lane, const struct nn_attention *x,
                                               struct fsdp_err *err)
{
    attention_args a;
    FSDP_TRY(prepare_attention(&a, lane, x, err));
    LAUNCH_HEADS(x->D, x->dtype, lane, attention_forward_kernel, 32, x->Tq, x->NH, x->B, TO(x->o),
                 FROM(x->q), FROM(x->k), FROM(x->v), a);
    return fsdp_cuda_launched(lane, "attention_forward", err);
}

extern "C" int nn_cuda_plain_attention_backward(struct fsdp_lane *lane,
                                                const struct nn_attention *x, struct fsdp_err *err)
{
    const size_t heads = (size_t)x->B * (size_t)x->Tq * (size_t)x->NH;
    void *dq = x->work + nn_cuda_attention_delta_nelem(x);
    attention_args a;

    FSDP_TRY(prepare_attention(&a, lane, x, err));
    a.delta = x->work;
    a.aligned &= is_aligned(dq);
    LAUNCH_FOR(x->dtype, lane, attention_delta_kernel, blocks_for(heads * WARP, DELTA_THREADS),
               DELTA_THREADS, a.delta, FROM(x->o), FROM(x->d_o), heads, x->Tq, x->NH, x->D,
               a.aligned);
    if (x->sinks && x->dsinks)
        LAUNCH(lane, attention_dsinks_kernel, (unsigned)x->NH, SINK_THREADS, x->dsinks, x->dw_dtype,
               x->B, x->dsinks_beta, a);
    LAUNCH_HEADS(x->D, x->dtype, lane, attention_dq_kernel, 32, x->Tq, x->NH, x->B, TO(dq),
                 FROM(x->q), FROM(x->k), FROM(x->v), FROM(x->d_o), a);
    LAUNCH_HEADS(x->D, x->dtype, lane, attention_dkv_kernel, 32, x->Tk, x->NKV, x->B, TO(x->k),
                 TO(x->v), FROM(x->q), FROM(x->d_o), a);
    FSDP_TRY(fsdp_cuda_launched(lane, "attention_backward", err));
    return fsdp_copy(lane, x->q, dq, heads * (size_t)x->D * fsdp_dtype_nbytes(x->dtype), err);
}
