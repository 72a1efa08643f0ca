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

enum { LEAST_CAPABILITY = 89 };

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
           (!g->bias || is_aligned(g->bias)) &&
           !(g->a.f8 == FSDP_F8_E5M2 && g->b.f8 == FSDP_F8_E5M2);
}

/* Each reason is told once. */
static void tell_once(int capability, const struct nn_product *g)
{
    static atomic_flag old = ATOMIC_FLAG_INIT, odd = ATOMIC_FLAG_INIT;

    if (capability < LEAST_CAPABILITY) {
        if (!atomic_flag_test_and_set(&old))
            fsdp_log(FSDP_LOG_WARN,
                     "compute capability %d.%d has no products in 8 bits: they are computed in "
                     "bf16, with the same values and the speed of bf16",
                     capability / 10, capability % 10);
    } else if (!atomic_flag_test_and_set(&odd)) {
        fsdp_log(FSDP_LOG_WARN,
                 "a product of %d x %d x %d is computed in bf16, with the values of 8 bits: "
                 "products in 8 bits take sizes that are multiples of %d, at multiples of as "
                 "many bytes",
                 g->m, g->n, g->k, NN_CUDA_F8_ALIGN);
    }
}

/* Operands to be made: the one that lies first in work, then the other. */
static void describe_operands(struct nn_cuda_f8 out[2], const struct nn_product *g)
{
    const struct nn_product plain = nn_cuda_f8_decoded(g);
    const struct nn_matrix *from[] = {&g->a, &g->b}, *to[] = {&plain.a, &plain.b};
    const struct nn_cuda_f8_place place[] = {nn_cuda_f8_place(&g->a, g->m, g->k),
                                             nn_cuda_f8_place(&g->b, g->k, g->n)};

    for (int at = 0; at < 2; at++) {
        const int i = at != g->b_first; /* of a and b */
        out[at] = (struct nn_cuda_f8){.x = from[i]->at,
                                      .ld = from[i]->ld,
                                      .nrows = place[i].nrows,
                                      .ncols = place[i].ncols,
                                      .dtype = from[i]->dtype,
                                      .f8 = from[i]->f8,
                                      .codes_amax = i == 1 ? g->b_amax : NULL,
                                      .amax = (uint32_t *)(void *)g->work + at,
                                      .scale = g->work + NN_CUDA_F8_SCALE + at,
                                      .out = nn_at(to[i]->at, FSDP_F32, 0),
                                      .transposes = from[i]->transposed == (i == 0),
                                      .to_ld = place[i].ld};
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
    if (b->codes_amax && !b->transposes) {
        codes.b.at = b->x;
        codes.b.ld = b->ld;
    }
    codes.a_scale = a->scale;
    codes.b_scale = b->scale;
    if (g->c_dtype == FSDP_F32 || g->bias_dtype != g->c_dtype)
        codes.bias = NULL;
    return codes;
}

/* From the first operand on, or from the second one, where the first one is there. */
static int make_operands(struct fsdp_lane *lane, const struct nn_cuda_f8 operand[2], int from,
                         enum nn_f8_made kind, struct fsdp_err *err)
{
    for (int i = from; i < 2; i++)
        if (!operand[i].codes_amax)
            FSDP_TRY(nn_cuda_f8_amax(lane, &operand[i], err));
    for (int i = from; i < 2; i++)
        FSDP_TRY(kind == NN_F8_CODES ? nn_cuda_f8_encode(lane, &operand[i], err)
                                     : nn_cuda_f8_decode(lane, &operand[i], err));
    return FSDP_OK;
}

int nn_cuda_f8_operands(struct nn_product *out, struct fsdp_lane *lane, const struct nn_product *g,
                        struct fsdp_err *err)
{
    struct nn_cuda_f8 operand[2];
    int capability;

    if (g->f8_scale != NN_F8_TENSOR)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "a product in 8 bits with scales of rows or blocks: not on CUDA");
    FSDP_TRY(nn_cuda_capability(&capability, fsdp_cuda_ordinal(lane), err));
    describe_operands(operand, g);
    const bool by_codes = capability >= LEAST_CAPABILITY && fits_library(g);
    const enum nn_f8_made kind = by_codes ? NN_F8_CODES : NN_F8_VALUES;
    const bool is_there = g->made && *g->made == kind;
    if (!by_codes)
        tell_once(capability, g);
    if (!is_there || !g->b_amax)
        FSDP_TRY(
            fsdp_zero(lane, operand[is_there].amax, (is_there ? 1 : 2) * sizeof(uint32_t), err));
    FSDP_TRY(make_operands(lane, operand, is_there, kind, err));
    if (g->made)
        *g->made = kind;
    *out = by_codes ? product_of_codes(g, operand) : nn_cuda_f8_decoded(g);
    return FSDP_OK;
}
