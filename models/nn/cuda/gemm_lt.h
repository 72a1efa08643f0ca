/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_lt.h: plans of cuBLASLt. */
#ifndef NN_CUDA_GEMM_LT_H
#define NN_CUDA_GEMM_LT_H

#include <cublasLt.h>

#include "gemm.h"

/* What distinguishes one plan from another, all of it in numbers. Alignments are those of pointers,
 * in bytes, at most 16. */
struct gemm_key {
    uint64_t a_step, b_step, c_step, bias_step; /* 0 but in a batch */
    int32_t count;                              /* of a batch; else 0 */
    int32_t ordinal, m, n, k, a_ld, b_ld, c_ld;
    uint8_t a_transposed, b_transposed, dtype, c_dtype, biased, adds;
    uint8_t a_align, b_align, c_align, bias_align;
    uint8_t f8_b; /* type of b where a's is of 8 bits; else 0 */
    uint8_t epilogue, aux_align;
    uint8_t scales;    /* enum nn_f8_scale of operands of 8 bits; else 0 */
    uint8_t unused[2]; /* keys are compared as bytes */
};

/* Descriptors and the algorithm for one key. cuBLASLt is column-major, so its product is the
 * transpose of ours: c' = b' a'. */
struct gemm_plan {
    struct gemm_key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    bool refused; /* its epilogue, batch or scales: there is no algorithm, or it is slower */
    /* Its last call, for timing; lane NULL: it is not timed. */
    struct nn_product last;
    struct fsdp_lane *lane;
    struct gemm_plan *next; /* of all, in no order */
};

static inline bool gemm_is_batch(const struct nn_product *g)
{
    return g->count > 1;
}

/* The plan for g, made if there is none, with the algorithm that the library names first. Plans are
 * kept for ever; nothing that uses one runs at the same time as another thread's. */
int gemm_plan(struct gemm_plan **out, cublasLtHandle_t *handle, struct fsdp_lane *lane,
              const struct nn_product *g, struct fsdp_err *err);
int gemm_plan_run(const struct gemm_plan *plan, cublasLtHandle_t handle, struct fsdp_lane *lane,
                  const struct nn_product *g, void *workspace, const cublasLtMatmulAlgo_t *algo,
                  struct fsdp_err *err);
/* All plans, under the lock. */
struct gemm_plan *gemm_plans(void);
/* What the library proposes, best first; at least one. */
int gemm_plan_proposals(cublasLtMatmulHeuristicResult_t *out, int *nout, int most,
                        const struct gemm_plan *plan, cublasLtHandle_t handle,
                        struct fsdp_err *err);
int gemm_lt_check(cublasStatus_t status, const struct nn_product *g, const char *what,
                  struct fsdp_err *err);
void gemm_lt_lock(void);
void gemm_lt_unlock(void);

#endif
