/* SPDX-License-Identifier: Apache-2.0 */
#include "work.h"

static void add_work(struct work_list *list, struct fsdp_work work)
{
    if (list->nitems < WORK_MAX && work.times > 0)
        list->item[list->nitems++] = work;
}

static unsigned forward_phases(enum work_place place)
{
    return place == WORK_IN_HEAD ? FSDP_WORK_BACKWARD : FSDP_WORK_FORWARD | FSDP_WORK_RECOMPUTE;
}

void work_add_linear(struct work_list *list, const struct work_linear *l, enum work_place place)
{
    struct fsdp_work work = {.kind = FSDP_WORK_PRODUCT,
                             .phases = forward_phases(place),
                             .times = l->times > 0 ? l->times : 1,
                             .m = l->rows,
                             .n = l->nout,
                             .k = l->nin,
                             .type = l->type};

    add_work(list, work);
    work.phases = FSDP_WORK_BACKWARD;
    work.n = l->nin;
    work.k = l->nout;
    add_work(list, work);
    work.m = l->nout;
    work.k = l->rows;
    if (l->trained)
        add_work(list, work);
}

void work_add_codes(struct work_list *list, const struct work_linear *l,
                    const struct work_codes *codes, enum work_place place)
{
    const double made = (double)fsdp_dtype_nbytes(l->type);
    const double each = 2 * (double)fsdp_dtype_nbytes(codes->from) + made;
    const double times = l->times > 0 ? l->times : 1;
    const double x = l->rows * l->nin, w = l->nout * l->nin, dy = l->rows * l->nout;
    const double turned = codes->w_is_codes ? w * (1 + made) : w * each;
    const double as_it_is = codes->w_is_codes && made == 1 ? 0 : turned;
    const double to_weight = dy + (codes->x_is_made_backward ? 0 : x);
    struct fsdp_work work = {.kind = FSDP_WORK_BYTES,
                             .phases = forward_phases(place),
                             .times = 1,
                             .nbytes = times * (each * (codes->x_is_made ? 0 : x) + as_it_is),
                             .pass = FSDP_PASS_COPY,
                             .type = FSDP_F32};

    if (work.nbytes > 0)
        add_work(list, work);
    work.phases = FSDP_WORK_BACKWARD;
    work.nbytes = times * (each * (dy + (l->trained ? to_weight : 0)) + turned);
    work.gradient = true;
    add_work(list, work);
}

/* Selective activation checkpointing drops the output, and makes it again. */
void work_add_attention(struct work_list *list, const struct work_attention *a)
{
    struct fsdp_work work = {.kind = FSDP_WORK_ATTENTION,
                             .phases = FSDP_WORK_FORWARD | FSDP_WORK_RECOMPUTE | FSDP_WORK_CHEAP,
                             .times = 1,
                             .m = a->rows,
                             .n = a->heads * a->head_dim,
                             .k = a->keys,
                             .heads = a->heads,
                             .type = a->type};

    add_work(list, work);
    work.phases = FSDP_WORK_BACKWARD;
    work.gradient = true;
    add_work(list, work);
}

void work_add_pass(struct work_list *list, const struct work_pass *p, enum work_place place)
{
    struct fsdp_work work = {.kind = FSDP_WORK_BYTES,
                             .phases = forward_phases(place) | (p->cheap ? FSDP_WORK_CHEAP : 0),
                             .times = p->nbytes > 0,
                             .nbytes = p->nbytes,
                             .pass = p->pass,
                             .type = p->type};

    add_work(list, work);
    work.phases = FSDP_WORK_BACKWARD;
    work.nbytes = p->nbytes * p->backward;
    work.gradient = true;
    if (p->backward > 0)
        add_work(list, work);
}

void work_add_bytes(struct work_list *list, double nbytes, double backward, bool cheap,
                    enum work_place place)
{
    work_add_pass(list, &(struct work_pass){FSDP_PASS_COPY, nbytes, backward, FSDP_F32, cheap},
                  place);
}

double work_branch_nbytes(double rows, double dim, enum fsdp_dtype type)
{
    return WORK_ELEMS_BRANCH * rows * dim * (double)fsdp_dtype_nbytes(type);
}

/* Four passes over each of the elements that there are: with a gate, half as many again. */
double work_activation_nbytes(double rows, double ffn, bool gated, enum fsdp_dtype type)
{
    return 4 * (gated ? 1.5 : 1) * rows * ffn * (double)fsdp_dtype_nbytes(type);
}

/* Seven passes over the logits: written by the product, read for the maximum and the sum, read and
 * written for the gradient, read by two products. */
double work_loss_nbytes(double rows, double vocab, enum fsdp_dtype type)
{
    return 7 * rows * vocab * (double)fsdp_dtype_nbytes(type);
}
