/* SPDX-License-Identifier: Apache-2.0 */
/* nn_cuda.h: the operators on CUDA, and what they share on the host. Private to models/nn/cuda. */
#ifndef NN_CUDA_H
#define NN_CUDA_H

#include "fsdp/sys/cuda.h"
#include "fsdp/sys/device_ops.h"
#include "nn/cuda_sizes.h"
#include "nn/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NN_CUDA_OP(name, type)                                                                     \
    int nn_cuda_##name(struct fsdp_lane *lane, const struct type *args, struct fsdp_err *err);

NN_CUDA_OP(linear_forward, nn_linear)
NN_CUDA_OP(linear_backward_input, nn_linear)
NN_CUDA_OP(linear_backward_weight, nn_linear)
NN_CUDA_OP(f8_amax, nn_f8_amax)
int nn_cuda_activated_forward(struct fsdp_lane *lane, const struct nn_activated *args, bool *done,
                              struct fsdp_err *err);
int nn_cuda_activated_backward_input(struct fsdp_lane *lane, const struct nn_activated *args,
                                     bool *done, struct fsdp_err *err);
int nn_cuda_maps_forward(struct fsdp_lane *lane, const struct nn_maps *args, bool *done,
                         struct fsdp_err *err);
int nn_cuda_maps_backward_weight(struct fsdp_lane *lane, const struct nn_maps *args, bool *done,
                                 struct fsdp_err *err);
NN_CUDA_OP(embedding_forward, nn_embedding)
NN_CUDA_OP(embedding_backward, nn_embedding)
NN_CUDA_OP(rmsnorm_forward, nn_rmsnorm)
NN_CUDA_OP(rmsnorm_backward, nn_rmsnorm_backward)
NN_CUDA_OP(layernorm_forward, nn_layernorm)
NN_CUDA_OP(layernorm_backward, nn_layernorm_backward)
NN_CUDA_OP(rope_table, nn_rope_table)
NN_CUDA_OP(rope, nn_rope)
NN_CUDA_OP(attention_forward, nn_attention)
NN_CUDA_OP(attention_backward, nn_attention)
NN_CUDA_OP(glu_forward, nn_glu)
NN_CUDA_OP(glu_backward, nn_glu)
NN_CUDA_OP(pointwise_forward, nn_pointwise)
NN_CUDA_OP(pointwise_backward, nn_pointwise)
NN_CUDA_OP(scale_add, nn_scale_add)
NN_CUDA_OP(lengths, nn_lengths)
NN_CUDA_OP(columns_forward, nn_columns)
NN_CUDA_OP(columns_backward, nn_columns)
NN_CUDA_OP(copy_blocks, nn_copy_blocks)
NN_CUDA_OP(logits, nn_logits)
NN_CUDA_OP(dropout, nn_dropout)
NN_CUDA_OP(cross_entropy, nn_cross_entropy)
NN_CUDA_OP(route_forward, nn_route)
NN_CUDA_OP(route_backward, nn_route_backward)
NN_CUDA_OP(expert_order, nn_expert_order)
NN_CUDA_OP(expert_load, nn_expert_load)
NN_CUDA_OP(balance, nn_balance)
NN_CUDA_OP(spread_rows, nn_spread_rows)
NN_CUDA_OP(collect_rows, nn_collect_rows)
NN_CUDA_OP(weigh_backward, nn_weigh_backward)
NN_CUDA_OP(grouped_forward, nn_grouped)
NN_CUDA_OP(grouped_backward_input, nn_grouped)
NN_CUDA_OP(grouped_backward_weight, nn_grouped)
NN_CUDA_OP(split_tokens, nn_split_tokens)
NN_CUDA_OP(positions, nn_positions)
int nn_cuda_tune(struct fsdp_lane *lane, struct nn_tuning *tuning, bool measure,
                 struct fsdp_err *err);
size_t nn_cuda_attention_work_nelem(const struct nn_attention *shape);

extern const struct nn_ops nn_cuda_ops;

/* ---- a lane's scratch ---------------------------------------------------------------------------
 * Memory that one operator uses and no operator finds as it left it: partial sums, and the
 * workspace of cuBLASLt. One piece a lane, NN_CUDA_SCRATCH_NBYTES, allocated at the lane's first
 * operator. */
static inline int nn_cuda_scratch(void **out, struct fsdp_lane *lane, struct fsdp_err *err)
{
    *out = fsdp_lane_scratch(lane, NN_CUDA_SCRATCH_NBYTES, err);
    return *out ? FSDP_OK : FSDP_ENOMEM;
}

/* ---- pieces that several operators are made of ----------------------------------------------- */

/* out[col] = sum of in[row][col] over nrows + beta out[col], in a fixed order: in (nrows, ncols),
 * its rows ld elements apart. With `times`, which lies and is typed as in, it is a sum of products;
 * with `divisor` (ncols) the sum is divided before it is added. With `first` (ngroups + 1), which
 * the device knows, row i of out is the sum of rows [first[i], first[i + 1]), and nrows is not
 * read. */
struct nn_cuda_sum {
    void *out;
    enum fsdp_dtype out_dtype;
    const void *in;
    enum fsdp_dtype in_dtype;
    int nrows, ncols, ld;
    float beta;
    const void *times;    /* NULL: 1 */
    const float *divisor; /* NULL: 1 */
    const int32_t *first; /* NULL: one group, of all rows */
    int ngroups;
};
int nn_cuda_sum_rows(struct fsdp_lane *lane, const struct nn_cuda_sum *args, struct fsdp_err *err);

/* high + low = x, up to the rounding of low: x (nrows, ncols) with rows ld apart, high and low of
 * type `narrow` with rows to_ld apart. */
