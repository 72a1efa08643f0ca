/* SPDX-License-Identifier: Apache-2.0 */
/* The adapter of the head, on some rows of the stream: logits += scale (drop(x) Aᵀ) Bᵀ. */
#include "stack.h"

/* Of A: (rows, dim) -> (rows, r). */
static struct nn_linear down(const struct stack_head_rows *h)
{
    const struct model *m = h->m;
    return (struct nn_linear){.w = h->view->param[m->head_lora_param[0]],
                              .work = h->mem->work,
                              .rows = h->rows,
                              .nin = m->traits.dim,
                              .nout = m->lora.r,
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
                              .nin = m->lora.r,
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
                                      .nelem = (size_t)h->rows * (size_t)m->lora.r,
                                      .alpha = (float)m->lora.scale,
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

int stack_head_lora_forward(const struct stack_head_rows *h, void *logits, int ld,
                            struct fsdp_err *err)
{
    struct nn_linear args = up(h, ld);
    const void *in;

    if (!h->m->head_lora)
        return FSDP_OK;
    FSDP_TRY(make_low(&in, h, err));
    args.out = logits;
    args.x = h->mem->low;
    args.beta = 1;
    return h->m->nn->linear_forward(h->view->lane, &args, err);
}

int stack_head_lora_weight(const struct stack_head_rows *h, struct fsdp_err *err)
{
    const struct model *m = h->m;
    const int *param = m->head_lora_param;
    struct nn_linear to_b = up(h, h->mem->ld), to_a = down(h);
    const void *in;

    if (!m->head_lora)
        return FSDP_OK;
    FSDP_TRY(make_low(&in, h, err));
    to_b.out = h->view->grad[param[1]];
    to_b.x = h->mem->low;
    to_b.dy = h->mem->logits;
    to_b.beta = fsdp_view_grad_beta(h->view, param[1]);
    FSDP_TRY(m->nn->linear_backward_weight(h->view->lane, &to_b, err));
    to_b = up(h, h->mem->ld);
    to_b.out = h->mem->d_low;
    to_b.dy = h->mem->logits;
    FSDP_TRY(m->nn->linear_backward_input(h->view->lane, &to_b, err));
    FSDP_TRY(scale(h, h->mem->d_low, err));
    to_a.out = h->view->grad[param[0]];
    to_a.x = in;
    to_a.dy = h->mem->d_low;
    to_a.beta = fsdp_view_grad_beta(h->view, param[0]);
    return m->nn->linear_backward_weight(h->view->lane, &to_a, err);
}

int stack_head_lora_input(const struct stack_head_rows *h, struct fsdp_err *err)
{
    struct nn_linear args = down(h);
    struct nn_dropout drop = head_dropout(h);
    const bool dropped = drops(h);

    if (!h->m->head_lora)
        return FSDP_OK;
    args.out = dropped ? h->mem->low_in : h->mem->norm;
    args.dy = h->mem->d_low;
    args.beta = dropped ? 0 : 1;
    FSDP_TRY(h->m->nn->linear_backward_input(h->view->lane, &args, err));
    drop.out = h->mem->norm;
    drop.x = h->mem->low_in;
    drop.beta = 1;
    return dropped ? h->m->nn->dropout(h->view->lane, &drop, err) : FSDP_OK;
}
