/* SPDX-License-Identifier: Apache-2.0 */
/* Stochastic gradient descent, as in torch.optim.SGD. */
#include "optimizer.h"

static unsigned sgd_keeps(const struct fsdp_optim_opts *opts, const struct fsdp_tensor *tensor)
{
    (void)tensor;
    return opts->momentum > 0;
}

static int sgd_check(const struct fsdp_optim_opts *opts, struct fsdp_err *err)
{
    if (!(opts->momentum >= 0))
        return fsdp_err_set_blame(err, FSDP_EINVAL, "momentum",
                                  "sgd: momentum is %g; it must be at least 0", opts->momentum);
    if (opts->nesterov && (opts->momentum == 0 || opts->dampening != 0))
        return fsdp_err_set_blame(err, FSDP_EINVAL, "nesterov",
                                  "sgd: nesterov needs a momentum and no dampening, not %g and %g",
                                  opts->momentum, opts->dampening);
    return FSDP_OK;
}

static int sgd_update(struct fsdp_lane *lane, const struct optimizer_run *run, struct fsdp_err *err)
{
    struct fsdp_sgd_args args = {
        .master = run->master,
        .momentum_buffer = run->state[0],
        .grad = run->grad,
        .grad_scale = run->grad_scale,
        .nelem = run->nelem,
        .lr = run->lr * run->hyper.lr_scale,
        .momentum = run->opts->momentum,
        .dampening = run->opts->dampening,
        .weight_decay = run->hyper.weight_decay,
        .nesterov = run->opts->nesterov,
        .nsteps = run->step + 1 - run->hyper.since,
        .loss_scale = run->loss_scale,
    };
    FSDP_TRY(fsdp_sgd(lane, &args, err));
    return optimizer_write_param(lane, run, err);
}

const struct optimizer optimizer_sgd = {
    .name = "sgd",
    .state = {{.slot.name = "momentum_buffer"}},
    .keeps = sgd_keeps,
    .check = sgd_check,
    .update = sgd_update,
};
