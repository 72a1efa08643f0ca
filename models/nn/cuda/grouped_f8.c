/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of experts in 8 bits. x, or dy, of all places and w of all experts have one scale each,
 * so that one pass finds the greatest absolute value of each, however many experts there are. A w
 * that was gathered in codes keeps them and their scales.
 *
 * Where the host knows the rows of each expert, a product of codes for each, whose dimensions must
 * be multiples of 16. For y and dx, the rows beyond such a multiple are a product of 16 rows, of
 * which only the expert's are stored. For dw, a sum over rows, zeros follow the expert's last row.
 *
 * Elsewhere the values of the codes are multiplied as bf16: expert by expert by cuBLASLt, or all of
 * them in one launch, whose rows the device alone knows.
 */
#include <stdatomic.h>

#include "gemm.h"

enum { LEAST_CAPABILITY = 89, MOST_NELEM = 1 << 30 /* in one launch */ };

/* What is rounded with one scale: `nrows` times `ncols` elements, ld apart. The places of all
 * experts are one row; of weights, each expert's matrix is a row. */
struct operand {
    const void *x;
    enum fsdp_dtype dtype, f8;
    size_t nrows, ncols, ld;
    const double *codes_amax; /* as nn_grouped.w_amax; NULL: x is of dtype */
    size_t amax_step;
    int width;    /* of a place */
    size_t nelem; /* without the space between rows */
    size_t room;  /* in work, elements of fp32 */
    uint32_t *amax;
    float *scale;
    void *out;
};

struct grouped_f8 {
    struct fsdp_lane *lane;
    const struct nn_grouped *args;
    enum nn_way way;
    const int32_t *first; /* (experts + 1) */
    struct operand a, b;  /* of the product */
    float *rest;          /* work behind both */
};

/* ---- operands -------------------------------------------------------------------------------- */

static struct operand of_places(const struct nn_grouped *a, bool x, size_t room)
{
    const int width = x ? a->nin : a->nout;
    const size_t nelem = (size_t)a->nplaces * (size_t)width;
    return (struct operand){.x = x ? a->x : a->dy,
                            .dtype = a->dtype,
                            .f8 = x ? a->f8.dtype : a->f8.grad_dtype,
                            .nrows = 1,
                            .ncols = nelem,
                            .width = width,
                            .nelem = nelem,
                            .room = room};
}

static struct operand of_weights(const struct nn_grouped *a, size_t room)
{
    const size_t matrix = (size_t)a->nin * (size_t)a->nout;
    return (struct operand){.x = a->w,
                            .dtype = a->w_dtype,
                            .f8 = a->f8.dtype,
                            .nrows = (size_t)a->experts,
                            .ncols = matrix,
                            .ld = a->stride,
                            .codes_amax = a->w_amax,
                            .amax_step = a->amax_step,
                            .nelem = (size_t)a->experts * matrix,
                            .room = room};
}

static struct grouped_f8 describe_group(struct fsdp_lane *lane, const struct nn_grouped *a,
                                        enum nn_way way, const int32_t *first)
{
    const struct nn_cuda_grouped_room r = nn_cuda_grouped_room(a);
    const bool x_is_a = nn_grouped_x_is_a(a, way);
    struct grouped_f8 g = {.lane = lane, .args = a, .way = way, .first = first};
    float *const begin = nn_at(a->work, FSDP_F32, NN_CUDA_F8_CELLS);

    g.a = of_places(a, x_is_a, x_is_a ? r.x : r.dy);
    g.b = way != NN_TO_WEIGHT ? of_weights(a, r.w) : of_places(a, !x_is_a, x_is_a ? r.dy : r.x);
    g.a.amax = (uint32_t *)(void *)a->work;
    g.b.amax = g.a.amax + 1;
    g.a.scale = a->work + NN_CUDA_F8_SCALE;
    g.b.scale = g.a.scale + 1;
    g.a.out = begin;
    g.b.out = nn_at(begin, FSDP_F32, g.a.room);
    g.rest = nn_at(g.b.out, FSDP_F32, g.b.room);
    return g;
}

/* Runs a kernel over all of an operand, whose output has elements of this type. */
static int over_all(const struct grouped_f8 *g, const struct operand *o, enum fsdp_dtype out_dtype,
                    int (*run)(struct fsdp_lane *, const struct nn_cuda_f8 *, struct fsdp_err *),
                    struct fsdp_err *err)
{
    const size_t most = o->nrows == 1 ? (size_t)MOST_NELEM : o->ncols;

