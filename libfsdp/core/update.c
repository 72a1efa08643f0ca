/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The update of a flat's shard. Neighbouring parameters with equal settings are one run, padding
 * between them included (it is zero and stays so), so that a unit of one group is one call.
 */
#include <string.h>

#include "state.h"

/* ---- planning ----------------------------------------------------------------------------------
 */

/* Name i of the trainable parameters, flat by flat. */
static const char *trainable_name(const void *ctx, int i)
{
    const struct units *units = ctx;
    for (int k = 0; k < units->nflats; k++) {
        if (!units->flats[k].trainable)
            continue;
        if (i < units->flats[k].ntensors)
            return units->flats[k].tensors[i].name;
        i -= units->flats[k].ntensors;
    }
    return NULL;
}

static int count_trainable(const struct units *units)
{
    int count = 0;
    for (int k = 0; k < units->nflats; k++)
        count += units->flats[k].trainable ? units->flats[k].ntensors : 0;
    return count;
}

static void add_run(struct fsdp *f, int flat_index, int i)
{
    const struct flat *flat = &f->units.flats[flat_index];
    struct optimizer_hyper hyper = optimizer_hyper_of(&f->opts.optim, &flat->tensors[i]);
    struct fsdp_box box;
    uint64_t pos;
    uint64_t nelem = fsdp_cut_box(&box, &pos, &flat->cut, flat->tensors, i, f->mesh->shard_rank);
    struct update_run *last = f->nruns ? &f->runs[f->nruns - 1] : NULL;

    if (!nelem)
        return;
    if (last && last->flat == flat_index && !memcmp(&last->hyper, &hyper, sizeof hyper))
        last->nelem = pos + nelem - last->pos;
    else
        f->runs[f->nruns++] = (struct update_run){flat_index, pos, nelem, hyper};
}

int update_plan(struct fsdp *f, struct fsdp_err *err)
{
    const struct fsdp_optim_opts *opts = &f->opts.optim;
    int ntrainable = count_trainable(&f->units);

    FSDP_TRY(optimizer_find(&f->optimizer, opts->name, err));
    FSDP_TRY(optimizer_check(f->optimizer, opts, err));
    FSDP_TRY(optimizer_check_names(opts, ntrainable, trainable_name, &f->units, err));
    for (int k = 0; k < f->optimizer->nstate(opts); k++)
        f->state_names[f->nstate++] = f->optimizer->state[k];
    f->ema = -1;
    if (opts->ema_decay > 0) {
        f->ema = f->nstate;
        f->state_names[f->nstate++] = "ema";
    }
    f->runs = fsdp_alloc((size_t)ntrainable, sizeof *f->runs, "parameter groups", err);
    if (!f->runs)
        return FSDP_ENOMEM;
    for (int k = 0; k < f->units.nflats; k++)
        for (int i = 0; f->units.flats[k].trainable && i < f->units.flats[k].ntensors; i++)
            add_run(f, k, i);
    return FSDP_OK;
}

/* ---- running ------------------------------------------------------------------------------------
 */

static int update_one(struct fsdp *f, const struct update_run *run, struct fsdp_err *err)
{
    enum fsdp_dtype dtype = f->units.flats[run->flat].param_dtype;
    struct flat_state *s = &f->flats[run->flat];
    struct optimizer_run args = {
        .master = s->master + run->pos,
        .grad = s->grad + run->pos,
        .grad_scale = f->clip_coef,
        .loss_scale = f->scaled ? f->scale : NULL,
        .nelem = run->nelem,
        .step = f->step_args->step,
        .lr = f->step_args->lr,
        .hyper = run->hyper,
        .opts = &f->opts.optim,
    };
    for (int k = 0; k < f->optimizer->nstate(&f->opts.optim); k++)
        args.state[k] = s->optim[k] + run->pos;
    if (dtype != FSDP_F32 && !f->units.flats[run->flat].codec) {
        args.param = (char *)s->param + run->pos * fsdp_dtype_nbytes(dtype);
        args.param_dtype = dtype;
    }
    return f->optimizer->update(f->lanes[SCHED_COMPUTE], &args, err);
}

static int copy_to_average(struct fsdp *f, int flat, struct fsdp_err *err)
{
    struct flat_state *s = &f->flats[flat];
    return fsdp_copy(f->lanes[SCHED_COMPUTE], s->optim[f->ema], s->master,
                     f->units.flats[flat].cut.shard_nelem * sizeof(float), err);
}

int update_average_begin(struct fsdp *f, struct fsdp_err *err)
{
    for (int k = 0; f->ema >= 0 && k < f->units.nflats; k++)
        if (f->units.flats[k].trainable)
            FSDP_TRY(copy_to_average(f, k, err));
    return FSDP_OK;
}

/* After the first step the average is the weights themselves, as in PyTorch's AveragedModel. */
static int update_average(struct fsdp *f, int flat, struct fsdp_err *err)
{
    struct flat_state *s = &f->flats[flat];

    if (f->step_args->step == 0)
        return copy_to_average(f, flat, err);
    return fsdp_ema(f->lanes[SCHED_COMPUTE], s->optim[f->ema], s->master,
                    f->units.flats[flat].cut.shard_nelem, f->opts.optim.ema_decay, err);
}

int exec_update(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    FSDP_TRY(snapshot_hold(f, op->flat, err));
    for (int k = 0; k < f->nruns; k++)
        if (f->runs[k].flat == op->flat)
            FSDP_TRY(update_one(f, &f->runs[k], err));
    return f->ema < 0 ? FSDP_OK : update_average(f, op->flat, err);
}
