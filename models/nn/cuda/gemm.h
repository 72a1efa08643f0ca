/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.h: matrix products on CUDA. Private to models/nn/cuda. */
#ifndef NN_CUDA_GEMM_H
#define NN_CUDA_GEMM_H

#include "nn/product.h"
#include "nn_cuda.h"

/* A product of any mix of F32 with one 16-bit type: what cuBLASLt has not is made of what it has.
 */
int gemm(struct fsdp_lane *lane, const struct nn_product *g, struct fsdp_err *err);

/* ---- below, one call of the library ------------------------------------------------------------
 * a and b have one type, c has it or F32, bias has c's. */
int gemm_lt(struct fsdp_lane *lane, const struct nn_product *g, struct fsdp_err *err);

#endif
