/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adafactor: Shazeer and Stern, arXiv 1804.04235, as torch.optim.Adafactor with its settings. Of a
 * matrix it keeps averages of rows and of columns, whose sums need all ranks.
 */
#include "optimizer.h"

enum { ROW_VAR, COL_VAR, VARIANCE };

static const double BETA2_DECAY = -0.8, EPS2 = 1e-3;

static unsigned adafactor_keeps(const struct fsdp_optim_opts *opts,
                                const struct fsdp_tensor *tensor)
{
    (void)opts;
    return tensor->ndim > 1 ? 1u << ROW_VAR | 1u << COL_VAR : 1u << VARIANCE;
}

static uint64_t adafactor_nsums(const struct fsdp_tensor *tensor)
{
    return FSDP_ADAFACTOR_NSUMS + (tensor->ndim == 2 ? tensor->shape[1] : 0);
}

static int adafactor_check(const struct fsdp_optim_opts *opts, struct fsdp_err *err)
{
    if (opts->master == FSDP_MASTER_WHOLE)
        return FSDP_OK;
    return fsdp_err_set_blame(
        err, FSDP_EUNSUPPORTED, "master",
        "adafactor: it needs whole rows of its masters, so that they cannot be split, nor "
        "left out: set optim.master whole");
}

static int adafactor_phase(struct fsdp_lane *lane, const struct optimizer_run *run, int phase,
                           struct fsdp_err *err)
{
    const struct fsdp_tensor *t = run->tensor;
    const bool factored = t->ndim > 1;
    struct fsdp_adafactor_args args = {
        .phase = (enum fsdp_adafactor_phase)phase,
        .master = run->master,
        .grad = run->grad,
        .grad_scale = run->grad_scale,
        .loss_scale = run->loss_scale,
        .row_var = run->state[ROW_VAR],
        .col_var = run->state[COL_VAR],
        .variance = run->state[VARIANCE],
        .sums = run->sums,
        .update_sum = run->update_sum,
        .nrows = factored ? t->shape[t->ndim - 2] : 1,
        .ncols = factored ? t->shape[t->ndim - 1] : fsdp_tensor_nelem(t),
        .by_rows = t->ndim == 2,
        .nelem = run->nelem,
        .nsteps = run->step + 1 - run->hyper.since,
        .lr = run->lr * run->hyper.lr_scale,
        .beta2_decay = BETA2_DECAY,
        .eps2 = EPS2,
        .weight_decay = run->hyper.weight_decay,
    };
    args.nmatrices = fsdp_tensor_nelem(t) / args.nrows / args.ncols;
    FSDP_TRY(fsdp_adafactor(lane, &args, err));
    return phase == FSDP_ADAFACTOR_APPLY ? optimizer_write_param(lane, run, err) : FSDP_OK;
}

const struct optimizer optimizer_adafactor = {
    .name = "adafactor",
    .state = {[ROW_VAR] = {.slot = {"row_var", FSDP_F32, FSDP_PER_ROW}},
              [COL_VAR] = {.slot = {"col_var", FSDP_F32, FSDP_PER_COLUMN}},
              [VARIANCE] = {.slot = {"variance", FSDP_F32, FSDP_PER_ELEMENT}}},
    .keeps = adafactor_keeps,
    .nsums = adafactor_nsums,
    .check = adafactor_check,
    .phase = adafactor_phase,
};
