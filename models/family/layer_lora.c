/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The low-rank part of a linear map: y += scale (drop(x) Aᵀ) Bᵀ. With magnitudes m (DoRA), and with
 * the lengths n of the rows of W + scale B A, which count as constants in backward, it is
 *
 *     y = x Wᵀ + bias + (m / n - 1) (x' Wᵀ) + (m / n) scale (x' Aᵀ) Bᵀ     x' = drop(x)
 *
 * Where nothing is dropped that is (m / n) z + bias with z = x Wᵀ + scale (x Aᵀ) Bᵀ.
 */
#include "layer.h"

struct adapter {
    const struct stack_param *a, *b;
    struct stack_place place;
    struct stack_rank rank;
    int rows, r;
    size_t at; /* elements of B before the slot's outputs */
};

static struct adapter adapter_of(const struct model *m, const struct stack_block *blk,
                                 enum stack_slot slot)
{
    const struct stack_place place = m->place[slot];
    const struct stack_rank rank = m->weight[place.lora].rank;
    return (struct adapter){.a = &blk->param[place.lora],
                            .b = &blk->param[place.lora + 1],
                            .place = place,
                            .rank = rank,
                            .rows = blk->B * blk->Tq,
                            .r = rank.r,
                            .at = (size_t)place.first * (size_t)rank.r};
}

static bool has_adapter(const struct model *m, enum stack_slot slot)
{
    return m->place[slot].lora > 0;
}

bool layer_lora_drops(const struct model *m, const struct stack_block *blk)
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
                                      .alpha = (float)x->rank.scale,
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
    if (!layer_lora_drops(m, blk))
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

/* out += scale (in Aᵀ) Bᵀ */
static int add_low(const struct model *m, const struct stack_block *blk, const struct adapter *x,
                   void *out, const void *in, struct fsdp_err *err)
{
    struct nn_linear args = up(blk, x);

    FSDP_TRY(make_low(m, blk, x, in, err));
    args.out = out;
    args.x = blk->low;
    args.beta = 1;
    return m->nn->linear_forward(blk->lane, &args, err);
}

/* dx = scale (dy B) A + beta dx */
static int add_d_low(const struct model *m, const struct stack_block *blk, const struct adapter *x,
                     void *dx, const void *dy, float beta, struct fsdp_err *err)
{
    struct nn_linear args = down(blk, x);

    FSDP_TRY(make_d_low(m, blk, x, dy, err));
    args.out = dx;
    args.dy = blk->d_low;
    args.beta = beta;
    return m->nn->linear_backward_input(blk->lane, &args, err);
}

/* dx += the gradient of what was dropped, which is in blk->low_in. */
static int add_dropped(const struct model *m, const struct stack_block *blk,
                       const struct adapter *x, void *dx, struct fsdp_err *err)
{
    struct nn_dropout drop = dropout(m, blk, x);

    drop.out = dx;
    drop.x = blk->low_in;
    drop.beta = 1;
    return m->nn->dropout(blk->lane, &drop, err);
}

int layer_lora_forward(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                       void *out, const void *x, struct fsdp_err *err)
{
    if (!has_adapter(m, slot))
        return FSDP_OK;
    const struct adapter adapter = adapter_of(m, blk, slot);
    const void *in;

    FSDP_TRY(read_input(&in, m, blk, &adapter, x, err));
    return add_low(m, blk, &adapter, out, in, err);
}

int layer_lora_input(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                     void *dx, const void *dy, struct fsdp_err *err)
{
    if (!has_adapter(m, slot))
        return FSDP_OK;
    const struct adapter adapter = adapter_of(m, blk, slot);

    if (!layer_lora_drops(m, blk))
        return add_d_low(m, blk, &adapter, dx, dy, 1, err);
    FSDP_TRY(add_d_low(m, blk, &adapter, blk->low_in, dy, 0, err));
    return add_dropped(m, blk, &adapter, dx, err);
}

/* The gradients of A and B, where blk->low is scale (in Aᵀ).
 *
 * Slots that share a weight share A: the first of them, whose outputs are B's first rows, writes
 * its gradient, and the others add to it. */
static int low_weight(const struct model *m, const struct stack_block *blk, const struct adapter *x,
                      const void *dy, const void *in, struct fsdp_err *err)
{
    struct nn_linear to_b = up(blk, x), to_a = down(blk, x);

    to_b.out = nn_at(x->b->dw, x->b->dw_dtype, x->at);
    to_b.x = blk->low;
    to_b.dy = dy;
    to_b.beta = x->b->dw_beta;
    FSDP_TRY(m->nn->linear_backward_weight(blk->lane, &to_b, err));
    FSDP_TRY(make_d_low(m, blk, x, dy, err));
    to_a.out = x->a->dw;
    to_a.x = in;
    to_a.dy = blk->d_low;
    to_a.beta = x->place.first ? 1 : x->a->dw_beta;
    return m->nn->linear_backward_weight(blk->lane, &to_a, err);
}

int layer_lora_weight(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                      const void *dy, const void *x, struct fsdp_err *err)
{
    if (!has_adapter(m, slot))
        return FSDP_OK;
    const struct adapter adapter = adapter_of(m, blk, slot);
    const void *in;

    FSDP_TRY(read_input(&in, m, blk, &adapter, x, err));
    FSDP_TRY(make_low(m, blk, &adapter, in, err));
    return low_weight(m, blk, &adapter, dy, in, err);
}

