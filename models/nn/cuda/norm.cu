/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RMSNorm (Zhang and Sennrich, arXiv 1910.07467) and LayerNorm (Ba, Kiros and Hinton, arXiv
 * 1607.06450). A block takes a row at a time into registers, so that memory is read and written
 * once. A thread holds up to four lots of eight elements, side by side with those of its
 * neighbours:
 *
 *     row   [ lot 0 | lot 1 | ... | lot n-1 | lot n | ... ]      n threads
 *     thread    0       1            n-1        0
 *
 * Backward, a block goes through several rows and keeps its part of dw (and db) in registers; the
 * parts are a matrix (blocks, dim) in scratch memory, whose rows are then added up. A row's second
 * reading is the nearest cache's.
 */
#include "kernel.cuh"

enum { LOTS = 4, MOST_THREADS = 512, MOST_DIM = LOTS * VEC * MOST_THREADS };
/* Backward, with sums of weights' gradients in registers: fewer threads, and of wide rows more
 * lots. */
enum { GRAD_THREADS = 512, GRAD_LOTS = 2, WIDE_LOTS = 4, LEAST_ROWS = 8, BLOCKS = 512 };
enum { PARTS_NBYTES = NN_CUDA_SCRATCH_NBYTES - (1 << 20) };
static_assert(MOST_DIM == WIDE_LOTS * VEC * GRAD_THREADS, "one limit for both directions");

struct norm_args {
    const void *w, *b;       /* b, mean: NULL for an RMSNorm */
    enum fsdp_dtype w_dtype; /* backward: fp32 */
    float *mean, *rstd;
    int rows, dim;
    float eps, dx_beta, w_offset;
    bool aligned; /* rows, w and b */
};

static unsigned threads_for(int dim, unsigned lots_each)
{
    const unsigned lots = blocks_for((size_t)dim, VEC),
                   threads = (lots + lots_each - 1) / lots_each;
    return (threads + WARP - 1) / WARP * WARP;
}

/* First element of this thread's lot k; dim or more where it has none. */
static __device__ inline int lot_at(int k)
{
    return (k * (int)blockDim.x + (int)threadIdx.x) * VEC;
}

/* What an element is multiplied by. */
template <bool CENTRED> static __device__ inline float weight_of(float w, const norm_args &a)
{
    return CENTRED ? w : a.w_offset + w;
}

template <class T, bool CENTRED>
static __device__ inline void forward_row(T *y, T *x_copy, const T *x, const norm_args &a,
                                          float *room)
{
    const size_t row = blockIdx.x, dim = (size_t)a.dim;
    float v[LOTS][VEC], w[VEC], b[VEC], mean = 0, sq = 0;

    x += row * dim;
#pragma unroll
    for (int k = 0; k < LOTS; k++)
        load8(v[k], x, (size_t)lot_at(k), dim, a.aligned);
    if (CENTRED) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < LOTS; k++)
#pragma unroll
            for (int i = 0; i < VEC; i++)
                sum += v[k][i];
        mean = block_sum(sum, room) / (float)a.dim;
    }
#pragma unroll
    for (int k = 0; k < LOTS; k++)
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            const float d = lot_at(k) + i < a.dim ? v[k][i] - mean : 0.0f;
            sq += d * d;
        }
    const float rstd = 1.0f / sqrtf(block_sum(sq, room) / (float)a.dim + a.eps);
    if (threadIdx.x == 0) {
        a.rstd[row] = rstd;
        if (CENTRED)
            a.mean[row] = mean;
    }
#pragma unroll
    for (int k = 0; k < LOTS; k++) {
        const size_t at = (size_t)lot_at(k);
        if (at >= dim)
            break;
        if (x_copy)
            store8(x_copy + row * dim, at, dim, a.aligned, v[k]);
        load8_any(w, a.w, a.w_dtype, at, dim, a.aligned);
        if (CENTRED)
            load8_any(b, a.b, a.w_dtype, at, dim, a.aligned);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            v[k][i] =
                (v[k][i] - mean) * rstd * weight_of<CENTRED>(w[i], a) + (CENTRED ? b[i] : 0.0f);
        store8(y + row * dim, at, dim, a.aligned, v[k]);
    }
}