    for (size_t from = 0; from < o->ncols; from += most) {
        const size_t n = o->ncols - from < most ? o->ncols - from : most;
        const size_t row = (n + 7) / 8 * 8;
        const struct nn_cuda_f8 piece = {.x = o->codes_amax ? (const uint8_t *)o->x + from
                                                            : nn_at(o->x, o->dtype, from),
                                         .ld = (int)(o->nrows == 1 ? row : o->ld),
                                         .nrows = (int)o->nrows,
                                         .ncols = (int)n,
                                         .dtype = o->dtype,
                                         .f8 = o->f8,
                                         .kind = NN_F8_TENSOR,
                                         .codes_amax = o->codes_amax,
                                         .amax_step = o->amax_step,
                                         .amax = o->amax,
                                         .scale = o->scale,
                                         .out = nn_at(o->out, out_dtype, from),
                                         .to_ld = (int)row};
        FSDP_TRY(run(g->lane, &piece, err));
    }
    return FSDP_OK;
}

static int find_scales(const struct grouped_f8 *g, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_zero(g->lane, g->a.amax, 2 * sizeof *g->a.amax, err));
    FSDP_TRY(over_all(g, &g->a, FSDP_BF16, nn_cuda_f8_greatest, err));
    return g->b.codes_amax ? FSDP_OK : over_all(g, &g->b, FSDP_BF16, nn_cuda_f8_greatest, err);
}

/* Codes of an operand as it lies. */
static int encode_whole(const struct grouped_f8 *g, const struct operand *o, struct fsdp_err *err)
{
    return over_all(g, o, o->f8, nn_cuda_f8_encode, err);
}

/* Writes the codes of one matrix of the operand, which begins at element `at`, transposed to
 * matrix.out. Zeros follow each of its columns, up to `padded` codes. */
static int turn(const struct grouped_f8 *g, const struct operand *o, struct nn_cuda_f8 matrix,
                size_t at, struct fsdp_err *err)
{
    matrix.x = nn_at(o->x, o->dtype, at);
    matrix.ld = matrix.ncols;
    matrix.dtype = o->dtype;
    matrix.f8 = o->f8;
    matrix.kind = NN_F8_TENSOR;
    matrix.amax = o->amax;
    matrix.scale = o->scale;
    matrix.down = true;
    return nn_cuda_f8_encode(g->lane, &matrix, err);
}

/* ---- products -------------------------------------------------------------------------------- */

static int rows_of(const struct grouped_f8 *g, int e)
{
    return g->first[e + 1] - g->first[e];
}

static struct nn_product product_of(const struct grouped_f8 *g, int e)
{
    const struct nn_linear one = nn_grouped_linear(g->args, g->way, e, g->first[e], rows_of(g, e));
    struct nn_product product = nn_linear_product(&one, g->way);

    product.work = g->rest;
    product.passing = true;
    return product;
}

/* run: of an expert with rows. */
static int each_expert(const struct grouped_f8 *g,
                       int (*run)(const struct grouped_f8 *g, int e, struct fsdp_err *err),
                       struct fsdp_err *err)
{
    const struct nn_grouped *a = g->args;

    for (int e = 0; e < a->experts; e++)
        if (rows_of(g, e))
            FSDP_TRY(run(g, e, err));
        else if (g->way == NN_TO_WEIGHT && a->beta == 0.0f)
            FSDP_TRY(fsdp_zero(g->lane, nn_at(a->out, a->dw_dtype, (size_t)e * a->stride),
                               nn_grouped_matrix_nbytes(a), err));
    return FSDP_OK;
}

/* ---- of values ------------------------------------------------------------------------------- */

static struct nn_grouped_values values_of(const struct grouped_f8 *g)
{
    const bool x_is_a = nn_grouped_x_is_a(g->args, g->way);
    const void *const other = g->way == NN_TO_WEIGHT ? g->b.out : NULL;

    return (struct nn_grouped_values){.x = x_is_a ? g->a.out : other,
                                      .dy = x_is_a ? other : g->a.out,
                                      .w = g->way != NN_TO_WEIGHT ? g->b.out : NULL,
                                      .w_stride = nn_cuda_grouped_w_stride(g->args)};
}

static int multiply_values(const struct grouped_f8 *g, int e, struct fsdp_err *err)
{
    const struct nn_grouped_values values = values_of(g);
    struct nn_product product = product_of(g, e);

    nn_grouped_take_values(&product, g->args, g->way, &values, e, g->first[e]);
    return gemm(g->lane, &product, err);
}

static int in_one_launch(const struct grouped_f8 *g, struct fsdp_err *err)
{
    const struct nn_grouped_values values = values_of(g);
    struct nn_grouped narrow = *g->args;

    narrow.x = values.x;
    narrow.dy = values.dy;
    narrow.w = values.w;
    if (g->way != NN_TO_WEIGHT) /* else it is that of the gradients */
        narrow.stride = values.w_stride;
    narrow.dtype = FSDP_BF16;
    return nn_cuda_grouped_product(g->lane, &narrow, g->args->dtype, g->way, err);
}

