/* SPDX-License-Identifier: Apache-2.0 */
/* mma.h: products of tensor cores for tests/simt. The first lane of a warp holds and computes all
 * of a fragment; every lane must come to every call, and pointers must be aligned as on a GPU. */
#ifndef SIMT_MMA_H
#define SIMT_MMA_H

#include <cstdio>
#include <cstdlib>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_runtime.h"

namespace nvcuda
{
namespace wmma
{

struct matrix_a {
};
struct matrix_b {
};
struct accumulator {
};
struct row_major {
};
struct col_major {
};
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K, class T, class Order = void> struct fragment {
    float at[16][16];
};

static inline float simt_mma_value(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
static inline float simt_mma_value(__half x)
{
    return __half2float(x);
}

/* All lanes are there; does this one work? */
static inline bool simt_mma_begin(const void *at, unsigned ld_nbytes)
{
    if ((uintptr_t)at % 32 || ld_nbytes % 16) {
        fprintf(stderr, "simt: a fragment in memory that is not aligned\n");
        abort();
    }
    simt_warp_barrier(0xffffffffu);
    return simt_lane() == 0;
}

template <class Use> static inline void fill_fragment(Use &x, float value)
{
    for (auto &row : x.at)
        for (float &element : row)
            element = value;
}

template <class Use, class T, class Order>
static inline void load_matrix_sync(fragment<Use, 16, 16, 16, T, Order> &x, const T *at,
                                    unsigned ld)
{
    const bool by_rows = std::is_same<Order, row_major>::value;
    if (!simt_mma_begin(at, ld * (unsigned)sizeof(T)))
        return;
    for (unsigned i = 0; i < 16; i++)
        for (unsigned j = 0; j < 16; j++)
            x.at[i][j] = simt_mma_value(by_rows ? at[i * ld + j] : at[j * ld + i]);
}

template <class T, class A, class B>
static inline void mma_sync(fragment<accumulator, 16, 16, 16, float> &d,
                            const fragment<matrix_a, 16, 16, 16, T, A> &a,
                            const fragment<matrix_b, 16, 16, 16, T, B> &b,
                            const fragment<accumulator, 16, 16, 16, float> &c)
{
    if (!simt_mma_begin(nullptr, 0))
        return;
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            float sum = c.at[i][j];
            for (int k = 0; k < 16; k++)
                sum += a.at[i][k] * b.at[k][j];
            d.at[i][j] = sum;
        }
}

static inline void store_matrix_sync(float *at, const fragment<accumulator, 16, 16, 16, float> &x,
                                     unsigned ld, layout_t order)
{
    if (!simt_mma_begin(at, ld * (unsigned)sizeof(float)))
        return;
    for (unsigned i = 0; i < 16; i++)
        for (unsigned j = 0; j < 16; j++)
            at[order == mem_row_major ? i * ld + j : j * ld + i] = x.at[i][j];
}

} // namespace wmma
} // namespace nvcuda

#endif
