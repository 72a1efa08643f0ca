/* SPDX-License-Identifier: Apache-2.0 */
/* The plan: units, schedules, sizes, and the text in which ranks agree on them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/between/access.h"
#include "arena.h"
#include "plan.h"
#include "settings.h"
#include "core/state/gather.h"
#include "core/run/hooks.h"
#include "core/state/master.h"
#include "core/state/nf4.h"
#include "core/state/offload.h"
#include "core/trace/exposed.h"
#include "core/trace/ranges.h"
#include "core/trace/trace.h"

static int check_dtype(const char *what, enum fsdp_dtype dtype, struct fsdp_err *err)
{
    if (dtype == FSDP_F32 || dtype == FSDP_BF16 || dtype == FSDP_F16)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s %s; it can be F32, BF16 or F16", what,
                        fsdp_dtype_name(dtype));
}

static int check_opts(const struct fsdp_opts *opts, struct fsdp_err *err)
{
    if (opts->version != FSDP_OPTS_VERSION || opts->optim.version != FSDP_OPTIM_OPTS_VERSION)
        return fsdp_err_set(err, FSDP_EINVAL, "fsdp_opts version %u, this library has %d",
                            opts->version, FSDP_OPTS_VERSION);
    if (!fsdp_strategy_info(opts->sharding_strategy))
        return fsdp_err_set(err, FSDP_EINVAL, "unknown sharding strategy %d",
                            (int)opts->sharding_strategy);
    FSDP_TRY(check_dtype("param_dtype", opts->param_dtype, err));
    FSDP_TRY(check_dtype("reduce_dtype", opts->reduce_dtype, err));
    if (opts->grad_dtype != FSDP_F32 && opts->grad_dtype != FSDP_BF16)
        return fsdp_err_set_blame(err, FSDP_EUNSUPPORTED, "grad_dtype",
                                  "grad_dtype %s; it can be F32 or BF16",
                                  fsdp_dtype_name(opts->grad_dtype));
    if (opts->reshard_after_forward < -1)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "reshard_after_forward %d: true, false or a group size",
                            opts->reshard_after_forward);
    return FSDP_OK;
}

/* ---- programs -------------------------------------------------------------------------------- */

/* reshard_after_forward of a unit as the schedule wants it. As a group size it needs the mesh's
 * communicator of that size. What is freed inside a micro-step is not worth keeping between two. In
 * a group of one nothing is gathered but what is packed, which is unpacked for each use: kept, it
 * would be the whole model. */
static int describe_unit(struct fsdp *f, int unit, struct fsdp_err *err)
{
    const struct fsdp_strategy_info *strategy = fsdp_strategy_info(f->opts.sharding_strategy);
    const struct unit *u = &f->units.units[unit];
    const bool unpacks = u->flats[UNIT_NF4] >= 0 && f->mesh->shard_size == 1;
    int k = u->reshard_after_forward;

    if (k > 1 && k != f->mesh->shard_size && f->mesh->shard_size > 1 && k != f->mesh->regather_size)
        return fsdp_err_set_blame(
            err, FSDP_EINVAL, "reshard_after_forward",
            "reshard_after_forward is %d for unit '%s' and %d for another: all units "
            "that keep a part use groups of one size, which divides the shard group's "
            "%d ranks",
            k, u->module ? f->tree->modules[u->module].name : "the root", f->mesh->regather_size,
            f->mesh->shard_size);
    f->plan.sched_units[unit] = (struct sched_unit){
        .module = u->module,
        .reshard_after_forward = k < 0 ? strategy->reshard_after_forward || unpacks : k > 0,
        .reshard_after_backward = strategy->reshard_after_backward || unpacks || k > 0,
        .reshard_always = u->reshard_always && k > 0,
        .keep_part = k > 1 && k == f->mesh->regather_size,
    };
    return FSDP_OK;
}

