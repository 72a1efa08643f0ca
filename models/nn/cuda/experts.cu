/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: rows to their experts and back. */
#include "kernel.cuh"

enum { THREADS = 256, PLACES_EACH = 4 };

/* Eight elements of a row of `dim`: which row, and from which on. */
struct lot_of_row {
    size_t row, col;
};
static __device__ inline lot_of_row my_lot(int dim)
{
    const size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const size_t each = ((size_t)dim + VEC - 1) / VEC;
    return (lot_of_row){at / each, at % each * VEC};
}

static unsigned grid_for(size_t nrows, int dim)
{
    return blocks_for(nrows * (((size_t)dim + VEC - 1) / VEC), THREADS);
}

/* ---- there ----------------------------------------------------------------------------------- */

template <class T>
__global__ void spread_kernel(T *out, const T *x, const float *weight, const int32_t *slot,
                              size_t nplaces, int chosen, int dim, bool aligned)
{
    const lot_of_row lot = my_lot(dim);
    const size_t n = (size_t)dim;
    float v[VEC];
    if (lot.row >= nplaces)
        return;
    const int s = slot[lot.row];
    load8(v, x + (size_t)(s / chosen) * n, lot.col, n, aligned);
    const float w = weight ? weight[s] : 1.0f;
#pragma unroll
    for (int i = 0; i < VEC; i++)
        v[i] *= w;
    store8(out + lot.row * n, lot.col, n, aligned, v);
}

extern "C" int nn_cuda_spread_rows(struct fsdp_lane *lane, const struct nn_spread_rows *a,
                                   struct fsdp_err *err)
{
    const size_t nplaces = (size_t)a->rows * (size_t)a->chosen;
    const bool aligned = a->dim % VEC == 0 && is_aligned(a->out) && is_aligned(a->x);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, spread_kernel, grid_for(nplaces, a->dim), THREADS, TO(a->out),
               FROM(a->x), a->weight, a->slot, nplaces, a->chosen, a->dim, aligned);
    return fsdp_cuda_launched(lane, "spread_rows", err);
}

/* ---- and back -------------------------------------------------------------------------------- */

template <class T>
__global__ void collect_kernel(T *out, const T *x, const float *weight, const int32_t *place,
                               int rows, int chosen, int dim, float beta, bool aligned)
{
    const lot_of_row lot = my_lot(dim);
    const size_t n = (size_t)dim, first = lot.row * (size_t)chosen;
    float sum[VEC] = {}, v[VEC];
    if (lot.row >= (size_t)rows)
        return;
    if (beta != 0.0f) {
        load8(sum, out + lot.row * n, lot.col, n, aligned);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            sum[i] *= beta;
    }
    for (size_t s = first; s < first + (size_t)chosen; s++) {
        const float w = weight ? weight[s] : 1.0f;
        load8(v, x + (size_t)place[s] * n, lot.col, n, aligned);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            sum[i] += w * v[i];
    }
    store8(out + lot.row * n, lot.col, n, aligned, sum);
}

extern "C" int nn_cuda_collect_rows(struct fsdp_lane *lane, const struct nn_collect_rows *a,
                                    struct fsdp_err *err)
{
    const bool aligned = a->dim % VEC == 0 && is_aligned(a->out) && is_aligned(a->x);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, collect_kernel, grid_for((size_t)a->rows, a->dim), THREADS,
               TO(a->out), FROM(a->x), a->weight, a->place, a->rows, a->chosen, a->dim, a->beta,
               aligned);
    return fsdp_cuda_launched(lane, "collect_rows", err);
}

/* ---- the gradient of weights: a warp a place ------------------------------------------------- */

template <class T>
__global__ void weigh_kernel(T *dy, const T *y, float *dweight, const float *weight,
                             const int32_t *slot, int nplaces, int dim, bool aligned)
{
    const int place = (int)(blockIdx.x * PLACES_EACH + threadIdx.x / WARP);
    const size_t n = (size_t)dim;
    float v[VEC], w[VEC], sum = 0;
    if (place >= nplaces)
        return;
    const int s = slot[place];
    const float factor = weight[s];
    dy += (size_t)place * n;
    y += (size_t)place * n;
    for (size_t col = threadIdx.x % WARP * VEC; col < n; col += WARP * VEC) {
        load8(v, dy, col, n, aligned);
        load8(w, y, col, n, aligned);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            sum += v[i] * w[i];
            v[i] *= factor;
        }
        store8(dy, col, n, aligned, v);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        dweight[s] = sum;
}

extern "C" int nn_cuda_weigh_backward(struct fsdp_lane *lane, const struct nn_weigh_backward *a,
                                      struct fsdp_err *err)
{
    const bool aligned = a->dim % VEC == 0 && is_aligned(a->dy) && is_aligned(a->y);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, weigh_kernel, blocks_for((size_t)a->nplaces, PLACES_EACH),
               PLACES_EACH * WARP, TO(a->dy), FROM(a->y), a->dweight, a->weight, a->slot,
               a->nplaces, a->dim, aligned);
    return fsdp_cuda_launched(lane, "weigh_backward", err);
}
