/* SPDX-License-Identifier: Apache-2.0 */
/* The low-rank part of a linear map: y += scale (drop(x) Aᵀ) Bᵀ. */
#include "layer.h"

struct adapter {
    const struct stack_param *a, *b;
    struct stack_place place;
    int rows, r;
    size_t at; /* elements of B before the slot's outputs */
};

static struct adapter adapter_of(const struct model *m, const struct stack_block *blk,
                                 enum stack_slot slot)
{
    const struct stack_place place = m->place[slot];
    return (struct adapter){.a = &blk->param[place.lora],
                            .b = &blk->param[place.lora + 1],
                            .place = place,
                            .rows = blk->B * blk->Tq,
                            .r = m->lora.r,
                            .at = (size_t)place.first * (size_t)m->lora.r};
}

static bool has_adapter(const struct model *m, enum stack_slot slot)
{
    return m->place[slot].lora > 0;
}

static bool has_dropout(const struct model *m, const struct stack_block *blk)
{
    return blk->drop && m->lora.dropout > 0;
}

/* ---- products with A and B ------------------------------------------------------------------- */

/* Of A: (rows, nin) -> (rows, r). */
static struct nn_linear down(const struct stack_block *blk, const struct adapter *x)
{
    return (struct nn_linear){.w = x->a->w,
                              .work = blk->work,
                              .rows = x->rows,
                              .nin = x->place.nin,
                              .nout = x->r,
                              .dtype = blk->dtype,
                              .y_dtype = blk->dtype,
                              .w_dtype = x->a->w_dtype,
                              .dw_dtype = x->a->dw_dtype};
}

/* Of B: (rows, r) -> (rows, nout). */
static struct nn_linear up(const struct stack_block *blk, const struct adapter *x)
{
    return (struct nn_linear){.w = nn_at(x->b->w, x->b->w_dtype, x->at),
                              .work = blk->work,
                              .rows = x->rows,
                              .nin = x->r,
                              .nout = x->place.nout,
                              .dtype = blk->dtype,
                              .y_dtype = blk->dtype,
                              .w_dtype = x->b->w_dtype,
                              .dw_dtype = x->b->dw_dtype};
}

static int scale(const struct model *m, const struct stack_block *blk, const struct adapter *x,
                 void *low, struct fsdp_err *err)
{
    const struct nn_scale_add args = {.out = low,
                                      .x = low,
                                      .nelem = (size_t)x->rows * (size_t)x->r,
                                      .alpha = (float)m->lora.scale,
                                      .dtype = blk->dtype};
    return m->nn->scale_add(blk->lane, &args, err);
}

static struct nn_dropout dropout(const struct model *m, const struct stack_block *blk,
                                 const struct adapter *x)
{
    const enum stack_site site = (enum stack_site)(STACK_LORA + x->place.lora);
    return (struct nn_dropout){.B = blk->B,
                               .row_nelem = (size_t)blk->Tq * (size_t)x->place.nin,
                               .dtype = blk->dtype,
                               .drop = stack_drop(blk->drop, blk->layer, site, m->lora.dropout)};
}

/* *in: what A reads. */
static int read_input(const void **in, const struct model *m, const struct stack_block *blk,
                      const struct adapter *x, const void *from, struct fsdp_err *err)
{
    struct nn_dropout args = dropout(m, blk, x);

    *in = from;
    if (!has_dropout(m, blk))
        return FSDP_OK;
    args.out = blk->low_in;
    args.x = from;
    *in = blk->low_in;
    return m->nn->dropout(blk->lane, &args, err);
}

/* blk->low = scale * in Aᵀ */
static int make_low(const struct model *m, const struct stack_block *blk, const struct adapter *x,
                    const void *in, struct fsdp_err *err)
{
    struct nn_linear args = down(blk, x);

    args.out = blk->low;
    args.x = in;
    FSDP_TRY(m->nn->linear_forward(blk->lane, &args, err));
    return scale(m, blk, x, blk->low, err);
}

/* blk->d_low = scale * dy B */
static int make_d_low(const struct model *m, const struct stack_block *blk, const struct adapter *x,
                      const void *dy, struct fsdp_err *err)
{
    struct nn_linear args = up(blk, x);

    args.out = blk->d_low;
    args.dy = dy;
    FSDP_TRY(m->nn->linear_backward_input(blk->lane, &args, err));
    return scale(m, blk, x, blk->d_low, err);
}

/* ---- forward and backward -------------------------------------------------------------------- */

int layer_lora_forward(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                       void *out, const void *x, struct fsdp_err *err)
{
    if (!has_adapter(m, slot))
        return FSDP_OK;
    const struct adapter adapter = adapter_of(m, blk, slot);
    struct nn_linear args = up(blk, &adapter);
    const void *in;

    FSDP_TRY(read_input(&in, m, blk, &adapter, x, err));
    FSDP_TRY(make_low(m, blk, &adapter, in, err));
    args.out = out;
    args.x = blk->low;
    args.beta = 1;
    return m->nn->linear_forward(blk->lane, &args, err);
}

int layer_lora_input(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                     void *dx, const void *dy, struct fsdp_err *err)
{
    if (!has_adapter(m, slot))
        return FSDP_OK;
    const struct adapter adapter = adapter_of(m, blk, slot);
    struct nn_linear args = down(blk, &adapter);
    struct nn_dropout drop = dropout(m, blk, &adapter);
    const bool dropped = has_dropout(m, blk);

    FSDP_TRY(make_d_low(m, blk, &adapter, dy, err));
    args.out = dropped ? blk->low_in : dx;
    args.dy = blk->d_low;
    args.beta = dropped ? 0 : 1;
    FSDP_TRY(m->nn->linear_backward_input(blk->lane, &args, err));
    drop.out = dx;
    drop.x = blk->low_in;
    drop.beta = 1;
    return dropped ? m->nn->dropout(blk->lane, &drop, err) : FSDP_OK;
}

/* Slots that share a weight share A: the first of them, whose outputs are B's first rows, writes
 * its gradient, and the others add to it. */
int layer_lora_weight(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                      const void *dy, const void *x, struct fsdp_err *err)
{
    if (!has_adapter(m, slot))
        return FSDP_OK;
    const struct adapter adapter = adapter_of(m, blk, slot);
    struct nn_linear to_b = up(blk, &adapter), to_a = down(blk, &adapter);
    const void *in;

    FSDP_TRY(read_input(&in, m, blk, &adapter, x, err));
    FSDP_TRY(make_low(m, blk, &adapter, in, err));
    to_b.out = nn_at(adapter.b->dw, adapter.b->dw_dtype, adapter.at);
    to_b.x = blk->low;
    to_b.dy = dy;
    to_b.beta = adapter.b->dw_beta;
    FSDP_TRY(m->nn->linear_backward_weight(blk->lane, &to_b, err));
    FSDP_TRY(make_d_low(m, blk, &adapter, dy, err));
    to_a.out = adapter.a->dw;
    to_a.x = in;
    to_a.dy = blk->d_low;
    to_a.beta = adapter.place.first ? 1 : adapter.a->dw_beta;
    return m->nn->linear_backward_weight(blk->lane, &to_a, err);
}
