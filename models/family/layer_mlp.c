/* SPDX-License-Identifier: Apache-2.0 */
/* The MLP of a layer: down(act(gate) * up), or down(act(up)); and experts in its place. */
#include "layer.h"

static size_t hidden_nelem(const struct model *m, const struct stack_block *blk)
{
    return (size_t)blk->B * (size_t)blk->Tq * (size_t)m->traits.ffn;
}

static struct nn_glu glu_of(const struct model *m, const struct stack_block *blk)
{
    return (struct nn_glu){.y = blk->act,
                           .gate = blk->gate,
                           .up = blk->up,
                           .nelem = hidden_nelem(m, blk),
                           .act = m->traits.act,
                           .dtype = blk->dtype};
}

static struct nn_pointwise pointwise_of(const struct model *m, const struct stack_block *blk)
{
    return (struct nn_pointwise){.y = blk->act,
                                 .x = blk->up,
                                 .nelem = hidden_nelem(m, blk),
                                 .act = m->traits.act,
                                 .dtype = blk->dtype};
}

static struct layer_end end_of(const struct stack_block *blk)
{
    return (struct layer_end){STACK_DOWN, STACK_POST2, STACK_MLP_OUT, blk->mlp_y};
}

/* blk->act = the hidden values */
static int activate(const struct model *m, const struct stack_block *blk, struct fsdp_err *err)
{
    const struct nn_glu glu = glu_of(m, blk);
    const struct nn_pointwise pointwise = pointwise_of(m, blk);
    return m->traits.gated ? m->nn->glu_forward(blk->lane, &glu, err)
                           : m->nn->pointwise_forward(blk->lane, &pointwise, err);
}

/* From the gradient of the hidden values in blk->act to those of gate and up, in place; act becomes
 * the hidden values again. */
static int activate_backward(const struct model *m, const struct stack_block *blk,
                             struct fsdp_err *err)
{
    const struct nn_glu glu = glu_of(m, blk);
    const struct nn_pointwise pointwise = pointwise_of(m, blk);
    return m->traits.gated ? m->nn->glu_backward(blk->lane, &glu, err)
                           : m->nn->pointwise_backward(blk->lane, &pointwise, err);
}

/* *x: what gate and up read. The stream is kept in blk->mid, where that is wanted. */
static int read_stream(const void **x, const struct model *m, const struct stack_block *blk,
                       struct fsdp_err *err)
{
    const void *in = layer_mlp_input(m, blk);
    void *copy = m->traits.parallel ? NULL : blk->mid;

    *x = in;
    if (!m->traits.pre_norm)
        return copy ? layer_copy(m, blk, copy, in, err) : FSDP_OK;
    struct stack_norm norm = layer_stream_norm(blk, m, STACK_NORM2);
    norm.x = in;
    norm.y = blk->norm;
    norm.x_copy = copy;
    *x = blk->norm;
    return stack_norm_forward(m, blk->lane, &norm, err);
}

/* Up, and gate before it where it is there. */
static int hidden_maps(struct layer_map map[2], const struct model *m,
                       const struct stack_block *blk)
{
    const bool gated = m->traits.gated;
    map[0] = (struct layer_map){STACK_GATE, blk->gate};
    map[gated] = (struct layer_map){STACK_UP, blk->up};
    return gated ? 2 : 1;
}

/* The hidden values' inputs of the MLP, where there is one; *activated: the hidden values, too,
 * where the device makes both at once. */
static int enter_hidden(bool *activated, const struct model *m, const struct stack_block *blk,
                        const void *x, struct fsdp_err *err)
{
    struct layer_map map[2];
    const int nmaps = hidden_maps(map, m, blk);

    *activated = false;
    if (m->traits.ffn && !m->traits.gated)
        FSDP_TRY(layer_project_activated(m, blk, STACK_UP, blk->act, blk->up, x, activated, err));
    return m->traits.ffn && !*activated ? layer_project_each(m, blk, map, nmaps, x, err) : FSDP_OK;
}

/* blk->out += the experts and, where all rows have one besides, the MLP. */
static int mixture_forward(const struct model *m, const struct stack_block *blk, const void *x,
                           bool add, struct fsdp_err *err)
{
    const bool direct = m->traits.residual_scale == 1;
    void *y = direct ? blk->out : blk->norm;
    float beta = direct;
    bool activated;

    FSDP_TRY(layer_experts_route(m, blk, x, err));
    FSDP_TRY(enter_hidden(&activated, m, blk, x, err));
    if (!add)
        return FSDP_OK;
    if (m->traits.ffn) {
        FSDP_TRY(activated ? FSDP_OK : activate(m, blk, err));
        FSDP_TRY(layer_project(m, blk, STACK_DOWN, y, blk->act, beta, err));
        beta = 1;
    }
    FSDP_TRY(layer_experts_add(m, blk, y, beta, err));
    return direct ? FSDP_OK : layer_add_branch(m, blk, STACK_MLP_OUT, err);
}

