/* SPDX-License-Identifier: Apache-2.0 */
/* cpu.h: arithmetic shared by the CPU operators. Private to models/nn. */
#ifndef NN_CPU_H
#define NN_CPU_H

#include <string.h>

#include "fsdp/sys/cpu.h"
#include "math_loops.h"
#include "nn/nn.h"
#include "nn/product.h"

/* One operator: `run` has the lane's signature and gets a copy of the arguments. */
#define NN_CPU_OP(name, type)                                                                      \
    int nn_cpu_##name(struct fsdp_lane *lane, const struct type *args, struct fsdp_err *err);

NN_CPU_OP(linear_forward, nn_linear)
NN_CPU_OP(f8_amax, nn_f8_amax)
NN_CPU_OP(linear_backward_input, nn_linear)
NN_CPU_OP(linear_backward_weight, nn_linear)
NN_CPU_OP(embedding_forward, nn_embedding)
NN_CPU_OP(embedding_backward, nn_embedding)
NN_CPU_OP(rmsnorm_forward, nn_rmsnorm)
NN_CPU_OP(rmsnorm_backward, nn_rmsnorm_backward)
NN_CPU_OP(layernorm_forward, nn_layernorm)
NN_CPU_OP(layernorm_backward, nn_layernorm_backward)
NN_CPU_OP(rope_table, nn_rope_table)
NN_CPU_OP(rope, nn_rope)
NN_CPU_OP(attention_forward, nn_attention)
NN_CPU_OP(attention_backward, nn_attention)
NN_CPU_OP(glu_forward, nn_glu)
NN_CPU_OP(glu_backward, nn_glu)
NN_CPU_OP(pointwise_forward, nn_pointwise)
NN_CPU_OP(pointwise_backward, nn_pointwise)
NN_CPU_OP(scale_add, nn_scale_add)
NN_CPU_OP(lengths, nn_lengths)
NN_CPU_OP(columns_forward, nn_columns)
NN_CPU_OP(columns_backward, nn_columns)
NN_CPU_OP(copy_blocks, nn_copy_blocks)
NN_CPU_OP(logits, nn_logits)
NN_CPU_OP(dropout, nn_dropout)
NN_CPU_OP(cross_entropy, nn_cross_entropy)
NN_CPU_OP(route_forward, nn_route)
NN_CPU_OP(route_backward, nn_route_backward)
NN_CPU_OP(expert_order, nn_expert_order)
NN_CPU_OP(expert_load, nn_expert_load)
NN_CPU_OP(balance, nn_balance)
NN_CPU_OP(spread_rows, nn_spread_rows)
NN_CPU_OP(collect_rows, nn_collect_rows)
NN_CPU_OP(weigh_backward, nn_weigh_backward)
NN_CPU_OP(grouped_forward, nn_grouped)
NN_CPU_OP(grouped_backward_input, nn_grouped)
NN_CPU_OP(grouped_backward_weight, nn_grouped)
NN_CPU_OP(split_tokens, nn_split_tokens)
NN_CPU_OP(positions, nn_positions)
size_t nn_cpu_linear_work_nelem(const struct nn_linear *shape);
size_t nn_cpu_grouped_work_nelem(const struct nn_grouped *shape);
size_t nn_cpu_attention_work_nelem(const struct nn_attention *shape);

/* Factors (0 or 1 / (1 - p)) of elements [first, first + nelem) of row `row` of the batch. */
void nn_drop_factors(float *out, const struct nn_drop *drop, int row, uint64_t first, size_t nelem);

#define NN_CPU_RUN(name, type)                                                                     \
    _Static_assert(sizeof(struct type) <= FSDP_LANE_ARG_NBYTES, "arguments fit a lane call");      \
    static int run_##name(void *arg, struct fsdp_err *err)                                         \
    {                                                                                              \
        (void)err;                                                                                 \
        name(arg);                                                                                 \
        return FSDP_OK;                                                                            \
    }

