/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer.h: the table of optimizers, and what each parameter is updated with; for core. */
#ifndef OPTIM_OPTIMIZER_H
#define OPTIM_OPTIMIZER_H

#include "fsdp/optim.h"

enum { OPTIMIZER_MAX_STATE = 2 };

/* Settings that parameter groups decide. */
struct optimizer_hyper {
    double lr_scale, weight_decay, beta1, beta2;
    int64_t since; /* updates of the run before the parameter's first */
};

/* One update of a contiguous run of a rank's flat shard. */
struct optimizer_run {
    float *master;                    /* [nelem]; NULL: split, in param and rest */
    void *state[OPTIMIZER_MAX_STATE]; /* [nelem], as the optimizer's names */
    uint16_t *rest;
    const float *grad, *grad_scale;           /* grad_scale: device scalar */
    const struct fsdp_loss_scale *loss_scale; /* on the device: skips steps; NULL: none */
    void *param; /* also written, in param_dtype; NULL where it is the master's memory */
    enum fsdp_dtype param_dtype;
    struct fsdp_rounding rounding; /* of moments in BF16 */
    size_t nelem;
    int64_t step; /* 0 is the first */
    double lr;
    struct optimizer_hyper hyper;
    const struct fsdp_optim_opts *opts;
};

struct optimizer {
    const char *name;
    const char *state[OPTIMIZER_MAX_STATE]; /* tensors per parameter: state.<fqn>.<name> */
    bool splits; /* it takes split masters as they are; else whole ones, in pieces */
    int (*nstate)(const struct fsdp_optim_opts *opts); /* how many of them it keeps */
    int (*check)(const struct fsdp_optim_opts *opts, struct fsdp_err *err);
    /* Enqueues. */
    int (*update)(struct fsdp_lane *lane, const struct optimizer_run *run, struct fsdp_err *err);
};

/* FSDP_EINVAL names the optimizers there are. */
int optimizer_find(const struct optimizer **out, const char *name, struct fsdp_err *err);
/* Everything of the settings that needs no parameters. */
int optimizer_check(const struct optimizer *optimizer, const struct fsdp_optim_opts *opts,
                    struct fsdp_err *err);
/* What a parameter is updated with. Pure. */
struct optimizer_hyper optimizer_hyper_of(const struct fsdp_optim_opts *opts,
                                          const struct fsdp_tensor *tensor);
/* Refuses a pattern of a group that matches none of the names, which name(ctx, i) gives. */
int optimizer_check_names(const struct fsdp_optim_opts *opts, int nnames,
                          const char *(*name)(const void *ctx, int i), const void *ctx,
                          struct fsdp_err *err);

#endif
