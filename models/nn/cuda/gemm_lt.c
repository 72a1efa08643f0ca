/* SPDX-License-Identifier: Apache-2.0 */
/* One product through cuBLASLt: descriptors and algorithm are made once for each shape. */
#include <pthread.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "gemm_lt.h"

enum { MOST_DEVICES = 64, BUCKETS = 1024, ALIGNMENT = 16 };

struct node {
    struct gemm_plan plan;
    struct node *next; /* of its bucket */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cublasLtHandle_t handles[MOST_DEVICES];
static struct node *buckets[BUCKETS];
static struct gemm_plan *all;

struct gemm_plan *gemm_plans(void)
{
    return all;
}

void gemm_lt_lock(void)
{
    pthread_mutex_lock(&lock);
}

void gemm_lt_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

int gemm_lt_check(cublasStatus_t status, const struct nn_product *g, const char *what,
                  struct fsdp_err *err)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return FSDP_OK;
    return fsdp_err_set(
        err, status == CUBLAS_STATUS_NOT_SUPPORTED ? FSDP_EUNSUPPORTED : FSDP_EINTERNAL,
        "product %d x %d x %d of %s to %s: %s: %s", g->m, g->n, g->k, fsdp_dtype_name(g->a.dtype),
        fsdp_dtype_name(g->c_dtype), what, cublasLtGetStatusString(status));
}

static cudaDataType_t type_of(enum fsdp_dtype dtype)
{
    switch (dtype) {
    case FSDP_F32:
        return CUDA_R_32F;
    case FSDP_BF16:
        return CUDA_R_16BF;
    case FSDP_F8_E4M3:
        return CUDA_R_8F_E4M3;
    case FSDP_F8_E5M2:
        return CUDA_R_8F_E5M2;
    default:
        return CUDA_R_16F;
    }
}

static uint8_t alignment_of(const void *ptr)
{
    const uintptr_t low = (uintptr_t)ptr & (ALIGNMENT - 1);
    return (uint8_t)(low ? low & -low : ALIGNMENT);
}

static struct gemm_key key_of(const struct nn_product *g, int ordinal)
{
    const bool batch = gemm_is_batch(g);
    return (struct gemm_key){.a_step = batch ? g->a_step : 0,
                             .b_step = batch ? g->b_step : 0,
                             .c_step = batch ? g->c_step : 0,
                             .bias_step = batch ? g->bias_step : 0,
                             .count = batch ? g->count : 0,
                             .ordinal = ordinal,
                             .m = g->m,
                             .n = g->n,
                             .k = g->k,
                             .a_ld = g->a.ld,
                             .b_ld = g->b.ld,
                             .c_ld = g->ldc,
                             .a_transposed = g->a.transposed,
                             .b_transposed = g->b.transposed,
                             .dtype = (uint8_t)g->a.dtype,
                             .c_dtype = (uint8_t)g->c_dtype,
                             .biased = g->bias != NULL,
                             .adds = g->beta != 0.0f,
                             .a_align = alignment_of(g->a.at),
                             .b_align = alignment_of(g->b.at),
                             .c_align = alignment_of(g->c),
                             .bias_align = g->bias ? alignment_of(g->bias) : 0,
                             .f8_b = g->a_scale ? (uint8_t)g->b.dtype : 0,
                             .scales = g->a_scale ? (uint8_t)g->f8_scale : 0,
                             .epilogue = (uint8_t)g->epilogue,
                             .aux_align = g->epilogue ? alignment_of(g->aux) : 0};
}

/* ---- making a plan --------------------------------------------------------------------------- */

/* Our matrix of rows x cols, row-major, is the library's of cols x rows. */
static cublasStatus_t layout(cublasLtMatrixLayout_t *out, enum fsdp_dtype dtype, int rows, int cols,
                             int ld)
{
    return cublasLtMatrixLayoutCreate(out, type_of(dtype), (uint64_t)cols, (uint64_t)rows, ld);
}

static cublasStatus_t operand(cublasLtMatrixLayout_t *out, const struct nn_matrix *x, int rows,
                              int cols)
{
    return layout(out, x->dtype, x->transposed ? cols : rows, x->transposed ? rows : cols, x->ld);
}

