/* SPDX-License-Identifier: Apache-2.0 */
/* optim.h: optimizers, parameter groups, and learning-rate schedules (pure functions of the step).
 */
#ifndef FSDP_OPTIM_H
#define FSDP_OPTIM_H

#include "fsdp/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Matrices: parameters with ndim >= 2, but for biases, whose names end in "bias" (those of several
 * experts have two dimensions). */
enum fsdp_decay { FSDP_DECAY_ALL, FSDP_DECAY_MATRICES };

enum { FSDP_OPTIM_NAME_NBYTES = 24 };
/* Parameters whose settings differ from the rest. A negative number: as in fsdp_optim_opts. */
struct fsdp_optim_group {
    /* Shell patterns (fsdp_glob_match) of parameter names, separated by blanks, up to the end of
     * the text or a colon. */
    const char *names;
    double lr_scale; /* times the learning rate of the step; 0 holds the parameters still */
    double weight_decay, betas[2];
    char optimizer[FSDP_OPTIM_NAME_NBYTES]; /* "": as in fsdp_optim_opts */
};
/* Reads "PATTERN [PATTERN...]: KEY=VALUE [KEY=VALUE...]" with the keys lr, lr_scale, weight_decay,
 * betas (two numbers joined by a comma) and optimizer, such as "*norm* *.bias: weight_decay=0". lr
 * is the group's peak where base_lr is the others'; the schedule moves both alike. The names stay
 * in `text`. FSDP_EINVAL names what is wrong. Local. */
int fsdp_optim_group_parse(struct fsdp_optim_group *out, const char *text, double base_lr,
                           struct fsdp_err *err);

/* How the fp32 master is kept where parameters are gathered in BF16: next to them, in 6 bytes a
 * parameter for both; split (device.h: the gathered copy is its upper half), in 4; or not at all,
 * in 2: then each update rounds the weights in BF16 stochastically (device.h, fsdp_narrow), by
 * Philox under the engine's seed, the parameter's name, the step and the element's index. */
enum fsdp_master { FSDP_MASTER_WHOLE, FSDP_MASTER_SPLIT, FSDP_MASTER_NONE };

struct fsdp_optim_opts {
    uint32_t version;
    const char *name;              /* "adamw", "adamw8bit", "adam", "adafactor", "lion", "muon",
                                      "schedulefree", "sgd" */
    double betas[2], eps;          /* all but sgd and adafactor; lion has no eps */
    double momentum;               /* sgd, where 0 keeps no momentum buffer; muon */
    double dampening;              /* sgd */
    bool nesterov;                 /* sgd, muon */
    double weight_decay;           /* adam, sgd: added to the gradient; others: decoupled */
    enum fsdp_decay decay;         /* what decays, where no group says */
    double clip_grad_norm;         /* <= 0: off */
    enum fsdp_norm clip_norm_type; /* of all gradients together */
    bool clip_late;                /* by the factor of the step before: fsdp.h, update_at */
    double ema_decay;              /* of an average of the weights, kept in fp32; 0: none */
    enum fsdp_dtype moment_dtype;  /* F32; adamw, adam: or BF16, rounded stochastically */
    enum fsdp_master master;
    const struct fsdp_optim_group *groups; /* a parameter belongs to the first that names it */
    int ngroups;
};
#define FSDP_OPTIM_OPTS_VERSION 6
#define FSDP_OPTIM_OPTS_INIT                                                                       \
    {                                                                                              \
        .version = FSDP_OPTIM_OPTS_VERSION, .name = "adamw", .betas = {0.9, 0.95}, .eps = 1e-8,    \
        .momentum = 0.9, .weight_decay = 0.1, .decay = FSDP_DECAY_MATRICES, .clip_grad_norm = 1.0  \
    }

/* ---- loss scaling, for fp16 -------------------------------------------------------------------
 *
 * The gradient of the loss is multiplied by a scale, so that small gradients do not vanish in fp16;
 * gradients are divided by it again where they are clipped and used. A step whose gradients are not
 * finite changes nothing on any rank and shrinks the scale; `interval` good steps in a row grow it.
 * The rule and its numbers are torch.amp.GradScaler's. */

enum fsdp_scaler_mode {
    FSDP_SCALER_AUTO, /* on where parameters are gathered or gradients reduced in F16 */
    FSDP_SCALER_ON,
    FSDP_SCALER_OFF
};

struct fsdp_scaler_opts {
    enum fsdp_scaler_mode mode;
    double init, growth, backoff;
    int interval; /* 0: it never grows */
};
#define FSDP_SCALER_OPTS_INIT                                                                      \
    {                                                                                              \
        .init = 65536, .growth = 2, .backoff = 0.5, .interval = 2000                               \
    }

/* FSDP_EINVAL names a setting that cannot work. Pure. */
int fsdp_scaler_check(const struct fsdp_scaler_opts *opts, struct fsdp_err *err);

/* Gradients in fp16 are divided by part of the number of ranks before they are summed and by the
 * rest afterwards, so that neither they nor their sum leave the range. The part: the smallest power
 * of two that is not below the root. PyTorch (torch.distributed.algorithms._comm_hooks) takes the
 * same where it divides nranks, and less elsewhere. Pure. */
int fsdp_scaler_predivisor(int nranks);

enum fsdp_schedule_kind {
    FSDP_SCHEDULE_CONSTANT,
    FSDP_SCHEDULE_LINEAR, /* down to min_lr at the last step */
    FSDP_SCHEDULE_COSINE, /* likewise, half a cosine */
    FSDP_SCHEDULE_WSD,    /* warm-up, stable, then linear decay over the last decay_steps */
};
/* From "constant", "linear", "cosine" or "wsd"; FSDP_EINVAL lists them. Local. */
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
