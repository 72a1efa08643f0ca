/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW (Loshchilov and Hutter, arXiv 1711.05101) and Adam (Kingma and Ba, arXiv 1412.6980). */
#include "optimizer.h"

static int adam_step(struct fsdp_lane *lane, const struct optimizer_run *run, bool decay_in_grad,
                     struct fsdp_err *err)
{
    struct fsdp_adamw_args args = {
        .master = run->master,
        .exp_avg = run->state[0],
        .exp_avg_sq = run->state[1],
        .grad = run->grad,
        .grad_dtype = run->grad_dtype,
        .grad_scale = run->grad_scale,
        .param = run->param,
        .rest = run->rest,
        .param_dtype = run->param_dtype,
        .moment_dtype = run->opts->moment_dtype,
        .rounding = run->rounding,
        .weight_rounding = run->weight_rounding,
        .nelem = run->nelem,
        .lr = run->lr * run->hyper.lr_scale,
        .beta1 = run->hyper.beta1,
        .beta2 = run->hyper.beta2,
        .eps = run->opts->eps,
        .weight_decay = run->hyper.weight_decay,
        .decay_in_grad = decay_in_grad,
        .nsteps = run->step + 1 - run->hyper.since,
        .loss_scale = run->loss_scale,
    };
    return fsdp_adamw(lane, &args, err);
}

static int adamw_update(struct fsdp_lane *lane, const struct optimizer_run *run,
                        struct fsdp_err *err)
{
    return adam_step(lane, run, false, err);
}

static int adam_update(struct fsdp_lane *lane, const struct optimizer_run *run,
                       struct fsdp_err *err)
{
    return adam_step(lane, run, true, err);
}

const struct optimizer optimizer_adamw = {
    .name = "adamw",
    .state = {{.slot.name = "exp_avg"}, {.slot.name = "exp_avg_sq"}},
    .splits = true,
    .narrow = true,
    .narrow_grads = true,
    .betas = true,
    .eps = true,
    .update = adamw_update,
};

const struct optimizer optimizer_adam = {
    .name = "adam",
    .state = {{.slot.name = "exp_avg"}, {.slot.name = "exp_avg_sq"}},
    .splits = true,
    .narrow = true,
    .narrow_grads = true,
    .betas = true,
    .eps = true,
    .update = adam_update,
};
