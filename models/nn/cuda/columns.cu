/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths of the rows of adapted weights, and products of columns with them (DoRA). */
#include "kernel.cuh"

enum { THREADS = 256, OUTPUTS = 4 };

/* ---- lengths of rows --------------------------------------------------------------------------
 *
 * A block takes four rows of w, and its threads share their columns: what a thread loads of A
 * serves all four. Rows are made in fp32, and their squares are summed in an order that follows
 * from nin alone. */

template <class T> __global__ void lengths_kernel(struct nn_lengths a, bool aligned)
{
    __shared__ double room[THREADS / WARP];
    const size_t first = (size_t)blockIdx.x * OUTPUTS, nin = (size_t)a.nin, r = (size_t)a.r;
    const size_t left = (size_t)a.nout - first, nout = min(left, (size_t)OUTPUTS);
    const T *w = (const T *)a.w + first * nin, *b = (const T *)a.b + first * r;
    double sum[OUTPUTS] = {};

    for (size_t col = threadIdx.x * VEC; col < nin; col += THREADS * VEC) {
        float row[OUTPUTS][VEC] = {}, low[VEC];
#pragma unroll
        for (size_t o = 0; o < OUTPUTS; o++)
            if (o < nout)
                load8(row[o], w + o * nin, col, nin, aligned);
        for (size_t k = 0; k < r; k++) {
            load8(low, (const T *)a.a + k * nin, col, nin, aligned);
#pragma unroll
            for (size_t o = 0; o < OUTPUTS; o++) {
                const float factor = o < nout ? a.scale * fsdp_to_float(b[o * r + k]) : 0.0f;
#pragma unroll
                for (int i = 0; i < VEC; i++)
                    row[o][i] += factor * low[i];
            }
        }
#pragma unroll
        for (size_t o = 0; o < OUTPUTS; o++) {
            float part = 0;
#pragma unroll
            for (int i = 0; i < VEC; i++)
                part += row[o][i] * row[o][i];
            sum[o] += part;
        }
    }
#pragma unroll
    for (size_t o = 0; o < OUTPUTS; o++) {
        const double total = block_sum(sum[o], room);
        if (threadIdx.x == 0 && o < nout)
            a.length[first + o] = (float)sqrt(total);
    }
}

/* The same of w (nin, nout): a warp has 32 columns of it side by side, and every eighth row. */
template <class T> __global__ void column_lengths_kernel(struct nn_lengths a)
{
    enum { GROUPS = THREADS / WARP };
    __shared__ double sums[GROUPS][WARP];
    const int group = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const size_t o = (size_t)blockIdx.x * WARP + (size_t)lane, nin = (size_t)a.nin;
    const size_t nout = (size_t)a.nout, r = (size_t)a.r;
    double sum = 0;

    for (size_t i = (size_t)group; i < nin && o < nout; i += GROUPS) {
        float x = fsdp_to_float(((const T *)a.w)[i * (size_t)a.ldw + o]);
        for (size_t k = 0; k < r; k++)
            x += a.scale * fsdp_to_float(((const T *)a.b)[o * r + k]) *
                 fsdp_to_float(((const T *)a.a)[k * nin + i]);
        sum += (double)x * (double)x;
    }
    sums[group][lane] = sum;
    __syncthreads();
    if (group || o >= nout)
        return;
    for (int g = 1; g < GROUPS; g++)
        sum += sums[g][lane];
    a.length[o] = (float)sqrt(sum);
}

extern "C" int nn_cuda_lengths(struct fsdp_lane *lane, const struct nn_lengths *a,
                               struct fsdp_err *err)
{
    const bool aligned = a->nin % VEC == 0 && is_aligned(a->w) && is_aligned(a->a);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    if (a->ldw)
        LAUNCH_FOR(a->dtype, lane, column_lengths_kernel, blocks_for((size_t)a->nout, WARP),
                   THREADS, *a);
    else
        LAUNCH_FOR(a->dtype, lane, lengths_kernel, blocks_for((size_t)a->nout, OUTPUTS), THREADS,
                   *a, aligned);
    return fsdp_cuda_launched(lane, "lengths", err);
}

/* ---- columns --------------------------------------------------------------------------------- */

template <class T> __global__ void columns_kernel(struct nn_columns a, bool aligned)
{
    const lot_of_row lot = my_lot(a.cols);
    const size_t n = (size_t)a.cols, ld = (size_t)(a.ld ? a.ld : a.cols);
    T *out = (T *)a.out + lot.row * ld;
    float v[VEC], m[VEC], length[VEC], b[VEC] = {}, old[VEC] = {};
    if (lot.row >= (size_t)a.rows)
        return;
    load8(v, (const T *)a.x + lot.row * ld, lot.col, n, aligned);
    load8_any(m, a.magnitude, a.w_dtype, lot.col, n, false);
    load8(length, a.length, lot.col, n, aligned, 1.0f);
    if (a.b)
        load8_any(b, a.b, a.w_dtype, lot.col, n, false);
    if (a.beta != 0.0f)
        load8(old, out, lot.col, n, aligned);
#pragma unroll
    for (int i = 0; i < VEC; i++)
        v[i] = v[i] * (m[i] / length[i]) + (b[i] + a.beta * old[i]);
    store8(out, lot.col, n, aligned, v);
}

extern "C" int nn_cuda_columns_forward(struct fsdp_lane *lane, const struct nn_columns *a,
                                       struct fsdp_err *err)
{
    const bool aligned = nn_columns_ld(a) % VEC == 0 && is_aligned(a->out) && is_aligned(a->x) &&
                         is_aligned(a->length);
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    LAUNCH_FOR(a->dtype, lane, columns_kernel, blocks_for_lots((size_t)a->rows, a->cols, THREADS),
               THREADS, *a, aligned);
    return fsdp_cuda_launched(lane, "columns_forward", err);
}

extern "C" int nn_cuda_columns_backward(struct fsdp_lane *lane, const struct nn_columns *a,
                                        struct fsdp_err *err)
{
    const struct nn_cuda_sum sum = {.out = a->out,
                                    .out_dtype = a->dw_dtype,
                                    .in = a->x,
                                    .in_dtype = a->dtype,
                                    .nrows = a->rows,
                                    .ncols = a->cols,
                                    .ld = nn_columns_ld(a),
                                    .beta = a->beta,
                                    .times = a->dy,
                                    .divisor = a->length,
                                    .first = NULL,
                                    .ngroups = 0};
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    return nn_cuda_sum_rows(lane, &sum, err);
}