struct nn_cuda_halves {
    void *high, *low;
    enum fsdp_dtype narrow;
    int to_ld;
    const float *x;
    int ld, nrows, ncols;
};
int nn_cuda_split(struct fsdp_lane *lane, const struct nn_cuda_halves *args, struct fsdp_err *err);

/* Products in 8 bits. An operand is a matrix (nrows, ncols) whose rows lie ld elements apart; the
 * lines that the product sums over are its rows or, where `down`, its columns. It becomes codes of
 * type f8, nrows and ncols being multiples of NN_CUDA_F8_ALIGN (and lines, with scales of blocks,
 * of NN_F8_BLOCK_NELEM): out (nrows, ncols), or (ncols, nrows) where `down`; and the scales by
 * which their values are multiplied, as nn_product.a_scale has them. Or it becomes the values of
 * its codes in bf16, rows to_ld apart, as the matrix lies. */
enum { NN_CUDA_F8_ALIGN = 16 };
struct nn_cuda_f8 {
    const void *x;
    int ld, nrows, ncols;
    enum fsdp_dtype dtype, f8;
    enum nn_f8_scale kind;
    const double *codes_amax; /* x is codes, as nn_linear.w_amax says; NULL: it is of dtype */
    size_t amax_step;         /* decode: from that of one row to that of the next */
    const uint32_t *shared; /* encode, decode: what the scale is made of instead of amax; or NULL */
    uint32_t *amax;         /* of what is no codes */
    void *scale;
    void *out;
    bool down;
    int to_ld;
    /* encode with `down` and one scale, where x is no codes: a line of out has `padded` codes, a
     * multiple of NN_CUDA_F8_ALIGN, of which those behind the nrows of x are zeros. nrows is any
     * number then. 0: a line has nrows. */
    int padded;
};
/* With one scale, or of an x that is codes of E4M3 already, which lie at multiples of
 * NN_CUDA_F8_ALIGN: *amax must be 0 and becomes the greatest absolute value, as bits, which the
 * others need where x is no codes. Of codes, encode writes out where `down` alone, and *scale. */
int nn_cuda_f8_greatest(struct fsdp_lane *lane, const struct nn_cuda_f8 *args,
                        struct fsdp_err *err);
int nn_cuda_f8_encode(struct fsdp_lane *lane, const struct nn_cuda_f8 *args, struct fsdp_err *err);
int nn_cuda_f8_decode(struct fsdp_lane *lane, const struct nn_cuda_f8 *args, struct fsdp_err *err);
/* With scales of rows, which are lines here, or of blocks: codes, or values. Scales of blocks that
 * are not there but fill a tile stay as they are. For scales of lines that lie down columns,
 * columns_amax makes amax (ncols) of zeros before. */
int nn_cuda_f8_columns_amax(struct fsdp_lane *lane, const struct nn_cuda_f8 *args,
                            struct fsdp_err *err);
int nn_cuda_f8_lines(struct fsdp_lane *lane, const struct nn_cuda_f8 *args, bool values,
                     struct fsdp_err *err);

bool nn_cuda_groups_in_one(const struct nn_grouped *args);
/* One launch; `out` alone, not db. x, w and dy have the type args->dtype, biases args->w_dtype, and
 * y and dx y_dtype. */
int nn_cuda_grouped_product(struct fsdp_lane *lane, const struct nn_grouped *args,
                            enum fsdp_dtype y_dtype, enum nn_way way, struct fsdp_err *err);

/* Attention by plain kernels: any shape with heads of at most 256 elements. */
int nn_cuda_plain_attention_forward(struct fsdp_lane *lane, const struct nn_attention *args,
                                    struct fsdp_err *err);
int nn_cuda_plain_attention_backward(struct fsdp_lane *lane, const struct nn_attention *args,
                                     struct fsdp_err *err);

/* The tables by which cuDNN finds packed documents, from where each position's document begins in
 * its row (nn_attention.starts). Positions are numbered through all B rows. A document's begin is
 * the number of its first position, times the elements of one position. There may be fewer
 * documents than `most`: the rest get length 0 and begin behind the last position. */
struct nn_cuda_documents {
    int32_t *lengths;                            /* (most) */
    int32_t *q_begins, *k_begins, *stats_begins; /* (most + 1) */
    const int32_t *starts;                       /* (B, T), NULL: a row is one document */
    int B, T, most;
    int q_nelem, k_nelem, stats_nelem; /* elements of a position */
};
int nn_cuda_documents(struct fsdp_lane *lane, const struct nn_cuda_documents *args,
                      struct fsdp_err *err);

/* to: the seed and an offset of 0, int64, 16 bytes apart. */
int nn_cuda_seeds(struct fsdp_lane *lane, void *to, uint64_t seed, struct fsdp_err *err);

/* The compute capability of the GPU with this number: 90 for 9.0. */
int nn_cuda_capability(int *out, int ordinal, struct fsdp_err *err);
/* That of the thread's current GPU; 0 where CUDA does not say. */
int nn_cuda_current_capability(void);

/* A matrix (nrows, ncols) whose rows lie ld elements apart. */
struct nn_cuda_rows {
    void *at;
    enum fsdp_dtype dtype;
    int ld, nrows, ncols;
};
/* Every row of c += row. */
int nn_cuda_add_row(struct fsdp_lane *lane, const struct nn_cuda_rows *c, const void *row,
                    enum fsdp_dtype row_dtype, struct fsdp_err *err);
/* dst = src + beta dst, src without space between its rows. */
int nn_cuda_store(struct fsdp_lane *lane, const struct nn_cuda_rows *dst, const float *src,
                  float beta, struct fsdp_err *err);

#ifdef __cplusplus
}
#endif
#endif
