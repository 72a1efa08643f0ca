/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer.h: the table of optimizers, and what each parameter is updated with; for core. */
#ifndef OPTIM_OPTIMIZER_H
#define OPTIM_OPTIMIZER_H

#include "fsdp/optim.h"

enum { OPTIMIZER_MAX_STATE = 4 };

/* Settings that parameter groups decide. */
struct optimizer_hyper {
    double lr_scale, weight_decay, beta1, beta2;
    int64_t since; /* updates of the run before the parameter's first */
};

/* One update of a contiguous run of a rank's flat shard. */
struct optimizer_run {
    float *master; /* [nelem]; NULL: split, in param and rest, or in param alone */
    void *state[OPTIMIZER_MAX_STATE]; /* as the optimizer's rows; NULL: not kept */
    uint16_t *rest;                   /* NULL: not split */
    const void *grad;                 /* in grad_dtype: F32, unless narrow_grads */
    enum fsdp_dtype grad_dtype;
    const float *grad_scale;                  /* device scalar */
    const struct fsdp_loss_scale *loss_scale; /* on the device: skips steps; NULL: none */
    void *param; /* also written, in param_dtype; NULL where it is the master's memory */
    enum fsdp_dtype param_dtype;
    struct fsdp_rounding rounding;        /* of moments in BF16 */
    struct fsdp_rounding weight_rounding; /* of param, without a master */
    const struct fsdp_tensor *tensor;     /* the whole parameter; of what is updated in phases */
    double *sums, *update_sum;            /* likewise: what is summed over ranks */
    float *room;                          /* likewise: memory for the phase, as nroom says */
    uint64_t first; /* likewise: of the parameter, the first element of this rank's part */
    bool chosen;    /* likewise: this rank does what one rank does for all */
    size_t nelem;
    int64_t step; /* 0 is the first */
    double lr;
    double weight; /* this step's part of an average over all of them, by lr squared */
    struct optimizer_hyper hyper;
    const struct fsdp_optim_opts *opts;
};

/* What may be kept of a parameter. A name that two optimizers keep has one dtype and kind. */
struct optimizer_state {
    struct fsdp_slot slot; /* a name of NULL ends the list */
    bool from_weights;     /* it begins as the weights; else as zeros */
};

/*
 * A row. Most optimizers work element by element, or block by block, on any range of a rank's
 * shard: the same bits come out wherever the shards are cut. One that needs sums over a whole
 * parameter is called in phases, for every parameter and on every rank, and ranks sum in between.
 */
struct optimizer {
    const char *name;
    struct optimizer_state state[OPTIMIZER_MAX_STATE];
    bool splits; /* it takes split masters, and weights without, as they are; else pieces in fp32 */
    bool narrow; /* its state can be kept in BF16 (moment_dtype) */
    bool narrow_grads; /* it takes gradients in BF16; else they are brought to F32 in pieces */
    bool betas;        /* it has opts.betas, and groups may set them */
    bool eps;          /* it has opts.eps */
    bool averages;     /* it needs optimizer_run.weight, and every step from the first */
    /* (optional) Which of the state it keeps of this parameter: bit i, state[i]. Without it all. */
    unsigned (*keeps)(const struct fsdp_optim_opts *opts, const struct fsdp_tensor *tensor);
    /* (optional) The row that updates this parameter in its place; NULL: it does itself. */
    const struct optimizer *(*instead)(const struct fsdp_tensor *tensor);
    /* Enqueues. */
    int (*update)(struct fsdp_lane *lane, const struct optimizer_run *run, struct fsdp_err *err);
    /* (optional) In place of update: phases 0 to 2. After phase 0 run->sums are summed, as many as
     * nsums says, after phase 1 *run->update_sum, and run->sums again where
     * sums_twice says so. Enqueues. */
    int (*phase)(struct fsdp_lane *lane, const struct optimizer_run *run, int phase,
                 struct fsdp_err *err);
    uint64_t (*nsums)(const struct fsdp_tensor *tensor);
    bool sums_twice;
    uint64_t (*nroom)(const struct fsdp_tensor *tensor); /* (optional) of run->room; pure */
    /* (optional) What only this optimizer refuses. */
    int (*check)(const struct fsdp_optim_opts *opts, struct fsdp_err *err);
    /* (optional) Writes what modules see in training into run->param, from the master and the
     * state. Without it they see the master. Enqueues. */
    int (*gathered)(struct fsdp_lane *lane, const struct optimizer_run *run, struct fsdp_err *err);
};

extern const struct optimizer optimizer_adamw, optimizer_adamw8bit, optimizer_adam,
    optimizer_adafactor, optimizer_lion, optimizer_muon, optimizer_schedulefree, optimizer_sgd;

/* FSDP_EINVAL names the optimizers there are. */
int optimizer_find(const struct optimizer **out, const char *name, struct fsdp_err *err);
/* Is it what FSDP_DECAY_MATRICES decays? Pure. */
bool optimizer_is_matrix(const struct fsdp_tensor *tensor);
/* Which of its state a row keeps of a parameter: bit i, state[i]. Pure. */
unsigned optimizer_keeps(const struct optimizer *optimizer, const struct fsdp_optim_opts *opts,
                         const struct fsdp_tensor *tensor);
/* The master into run->param, where there is one. Enqueues. */
static inline int optimizer_write_param(struct fsdp_lane *lane, const struct optimizer_run *run,
                                        struct fsdp_err *err)
{
    if (!run->param)
        return FSDP_OK;
    return fsdp_cast(lane, run->param, run->param_dtype, run->master, FSDP_F32, run->nelem, err);
}

/* The row that updates a parameter: its group's, or that of the options. Pure. */
const struct optimizer *optimizer_of(const struct fsdp_optim_opts *opts,
                                     const struct fsdp_tensor *tensor);
/* Everything of the settings that needs no parameters, for this row and those of groups. */
int optimizer_check(const struct optimizer *optimizer, const struct fsdp_optim_opts *opts,
                    struct fsdp_err *err);
/* What a parameter is updated with. Pure. */
struct optimizer_hyper optimizer_hyper_of(const struct fsdp_optim_opts *opts,
                                          const struct fsdp_tensor *tensor);
/* Index of the group that names a parameter, -1: none does. Pure. */
int optimizer_group_of(const struct fsdp_optim_opts *opts, const char *name);
/* Refuses a pattern of a group that matches none of the names, which name(ctx, i) gives. */
int optimizer_check_names(const struct fsdp_optim_opts *opts, int nnames,
                          const char *(*name)(const void *ctx, int i), const void *ctx,
                          struct fsdp_err *err);

#endif
