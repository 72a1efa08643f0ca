/* SPDX-License-Identifier: Apache-2.0 */
/* Products with the head's weight. */
#include "stack.h"

struct nn_linear stack_head_linear(const struct stack_head_rows *h, int ld)
{
    const struct model *m = h->m;
    return (struct nn_linear){.w = h->view->param[m->head_param],
                              .work = h->mem->work,
                              .rows = h->rows,
                              .nin = m->traits.dim,
                              .nout = m->traits.vocab,
                              .ldy = ld,
                              .dtype = m->dtypes.activation,
                              .y_dtype = m->dtypes.output,
                              .w_dtype = h->view->param_dtype,
                              .dw_dtype = h->view->grad_dtype};
}

int stack_head_product(const struct stack_head_rows *h, void *logits, int ld, const void *x,
                       struct fsdp_err *err)
{
    struct nn_linear args = stack_head_linear(h, ld);

    args.out = logits;
    args.x = x;
    return h->m->nn->linear_forward(h->view->lane, &args, err);
}

int stack_head_input(const struct stack_head_rows *h, void *dx, const void *dy, float beta,
                     struct fsdp_err *err)
{
    struct nn_linear args = stack_head_linear(h, h->mem->ld);

    args.out = dx;
    args.dy = dy;
    args.beta = beta;
    return h->m->nn->linear_backward_input(h->view->lane, &args, err);
}
