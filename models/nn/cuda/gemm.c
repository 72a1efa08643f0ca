/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of mixed types, in terms of those that cuBLASLt has.
 *
 * F32 by a 16-bit type: the F32 matrix is taken as the sum of two 16-bit ones, high + low, which
 * has 16 bits of bf16 and 22 of fp16; two products on tensor cores are faster than one in fp32. Two
 * products of one F32 matrix can share the halves, which lie alike whether it is transposed. An
 * output that cuBLASLt cannot give is made in F32 and converted.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gemm.h"

/* ---- dimensions that are no multiple of 16 bytes --------------------------------------------- */

/* Tensor cores are fed in pieces of 16 bytes. Where a matrix has rows that start at such multiples
 * but do not end at one, the library has slow algorithms alone; a vocabulary of 50257 is the usual
 * case. From LARGE on, the last few columns are a product of their own. */
enum { PIECE = 8, LARGE = 4096 };

static bool is_ragged(int n, int ld)
{
    return n >= LARGE && n % PIECE && ld % PIECE == 0;
}

static void *behind(const void *at, enum fsdp_dtype dtype, size_t nelem)
{
    return nn_at((void *)(uintptr_t)at, dtype, nelem);
}

/* op(x) without its first n rows, or columns. */
static void skip_rows(struct nn_matrix *x, int n)
{
    x->at = behind(x->at, x->dtype, (size_t)n * (x->transposed ? 1 : (size_t)x->ld));
}
static void skip_columns(struct nn_matrix *x, int n)
{
    x->at = behind(x->at, x->dtype, (size_t)n * (x->transposed ? (size_t)x->ld : 1));
}

static int cut_m(struct fsdp_lane *lane, const struct nn_product *g, struct fsdp_err *err)
{
    struct nn_product most = *g, rest = *g;

    rest.m = g->m % PIECE;
    most.m = g->m - rest.m;
    skip_rows(&rest.a, most.m);
    rest.c = behind(g->c, g->c_dtype, (size_t)most.m * (size_t)g->ldc);
    FSDP_TRY(gemm_lt(lane, &most, err));
    return gemm_lt(lane, &rest, err);
}

static int cut_n(struct fsdp_lane *lane, const struct nn_product *g, struct fsdp_err *err)
{
    struct nn_product most = *g, rest = *g;

    rest.n = g->n % PIECE;
    most.n = g->n - rest.n;
    skip_columns(&rest.b, most.n);
    rest.c = behind(g->c, g->c_dtype, (size_t)most.n);
    if (g->bias)
        rest.bias = behind(g->bias, g->bias_dtype, (size_t)most.n);
    FSDP_TRY(gemm_lt(lane, &most, err));
    return gemm_lt(lane, &rest, err);
}

/* The small part first, so that the large one is rounded with it. */
static int cut_k(struct fsdp_lane *lane, const struct nn_product *g, struct fsdp_err *err)
{
    struct nn_product most = *g, rest = *g;

    rest.k = g->k % PIECE;
    most.k = g->k - rest.k;
    skip_columns(&rest.a, most.k);
    skip_rows(&rest.b, most.k);
    rest.bias = NULL;
    most.beta = 1;
    FSDP_TRY(gemm_lt(lane, &rest, err));
    return gemm_lt(lane, &most, err);
}

static int one_type(struct fsdp_lane *lane, const struct nn_product *g, struct fsdp_err *err)
{
    if (g->a.dtype == FSDP_F32)
        return gemm_lt(lane, g, err);
    if (g->a.transposed && is_ragged(g->m, g->a.ld))
        return cut_m(lane, g, err);
    if (is_ragged(g->n, g->ldc))
        return cut_n(lane, g, err);
    if (g->beta == 0.0f && !g->a.transposed && is_ragged(g->k, g->a.ld))
        return cut_k(lane, g, err);
    return gemm_lt(lane, g, err);
}

/* ---- mixed types ----------------------------------------------------------------------------- */

/* One type for both operands. */
static int uniform_types(struct fsdp_lane *lane, const struct nn_product *g, struct fsdp_err *err)
{
    struct nn_product plain = *g;

    if (!nn_cuda_needs_store(g) && (!g->bias || g->bias_dtype == g->c_dtype))
        return one_type(lane, g, err);
    plain.bias = NULL;
    if (nn_cuda_needs_store(g)) {
        plain.c = g->work;
        plain.ldc = g->n;
        plain.c_dtype = FSDP_F32;
        plain.beta = 0;
    }
    FSDP_TRY(one_type(lane, &plain, err));
    const struct nn_cuda_rows made = {plain.c, plain.c_dtype, plain.ldc, g->m, g->n};
    const struct nn_cuda_rows c = {g->c, g->c_dtype, g->ldc, g->m, g->n};
    if (g->bias)
        FSDP_TRY(nn_cuda_add_row(lane, &made, g->bias, g->bias_dtype, err));
    return nn_cuda_needs_store(g) ? nn_cuda_store(lane, &c, g->work, g->beta, err) : FSDP_OK;
}

