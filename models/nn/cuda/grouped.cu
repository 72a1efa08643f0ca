/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of all experts in one launch, whose rows only the device knows: blocks find their
 * expert in `first`. A block makes a tile of the result: operands pass through shared memory, as
 * they lie, while those of the next step are on their way in registers. 16-bit types are multiplied
 * by tensor cores, F32 by FMA. Each element is one sum in the order of k, so that a repeated call
 * gives the same bits.
 *
 *                     a            b            rows of an expert are
 *     forward         x            w, b_cols    rows of a and of out
 *     to the input    dy           w            rows of a and of out
 *     to the weight   dy, a_cols   x            k
 *
 * a_cols: a lies as (k, m); b_cols: b lies as (n, k).
 * Where weights are transposed, b_cols is the other way round, and dy and x change places.
 */
#include <mma.h>

#include "kernel.cuh"

enum { THREADS = 256, TM = 64, TN = 128, TK = 32, PAD = 16 /* bytes behind a row of a tile */ };

struct grouped_args {
    const void *a, *b; /* of the first place; b of weights: of expert 0 */
    const void *const *each;
    size_t b_stride, out_stride;
    void *out;
    enum fsdp_dtype out_dtype, bias_dtype;
    const void *bias; /* NULL: none */
    int m, n, k;      /* the one that is an expert's rows is not read */
    const int32_t *first;
    int experts;
    float beta;
    bool a_aligned, b_aligned, out_aligned;
};

/* ---- tiles ----------------------------------------------------------------------------------- */

template <class T> struct alignas(16) lot8 {
    T at[VEC];
};

template <class T>
static __device__ inline void load_lot(lot8<T> &out, const T *x, size_t at, size_t nelem,
                                       bool aligned)
{
    enum { N = 16 / sizeof(T) };
    if (aligned && at + VEC <= nelem) {
#pragma unroll
        for (int i = 0; i < VEC; i += N)
            *(lot<T> *)&out.at[i] = *(const lot<T> *)(x + at + i);
        return;
    }
#pragma unroll
    for (int i = 0; i < VEC; i++)
        out.at[i] = at + i < nelem ? x[at + i] : fsdp_from_float<T>(0.0f);
}

/* Of a matrix with nrows and ncols: ROWS x COLS from (row, col) on; zeros beyond its end. */
template <class T, int ROWS, int COLS> struct tile {
    enum { LD = COLS + PAD / sizeof(T), LOTS = ROWS * COLS / VEC / THREADS };
    lot8<T> lots[LOTS];

    __device__ void load(const T *x, int row, int col, int nrows, int ncols, bool aligned)
    {
#pragma unroll
        for (int i = 0; i < LOTS; i++) {
            const int lot = (int)threadIdx.x + i * THREADS, r = row + lot / (COLS / VEC);
            load_lot(lots[i], x + (size_t)r * (size_t)ncols,
                     (size_t)(col + lot % (COLS / VEC) * VEC), r < nrows ? (size_t)ncols : 0,
                     aligned);
        }
    }
    __device__ void store(T *shared) const
    {
#pragma unroll
        for (int i = 0; i < LOTS; i++) {
            const int lot = (int)threadIdx.x + i * THREADS;
            *(lot8<T> *)&shared[lot / (COLS / VEC) * LD + lot % (COLS / VEC) * VEC] = lots[i];
        }
    }
};

/* ---- sums of a tile --------------------------------------------------------------------------
 * A warp has 32 x 32 of it, as two by two fragments. */
enum { OUT_LD = TN + 4, WARPS_N = TN / 32, FRAGMENT = 16 };