static cublasStatus_t set_attribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t what,
                                    const void *value, size_t nbytes)
{
    return cublasLtMatmulDescSetAttribute(desc, what, value, nbytes);
}

/* Modes of scales are of cuBLASLt 12.9. */
#if CUBLAS_VERSION >= 120900
enum { SCALES_VERSION = 120900 };

bool gemm_lt_has_scales(void)
{
    return cublasLtGetVersion() >= SCALES_VERSION;
}

static cublasStatus_t set_scale_modes(cublasLtMatmulDesc_t desc, const struct nn_product *g)
{
    const int32_t mode = g->f8_scale == NN_F8_ROW ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                  : CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;

    if (!g->a_scale || g->f8_scale == NN_F8_TENSOR)
        return s;
    s = set_attribute(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode);
    return s ? s : set_attribute(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode);
}
#else
bool gemm_lt_has_scales(void)
{
    return false;
}

static cublasStatus_t set_scale_modes(cublasLtMatmulDesc_t desc, const struct nn_product *g)
{
    (void)desc, (void)g;
    return CUBLAS_STATUS_SUCCESS;
}
#endif

/* The library's first operand is our second. Sums are fp32 throughout: without FAST_ACCUM, which
 * cuts those of 8-bit tensor cores to 14 bits. */
static cublasStatus_t set_scales(cublasLtMatmulDesc_t desc, const struct nn_product *g)
{
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
    if (!g->a_scale)
        return s;
    s = set_attribute(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->b_scale, sizeof g->b_scale);
    return s ? s
             : set_attribute(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &g->a_scale,
                             sizeof g->a_scale);
}

/* The library's first operand is our second. */
static cublasLtEpilogue_t epilogue_of(const struct nn_product *g)
{
    switch (g->epilogue) {
    case NN_GELU_OF_SUM:
        return g->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case NN_GELU_GRADIENT:
        return CUBLASLT_EPILOGUE_DGELU;
    case NN_SUMS_OF_A:
        return CUBLASLT_EPILOGUE_BGRADB;
    case NN_SUMS_OF_B:
        return CUBLASLT_EPILOGUE_BGRADA;
    case NN_NO_EPILOGUE:
        break;
    }
    return g->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/* Of a matrix of a batch. */
static cublasStatus_t set_batch(cublasLtMatrixLayout_t x, const struct nn_product *g, size_t step)
{
    const int32_t count = g->count;
    const int64_t offset = (int64_t)step;
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;

    if (!gemm_is_batch(g))
        return s;
    s = cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                         sizeof count);
    return s ? s
             : cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                &offset, sizeof offset);
}

/* Where the epilogue reads and writes. By these the library knows how they are aligned, too. */
static cublasStatus_t set_pointers(cublasLtMatmulDesc_t desc, const struct nn_product *g)
{
    const bool sums = g->epilogue == NN_SUMS_OF_A || g->epilogue == NN_SUMS_OF_B;
    const void *const bias = sums ? g->aux : g->bias;
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;

    if (bias)
        s = set_attribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    if (g->epilogue && !sums && !s)
        s = set_attribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &g->aux, sizeof g->aux);
    return s;
}

static cublasStatus_t set_epilogue(cublasLtMatmulDesc_t desc, const struct nn_product *g)
{
    const cublasLtEpilogue_t epilogue = epilogue_of(g);
    const int64_t ld = g->n, bias_step = (int64_t)g->bias_step;
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;

    if (epilogue == CUBLASLT_EPILOGUE_DEFAULT)
        return s;
    s = set_attribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (!s && (g->epilogue == NN_GELU_OF_SUM || g->epilogue == NN_GELU_GRADIENT))
        s = set_attribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld);
    if (!s && gemm_is_batch(g))
        s = set_attribute(desc, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, &bias_step,
                          sizeof bias_step);
    return s ? s : set_pointers(desc, g);
}