static int describe_modules(struct fsdp *f, struct fsdp_err *err)
{
    size_t nmodules = (size_t)f->tree->nmodules;
    if (!(f->plan.parent = fsdp_alloc(nmodules, sizeof *f->plan.parent, "modules", err)) ||
        !(f->plan.sched_units =
              fsdp_alloc((size_t)f->units.nunits, sizeof *f->plan.sched_units, "units", err)) ||
        !(f->plan.sched_flats =
              fsdp_alloc((size_t)f->units.nflats, sizeof *f->plan.sched_flats, "units", err)))
        return FSDP_ENOMEM;
    for (int m = 0; m < f->tree->nmodules; m++)
        f->plan.parent[m] = f->tree->modules[m].parent;
    FSDP_TRY(fsdp_err_blame(err, checkpointing_create(f, err), "checkpoint_modules"));
    FSDP_TRY(acts_plan(f, err));
    for (int u = 0; u < f->units.nunits; u++)
        FSDP_TRY(describe_unit(f, u, err));
    for (int k = 0; k < f->units.nflats; k++) {
        const struct flat *flat = &f->units.flats[k];
        f->plan.sched_flats[k] = (struct sched_flat){
            .unit = flat->unit,
            .trainable = flat->trainable,
            .whole = flat->whole || flat->carried,
            .full_nbytes = gather_slot_nbytes(flat),
            .encoded = flat->codec || flat->nf4,
            .packed = flat->nf4,
            .chunked = flat_is_chunked(flat),
            .offloaded = flat->trainable && offload_state(f, k) && offload_passes(f, k),
            .on_host = offload_on_host(f, k),
            .grad_nbytes = flat_full_nelem(flat) * fsdp_dtype_nbytes(flat->reduce_dtype),
            .grad_narrow = flat->reduce_dtype != FSDP_F32 || flat_grad_dtype(f, flat) != FSDP_F32};
    }
    return FSDP_OK;
}

static bool reduces_last(const struct fsdp_opts *opts)
{
    return opts->reduce_last || fsdp_strategy_info(opts->sharding_strategy)->reduce_last;
}

static int refuse_early(struct fsdp_err *err, const char *setting, const char *why)
{
    return fsdp_err_set_blame(err, FSDP_EUNSUPPORTED, setting, "update_at reduce: %s", why);
}

/* What updates during the forward pass cannot be combined with. */
static int check_update_at_forward(const struct fsdp *f, struct fsdp_err *err)
{
    for (int k = 0; f->opts.update_at == FSDP_UPDATE_AT_FORWARD && k < f->units.nflats; k++) {
        if (!f->units.flats[k].trainable || !f->units.flats[k].codec)
            continue;
        return fsdp_err_set_blame(
            err, FSDP_EUNSUPPORTED, "gather_dtype",
            "update_at forward: units gathered in %s are encoded with the greatest "
            "values of all units, after the last update: set fsdp.gather_dtype auto, or "
            "update_at step",
            f->units.flats[k].codec->name);
    }
    return FSDP_OK;
}

/* What updates at the reduction cannot be combined with. */
static int check_update_at_reduce(const struct fsdp *f, struct fsdp_err *err)
{
    if (f->opts.update_at != FSDP_UPDATE_AT_REDUCE && f->opts.optim.clip_late)
        return fsdp_err_set_blame(
            err, FSDP_EUNSUPPORTED, "clip_late",
            "clip_late: with update_at step or forward the norm is known before the "
            "updates: set optim.clip_late false");
    if (f->opts.update_at != FSDP_UPDATE_AT_REDUCE)
        return FSDP_OK;
    if (f->opts.accumulation > 1 && !reduces_last(&f->opts))
        return refuse_early(
            err, "reduce_last",
            "with several micro-steps there is no shard to sum gradients in: set "
            "fsdp.reduce_last true (each rank then keeps all gradients until the last "
            "one), or update_at step");
    if (f->opts.optim.clip_grad_norm > 0 && !f->opts.optim.clip_late)
        return refuse_early(
            err, "clip_grad_norm",
            "the norm is known after the updates: set optim.clip_late true (the "
            "factor of the step before), optim.clip_grad_norm 0, or update_at step");
    if (f->scalars.scaled)
        return refuse_early(err, "loss_scale",
                            "a step that overflows cannot be skipped when half of it is done: use "
                            "bfloat16 instead of float16 and fsdp.loss_scale false, or update_at "
                            "step");
    if (f->opts.offload_gradients)
        return refuse_early(err, "offload_gradients",
                            "there is no gradient shard to be offloaded: set "
                            "fsdp.offload_gradients false");
    if (f->opts.grad_dtype != FSDP_F32)
        return refuse_early(err, "grad_dtype",
                            "there is no gradient shard to be in another type: set fsdp.grad_dtype "
                            "float32 (gradients are used in reduce_dtype)");
    for (int k = 0; k < f->units.nflats; k++)
        if (f->units.flats[k].trainable && f->units.flats[k].reduce_dtype == FSDP_F16)
            return refuse_early(err, "reduce_dtype",
                                "gradients are used as they are reduced, in float32 or bfloat16");
    return FSDP_OK;
}

