/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mixture of experts in the place of a layer's MLP, or next to it: a router chooses some experts
 * for each row, and the sum of what they make of it, by the router's weights, is the output. Rows
 * are sorted by expert, so that each product is one call over all experts; none is dropped.
 */
#include "layer.h"

static int rows_of(const struct stack_block *blk)
{
    return blk->B * blk->Tq;
}

static int places_of(const struct model *m, const struct stack_block *blk)
{
    return rows_of(blk) * m->traits.experts_per_token;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* blk->places = x (R, C) by place, times its weight where that is wanted. */
static int spread(const struct model *m, const struct stack_block *blk, const void *x,
                  bool weighted, struct fsdp_err *err)
{
    const struct nn_spread_rows args = {.out = blk->places,
                                        .x = x,
                                        .weight = weighted ? blk->routing.weight : NULL,
                                        .slot = blk->routing.slot,
                                        .rows = rows_of(blk),
                                        .chosen = m->traits.experts_per_token,
                                        .dim = m->traits.dim,
                                        .dtype = blk->dtype};
    return m->nn->spread_rows(blk->lane, &args, err);
}

/* y (R, C) = the sums of blk->places + beta y. */
static int collect(const struct model *m, const struct stack_block *blk, void *y, bool weighted,
                   float beta, struct fsdp_err *err)
{
    const struct nn_collect_rows args = {.out = y,
                                         .x = blk->places,
                                         .weight = weighted ? blk->routing.weight : NULL,
                                         .place = blk->routing.place,
                                         .rows = rows_of(blk),
                                         .chosen = m->traits.experts_per_token,
                                         .dim = m->traits.dim,
                                         .beta = beta,
                                         .dtype = blk->dtype};
    return m->nn->collect_rows(blk->lane, &args, err);
}

static struct nn_glu glu_of(const struct model *m, const struct stack_block *blk, void *y)
{
    return (struct nn_glu){.y = y,
                           .gate = blk->expert_gate,
                           .up = blk->expert_up,
                           .nelem = (size_t)places_of(m, blk) * (size_t)m->traits.expert_ffn,
                           .act = m->traits.act,
                           .dtype = blk->dtype};
}

/* ---- products -------------------------------------------------------------------------------- */

/* A product of all experts with the matrix of this slot. */
static struct nn_grouped grouped_of(const struct model *m, const struct stack_block *blk,
                                    enum stack_expert slot, void *out)
{
    const struct stack_place place = m->expert_place[slot];
    const struct stack_experts *w = &blk->experts[place.weight];
    const size_t at = (size_t)place.first * (size_t)place.nin;
    return (struct nn_grouped){.out = out,
                               .transposed = place.bias >= 0,
                               .w = stack_weight_at(&w->first, at),
                               .w_each = w->each,
                               .stride = w->stride,
                               .first = blk->routing.first,
                               .first_host = blk->routing.first_host,
                               .work = blk->work,
                               .experts = m->traits.experts,
                               .nplaces = places_of(m, blk),
                               .nin = place.nin,
                               .nout = place.nout,
                               .dtype = blk->dtype,
                               .w_dtype = w->first.w_dtype,
                               .dw_dtype = w->first.dw_dtype,
                               .f8 = m->expert_weight[place.weight].f8,
                               .w_amax = w->first.w_amax,
                               .amax_step = w->amax_step};
}

/* The biases of all experts; zeros where they have none. */
static const struct stack_param *bias_of(const struct model *m, const struct stack_block *blk,
                                         enum stack_expert slot)
{
    static const struct stack_param none;
    const int bias = m->expert_place[slot].bias;
    return bias < 0 ? &none : &blk->experts[bias].first;
}

static int project(const struct model *m, const struct stack_block *blk, enum stack_expert slot,
                   void *out, const void *x, struct fsdp_err *err)
{
    struct nn_grouped args = grouped_of(m, blk, slot, out);
    args.b = bias_of(m, blk, slot)->w;
    args.x = x;
    FSDP_TRY(m->nn->grouped_forward(blk->lane, &args, err));
    return layer_experts_lora_forward(m, blk, slot, out, x, err);
}

static int project_input(const struct model *m, const struct stack_block *blk,
                         enum stack_expert slot, void *dx, const void *dy, float beta,
                         struct fsdp_err *err)
{
    struct nn_grouped args = grouped_of(m, blk, slot, dx);
    args.dy = dy;
    args.beta = beta;
    FSDP_TRY(m->nn->grouped_backward_input(blk->lane, &args, err));
    return layer_experts_lora_input(m, blk, slot, dx, dy, err);
}

static int project_weight(const struct model *m, const struct stack_block *blk,
                          enum stack_expert slot, const void *dy, const void *x,
                          struct fsdp_err *err)
{
    const struct stack_place place = m->expert_place[slot];
    const struct stack_experts *experts = &blk->experts[place.weight];
    const struct stack_param *w = &experts->first;
    const size_t at = (size_t)place.first * (size_t)place.nin;
    const struct stack_param *b = bias_of(m, blk, slot);
    struct nn_grouped args = grouped_of(m, blk, slot, nn_at(w->dw, w->dw_dtype, at));
    args.stride = experts->grad_stride;
    args.db = b->dw;
    args.dy = dy;
    args.x = x;
    args.beta = layer_pair_beta(w, b->w ? b : NULL);
    FSDP_TRY(m->nn->grouped_backward_weight(blk->lane, &args, err));
    return layer_experts_lora_weight(m, blk, slot, dy, x, err);
}

/* ---- gate and up of one matrix, column by column --------------------------------------------- */

static bool alternate(const struct model *m)
{
    return m->family->names->experts_gate_up_bias;
}

/* Between gate and up, and where both alternate: (R K, Fe, 2) from blk->hidden on. */
static int move_both(const struct model *m, const struct stack_block *blk, bool back,
                     struct fsdp_err *err)
{
    void *const parts[] = {blk->expert_gate, blk->expert_up};
    const int F = m->traits.expert_ffn;

    for (size_t i = 0; i < 2; i++) {
        void *both = nn_at(blk->hidden, blk->dtype, i);
        const struct nn_copy_blocks args = {.out = back ? both : parts[i],
                                            .x = back ? parts[i] : both,
                                            .rows = places_of(m, blk),
                                            .nblocks = F,
                                            .width = 1,
                                            .out_row = back ? 2 * F : F,
                                            .out_block = back ? 2 : 1,
                                            .x_row = back ? F : 2 * F,
                                            .x_block = back ? 1 : 2,
                                            .dtype = blk->dtype};
        FSDP_TRY(m->nn->copy_blocks(blk->lane, &args, err));
    }
    return FSDP_OK;
}

/* ---- forward --------------------------------------------------------------------------------- */

static int count(const struct model *m, const struct stack_block *blk, struct fsdp_err *err)
{
    const size_t E = (size_t)m->traits.experts;
    const struct nn_expert_load args = {.counts = blk->load.counts + (size_t)blk->layer * E,
                                        .sums = blk->load.sums,
                                        .squares = blk->load.squares,
                                        .lse = blk->routing.lse,
                                        .expert = blk->routing.expert,
                                        .probs = blk->routing.probs,
                                        .rows = blk->load.rows,
                                        .experts = m->traits.experts,
                                        .chosen = m->traits.experts_per_token};
    return blk->load.rows ? m->nn->expert_load(blk->lane, &args, err) : FSDP_OK;
}

/* From blk->places to what the activation reads. */
static int enter_hidden(const struct model *m, const struct stack_block *blk, struct fsdp_err *err)
{
    if (alternate(m)) {
        FSDP_TRY(project(m, blk, STACK_EXPERT_GATE, blk->hidden, blk->places, err));
        return move_both(m, blk, false, err);
    }
    FSDP_TRY(project(m, blk, STACK_EXPERT_GATE, blk->expert_gate, blk->places, err));
    return project(m, blk, STACK_EXPERT_UP, blk->expert_up, blk->places, err);
}

int layer_experts_route(const struct model *m, const struct stack_block *blk, const void *x,
                        struct fsdp_err *err)
{
    const struct traits *t = &m->traits;
    const struct stack_routing *r = &blk->routing;
    const struct nn_route route = {.logits = blk->router_logits,
                                   .probs = r->probs,
                                   .expert = r->expert,
                                   .weight = r->weight,
                                   .lse = r->lse,
                                   .rows = rows_of(blk),
                                   .experts = t->experts,
                                   .chosen = t->experts_per_token,
                                   .normalized = t->normalized_routing,
                                   .dtype = blk->dtype};
    const struct nn_expert_order order = {.first = r->first,
                                          .first_host = r->first_host,
                                          .slot = r->slot,
                                          .place = r->place,
                                          .expert = r->expert,
                                          .rows = rows_of(blk),
                                          .experts = t->experts,
                                          .chosen = t->experts_per_token};

    FSDP_TRY(layer_project(m, blk, STACK_ROUTER, blk->router_logits, x, 0, err));
    FSDP_TRY(m->nn->route_forward(blk->lane, &route, err));
    FSDP_TRY(m->nn->expert_order(blk->lane, &order, err));
    FSDP_TRY(count(m, blk, err));
    FSDP_TRY(spread(m, blk, x, false, err));
    return enter_hidden(m, blk, err);
}

int layer_experts_add(const struct model *m, const struct stack_block *blk, void *y, float beta,
                      struct fsdp_err *err)
{
    const struct nn_glu glu = glu_of(m, blk, blk->hidden);

    FSDP_TRY(m->nn->glu_forward(blk->lane, &glu, err));
    FSDP_TRY(project(m, blk, STACK_EXPERT_DOWN, blk->places, blk->hidden, err));
    return collect(m, blk, y, true, beta, err);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Of a row's weights and, where those are trained, of the load-balance loss and the z-loss. */
static int route_backward(const struct model *m, const struct stack_block *blk,
                          struct fsdp_err *err)
{
    const struct traits *t = &m->traits;
    const struct nn_route_backward args = {.dlogits = blk->router_logits,
                                           .dweight = blk->d_weight,
                                           .balance = blk->balanced ? blk->load.balance : NULL,
                                           .probs = blk->routing.probs,
                                           .weight = blk->routing.weight,
                                           .lse = blk->routing.lse,
                                           .loss_scale = blk->loss_scale,
                                           .z_loss = blk->z_loss,
                                           .expert = blk->routing.expert,
                                           .rows = rows_of(blk),
                                           .experts = t->experts,
                                           .chosen = t->experts_per_token,
                                           .counted = blk->load.rows,
                                           .normalized = t->normalized_routing,
                                           .dtype = blk->dtype};
    return m->nn->route_backward(blk->lane, &args, err);
}

/* The gradient of a weight is that of the hidden values, before they were weighted, times these,
 * and of the output times the bias: what the last product gave need not be kept. */
int layer_experts_backward(const struct model *m, const struct stack_block *blk, const void *dy,
                           struct fsdp_err *err)
{
    const struct stack_param *b = bias_of(m, blk, STACK_EXPERT_DOWN);
    const struct nn_glu again = glu_of(m, blk, blk->hidden), glu = glu_of(m, blk, blk->d_hidden);
    const struct nn_weigh_backward weigh = {.dy = blk->d_hidden,
                                            .y = blk->hidden,
                                            .dweight = blk->d_weight,
                                            .weight = blk->routing.weight,
                                            .slot = blk->routing.slot,
                                            .b = b->w,
                                            .d_out = blk->places,
                                            .expert = blk->routing.expert,
                                            .nplaces = places_of(m, blk),
                                            .dim = m->traits.expert_ffn,
                                            .nout = m->traits.dim,
                                            .dtype = blk->dtype,
                                            .w_dtype = b->w_dtype};

    FSDP_TRY(spread(m, blk, dy, false, err));
    FSDP_TRY(project_input(m, blk, STACK_EXPERT_DOWN, blk->d_hidden, blk->places, 0, err));
    FSDP_TRY(m->nn->glu_forward(blk->lane, &again, err));
    FSDP_TRY(m->nn->weigh_backward(blk->lane, &weigh, err));
    FSDP_TRY(spread(m, blk, dy, true, err));
    FSDP_TRY(project_weight(m, blk, STACK_EXPERT_DOWN, blk->places, blk->hidden, err));
    FSDP_TRY(m->nn->glu_backward(blk->lane, &glu, err));
    if (alternate(m)) /* hidden values are not read any more */
        FSDP_TRY(move_both(m, blk, true, err));
    return route_backward(m, blk, err);
}

int layer_experts_input(const struct model *m, const struct stack_block *blk, void *dx, float beta,
                        struct fsdp_err *err)
{
    const void *gate = alternate(m) ? blk->hidden : blk->expert_gate;

    FSDP_TRY(project_input(m, blk, STACK_EXPERT_GATE, blk->places, gate, 0, err));
    if (!alternate(m))
        FSDP_TRY(project_input(m, blk, STACK_EXPERT_UP, blk->places, blk->expert_up, 1, err));
    FSDP_TRY(collect(m, blk, dx, false, beta, err));
    return layer_project_input(m, blk, STACK_ROUTER, dx, blk->router_logits, 1, err);
}

int layer_experts_weight(const struct model *m, const struct stack_block *blk, const void *x,
                         struct fsdp_err *err)
{
    const void *gate = alternate(m) ? blk->hidden : blk->expert_gate;

    FSDP_TRY(spread(m, blk, x, false, err));
    FSDP_TRY(project_weight(m, blk, STACK_EXPERT_GATE, gate, blk->places, err));
    if (!alternate(m))
        FSDP_TRY(project_weight(m, blk, STACK_EXPERT_UP, blk->expert_up, blk->places, err));
    return layer_project_weight(m, blk, STACK_ROUTER, blk->router_logits, x, err);
}
