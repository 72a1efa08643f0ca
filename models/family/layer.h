/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer.h: the arithmetic of a decoder layer, forward and backward, as lists of operators that its
 * traits choose. A layer has two branches, attention and MLP. Each reads the residual stream and
 * adds to it:
 *
 *     pre-norm     out += attention(norm1(out));          out += mlp(norm2(out))
 *     post-norm    out += post1(attention(out));          out += post2(mlp(out))
 *     both         out += post1(attention(norm1(out)));   out += post2(mlp(norm2(out)))
 *     parallel     out += attention(norm1(in)) + mlp(norm2(in))
 *
 * Private to models/.
 */
#ifndef LAYER_H
#define LAYER_H

#include "stack.h"

/* A branch, from its norm to its addition to blk->out. They enqueue. With `add` false nothing is
 * added: only what backward needs is made. */
int layer_attention_forward(const struct model *m, const struct stack_block *blk, bool add,
                            struct fsdp_err *err);
int layer_mlp_forward(const struct model *m, const struct stack_block *blk, bool add,
                      struct fsdp_err *err);
/* The end of layer_attention_forward, from q, k and v on. */
int layer_attend(const struct model *m, const struct stack_block *blk, bool add,
                 struct fsdp_err *err);
int layer_attention_backward(const struct model *m, const struct stack_block *blk,
                             struct fsdp_err *err);
/* Before layer_attention_backward. */
int layer_mlp_backward(const struct model *m, const struct stack_block *blk, struct fsdp_err *err);

/* ---- between layer*.c ------------------------------------------------------------------------ */

/* out (R, nout) = x (R, nin) Wᵀ + bias + beta out, where W and the bias are this slot's. */
int layer_project(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                  void *out, const void *x, float beta, struct fsdp_err *err);
/* dx = dy W + beta dx */
int layer_project_input(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                        void *dx, const void *dy, float beta, struct fsdp_err *err);
/* The gradients of W and the bias. */
int layer_project_weight(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                         const void *dy, const void *x, struct fsdp_err *err);

/* The first and the last of these for maps that read the same x, with beta 0: products in 8 bits
 * round x once for all of them. */
struct layer_map {
    enum stack_slot slot;
    void *y; /* out, or dy */
};
int layer_project_each(const struct model *m, const struct stack_block *blk,
                       const struct layer_map *map, int nmaps, const void *x, struct fsdp_err *err);
/* dx = the sum of the maps' dy W + beta dx. A map's y is its dy. */
int layer_project_each_input(const struct model *m, const struct stack_block *blk,
                             const struct layer_map *map, int nmaps, void *dx, float beta,
                             struct fsdp_err *err);
int layer_project_each_weight(const struct model *m, const struct stack_block *blk,
                              const struct layer_map *map, int nmaps, const void *x,
                              struct fsdp_err *err);

/* Do maps of the same x make one wider map, whose outputs lie side by side? Their matrices, biases
 * and gradients then lie behind one another, in 16 bits and without adapters. */
bool layer_joins(const struct model *m, const struct stack_block *blk, const enum stack_slot *slot,
                 int nslots);
/* The same as layer_project_each_input and layer_project_each_weight, of maps that do: dy (R, sum
 * of their nout). */
int layer_joined_input(const struct model *m, const struct stack_block *blk,
                       const enum stack_slot *slot, int nslots, void *dx, const void *dy,
                       float beta, struct fsdp_err *err);
int layer_joined_weight(const struct model *m, const struct stack_block *blk,
                        const enum stack_slot *slot, int nslots, const void *dy, const void *x,
                        struct fsdp_err *err);

/* Where a slot has no adapter. *done false: nothing was done, as the device does not do both at
 * once (nn_ops.activated_*). pre (R, nout) = the map of x, act (R, nout) = its activation. */
int layer_project_activated(const struct model *m, const struct stack_block *blk,
                            enum stack_slot slot, void *act, void *pre, const void *x, bool *done,
                            struct fsdp_err *err);
/* d_pre = the gradient of what the map read, dy W, times the slope of the activation at pre. */
int layer_project_input_activated(const struct model *m, const struct stack_block *blk,
                                  enum stack_slot slot, void *d_pre, void *pre, const void *dy,
                                  bool *done, struct fsdp_err *err);

/* What a gradient of a matrix and its bias (NULL: none) is multiplied with before it is added to:
 * they are written together, where both are wanted. */
float layer_pair_beta(const struct stack_param *w, const struct stack_param *b);

/* What a slot's adapter adds to the three above; nothing where it has none. */
int layer_lora_forward(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                       void *out, const void *x, struct fsdp_err *err);
int layer_lora_input(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                     void *dx, const void *dy, struct fsdp_err *err);
int layer_lora_weight(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                      const void *dy, const void *x, struct fsdp_err *err);

/* Has the input of adapters dropout? */
bool layer_lora_drops(const struct model *m, const struct stack_block *blk);
/* A slot with magnitudes, all of it: out = the map of x + beta out, dx likewise. With dropout the
 * map itself, without its adapter, is in out and dx already, and beta is of no account. */
int layer_dora_forward(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                       void *out, const void *x, float beta, struct fsdp_err *err);
int layer_dora_input(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                     void *dx, const void *dy, float beta, struct fsdp_err *err);
int layer_dora_weight(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                      const void *dy, const void *x, struct fsdp_err *err);

