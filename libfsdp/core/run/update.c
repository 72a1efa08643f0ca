/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The update of a flat's shard. Neighbouring parameters with equal settings are one run, padding
 * between them included (it is zero and stays so), so that a unit of one group is one call.
 */
#include <string.h>

#include "core/state/master.h"
#include "core/state/offload.h"
#include "core/units/module_tree.h"
#include "core/state/state.h"
#include "op_run.h"

/* ---- planning -------------------------------------------------------------------------------- */

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
    const struct optimizer_hyper hyper = f->optim.hyper[flat->params[i]];
    struct fsdp_box box;
    uint64_t pos;
    uint64_t nelem = fsdp_cut_box(&box, &pos, &flat->cut, flat->tensors, i, f->mesh->shard_rank);
    struct update_run *last = f->optim.nruns ? &f->optim.runs[f->optim.nruns - 1] : NULL;
    const struct fsdp_tensor *tensor = &flat->tensors[i];
    bool by_chance = f->opts.optim.moment_dtype != FSDP_F32;

    if (!nelem)
        return;
    if (last && !by_chance && last->flat == flat_index &&
        !memcmp(&last->hyper, &hyper, sizeof hyper))
        last->nelem = pos + nelem - last->pos;
    else
        f->optim.runs[f->optim.nruns++] = (struct update_run){
            .flat = flat_index,
            .pos = pos,
            .nelem = nelem,
            .hyper = hyper,
            .key = fsdp_hash(FSDP_HASH_SEED, tensor->name, strlen(tensor->name)),
            .first = tensor->ndim ? box.offset[0] * fsdp_tensor_row_nelem(tensor) : 0};
}

/* The options name the groups, and need not outlive the engine's creation. */
static void add_hyper(struct fsdp *f)
{
    for (int k = 0; k < f->units.nflats; k++) {
        const struct flat *flat = &f->units.flats[k];
        for (int i = 0; flat->trainable && i < flat->ntensors; i++)
            f->optim.hyper[flat->params[i]] = optimizer_hyper_of(&f->opts.optim, &flat->tensors[i]);
    }
}

static void add_runs(struct fsdp *f)
{
    f->optim.nruns = 0;
    for (int k = 0; k < f->units.nflats; k++)
        for (int i = 0; f->units.flats[k].trainable && i < f->units.flats[k].ntensors; i++)
            add_run(f, k, i);
}

static void add_state(struct fsdp *f, struct optimizer_state state, enum fsdp_dtype dtype)
{
    struct engine_optim *optim = &f->optim;
    optim->state_dtypes[optim->nstate] = dtype;
    optim->from_weights[optim->nstate] = state.from_weights;
    optim->state_names[optim->nstate++] = state.name;
}

int update_choose(struct fsdp *f, struct fsdp_err *err)
{
    const struct fsdp_optim_opts *opts = &f->opts.optim;

    FSDP_TRY(optimizer_find(&f->optim.kind, opts->name, err));
    FSDP_TRY(optimizer_check(f->optim.kind, opts, err));
    for (int k = 0; k < f->optim.kind->nstate(opts); k++)
        add_state(f, f->optim.kind->state[k], opts->moment_dtype);
    f->optim.ema = -1;
    if (opts->ema_decay > 0) {
        f->optim.ema = f->optim.nstate;
        add_state(f, (struct optimizer_state){"ema", true}, FSDP_F32);
    }
    return FSDP_OK;
}

/* What an optimizer that averages, or gathers more than its masters, cannot be combined with. */
static int check_between(const struct fsdp *f, struct fsdp_err *err)
{
    const char *name = f->optim.kind->name;

    if (f->optim.kind->averages && f->scalars.scaled) {
        fsdp_err_set(err, FSDP_EUNSUPPORTED,
                     "%s: steps that overflow cannot be skipped, because each has its part of the "
                     "average: use bfloat16 instead of float16, or fsdp.loss_scale false",
                     name);
        return fsdp_err_blame(err, FSDP_EUNSUPPORTED, "loss_scale");
    }
    for (int k = 0; k < f->units.nflats; k++)
        if (flat_is_between(f, &f->units.flats[k]) && f->units.flats[k].codec) {
            fsdp_err_set(err, FSDP_EUNSUPPORTED,
                         "%s: what it gathers is not encoded: set fsdp.gather_dtype auto", name);
            return fsdp_err_blame(err, FSDP_EUNSUPPORTED, "gather_dtype");
        }
    return FSDP_OK;
}

