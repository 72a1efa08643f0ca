/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products in 8 bits. Tensor cores of sm_89 and sm_90 take operands of codes that both lie along
 * what is summed, and those that lie otherwise are transposed as they are made:
 *
 *     forward   y  = x  wᵀ     x as it lies,   w as it lies
 *     input     dx = dy w      dy as it lies,  w transposed
 *     weight    dw = dyᵀ x     dy transposed,  x transposed
 *
 * A w that was gathered in codes is an operand as it came, or is transposed byte by byte.
 *
 * Elsewhere the values of the codes are multiplied as bf16, which holds them: the same products, as
 * fast as those of bf16.
 */
#include <stdatomic.h>

#include "gemm.h"

/* Of scales of rows and of blocks, by cuBLASLt's documentation, which has those of rows for 9.0
 * alone. */
enum { LEAST_CAPABILITY = 89, CAPABILITY_OF_ROWS = 90, CAPABILITY_OF_BLOCKS = 100 };

static bool is_aligned(const void *x)
{
    return (uintptr_t)x % NN_CUDA_F8_ALIGN == 0;
}

/* Of codes, which are operands as they lie, or are transposed in lots of NN_CUDA_F8_ALIGN. */
static bool has_aligned_codes(const struct nn_product *g)
{
    return !g->b_amax || (is_aligned(g->b.at) && g->b.ld % NN_CUDA_F8_ALIGN == 0);
}

/* What cuBLASLt asks of such a product. */
static bool fits_library(const struct nn_product *g)
{
    const size_t row = (size_t)g->ldc * fsdp_dtype_nbytes(g->c_dtype);
    return has_aligned_codes(g) && g->m % NN_CUDA_F8_ALIGN == 0 && g->n % NN_CUDA_F8_ALIGN == 0 &&
           g->k % NN_CUDA_F8_ALIGN == 0 && row % NN_CUDA_F8_ALIGN == 0 && is_aligned(g->c) &&
           (!g->bias || is_aligned(g->bias)) && (g->f8_scale == NN_F8_TENSOR || !g->b_amax) &&
           (g->f8_scale != NN_F8_BLOCK || g->k % NN_F8_BLOCK_NELEM == 0) &&
           !(g->a.f8 == FSDP_F8_E5M2 && g->b.f8 == FSDP_F8_E5M2);
}

/* Do its scales have a form that the library knows on such a GPU? It may yet refuse a product. */
static bool has_scales(const struct nn_product *g, int capability)
{
    switch (g->f8_scale) {
    case NN_F8_TENSOR:
        return true;
    case NN_F8_ROW:
        return capability >= CAPABILITY_OF_ROWS && gemm_lt_has_scales();
    case NN_F8_BLOCK:
        break;
    }
    return capability >= CAPABILITY_OF_BLOCKS && gemm_lt_has_scales();
}

/* Told once for each kind of scales. */
static void tell_scales(int capability, const struct nn_product *g)
{
    static atomic_flag told[2] = {ATOMIC_FLAG_INIT, ATOMIC_FLAG_INIT};
    const bool rows = g->f8_scale == NN_F8_ROW;

    if (!atomic_flag_test_and_set(&told[rows]))
        fsdp_log(FSDP_LOG_WARN,
                 "a product of %d x %d x %d to %s: this cuBLASLt has none in 8 bits with scales of "
                 "%s on compute capability %d.%d: it and others are computed in bf16, with the "
                 "same values and the speed of bf16",
                 g->m, g->n, g->k, fsdp_dtype_name(g->c_dtype), rows ? "rows" : "blocks",
                 capability / 10, capability % 10);
}

