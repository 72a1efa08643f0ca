/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer step: global norm with the control word, and the clip factor. */
#include <math.h>

#include "core/state/gather.h"
#include "cursor.h"

static bool is_early(const struct fsdp *f)
{
    return f->opts.update_at == FSDP_UPDATE_AT_REDUCE;
}

/* The partial norms of updates at the reduction are there already, and those of gradient shards
 * that have left the device. */
static int zero_sums(struct fsdp *f, struct fsdp_err *err)
{
    const bool there = is_early(f) || f->opts.offload_gradients;
    const size_t npartials = there ? 0 : f->scalars.npartials;
    return fsdp_zero(f->lanes[SCHED_COMPUTE], f->scalars.sums,
                     (FSDP_CONTROL_NELEM + npartials) * sizeof *f->scalars.sums, err);
}

/* Averages weigh a step by the square of the greatest rate until then. */
static void weigh_step(struct fsdp *f, double lr)
{
    struct fsdp_averaging *a = &f->optim.averaging;

    if (!f->optim.kind->averages)
        return;
    a->lr_max = lr > a->lr_max ? lr : a->lr_max;
    a->weight_sum += a->lr_max * a->lr_max;
    f->optim.weight = a->weight_sum > 0 ? a->lr_max * a->lr_max / a->weight_sum : 0;
}

int fsdp_step_begin(struct fsdp *f, const struct fsdp_step_args *args, struct fsdp_err *err)
{
    FSDP_TRY(engine_between_steps(f, "fsdp_step_begin", err));
    if (!is_early(f))
        return FSDP_OK;
    f->optim.begun = *args;
    f->optim.step_args = &f->optim.begun;
    weigh_step(f, args->lr);
    return fsdp_zero(f->lanes[SCHED_COMPUTE], f->scalars.sums + FSDP_CONTROL_NELEM,
                     f->scalars.npartials * sizeof *f->scalars.sums, err);
}

static int check_begun(const struct fsdp *f, const struct fsdp_step_args *args,
                       struct fsdp_err *err)
{
    const struct fsdp_step_args *begun = &f->optim.begun;

    if (!is_early(f) || (f->optim.step_args && begun->step == args->step && begun->lr == args->lr))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "fsdp_step of step %lld: with fsdp.update_at reduce, fsdp_step_begin gives "
                        "the same step and rate before the first micro-step",
                        (long long)args->step);
}

int fsdp_step(struct fsdp *f, const struct fsdp_step_args *args, struct fsdp_step_result *result,
              struct fsdp_err *err)
{
    FSDP_TRY(check_begun(f, args, err));
    FSDP_TRY(zero_sums(f, err));
    f->optim.step_args = args;
    if (!is_early(f))
        weigh_step(f, args->lr);
    int rc = exec_drive(f, SCHED_STEP, -1, FSDP_FORWARD, 0, err);
    f->optim.step_args = NULL;
    if (rc || !result)
        return rc;
    return fsdp_step_result(f, result, err);
}

int fsdp_step_result(struct fsdp *f, struct fsdp_step_result *out, struct fsdp_err *err)
{
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    struct fsdp_step_result result;
    struct fsdp_loss_scale scale;
    FSDP_TRY(
        fsdp_copy(lane, &result.grad_norm, f->scalars.grad_norm, sizeof result.grad_norm, err));
    FSDP_TRY(fsdp_copy(lane, result.control, f->scalars.sums, sizeof result.control, err));
    FSDP_TRY(fsdp_copy(lane, &scale, f->scalars.scale, sizeof scale, err));
    FSDP_TRY(fsdp_lane_sync(lane, err));
    FSDP_TRY(fsdp_comm_status(f->mesh->world, err));
    result.loss_scale = f->scalars.scaled ? scale.scale : 0;
    result.skipped = scale.skip;
    *out = result;
    return FSDP_OK;
}

bool fsdp_averages(const struct fsdp *f)
{
    return f->optim.kind->averages;
}

void fsdp_averaging_get(const struct fsdp *f, struct fsdp_averaging *out)
{
    *out = f->optim.averaging;
}

int fsdp_averaging_set(struct fsdp *f, const struct fsdp_averaging *averaging, struct fsdp_err *err)
{
    if (!(averaging->lr_max >= 0 && isfinite(averaging->lr_max)) ||
        !(averaging->weight_sum >= 0 && isfinite(averaging->weight_sum)))
        return fsdp_err_set(err, FSDP_EINVAL, "average of steps: rate %g, weights %g",
                            averaging->lr_max, averaging->weight_sum);
    f->optim.averaging = *averaging;
    return FSDP_OK;
}

/* The lane of gathers reads what is written here: it is waited for before, and waits after. */
static int change_gathered(struct fsdp *f, bool evaluates, const char *call, struct fsdp_err *err)
{
    FSDP_TRY(engine_between_steps(f, call, err));
    if (!f->optim.kind->gathered)
        return FSDP_OK;
    FSDP_TRY(fsdp_sync(f, err));
    FSDP_TRY(gather_evaluates(f, evaluates, err));
    return fsdp_sync(f, err);
}

int fsdp_eval_begin(struct fsdp *f, struct fsdp_err *err)
{
    return change_gathered(f, true, "fsdp_eval_begin", err);
}

int fsdp_eval_end(struct fsdp *f, struct fsdp_err *err)
{
    return change_gathered(f, false, "fsdp_eval_end", err);
}

int fsdp_control_sum(struct fsdp *f, double *values, int nelem, struct fsdp_err *err)
{
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    size_t nbytes = (size_t)nelem * sizeof(double);

    if (nelem < 0 || nelem > FSDP_CONTROL_NELEM)
        return fsdp_err_set(err, FSDP_EINVAL, "control sum of %d values (at most %d)", nelem,
                            FSDP_CONTROL_NELEM);
    FSDP_TRY(fsdp_copy(lane, f->scalars.sums, values, nbytes, err));
    FSDP_TRY(fsdp_comm_all_reduce(f->mesh->world, f->scalars.sums, f->scalars.sums, (size_t)nelem,
                                  FSDP_F64, lane, err));
    FSDP_TRY(fsdp_copy(lane, values, f->scalars.sums, nbytes, err));
    FSDP_TRY(fsdp_lane_sync(lane, err));
    return fsdp_comm_status(f->mesh->world, err);
}

int fsdp_model_sum(struct fsdp *f, double *values, size_t nelem, struct fsdp_err *err)
{
    return fsdp_comm_all_reduce(f->mesh->world, values, values, nelem, FSDP_F64,
                                f->lanes[SCHED_COMPUTE], err);
}
