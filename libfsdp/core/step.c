/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer step: global norm with the control word, clip factor, update of the local shard. */
#include <math.h>

#include "engine.h"

int exec_norm(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    double *partial = &f->sums[FSDP_CONTROL_NELEM + op->flat];
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    /* Replicas hold the same gradient: one of them counts. */
    if (f->mesh->replicate_rank != 0)
        return fsdp_zero(lane, partial, sizeof *partial, err);
    return fsdp_sumsq(lane, partial, f->flats[op->flat].grad,
                      f->units.flats[op->flat].cut.shard_nelem, err);
}

int exec_norm_sum(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    const double *control = f->step_args->control;
    size_t nflats = (size_t)f->units.nflats;

    (void)op;
    if (control)
        FSDP_TRY(fsdp_copy(lane, f->sums, control, FSDP_CONTROL_NELEM * sizeof(double), err));
    else
        FSDP_TRY(fsdp_zero(lane, f->sums, FSDP_CONTROL_NELEM * sizeof(double), err));
    FSDP_TRY(fsdp_comm_all_reduce(f->mesh->world, f->sums, f->sums, FSDP_CONTROL_NELEM + nflats,
                                  FSDP_F64, lane, err));
    return fsdp_clip_coef(lane, f->clip_coef, f->grad_norm, f->sums + FSDP_CONTROL_NELEM, nflats,
                          (float)f->opts.optim.clip_grad_norm, err);
}

static int update_tensor(struct fsdp *f, int flat_index, int i, struct fsdp_err *err)
{
    const struct fsdp_optim_opts *o = &f->opts.optim;
    const struct flat *flat = &f->units.flats[flat_index];
    struct flat_state *s = &f->flats[flat_index];
    struct fsdp_box box;
    uint64_t pos;
    size_t nelem = fsdp_cut_box(&box, &pos, &flat->cut, flat->tensors, i, f->mesh->shard_rank);
    double t = (double)f->step_args->step + 1;
    bool decays = o->decay == FSDP_DECAY_ALL || flat->tensors[i].ndim >= 2;
    struct fsdp_adamw_args args = {
        .master = s->master + pos,
        .exp_avg = s->optim[0] + pos,
        .exp_avg_sq = s->optim[1] + pos,
        .grad = s->grad + pos,
        .grad_scale = f->clip_coef,
        .nelem = nelem,
        .lr = f->step_args->lr,
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .eps = o->eps,
        .weight_decay = decays ? o->weight_decay : 0,
        .bias1 = 1 - pow(o->beta1, t),
        .bias2 = 1 - pow(o->beta2, t),
    };
    if (flat->param_dtype != FSDP_F32) {
        args.param = (char *)s->param + pos * fsdp_dtype_nbytes(flat->param_dtype);
        args.param_dtype = flat->param_dtype;
    }
    return fsdp_adamw(f->lanes[SCHED_COMPUTE], &args, err);
}

int exec_update(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    for (int i = 0; i < f->units.flats[op->flat].ntensors; i++)
        FSDP_TRY(update_tensor(f, op->flat, i, err));
    return FSDP_OK;
}

int fsdp_step(struct fsdp *f, const struct fsdp_step_args *args, struct fsdp_step_result *result,
              struct fsdp_err *err)
{
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
    FSDP_TRY(fsdp_copy(lane, &result.grad_norm, f->grad_norm, sizeof result.grad_norm, err));
    FSDP_TRY(fsdp_copy(lane, result.control, f->sums, sizeof result.control, err));
    FSDP_TRY(fsdp_lane_sync(lane, err));
    FSDP_TRY(fsdp_comm_status(f->mesh->world, err));
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
