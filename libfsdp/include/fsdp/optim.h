/* SPDX-License-Identifier: Apache-2.0 */
/* optim.h: optimizer settings and learning-rate schedules (pure functions of the step). */
#ifndef FSDP_OPTIM_H
#define FSDP_OPTIM_H

#include "fsdp/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum fsdp_decay { FSDP_DECAY_ALL, FSDP_DECAY_MATRICES }; /* matrices: parameters with ndim >= 2 */

struct fsdp_optim_opts {
    uint32_t version;
    const char *name; /* "adamw" */
    double beta1, beta2, eps, weight_decay;
    enum fsdp_decay decay;
    double clip_grad_norm; /* <= 0: off */
};
#define FSDP_OPTIM_OPTS_VERSION 1
#define FSDP_OPTIM_OPTS_INIT                                                                       \
    {                                                                                              \
        .version = FSDP_OPTIM_OPTS_VERSION, .name = "adamw", .beta1 = 0.9, .beta2 = 0.95,          \
        .eps = 1e-8, .weight_decay = 0.1, .decay = FSDP_DECAY_MATRICES, .clip_grad_norm = 1.0      \
    }

enum fsdp_schedule_kind {
    FSDP_SCHEDULE_CONSTANT,
    FSDP_SCHEDULE_LINEAR, /* down to min_lr at the last step */
    FSDP_SCHEDULE_COSINE, /* likewise, half a cosine */
    FSDP_SCHEDULE_WSD,    /* warm-up, stable, then linear decay over the last decay_steps */
};
int fsdp_schedule_parse(enum fsdp_schedule_kind *out, const char *text, struct fsdp_err *err);

struct fsdp_schedule {
    enum fsdp_schedule_kind kind;
    double lr, min_lr;
    int64_t warmup_steps, total_steps, decay_steps;
};
/* Learning rate of optimizer step `step` (0 is the first). Warm-up rises linearly, reaching lr at
 * step warmup_steps - 1: lr * (step + 1) / warmup_steps. Pure. */
double fsdp_schedule_lr(const struct fsdp_schedule *schedule, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
