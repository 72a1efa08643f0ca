/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All memory of a rank, planned from the schedule and taken once: one device allocation for what
 * persists and for activations, one for what gathers move, and one for what reductions move, from
 * the first unsharded gradient to the shard in which the sum ends.
 *
 * A plan is walked twice by the same code: first with a NULL base to measure, then to hand out
 * pointers, so that the two cannot disagree.
 */
#include <stdio.h>
#include <string.h>

#include "arena.h"
#include "core/state/gather.h"
#include "core/state/master.h"
#include "core/state/nf4.h"
#include "core/state/offload.h"
#include "core/state/offload_file.h"
#include "core/state/slots.h"
#include "core/units/overrides.h"

enum { ARENA_ALIGN = 4096 };

struct cursor {
    char *base; /* NULL while measuring */
    uint64_t pos;
};

static void *take_row(struct cursor *c, uint64_t nbytes, uint64_t *row)
{
    void *ptr = c->base ? c->base + c->pos : NULL;
    uint64_t rounded = (nbytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    c->pos += rounded;
    if (row)
        *row += rounded;
    return ptr;
}

struct rows {
    uint64_t decoded, frozen, nf4, bare, master, rest, joined, wide_grad, optim, grad, param, kept,
        staging, unsharded, unsharded_grad, gather_staging, reduce_staging, saved, places,
        recomputed, work, scalars, passing, grad_places, host, host_acts, host_grads, file, staged;
};

/* For the flats whose parts the schedule keeps; the same in every micro-step. */
static void plan_parts(struct fsdp *f, struct cursor *c, struct rows *rows)
{
    const struct sched *sched = &f->plan.programs[FSDP_TRAIN].sched;
    for (int i = 0; i < sched->nops; i++) {
        const struct sched_op *op = &sched->ops[i];
        const struct flat *flat = op->flat >= 0 ? &f->units.flats[op->flat] : NULL;
        if (op->kind == SCHED_KEEP_PART && op->micro == 0)
            f->flats[op->flat].part = take_row(
                c, gather_whole_nbytes(flat) / (uint64_t)f->mesh->regather_size, &rows->kept);
    }
}

static uint64_t staging_nbytes(const struct fsdp *f)
{
    uint64_t most = 0;
    for (int i = 0; f->mesh->replicate_size > 1 && i < f->units.nflats; i++) {
        const struct flat *flat = &f->units.flats[i];
        uint64_t nbytes = flat->cut.shard_nelem * fsdp_dtype_nbytes(flat->reduce_dtype);
        if (flat->trainable && flat->reduce_dtype != flat_grad_dtype(f, flat) && nbytes > most)
            most = nbytes;
    }
    return most;
}

/* For the largest flat that is gathered, or reduced, as chunks. */
static uint64_t chunks_nbytes(const struct units *units, bool reduced)
{
    uint64_t most = 0;
    for (int i = 0; i < units->nflats; i++) {
        const struct flat *flat = &units->flats[i];
        enum fsdp_dtype dtype = reduced ? flat->reduce_dtype : flat->param_dtype;
        bool counts = reduced ? flat_is_chunked(flat) && flat->trainable
                              : gather_is_unpacked(flat) && !flat->carried;
        uint64_t nbytes = flat_full_nelem(flat) * fsdp_dtype_nbytes(dtype);
        if (counts && nbytes > most)
            most = nbytes;
    }
    return most;
}

static void plan_persistent(struct fsdp *f, struct cursor *c, struct rows *rows)
{
    for (int i = 0; i < f->units.nflats; i++) {
        const struct flat *flat = &f->units.flats[i];
        struct flat_state *s = &f->flats[i];
        uint64_t nelem = flat->cut.shard_nelem;
        bool offloaded = offload_state(f, i);
        if (flat_has_split_master(f, flat) && !offloaded)
            s->rest = take_row(c, nelem * sizeof *s->rest, &rows->rest);
        if (flat_has_separate_master(f, flat) && (!offloaded || flat->codec))
            s->master = take_row(c, nelem * sizeof(float), &rows->master);
        if (!flat->trainable)
            continue;
        for (int k = 0; !offloaded && k < f->optim.nslots; k++)
            s->optim[k] = take_row(c, slots_nbytes(f, i, k), &rows->optim);
    }
    f->mem.joined = take_row(c, master_joined_nbytes(f), &rows->joined);
    f->mem.wide_grad = take_row(c, update_wide_grad_nbytes(f), &rows->wide_grad);
    const uint64_t slot_nbytes = offload_slot_nbytes(f);
    const int nslots =
        engine_updates_on_host(f) ? 1 : f->offload.nslots; /* one for work between steps */
    for (int k = 0; slot_nbytes && k < nslots; k++)
        f->offload.slots[k] = take_row(c, slot_nbytes, &rows->passing);
    plan_parts(f, c, rows);
    f->scalars.sums =
        take_row(c, sizeof(double) * (FSDP_CONTROL_NELEM + f->scalars.npartials), &rows->scalars);
    f->mem.sums = take_row(c, sizeof(double) * update_shared_nsums(f), &rows->scalars);
    f->mem.room = take_row(c, sizeof(float) * update_shared_nroom(f), &rows->scalars);
    f->scalars.clip_coef = take_row(c, sizeof(float), &rows->scalars);
    f->scalars.grad_norm = take_row(c, sizeof(float), &rows->scalars);
    f->scalars.scale = take_row(c, sizeof *f->scalars.scale, &rows->scalars);
    f->encoding.amax = take_row(c, sizeof(double) * (uint64_t)f->encoding.namax, &rows->scalars);
    f->encoding.amax_rows =
        take_row(c, sizeof(double) * (uint64_t)f->encoding.namax * (uint64_t)f->mesh->shard_size,
                 &rows->scalars);
    f->encoding.piece = take_row(c, gather_encoded_nbytes(&f->units), &rows->decoded);
    nf4_place(f, take_row(c, nf4_scales_nbytes(f), &rows->nf4));
}

/* What a module keeps from forward to backward. */
static void plan_kept(struct fsdp *f, int module, struct cursor *c, uint64_t *row)
{
    const struct fsdp_act_bytes act = f->tree->modules[module].act;
    struct module_mem *mem = &f->mem.modules[module];

    mem->saved = take_row(c, act.saved, row);
    if (f->plan.checkpointing[module] != FSDP_AC_FULL)
        mem->recomputed = take_row(c, act.recomputed, row);
    if (f->plan.checkpointing[module] == FSDP_AC_NONE)
        mem->cheap = take_row(c, act.cheap, row);
}

/* The same with the modules inside it, at base; returns the bytes. */
static uint64_t plan_place(struct fsdp *f, int module, char *base)
{
    const struct fsdp_module_tree *tree = f->tree;
    struct cursor c = {.base = base};

    plan_kept(f, module, &c, NULL);
    for (int m = module + 1; m < tree->nmodules && tree->modules[m].parent >= module; m++)
        plan_kept(f, m, &c, NULL);
    f->mem.modules[module].place = base;
    f->mem.modules[module].place_nbytes = c.pos;
    return c.pos;
}

/* Places on the device, each for the module that keeps most. */
static void plan_places(struct fsdp *f, struct cursor *c, struct rows *rows)
{
    const struct sched_act *acts = f->plan.acts;
    uint64_t most = 0;

    for (int m = 0; acts && m < f->tree->nmodules; m++) {
        const uint64_t nbytes = acts[m].slot >= 0 ? plan_place(f, m, NULL) : 0;
        most = nbytes > most ? nbytes : most;
    }
    char *places = take_row(c, most * (uint64_t)f->plan.nact_slots, &rows->places);
    for (int m = 0; places && m < f->tree->nmodules; m++)
        if (acts && acts[m].slot >= 0)
            plan_place(f, m, places + most * (uint64_t)acts[m].slot);
}

/* What a module drops, with the modules inside it, shares one place with what others drop: only one
 * is in its backward pass. */
static void plan_dropped(struct fsdp *f, int module, struct cursor *shared, uint64_t begin,
                         uint64_t *end)
{
    const struct fsdp_act_bytes act = f->tree->modules[module].act;
    struct module_mem *mem = &f->mem.modules[module];

    if (f->plan.recompute[module])
        shared->pos = begin;
    if (f->plan.checkpointing[module] == FSDP_AC_FULL)
        mem->recomputed = take_row(shared, act.recomputed, NULL);
    if (f->plan.checkpointing[module] != FSDP_AC_NONE)
        mem->cheap = take_row(shared, act.cheap, NULL);
    if (shared->pos > *end)
        *end = shared->pos;
}

/* Work memory nests: a child's lies behind its parent's, siblings share. */
static void plan_activations(struct fsdp *f, struct cursor *c, struct rows *rows)
{
    const struct fsdp_module_tree *tree = f->tree;
    uint64_t work_end = 0;
    char *work_mem;

    for (int m = 0; m < tree->nmodules; m++)
        if (!acts_in_place(f, m))
            plan_kept(f, m, c, &rows->saved);
    plan_places(f, c, rows);
    const uint64_t dropped = c->pos;
    uint64_t end = dropped;
    for (int m = 0; m < tree->nmodules; m++)
        plan_dropped(f, m, c, dropped, &end);
    c->pos = end;
    rows->recomputed += end - dropped;

    for (int pass = 0; pass < 2; pass++) {
        work_mem = pass ? take_row(c, work_end, &rows->work) : NULL;
        for (int m = 0; m < tree->nmodules; m++) {
            uint64_t begin = 0;
            for (int p = tree->modules[m].parent; p >= 0; p = tree->modules[p].parent)
                begin += (tree->modules[p].act.work + 63) / 64 * 64;
            f->mem.modules[m].work = work_mem ? work_mem + begin : NULL;
            if (work_end < begin + tree->modules[m].act.work)
                work_end = begin + tree->modules[m].act.work;
        }
    }
}

/* On the way between a file and the device, or to an update on the host and from there. */
static bool is_staged(const struct fsdp *f)
{
    return engine_updates_on_host(f) || (f->offload.in_file && !fsdp_device_is_host(f->device));
}

static void plan_staged(struct fsdp *f, struct cursor *c, struct rows *rows)
{
    if (engine_updates_on_host(f))
        f->offload.host_scalars = take_row(c, sizeof *f->offload.host_scalars, &rows->staged);
    for (int k = 0; k < f->offload.nslots; k++)
        f->offload.staged_slots[k] = take_row(c, offload_staged_nbytes(f), &rows->staged);
}

/* What is offloaded: activations module by module, gradients and state flat by flat. */
static void plan_host(struct fsdp *f, struct cursor *c, struct rows *rows)
{
    for (int m = 0; f->plan.acts && m < f->tree->nmodules; m++)
        if (f->plan.acts[m].copied)
            f->mem.modules[m].home = take_row(c, f->mem.modules[m].place_nbytes, &rows->host_acts);
    for (int i = 0; f->opts.offload_gradients && i < f->units.nflats; i++)
        if (f->units.flats[i].trainable)
            f->flats[i].grad =
                take_row(c, flat_grad_nbytes(f, &f->units.flats[i]), &rows->host_grads);
    for (int i = 0; i < f->units.nflats; i++)
        offload_place(f, i, OFFLOAD_HOST,
                      take_row(c, offload_home_nbytes(f, i, OFFLOAD_HOST), &rows->host));
}

static void plan_file(struct fsdp *f, struct cursor *c, struct rows *rows)
{
    for (int i = 0; i < f->units.nflats; i++)
        offload_place(f, i, OFFLOAD_FILE,
                      take_row(c, offload_home_nbytes(f, i, OFFLOAD_FILE), &rows->file));
}

static void plan_device(struct fsdp *f, struct cursor *c, struct rows *rows)
{
    plan_persistent(f, c, rows);
    plan_activations(f, c, rows);
}

/* The rank's shard of a flat, or where gathers are in place those of all ranks. */
static void *take_shard(struct fsdp *f, int flat, struct cursor *c, uint64_t *row)
{
    const uint64_t nbytes = gather_shard_nbytes(&f->units.flats[flat]);
    if (!f->plan.in_place)
        return take_row(c, nbytes, row);
    char *all = take_row(c, nbytes, row);
    for (int r = 1; r < f->mesh->shard_size; r++) /* the other ranks' */
        take_row(c, nbytes, NULL);
    f->flats[flat].side_by_side = all;
    return all ? all + nbytes * (uint64_t)f->mesh->shard_rank : NULL;
}

/* Parameter shards and the slots they are gathered into. Training and evaluation share slot memory.
 */
static void plan_gather(struct fsdp *f, struct cursor *c, struct rows *rows)
{
    for (int i = 0; i < f->units.nflats; i++) {
        const struct flat *flat = &f->units.flats[i];
        struct flat_state *s = &f->flats[i];
        if (offload_param(f, i))
            continue;
        bool one = flat_gathers_master(f, flat);
        bool decoded = flat->codec && !flat_travels_encoded(flat);
        bool frozen = f->opts.frozen_in_param_dtype && !flat->trainable;
        s->param = take_shard(f, i, c,
                              decoded                       ? &rows->decoded
                              : flat->nf4                   ? &rows->nf4
                              : frozen                      ? &rows->frozen
                              : flat_is_bf16_alone(f, flat) ? &rows->bare
                              : one                         ? &rows->master
                                                            : &rows->param);
        if (one)
            s->master = s->param;
    }
    if (f->plan.in_place)
        return;
    uint64_t begin = c->pos, end = begin;
    for (int p = 0; p < 2; p++) {
        const struct sched *sched = &f->plan.programs[p].sched;
        c->pos = begin;
        for (int k = 0; k < sched->nparam_slots; k++)
            f->mem.param_slots[p][k] = take_row(c, sched->param_slot_nbytes[k], NULL);
        if (c->pos > end)
            end = c->pos;
    }
    c->pos = end;
    rows->unsharded += end - begin;
    f->mem.gather_staging = take_row(c, chunks_nbytes(&f->units, false), &rows->gather_staging);
}

/* For the largest gradient shard that takes this place. */
static uint64_t grad_place_nbytes(const struct fsdp *f, int place)
{
    const int *places = f->plan.programs[FSDP_TRAIN].sched.grad_place;
    uint64_t most = 0;

    for (int i = 0; i < f->units.nflats; i++) {
        const uint64_t nbytes = flat_grad_nbytes(f, &f->units.flats[i]);
        most = places[i] == place && nbytes > most ? nbytes : most;
    }
    return most;
}

/* The shards too, so that every buffer of a reduction, on each level, is registered memory: NCCL's
 * fast kernels need that of both ends. */
static void plan_reduce(struct fsdp *f, struct cursor *c, struct rows *rows)
{
    const struct sched *sched = &f->plan.programs[FSDP_TRAIN].sched;
    const bool kept = f->opts.update_at != FSDP_UPDATE_AT_REDUCE && !f->opts.offload_gradients;
    for (int i = 0; i < f->units.nflats; i++)
        if (f->units.flats[i].trainable && kept)
            f->flats[i].grad = take_row(c, flat_grad_nbytes(f, &f->units.flats[i]), &rows->grad);
    for (int k = 0; f->opts.offload_gradients && k < f->offload.nslots; k++)
        f->mem.grad_places[k] = take_row(c, grad_place_nbytes(f, k), &rows->grad_places);
    f->mem.replicate_staging = take_row(c, staging_nbytes(f), &rows->staging);
    for (int k = 0; k < sched->ngrad_slots; k++)
        f->mem.grad_slots[k] = take_row(c, sched->grad_slot_nbytes[k], &rows->unsharded_grad);
    f->mem.reduce_staging = take_row(c, chunks_nbytes(&f->units, true), &rows->reduce_staging);
    f->mem.reduce_nbytes = c->pos;
}

typedef void plan_f(struct fsdp *, struct cursor *, struct rows *);

static void measure_plan(struct fsdp *f, plan_f *plan, struct rows *rows)
{
    struct cursor c = {0};
    plan(f, &c, rows);
}

static void *comm_memory(struct fsdp *f, plan_f *plan, struct fsdp_comm *comm, uint64_t nbytes,
                         struct fsdp_err *err)
{
    if (plan == plan_gather && f->plan.in_place)
        return fsdp_comm_mem_common(comm, nbytes, err);
    return fsdp_comm_mem_alloc(comm, nbytes, err);
}

/* comm NULL: memory of the device, or of the host. */
static int place_plan(struct fsdp *f, plan_f *plan, void **mem, struct fsdp_comm *comm,
                      struct rows *rows, struct fsdp_err *err)
{
    struct rows ignored = {0};
    struct cursor c = {0};
    plan(f, &c, rows);
    if (c.pos == 0) /* as where nothing is reduced */
        return FSDP_OK;
    *mem = comm ? comm_memory(f, plan, comm, c.pos, err)
           : plan == plan_host || plan == plan_staged
               ? fsdp_host_alloc(f->device, c.pos, "what is offloaded to the host", err)
               : fsdp_device_alloc(f->device, c.pos, "arena", err);
    if (!*mem)
        return FSDP_ENOMEM;
    c = (struct cursor){.base = *mem};
    plan(f, &c, &ignored);
    return FSDP_OK;
}

/* What is offloaded to a file. */
static int place_file(struct fsdp *f, const char *dir, struct fsdp_err *err)
{
    struct rows ignored = {0};
    struct cursor c = {0};
    plan_file(f, &c, &ignored);
    if (c.pos == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp_err_blame(
        err, offload_file_create(&f->offload.file, dir, c.pos, f->mesh->rank, err), "offload_dir"));
    c = (struct cursor){.base = offload_file_base(f->offload.file)};
    plan_file(f, &c, &ignored);
    return FSDP_OK;
}

/* dtypes: what the memory is in, NULL where it goes without saying. */
static void row(struct engine_mem *mem, const char *what, const char *dtypes, uint64_t nbytes)
{
    struct arena_row *to = &mem->rows[mem->nrows];
    if (!nbytes)
        return;
    mem->nrows++;
    to->host = to->file = false;
    snprintf(to->what, sizeof to->what, "%s%s%s", what, dtypes ? ", " : "", dtypes ? dtypes : "");
    to->nbytes = nbytes;
}

static void host_row(struct engine_mem *mem, const char *what, bool file, uint64_t nbytes)
{
    row(mem, what, NULL, nbytes);
    if (!nbytes)
        return;
    mem->rows[mem->nrows - 1].host = true;
    mem->rows[mem->nrows - 1].file = file;
}

static int alloc_tables(struct fsdp *f, struct fsdp_err *err)
{
    const size_t nflats = (size_t)f->units.nflats, nparams = (size_t)f->units.nparams;
    const size_t nslots = (size_t)f->offload.nslots, nmodules = (size_t)f->units.nmodules;

    if (!(f->flats = fsdp_alloc(nflats, sizeof *f->flats, "flats", err)) ||
        !(f->mem.modules = fsdp_alloc(nmodules, sizeof *f->mem.modules, "modules", err)) ||
        !(f->view.param = fsdp_alloc(nparams, sizeof *f->view.param, "view", err)) ||
        !(f->view.amax = fsdp_alloc(nparams, sizeof *f->view.amax, "view", err)) ||
        !(f->view.grad = fsdp_alloc(nparams, sizeof *f->view.grad, "view", err)) ||
        !(f->view.grad_written = fsdp_alloc(nparams, sizeof *f->view.grad_written, "view", err)) ||
        !(f->mem.grad_places = fsdp_alloc(nslots, sizeof(void *), "slots", err)) ||
        !(f->mem.grad_slots = fsdp_alloc(nflats + 2, sizeof *f->mem.grad_slots, "slots", err)) ||
        !(f->mem.param_slots[0] = fsdp_alloc(nflats + 2, sizeof(void *), "slots", err)) ||
        !(f->mem.param_slots[1] = fsdp_alloc(nflats + 2, sizeof(void *), "slots", err)) ||
        !(f->offload.slots = fsdp_alloc(nslots, sizeof(void *), "slots", err)) ||
        !(f->offload.staged_slots = fsdp_alloc(nslots, sizeof(void *), "slots", err)))
        return FSDP_ENOMEM;
    return FSDP_OK;
}

static void list_state(struct fsdp *f, const struct rows *rows, const char *sent,
                       const char *params)
{
    struct engine_mem *mem = &f->mem;
    const char *narrow = f->opts.optim.moment_dtype == FSDP_BF16 ? "moments in BF16" : NULL;

    row(mem, "frozen parameter shards", sent, rows->frozen);
    row(mem, "frozen parameter shards, NF4", NULL, rows->nf4);
    row(mem, "parameter shards, fp32 masters", NULL, rows->master);
    row(mem, "parameter shards to gather", sent, rows->param);
    row(mem, "parameter shards without masters", "BF16", rows->bare);
    row(mem, "parameters decoded from the masters", params, rows->decoded);
    row(mem, "the rest of split masters, 16 bits", NULL, rows->rest);
    row(mem, "pieces of weights in fp32", NULL, rows->joined);
    row(mem, "optimizer state", narrow, rows->optim);
    row(mem, "offloaded state passing through", NULL, rows->passing);
}

static void list_passes(struct fsdp *f, const struct rows *rows, const char *params,
                        const char *grads)
{
    struct engine_mem *mem = &f->mem;
    const char *narrow = f->opts.grad_dtype == FSDP_BF16 ? "BF16" : NULL;

    row(mem, "gradient shards", narrow, rows->grad);
    row(mem, "offloaded gradient shards passing through", narrow, rows->grad_places);
    row(mem, "pieces of gradients in fp32", NULL, rows->wide_grad);
    row(mem, "parts kept after forward", params, rows->kept);
    row(mem, "gradient shard summed over replicas", grads, rows->staging);
    row(mem, "unsharded parameters", params, rows->unsharded);
    row(mem, "unsharded gradients", grads, rows->unsharded_grad);
    row(mem, "chunks of parameters, gathered", params, rows->gather_staging);
    row(mem, "chunks of gradients, to reduce", grads, rows->reduce_staging);
    row(mem, "activations, saved for backward", NULL, rows->saved);
    row(mem, "offloaded activations passing through", NULL, rows->places);
    row(mem, "activations, recomputed", NULL, rows->recomputed);
    row(mem, "activations, workspace", NULL, rows->work);
    row(mem, "scalars", NULL, rows->scalars);
}

static void list_offloaded(struct fsdp *f, const struct rows *rows)
{
    struct engine_mem *mem = &f->mem;

    host_row(mem,
             f->offload.in_file ? "parameters offloaded to the host"
                                : "state offloaded to the host",
             false, rows->host);
    host_row(mem, "activations offloaded to the host", false, rows->host_acts);
    host_row(mem, "gradient shards offloaded to the host", false, rows->host_grads);
    host_row(mem, "state offloaded to a file", true, rows->file);
    host_row(mem,
             engine_updates_on_host(f) ? "passing through the host for updates"
                                       : "on its way between file and device",
             false, rows->staged);
}

int arena_plan(struct fsdp *f, struct fsdp_err *err)
{
    struct rows rows = {0};
    char sent[32], params[32], grads[32];

    FSDP_TRY(alloc_tables(f, err));
    f->offload.in_file = offload_in_file(&f->opts);
    measure_plan(f, plan_device, &rows); /* first: it says what each module keeps */
    measure_plan(f, plan_host, &rows);
    measure_plan(f, plan_file, &rows);
    if (is_staged(f))
        measure_plan(f, plan_staged, &rows);
    measure_plan(f, plan_gather, &rows);
    measure_plan(f, plan_reduce, &rows);
    overrides_dtypes(sent, sizeof sent, &f->units, OVERRIDES_PLAIN);
    overrides_dtypes(params, sizeof params, &f->units, OVERRIDES_COMPUTED);
    overrides_dtypes(grads, sizeof grads, &f->units, OVERRIDES_REDUCED);
    list_state(f, &rows, sent, params);
    list_passes(f, &rows, params, grads);
    list_offloaded(f, &rows);
    return FSDP_OK;
}

bool arena_counts(const struct fsdp *f, int row)
{
    return !f->mem.rows[row].host || (fsdp_device_is_host(f->device) && !f->mem.rows[row].file);
}

uint64_t arena_nbytes(const struct fsdp *f)
{
    uint64_t nbytes = 0;
    for (int i = 0; i < f->mem.nrows; i++)
        nbytes += arena_counts(f, i) ? f->mem.rows[i].nbytes : 0;
    return nbytes;
}

static int check_limit(const struct fsdp *f, struct fsdp_err *err)
{
    uint64_t nbytes = arena_nbytes(f), limit = f->opts.memory_limit;
    if (!limit || nbytes <= limit)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_ENOMEM,
                        "out of memory: %llu bytes are needed, and memory_limit is %llu",
                        (unsigned long long)nbytes, (unsigned long long)limit);
}