/* The small part first, so that the large one is rounded with it. */
static int mixed(struct fsdp_lane *lane, const struct nn_product *g, struct fsdp_err *err)
{
    const enum fsdp_dtype narrow = nn_cuda_narrow_of(g);
    struct nn_product part = *g;
    struct nn_matrix *wide = g->a.dtype == FSDP_F32 ? &part.a : &part.b;
    const struct nn_cuda_half h = nn_cuda_half_of(g);
    void *high = g->work, *low = nn_at(high, narrow, h.nelem);
    const struct nn_cuda_halves halves = {.high = high,
                                          .low = low,
                                          .narrow = narrow,
                                          .to_ld = h.ld,
                                          .x = wide->at,
                                          .ld = wide->ld,
                                          .nrows = h.nrows,
                                          .ncols = h.ncols};

    if (!g->is_split)
        FSDP_TRY(nn_cuda_split(lane, &halves, err));
    wide->ld = h.ld;
    wide->dtype = narrow;
    wide->at = low;
    part.work = g->work + h.nelem;
    part.bias = NULL;
    FSDP_TRY(uniform_types(lane, &part, err));
    wide->at = high;
    part.bias = g->bias;
    part.beta = 1;
    return uniform_types(lane, &part, err);
}

/* ---- more than a product in one call ---------------------------------------------------------
 * An epilogue does what would be a pass over memory behind the product, on Hopper and later.
 * Products of the same sizes, of which each may be too small for the GPU or leave its last round of
 * blocks half empty, are a batch. Whether it is faster is measured before the first step
 * (gemm_tune.c). In 16 bits alone: the library's tanh is approximate. */

static bool apart;
static pthread_once_t apart_once = PTHREAD_ONCE_INIT;

static void read_apart(void)
{
    const char *text = getenv("FSDP_CUDA_PRODUCTS");

    apart = text && !strcmp(text, "apart");
    if (text && *text && !apart && strcmp(text, "fused") != 0)
        fsdp_log(FSDP_LOG_WARN, "FSDP_CUDA_PRODUCTS=%s: takes fused or apart; fused is used", text);
}

/* Where the operands of a batch lie, each begins at a multiple of 16 bytes. */
static bool fits_steps(const struct nn_product *g)
{
    return g->count <= 1 || (g->a_step % PIECE == 0 && g->b_step % PIECE == 0 &&
                             g->c_step % PIECE == 0 && g->bias_step % PIECE == 0);
}

/* What the library asks, and that the product is one call. */
static bool fits_one_call(const struct nn_product *g)
{
    enum { ALIGN = 16 };
    const enum fsdp_dtype type = g->a.dtype;
    const bool activates = g->epilogue == NN_GELU_OF_SUM || g->epilogue == NN_GELU_GRADIENT;
    const int rows = g->a.transposed ? g->m : g->k;

    return (type == FSDP_BF16 || type == FSDP_F16) && g->b.dtype == type && !g->a.f8 &&
           (g->c_dtype == type || (g->c_dtype == FSDP_F32 && !activates)) &&
           (g->beta == 0.0f || !g->epilogue) && (!g->bias || g->bias_dtype == g->c_dtype) &&
           g->n % PIECE == 0 && rows % PIECE == 0 && (uintptr_t)g->aux % ALIGN == 0 &&
           (uintptr_t)g->c % ALIGN == 0 && fits_steps(g);
}

static int codes_in_one(struct fsdp_lane *lane, const struct nn_product *g, bool *done,
                        struct fsdp_err *err)
{
    struct nn_product codes;
    bool ready;

    FSDP_TRY(fsdp_cuda_enter(lane, err));
    FSDP_TRY(nn_cuda_f8_maps(&codes, &ready, lane, g, err));
    return ready ? gemm_lt_in_one(lane, &codes, done, err) : FSDP_OK;
}

int gemm_in_one(struct fsdp_lane *lane, const struct nn_product *g, bool *done,
                struct fsdp_err *err)
{
    enum { LEAST_CAPABILITY = 90 }; /* of epilogues */
    int capability;

    *done = false;
    pthread_once(&apart_once, read_apart);
    if (apart)
        return FSDP_OK;
    if (g->a.f8 && g->count > 1)
        return codes_in_one(lane, g, done, err);
    if (!fits_one_call(g))
        return FSDP_OK;
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    FSDP_TRY(nn_cuda_capability(&capability, fsdp_cuda_ordinal(lane), err));
    if (g->epilogue && capability < LEAST_CAPABILITY)
        return FSDP_OK;
    if (g->made)
        *g->made = NN_F8_NOTHING;
    return gemm_lt_in_one(lane, g, done, err);
}

/* ---- any product ----------------------------------------------------------------------------- */

static int in_8_bits(struct fsdp_lane *lane, const struct nn_product *g, struct fsdp_err *err)
{
    const struct nn_cuda_rows c = {g->c, g->c_dtype, g->ldc, g->m, g->n};
    struct nn_product made;

    FSDP_TRY(nn_cuda_f8_operands(&made, lane, g, err));
    if (!made.a_scale)
        return uniform_types(lane, &made, err);
    FSDP_TRY(gemm_lt(lane, &made, err));
    return g->bias && !made.bias ? nn_cuda_add_row(lane, &c, g->bias, g->bias_dtype, err) : FSDP_OK;
}

int gemm(struct fsdp_lane *lane, const struct nn_product *g, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_cuda_enter(lane, err));
    if (g->a.f8)
        return in_8_bits(lane, g, err);
    if (g->made)
        *g->made = NN_F8_NOTHING;
    if (g->a.dtype != FSDP_F32 && g->b.dtype != FSDP_F32 && nn_cuda_is_mixed(g))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "a product of %s with %s: not on CUDA",
                            fsdp_dtype_name(g->a.dtype), fsdp_dtype_name(g->b.dtype));
    return nn_cuda_is_mixed(g) ? mixed(lane, g, err) : uniform_types(lane, g, err);
}