/* Defines nn_cpu_<name>, which enqueues the static function <name>(struct type *). */
#define NN_CPU_ENQUEUE(name, type)                                                                 \
    NN_CPU_RUN(name, type)                                                                         \
    int nn_cpu_##name(struct fsdp_lane *lane, const struct type *args, struct fsdp_err *err)       \
    {                                                                                              \
        return fsdp_lane_call(lane, run_##name, args, sizeof *args, err);                          \
    }

/* The same of a product that may find a rounded x in work (nn_f8_made). */
#define NN_CPU_ENQUEUE_PRODUCT(name, type)                                                         \
    NN_CPU_RUN(name, type)                                                                         \
    int nn_cpu_##name(struct fsdp_lane *lane, const struct type *args, struct fsdp_err *err)       \
    {                                                                                              \
        struct type own = *args;                                                                   \
        own.made = nn_cpu_f8_made(args->made, args->out, &args->f8);                               \
        return fsdp_lane_call(lane, run_##name, &own, sizeof own, err);                            \
    }

/* ---- pieces in fp32 -----------------------------------------------------------------------------
 * Loops are written once, in fp32, over pieces of at most NN_PIECE elements: of fp32 memory the
 * piece is the memory itself, of a 16-bit type it is converted to and from `room`, which stays in
 * the nearest cache. */
enum { NN_PIECE = 1024 };
/* What a thread takes at least of a loop over elements. */
enum { NN_GRAIN = 16 * NN_PIECE };

/* x[at, at + nelem), to be read. */
static inline const float *nn_read(const void *x, enum fsdp_dtype dtype, size_t at, size_t nelem,
                                   float *room)
{
    if (dtype == FSDP_F32)
        return (const float *)x + at;
    fsdp_cpu_convert(room, FSDP_F32, nn_at(x, dtype, at), dtype, nelem);
    return room;
}

/* Where the piece is made or, having been read, changed; nn_write then stores it. */
static inline float *nn_piece(void *x, enum fsdp_dtype dtype, size_t at, float *room)
{
    return dtype == FSDP_F32 ? (float *)x + at : room;
}

static inline float *nn_change(void *x, enum fsdp_dtype dtype, size_t at, size_t nelem, float *room)
{
    nn_read(x, dtype, at, nelem, room);
    return nn_piece(x, dtype, at, room);
}

static inline void nn_write(void *x, enum fsdp_dtype dtype, size_t at, size_t nelem,
                            const float *piece)
{
    if (dtype != FSDP_F32)
        fsdp_cpu_convert(nn_at(x, dtype, at), dtype, piece, FSDP_F32, nelem);
}

/* Gradients of a norm's weights are summed over blocks of rows, then over the blocks of a span, in
 * fp32. A span ends with a store: fp32 loses nothing by it and a short one stays in the cache; a
 * 16-bit type is rounded each time. */
enum { NN_BLOCK_ROWS = 32, NN_SPAN_ROWS = 1024 };
static inline int nn_span(enum fsdp_dtype dw_dtype)
{
    return dw_dtype == FSDP_F32 ? NN_BLOCK_ROWS : NN_SPAN_ROWS;
}

/* Blocks, until the product is there. */
void nn_gemm(const struct nn_product *g);
/* The same; nothing where the result is not wanted. */
static inline void nn_run_product(struct nn_product product)
{
    if (product.c)
        nn_gemm(&product);
}

/* An operand of a product in 8 bits, op(x) of (rows, cols), summed along its rows or down them. */
struct nn_f8_operand {
    int rows, cols;
    bool sums_down;
    enum nn_f8_scale scale;
    const double *codes_amax; /* x is codes, as nn_linear.w_amax says; NULL: it is not */
    const uint32_t *amax;     /* with one scale: as nn_linear.w_shared says; NULL: x's own */
};
/* fp32 elements that so many of bf16 take, in pieces of work. */
size_t nn_cpu_f8_room_nelem(size_t rows, size_t cols);
/* x with its elements rounded to the values of their codes, bf16 in `room`, as x lies but without
 * space between rows. */
struct nn_matrix nn_cpu_f8_matrix(const struct nn_matrix *x, const struct nn_f8_operand *as,
                                  float *room);
/* The product of operands that were rounded so, which are in the first part of its work. */
struct nn_product nn_cpu_f8_product(const struct nn_product *g);
/* Elements of that part, enough for all three directions. */
size_t nn_cpu_f8_nelem(const struct nn_linear *shape);
/* An operator's `made` for its call on the lane, which runs when the caller's variable may be gone:
 * static, or NULL. *made becomes what the call leaves; without an output it leaves work as it is.
 */
enum nn_f8_made *nn_cpu_f8_made(enum nn_f8_made *made, const void *out, const struct nn_f8 *f8);

/* out[col] = sum of in[row][col] over nrows + beta out[col], in a fixed order; rows of `in` lie ld
 * elements apart. */
struct nn_row_sum {
    void *out;
    const void *in;
    int nrows, ncols, ld;
    float beta;
    enum fsdp_dtype out_dtype, in_dtype;
};
void nn_sum_rows(const struct nn_row_sum *sum);

/* Products through oneDNN, on the calling thread. False: it was not built with, has no such product
 * or cannot; nothing was done then. */
bool nn_dnnl_gemm(const struct nn_product *g);
/* Has it kernels for products of this type that use the processor's own instructions: AVX-512 for
 * F32, AVX-512 BF16 or AMX for BF16? */
bool nn_dnnl_is_fast(enum fsdp_dtype dtype);

/* c = alpha op(a) op(b) + beta c through the CBLAS, all in fp32, on the calling thread. */
void nn_blas_sgemm(const struct nn_product *g, float alpha);

/* Products of small matrices on the calling thread: c (fp32) = alpha op(a) op(b) + beta c, beta 0
 * or 1. op(b) is fp32 or bf16. With fp32 op(a) is fp32; with bf16 it is bf16 of an even k, not
 * transposed and of an even ld, or fp32, which is rounded to bf16. Only where nn_tile_has b's type:
 * with AVX-512, of bf16 with AVX-512 BF16. */
void nn_tile_gemm(const struct nn_product *g, float alpha);
bool nn_tile_has(enum fsdp_dtype dtype);

/* Reductions hold 32 partial results, so that they run at the speed of memory and so that their
 * order is that of the code, whatever the compiler. */
enum { NN_LANES = 8, NN_STRIDE = 4 * NN_LANES };
typedef float nn_vec __attribute__((vector_size(NN_LANES * sizeof(float)), aligned(4), may_alias));

static inline float nn_vec_sum(const nn_vec *v)
{
    nn_vec t = (v[0] + v[1]) + (v[2] + v[3]);
    return ((t[0] + t[4]) + (t[1] + t[5])) + ((t[2] + t[6]) + (t[3] + t[7]));
}

static inline float nn_dot(const float *a, const float *b, size_t nelem)
{
    nn_vec acc[4] = {{0}};
    size_t i = 0;
    for (; i + NN_STRIDE <= nelem; i += NN_STRIDE)
        for (int k = 0; k < 4; k++)
            acc[k] +=
                *(const nn_vec *)(a + i + k * NN_LANES) * *(const nn_vec *)(b + i + k * NN_LANES);
    for (; i + NN_LANES <= nelem; i += NN_LANES)
        acc[0] += *(const nn_vec *)(a + i) * *(const nn_vec *)(b + i);
    float sum = nn_vec_sum(acc);
    for (; i < nelem; i++)
        sum += a[i] * b[i];
    return sum;
}

static inline float nn_sum(const float *a, size_t nelem)
{
    nn_vec acc[4] = {{0}};
    size_t i = 0;
    for (; i + NN_STRIDE <= nelem; i += NN_STRIDE)
        for (int k = 0; k < 4; k++)
            acc[k] += *(const nn_vec *)(a + i + k * NN_LANES);
    for (; i + NN_LANES <= nelem; i += NN_LANES)
        acc[0] += *(const nn_vec *)(a + i);
    float sum = nn_vec_sum(acc);
    for (; i < nelem; i++)
        sum += a[i];
    return sum;
}

typedef int32_t nn_mask __attribute__((vector_size(NN_LANES * sizeof(int32_t))));

/* Through pointers: vectors by value have no fixed ABI on machines that lack them. */
static inline void nn_vec_max(nn_vec *a, const nn_vec *b)
{
    nn_mask a_wins = *a > *b;
    *a = (nn_vec)(((nn_mask)*a & a_wins) | ((nn_mask)*b & ~a_wins));
}

static inline float nn_max(const float *a, size_t nelem)
{
    float most = a[0];
    size_t i = 0;
    if (nelem >= NN_STRIDE) {
        nn_vec acc[4];
        memcpy(acc, a, sizeof acc);
        for (i = NN_STRIDE; i + NN_STRIDE <= nelem; i += NN_STRIDE)
            for (int k = 0; k < 4; k++)
                nn_vec_max(&acc[k], (const nn_vec *)(a + i + k * NN_LANES));
        for (int k = 1; k < 4; k++)
            nn_vec_max(&acc[0], &acc[k]);
        for (int j = 0; j < NN_LANES; j++)
            most = acc[0][j] > most ? acc[0][j] : most;
    }
    for (; i < nelem; i++)
        most = a[i] > most ? a[i] : most;
    return most;
}

#endif