/* Each reason is told once. */
static void tell_once(int capability, const struct nn_product *g, bool fits)
{
    static atomic_flag old = ATOMIC_FLAG_INIT, odd = ATOMIC_FLAG_INIT;

    if (capability < LEAST_CAPABILITY) {
        if (!atomic_flag_test_and_set(&old))
            fsdp_log(FSDP_LOG_WARN,
                     "compute capability %d.%d has no products in 8 bits: they are computed in "
                     "bf16, with the same values and the speed of bf16",
                     capability / 10, capability % 10);
    } else if (fits) {
        tell_scales(capability, g);
    } else if (!atomic_flag_test_and_set(&odd)) {
        fsdp_log(FSDP_LOG_WARN,
                 "a product of %d x %d x %d is computed in bf16, with the values of 8 bits: "
                 "products in 8 bits take sizes that are multiples of %d, at multiples of as "
                 "many bytes%s",
                 g->m, g->n, g->k, NN_CUDA_F8_ALIGN,
                 g->f8_scale == NN_F8_BLOCK ? ", and sums over multiples of 32" : "");
    }
}

/* Where operand `at` (0: the one that lies first in work) has its scales and its matrix. */
static void place_operand(struct nn_cuda_f8 *out, const struct nn_product *g, int at, float *place)
{
    const struct nn_cuda_f8_place p = nn_cuda_f8_place_at(g, at);

    out->nrows = p.nrows;
    out->ncols = p.ncols;
    out->to_ld = p.ld;
    out->out = nn_at(place, FSDP_F32, p.amax + p.scales);
    out->amax = (uint32_t *)(void *)place;
    out->scale = nn_at(place, FSDP_F32, p.amax);
    if (g->f8_scale == NN_F8_TENSOR || out->codes_amax) {
        out->amax = (uint32_t *)(void *)g->work + at;
        out->scale = g->work + NN_CUDA_F8_SCALE + at;
    }
}

/* Operands to be made: the one that lies first in work, then the other. */
static void describe_operands(struct nn_cuda_f8 out[2], const struct nn_product *g)
{
    const struct nn_cuda_f8_place first = nn_cuda_f8_place_at(g, 0);
    float *const begin = nn_at(g->work, FSDP_F32, NN_CUDA_F8_CELLS);
    float *const place[] = {begin, nn_at(begin, FSDP_F32, nn_cuda_f8_place_nelem(&first))};

    for (int at = 0; at < 2; at++) {
        const bool of_b = at != g->b_first;
        const struct nn_matrix *from = of_b ? &g->b : &g->a;
        out[at] = (struct nn_cuda_f8){.x = from->at,
                                      .ld = from->ld,
                                      .dtype = from->dtype,
                                      .f8 = from->f8,
                                      .kind = g->f8_scale,
                                      .codes_amax = of_b ? g->b_amax : NULL,
                                      .shared = of_b && !g->b_amax ? g->b_shared : NULL,
                                      .down = from->transposed != of_b};
        place_operand(&out[at], g, at, place[at]);
    }
}

/* Of codes, whose bias the library takes in the type of a 16-bit output alone. */
static struct nn_product product_of_codes(const struct nn_product *g,
                                          const struct nn_cuda_f8 operand[2])
{
    const struct nn_cuda_f8 *a = &operand[g->b_first], *b = &operand[!g->b_first];
    struct nn_product codes = *g;

    codes.a = (struct nn_matrix){a->out, g->k, false, g->a.f8, FSDP_F32};
    codes.b = (struct nn_matrix){b->out, g->k, true, g->b.f8, FSDP_F32};
    if (b->codes_amax && !b->down) {
        codes.b.at = b->x;
        codes.b.ld = b->ld;
    }
    codes.a_scale = a->scale;
    codes.b_scale = b->scale;
    if (g->c_dtype == FSDP_F32 || g->bias_dtype != g->c_dtype)
        codes.bias = NULL;
    return codes;
}

/* ---- making them ----------------------------------------------------------------------------- */

int nn_cuda_f8_amax(struct fsdp_lane *lane, const struct nn_f8_amax *a, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_zero(lane, a->amax, sizeof *a->amax, err));
    for (int i = 0; i < a->count; i++) {
        const struct nn_cuda_f8 w = {.x = a->w[i],
                                     .ld = a->cols[i],
                                     .nrows = a->rows[i],
                                     .ncols = a->cols[i],
                                     .dtype = a->dtype,
                                     .amax = a->amax};
        FSDP_TRY(nn_cuda_f8_greatest(lane, &w, err));
    }
    return FSDP_OK;
}