int update_plan(struct fsdp *f, struct fsdp_err *err)
{
    const struct fsdp_optim_opts *opts = &f->opts.optim;
    int ntrainable = count_trainable(&f->units);

    FSDP_TRY(optimizer_check_names(opts, ntrainable, trainable_name, &f->units, err));
    FSDP_TRY(check_between(f, err));
    f->optim.runs = fsdp_alloc((size_t)ntrainable, sizeof *f->optim.runs, "parameter groups", err);
    f->optim.hyper =
        fsdp_alloc((size_t)f->units.nparams, sizeof *f->optim.hyper, "parameter groups", err);
    f->optim.written = fsdp_alloc((size_t)f->units.nparams, MAX_STATE, "averages", err);
    if (!f->optim.runs || !f->optim.hyper || !f->optim.written)
        return FSDP_ENOMEM;
    add_hyper(f);
    add_runs(f);
    return FSDP_OK;
}

int fsdp_param_set_since(struct fsdp *f, const int64_t *since, struct fsdp_err *err)
{
    FSDP_TRY(engine_between_steps(f, "fsdp_param_set_since", err));
    for (int p = 0; p < f->units.nparams; p++)
        if (since[p] < 0)
            return fsdp_err_set(err, FSDP_EINVAL, "parameter '%s': %lld updates before its first",
                                f->tree->params[p].tensor.name, (long long)since[p]);
        else if (since[p] && f->optim.kind->averages)
            return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                "%s: parameter '%s' is trained from step %lld on, but averages "
                                "count from the first: begin a new run with model.path at the "
                                "merged weights",
                                f->optim.kind->name, f->tree->params[p].tensor.name,
                                (long long)since[p] + 1);
    for (int p = 0; p < f->units.nparams; p++)
        f->optim.hyper[p].since = since[p];
    add_runs(f);
    return FSDP_OK;
}

