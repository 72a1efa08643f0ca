/* SPDX-License-Identifier: Apache-2.0 */
/* update.h: from what was planned of a parameter to the arguments of its update. */
#ifndef CORE_UPDATE_H
#define CORE_UPDATE_H

#include "core/engine.h"

/* What the updates of a step share: read while it is issued, used when they run. */
struct update_step {
    struct fsdp_lane *lane;
    int64_t step; /* 0 is the first */
    double lr, weight;
    const float *clip_coef; /* where the lane computes */
    const struct fsdp_loss_scale *loss_scale;
};
/* During fsdp_step, of updates on the device. */
struct update_step update_step_of(const struct fsdp *f, struct fsdp_lane *lane);

/* Elements of gradients in BF16 that are brought to F32 at once. */
enum { GRAD_PIECE = 1 << 22 };

/* This rank's part of tensor i of a flat, which may be nothing. Pure. */
void update_run_of(struct update_run *out, const struct fsdp *f, int flat, int i);
/* Elements [pos, pos + nelem) of the run's flat; the master is the caller's to set. */
struct optimizer_run update_args_of(const struct fsdp *f, const struct update_step *step,
                                    const struct flat_state *s, const struct update_run *run,
                                    uint64_t pos, uint64_t nelem);

/* update_shared.c: what optimizers update in phases, of one flat. Collective, enqueues. */
int update_shared(struct fsdp *f, int flat, const struct flat_state *s, struct fsdp_err *err);

#endif
