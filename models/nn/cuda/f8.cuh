/* SPDX-License-Identifier: Apache-2.0 */
/* f8.cuh: what the kernels that make operands of products in 8 bits share. */
#ifndef NN_CUDA_F8_H
#define NN_CUDA_F8_H

#include "store.cuh"
#include "nn/f8.h"

enum { THREADS = 256, TILE = 64, CODES = 16 /* that are written as one */ };

typedef fsdp_pack<uint8_t, CODES> codes;

struct matrix {
    size_t ld;
    int nrows, ncols;
    bool aligned;
};

static inline matrix matrix_of(const struct nn_cuda_f8 *a)
{
    const size_t row = (size_t)a->ld * fsdp_dtype_nbytes(a->dtype);
    return (matrix){(size_t)a->ld, a->nrows, a->ncols, is_aligned(a->x) && row % 16 == 0};
}

/* Eight elements of a row; those beyond it are zeros. */
template <class T>
static __device__ inline void load_lot(float out[VEC], const T *x, const matrix &m, size_t row,
                                       size_t col)
{
    const size_t begin = row * m.ld;
    load8(out, x, begin + col, begin + (size_t)m.ncols, m.aligned);
}

static __device__ inline void encode8(uint8_t out[VEC], const float v[VEC], enum fsdp_dtype f8,
                                      float inverse)
{
#pragma unroll
    for (int i = 0; i < VEC; i++)
        out[i] = nn_f8_code(f8, nn_f8_round(nn_f8_type(f8), v[i] * inverse));
}

/* The greatest of what a warp's threads have. */
static __device__ inline uint32_t warp_max(uint32_t x)
{
#pragma unroll
    for (int lane = WARP / 2; lane > 0; lane /= 2)
        x = max(x, __shfl_xor_sync(FULL_MASK, x, lane));
    return x;
}

#endif