int64_t fsdp_param_since(const struct fsdp *f, int param)
{
    return param >= 0 && param < f->units.nparams ? f->optim.hyper[param].since : 0;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Elements [pos, pos + nelem) of the run's flat; the master is the caller's to set. */
static struct optimizer_run run_of(const struct fsdp *f, const struct flat_state *s,
                                   const struct update_run *run, uint64_t pos, uint64_t nelem)
{
    const struct flat *flat = &f->units.flats[run->flat];
    struct optimizer_run args = {
        .grad = s->grad + pos,
        .grad_scale = f->scalars.clip_coef,
        .loss_scale = f->scalars.scaled ? f->scalars.scale : NULL,
        .rounding = {run->key, (uint64_t)f->optim.step_args->step, run->first + pos - run->pos},
        .nelem = nelem,
        .step = f->optim.step_args->step,
        .lr = f->optim.step_args->lr,
        .weight = f->optim.weight,
        .hyper = run->hyper,
        .opts = &f->opts.optim,
    };
    for (int k = 0; k < f->optim.kind->nstate(&f->opts.optim); k++)
        args.state[k] = state_at(&f->optim, s, k, pos);
    if ((flat_is_apart(f, flat) || flat_is_split(f, flat)) && !flat->codec) {
        args.param = (char *)s->param + pos * fsdp_dtype_nbytes(flat->param_dtype);
        args.param_dtype = flat->param_dtype;
    }
    return args;
}

struct updating {
    struct fsdp *f;
    const struct flat_state *s;
    const struct update_run *run;
};

/* A piece of a split master that was joined: it is split again, and so the parameter written. */
static int update_piece(void *ctx, float *x, uint64_t at, uint64_t nelem, struct fsdp_err *err)
{
    const struct updating *u = ctx;
    struct optimizer_run args = run_of(u->f, u->s, u->run, u->run->pos + at, nelem);
    args.master = x;
    args.param = NULL;
    return u->f->optim.kind->update(u->f->lanes[SCHED_COMPUTE], &args, err);
}

static int update_one(struct fsdp *f, const struct flat_state *s, const struct update_run *run,
                      struct fsdp_err *err)
{
    struct updating u = {f, s, run};
    struct optimizer_run args = run_of(f, s, run, run->pos, run->nelem);

    if (!s->master && !f->optim.kind->splits) {
        const struct master_visit visit = {.pos = run->pos,
                                           .nelem = run->nelem,
                                           .reads = true,
                                           .writes = true,
                                           .fn = update_piece,
                                           .ctx = &u};
        return master_each_at(f, s, &visit, err);
    }
    args.master = s->master ? s->master + run->pos : NULL;
    args.rest = s->rest ? s->rest + run->pos : NULL;
    return f->optim.kind->update(f->lanes[SCHED_COMPUTE], &args, err);
}

struct averaging {
    struct fsdp *f;
    float *average;
};

static int average_piece(void *ctx, float *x, uint64_t at, uint64_t nelem, struct fsdp_err *err)
{
    const struct averaging *a = ctx;
    struct fsdp_lane *lane = a->f->lanes[SCHED_COMPUTE];
    if (a->f->optim.step_args->step == 0)
        return fsdp_copy(lane, a->average + at, x, nelem * sizeof *x, err);
    return fsdp_ema(lane, a->average + at, x, nelem, a->f->opts.optim.ema_decay, err);
}

/* After the first step the average is the weights themselves, as in PyTorch's AveragedModel. */
static int update_average(struct fsdp *f, int flat, const struct flat_state *s,
                          struct fsdp_err *err)
{
    struct averaging a = {f, s->optim[f->optim.ema]};
    const struct master_visit visit = {.nelem = f->units.flats[flat].cut.shard_nelem,
                                       .reads = true,
                                       .fn = average_piece,
                                       .ctx = &a};
    return master_each_at(f, s, &visit, err);
}

int exec_update(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    const struct flat_state s = offload_at(f, op->flat, op->slot);
    FSDP_TRY(snapshot_hold(f, op->flat, err));
    for (int k = 0; k < f->optim.nruns; k++)
        if (f->optim.runs[k].flat == op->flat)
            FSDP_TRY(update_one(f, &s, &f->optim.runs[k], err));
    return f->optim.ema < 0 ? FSDP_OK : update_average(f, op->flat, &s, err);
}

/* ---- before the first step ------------------------------------------------------------------- */

enum { WARM_NELEM = 1024 };

/* Elements of every run's kind in memory that holds nothing: the same calls, so the same kernels.
 */
static int warm_updates(struct fsdp *f, char *memory, struct fsdp_err *err)
{
    const size_t room = WARM_NELEM * sizeof(float);

    for (int k = 0; k < f->optim.nruns; k++) {
        struct update_run run = f->optim.runs[k];
        const struct flat *flat = &f->units.flats[run.flat];
        char *at = memory;
        struct flat_state s = {0};
        if (k > 0 && f->optim.runs[k - 1].flat == run.flat)
            continue;
        s.grad = (float *)(at += room);
        s.param = at += room;
        if (flat_is_split(f, flat))
            s.rest = (uint16_t *)(at += room);
        else
            s.master = flat_is_apart(f, flat) ? (float *)(at += room) : s.param;
        for (int i = 0; i < f->optim.nstate; i++)
            s.optim[i] = at += room;
        run.pos = 0;
        run.nelem = WARM_NELEM;
        FSDP_TRY(update_one(f, &s, &run, err));
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
    const size_t nbytes = (5 + MAX_STATE) * WARM_NELEM * sizeof(float);
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
