/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedule-free AdamW: Defazio et al., arXiv 2405.15682. The master is the average x, which is
 * evaluated and saved. Modules compute gradients at y, between x and z.
 */
#include "optimizer.h"

enum { Z, EXP_AVG_SQ };

static int schedulefree_check(const struct fsdp_optim_opts *opts, struct fsdp_err *err)
{
    if (opts->master != FSDP_MASTER_WHOLE)
        return fsdp_err_set_blame(
            err, FSDP_EUNSUPPORTED, "master",
            "schedulefree: the gathered copy is not its master, so that masters cannot "
            "be split, nor left out: set optim.master whole");
    return FSDP_OK;
}

static int schedulefree_update(struct fsdp_lane *lane, const struct optimizer_run *run,
                               struct fsdp_err *err)
{
    struct fsdp_schedulefree_args args = {
        .x = run->master,
        .z = run->state[Z],
        .exp_avg_sq = run->state[EXP_AVG_SQ],
        .grad = run->grad,
        .grad_scale = run->grad_scale,
        .y = run->param,
        .y_dtype = run->param_dtype,
        .nelem = run->nelem,
        .nsteps = run->step + 1,
        .lr = run->lr * run->hyper.lr_scale,
        .beta1 = run->hyper.beta1,
        .beta2 = run->hyper.beta2,
        .eps = run->opts->eps,
        .weight_decay = run->hyper.weight_decay,
        .weight = run->hyper.lr_scale > 0 ? run->weight : 0,
    };
    return fsdp_schedulefree(lane, &args, err);
}

static int schedulefree_gathered(struct fsdp_lane *lane, const struct optimizer_run *run,
                                 struct fsdp_err *err)
{
    return fsdp_schedulefree_y(lane, run->param, run->param_dtype, run->master, run->state[Z],
                               run->nelem, run->hyper.beta1, err);
}

const struct optimizer optimizer_schedulefree = {
    .name = "schedulefree",
    .state = {[Z] = {.slot.name = "z", .from_weights = true},
              [EXP_AVG_SQ] = {.slot.name = "exp_avg_sq"}},
    .betas = true,
    .eps = true,
    .averages = true,
    .check = schedulefree_check,
    .update = schedulefree_update,
    .gathered = schedulefree_gathered,
};
