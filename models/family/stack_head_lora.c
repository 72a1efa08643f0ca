/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The head with an adapter, on some rows of the stream, by the equations of layer_lora.c:
 *
 *     logits = x Wᵀ + scale (x' Aᵀ) Bᵀ                                            x' = drop(x)
 *     logits = x Wᵀ + (m / n - 1) (x' Wᵀ) + (m / n) scale (x' Aᵀ) Bᵀ              of DoRA
 */
#include "stack.h"

/* Of A: (rows, dim) -> (rows, r). */
static struct nn_linear down(const struct stack_head_rows *h)
{
    const struct model *m = h->m;
    return (struct nn_linear){.w = h->view->param[m->head_lora_param[0]],
                              .work = h->mem->work,
                              .rows = h->rows,
                              .nin = m->traits.dim,
                              .nout = m->head_rank.r,
                              .dtype = m->dtypes.activation,
                              .y_dtype = m->dtypes.activation,
                              .w_dtype = h->view->param_dtype,
                              .dw_dtype = h->view->grad_dtype};
}

/* Of B: (rows, r) -> (rows, vocab), ld apart. */
static struct nn_linear up(const struct stack_head_rows *h, int ld)
{
    const struct model *m = h->m;
    return (struct nn_linear){.w = h->view->param[m->head_lora_param[1]],
                              .work = h->mem->work,
                              .rows = h->rows,
                              .nin = m->head_rank.r,
                              .nout = m->traits.vocab,
                              .ldy = ld,
                              .dtype = m->dtypes.activation,
                              .y_dtype = m->dtypes.output,
                              .w_dtype = h->view->param_dtype,
                              .dw_dtype = h->view->grad_dtype};
}

static int scale(const struct stack_head_rows *h, void *low, struct fsdp_err *err)
{
    const struct model *m = h->m;
    const struct nn_scale_add args = {.out = low,
                                      .x = low,
                                      .nelem = (size_t)h->rows * (size_t)m->head_rank.r,
                                      .alpha = (float)m->head_rank.scale,
                                      .dtype = m->dtypes.activation};
    return m->nn->scale_add(h->view->lane, &args, err);
}

static bool drops(const struct stack_head_rows *h)
{
    return h->batch->dropout && h->m->lora.dropout > 0;
}

/* Rows of the head's chunks begin anywhere in a sequence: each position has a number of its own. */
static struct nn_dropout head_dropout(const struct stack_head_rows *h)
{
    const struct model *m = h->m;
    struct nn_dropout args = {
        .B = h->rows,
        .row_nelem = (size_t)m->traits.dim,
        .dtype = m->dtypes.activation,
        .drop = stack_drop(h->batch, m->traits.nlayers, STACK_LORA, m->lora.dropout)};
    args.drop.first_row = h->batch->first_row * (uint64_t)h->batch->T + (uint64_t)h->first;
    return args;
}

/* mem->low = scale * in Aᵀ; *in: what A reads. */
static int make_low(const void **in, const struct stack_head_rows *h, struct fsdp_err *err)
{
    struct nn_linear args = down(h);
    struct nn_dropout drop = head_dropout(h);

    *in = h->mem->norm;
    if (drops(h)) {
        drop.out = h->mem->low_in;
        drop.x = h->mem->norm;
        FSDP_TRY(h->m->nn->dropout(h->view->lane, &drop, err));
        *in = h->mem->low_in;
    }
    args.out = h->mem->low;
    args.x = *in;
    FSDP_TRY(h->m->nn->linear_forward(h->view->lane, &args, err));
    return scale(h, h->mem->low, err);
}

/* out += scale (in Aᵀ) Bᵀ, ld apart, where mem->low is scale in Aᵀ. */
static int add_low(const struct stack_head_rows *h, void *out, int ld, struct fsdp_err *err)
{
    struct nn_linear args = up(h, ld);

    args.out = out;
    args.x = h->mem->low;
    args.beta = 1;
    return h->m->nn->linear_forward(h->view->lane, &args, err);
}

/* ---- magnitudes ------------------------------------------------------------------------------ */

static bool has_magnitudes(const struct stack_head_rows *h)
{
    return h->m->head_lora && h->m->lora.dora;
}

/* Of logits, ld apart. */
static struct nn_columns columns_of(const struct stack_head_rows *h, int ld)
{
    const struct model *m = h->m;
    return (struct nn_columns){.magnitude = h->view->param[m->head_lora_param[2]],
                               .length = h->mem->lengths,
                               .rows = h->rows,
                               .cols = m->traits.vocab,
                               .ld = ld,
                               .dtype = m->dtypes.output,
                               .w_dtype = h->view->param_dtype,
                               .dw_dtype = h->view->grad_dtype};
}

/* out -= x, of logits, ld apart */
static int subtract(const struct stack_head_rows *h, void *out, const void *x, int ld,
                    struct fsdp_err *err)
{
    const struct nn_scale_add args = {.out = out,
                                      .x = x,
                                      .nelem = (size_t)h->rows * (size_t)ld,
                                      .alpha = -1,
                                      .beta = 1,
                                      .dtype = h->m->dtypes.output};
    return h->m->nn->scale_add(h->view->lane, &args, err);
}

/* The lengths of the rows of W + scale B A. */
int stack_head_lora_begin(const struct stack_head_rows *h, struct fsdp_err *err)
{
    const struct model *m = h->m;
    const struct nn_lengths args = {.length = h->mem->lengths,
                                    .w = h->view->param[m->head_param],
                                    .a = h->view->param[m->head_lora_param[0]],
                                    .b = h->view->param[m->head_lora_param[1]],
                                    .nin = m->traits.dim,
                                    .nout = m->traits.vocab,
                                    .r = m->head_rank.r,
                                    .scale = (float)m->head_rank.scale,
                                    .dtype = h->view->param_dtype};
    return has_magnitudes(h) ? m->nn->lengths(h->view->lane, &args, err) : FSDP_OK;
}

/* Leaves x' Wᵀ + scale (x' Aᵀ) Bᵀ in mem->wide. */
static int scaled_forward(const struct stack_head_rows *h, void *logits, int ld,
                          struct fsdp_err *err)
{
    const bool dropped = drops(h);
    struct nn_columns columns = columns_of(h, ld);
    void *wide = h->mem->wide;
    const void *in;

    FSDP_TRY(make_low(&in, h, err));
    FSDP_TRY(stack_head_product(h, wide, ld, in, err));
    if (dropped) {
        FSDP_TRY(stack_head_product(h, logits, ld, h->mem->norm, err));
        FSDP_TRY(subtract(h, logits, wide, ld, err));
    }
    FSDP_TRY(add_low(h, wide, ld, err));
    columns.out = logits;
    columns.x = wide;
    columns.beta = dropped ? 1 : 0;
    return h->m->nn->columns_forward(h->view->lane, &columns, err);
}

/* The gradient of the magnitudes; then mem->wide = (m / n) that of logits. */
static int scaled_weight(const struct stack_head_rows *h, struct fsdp_err *err)
{
    const int magnitude = h->m->head_lora_param[2];
    struct nn_columns columns = columns_of(h, h->mem->ld);

    columns.out = h->view->grad[magnitude];
    columns.x = h->mem->wide;
    columns.dy = h->mem->logits;
    columns.beta = fsdp_view_grad_beta(h->view, magnitude);
    FSDP_TRY(h->m->nn->columns_backward(h->view->lane, &columns, err));
    columns = columns_of(h, h->mem->ld);
    columns.out = h->mem->wide;
    columns.x = h->mem->logits;
    return h->m->nn->columns_forward(h->view->lane, &columns, err);
}

/* ---- forward and backward -------------------------------------------------------------------- */

int stack_head_lora_forward(const struct stack_head_rows *h, void *logits, int ld,
                            struct fsdp_err *err)
{
    const void *in;

    if (has_magnitudes(h))
        return scaled_forward(h, logits, ld, err);
    FSDP_TRY(stack_head_product(h, logits, ld, h->mem->norm, err));
    FSDP_TRY(make_low(&in, h, err));
    return add_low(h, logits, ld, err);
}

int stack_head_lora_weight(const struct stack_head_rows *h, struct fsdp_err *err)
{
    const struct model *m = h->m;
    const int *param = m->head_lora_param;
    const void *dy = has_magnitudes(h) ? h->mem->wide : h->mem->logits;
    struct nn_linear to_b = up(h, h->mem->ld), to_a = down(h);
    const void *in;

    if (has_magnitudes(h))
        FSDP_TRY(scaled_weight(h, err));
    FSDP_TRY(make_low(&in, h, err));
    to_b.out = h->view->grad[param[1]];
    to_b.x = h->mem->low;
    to_b.dy = dy;
    to_b.beta = fsdp_view_grad_beta(h->view, param[1]);
    FSDP_TRY(m->nn->linear_backward_weight(h->view->lane, &to_b, err));
    to_b = up(h, h->mem->ld);
    to_b.out = h->mem->d_low;
    to_b.dy = dy;
    FSDP_TRY(m->nn->linear_backward_input(h->view->lane, &to_b, err));
    FSDP_TRY(scale(h, h->mem->d_low, err));
    to_a.out = h->view->grad[param[0]];
    to_a.x = in;
    to_a.dy = h->mem->d_low;
    to_a.beta = fsdp_view_grad_beta(h->view, param[0]);
    return m->nn->linear_backward_weight(h->view->lane, &to_a, err);
}

/* dx = d_low A + beta dx */
static int add_d_low(const struct stack_head_rows *h, void *dx, float beta, struct fsdp_err *err)
{
    struct nn_linear args = down(h);

    args.out = dx;
    args.dy = h->mem->d_low;
    args.beta = beta;
    return h->m->nn->linear_backward_input(h->view->lane, &args, err);
}

int stack_head_lora_input(const struct stack_head_rows *h, struct fsdp_err *err)
{
    const struct stack_head_mem *mem = h->mem;
    const bool dropped = drops(h), scaled = has_magnitudes(h);
    struct nn_dropout drop = head_dropout(h);

    if (!dropped) {
        FSDP_TRY(stack_head_input(h, mem->norm, scaled ? mem->wide : mem->logits, 0, err));
        return add_d_low(h, mem->norm, 1, err);
    }
    FSDP_TRY(add_d_low(h, mem->low_in, 0, err));
    if (scaled) {
        FSDP_TRY(subtract(h, mem->wide, mem->logits, mem->ld, err));
        FSDP_TRY(stack_head_input(h, mem->low_in, mem->wide, 1, err));
    }
    FSDP_TRY(stack_head_input(h, mem->norm, mem->logits, 0, err));
    drop.out = mem->norm;
    drop.x = mem->low_in;
    drop.beta = 1;
    return h->m->nn->dropout(h->view->lane, &drop, err);
}
