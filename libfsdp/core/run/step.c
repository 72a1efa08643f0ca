/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer step: global norm with the control word, and the clip factor. */
#include "hooks.h"

int exec_norm(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    double *partials = f->sums + FSDP_CONTROL_NELEM;
    const float *grad = f->flats[op->flat].grad;
    uint64_t nelem = f->units.flats[op->flat].cut.shard_nelem;
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];

    FSDP_TRY(hooks_grad(f, op->flat, err));
    if (f->opts.optim.clip_norm == FSDP_NORM_INF)
        return fsdp_absmax(lane, &partials[f->mesh->rank], grad, nelem, err);
    /* Replicas hold the same gradient: one of them counts. */
    if (f->mesh->replicate_rank != 0)
        return FSDP_OK;
    return fsdp_sumsq(lane, &partials[op->flat], grad, nelem, err);
}

static int scale_update(struct fsdp *f, struct fsdp_err *err)
{
    const struct fsdp_scaler_opts *o = &f->opts.scaler;
    const struct fsdp_loss_scale_rule rule = {(float)o->growth, (float)o->backoff, o->interval};
    return fsdp_loss_scale_update(f->lanes[SCHED_COMPUTE], f->scale, f->grad_norm, rule, err);
}

int exec_norm_sum(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    const struct fsdp_optim_opts *o = &f->opts.optim;
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    const double *control = f->step_args->control;

    (void)op;
    if (control)
        FSDP_TRY(fsdp_copy(lane, f->sums, control, FSDP_CONTROL_NELEM * sizeof(double), err));
    FSDP_TRY(fsdp_comm_all_reduce(f->mesh->world, f->sums, f->sums,
                                  FSDP_CONTROL_NELEM + f->npartials, FSDP_F64, lane, err));
    FSDP_TRY(fsdp_clip_coef(lane, f->clip_coef, f->grad_norm, f->sums + FSDP_CONTROL_NELEM,
                            f->npartials, o->clip_norm, (float)o->clip_grad_norm, f->scale, err));
    return f->scaled ? scale_update(f, err) : FSDP_OK;
}

static int zero_sums(struct fsdp *f, struct fsdp_err *err)
{
    return fsdp_zero(f->lanes[SCHED_COMPUTE], f->sums,
                     (FSDP_CONTROL_NELEM + f->npartials) * sizeof *f->sums, err);
}

int fsdp_step(struct fsdp *f, const struct fsdp_step_args *args, struct fsdp_step_result *result,
              struct fsdp_err *err)
{
    FSDP_TRY(zero_sums(f, err));
    f->step_args = args;
    int rc = exec_drive(f, SCHED_STEP, -1, FSDP_FORWARD, 0, err);
    f->step_args = NULL;
    if (rc || !result)
        return rc;
    return fsdp_step_result(f, result, err);
}

int fsdp_step_result(struct fsdp *f, struct fsdp_step_result *out, struct fsdp_err *err)
{
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    struct fsdp_step_result result;
    struct fsdp_loss_scale scale;
    FSDP_TRY(fsdp_copy(lane, &result.grad_norm, f->grad_norm, sizeof result.grad_norm, err));
    FSDP_TRY(fsdp_copy(lane, result.control, f->sums, sizeof result.control, err));
    FSDP_TRY(fsdp_copy(lane, &scale, f->scale, sizeof scale, err));
    FSDP_TRY(fsdp_lane_sync(lane, err));
    FSDP_TRY(fsdp_comm_status(f->mesh->world, err));
    result.loss_scale = f->scaled ? scale.scale : 0;
    result.skipped = scale.skip;
    *out = result;
    return FSDP_OK;
}

int fsdp_control_sum(struct fsdp *f, double *values, int nelem, struct fsdp_err *err)
{
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    size_t nbytes = (size_t)nelem * sizeof(double);

    if (nelem < 0 || nelem > FSDP_CONTROL_NELEM)
        return fsdp_err_set(err, FSDP_EINVAL, "control sum of %d values (at most %d)", nelem,
                            FSDP_CONTROL_NELEM);
    FSDP_TRY(fsdp_copy(lane, f->sums, values, nbytes, err));
    FSDP_TRY(
        fsdp_comm_all_reduce(f->mesh->world, f->sums, f->sums, (size_t)nelem, FSDP_F64, lane, err));
    FSDP_TRY(fsdp_copy(lane, values, f->sums, nbytes, err));
    FSDP_TRY(fsdp_lane_sync(lane, err));
    return fsdp_comm_status(f->mesh->world, err);
}

int fsdp_sync(struct fsdp *f, struct fsdp_err *err)
{
    int rc = FSDP_OK;
    for (int lane = 0; lane < SCHED_NLANES; lane++) {
        int lane_rc = fsdp_lane_sync(f->lanes[lane], rc ? NULL : err);
        rc = rc ? rc : lane_rc;
    }
    return rc;
}