static int by_values(const struct grouped_f8 *g, struct fsdp_err *err)
{
    FSDP_TRY(over_all(g, &g->a, FSDP_BF16, nn_cuda_f8_decode, err));
    FSDP_TRY(over_all(g, &g->b, FSDP_BF16, nn_cuda_f8_decode, err));
    return g->first ? each_expert(g, multiply_values, err) : in_one_launch(g, err);
}

/* ---- of codes -------------------------------------------------------------------------------- */

/* Do sums of the product run along the rows of w, as it lies? */
static bool w_lies_along(const struct grouped_f8 *g)
{
    return (g->way == NN_FORWARD) != g->args->transposed;
}

/* With operands of codes that lie k apart. */
static void take_codes(struct nn_product *product, const struct grouped_f8 *g, const void *a,
                       const void *b)
{
    product->a = (struct nn_matrix){a, product->k, false, g->a.f8, FSDP_F32};
    product->b = (struct nn_matrix){b, product->k, true, g->b.f8, FSDP_F32};
    product->a_scale = g->a.scale;
    product->b_scale = g->b.scale;
}

static int add_bias(const struct grouped_f8 *g, const struct nn_product *to, const void *bias,
                    struct fsdp_err *err)
{
    const struct nn_cuda_rows c = {to->c, to->c_dtype, to->ldc, to->m, to->n};
    return bias ? nn_cuda_add_row(g->lane, &c, bias, to->bias_dtype, err) : FSDP_OK;
}

/* The last rows of an expert, behind `from`, by way of work. */
static int multiply_tail(const struct grouped_f8 *g, const struct nn_product *all, int from,
                         struct fsdp_err *err)
{
    const int n = all->n, rest = all->m - from;
    const struct nn_cuda_rows to = {nn_at(all->c, all->c_dtype, (size_t)from * (size_t)all->ldc),
                                    all->c_dtype, all->ldc, rest, n};
    struct nn_product tail = *all;

    tail.m = NN_CUDA_F8_TAIL;
    tail.a.at = (const uint8_t *)all->a.at + (size_t)from * (size_t)all->k;
    tail.c = g->rest;
    tail.ldc = n;
    tail.c_dtype = FSDP_F32;
    tail.bias = NULL;
    tail.beta = 0;
    FSDP_TRY(gemm_lt(g->lane, &tail, err));
    FSDP_TRY(add_bias(g, &tail, all->bias, err));
    return nn_cuda_store(g->lane, &to, g->rest, all->beta, err);
}

/* *out: the codes of expert e's w, along what is summed. Their scale is that of g->b. */
static int weight_codes(const void **out, const struct grouped_f8 *g, int e, struct fsdp_err *err)
{
    const struct nn_grouped *a = g->args;
    const size_t matrix = (size_t)a->nin * (size_t)a->nout;
    uint8_t *const made = (uint8_t *)g->b.out + (size_t)e * matrix;
    struct nn_cuda_f8 lies = {.nrows = a->transposed ? a->nin : a->nout,
                              .ncols = a->transposed ? a->nout : a->nin,
                              .out = made};

    *out = made;
    if (!a->w_amax)
        return w_lies_along(g) ? FSDP_OK : turn(g, &g->b, lies, (size_t)e * a->stride, err);
    lies.x = nn_grouped_w(a, e);
    lies.ld = lies.ncols;
    lies.codes_amax = nn_grouped_amax(a, e);
    lies.scale = g->b.scale;
    lies.down = !w_lies_along(g);
    *out = lies.down ? made : lies.x;
    return nn_cuda_f8_encode(g->lane, &lies, err);
}

/* y or dx. The library takes biases in the type of a 16-bit output alone. */
static int multiply_rows(const struct grouped_f8 *g, int e, struct fsdp_err *err)
{
    struct nn_product all = product_of(g, e);
    const int whole = all.m / NN_CUDA_F8_TAIL * NN_CUDA_F8_TAIL;
    const void *w;

    FSDP_TRY(weight_codes(&w, g, e, err));
    take_codes(&all, g, (uint8_t *)g->a.out + (size_t)g->first[e] * (size_t)all.k, w);
    struct nn_product most = all;
    most.m = whole;
    if (all.c_dtype == FSDP_F32 || all.bias_dtype != all.c_dtype)
        most.bias = NULL;
    if (whole)
        FSDP_TRY(gemm_lt(g->lane, &most, err));
    if (whole && !most.bias)
        FSDP_TRY(add_bias(g, &most, all.bias, err));
    return whole < all.m ? multiply_tail(g, &all, whole, err) : FSDP_OK;
}