static int program_create(struct fsdp *f, enum fsdp_program which, struct fsdp_err *err)
{
    struct program *p = &f->plan.programs[which];

    p->input = (struct sched_input){
        .program = which,
        .nmodules = f->tree->nmodules,
        .nunits = f->units.nunits,
        .nflats = f->units.nflats,
        .parent = f->plan.parent,
        .unit_of_module = f->units.unit_of_module,
        .recompute = f->plan.recompute,
        .units = f->plan.sched_units,
        .flats = f->plan.sched_flats,
        .sharded = f->mesh->shard_size > 1,
        .replicated = f->mesh->replicate_size > 1,
        .two_level = f->mesh->inner_size > 0,
        .reduce_last = reduces_last(&f->opts),
        .update_at_reduce = which == FSDP_TRAIN && f->opts.update_at == FSDP_UPDATE_AT_REDUCE,
        .update_at_forward = which == FSDP_TRAIN && f->opts.update_at == FSDP_UPDATE_AT_FORWARD,
        .accumulation = which == FSDP_TRAIN ? f->opts.accumulation : 1,
        .forward_prefetch = f->opts.forward_prefetch,
        .backward_prefetch = f->opts.backward_prefetch,
        .limit_all_gathers = f->opts.limit_all_gathers,
        .grad_buffers = f->opts.grad_buffers,
        .offload_params = f->opts.offload == FSDP_OFFLOAD_PARAMS,
        .offload_slots = f->offload.nslots,
        .offload_grads = which == FSDP_TRAIN && f->opts.offload_gradients,
        .acts = f->plan.acts,
    };
    FSDP_TRY(sched_create(&p->sched, &p->input, err));
    p->events = fsdp_alloc((size_t)p->sched.nops, sizeof *p->events, "schedule events", err);
    if (!p->events)
        return FSDP_ENOMEM;
    for (int i = 0; i < p->sched.nops; i++)
        if (p->sched.ops[i].waited_for)
            FSDP_TRY(fsdp_event_create(&p->events[i], f->device, err));
    return FSDP_OK;
}

static void program_destroy(struct program *p)
{
    for (int i = 0; p->events && i < p->sched.nops; i++)
        fsdp_event_destroy(p->events[i]);
    fsdp_free(p->events);
    sched_destroy(&p->sched);
}

/* ---- agreement ------------------------------------------------------------------------------- */

/* Values of settings, then what came of those whose values are not compared. */
static void write_opts(const struct fsdp *f, FILE *to)
{
    const struct fsdp_optim_opts *o = &f->opts.optim;

    fprintf(to, "libfsdp version = %s\n", fsdp_version());
    settings_write(to, &f->opts);
    fprintf(to, "mesh = %d x %d, %d a node\n", f->mesh->replicate_size, f->mesh->shard_size,
            f->mesh->inner_size);
    fprintf(to, "offloaded state = in %s\n", offload_in_file(&f->opts) ? "files" : "memory");
    fprintf(to, "modules that recompute =");
    for (int m = 0; m < f->tree->nmodules; m++)
        if (f->plan.recompute[m])
            fprintf(to, " %d", m);
    fprintf(to, "\n");
    for (int g = 0; g < o->ngroups; g++)
        fprintf(to, "parameter group %d = %s; lr_scale %.17g decay %.17g betas %.17g %.17g%s%s\n",
                g + 1, o->groups[g].names, o->groups[g].lr_scale, o->groups[g].weight_decay,
                o->groups[g].betas[0], o->groups[g].betas[1],
                *o->groups[g].optimizer ? " optimizer " : "", o->groups[g].optimizer);
}

static void write_units(const struct fsdp *f, FILE *to)
{
    for (int k = 0; k < f->units.nflats; k++) {
        const struct flat *flat = &f->units.flats[k];
        const struct sched_unit *unit = &f->plan.sched_units[flat->unit];
        fprintf(to, "unit '%s' %s: shards of %llu elements%s, gathered in %s, reduced in %s%s%s\n",
                f->tree->modules[f->units.units[flat->unit].module].name,
                flat->trainable ? "trainable"
                : flat->whole   ? "ignored"
                : flat->carried ? "carried"
                                : "frozen",
                (unsigned long long)flat->cut.shard_nelem, flat->cut.chunked ? " in chunks" : "",
                flat_sent_name(flat), fsdp_dtype_name(flat->reduce_dtype),
                unit->reshard_after_forward ? ", reshards" : "",
                unit->keep_part ? " and keeps a part" : "");
        for (int i = 0; i < flat->ntensors; i++) {
            fprintf(to, "parameter %s [", flat->tensors[i].name);
            for (int d = 0; d < flat->tensors[i].ndim; d++)
                fprintf(to, "%s%llu", d ? ", " : "", (unsigned long long)flat->tensors[i].shape[d]);
            const struct param *p = &f->tree->params[flat->params[i]];
            fprintf(to, "] init %d %.9g%s\n", (int)p->init.kind, (double)p->init.scale,
                    flat->codes[i] ? ", seen in codes" : "");
        }
    }
}