template <class T>
__global__ void __launch_bounds__(MOST_THREADS)
    rmsnorm_forward_kernel(T *y, T *x_copy, const T *x, norm_args a)
{
    __shared__ float room[WARP];
    forward_row<T, false>(y, x_copy, x, a, room);
}

template <class T>
__global__ void __launch_bounds__(MOST_THREADS)
    layernorm_forward_kernel(T *y, T *x_copy, const T *x, norm_args a)
{
    __shared__ float room[WARP];
    forward_row<T, true>(y, x_copy, x, a, room);
}

/* ---- backward -------------------------------------------------------------------------------- */

struct norm_parts {
    float *dw, *db; /* (blocks, dim); NULL: not wanted */
    int rows_each;
};

/* With xhat = (x - mean) rstd and g = dy w: dx = rstd (g - mean(g) - xhat mean(g xhat)) + beta dx,
 * which may be x; dy becomes y. An RMSNorm has no mean(g), and its mean is 0. */
template <class T, bool CENTRED, int N>
static __device__ inline void backward_rows(T *dy, T *dx, const T *x, const norm_args &a,
                                            const norm_parts &parts, float *room)
{
    const size_t dim = (size_t)a.dim;
    const int first = (int)blockIdx.x * parts.rows_each;
    const int end = a.rows - first < parts.rows_each ? a.rows : first + parts.rows_each;
    float dw[N][VEC] = {}, db[CENTRED ? N : 1][VEC] = {};
    float v[VEC], d[VEC], w[VEC];

    for (int r = first; r < end; r++) {
        const size_t row = (size_t)r * dim;
        const float mean = CENTRED ? a.mean[r] : 0.0f, rstd = a.rstd[r];
        float sum = 0, sum_x = 0;
#pragma unroll 1
        for (int k = 0; k < N; k++) {
            const size_t at = (size_t)lot_at(k);
            if (at >= dim)
                break;
            load8(v, x + row, at, dim, a.aligned);
            load8(d, dy + row, at, dim, a.aligned);
            load8(w, (const float *)a.w, at, dim, a.aligned);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                w[i] = weight_of<CENTRED>(w[i], a);
                sum += d[i] * w[i];
                sum_x += d[i] * w[i] * ((v[i] - mean) * rstd);
            }
        }
        const float g_mean = CENTRED ? block_sum(sum, room) / (float)a.dim : 0.0f;
        const float gx_mean = block_sum(sum_x, room) / (float)a.dim;
#pragma unroll
        for (int k = 0; k < N; k++) {
            const size_t at = (size_t)lot_at(k);
            if (at >= dim)
                break;
            load8(v, x + row, at, dim, a.aligned);
            load8(d, dy + row, at, dim, a.aligned);
            load8(w, (const float *)a.w, at, dim, a.aligned);
            float to[VEC] = {};
            if (a.dx_beta != 0.0f)
                load8(to, dx + row, at, dim, a.aligned);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float xhat = (v[i] - mean) * rstd;
                w[i] = weight_of<CENTRED>(w[i], a);
                to[i] += (d[i] * w[i] - g_mean - xhat * gx_mean) * rstd;
                dw[k][i] += d[i] * xhat;
                if (CENTRED)
                    db[k][i] += d[i];
                v[i] = xhat * w[i];
            }
            store8(dx + row, at, dim, a.aligned, to);
            if (CENTRED) {
                load8(w, (const float *)a.b, at, dim, a.aligned);
#pragma unroll
                for (int i = 0; i < VEC; i++)
                    v[i] += w[i];
            }
            store8(dy + row, at, dim, a.aligned, v);
        }
    }
#pragma unroll
    for (int k = 0; k < N; k++) {
        const size_t at = (size_t)lot_at(k), part = (size_t)blockIdx.x * dim;
        if (at >= dim)
            break;
        if (parts.dw)
            store8(parts.dw + part, at, dim, dim % VEC == 0, dw[k]);
        if (CENTRED && parts.db)
            store8(parts.db + part, at, dim, dim % VEC == 0, db[CENTRED ? k : 0]);
    }
}

template <class T, int N>
__global__ void __launch_bounds__(GRAD_THREADS)
    rmsnorm_backward_kernel(T *dy, T *dx, const T *x, norm_args a, norm_parts parts)
{
    __shared__ float room[WARP];
    backward_rows<T, false, N>(dy, dx, x, a, parts, room);
}