int layer_mlp_forward(const struct model *m, const struct stack_block *blk, bool add,
                      struct fsdp_err *err)
{
    const struct layer_end end = end_of(blk);
    const void *x;
    bool activated;

    FSDP_TRY(read_stream(&x, m, blk, err));
    if (m->traits.experts)
        return mixture_forward(m, blk, x, add, err);
    FSDP_TRY(enter_hidden(&activated, m, blk, x, err));
    if (!add && !m->traits.post_norm)
        return FSDP_OK;
    FSDP_TRY(activated ? FSDP_OK : activate(m, blk, err));
    return layer_end_forward(m, blk, &end, blk->act, add, err);
}

/* From the gradients of gate and up to that of the stream, which is added to blk->out; *x: what
 * gate and up read. */
static int stream_gradient(const void **x, const struct model *m, const struct stack_block *blk,
                           struct fsdp_err *err)
{
    const void *in = m->traits.parallel ? blk->in : blk->mid;
    void *dx = m->traits.pre_norm ? blk->norm : blk->out;
    float beta = m->traits.pre_norm ? 0 : 1;

    if (m->traits.experts) {
        FSDP_TRY(layer_experts_input(m, blk, dx, beta, err));
        beta = 1;
    }
    if (m->traits.ffn) {
        struct layer_map map[2];
        const int nmaps = hidden_maps(map, m, blk);
        FSDP_TRY(layer_project_each_input(m, blk, map, nmaps, dx, beta, err));
    }
    *x = in;
    if (!m->traits.pre_norm)
        return FSDP_OK;
    struct stack_norm norm = layer_stream_norm(blk, m, STACK_NORM2);
    norm.y = blk->norm;
    norm.x = in;
    norm.dx = blk->out;
    norm.dx_beta = 1;
    *x = blk->norm;
    return stack_norm_backward(m, blk->lane, &norm, err);
}

/* From the gradient of the MLP's output to those of gate and up, and the hidden values in blk->act.
 * Where the device does two of these at once, the gradient of up and the hidden values lie in each
 * other's places, and blk's are exchanged. */
static int hidden_gradient(struct stack_block *blk, const struct model *m, const void *dy,
                           struct fsdp_err *err)
{
    bool done = false;

    if (!m->traits.gated)
        FSDP_TRY(
            layer_project_input_activated(m, blk, STACK_DOWN, blk->act, blk->up, dy, &done, err));
    if (!done) {
        FSDP_TRY(layer_project_input(m, blk, STACK_DOWN, blk->act, dy, 0, err));
        return activate_backward(m, blk, err);
    }
    void *const up = blk->act;
    blk->act = blk->up;
    blk->up = up;
    const struct nn_pointwise again = {.y = blk->act,
                                       .x = blk->act,
                                       .nelem = hidden_nelem(m, blk),
                                       .act = m->traits.act,
                                       .dtype = blk->dtype};
    return m->nn->pointwise_forward(blk->lane, &again, err);
}

/* The weight gradients come last: they want the norm's output and the hidden values, which were not
 * kept and which the backward operators make again on their way. */
int layer_mlp_backward(const struct model *m, const struct stack_block *block, struct fsdp_err *err)
{
    struct stack_block own = *block, *const blk = &own;
    const struct layer_end end = end_of(blk);
    struct layer_map map[2];
    const void *dy, *x;

    if (m->traits.parallel) /* attention needs the gradient of the output, too */
        FSDP_TRY(layer_copy(m, blk, blk->mid, blk->out, err));
    FSDP_TRY(layer_end_backward(&dy, m, blk, &end, blk->out, err));
    if (m->traits.experts)
        FSDP_TRY(layer_experts_backward(m, blk, dy, err));
    if (m->traits.ffn) {
        FSDP_TRY(hidden_gradient(blk, m, dy, err));
        FSDP_TRY(layer_project_weight(m, blk, STACK_DOWN, dy, blk->act, err));
    }
    FSDP_TRY(stream_gradient(&x, m, blk, err));
    if (m->traits.experts)
        FSDP_TRY(layer_experts_weight(m, blk, x, err));
    const int nmaps = hidden_maps(map, m, blk);
    return m->traits.ffn ? layer_project_each_weight(m, blk, map, nmaps, x, err) : FSDP_OK;
}