/* A slot's weight and bias, where they begin. */
struct layer_matrix {
    const void *w, *b; /* b NULL: none */
    int ldw;           /* as in nn_linear */
};
struct layer_matrix layer_matrix(const struct model *m, const struct stack_block *blk,
                                 enum stack_slot slot);
/* The map of a slot without its adapter, as layer_project and the two after it; and without its
 * bias: out = x Wᵀ + beta out. made: as in nn_linear. */
int layer_plain(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                void *out, const void *x, float beta, enum nn_f8_made *made, struct fsdp_err *err);
int layer_product(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                  void *out, const void *x, float beta, struct fsdp_err *err);
/* Computes the scale that the maps' matrices share, for the products that follow on the lane. */
int layer_share_scale(const struct model *m, const struct stack_block *blk,
                      const struct layer_map *map, int nmaps, struct fsdp_err *err);
/* Maps from the first one on, in one pass where the device has one: *ndone of them, 0 or several.
 * made: as nn_linear says, of x. */
int layer_plain_maps(const struct model *m, const struct stack_block *blk,
                     const struct layer_map *map, int nmaps, const void *x, enum nn_f8_made *made,
                     int *ndone, struct fsdp_err *err);
int layer_plain_maps_weight(const struct model *m, const struct stack_block *blk,
                            const struct layer_map *map, int nmaps, const void *x, int *ndone,
                            struct fsdp_err *err);
int layer_plain_input(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                      void *dx, const void *dy, float beta, struct fsdp_err *err);
int layer_plain_weight(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                       const void *dy, const void *x, enum nn_f8_made *made, struct fsdp_err *err);

/* The norm of this slot over rows of `dim` elements, at work in the block: weights are set, x, y
 * and what else it takes are the caller's to set. */
struct stack_norm layer_norm(const struct stack_block *blk, const struct model *m,
                             enum stack_slot slot, int rows, int dim);
/* The same over the stream's width, with its statistics. */
struct stack_norm layer_stream_norm(const struct stack_block *blk, const struct model *m,
                                    enum stack_slot slot);

/* blk->out += blk->norm, a branch's output, with dropout or times the model's multiplier. */
int layer_add_branch(const struct model *m, const struct stack_block *blk, enum stack_site site,
                     struct fsdp_err *err);
/* *dy = the gradient of the branch's output before dropout or multiplier: d_out, or in blk->norm.
 */
int layer_branch_gradient(const void **dy, const struct model *m, const struct stack_block *blk,
                          enum stack_site site, const void *d_out, struct fsdp_err *err);

/* A mixture of experts, which reads x (R, C). route: who reads what, and the hidden values before
 * the activation, which is all that backward needs. add: y (R, C) = the experts' sum + beta y. */
int layer_experts_route(const struct model *m, const struct stack_block *blk, const void *x,
                        struct fsdp_err *err);
int layer_experts_add(const struct model *m, const struct stack_block *blk, void *y, float beta,
                      struct fsdp_err *err);
/* From dy (R, C), the gradient of y, to the gradients of the last matrix, of what the others gave,
 * and of the routing. Then dx (R, C) = that of x + beta dx, where dy is not read any more; and at
 * last, from x again, the gradients of the other matrices. */
int layer_experts_backward(const struct model *m, const struct stack_block *blk, const void *dy,
                           struct fsdp_err *err);
int layer_experts_input(const struct model *m, const struct stack_block *blk, void *dx, float beta,
                        struct fsdp_err *err);
int layer_experts_weight(const struct model *m, const struct stack_block *blk, const void *x,
                         struct fsdp_err *err);

/* What the adapter of the experts' matrices of a slot adds, where it has one. out (R K, nout) +=
 * that of x (R K, nin); dx += that of dy; and the gradients of A and B. Where gate and up share
 * one, gate comes first and up next, with the same x. */
int layer_experts_lora_forward(const struct model *m, const struct stack_block *blk,
                               enum stack_expert slot, void *out, const void *x,
                               struct fsdp_err *err);
int layer_experts_lora_input(const struct model *m, const struct stack_block *blk,
                             enum stack_expert slot, void *dx, const void *dy,
                             struct fsdp_err *err);
int layer_experts_lora_weight(const struct model *m, const struct stack_block *blk,
                              enum stack_expert slot, const void *dy, const void *x,
                              struct fsdp_err *err);

/* What the MLP reads in forward: the stream, or the layer's input. */
const void *layer_mlp_input(const struct model *m, const struct stack_block *blk);
/* out = x, of the stream's shape */
int layer_copy(const struct model *m, const struct stack_block *blk, void *out, const void *x,
               struct fsdp_err *err);

/* A branch's last step, from `x` (R, nin) on: blk->out += dropout or multiple of the norm of x Wᵀ +
 * bias. y: what the norm behind the branch reads (attn_y, mlp_y). */
struct layer_end {
    enum stack_slot slot, post;
    enum stack_site site;
    void *y;
};
int layer_end_forward(const struct model *m, const struct stack_block *blk,
                      const struct layer_end *end, const void *x, bool add, struct fsdp_err *err);
/* *dy: the gradient of x Wᵀ + bias, from that of the branch's output, which is `d_out`. */
int layer_end_backward(const void **dy, const struct model *m, const struct stack_block *blk,
                       const struct layer_end *end, const void *d_out, struct fsdp_err *err);

#endif