/* Has its scale to be made of its own values? */
static bool has_own_scale(const struct nn_cuda_f8 *operand)
{
    return !operand->codes_amax && !operand->shared;
}

/* The greatest values of the operands from the first on, or from the second one. */
static int find_greatest(struct fsdp_lane *lane, const struct nn_cuda_f8 operand[2], int from,
                         struct fsdp_err *err)
{
    if (!from || has_own_scale(&operand[1]))
        FSDP_TRY(fsdp_zero(lane, operand[from].amax, (size_t)(2 - from) * sizeof(uint32_t), err));
    for (int i = from; i < 2; i++)
        if (has_own_scale(&operand[i]))
            FSDP_TRY(nn_cuda_f8_greatest(lane, &operand[i], err));
    return FSDP_OK;
}

/* From the first operand on, or from the second one, where the first one is there. */
static int make_with_one_scale(struct fsdp_lane *lane, const struct nn_cuda_f8 operand[2], int from,
                               enum nn_f8_made kind, struct fsdp_err *err)
{
    FSDP_TRY(find_greatest(lane, operand, from, err));
    for (int i = from; i < 2; i++)
        FSDP_TRY(kind == NN_F8_CODES ? nn_cuda_f8_encode(lane, &operand[i], err)
                                     : nn_cuda_f8_decode(lane, &operand[i], err));
    return FSDP_OK;
}

/* Of scales of rows or blocks. */
static int make_one(struct fsdp_lane *lane, const struct nn_cuda_f8 *a, enum nn_f8_made kind,
                    struct fsdp_err *err)
{
    const int nlines = a->down ? a->ncols : a->nrows, nsum = a->down ? a->nrows : a->ncols;

    if (a->codes_amax)
        return nn_cuda_f8_decode(lane, a, err);
    if (a->kind == NN_F8_BLOCK && kind == NN_F8_CODES)
        FSDP_TRY(fsdp_zero(lane, a->scale, nn_cuda_f8_scales_nbytes(nlines, nsum), err));
    if (a->kind == NN_F8_ROW && a->down) {
        FSDP_TRY(fsdp_zero(lane, a->amax, (size_t)nlines * sizeof *a->amax, err));
        FSDP_TRY(nn_cuda_f8_columns_amax(lane, a, err));
    }
    return nn_cuda_f8_lines(lane, a, kind == NN_F8_VALUES, err);
}

static int make_operands(struct fsdp_lane *lane, const struct nn_cuda_f8 operand[2], int from,
                         enum nn_f8_made kind, struct fsdp_err *err)
{
    if (operand[0].kind == NN_F8_TENSOR)
        return make_with_one_scale(lane, operand, from, kind, err);
    for (int i = from; i < 2; i++)
        FSDP_TRY(make_one(lane, &operand[i], kind, err));
    return FSDP_OK;
}

/* Are the operands to be codes? If not, the reason is told. */
static int is_of_codes(bool *out, struct fsdp_lane *lane, const struct nn_product *g,
                       const struct nn_product *codes, struct fsdp_err *err)
{
    int capability;

    FSDP_TRY(nn_cuda_capability(&capability, fsdp_cuda_ordinal(lane), err));
    const bool fits = fits_library(g);
    *out = capability >= LEAST_CAPABILITY && fits && has_scales(g, capability);
    if (*out && g->f8_scale != NN_F8_TENSOR)
        FSDP_TRY(gemm_lt_takes(out, lane, codes, err));
    if (!*out)
        tell_once(capability, g, fits);
    return FSDP_OK;
}

int nn_cuda_f8_operands(struct nn_product *out, struct fsdp_lane *lane, const struct nn_product *g,
                        struct fsdp_err *err)
{
    struct nn_cuda_f8 operand[2];
    bool by_codes;

