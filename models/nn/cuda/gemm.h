/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.h: matrix products on CUDA. Private to models/nn/cuda. */
#ifndef NN_CUDA_GEMM_H
#define NN_CUDA_GEMM_H

#include "nn_cuda.h"

/* op(x), where x is (rows, cols) of op(x) or its transpose, row-major, rows ld elements apart. */
struct gemm_matrix {
    const void *at;
    int ld;
    bool transposed;
    enum fsdp_dtype dtype;
};

/* c (m, n) = a (m, k) b (k, n) + bias + beta c; bias (n) goes to every row. */
struct gemm {
    int m, n, k;
    struct gemm_matrix a, b;
    void *c;
    int ldc;
    enum fsdp_dtype c_dtype;
    const void *bias; /* NULL: none */
    enum fsdp_dtype bias_dtype;
    float beta;
    float *work;   /* gemm_work_nelem */
    bool is_split; /* work begins with the halves of the F32 matrix, from a product before */
};

/* A product of any mix of F32 with one 16-bit type: what cuBLASLt has not is made of what it has.
 */
int gemm(struct fsdp_lane *lane, const struct gemm *g, struct fsdp_err *err);
/* Elements of g->work; pointers are not read. */
size_t gemm_work_nelem(const struct gemm *g);

/* ---- below, one call of the library ------------------------------------------------------------
 * a and b have one type, c has it or F32, bias has c's. */
int gemm_lt(struct fsdp_lane *lane, const struct gemm *g, struct fsdp_err *err);

#endif
