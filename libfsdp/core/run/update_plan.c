/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which optimizer updates which parameter, what it keeps of it, and the runs that are updated in
 * one call. Neighbouring parameters with one optimizer and equal settings are one run, padding
 * between them included (it is zero and stays so), so that a unit of one group is one call.
 */
#include <string.h>

#include "core/state/offload.h"
#include "core/state/slots.h"
#include "core/units/module_tree.h"
#include "update.h"

/* ---- names ----------------------------------------------------------------------------------- */

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

/* ---- slots ----------------------------------------------------------------------------------- */

/* The number of a slot, which is added where there is none of that name yet. */
static int slot_number(int *out, struct engine_optim *optim, const struct fsdp_slot *slot,
                       bool from_weights, struct fsdp_err *err)
{
    int k = 0;

    while (k < optim->nslots && strcmp(optim->slots[k].name, slot->name))
        k++;
    *out = k;
    if (k < optim->nslots && optim->slots[k].dtype == slot->dtype &&
        optim->slots[k].kind == slot->kind)
        return FSDP_OK;
    if (k < optim->nslots || k == MAX_SLOTS)
        return fsdp_err_set(err, FSDP_EINTERNAL,
                            k == MAX_SLOTS ? "no room for optimizer state '%s'"
                                           : "two optimizers keep '%s' in different forms",
                            slot->name);
    optim->slots[k] = *slot;
    optim->from_weights[k] = from_weights;
    optim->nslots++;
    return FSDP_OK;
}

/* State j of an optimizer, as it is kept. */
static struct fsdp_slot slot_of(const struct optimizer *kind, int j,
                                const struct fsdp_optim_opts *opts)
{
    struct fsdp_slot slot = kind->state[j].slot;
    if (kind->narrow)
        slot.dtype = opts->moment_dtype;
    return slot;
}

static int keep_state(struct fsdp *f, int param, const struct fsdp_tensor *tensor,
                      struct fsdp_err *err)
{
    const struct optimizer *kind = f->optim.kinds[param];
    const unsigned kept = optimizer_keeps(kind, &f->opts.optim, tensor);
    int k;

    for (int j = 0; kept >> j; j++) {
        const struct fsdp_slot slot = slot_of(kind, j, &f->opts.optim);
        if (!(kept >> j & 1))
            continue;
        FSDP_TRY(slot_number(&k, &f->optim, &slot, kind->state[j].from_weights, err));
        f->optim.kept[param] |= UINT32_C(1) << k;
    }
    return FSDP_OK;
}

static int keep_averages(struct fsdp *f, struct fsdp_err *err)
{
    const struct fsdp_slot ema = {"ema", FSDP_F32, FSDP_PER_ELEMENT};

    f->optim.ema = -1;
    if (!(f->opts.optim.ema_decay > 0))
        return FSDP_OK;
    FSDP_TRY(slot_number(&f->optim.ema, &f->optim, &ema, true, err));
    for (int k = 0; k < f->units.nflats; k++)
        for (int i = 0; f->units.flats[k].trainable && i < f->units.flats[k].ntensors; i++)
            f->optim.kept[f->units.flats[k].params[i]] |= UINT32_C(1) << f->optim.ema;
    return FSDP_OK;
}

