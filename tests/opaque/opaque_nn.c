/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's operators, whose pointers must be those of a device. What nn.h calls host memory
 * (frequencies of a rope table, tokens to be split) is not among them. */
#include "pointers.h"

/* clang-format off */
#define NN_CALLS(X)                                                                               \
    X(linear_forward, nn_linear, (a->out, a->x, a->w, a->b, a->work, a->w_shared))                \
    X(linear_backward_input, nn_linear, (a->out, a->w, a->dy, a->work, a->w_shared))              \
    X(linear_backward_weight, nn_linear, (a->out, a->db, a->x, a->dy, a->work))                   \
    X(f8_amax, nn_f8_amax, (a->amax, a->w[0], a->w[1], a->w[2]))                                  \
    X(embedding_forward, nn_embedding, (a->out, a->w, a->tokens))                                 \
    X(embedding_backward, nn_embedding, (a->out, a->dy, a->tokens))                               \
    X(rmsnorm_forward, nn_rmsnorm, (a->y, a->rstd, a->x_copy, a->x, a->w))                        \
    X(rmsnorm_backward, nn_rmsnorm_backward, (a->dy, a->dx, a->dw, a->x, a->w, a->rstd))          \
    X(layernorm_forward, nn_layernorm, (a->y, a->mean, a->rstd, a->x_copy, a->x, a->w, a->b))     \
    X(layernorm_backward, nn_layernorm_backward,                                                  \
      (a->dy, a->dx, a->dw, a->db, a->x, a->w, a->b, a->mean, a->rstd))                           \
    X(rope_table, nn_rope_table, (a->cos, a->sin))                                                \
    X(rope, nn_rope, (a->x, a->from, a->cos, a->sin, a->positions))                                        \
    X(attention_forward, nn_attention, (a->q, a->k, a->v, a->o, a->lse, a->work, a->starts,       \
      a->sinks))                                                                                  \
    X(attention_backward, nn_attention,                                                           \
      (a->q, a->k, a->v, a->o, a->lse, a->d_o, a->work, a->starts, a->sinks, a->dsinks))          \
    X(glu_forward, nn_glu, (a->y, a->gate, a->up))                                                \
    X(glu_backward, nn_glu, (a->y, a->gate, a->up))                                               \
    X(pointwise_forward, nn_pointwise, (a->y, a->x))                                              \
    X(pointwise_backward, nn_pointwise, (a->y, a->x))                                             \
    X(scale_add, nn_scale_add, (a->out, a->x))                                                    \
    X(lengths, nn_lengths, (a->length, a->w, a->a, a->b))                                         \
    X(columns_forward, nn_columns, (a->out, a->x, a->magnitude, a->length, a->b))                 \
    X(columns_backward, nn_columns, (a->out, a->x, a->dy, a->length))                             \
    X(copy_blocks, nn_copy_blocks, (a->out, a->x))                                                \
    X(logits, nn_logits, (a->logits))                                                             \
    X(dropout, nn_dropout, (a->out, a->x))                                                        \
    X(cross_entropy, nn_cross_entropy,                                                            \
      (a->logits, a->targets, a->loss_sum, a->loss_scale, a->weights))                            \
    X(route_forward, nn_route, (a->logits, a->probs, a->expert, a->weight))                       \
    X(route_backward, nn_route_backward,                                                          \
      (a->dlogits, a->dweight, a->balance, a->probs, a->weight, a->expert))                       \
    X(expert_order, nn_expert_order, (a->first, a->slot, a->place, a->expert))                    \
    X(expert_load, nn_expert_load, (a->counts, a->sums, a->expert, a->probs))                     \
    X(balance, nn_balance, (a->loss, a->total, a->balance, a->counts, a->sums, a->loss_scale))    \
    X(spread_rows, nn_spread_rows, (a->out, a->x, a->weight, a->slot))                            \
    X(collect_rows, nn_collect_rows, (a->out, a->x, a->weight, a->place))                         \
    X(weigh_backward, nn_weigh_backward,                                                          \
      (a->dy, a->y, a->dweight, a->weight, a->slot, a->b, a->d_out, a->expert))                   \
    X(grouped_forward, nn_grouped, (a->out, a->x, a->w, a->b, a->first, a->work))                 \
    X(grouped_backward_input, nn_grouped, (a->out, a->dy, a->w, a->first, a->work))               \
    X(grouped_backward_weight, nn_grouped, (a->out, a->db, a->x, a->dy, a->first, a->work))       \
    X(split_tokens, nn_split_tokens, (a->inputs, a->targets))                                     \
    X(positions, nn_positions, (a->out, a->starts))
/* clang-format on */

#define DEFINE_NN(op, type, list)                                                                  \
    static int op(struct fsdp_lane *lane, const struct type *a, struct fsdp_err *err)              \
    {                                                                                              \
        POINTERS_CHECK(#op, list);                                                                 \
        return nn_cpu_ops.op(lane, a, err);                                                        \
    }
NN_CALLS(DEFINE_NN)

#define FILL_NN(op, type, list) ops->op = op;

void opaque_nn_fill(struct nn_ops *ops)
{
    *ops = nn_cpu_ops;
    NN_CALLS(FILL_NN)
}
