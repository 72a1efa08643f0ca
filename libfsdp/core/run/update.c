/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The update of a flat's shard: the runs that were planned (update_plan.c), one call each.
 */
#include <string.h>

#include "core/state/master.h"
#include "core/state/offload.h"
#include "core/state/slots.h"
#include "core/state/state.h"
#include "op_run.h"
#include "update.h"

/* ---- running --------------------------------------------------------------------------------- */

struct updating {
    struct fsdp *f;
    const struct update_step *step;
    const struct flat_state *s;
    const struct update_run *run;
};

/* A range of the run; x: its master in fp32, NULL: where the state has it. */
static int update_range(const struct updating *u, float *x, uint64_t pos, uint64_t nelem,
                        const float *wide_grad, struct fsdp_err *err)
{
    const struct flat_state *s = u->s;
    struct optimizer_run args = update_args_of(u->f, u->step, s, u->run, pos, nelem);

    args.master = x ? x : s->master ? s->master + pos : NULL;
    args.rest = !x && s->rest ? s->rest + pos : NULL;
    if (x)
        args.param = NULL;
    if (wide_grad) {
        args.grad = wide_grad;
        args.grad_dtype = FSDP_F32;
    }
    return u->run->kind->update(u->step->lane, &args, err);
}

/* The same, with gradients as the optimizer takes them. */
static int update_whole(const struct updating *u, float *x, uint64_t pos, uint64_t nelem,
                        struct fsdp_err *err)
{
    struct fsdp *f = u->f;
    const enum fsdp_dtype dtype = flat_grad_dtype(f, &f->units.flats[u->run->flat]);

    if (dtype == FSDP_F32 || u->run->kind->narrow_grads)
        return update_range(u, x, pos, nelem, NULL, err);
    for (uint64_t at = 0; at < nelem; at += GRAD_PIECE) {
        const uint64_t here = nelem - at < GRAD_PIECE ? nelem - at : GRAD_PIECE;
        const char *grad = (const char *)u->s->grad + (pos + at) * fsdp_dtype_nbytes(dtype);
        FSDP_TRY(fsdp_cast(u->step->lane, f->mem.wide_grad, FSDP_F32, grad, dtype, here, err));
        FSDP_TRY(update_range(u, x ? x + at : NULL, pos + at, here, f->mem.wide_grad, err));
    }
    return FSDP_OK;
}

uint64_t update_wide_grad_nbytes(const struct fsdp *f)
{
    uint64_t most = 0;

    for (int k = 0; k < f->units.nflats; k++) {
        const struct flat *flat = &f->units.flats[k];
        const uint64_t nelem = flat->cut.shard_nelem;
        if (!flat->trainable || flat_grad_dtype(f, flat) == FSDP_F32 || nelem <= most)
            continue;
        for (int i = 0; i < flat->ntensors; i++)
            if (!f->optim.kinds[flat->params[i]]->narrow_grads)
                most = nelem;
    }
    return (most < GRAD_PIECE ? most : GRAD_PIECE) * sizeof(float);
}

/* A piece of a split master that was joined, or of weights without one: it is split again, or
 * rounded, and so the parameter written. */
static int update_piece(void *ctx, float *x, uint64_t at, uint64_t nelem, struct fsdp_err *err)
{
    const struct updating *u = ctx;
    return update_whole(u, x, u->run->pos + at, nelem, err);
}

static int update_one(struct fsdp *f, const struct update_step *step, const struct flat_state *s,
                      const struct update_run *run, struct fsdp_err *err)
{
    struct updating u = {f, step, s, run};
    const struct fsdp_rounding rounding =
        update_args_of(f, step, s, run, run->pos, run->nelem).weight_rounding;

    if (!s->master && !run->kind->splits) {
        const struct master_visit visit = {.lane = step->lane,
                                           .pos = run->pos,
                                           .nelem = run->nelem,
                                           .reads = true,
                                           .writes = true,
                                           .rounding = &rounding,
                                           .fn = update_piece,
                                           .ctx = &u};
        return master_each_at(f, s, &visit, err);
    }
    return update_whole(&u, NULL, run->pos, run->nelem, err);
}

struct averaging {
    const struct fsdp *f;
    const struct update_step *step;
    float *average;
};

static int average_piece(void *ctx, float *x, uint64_t at, uint64_t nelem, struct fsdp_err *err)
{
    const struct averaging *a = ctx;
    if (a->step->step == 0)
        return fsdp_copy(a->step->lane, a->average + at, x, nelem * sizeof *x, err);
    return fsdp_ema(a->step->lane, a->average + at, x, nelem, a->f->opts.optim.ema_decay, err);
}

/* After the first step the average is the weights themselves, as in PyTorch's AveragedModel. */
static int update_average(struct fsdp *f, const struct update_step *step, int flat,
                          const struct flat_state *s, struct fsdp_err *err)
{
    struct averaging a = {f, step, s->optim[f->optim.ema]};
    const struct master_visit visit = {.lane = step->lane,
                                       .nelem = f->units.flats[flat].cut.shard_nelem,
                                       .reads = true,
                                       .fn = average_piece,
                                       .ctx = &a};
    return master_each_at(f, s, &visit, err);
}

static int update_runs(struct fsdp *f, const struct update_step *step, int flat,
                       const struct flat_state *s, struct fsdp_err *err)
{
    for (int k = 0; k < f->optim.nruns; k++)
        if (f->optim.runs[k].flat == flat)
            FSDP_TRY(update_one(f, step, s, &f->optim.runs[k], err));
    return FSDP_OK;
}

/* An update on the host, which is called when its lane gets there: after fsdp_step has returned. */
struct host_update {
    struct fsdp *f;
    int flat, slot;
    struct update_step step;
};