static cublasStatus_t describe_gemm(struct gemm_plan *p, const struct nn_product *g)
{
    const cublasOperation_t op_a = g->a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = g->b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t s = cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    s = s ? s : set_attribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof op_b);
    s = s ? s : set_attribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof op_a);
    s = s ? s : set_epilogue(p->desc, g);
    s = s ? s : set_scale_modes(p->desc, g);
    s = s ? s : set_scales(p->desc, g);
    s = s ? s : operand(&p->b, &g->b, g->k, g->n);
    s = s ? s : operand(&p->a, &g->a, g->m, g->k);
    s = s ? s : layout(&p->c, g->c_dtype, g->m, g->n, g->ldc);
    s = s ? s : set_batch(p->a, g, g->a_step);
    s = s ? s : set_batch(p->b, g, g->b_step);
    return s ? s : set_batch(p->c, g, g->c_step);
}

static void undescribe(struct gemm_plan *p)
{
    if (p->desc)
        cublasLtMatmulDescDestroy(p->desc);
    if (p->a)
        cublasLtMatrixLayoutDestroy(p->a);
    if (p->b)
        cublasLtMatrixLayoutDestroy(p->b);
    if (p->c)
        cublasLtMatrixLayoutDestroy(p->c);
    p->desc = NULL;
    p->a = p->b = p->c = NULL;
}

static cublasStatus_t prefer(cublasLtMatmulPreference_t pref, const struct gemm_key *key)
{
    static const cublasLtMatmulPreferenceAttributes_t what[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    /* The library's first operand is our second; of the bias it is not told, but of what the bias
     * goes to. */
    const uint32_t d_align =
        key->biased && key->bias_align < key->c_align ? key->bias_align : key->c_align;
    const uint32_t alignment[] = {key->b_align, key->a_align, key->c_align, d_align};
    const size_t workspace = NN_CUDA_SCRATCH_NBYTES;
    /* Where a sum is split, its parts are added in fp32 before they are rounded: by default the
     * library may add them in the type of the output. */
    const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasStatus_t s = cublasLtMatmulPreferenceSetAttribute(
        pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    s = s ? s
          : cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                 &reduction, sizeof reduction);
    for (int i = 0; i < 4 && !s; i++)
        s = cublasLtMatmulPreferenceSetAttribute(pref, what[i], &alignment[i], sizeof alignment[i]);
    return s;
}

int gemm_plan_proposals(cublasLtMatmulHeuristicResult_t *out, int *nout, int most,
                        const struct gemm_plan *p, cublasLtHandle_t handle, struct fsdp_err *err)
{
    const struct nn_product what = {.m = p->key.m,
                                    .n = p->key.n,
                                    .k = p->key.k,
                                    .a = {.dtype = (enum fsdp_dtype)p->key.dtype},
                                    .c_dtype = (enum fsdp_dtype)p->key.c_dtype};
    cublasLtMatmulPreference_t pref = NULL;
    cublasStatus_t s = cublasLtMatmulPreferenceCreate(&pref);

    *nout = 0;
    s = s ? s : prefer(pref, &p->key);
    s = s ? s
          : cublasLtMatmulAlgoGetHeuristic(handle, p->desc, p->b, p->a, p->c, p->c, pref, most, out,
                                           nout);
    if (pref)
        cublasLtMatmulPreferenceDestroy(pref);
    int nvalid = 0;
    for (int i = 0; i < *nout; i++)
        if (out[i].state == CUBLAS_STATUS_SUCCESS)
            out[nvalid++] = out[i];
    *nout = nvalid;
    return gemm_lt_check(s || nvalid ? s : CUBLAS_STATUS_NOT_SUPPORTED, &what,
                         "asking cuBLASLt for algorithms", err);
}

static int handle_of(cublasLtHandle_t *out, int ordinal, const struct nn_product *g,
                     struct fsdp_err *err)
{
    if (ordinal >= MOST_DEVICES)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "GPU %d: at most %d in a process", ordinal,
                            MOST_DEVICES);
    if (!handles[ordinal])
        FSDP_TRY(gemm_lt_check(cublasLtCreate(&handles[ordinal]), g, "opening cuBLASLt", err));
    *out = handles[ordinal];
    return FSDP_OK;
}