int arena_create(struct fsdp *f, const char *offload_dir, struct fsdp_err *err)
{
    struct rows ignored = {0};
    FSDP_TRY(check_limit(f, err));
    FSDP_TRY(place_plan(f, plan_device, &f->mem.device, NULL, &ignored, err));
    if (offload_dir && *offload_dir)
        FSDP_TRY(place_file(f, offload_dir, err));
    if (is_staged(f))
        FSDP_TRY(place_plan(f, plan_staged, &f->offload.staged_mem, NULL, &ignored, err));
    FSDP_TRY(offload_host_open(f, err));
    FSDP_TRY(place_plan(f, plan_host, &f->mem.host, NULL, &ignored, err));
    return scale_begin(f, err);
}

/* The communicators that reduce, the one that owns their memory first; NULL: no further ones. */
enum { NREDUCERS = 3 };
static void reducers_of(const struct fsdp_mesh *mesh, struct fsdp_comm *comms[NREDUCERS])
{
    struct fsdp_comm *replicate = mesh->replicate_size > 1 ? mesh->replicate : NULL;
    bool alone = mesh->shard_size == 1 && replicate; /* as under NO_SHARD */

    comms[0] = alone ? replicate : mesh->reduce;
    comms[1] = mesh->inner_size ? mesh->outer_reduce : NULL;
    comms[2] = alone ? NULL : replicate;
}