/* dw */
static int multiply_turned(const struct grouped_f8 *g, int e, struct fsdp_err *err)
{
    const int rows = rows_of(g, e);
    const int padded = (rows + NN_CUDA_F8_TAIL - 1) / NN_CUDA_F8_TAIL * NN_CUDA_F8_TAIL;
    const size_t begin = (size_t)g->first[e];
    const struct operand *const all[] = {&g->a, &g->b};
    struct nn_product product = product_of(g, e);

    for (int i = 0; i < 2; i++) {
        const struct nn_cuda_f8 own = {
            .nrows = rows, .ncols = all[i]->width, .padded = padded, .out = all[i]->out};
        FSDP_TRY(turn(g, all[i], own, begin * (size_t)own.ncols, err));
    }
    product.k = padded;
    take_codes(&product, g, g->a.out, g->b.out);
    return gemm_lt(g->lane, &product, err);
}

static int by_codes(const struct grouped_f8 *g, struct fsdp_err *err)
{
    if (g->way == NN_TO_WEIGHT)
        return each_expert(g, multiply_turned, err);
    FSDP_TRY(encode_whole(g, &g->a, err));
    /* The last expert's tail reads rows that are not there. */
    FSDP_TRY(fsdp_zero(g->lane, (uint8_t *)g->a.out + g->a.nelem,
                       (size_t)NN_CUDA_F8_TAIL * (size_t)g->a.width, err));
    if (w_lies_along(g) && !g->b.codes_amax)
        FSDP_TRY(encode_whole(g, &g->b, err));
    return each_expert(g, multiply_rows, err);
}

/* ---- which of them --------------------------------------------------------------------------- */

static bool is_aligned(const void *x)
{
    return (uintptr_t)x % NN_CUDA_F8_ALIGN == 0;
}

/* What cuBLASLt asks. */
static bool fits_library(const struct grouped_f8 *g)
{
    const struct nn_grouped *a = g->args;
    const size_t step =
        g->way == NN_TO_WEIGHT ? a->stride * fsdp_dtype_nbytes(a->dw_dtype) : NN_CUDA_F8_ALIGN;
    const bool has_codes = a->w_amax && g->way != NN_TO_WEIGHT;
    return a->nin % NN_CUDA_F8_ALIGN == 0 && a->nout % NN_CUDA_F8_ALIGN == 0 &&
           is_aligned(a->out) && is_aligned(a->b) && step % NN_CUDA_F8_ALIGN == 0 &&
           (!has_codes || (is_aligned(a->w) && a->stride % NN_CUDA_F8_ALIGN == 0));
}

/* Each reason is told once. */
static void tell_once(const struct nn_grouped *a, int capability, bool small)
{
    static atomic_flag old = ATOMIC_FLAG_INIT, few = ATOMIC_FLAG_INIT, odd = ATOMIC_FLAG_INIT;

    if (capability < LEAST_CAPABILITY) {
        if (!atomic_flag_test_and_set(&old))
            fsdp_log(FSDP_LOG_WARN,
                     "experts: compute capability %d.%d has no products in 8 bits: they are "
                     "computed in bf16, with the same values and the speed of bf16",
                     capability / 10, capability % 10);
    } else if (small) {
        if (!atomic_flag_test_and_set(&few))
            fsdp_log(
                FSDP_LOG_WARN,
                "experts: %d rows for %d experts are too few for products in 8 bits, which "
                "need more than %d rows an expert on average: they are computed in bf16, which "
                "takes longer than without 8 bits; raise train.micro_batch_size",
                a->nplaces, a->experts, NN_CUDA_SMALL_GROUP);
    } else if (!atomic_flag_test_and_set(&odd)) {
        fsdp_log(
            FSDP_LOG_WARN,
            "experts: matrices of %d x %d are computed in bf16, with the same values: products "
            "in 8 bits need sizes and addresses that are multiples of %d",
            a->nin, a->nout, NN_CUDA_F8_ALIGN);
    }
}

int nn_cuda_grouped_f8(struct fsdp_lane *lane, const struct nn_grouped *a, enum nn_way way,
                       const int32_t *first, struct fsdp_err *err)
{
    const struct grouped_f8 g = describe_group(lane, a, way, first);
    int capability;

    FSDP_TRY(nn_cuda_capability(&capability, fsdp_cuda_ordinal(lane), err));
    const bool codes = capability >= LEAST_CAPABILITY && first && fits_library(&g);
    if (!codes)
        tell_once(a, capability, !first);
    FSDP_TRY(find_scales(&g, err));
    return codes ? by_codes(&g, err) : by_values(&g, err);
}