/* Everything that must be equal on all ranks, a line each. */
int plan_text(char **out, struct fsdp *f, struct fsdp_err *err)
{
    char *text = NULL;
    size_t nbytes;
    FILE *to = open_memstream(&text, &nbytes);
    if (!to)
        return fsdp_err_set(err, FSDP_ENOMEM, "plan text: out of memory");
    if (f->opts.agree)
        fprintf(to, "%s\n", f->opts.agree);
    write_opts(f, to);
    write_units(f, to);
    for (int p = 0; p < 2; p++)
        fprintf(to, "schedule of %s = %d operations, hash %016llx\n", p ? "evaluation" : "training",
                f->plan.programs[p].sched.nops,
                (unsigned long long)sched_hash(&f->plan.programs[p].sched));
    if (fclose(to)) {
        free(text);
        return fsdp_err_set(err, FSDP_ENOMEM, "plan text: out of memory");
    }
    f->hash = fsdp_hash(FSDP_HASH_SEED, text, nbytes);
    *out = text;
    return FSDP_OK;
}

/* ---- create and destroy ---------------------------------------------------------------------- */

static int create_lanes(struct fsdp *f, struct fsdp_err *err)
{
    for (int lane = 0; lane < SCHED_NLANES; lane++) {
        const char *name = sched_lane_name((enum sched_lane)lane);
        /* Communication goes before compute where both could start: compute waits for it. */
        if (lane == SCHED_COMPUTE || lane == SCHED_UPDATES)
            FSDP_TRY(fsdp_lane_create(&f->lanes[lane], f->device, name, err));
        else
            FSDP_TRY(fsdp_lane_create_urgent(&f->lanes[lane], f->device, name, err));
        FSDP_TRY(fsdp_event_create(&f->plan.tails[lane], f->device, err));
    }
    return FSDP_OK;
}

/* A unit takes one place; activations pass by module, and may take more. */
static int count_slots(const struct fsdp *f)
{
    const int wanted = f->opts.offload_slots, most = f->units.nflats;
    return wanted > most && !f->opts.offload_activations ? most : wanted;
}

/* Is a flat used as its shards lie, side by side? */
static bool suits_in_place(const struct flat *flat)
{
    return flat->whole || flat->carried ||
           !(flat_is_chunked(flat) || flat->codec || flat->nf4 || flat->any_codes);
}

/* Where all ranks of a shard group compute in one memory, their shards can lie in it side by side,
 * and a gather has nothing to copy. */
static bool gathers_in_place(const struct fsdp *f)
{
    const struct fsdp_mesh *mesh = f->mesh;

    if (!fsdp_device_is_host(f->device) || mesh->shard_size == 1 || mesh->inner_size ||
        mesh->regather_size || f->opts.offload == FSDP_OFFLOAD_PARAMS)
        return false;
    for (int k = 0; k < f->units.nflats; k++)
        if (!suits_in_place(&f->units.flats[k]))
            return false;
    if (!mesh->node_block || mesh->node_block % mesh->shard_size)
        return false;
    return !mesh->gather || fsdp_comm_has_common(mesh->gather);
}

int plan_make(struct fsdp *f, struct fsdp_err *err)
{
    FSDP_TRY(check_opts(&f->opts, err));
    FSDP_TRY(update_choose(f, err));
    FSDP_TRY(units_create(&f->units, f->tree, &f->opts, f->mesh->shard_size, err));
    f->offload.nslots = count_slots(f);
    FSDP_TRY(offload_plan(f, err));
    gather_plan(f);
    f->plan.in_place = gathers_in_place(f);
    FSDP_TRY(nf4_plan(f, err));
    FSDP_TRY(scale_plan(f, err));
    FSDP_TRY(check_update_at_reduce(f, err));
    FSDP_TRY(check_update_at_forward(f, err));
    FSDP_TRY(describe_modules(f, err));
    FSDP_TRY(create_lanes(f, err));
    FSDP_TRY(program_create(f, FSDP_TRAIN, err));
    FSDP_TRY(program_create(f, FSDP_EVAL, err));
    FSDP_TRY(update_plan(f, err));
    FSDP_TRY(master_plan(f, err));
    f->scalars.npartials = f->opts.optim.clip_norm_type == FSDP_NORM_INF ? (size_t)f->mesh->size
                                                                         : (size_t)f->units.nflats;
    FSDP_TRY(arena_plan(f, err));
    return state_layout_create(f, err);
}