template <class T, int N>
__global__ void __launch_bounds__(GRAD_THREADS)
    layernorm_backward_kernel(T *dy, T *dx, const T *x, norm_args a, norm_parts parts)
{
    __shared__ float room[WARP];
    backward_rows<T, true, N>(dy, dx, x, a, parts, room);
}

/* LAUNCH_FOR of KERNEL<T, lots>. */
#define LAUNCH_WIDE(dtype, dim, lane, kernel, grid, ...)                                           \
    do {                                                                                           \
        if ((dim) <= GRAD_LOTS * VEC * GRAD_THREADS)                                               \
            LAUNCH_FOR_TYPE(dtype, lane, (kernel<elem, GRAD_LOTS>), grid,                          \
                            threads_for(dim, GRAD_LOTS), __VA_ARGS__);                             \
        else                                                                                       \
            LAUNCH_FOR_TYPE(dtype, lane, (kernel<elem, WIDE_LOTS>), grid,                          \
                            threads_for(dim, WIDE_LOTS), __VA_ARGS__);                             \
    } while (0)

/* ---- operators ------------------------------------------------------------------------------- */

/* Weights in fp32, at the end of the scratch memory unless they are: backward has no registers for
 * the other types. */
static int widen(const void **out, struct fsdp_lane *lane, const void *w, enum fsdp_dtype dtype,
                 int dim, int place, struct fsdp_err *err)
{
    void *scratch;
    *out = w;
    if (dtype == FSDP_F32 || !w)
        return FSDP_OK;
    FSDP_TRY(nn_cuda_scratch(&scratch, lane, err));
    float *wide = (float *)((char *)scratch + PARTS_NBYTES) + place * MOST_DIM;
    *out = wide;
    const struct nn_cuda_sum one_row = {wide, FSDP_F32, w,    dtype, 1,    dim,
                                        dim,  0,        NULL, NULL,  NULL, 0};
    return nn_cuda_sum_rows(lane, &one_row, err);
}

/* What the four operators have in common; an RMSNorm has no b. */
template <class Args> static norm_args args_of(const Args *f, const void *b)
{
    norm_args a = {};
    a.rows = f->rows;
    a.dim = f->dim;
    a.w = f->w;
    a.b = b;
    a.w_dtype = f->w_dtype;
    return a;
}

static int prepare_norm(norm_args *a, struct fsdp_lane *lane, bool widened, struct fsdp_err *err)
{
    if (a->dim > MOST_DIM)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "a norm over %d elements: on CUDA at most %d are supported", a->dim,
                            (int)MOST_DIM);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    if (widened) {
        FSDP_TRY(widen(&a->w, lane, a->w, a->w_dtype, a->dim, 0, err));
        FSDP_TRY(widen(&a->b, lane, a->b, a->w_dtype, a->dim, 1, err));
        a->w_dtype = FSDP_F32;
    }
    a->aligned = a->dim % VEC == 0 && is_aligned(a->w) && is_aligned(a->b);
    return FSDP_OK;
}

extern "C" int nn_cuda_rmsnorm_forward(struct fsdp_lane *lane, const struct nn_rmsnorm *f,
                                       struct fsdp_err *err)
{
    norm_args a = args_of(f, NULL);
    FSDP_TRY(prepare_norm(&a, lane, false, err));
    a.rstd = f->rstd;
    a.eps = f->eps;
    a.w_offset = f->w_offset;
    a.aligned &= is_aligned(f->x) && is_aligned(f->y) && is_aligned(f->x_copy);
    LAUNCH_FOR(f->dtype, lane, rmsnorm_forward_kernel, (unsigned)f->rows, threads_for(f->dim, LOTS),
               TO(f->y), TO(f->x_copy), FROM(f->x), a);
    return fsdp_cuda_launched(lane, "rmsnorm_forward", err);
}

extern "C" int nn_cuda_layernorm_forward(struct fsdp_lane *lane, const struct nn_layernorm *f,
                                         struct fsdp_err *err)
{
    norm_args a = args_of(f, f->b);
    FSDP_TRY(prepare_norm(&a, lane, false, err));
    a.mean = f->mean;
    a.rstd = f->rstd;
    a.eps = f->eps;
    a.aligned &= is_aligned(f->x) && is_aligned(f->y) && is_aligned(f->x_copy);
    LAUNCH_FOR(f->dtype, lane, layernorm_forward_kernel, (unsigned)f->rows,
               threads_for(f->dim, LOTS), TO(f->y), TO(f->x_copy), FROM(f->x), a);
    return fsdp_cuda_launched(lane, "layernorm_forward", err);
}

