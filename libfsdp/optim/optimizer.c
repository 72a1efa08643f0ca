/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizers. Each is a row of the table at the end. */
#include <stdio.h>
#include <string.h>

#include "optimizer.h"

/* ---- adamw: Loshchilov and Hutter, arXiv 1711.05101 ------------------------------------------ */

static int adamw_nstate(const struct fsdp_optim_opts *opts)
{
    (void)opts;
    return 2;
}

static int check_beta(const char *name, double beta, struct fsdp_err *err)
{
    if (beta >= 0 && beta < 1)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL, "adamw: %s is %g; it must be at least 0 and below 1",
                        name, beta);
}

static int adamw_check(const struct fsdp_optim_opts *opts, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_err_blame(err, check_beta("beta1", opts->betas[0], err), "betas"));
    FSDP_TRY(fsdp_err_blame(err, check_beta("beta2", opts->betas[1], err), "betas"));
    for (int g = 0; g < opts->ngroups; g++) {
        const struct fsdp_optim_group *group = &opts->groups[g];
        int rc = check_beta("a group's beta1", group->betas[0] < 0 ? 0 : group->betas[0], err);
        if (!rc)
            rc = check_beta("a group's beta2", group->betas[1] < 0 ? 0 : group->betas[1], err);
        FSDP_TRY(fsdp_err_blame(err, rc, "groups"));
    }
    if (!(opts->eps > 0)) /* padding between parameters has zero moments */
        return fsdp_err_set(err, FSDP_EINVAL, "adamw: eps is %g; it must be above 0", opts->eps);
    return FSDP_OK;
}

static int adamw_update(struct fsdp_lane *lane, const struct optimizer_run *run,
                        struct fsdp_err *err)
{
    struct fsdp_adamw_args args = {
        .master = run->master,
        .exp_avg = run->state[0],
        .exp_avg_sq = run->state[1],
        .grad = run->grad,
        .grad_scale = run->grad_scale,
        .param = run->param,
        .rest = run->rest,
        .param_dtype = run->param_dtype,
        .moment_dtype = run->opts->moment_dtype,
        .rounding = run->rounding,
        .nelem = run->nelem,
        .lr = run->lr * run->hyper.lr_scale,
        .beta1 = run->hyper.beta1,
        .beta2 = run->hyper.beta2,
        .eps = run->opts->eps,
        .weight_decay = run->hyper.weight_decay,
        .nsteps = run->step + 1 - run->hyper.since,
        .loss_scale = run->loss_scale,
    };
    return fsdp_adamw(lane, &args, err);
}

/* ---- sgd ------------------------------------------------------------------------------------- */

static int sgd_nstate(const struct fsdp_optim_opts *opts)
{
    return opts->momentum > 0;
}

static int sgd_check(const struct fsdp_optim_opts *opts, struct fsdp_err *err)
{
    if (!(opts->momentum >= 0))
        return fsdp_err_blame(err,
                              fsdp_err_set(err, FSDP_EINVAL,
                                           "sgd: momentum is %g; it must be at least 0",
                                           opts->momentum),
                              "momentum");
    if (opts->nesterov && (opts->momentum == 0 || opts->dampening != 0)) {
        fsdp_err_set(err, FSDP_EINVAL,
                     "sgd: nesterov needs a momentum and no dampening, not %g and %g",
                     opts->momentum, opts->dampening);
        return fsdp_err_blame(err, FSDP_EINVAL, "nesterov");
    }
    if (opts->moment_dtype != FSDP_F32) {
        fsdp_err_set(err, FSDP_EUNSUPPORTED, "sgd: its momentum is kept in F32, not in %s",
                     fsdp_dtype_name(opts->moment_dtype));
        return fsdp_err_blame(err, FSDP_EUNSUPPORTED, "moment_dtype");
    }
    for (int g = 0; g < opts->ngroups; g++)
        if (opts->groups[g].betas[0] >= 0 || opts->groups[g].betas[1] >= 0) {
            fsdp_err_set(err, FSDP_EINVAL, "sgd: it has no betas, but group '%.100s' does",
                         opts->groups[g].names);
            return fsdp_err_blame(err, FSDP_EINVAL, "groups");
        }
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
    if (!run->param)
        return FSDP_OK;
    return fsdp_cast(lane, run->param, run->param_dtype, run->master, FSDP_F32, run->nelem, err);
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct optimizer optimizers[] = {
    {.name = "adamw",
     .state = {"exp_avg", "exp_avg_sq"},
     .splits = true,
     .nstate = adamw_nstate,
     .check = adamw_check,
     .update = adamw_update},
    {.name = "sgd",
     .state = {"momentum_buffer"},
     .nstate = sgd_nstate,
     .check = sgd_check,
     .update = sgd_update},
};
enum { NOPTIMIZERS = sizeof optimizers / sizeof optimizers[0] };

int optimizer_find(const struct optimizer **out, const char *name, struct fsdp_err *err)
{
    char known[128] = "";

    for (int i = 0; i < NOPTIMIZERS; i++) {
        if (!strcmp(optimizers[i].name, name)) {
            *out = &optimizers[i];
            return FSDP_OK;
        }
        size_t len = strlen(known);
        snprintf(known + len, sizeof known - len, "%s%s", i ? ", " : "", optimizers[i].name);
    }
    return fsdp_err_set(err, FSDP_EINVAL, "unknown optimizer '%s' (known: %s)", name, known);
}

int optimizer_check(const struct optimizer *optimizer, const struct fsdp_optim_opts *opts,
                    struct fsdp_err *err)
{
    if (!(opts->weight_decay >= 0))
        return fsdp_err_set(err, FSDP_EINVAL, "weight_decay is %g; it must be at least 0",
                            opts->weight_decay);
    if (!(opts->ema_decay >= 0 && opts->ema_decay < 1))
        return fsdp_err_set(err, FSDP_EINVAL, "ema_decay is %g; it must be at least 0 and below 1",
                            opts->ema_decay);
    if (opts->moment_dtype != FSDP_F32 && opts->moment_dtype != FSDP_BF16) {
        fsdp_err_set(err, FSDP_EUNSUPPORTED, "moments in %s; they can be F32 or BF16",
                     fsdp_dtype_name(opts->moment_dtype));
        return fsdp_err_blame(err, FSDP_EUNSUPPORTED, "moment_dtype");
    }
    if (opts->clip_norm_type != FSDP_NORM_2 && opts->clip_norm_type != FSDP_NORM_INF)
        return fsdp_err_set(err, FSDP_EINVAL, "unknown norm %d to clip by",
                            (int)opts->clip_norm_type);
    return optimizer->check(opts, err);
}
