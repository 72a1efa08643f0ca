/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.h: matrix products on CUDA. Private to models/nn/cuda. */
#ifndef NN_CUDA_GEMM_H
#define NN_CUDA_GEMM_H

#include "nn/product.h"
#include "nn_cuda.h"

/* A product of any mix of F32 with one 16-bit type: what cuBLASLt has not is made of what it has.
 */
int gemm(struct fsdp_lane *lane, const struct nn_product *g, struct fsdp_err *err);

/* A product with an epilogue, or several products, in one call of the library. *done false: it has
 * none for them, or none is wanted, and nothing was enqueued but operands that are codes. */
int gemm_in_one(struct fsdp_lane *lane, const struct nn_product *g, bool *done,
                struct fsdp_err *err);

/* Of a product in 8 bits: makes its operands, and *out, the product of them: of codes, with scales,
 * where the GPU and the library have it, else in bf16. A bias that *out lacks is to be added. */
int nn_cuda_f8_operands(struct nn_product *out, struct fsdp_lane *lane, const struct nn_product *g,
                        struct fsdp_err *err);

/* The same of several products whose matrices b share a scale. *ready false: the
 * operands cannot be codes, or the library has no call for all of them, and nothing was made. */
int nn_cuda_f8_maps(struct nn_product *out, bool *ready, struct fsdp_lane *lane,
                    const struct nn_product *g, struct fsdp_err *err);

/* Products of experts in 8 bits, of `out` alone. first: (experts + 1) of the host; NULL: experts
 * have so few rows each that one launch takes all of them. */
int nn_cuda_grouped_f8(struct fsdp_lane *lane, const struct nn_grouped *a, enum nn_way way,
                       const int32_t *first, struct fsdp_err *err);

/* Does the library know scales of rows and of blocks? */
bool gemm_lt_has_scales(void);
/* Of a product of codes with such scales: has the library an algorithm for it on this GPU? */
int gemm_lt_takes(bool *out, struct fsdp_lane *lane, const struct nn_product *g,
                  struct fsdp_err *err);

/* ---- below, one call of the library ------------------------------------------------------------
 * a and b have one type, c has it or F32, bias has c's. Or a and b are codes of 8 bits, as they are
 * on sm_89 and sm_90: both lie along what is summed (a as it is, b transposed), all sizes are
 * multiples of NN_CUDA_F8_ALIGN (what is summed, with scales of blocks, of NN_F8_BLOCK_NELEM), not
 * both are E5M2, and there is no bias if c is F32. */
int gemm_lt(struct fsdp_lane *lane, const struct nn_product *g, struct fsdp_err *err);
/* The same with an epilogue, or of several products, of 16-bit operands. *done false: the library
 * has no algorithm for it, or it is slower than what it replaces. */
int gemm_lt_in_one(struct fsdp_lane *lane, const struct nn_product *g, bool *done,
                   struct fsdp_err *err);

#endif