static int make_plan(struct gemm_plan *p, cublasLtHandle_t handle, const struct nn_product *g,
                     struct fsdp_err *err)
{
    cublasLtMatmulHeuristicResult_t first;
    int nfound, rc = gemm_lt_check(describe_gemm(p, g), g, "describing it to cuBLASLt", err);

    if (!rc)
        rc = gemm_plan_proposals(&first, &nfound, 1, p, handle, err);
    if (rc)
        undescribe(p);
    else
        p->algo = first.algo;
    return rc;
}

int gemm_plan(struct gemm_plan **out, cublasLtHandle_t *handle, struct fsdp_lane *lane,
              const struct nn_product *g, struct fsdp_err *err)
{
    const struct gemm_key key = key_of(g, fsdp_cuda_ordinal(lane));
    struct node **bucket = &buckets[fsdp_hash(FSDP_HASH_SEED, &key, sizeof key) % BUCKETS], *node;

    FSDP_TRY(handle_of(handle, key.ordinal, g, err));
    for (node = *bucket; node; node = node->next)
        if (!memcmp(&node->plan.key, &key, sizeof key)) {
            *out = &node->plan;
            return FSDP_OK;
        }
    if (!(node = fsdp_alloc(1, sizeof *node, "plan of a product", err)))
        return FSDP_ENOMEM;
    node->plan.key = key;
    int rc = make_plan(&node->plan, *handle, g, err);
    node->plan.refused = rc == FSDP_EUNSUPPORTED && (g->epilogue || gemm_is_batch(g) || key.scales);
    if (rc && !node->plan.refused) {
        fsdp_free(node);
        return rc;
    }
    node->next = *bucket;
    *bucket = node;
    *out = &node->plan;
    if (node->plan.refused) /* asked once */
        return FSDP_OK;
    node->plan.next = all;
    all = &node->plan;
    return FSDP_OK;
}

/* ---- running it ------------------------------------------------------------------------------ */

int gemm_plan_run(const struct gemm_plan *p, cublasLtHandle_t handle, struct fsdp_lane *lane,
                  const struct nn_product *g, void *workspace, const cublasLtMatmulAlgo_t *algo,
                  struct fsdp_err *err)
{
    const float alpha = 1;
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;

    s = set_pointers(p->desc, g);
    s = s ? s : set_scales(p->desc, g);
    s = s ? s
          : cublasLtMatmul(handle, p->desc, &alpha, g->b.at, p->b, g->a.at, p->a, &g->beta, g->c,
                           p->c, g->c, p->c, algo, workspace, NN_CUDA_SCRATCH_NBYTES,
                           (cudaStream_t)fsdp_lane_native(lane));
    return gemm_lt_check(s, g, "cuBLASLt", err);
}

int gemm_lt_in_one(struct fsdp_lane *lane, const struct nn_product *g, bool *done,
                   struct fsdp_err *err)
{
    struct gemm_plan *plan;
    cublasLtHandle_t handle;
    void *workspace;

    *done = false;
    FSDP_TRY(nn_cuda_scratch(&workspace, lane, err));
    gemm_lt_lock();
    int rc = gemm_plan(&plan, &handle, lane, g, err);
    if (!rc && !plan->refused) {
        *done = true;
        plan->last = *g;
        plan->lane = g->passing ? plan->lane : lane;
        rc = gemm_plan_run(plan, handle, lane, g, workspace, &plan->algo, err);
    }
    gemm_lt_unlock();
    return rc || !*done ? rc : fsdp_cuda_launched(lane, "product", err);
}

int gemm_lt_takes(bool *out, struct fsdp_lane *lane, const struct nn_product *g,
                  struct fsdp_err *err)
{
    struct gemm_plan *plan;
    cublasLtHandle_t handle;

    *out = false;
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    gemm_lt_lock();
    const int rc = gemm_plan(&plan, &handle, lane, g, err);
    if (!rc)
        *out = !plan->refused;
    gemm_lt_unlock();
    return rc;
}

int gemm_lt(struct fsdp_lane *lane, const struct nn_product *g, struct fsdp_err *err)
{
    bool done;
    return gemm_lt_in_one(lane, g, &done, err);
}
