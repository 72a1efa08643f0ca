/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW with moments in 8 bits: Dettmers et al., arXiv 2110.02861; the rows are named as
 * bitsandbytes names them. A small parameter keeps its moments in fp32, as there.
 */
#include "optimizer.h"

enum { STATE1, STATE2, ABSMAX1, ABSMAX2, SMALL_NELEM = 4096 };

static const struct optimizer *adamw8bit_instead(const struct fsdp_tensor *tensor)
{
    return fsdp_tensor_nelem(tensor) < SMALL_NELEM ? &optimizer_adamw : NULL;
}

static int adamw8bit_update(struct fsdp_lane *lane, const struct optimizer_run *run,
                            struct fsdp_err *err)
{
    struct fsdp_adamw8bit_args args = {
        .master = run->master,
        .state1 = run->state[STATE1],
        .state2 = run->state[STATE2],
        .absmax1 = run->state[ABSMAX1],
        .absmax2 = run->state[ABSMAX2],
        .grad = run->grad,
        .grad_scale = run->grad_scale,
        .loss_scale = run->loss_scale,
        .nelem = run->nelem,
        .nsteps = run->step + 1 - run->hyper.since,
        .lr = run->lr * run->hyper.lr_scale,
        .beta1 = run->hyper.beta1,
        .beta2 = run->hyper.beta2,
        .eps = run->opts->eps,
        .weight_decay = run->hyper.weight_decay,
    };
    FSDP_TRY(fsdp_adamw8bit(lane, &args, err));
    return optimizer_write_param(lane, run, err);
}

const struct optimizer optimizer_adamw8bit = {
    .name = "adamw8bit",
    .state = {[STATE1] = {.slot = {"state1", FSDP_U8, FSDP_PER_ELEMENT}},
              [STATE2] = {.slot = {"state2", FSDP_U8, FSDP_PER_ELEMENT}},
              [ABSMAX1] = {.slot = {"absmax1", FSDP_F32, FSDP_PER_BLOCK}},
              [ABSMAX2] = {.slot = {"absmax2", FSDP_F32, FSDP_PER_BLOCK}}},
    .betas = true,
    .eps = true,
    .instead = adamw8bit_instead,
    .update = adamw8bit_update,
};