/* ---- with magnitudes ------------------------------------------------------------------------- */

/* blk->lengths = those of the slot's rows of W + scale B A */
static int make_lengths(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                        const struct adapter *x, struct fsdp_err *err)
{
    const struct layer_matrix matrix = layer_matrix(m, blk, slot);
    const struct nn_lengths args = {.length = blk->lengths,
                                    .w = matrix.w,
                                    .a = x->a->w,
                                    .b = nn_at(x->b->w, x->b->w_dtype, x->at),
                                    .nin = x->place.nin,
                                    .nout = x->place.nout,
                                    .r = x->r,
                                    .ldw = matrix.ldw,
                                    .scale = (float)x->rank.scale,
                                    .dtype = x->a->w_dtype};
    return m->nn->lengths(blk->lane, &args, err);
}

/* Of (rows, nout), for the lengths in blk->lengths. */
static struct nn_columns columns_of(const struct stack_block *blk, const struct adapter *x)
{
    const struct stack_param *magnitude = x->b + 1;
    return (struct nn_columns){.magnitude =
                                   nn_at(magnitude->w, magnitude->w_dtype, (size_t)x->place.first),
                               .length = blk->lengths,
                               .rows = x->rows,
                               .cols = x->place.nout,
                               .dtype = blk->dtype,
                               .w_dtype = magnitude->w_dtype,
                               .dw_dtype = magnitude->dw_dtype};
}

/* out += factor x, of (rows, nout) */
static int add_wide(const struct model *m, const struct stack_block *blk, const struct adapter *x,
                    void *out, const void *in, float factor, struct fsdp_err *err)
{
    const struct nn_scale_add args = {.out = out,
                                      .x = in,
                                      .nelem = (size_t)x->rows * (size_t)x->place.nout,
                                      .alpha = factor,
                                      .beta = 1,
                                      .dtype = blk->dtype};
    return m->nn->scale_add(blk->lane, &args, err);
}

/* blk->wide = (m / n) dy */
static int scale_gradient(const struct model *m, const struct stack_block *blk,
                          const struct adapter *x, const void *dy, struct fsdp_err *err)
{
    struct nn_columns args = columns_of(blk, x);

    args.out = blk->wide;
    args.x = dy;
    return m->nn->columns_forward(blk->lane, &args, err);
}

int layer_dora_forward(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                       void *out, const void *x, float beta, struct fsdp_err *err)
{
    const struct adapter adapter = adapter_of(m, blk, slot);
    const bool dropped = layer_lora_drops(m, blk);
    struct nn_columns columns = columns_of(blk, &adapter);
    const void *in;

    FSDP_TRY(make_lengths(m, blk, slot, &adapter, err));
    FSDP_TRY(read_input(&in, m, blk, &adapter, x, err));
    FSDP_TRY(layer_product(m, blk, slot, blk->wide, in, 0, err));
    if (dropped)
        FSDP_TRY(add_wide(m, blk, &adapter, out, blk->wide, -1, err));
    FSDP_TRY(add_low(m, blk, &adapter, blk->wide, in, err));
    columns.out = out;
    columns.x = blk->wide;
    columns.b = dropped ? NULL : layer_matrix(m, blk, slot).b;
    columns.beta = dropped ? 1 : beta;
    return m->nn->columns_forward(blk->lane, &columns, err);
}

int layer_dora_input(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                     void *dx, const void *dy, float beta, struct fsdp_err *err)
{
    const struct adapter adapter = adapter_of(m, blk, slot);

    FSDP_TRY(make_lengths(m, blk, slot, &adapter, err));
    FSDP_TRY(scale_gradient(m, blk, &adapter, dy, err));
    if (!layer_lora_drops(m, blk)) {
        FSDP_TRY(layer_plain_input(m, blk, slot, dx, blk->wide, beta, err));
        return add_d_low(m, blk, &adapter, dx, blk->wide, 1, err);
    }
    FSDP_TRY(add_d_low(m, blk, &adapter, blk->low_in, blk->wide, 0, err));
    FSDP_TRY(add_wide(m, blk, &adapter, blk->wide, dy, -1, err));
    FSDP_TRY(layer_plain_input(m, blk, slot, blk->low_in, blk->wide, 1, err));
    return add_dropped(m, blk, &adapter, dx, err);
}

int layer_dora_weight(const struct model *m, const struct stack_block *blk, enum stack_slot slot,
                      const void *dy, const void *x, struct fsdp_err *err)
{
    const struct adapter adapter = adapter_of(m, blk, slot);
    const struct stack_param *magnitude = adapter.b + 1;
    struct nn_columns columns = columns_of(blk, &adapter);
    const void *in;

    FSDP_TRY(make_lengths(m, blk, slot, &adapter, err));
    FSDP_TRY(read_input(&in, m, blk, &adapter, x, err));
    FSDP_TRY(layer_product(m, blk, slot, blk->wide, in, 0, err));
    FSDP_TRY(add_low(m, blk, &adapter, blk->wide, in, err));
    columns.out = nn_at(magnitude->dw, magnitude->dw_dtype, (size_t)adapter.place.first);
    columns.x = blk->wide;
    columns.dy = dy;
    columns.beta = magnitude->dw_beta;
    FSDP_TRY(m->nn->columns_backward(blk->lane, &columns, err));
    FSDP_TRY(scale_gradient(m, blk, &adapter, dy, err));
    return low_weight(m, blk, &adapter, blk->wide, in, err);
}