/* Rows of a block, by the shape alone: few enough blocks that their parts fit the scratch. */
static int parts_for(norm_parts *out, struct fsdp_lane *lane, int rows, int dim, bool dw, bool db,
                     struct fsdp_err *err)
{
    const int most = (int)(PARTS_NBYTES / 2 / sizeof(float) / (size_t)dim);
    const int nblocks = most < BLOCKS ? most : BLOCKS, share = (rows + nblocks - 1) / nblocks;
    void *scratch;

    FSDP_TRY(nn_cuda_scratch(&scratch, lane, err));
    out->rows_each = share < LEAST_ROWS ? LEAST_ROWS : share;
    out->dw = dw ? (float *)scratch : NULL;
    out->db = db ? (float *)((char *)scratch + PARTS_NBYTES / 2) : NULL;
    return FSDP_OK;
}

static int sum_parts(struct fsdp_lane *lane, void *out, enum fsdp_dtype dtype, const float *parts,
                     const norm_args &a, int rows_each, float beta, struct fsdp_err *err)
{
    const int nparts = (int)blocks_for((size_t)a.rows, (size_t)rows_each);
    const struct nn_cuda_sum sum = {out,   dtype, parts, FSDP_F32, nparts, a.dim,
                                    a.dim, beta,  NULL,  NULL,     NULL,   0};
    return parts ? nn_cuda_sum_rows(lane, &sum, err) : FSDP_OK;
}

extern "C" int nn_cuda_rmsnorm_backward(struct fsdp_lane *lane, const struct nn_rmsnorm_backward *g,
                                        struct fsdp_err *err)
{
    norm_args a = args_of(g, NULL);
    norm_parts parts = {};
    FSDP_TRY(prepare_norm(&a, lane, true, err));
    FSDP_TRY(parts_for(&parts, lane, g->rows, g->dim, g->dw, false, err));
    a.rstd = (float *)g->rstd;
    a.dx_beta = g->dx_beta;
    a.w_offset = g->w_offset;
    a.aligned &= is_aligned(g->x) && is_aligned(g->dy) && is_aligned(g->dx);
    LAUNCH_WIDE(g->dtype, g->dim, lane, rmsnorm_backward_kernel,
                blocks_for((size_t)g->rows, (size_t)parts.rows_each), TO(g->dy), TO(g->dx),
                FROM(g->x), a, parts);
    FSDP_TRY(fsdp_cuda_launched(lane, "rmsnorm_backward", err));
    return sum_parts(lane, g->dw, g->dw_dtype, parts.dw, a, parts.rows_each, g->dw_beta, err);
}

extern "C" int nn_cuda_layernorm_backward(struct fsdp_lane *lane,
                                          const struct nn_layernorm_backward *g,
                                          struct fsdp_err *err)
{
    norm_args a = args_of(g, g->b);
    norm_parts parts = {};
    FSDP_TRY(prepare_norm(&a, lane, true, err));
    FSDP_TRY(parts_for(&parts, lane, g->rows, g->dim, g->dw, g->db, err));
    a.mean = (float *)g->mean;
    a.rstd = (float *)g->rstd;
    a.dx_beta = g->dx_beta;
    a.aligned &= is_aligned(g->x) && is_aligned(g->dy) && is_aligned(g->dx);
    LAUNCH_WIDE(g->dtype, g->dim, lane, layernorm_backward_kernel,
                blocks_for((size_t)g->rows, (size_t)parts.rows_each), TO(g->dy), TO(g->dx),
                FROM(g->x), a, parts);
    FSDP_TRY(fsdp_cuda_launched(lane, "layernorm_backward", err));
    FSDP_TRY(sum_parts(lane, g->dw, g->dw_dtype, parts.dw, a, parts.rows_each, g->dw_beta, err));
    return sum_parts(lane, g->db, g->dw_dtype, parts.db, a, parts.rows_each, g->dw_beta, err);
}
