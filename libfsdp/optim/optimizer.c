/* SPDX-License-Identifier: Apache-2.0 */
/* The table of optimizers, and what is checked for all of them. A row is a file of its own. */
#include <stdio.h>
#include <string.h>

#include "optimizer.h"

static const struct optimizer *const optimizers[] = {
    &optimizer_adamw, &optimizer_adamw8bit, &optimizer_adam,         &optimizer_adafactor,
    &optimizer_lion,  &optimizer_muon,      &optimizer_schedulefree, &optimizer_sgd,
};
enum { NOPTIMIZERS = sizeof optimizers / sizeof optimizers[0] };

int optimizer_find(const struct optimizer **out, const char *name, struct fsdp_err *err)
{
    char known[128] = "";

    for (int i = 0; i < NOPTIMIZERS; i++) {
        if (!strcmp(optimizers[i]->name, name)) {
            *out = optimizers[i];
            return FSDP_OK;
        }
        size_t len = strlen(known);
        snprintf(known + len, sizeof known - len, "%s%s", i ? ", " : "", optimizers[i]->name);
    }
    return fsdp_err_set(err, FSDP_EINVAL, "unknown optimizer '%s' (known: %s)", name, known);
}

unsigned optimizer_keeps(const struct optimizer *optimizer, const struct fsdp_optim_opts *opts,
                         const struct fsdp_tensor *tensor)
{
    unsigned all = 0;

    for (int i = 0; i < OPTIMIZER_MAX_STATE && optimizer->state[i].slot.name; i++)
        all |= 1u << i;
    return optimizer->keeps ? all & optimizer->keeps(opts, tensor) : all;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static int check_beta(const struct optimizer *optimizer, const char *name, double beta,
                      struct fsdp_err *err)
{
    if (beta >= 0 && beta < 1)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL, "%s: %s is %g; it must be at least 0 and below 1",
                        optimizer->name, name, beta);
}

static int check_group_betas(const struct optimizer *optimizer,
                             const struct fsdp_optim_group *group, struct fsdp_err *err)
{
    const double *betas = group->betas;

    if (!optimizer->betas && (betas[0] >= 0 || betas[1] >= 0))
        return fsdp_err_set(err, FSDP_EINVAL, "%s: it has no betas, but group '%.100s' does",
                            optimizer->name, group->names);
    FSDP_TRY(check_beta(optimizer, "a group's beta1", betas[0] < 0 ? 0 : betas[0], err));
    return check_beta(optimizer, "a group's beta2", betas[1] < 0 ? 0 : betas[1], err);
}

static int check_betas(const struct optimizer *optimizer, const struct fsdp_optim_opts *opts,
                       struct fsdp_err *err)
{
    if (optimizer->betas) {
        FSDP_TRY(fsdp_err_blame(err, check_beta(optimizer, "beta1", opts->betas[0], err), "betas"));
        FSDP_TRY(fsdp_err_blame(err, check_beta(optimizer, "beta2", opts->betas[1], err), "betas"));
    }
    return FSDP_OK;
}

static int check_moment_dtype(const struct optimizer *optimizer, const struct fsdp_optim_opts *opts,
                              struct fsdp_err *err)
{
    const char *name = fsdp_dtype_name(opts->moment_dtype);

    if (opts->moment_dtype == FSDP_F32 || (opts->moment_dtype == FSDP_BF16 && optimizer->narrow))
        return FSDP_OK;
    if (opts->moment_dtype != FSDP_BF16)
        return fsdp_err_set_blame(err, FSDP_EUNSUPPORTED, "moment_dtype",
                                  "moments in %s; they can be F32 or BF16", name);
    return fsdp_err_set_blame(
        err, FSDP_EUNSUPPORTED, "moment_dtype", "%s: its state is kept in %s, not in %s",
        optimizer->name, optimizer->state[0].slot.dtype == FSDP_F32 ? "F32" : "types of its own",
        name);
}

/* What is checked of each row that updates a parameter. */
static int check_row(const struct optimizer *optimizer, const struct fsdp_optim_opts *opts,
                     struct fsdp_err *err)
{
    FSDP_TRY(check_moment_dtype(optimizer, opts, err));
    FSDP_TRY(check_betas(optimizer, opts, err));
    if (optimizer->eps && !(opts->eps > 0)) /* padding between parameters has zero moments */
        return fsdp_err_set(err, FSDP_EINVAL, "%s: eps is %g; it must be above 0", optimizer->name,
                            opts->eps);
    return optimizer->check ? optimizer->check(opts, err) : FSDP_OK;
}

static int check_group(const struct optimizer *optimizer, const struct fsdp_optim_opts *opts,
                       const struct fsdp_optim_group *group, struct fsdp_err *err)
{
    const struct optimizer *own = optimizer;

    if (*group->optimizer)
        FSDP_TRY(optimizer_find(&own, group->optimizer, err));
    if (own != optimizer && (own->averages || optimizer->averages))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "%s: it averages all steps of all parameters, so that no other "
                            "optimizer can be next to it in a group",
                            own->averages ? own->name : optimizer->name);
    FSDP_TRY(check_group_betas(own, group, err));
    return own == optimizer ? FSDP_OK : check_row(own, opts, err);
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
    if (opts->clip_norm_type != FSDP_NORM_2 && opts->clip_norm_type != FSDP_NORM_INF)
        return fsdp_err_set(err, FSDP_EINVAL, "unknown norm %d to clip by",
                            (int)opts->clip_norm_type);
    FSDP_TRY(check_row(optimizer, opts, err));
    for (int g = 0; g < opts->ngroups; g++)
        FSDP_TRY(
            fsdp_err_blame(err, check_group(optimizer, opts, &opts->groups[g], err), "groups"));
    return FSDP_OK;
}
