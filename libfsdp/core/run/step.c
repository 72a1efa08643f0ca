/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer step: global norm with the control word, and the clip factor. */
#include "cursor.h"

static int zero_sums(struct fsdp *f, struct fsdp_err *err)
{
    return fsdp_zero(f->lanes[SCHED_COMPUTE], f->scalars.sums,
                     (FSDP_CONTROL_NELEM + f->scalars.npartials) * sizeof *f->scalars.sums, err);
}

int fsdp_step(struct fsdp *f, const struct fsdp_step_args *args, struct fsdp_step_result *result,
              struct fsdp_err *err)
{
    FSDP_TRY(zero_sums(f, err));
    f->optim.step_args = args;
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
