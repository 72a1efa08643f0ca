/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: rows to their experts and back. */
#include "store.cuh"

enum { THREADS = 256, PLACES_EACH = 4 };

/* ---- there ----------------------------------------------------------------------------------- */

template <class T> __global__ void spread_kernel(struct nn_spread_rows a, bool aligned)
{
    const lot_of_row lot = my_lot(a.dim);
    const size_t n = (size_t)a.dim;
    float v[VEC];
    if (lot.row >= (size_t)a.rows * (size_t)a.chosen)
        return;
    const int s = a.slot[lot.row];
    load8(v, (const T *)a.x + (size_t)(s / a.chosen) * n, lot.col, n, aligned);
    const float w = a.weight ? a.weight[s] : 1.0f;
#pragma unroll
    for (int i = 0; i < VEC; i++)
        v[i] *= w;
    store8_last((T *)a.out + lot.row * n, lot.col, n, aligned, v);
}

extern "C" int nn_cuda_spread_rows(struct fsdp_lane *lane, const struct nn_spread_rows *a,
                                   struct fsdp_err *err)
{
    const size_t nplaces = (size_t)a->rows * (size_t)a->chosen;
    const bool aligned = a->dim % VEC == 0 && is_aligned(a->out) && is_aligned(a->x);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, spread_kernel, blocks_for_lots(nplaces, a->dim, THREADS), THREADS,
               *a, aligned);
    return fsdp_cuda_launched(lane, "spread_rows", err);
}

/* ---- and back -------------------------------------------------------------------------------- */

template <class T> __global__ void collect_kernel(struct nn_collect_rows a, bool aligned)
{
    const lot_of_row lot = my_lot(a.dim);
    const size_t n = (size_t)a.dim, first = lot.row * (size_t)a.chosen;
    T *out = (T *)a.out + lot.row * n;
    float sum[VEC] = {}, v[VEC];
    if (lot.row >= (size_t)a.rows)
        return;
    if (a.beta != 0.0f) {
        load8(sum, out, lot.col, n, aligned);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            sum[i] *= a.beta;
    }
    for (size_t s = first; s < first + (size_t)a.chosen; s++) {
        const float w = a.weight ? a.weight[s] : 1.0f;
        load8(v, (const T *)a.x + (size_t)a.place[s] * n, lot.col, n, aligned);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            sum[i] += w * v[i];
    }
    store8(out, lot.col, n, aligned, sum);
}

extern "C" int nn_cuda_collect_rows(struct fsdp_lane *lane, const struct nn_collect_rows *a,
                                    struct fsdp_err *err)
{
    const bool aligned = a->dim % VEC == 0 && is_aligned(a->out) && is_aligned(a->x);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, collect_kernel, blocks_for_lots((size_t)a->rows, a->dim, THREADS),
               THREADS, *a, aligned);
    return fsdp_cuda_launched(lane, "collect_rows", err);
}

/* ---- the gradient of weights: a warp a place ------------------------------------------------- */

/* A lane's part of the product of an expert's bias with the gradient of a place. */
template <class T>
static __device__ inline float bias_product(const struct nn_weigh_backward &a, size_t place,
                                            size_t expert)
{
    const size_t n = (size_t)a.nout;
    const T *d = (const T *)a.d_out + place * n;
    float sum = 0;
    for (size_t col = threadIdx.x % WARP; col < n; col += WARP)
        sum += fsdp_to_float(d[col]) * load_any(a.b, a.w_dtype, expert * n + col);
    return sum;
}

template <class T> __global__ void weigh_kernel(struct nn_weigh_backward a, bool aligned)
{
    const int place = (int)(blockIdx.x * PLACES_EACH + threadIdx.x / WARP);
    const size_t n = (size_t)a.dim;
    float v[VEC], w[VEC], sum = 0;
    if (place >= a.nplaces)
        return;
    const int s = a.slot[place];
    const float factor = a.weight[s];
    T *dy = (T *)a.dy + (size_t)place * n;
    const T *y = (const T *)a.y + (size_t)place * n;
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
    if (a.b)
        sum += bias_product<T>(a, (size_t)place, (size_t)a.expert[s]);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        a.dweight[s] = sum;
}

extern "C" int nn_cuda_weigh_backward(struct fsdp_lane *lane, const struct nn_weigh_backward *a,
                                      struct fsdp_err *err)
{
    const bool aligned = a->dim % VEC == 0 && is_aligned(a->dy) && is_aligned(a->y);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, weigh_kernel, blocks_for((size_t)a->nplaces, PLACES_EACH),
               PLACES_EACH * WARP, *a, aligned);
    return fsdp_cuda_launched(lane, "weigh_backward", err);
}
