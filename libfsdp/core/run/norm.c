/* SPDX-License-Identifier: Apache-2.0 */
/* The norm of the gradients. */
#include "hooks.h"
#include "op_run.h"

int exec_norm(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    double *partials = f->scalars.sums + FSDP_CONTROL_NELEM;
    const struct flat *flat = &f->units.flats[op->flat];
    const enum fsdp_dtype dtype = flat_grad_dtype(f, flat);
    const void *grad = grad_here(f, op->flat);
    uint64_t nelem = flat->cut.shard_nelem;
    struct fsdp_lane *lane = f->lanes[op->lane];

    /* The step was not begun: its gradients are thrown away. */
    if (!f->optim.step_args && !f->opts.offload_gradients)
        return FSDP_OK;
    FSDP_TRY(hooks_grad(f, op->flat, err));
    if (f->opts.optim.clip_norm_type == FSDP_NORM_INF)
        return fsdp_absmax_of(lane, &partials[f->mesh->rank], grad, dtype, nelem, err);
    /* Replicas hold the same gradient: one of them counts. */
    if (f->mesh->replicate_rank != 0)
        return FSDP_OK;
    return fsdp_sumsq_of(lane, &partials[op->flat], grad, dtype, nelem, err);
}

static int scale_update(struct fsdp *f, struct fsdp_err *err)
{
    const struct fsdp_scaler_opts *o = &f->opts.loss_scale;
    const struct fsdp_loss_scale_rule rule = {(float)o->growth, (float)o->backoff, o->interval};
    return fsdp_loss_scale_update(f->lanes[SCHED_COMPUTE], f->scalars.scale, f->scalars.grad_norm,
                                  rule, err);
}

int exec_norm_sum(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    const struct fsdp_optim_opts *o = &f->opts.optim;
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    const double *control = f->optim.step_args->control;

    (void)op;
    if (control)
        FSDP_TRY(
            fsdp_copy(lane, f->scalars.sums, control, FSDP_CONTROL_NELEM * sizeof(double), err));
    FSDP_TRY(fsdp_comm_all_reduce(f->mesh->world, f->scalars.sums, f->scalars.sums,
                                  FSDP_CONTROL_NELEM + f->scalars.npartials, FSDP_F64, lane, err));
    const struct fsdp_clip_args clip = {.coef = f->scalars.clip_coef,
                                        .norm = f->scalars.grad_norm,
                                        .partial = f->scalars.sums + FSDP_CONTROL_NELEM,
                                        .npartials = f->scalars.npartials,
                                        .type = o->clip_norm_type,
                                        .max_norm = (float)o->clip_grad_norm,
                                        .scale = f->scalars.scale};
    FSDP_TRY(fsdp_clip_coef(lane, &clip, err));
    return f->scalars.scaled ? scale_update(f, err) : FSDP_OK;
}
