/* SPDX-License-Identifier: Apache-2.0 */
/* A layer's lists of operators by their names. */
#include "layer.h"

static int run_each(const struct model *m, const struct stack_block *blk,
                    const struct stack_list_call *call, struct fsdp_err *err)
{
    switch (call->list) {
    case STACK_ATTENTION_FORWARD:
        return layer_attention_forward(m, blk, call->add, err);
    case STACK_ATTEND:
        return layer_attend(m, blk, call->add, err);
    case STACK_MLP_FORWARD:
        return layer_mlp_forward(m, blk, call->add, err);
    case STACK_ATTENTION_BACKWARD:
        return layer_attention_backward(m, blk, err);
    default:
        return layer_mlp_backward(m, blk, err);
    }
}

int stack_run_list(struct model *m, const struct stack_block *blk, enum stack_list list, bool add,
                   struct fsdp_err *err)
{
    const struct stack_list_call call = {list, add, run_each};
    return stack_graph_run(m, blk, &call, err);
}