static int run_host_update(void *arg, struct fsdp_err *err)
{
    const struct host_update *u = arg;
    struct fsdp *f = u->f;
    struct flat_state s = offload_host_at(f, u->flat, u->slot);

    s.grad = f->flats[u->flat].grad;
    FSDP_TRY(update_runs(f, &u->step, u->flat, &s, err));
    return f->optim.ema < 0 ? FSDP_OK : update_average(f, &u->step, u->flat, &s, err);
}

static int update_on_host(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    const struct host_scalars *scalars = f->offload.host_scalars;
    struct host_update u = {f, op->flat, op->slot, update_step_of(f, f->offload.host_lane)};

    u.step.clip_coef = &scalars->clip_coef;
    u.step.loss_scale = f->scalars.scaled ? &scalars->scale : NULL;
    return fsdp_lane_call(f->lanes[op->lane], run_host_update, &u, sizeof u, err);
}

static int update_on_device(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    const struct update_step step = update_step_of(f, f->lanes[op->lane]);
    struct flat_state s = offload_at(f, op->flat, op->slot);

    s.grad = grad_here(f, op->flat);
    FSDP_TRY(update_runs(f, &step, op->flat, &s, err));
    FSDP_TRY(update_shared(f, op->flat, &s, err));
    return f->optim.ema < 0 ? FSDP_OK : update_average(f, &step, op->flat, &s, err);
}

int exec_update(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    if (!f->optim.step_args) /* likewise (norm.c) */
        return FSDP_OK;
    FSDP_TRY(snapshot_hold(f, op->flat, f->lanes[op->lane], err));
    return offload_on_host(f, op->flat) ? update_on_host(f, op, err) : update_on_device(f, op, err);
}

/* ---- before the first step ------------------------------------------------------------------- */

enum { WARM_NELEM = 1024 };

/* Elements of every run's kind in memory that holds nothing: the same calls, so the same kernels.
 */
static int warm_updates(struct fsdp *f, char *memory, struct fsdp_err *err)
{
    const struct update_step step = update_step_of(f, f->lanes[SCHED_COMPUTE]);
    const size_t room = WARM_NELEM * sizeof(float);

    for (int k = 0; k < f->optim.nruns; k++) {
        struct update_run run = f->optim.runs[k];
        const struct flat *flat = &f->units.flats[run.flat];
        char *at = memory;
        struct flat_state s = {0};
        if (k > 0 && f->optim.runs[k - 1].flat == run.flat && f->optim.runs[k - 1].kind == run.kind)
            continue;
        if (offload_on_host(f, run.flat))
            continue;
        s.grad = at += room;
        s.param = at += room;
        if (flat_has_split_master(f, flat))
            s.rest = (uint16_t *)(at += room);
        else if (!flat_is_bf16_alone(f, flat))
            s.master = flat_has_separate_master(f, flat) ? (float *)(at += room) : s.param;
        for (int i = 0; i < f->optim.nslots; i++)
            s.optim[i] = at += room;
        run.pos = 0;
        run.nelem = WARM_NELEM;
        memset(run.at, 0, sizeof run.at);
        FSDP_TRY(update_one(f, &step, &s, &run, err));
    }
    return FSDP_OK;
}

static int warm_rest(struct fsdp *f, char *memory, struct fsdp_err *err)
{
    const struct fsdp_optim_opts *o = &f->opts.optim;
    const struct fsdp_scaler_opts *scaler = &f->opts.loss_scale;
    const struct fsdp_loss_scale_rule rule = {(float)scaler->growth, (float)scaler->backoff,
                                              scaler->interval};
    struct fsdp_lane *lane = f->lanes[SCHED_COMPUTE];
    struct fsdp_loss_scale *scale = (void *)memory; /* a line each, on the device */
    double *partial = (double *)(memory + 128);
    float *coef = (float *)(memory + 256), *norm = (float *)(memory + 384);
    float *x = (float *)(memory + WARM_NELEM * sizeof *x), *y = x + WARM_NELEM;

    FSDP_TRY(o->clip_norm_type == FSDP_NORM_INF ? fsdp_absmax(lane, partial, x, WARM_NELEM, err)
                                                : fsdp_sumsq(lane, partial, x, WARM_NELEM, err));
    const struct fsdp_clip_args clip = {.coef = coef,
                                        .norm = norm,
                                        .partial = partial,
                                        .npartials = 1,
                                        .type = o->clip_norm_type,
                                        .max_norm = (float)o->clip_grad_norm,
                                        .scale = f->scalars.scale};
    FSDP_TRY(fsdp_clip_coef(lane, &clip, err));
    if (f->scalars.scaled)
        FSDP_TRY(fsdp_loss_scale_update(lane, scale, norm, rule, err));
    return f->optim.ema < 0 ? FSDP_OK : fsdp_ema(lane, x, y, WARM_NELEM, o->ema_decay, err);
}

int update_warm(struct fsdp *f, struct fsdp_err *err)
{
    const struct fsdp_step_args args = {.step = 1};
    const size_t nbytes = (5 + MAX_SLOTS) * WARM_NELEM * sizeof(float);
    char *memory = fsdp_device_alloc(f->device, nbytes, "warming up", err);

    if (!memory)
        return FSDP_ENOMEM;
    f->optim.step_args = &args;
    int rc = warm_updates(f, memory, err);
    f->optim.step_args = NULL;
    rc = rc ? rc : warm_rest(f, memory, err);
    int synced = fsdp_lane_sync(f->lanes[SCHED_COMPUTE], rc ? NULL : err);
    fsdp_device_free(f->device, memory);
    return rc ? rc : synced;
}