int arena_register(struct fsdp *f, struct fsdp_err *err)
{
    struct fsdp_comm *reducers[NREDUCERS];
    struct rows ignored = {0};
    int rc = place_plan(f, plan_gather, &f->mem.gather, f->mesh->gather, &ignored, err);
    /* Both are collective: the second is entered even where the first failed. */
    reducers_of(f->mesh, reducers);
    int rc2 = place_plan(f, plan_reduce, &f->mem.reduce, reducers[0], &ignored, rc ? NULL : err);
    return rc ? rc : rc2;
}

int arena_share(struct fsdp *f, struct fsdp_err *err)
{
    struct fsdp_comm *reducers[NREDUCERS];

    reducers_of(f->mesh, reducers);
    for (int i = 1; f->mem.reduce && i < NREDUCERS; i++)
        if (reducers[i])
            FSDP_TRY(fsdp_comm_mem_share(reducers[i], f->mem.reduce, f->mem.reduce_nbytes, err));
    return FSDP_OK;
}

void arena_destroy(struct fsdp *f)
{
    if (f->mem.gather)
        fsdp_comm_mem_free(f->mesh->gather, f->mem.gather);
    if (f->mem.reduce) {
        struct fsdp_comm *reducers[NREDUCERS];
        reducers_of(f->mesh, reducers);
        for (int i = NREDUCERS - 1; i > 0; i--)
            fsdp_comm_mem_unshare(reducers[i], f->mem.reduce);
        fsdp_comm_mem_free(reducers[0], f->mem.reduce);
    }
    fsdp_device_free(f->device, f->mem.device);
    fsdp_host_free(f->device, f->mem.host);
    fsdp_host_free(f->device, f->offload.staged_mem);
    offload_host_close(f);
    offload_file_destroy(f->offload.file);
    fsdp_free(f->offload.slots);
    fsdp_free(f->offload.staged_slots);
    fsdp_free(f->flats);
    fsdp_free(f->mem.modules);
    fsdp_free(f->view.param);
    fsdp_free(f->view.amax);
    fsdp_free(f->view.grad);
    fsdp_free(f->view.grad_written);
    fsdp_free(f->mem.grad_slots);
    fsdp_free(f->mem.grad_places);
    fsdp_free(f->mem.param_slots[0]);
    fsdp_free(f->mem.param_slots[1]);
}

int fsdp_memory_plan(const struct fsdp *f, struct fsdp_memory_row *rows, int max)
{
    for (int i = 0; i < f->mem.nrows && i < max; i++)
        rows[i] = (struct fsdp_memory_row){.what = f->mem.rows[i].what,
                                           .nbytes = f->mem.rows[i].nbytes,
                                           .host = f->mem.rows[i].host,
                                           .file = f->mem.rows[i].file,
                                           .counts = arena_counts(f, i)};
    return f->mem.nrows;
}