template <class T, bool A_COLS, bool B_COLS, int A_LD, int B_LD> struct sums {
    template <bool COLS>
    using order =
        typename std::conditional<COLS, nvcuda::wmma::col_major, nvcuda::wmma::row_major>::type;
    nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> sum[2][2];
    int row, col; /* of the warp's part */

    __device__ sums()
    {
        row = (int)threadIdx.x / WARP / WARPS_N * 32;
        col = (int)threadIdx.x / WARP % WARPS_N * 32;
#pragma unroll
        for (int i = 0; i < 4; i++)
            nvcuda::wmma::fill_fragment(sum[i / 2][i % 2], 0.0f);
    }
    __device__ void add(const T *a, const T *b)
    {
        nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, T, order<A_COLS>> left[2];
        nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, T, order<B_COLS>> right[2];
#pragma unroll
        for (int k = 0; k < TK; k += FRAGMENT) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int r = row + i * FRAGMENT, c = col + i * FRAGMENT;
                load_matrix_sync(left[i], A_COLS ? a + k * A_LD + r : a + r * A_LD + k, A_LD);
                load_matrix_sync(right[i], B_COLS ? b + c * B_LD + k : b + k * B_LD + c, B_LD);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                mma_sync(sum[i / 2][i % 2], left[i / 2], right[i % 2], sum[i / 2][i % 2]);
        }
    }
    __device__ void store(float *out)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            store_matrix_sync(out + (row + i / 2 * FRAGMENT) * OUT_LD + col + i % 2 * FRAGMENT,
                              sum[i / 2][i % 2], OUT_LD, nvcuda::wmma::mem_row_major);
    }
};

/* A thread has every 16th row and column. */
template <bool A_COLS, bool B_COLS, int A_LD, int B_LD>
struct sums<float, A_COLS, B_COLS, A_LD, B_LD> {
    enum { EACH = 16, NROWS = TM / EACH, NCOLS = TN / EACH };
    float sum[NROWS][NCOLS];
    int row, col;

    __device__ sums() : sum()
    {
        row = (int)threadIdx.x / EACH;
        col = (int)threadIdx.x % EACH;
    }
    __device__ void add(const float *a, const float *b)
    {
        for (int k = 0; k < TK; k++) {
            float left[NROWS], right[NCOLS];
#pragma unroll
            for (int i = 0; i < NROWS; i++)
                left[i] = A_COLS ? a[k * A_LD + row + i * EACH] : a[(row + i * EACH) * A_LD + k];
#pragma unroll
            for (int j = 0; j < NCOLS; j++)
                right[j] = B_COLS ? b[(col + j * EACH) * B_LD + k] : b[k * B_LD + col + j * EACH];
#pragma unroll
            for (int i = 0; i < NROWS; i++)
#pragma unroll
                for (int j = 0; j < NCOLS; j++)
                    sum[i][j] += left[i] * right[j];
        }
    }
    __device__ void store(float *out)
    {
#pragma unroll
        for (int i = 0; i < NROWS; i++)
#pragma unroll
            for (int j = 0; j < NCOLS; j++)
                out[(row + i * EACH) * OUT_LD + col + j * EACH] = sum[i][j];
    }
};

/* ---- which tile ------------------------------------------------------------------------------ */

struct spot {
    int expert, row; /* expert -1: none */
};

