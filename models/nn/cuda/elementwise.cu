/* SPDX-License-Identifier: Apache-2.0 */
/* One pass over memory, eight elements a thread: scaled additions, copies, dropout, and the ways of
 * fp32 sums and 16-bit numbers into each other that products need. */
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

/* ---- scaled additions ------------------------------------------------------------------------ */

template <class T>
__global__ void scale_add_kernel(T *out, const T *x, size_t nelem, float alpha, float beta,
                                 bool aligned)
{
    const size_t at = my_first();
    float v[VEC], old[VEC] = {};
    if (at >= nelem)
        return;
    load8(v, x, at, nelem, aligned);
    if (beta != 0.0f)
        load8(old, out, at, nelem, aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++)
        v[i] = alpha * v[i] + beta * old[i];
    store8(out, at, nelem, aligned, v);
}

extern "C" int nn_cuda_scale_add(struct fsdp_lane *lane, const struct nn_scale_add *a,
                                 struct fsdp_err *err)
{
    const bool aligned = is_aligned(a->out) && is_aligned(a->x);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, scale_add_kernel, grid_for(a->nelem), THREADS, TO(a->out),
               FROM(a->x), a->nelem, a->alpha, a->beta, aligned);
    return fsdp_cuda_launched(lane, "scale_add", err);
}

/* ---- copies of blocks ------------------------------------------------------------------------ */

/* In units of some elements, of which strides and widths are multiples. */
struct copy_shape {
    size_t nunits; /* of all blocks */
    int nblocks, width;
    size_t out_row, out_block, x_row, x_block;
};

template <class Unit> __global__ void copy_blocks_kernel(Unit *out, const Unit *x, copy_shape p)
{
    const size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= p.nunits)
        return;
    const size_t i = at % (size_t)p.width, block = at / (size_t)p.width;
    const size_t j = block % (size_t)p.nblocks, row = block / (size_t)p.nblocks;
    out[row * p.out_row + j * p.out_block + i] = x[row * p.x_row + j * p.x_block + i];
}

/* The shape in units of so many elements. */
static copy_shape copy_shape_of(const struct nn_copy_blocks *a, int unit)
{
    copy_shape p = {};
    p.nblocks = a->nblocks;
    p.width = a->width / unit;
    p.nunits = (size_t)a->rows * (size_t)a->nblocks * (size_t)p.width;
    p.out_row = (size_t)(a->out_row / unit);
    p.out_block = (size_t)(a->out_block / unit);
    p.x_row = (size_t)(a->x_row / unit);
    p.x_block = (size_t)(a->x_block / unit);
    return p;
}

/* Of copies of 16 bytes: do all blocks begin and end at multiples? A stride that nothing is
 * reached by counts, too. */
static bool copies_lots(const struct nn_copy_blocks *a, int lot_nelem)
{
    const int strides[] = {a->width, a->out_row, a->out_block, a->x_row, a->x_block};
    bool whole = is_aligned(a->out) && is_aligned(a->x);
    for (int i = 0; i < 5; i++)
        whole = whole && strides[i] % lot_nelem == 0;
    return whole;
}

extern "C" int nn_cuda_copy_blocks(struct fsdp_lane *lane, const struct nn_copy_blocks *a,
                                   struct fsdp_err *err)
{
    typedef fsdp_pack<uint32_t, 4> lot_bytes;
    const int lot_nelem = 16 / (int)fsdp_dtype_nbytes(a->dtype);
    const bool lots = copies_lots(a, lot_nelem);
    const copy_shape p = copy_shape_of(a, lots ? lot_nelem : 1);
    const unsigned grid = blocks_for(p.nunits, THREADS);

    if (!p.nunits)
        return FSDP_OK;
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    if (lots)
        LAUNCH(lane, copy_blocks_kernel<lot_bytes>, grid, THREADS, (lot_bytes *)a->out,
               (const lot_bytes *)a->x, p);
    else if (a->dtype == FSDP_F32)
        LAUNCH(lane, copy_blocks_kernel<uint32_t>, grid, THREADS, (uint32_t *)a->out,
               (const uint32_t *)a->x, p);
    else
        LAUNCH(lane, copy_blocks_kernel<uint16_t>, grid, THREADS, (uint16_t *)a->out,
               (const uint16_t *)a->x, p);
    return fsdp_cuda_launched(lane, "copy_blocks", err);
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
                   TO(a->high) + to, TO(a->low) + to, a->to_ld, a->x + (size_t)row * (size_t)a->ld,
                   a->ld, a->ncols);
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
