/* SPDX-License-Identifier: Apache-2.0 */
/* Lion: Chen et al., arXiv 2302.06675. One moment, and steps of one size. */
#include "optimizer.h"

static int lion_update(struct fsdp_lane *lane, const struct optimizer_run *run,
                       struct fsdp_err *err)
{
    struct fsdp_lion_args args = {
        .master = run->master,
        .exp_avg = run->state[0],
        .grad = run->grad,
        .grad_scale = run->grad_scale,
        .loss_scale = run->loss_scale,
        .nelem = run->nelem,
        .lr = run->lr * run->hyper.lr_scale,
        .beta1 = run->hyper.beta1,
        .beta2 = run->hyper.beta2,
        .weight_decay = run->hyper.weight_decay,
    };
    FSDP_TRY(fsdp_lion(lane, &args, err));
    return optimizer_write_param(lane, run, err);
}

const struct optimizer optimizer_lion = {
    .name = "lion",
    .state = {{.slot.name = "exp_avg"}},
    .betas = true,
    .update = lion_update,
};
