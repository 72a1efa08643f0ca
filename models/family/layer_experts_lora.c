/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The low-rank part of the experts' matrices, each expert e with its own: y += scale (x A_eᵀ) B_eᵀ.
 * A is (experts, r, nin). PEFT has B as (nout, r, experts); for products it is turned into
 * (experts, nout, r) first, and its gradient back.
 */
#include "layer.h"

struct adapter {
    const struct stack_param *a, *b;
    struct stack_expert_lora of; /* which rows of B */
    double scale;
    int nin, nout, r, experts;
};

static struct adapter adapter_of(const struct model *m, const struct stack_block *blk,
                                 enum stack_expert slot)
{
    const struct stack_place place = m->expert_place[slot];
    return (struct adapter){.a = &blk->param[place.lora],
                            .b = &blk->param[place.lora + 1],
                            .of = stack_expert_lora(m, slot),
                            .nin = place.nin,
                            .nout = place.nout,
                            .r = m->weight[place.lora].rank.r,
                            .scale = m->weight[place.lora].rank.scale,
                            .experts = m->traits.experts};
}

static bool has_adapter(const struct model *m, enum stack_expert slot)
{
    return m->expert_place[slot].lora > 0;
}

/* Gate and up share an adapter. Gate comes first: what is made of B, and of the input by A, is
 * there for up. */
static bool is_first(const struct adapter *x)
{
    return x->of.first == 0;
}

static bool is_last(const struct adapter *x)
{
    return x->of.first + x->nout == x->of.rows;
}

/* ---- B, turned ------------------------------------------------------------------------------- */

/* out (experts, nout r) = x (nout r, experts)ᵀ */
static int experts_first(const struct model *m, const struct stack_block *blk,
                         const struct adapter *of, void *out, const void *x, enum fsdp_dtype dtype,
                         struct fsdp_err *err)
{
    const int nelem = of->of.rows * of->r;
    const struct nn_copy_blocks args = {.out = out,
                                        .x = x,
                                        .rows = nelem,
                                        .nblocks = of->experts,
                                        .width = 1,
                                        .out_row = 1,
                                        .out_block = nelem,
                                        .x_row = of->experts,
                                        .x_block = 1,
                                        .dtype = dtype};
    return m->nn->copy_blocks(blk->lane, &args, err);
}

/* out (nout r, experts) = x (experts, nout r)ᵀ */
static int experts_last(const struct model *m, const struct stack_block *blk,
                        const struct adapter *of, void *out, const void *x, enum fsdp_dtype dtype,
                        struct fsdp_err *err)
{
    const int nelem = of->of.rows * of->r;
    const struct nn_copy_blocks args = {.out = out,
                                        .x = x,
                                        .rows = nelem,
                                        .nblocks = of->experts,
                                        .width = 1,
                                        .out_row = of->experts,
                                        .out_block = 1,
                                        .x_row = 1,
                                        .x_block = nelem,
                                        .dtype = dtype};
    return m->nn->copy_blocks(blk->lane, &args, err);
}

static int turn_b(const struct model *m, const struct stack_block *blk, const struct adapter *x,
                  struct fsdp_err *err)
{
    return is_first(x) ? experts_first(m, blk, x, blk->expert_b, x->b->w, x->b->w_dtype, err)
                       : FSDP_OK;
}

/* ---- products with A and B ------------------------------------------------------------------- */

static struct nn_grouped grouped_of(const struct model *m, const struct stack_block *blk)
{
    return (struct nn_grouped){.first = blk->routing.first,
                               .first_host = blk->routing.first_host,
                               .work = blk->work,
                               .experts = m->traits.experts,
                               .nplaces = blk->B * blk->Tq * m->traits.experts_per_token,
                               .dtype = blk->dtype};
}

/* Of A: (places, nin) -> (places, r). */
static struct nn_grouped product_a(const struct model *m, const struct stack_block *blk,
                                   const struct adapter *x)
{
    struct nn_grouped args = grouped_of(m, blk);
    args.w = x->a->w;
    args.stride = (size_t)x->r * (size_t)x->nin;
    args.nin = x->nin;
    args.nout = x->r;
    args.w_dtype = x->a->w_dtype;
    args.dw_dtype = x->a->dw_dtype;
    return args;
}

/* Of B: (places, r) -> (places, nout). */
static struct nn_grouped product_b(const struct model *m, const struct stack_block *blk,
                                   const struct adapter *x)
{
    struct nn_grouped args = grouped_of(m, blk);
    args.w = nn_at(blk->expert_b, x->b->w_dtype, (size_t)x->of.first * (size_t)x->r);
    args.stride = (size_t)x->of.rows * (size_t)x->r;
    args.nin = x->r;
    args.nout = x->nout;
    args.w_dtype = x->b->w_dtype;
    args.dw_dtype = x->b->dw_dtype;
    return args;
}