    describe_operands(operand, g);
    const struct nn_product codes = product_of_codes(g, operand);
    FSDP_TRY(is_of_codes(&by_codes, lane, g, &codes, err));
    const enum nn_f8_made kind = by_codes ? NN_F8_CODES : NN_F8_VALUES;
    const bool is_there = g->made && *g->made == kind;
    FSDP_TRY(make_operands(lane, operand, is_there, kind, err));
    if (g->made)
        *g->made = kind;
    *out = by_codes ? codes : nn_cuda_f8_decoded(g);
    return FSDP_OK;
}

/* ---- maps of the same x ---------------------------------------------------------------------- */

/* So many matrices of codes fit where one has room for its values in bf16. */
enum { MATRICES_IN_PLACE = 2 };

/* Are they operands as they lie? */
static bool takes_b_as_it_is(const struct nn_product *g)
{
    return g->b_amax && g->b.transposed;
}

/* Can matrices that share a scale be operands of one product, with what they give? */
static bool fits_maps(const struct nn_product *g, const struct nn_product *codes)
{
    const size_t c = fsdp_dtype_nbytes(g->c_dtype), bias = fsdp_dtype_nbytes(g->bias_dtype);
    const bool has_room =
        takes_b_as_it_is(g) || ((g->b_amax || g->b_shared) && g->count <= MATRICES_IN_PLACE);

    return g->f8_scale == NN_F8_TENSOR && has_room && (!g->bias || codes->bias) &&
           g->c_step * c % NN_CUDA_F8_ALIGN == 0 &&
           (!g->bias || g->bias_step * bias % NN_CUDA_F8_ALIGN == 0) &&
           (!g->b_amax || g->b_step % NN_CUDA_F8_ALIGN == 0);
}

/* The codes of all matrices, one behind the other; those that lie so already in one go. */
static int encode_maps(struct fsdp_lane *lane, const struct nn_cuda_f8 *first,
                       const struct nn_product *g, struct fsdp_err *err)
{
    const enum fsdp_dtype dtype = first->codes_amax ? FSDP_U8 : first->dtype;
    const size_t nelem = (size_t)first->nrows * (size_t)first->ncols;
    struct nn_cuda_f8 w = *first;

    if (takes_b_as_it_is(g))
        return nn_cuda_f8_encode(lane, &w, err);
    if (!w.down && w.ld == w.ncols && g->b_step == nelem) {
        w.nrows *= g->count;
        return nn_cuda_f8_encode(lane, &w, err);
    }
    for (int i = 0; i < g->count; i++) {
        w.x = nn_at(first->x, dtype, (size_t)i * g->b_step);
        w.out = (uint8_t *)first->out + (size_t)i * nelem;
        FSDP_TRY(nn_cuda_f8_encode(lane, &w, err));
    }
    return FSDP_OK;
}

int nn_cuda_f8_maps(struct nn_product *out, bool *ready, struct fsdp_lane *lane,
                    const struct nn_product *g, struct fsdp_err *err)
{
    const bool is_there = g->made && *g->made == NN_F8_CODES;
    struct nn_cuda_f8 operand[2];

    describe_operands(operand, g);
    *out = product_of_codes(g, operand);
    *ready = fits_maps(g, out);
    if (*ready)
        FSDP_TRY(is_of_codes(ready, lane, g, out, err));
    if (!*ready)
        return FSDP_OK;
    if (!takes_b_as_it_is(g))
        out->b_step = (size_t)operand[1].nrows * (size_t)operand[1].ncols;
    FSDP_TRY(gemm_lt_takes(ready, lane, out, err));
    if (!*ready)
        return FSDP_OK;
    FSDP_TRY(find_greatest(lane, operand, is_there, err));
    if (!is_there)
        FSDP_TRY(nn_cuda_f8_encode(lane, &operand[0], err));
    if (g->made)
        *g->made = NN_F8_CODES;
    return encode_maps(lane, &operand[1], g, err);
}