/* What was borrowed for the call that made the engine. */
void plan_forget_borrowed(struct fsdp *f)
{
    f->opts.agree = f->opts.offload_dir = NULL;
    f->opts.wrap_classes = f->opts.wrap_modules = f->opts.checkpoint_modules = NULL;
    f->opts.frozen = f->opts.ignored = NULL;
    f->opts.unit_overrides = NULL;
    f->opts.nunit_overrides = 0;
    f->opts.optim.groups = NULL;
    f->opts.optim.ngroups = 0;
}

int fsdp_plan(struct fsdp **out, const struct fsdp_module_tree *tree, const struct fsdp_opts *opts,
              struct fsdp_device *device, struct fsdp_mesh_shape shape, struct fsdp_err *err)
{
    if (shape.shard_size < 1 || shape.replicate_size < 1 || shape.regather_size < 0 ||
        shape.inner_size < 0 || (shape.regather_size && shape.shard_size % shape.regather_size) ||
        (shape.inner_size && shape.shard_size % shape.inner_size))
        return fsdp_err_set(
            err, FSDP_EINVAL, "a mesh of %d x %d ranks, regathering over %d, %d a node",
            shape.replicate_size, shape.shard_size, shape.regather_size, shape.inner_size);
    struct fsdp *f = fsdp_alloc(1, sizeof *f, "engine", err);
    if (!f)
        return FSDP_ENOMEM;
    f->tree = tree;
    f->opts = *opts;
    f->device = device;
    f->mesh = &f->planned_mesh;
    f->planned_mesh.size = shape.shard_size * shape.replicate_size;
    f->planned_mesh.shard_size = shape.shard_size;
    f->planned_mesh.replicate_size = shape.replicate_size;
    f->planned_mesh.regather_size = shape.regather_size;
    f->planned_mesh.inner_size = shape.inner_size;
    f->planned_mesh.outer_size = shape.inner_size ? shape.shard_size / shape.inner_size : 0;
    f->planned_mesh.node_block = shape.node_block;
    char *text = NULL;
    int rc = plan_make(f, err);
    if (rc == FSDP_OK)
        rc = plan_text(&text, f, err); /* for its hash */
    free(text);
    plan_forget_borrowed(f);
    if (rc) {
        fsdp_destroy(f);
        return rc;
    }
    *out = f;
    return FSDP_OK;
}

void fsdp_destroy(struct fsdp *f)
{
    if (!f)
        return;
    ranges_reset(f);
    for (int lane = 0; lane < SCHED_NLANES; lane++) /* first: their threads may use what follows */
        fsdp_lane_destroy(f->lanes[lane]);
    trace_close(&f->tracing);
    exposed_close(&f->tracing);
    access_destroy(f);
    hooks_destroy(f);
    arena_destroy(f);
    for (int lane = 0; lane < SCHED_NLANES; lane++)
        fsdp_event_destroy(f->plan.tails[lane]);
    program_destroy(&f->plan.programs[FSDP_TRAIN]);
    program_destroy(&f->plan.programs[FSDP_EVAL]);
    units_destroy(&f->units);
    fsdp_free(f->plan.parent);
    fsdp_free(f->plan.recompute);
    fsdp_free(f->plan.checkpointing);
    fsdp_free(f->plan.acts);
    fsdp_free(f->plan.sched_units);
    fsdp_free(f->plan.sched_flats);
    fsdp_free(f->optim.runs);
    fsdp_free(f->optim.hyper);
    fsdp_free(f->optim.kinds);
    fsdp_free(f->optim.kept);
    fsdp_free(f->optim.written);
    fsdp_free(f->optim.slot_nelem);
    fsdp_free(f->optim.slot_pos);
    fsdp_free(f->flat_descs);
    fsdp_free(f->flat_slots);
    nf4_destroy(f);
    fsdp_free(f);
}

int fsdp_unit_count(const struct fsdp *f)
{
    return f->units.nunits;
}

uint64_t fsdp_plan_hash(const struct fsdp *f)
{
    return f->hash;
}

struct fsdp_mesh_shape fsdp_planned_shape(const struct fsdp *f)
{
    return (struct fsdp_mesh_shape){.shard_size = f->mesh->shard_size,
                                    .replicate_size = f->mesh->replicate_size,
                                    .regather_size = f->mesh->regather_size,
                                    .inner_size = f->mesh->inner_size,
                                    .node_block = f->mesh->node_block};
}