/* Tile number `tile` of those of all experts' rows: by one warp. */
static __device__ void find_tile(spot *out, const int32_t *first, int experts, int tile)
{
    const int lane = (int)threadIdx.x % WARP;
    int before = 0;
    if (lane == 0)
        *out = {-1, 0};
    __syncwarp();
    for (int base = 0; base < experts && before <= tile; base += WARP) {
        const int e = base + lane;
        const int ntiles = e < experts ? (first[e + 1] - first[e] + TM - 1) / TM : 0;
        int upto = ntiles;
#pragma unroll
        for (int by = 1; by < WARP; by *= 2) {
            const int other = __shfl_up_sync(FULL_MASK, upto, (unsigned)by);
            upto += lane >= by ? other : 0;
        }
        const int mine = tile - before - (upto - ntiles);
        if (mine >= 0 && mine < ntiles) {
            out->expert = e;
            out->row = mine * TM;
        }
        before += __shfl_sync(FULL_MASK, upto, WARP - 1);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <class T> struct room_of {
    enum {
        ROWS = (TM + TN) * (TK + PAD / sizeof(T)) * sizeof(T), /* the larger of the ways they lie */
        OUT = TM * OUT_LD * sizeof(float),
        NBYTES = (int)ROWS > (int)OUT ? (int)ROWS : (int)OUT
    };
};
template <int NBYTES> struct alignas(32) shared_room {
    unsigned char at[NBYTES];
};

/* out = sums + bias + beta out, of the tile at (row, col) of (m, n). */
static __device__ inline void finish_tile(const grouped_args &g, const float *sum, int expert,
                                          void *out, spot at, int m, int col)
{
    const size_t n = (size_t)g.n;
    for (int lot = (int)threadIdx.x; lot < TM * TN / VEC; lot += THREADS) {
        const int r = lot / (TN / VEC), c = lot % (TN / VEC) * VEC;
        const size_t to = (size_t)(col + c);
        void *row = nn_elem(out, g.out_dtype, (size_t)(at.row + r) * n);
        float v[VEC], bias[VEC] = {}, old[VEC] = {};
        if (at.row + r >= m || to >= n)
            continue;
        load8(v, sum + r * OUT_LD, (size_t)c, TN, true);
        if (g.bias)
            load8_any(bias, nn_elem(g.bias, g.bias_dtype, (size_t)expert * n), g.bias_dtype, to, n,
                      false);
        if (g.beta != 0.0f)
            load8_any(old, row, g.out_dtype, to, n, g.out_aligned);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            v[i] += bias[i] + g.beta * old[i];
        store8_any(row, g.out_dtype, to, n, g.out_aligned, v);
    }
}

template <class T, bool A_COLS, bool B_COLS>
__global__ void __launch_bounds__(THREADS) grouped_kernel(grouped_args g)
{
    typedef tile<T, A_COLS ? TK : TM, A_COLS ? TM : TK> a_tile;
    typedef tile<T, B_COLS ? TN : TK, B_COLS ? TK : TN> b_tile;
    enum { A_NELEM = (A_COLS ? TK : TM) * a_tile::LD };
    __shared__ shared_room<room_of<T>::NBYTES> room;
    __shared__ spot found;
    T *a_room = (T *)room.at, *b_room = a_room + A_NELEM;
    spot at = {(int)blockIdx.z, (int)blockIdx.y * TM};

    if (!A_COLS) {
        if (threadIdx.x < WARP)
            find_tile(&found, g.first, g.experts, (int)blockIdx.y);
        __syncthreads();
        at = found;
        if (at.expert < 0)
            return;
    }
    const size_t begin = (size_t)g.first[at.expert];
    const int rows = g.first[at.expert + 1] - (int)begin, col = (int)blockIdx.x * TN;
    const int m = A_COLS ? g.m : rows, k = A_COLS ? rows : g.k;
    const T *a = (const T *)g.a + begin * (size_t)(A_COLS ? m : k);
    const T *b = A_COLS   ? (const T *)g.b + begin * (size_t)g.n
                 : g.each ? (const T *)g.each[at.expert]
                          : (const T *)g.b + (size_t)at.expert * g.b_stride;
    void *out = nn_elem(g.out, g.out_dtype,
                        A_COLS ? (size_t)at.expert * g.out_stride : begin * (size_t)g.n);
    a_tile a_next;
    b_tile b_next;
    sums<T, A_COLS, B_COLS, a_tile::LD, b_tile::LD> sum;

    for (int from = -TK; from < k; from += TK) { /* the first round only loads */
        const int next = from + TK;
        if (from >= 0) {
            __syncthreads();
            a_next.store(a_room);
            b_next.store(b_room);
            __syncthreads();
        }
        if (next < k) {
            a_next.load(a, A_COLS ? next : at.row, A_COLS ? at.row : next, A_COLS ? k : m,
                        A_COLS ? m : k, g.a_aligned);
            b_next.load(b, B_COLS ? col : next, B_COLS ? next : col, B_COLS ? g.n : k,
                        B_COLS ? k : g.n, g.b_aligned);
        }
        if (from >= 0)
            sum.add(a_room, b_room);
    }
    __syncthreads();
    sum.store((float *)room.at);
    __syncthreads();
    finish_tile(g, (const float *)room.at, at.expert, out, at, m, col);
}

/* ---- on the host ----------------------------------------------------------------------------- */

/* Rows of both operands begin at multiples of 16 bytes. */
static bool rows_are_aligned(const void *x, int ncols, size_t stride)
{
    return is_aligned(x) && ncols % VEC == 0 && stride % VEC == 0;
}

static bool weights_are_aligned(const struct nn_grouped *a, int ncols)
{
    bool all = true;
    for (int e = 0; a->w_each && e < a->experts; e++)
        all = all && is_aligned(a->w_each[e]);
    return a->w_each ? all && ncols % VEC == 0 : rows_are_aligned(a->w, ncols, a->stride);
}

static grouped_args args_of(const struct nn_grouped *a, enum fsdp_dtype y_dtype, enum nn_way way)
{
    const bool to_weight = way == NN_TO_WEIGHT, forward = way == NN_FORWARD;
    const void *x = forward || (to_weight && a->transposed) ? a->x : a->dy;
    grouped_args g = {};
    g.a = x;
    g.b = !to_weight ? a->w : x == a->x ? a->dy : a->x;
    g.out = a->out;
    g.m = a->transposed ? a->nin : a->nout; /* of a weight's gradient */
    g.n = forward || (to_weight && a->transposed) ? a->nout : a->nin;
    g.k = forward ? a->nin : a->nout;
    g.b_stride = g.out_stride = a->stride;
    g.out_dtype = to_weight ? a->dw_dtype : y_dtype;
    g.bias = forward ? a->b : NULL;
    g.bias_dtype = a->w_dtype;
    g.first = a->first;
    g.experts = a->experts;
    g.beta = a->beta;
    g.a_aligned = rows_are_aligned(g.a, to_weight ? g.m : g.k, 0);
    g.b_aligned = to_weight ? rows_are_aligned(g.b, g.n, 0)
                            : weights_are_aligned(a, a->transposed ? a->nout : a->nin);
    g.out_aligned = rows_are_aligned(g.out, g.n, to_weight ? a->stride : 0);
    return g;
}

/* The list of weights, where the device reads it. */
static int bring_list(grouped_args *g, struct fsdp_lane *lane, const struct nn_grouped *a,
                      struct fsdp_err *err)
{
    void *list;
    FSDP_TRY(nn_cuda_scratch(&list, lane, err));
    g->each = (const void *const *)list;
    return fsdp_copy(lane, list, a->w_each, (size_t)a->experts * sizeof *a->w_each, err);
}

extern "C" bool nn_cuda_groups_in_one(const struct nn_grouped *a)
{
    return (a->f8.dtype || a->dtype == a->w_dtype) &&
           nn_cuda_groups_are_small(a->nplaces, a->experts);
}

extern "C" int nn_cuda_grouped_product(struct fsdp_lane *lane, const struct nn_grouped *a,
                                       enum fsdp_dtype y_dtype, enum nn_way way,
                                       struct fsdp_err *err)
{
    const bool b_cols = way == NN_FORWARD ? !a->transposed : a->transposed;
    const unsigned most_tiles = (unsigned)(a->nplaces / TM + a->experts);
    grouped_args g = args_of(a, y_dtype, way);
    const unsigned ncols = blocks_for((size_t)g.n, TN);

    if (a->w_each && way != NN_TO_WEIGHT)
        FSDP_TRY(bring_list(&g, lane, a, err));
    if (way == NN_TO_WEIGHT)
        LAUNCH_FOR_TYPE(a->dtype, lane, (grouped_kernel<elem, true, false>),
                        dim3(ncols, blocks_for((size_t)g.m, TM), (unsigned)a->experts), THREADS, g);
    else if (b_cols)
        LAUNCH_FOR_TYPE(a->dtype, lane, (grouped_kernel<elem, false, true>),
                        dim3(ncols, most_tiles), THREADS, g);
    else
        LAUNCH_FOR_TYPE(a->dtype, lane, (grouped_kernel<elem, false, false>),
                        dim3(ncols, most_tiles), THREADS, g);
    return fsdp_cuda_launched(lane, "grouped product", err);
}