/* The options name the groups, and need not outlive the engine's creation. */
static int choose_params(struct fsdp *f, struct fsdp_err *err)
{
    for (int k = 0; k < f->units.nflats; k++) {
        const struct flat *flat = &f->units.flats[k];
        for (int i = 0; flat->trainable && i < flat->ntensors; i++) {
            const int param = flat->params[i];
            f->optim.hyper[param] = optimizer_hyper_of(&f->opts.optim, &flat->tensors[i]);
            f->optim.kinds[param] = optimizer_of(&f->opts.optim, &flat->tensors[i]);
            FSDP_TRY(keep_state(f, param, &flat->tensors[i], err));
        }
    }
    return keep_averages(f, err);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void place_run(struct update_run *run, const struct fsdp *f, int param)
{
    for (int j = 0; j < OPTIMIZER_MAX_STATE; j++) {
        const char *name = run->kind->state[j].slot.name;
        int k = 0;
        run->slots[j] = -1;
        if (!name)
            return;
        while (k < f->optim.nslots && strcmp(f->optim.slots[k].name, name))
            k++;
        if (k == f->optim.nslots || !(f->optim.kept[param] >> k & 1))
            continue;
        run->slots[j] = k;
        run->at[j] = slots_pos(f, run->flat, run->tensor, k);
    }
}

/* Do the slots of two runs lie as far from each other as the masters do? */
static bool slots_go_on(const struct fsdp *f, const struct update_run *a,
                        const struct update_run *b)
{
    for (int j = 0; j < OPTIMIZER_MAX_STATE; j++) {
        if (a->slots[j] != b->slots[j])
            return false;
        if (a->slots[j] < 0)
            continue;
        const enum fsdp_slot_kind kind = f->optim.slots[a->slots[j]].kind;
        const uint64_t each = kind == FSDP_PER_BLOCK ? FSDP_CUT_ALIGN : 1;
        if ((kind != FSDP_PER_ELEMENT && kind != FSDP_PER_BLOCK) || (b->pos - a->pos) % each ||
            b->at[j] - a->at[j] != (b->pos - a->pos) / each)
            return false;
    }
    return true;
}

static bool goes_on(const struct fsdp *f, const struct update_run *a, const struct update_run *b)
{
    bool by_chance =
        f->opts.optim.moment_dtype != FSDP_F32 || flat_is_bf16_alone(f, &f->units.flats[a->flat]);
    return !by_chance && a->flat == b->flat && a->kind == b->kind &&
           !memcmp(&a->hyper, &b->hyper, sizeof a->hyper) && slots_go_on(f, a, b);
}

/* Not that of the moments, whose bits are others. */
static uint64_t weight_key(const char *name, uint64_t seed)
{
    const uint64_t key = fsdp_hash(FSDP_HASH_SEED, "weight", strlen("weight"));

    return fsdp_hash(fsdp_hash(key, &seed, sizeof seed), name, strlen(name));
}

void update_run_of(struct update_run *out, const struct fsdp *f, int flat_index, int i)
{
    const struct flat *flat = &f->units.flats[flat_index];
    const struct fsdp_tensor *tensor = &flat->tensors[i];
    struct fsdp_box box;

    *out = (struct update_run){.flat = flat_index,
                               .tensor = i,
                               .kind = f->optim.kinds[flat->params[i]],
                               .hyper = f->optim.hyper[flat->params[i]],
                               .key = fsdp_hash(FSDP_HASH_SEED, tensor->name, strlen(tensor->name)),
                               .weight_key = weight_key(tensor->name, f->opts.seed)};
    out->nelem = fsdp_cut_box(&box, &out->pos, &flat->cut, flat->tensors, i, f->mesh->shard_rank);
    out->first = tensor->ndim ? box.offset[0] * fsdp_tensor_row_nelem(tensor) : 0;
    place_run(out, f, flat->params[i]);
}

struct update_step update_step_of(const struct fsdp *f, struct fsdp_lane *lane)
{
    return (struct update_step){.lane = lane,
                                .step = f->optim.step_args->step,
                                .lr = f->optim.step_args->lr,
                                .weight = f->optim.weight,
                                .clip_coef = f->scalars.clip_coef,
                                .loss_scale = f->scalars.scaled ? f->scalars.scale : NULL};
}

struct optimizer_run update_args_of(const struct fsdp *f, const struct update_step *step,
                                    const struct flat_state *s, const struct update_run *run,
                                    uint64_t pos, uint64_t nelem)
{
    const struct flat *flat = &f->units.flats[run->flat];
    struct optimizer_run args = {
        .grad = (const char *)s->grad + pos * fsdp_dtype_nbytes(flat_grad_dtype(f, flat)),
        .grad_dtype = flat_grad_dtype(f, flat),
        .grad_scale = step->clip_coef,
        .loss_scale = step->loss_scale,
        .rounding = {run->key, (uint64_t)step->step, run->first + pos - run->pos},
        .weight_rounding = {run->weight_key, (uint64_t)step->step, run->first + pos - run->pos},
        .nelem = nelem,
        .step = step->step,
        .lr = step->lr,
        .weight = step->weight,
        .hyper = run->hyper,
        .opts = &f->opts.optim,
    };
    slots_of_run(args.state, f, s, run, pos - run->pos);
    if ((flat_has_separate_master(f, flat) || flat_has_split_master(f, flat) ||
         flat_is_bf16_alone(f, flat)) &&
        !flat->codec) {
        args.param = (char *)s->param + pos * fsdp_dtype_nbytes(flat->param_dtype);
        args.param_dtype = flat->param_dtype;
    }
    return args;
}

static void add_run(struct fsdp *f, int flat_index, int i)
{
    struct update_run *last = f->optim.nruns ? &f->optim.runs[f->optim.nruns - 1] : NULL;
    struct update_run run;

    update_run_of(&run, f, flat_index, i);
    if (!run.nelem || run.kind->phase) /* those are not divided into runs (update_shared.c) */
        return;
    if (last && goes_on(f, last, &run))
        last->nelem = run.pos + run.nelem - last->pos;
    else
        f->optim.runs[f->optim.nruns++] = run;
}

static void add_runs(struct fsdp *f)
{
    f->optim.nruns = 0;
    for (int k = 0; k < f->units.nflats; k++)
        for (int i = 0; f->units.flats[k].trainable && i < f->units.flats[k].ntensors; i++)
            add_run(f, k, i);
}

/* ---- the whole ------------------------------------------------------------------------------- */

int update_choose(struct fsdp *f, struct fsdp_err *err)
{
    const struct fsdp_optim_opts *opts = &f->opts.optim;

    FSDP_TRY(optimizer_find(&f->optim.kind, opts->name, err));
    return optimizer_check(f->optim.kind, opts, err);
}

/* What an optimizer that averages, or gathers more than its masters, cannot be combined with. */
static int check_between(const struct fsdp *f, struct fsdp_err *err)
{
    const char *name = f->optim.kind->name;

    if (f->optim.kind->averages && f->scalars.scaled)
        return fsdp_err_set_blame(
            err, FSDP_EUNSUPPORTED, "loss_scale",
            "%s: steps that overflow cannot be skipped, because each has its part of the "
            "average: use bfloat16 instead of float16, or fsdp.loss_scale false",
            name);
    for (int k = 0; k < f->units.nflats; k++)
        if (flat_optimizer_writes_copy(f, &f->units.flats[k]) && f->units.flats[k].codec)
            return fsdp_err_set_blame(
                err, FSDP_EUNSUPPORTED, "gather_dtype",
                "%s: what it gathers is not encoded: set fsdp.gather_dtype auto", name);
    return FSDP_OK;
}

/* Those that are updated in phases read gradients where they are, and sum over all ranks between.
 */
static int check_phases(const struct fsdp *f, struct fsdp_err *err)
{
    const bool at_step = f->opts.update_at == FSDP_UPDATE_AT_STEP;

    for (int k = 0; k < f->units.nflats; k++) {
        const struct flat *flat = &f->units.flats[k];
        const bool wide = flat_grad_dtype(f, flat) == FSDP_F32;
        for (int i = 0; flat->trainable && i < flat->ntensors; i++) {
            const struct optimizer *kind = f->optim.kinds[flat->params[i]];
            if ((wide && at_step) || !kind->phase)
                continue;
            return fsdp_err_set_blame(
                err, FSDP_EUNSUPPORTED, at_step ? "grad_dtype" : "update_at",
                "%s: it takes gradients of '%s' in fp32 alone, after all were reduced and before "
                "the next forward pass: set fsdp.%s",
                kind->name, flat->tensors[i].name,
                at_step ? "grad_dtype float32" : "update_at step");
        }
    }
    return FSDP_OK;
}

/* Why a parameter cannot be updated on the host, and what to set; NULL: it can be. The host has no
 * memory for pieces of weights or gradients in fp32. */
static const char *why_not_on_host(const struct fsdp *f, const struct flat *flat,
                                   const struct optimizer *kind)
{
    const bool whole = !flat_has_split_master(f, flat) && !flat_is_bf16_alone(f, flat);

    if (flat->codec)
        return "its master is on the device, where it is encoded: set fsdp.gather_dtype auto";
    if (kind->phase)
        return "its optimizer sums over all ranks: set optim.name adamw";
    if (!whole && (!kind->splits || f->optim.ema >= 0))
        return f->optim.ema >= 0 ? "averages need whole masters: set optim.master whole"
                                 : "its optimizer needs whole masters: set optim.master whole";
    if (flat_grad_dtype(f, flat) != FSDP_F32 && !kind->narrow_grads)
        return "its optimizer needs gradients in fp32: set fsdp.grad_dtype float32";
    return NULL;
}

static int check_host(const struct fsdp *f, struct fsdp_err *err)
{
    for (int k = 0; k < f->units.nflats; k++) {
        const struct flat *flat = &f->units.flats[k];
        for (int i = 0; offload_on_host(f, k) && i < flat->ntensors; i++) {
            const char *why = why_not_on_host(f, flat, f->optim.kinds[flat->params[i]]);
            if (!why)
                continue;
            return fsdp_err_set_blame(
                err, FSDP_EUNSUPPORTED, "offload_update",
                "offload_update host: '%s' (%s) cannot be updated there: %s, or set "
                "fsdp.offload_update device",
                flat->tensors[i].name, f->optim.kinds[flat->params[i]]->name, why);
        }
    }
    return FSDP_OK;
}

int update_plan(struct fsdp *f, struct fsdp_err *err)
{
    const size_t nparams = (size_t)f->units.nparams;
    struct engine_optim *o = &f->optim;
    int ntrainable = count_trainable(&f->units);

    FSDP_TRY(optimizer_check_names(&f->opts.optim, ntrainable, trainable_name, &f->units, err));
    FSDP_TRY(check_between(f, err));
    o->runs = fsdp_alloc((size_t)ntrainable, sizeof *o->runs, "parameter groups", err);
    o->hyper = fsdp_alloc(nparams, sizeof *o->hyper, "parameter groups", err);
    o->kinds = fsdp_alloc(nparams, sizeof(void *), "parameter groups", err);
    o->kept = fsdp_alloc(nparams, sizeof *o->kept, "slots", err);
    o->written = fsdp_alloc(nparams, MAX_SLOTS, "averages", err);
    if (!o->runs || !o->hyper || !o->kinds || !o->kept || !o->written)
        return FSDP_ENOMEM;
    FSDP_TRY(choose_params(f, err));
    FSDP_TRY(check_phases(f, err));
    FSDP_TRY(check_host(f, err));
    FSDP_TRY(slots_plan(f, err));
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
    /* Updates on the host read the runs when their lane gets there. */
    FSDP_TRY(fsdp_lane_sync(f->lanes[SCHED_UPDATES], err));
    for (int p = 0; p < f->units.nparams; p++)
        f->optim.hyper[p].since = since[p];
    add_runs(f);
    return FSDP_OK;
}

int64_t fsdp_param_since(const struct fsdp *f, int param)
{
    return param >= 0 && param < f->units.nparams ? f->optim.hyper[param].since : 0;
}