static int scale_low(const struct model *m, const struct stack_block *blk, const struct adapter *of,
                     void *low, struct fsdp_err *err)
{
    const size_t nplaces = (size_t)blk->B * (size_t)blk->Tq * (size_t)m->traits.experts_per_token;
    const struct nn_scale_add args = {.out = low,
                                      .x = low,
                                      .nelem = nplaces * (size_t)of->r,
                                      .alpha = (float)of->scale,
                                      .dtype = blk->dtype};
    return m->nn->scale_add(blk->lane, &args, err);
}

/* blk->expert_low = scale x Aᵀ */
static int make_low(const struct model *m, const struct stack_block *blk, const struct adapter *of,
                    const void *x, struct fsdp_err *err)
{
    struct nn_grouped args = product_a(m, blk, of);

    if (!is_first(of))
        return FSDP_OK;
    args.out = blk->expert_low;
    args.x = x;
    FSDP_TRY(m->nn->grouped_forward(blk->lane, &args, err));
    return scale_low(m, blk, of, blk->expert_low, err);
}

/* blk->expert_d_low = scale dy B */
static int make_d_low(const struct model *m, const struct stack_block *blk,
                      const struct adapter *of, const void *dy, struct fsdp_err *err)
{
    struct nn_grouped args = product_b(m, blk, of);

    args.out = blk->expert_d_low;
    args.dy = dy;
    FSDP_TRY(m->nn->grouped_backward_input(blk->lane, &args, err));
    return scale_low(m, blk, of, blk->expert_d_low, err);
}

/* ---- forward and backward -------------------------------------------------------------------- */

int layer_experts_lora_forward(const struct model *m, const struct stack_block *blk,
                               enum stack_expert slot, void *out, const void *x,
                               struct fsdp_err *err)
{
    if (!has_adapter(m, slot))
        return FSDP_OK;
    const struct adapter adapter = adapter_of(m, blk, slot);
    struct nn_grouped args = product_b(m, blk, &adapter);

    FSDP_TRY(turn_b(m, blk, &adapter, err));
    FSDP_TRY(make_low(m, blk, &adapter, x, err));
    args.out = out;
    args.x = blk->expert_low;
    args.beta = 1;
    return m->nn->grouped_forward(blk->lane, &args, err);
}

int layer_experts_lora_input(const struct model *m, const struct stack_block *blk,
                             enum stack_expert slot, void *dx, const void *dy, struct fsdp_err *err)
{
    if (!has_adapter(m, slot))
        return FSDP_OK;
    const struct adapter adapter = adapter_of(m, blk, slot);
    struct nn_grouped args = product_a(m, blk, &adapter);

    FSDP_TRY(turn_b(m, blk, &adapter, err));
    FSDP_TRY(make_d_low(m, blk, &adapter, dy, err));
    args.out = dx;
    args.dy = blk->expert_d_low;
    args.beta = 1;
    return m->nn->grouped_backward_input(blk->lane, &args, err);
}

/* Of the slot's rows of B, whose gradient is added up with the experts outermost. */
static int b_gradient(const struct model *m, const struct stack_block *blk,
                      const struct adapter *of, const void *dy, struct fsdp_err *err)
{
    const struct stack_param *b = of->b;
    struct nn_grouped args = product_b(m, blk, of);

    if (is_first(of) && b->dw_beta != 0)
        FSDP_TRY(experts_first(m, blk, of, blk->expert_db, b->dw, b->dw_dtype, err));
    args.out = nn_at(blk->expert_db, b->dw_dtype, (size_t)of->of.first * (size_t)of->r);
    args.x = blk->expert_low;
    args.dy = dy;
    args.beta = b->dw_beta;
    FSDP_TRY(m->nn->grouped_backward_weight(blk->lane, &args, err));
    return is_last(of) ? experts_last(m, blk, of, b->dw, blk->expert_db, b->dw_dtype, err)
                       : FSDP_OK;
}

int layer_experts_lora_weight(const struct model *m, const struct stack_block *blk,
                              enum stack_expert slot, const void *dy, const void *x,
                              struct fsdp_err *err)
{
    if (!has_adapter(m, slot))
        return FSDP_OK;
    const struct adapter adapter = adapter_of(m, blk, slot);
    struct nn_grouped args = product_a(m, blk, &adapter);

    FSDP_TRY(turn_b(m, blk, &adapter, err));
    FSDP_TRY(make_low(m, blk, &adapter, x, err));
    FSDP_TRY(b_gradient(m, blk, &adapter, dy, err));
    FSDP_TRY(make_d_low(m, blk, &adapter, dy, err));
    args.out = adapter.a->dw;
    args.x = x;
    args.dy = blk->expert_d_low;
    args.beta = is_first(&adapter) ? adapter.a->dw_beta : 1;
    return m->nn->grouped_backward_weight(blk->lane, &args, err);
}
