/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the list; edges.c adds the edges. */
#include <string.h>

#include "builder.h"

static int emit(struct builder *b, struct sched_op op)
{
    if (b->failed)
        return -1;
    struct sched *s = b->out;
    struct sched_op *ops =
        fsdp_alloc_grow(s->ops, (size_t)s->nops, &b->max_ops, sizeof *ops, "schedule", b->err);
    if (!ops) {
        b->failed = true;
        return -1;
    }
    s->ops = ops;
    op.micro = b->micro;
    s->ops[s->nops] = op;
    return s->nops++;
}

static struct sched_op op_of(enum sched_kind kind)
{
    return (struct sched_op){
        .kind = kind, .lane = sched_infos[kind].lane, .module = -1, .flat = -1, .slot = -1};
}

static void emit_flat(struct builder *b, enum sched_kind kind, int flat, int slot)
{
    struct sched_op op = op_of(kind);
    op.on_host = kind == SCHED_UPDATE && b->in->flats[flat].on_host;
    if (op.on_host || (kind == SCHED_UPDATE && b->in->update_at_forward))
        op.lane = SCHED_UPDATES;
    op.flat = flat;
    op.slot = slot;
    emit(b, op);
}

/* Of an offloaded gradient shard, to or from the host. */
static void emit_grad(struct builder *b, enum sched_kind kind, int flat)
{
    emit_flat(b, kind, flat, b->out->grad_place[flat]);
}

/* Behind the sum that ends in the shard, in its lane: before it leaves the device. */
static void emit_early_norm(struct builder *b, int flat)
{
    struct sched_op op = op_of(SCHED_NORM);
    op.flat = flat;
    b->last_grad[b->out->grad_place[flat]] = flat;
    op.lane = b->in->replicated  ? SCHED_REPLICATES
              : b->in->two_level ? SCHED_OUTER_REDUCES
                                 : SCHED_REDUCES;
    emit(b, op);
}

/* ---- slots -------------------------------------------------------------------------------------
 *
 * `spread` slots take turns: of the free ones, the spread - 1 that were used last may still be at
 * work and are let alone. Of the others the smallest that is large enough is taken, and of equal
 * ones the longest unused; else the largest grows; where there are no others, a new one is made. */

/* Were fewer than `spread` - 1 free slots given back after this one? */
static bool slot_is_recent(const struct slots *slots, int slot, int spread)
{
    int later = 0;
    for (int k = 0; k < slots->count; k++)
        later += !slots->busy[k] && slots->freed[k] > slots->freed[slot];
    return later < spread - 1;
}

static bool slot_is_better(const struct slots *slots, int slot, int than, uint64_t nbytes)
{
    const uint64_t size = slots->nbytes[slot], other = slots->nbytes[than];
    if ((size >= nbytes) != (other >= nbytes))
        return size >= nbytes;
    if (size == other)
        return slots->freed[slot] < slots->freed[than];
    return size >= nbytes ? size < other : size > other;
}

static int slot_take(struct slots *slots, uint64_t nbytes, int spread)
{
    int best = -1;
    for (int k = 0; k < slots->count; k++) {
        const bool full = slots->count == slots->capacity;
        if (slots->busy[k] || (!full && slot_is_recent(slots, k, spread)))
            continue;
        if (best < 0 || slot_is_better(slots, k, best, nbytes))
            best = k;
    }
    if (best < 0)
        best = slots->count++;
    if (slots->nbytes[best] < nbytes)
        slots->nbytes[best] = nbytes;
    slots->busy[best] = true;
    return best;
}

static void slot_give(struct slots *slots, int slot)
{
    slots->busy[slot] = false;
    slots->freed[slot] = ++slots->clock;
}

/* ---- gathering ------------------------------------------------------------------------------- */

static bool is_gathered(const struct builder *b, int flat, int unit)
{
    return b->in->flats[flat].unit == unit && sched_is_gathered(b->in, flat);
}

static bool unit_is_gathered(const struct builder *b, int unit)
{
    for (int f = 0; f < b->in->nflats; f++)
        if (is_gathered(b, f, unit))
            return true;
    return false;
}

static void gather_unit(struct builder *b, int unit)
{
    if (b->live[unit] || !unit_is_gathered(b, unit))
        return;
    for (int f = 0; f < b->in->nflats; f++) {
        if (!is_gathered(b, f, unit))
            continue;
        b->param_slot[f] = slot_take(&b->param_slots, b->in->flats[f].full_nbytes, 1);
        if (b->in->offload_params && !b->parted[unit])
            emit_flat(b, SCHED_LOAD, f, b->param_slot[f]);
        if (b->in->two_level && !b->parted[unit])
            emit_flat(b, SCHED_OUTER_GATHER, f, b->param_slot[f]);
        emit_flat(b, b->parted[unit] ? SCHED_REGATHER : SCHED_GATHER, f, b->param_slot[f]);
        if (sched_is_unpacked(b->in, f) && !b->parted[unit])
            emit_flat(b, SCHED_UNPACK, f, b->param_slot[f]);
    }
    b->parted[unit] = false;
    b->live[unit] = true;
    if (!b->kept[unit]) {
        b->nlive++;
        if (b->nlive > b->out->max_unsharded)
            b->out->max_unsharded = b->nlive;
    }
}

static void free_unit(struct builder *b, int unit)
{
    if (!b->live[unit])
        return;
    for (int f = 0; f < b->in->nflats; f++) {
        if (!is_gathered(b, f, unit))
            continue;
        emit_flat(b, SCHED_FREE, f, b->param_slot[f]);
        slot_give(&b->param_slots, b->param_slot[f]);
        b->param_slot[f] = -1;
    }
    b->live[unit] = false;
    if (!b->kept[unit])
        b->nlive--;
}

static void keep_part(struct builder *b, int unit)
{
    if (!b->live[unit] || !b->in->units[unit].keep_part || b->in->program != FSDP_TRAIN)
        return;
    for (int f = 0; f < b->in->nflats; f++)
        if (is_gathered(b, f, unit))
            emit_flat(b, SCHED_KEEP_PART, f, b->param_slot[f]);
    b->parted[unit] = true;
}

/* The units in the order in which this direction first needs them: b->order[0 .. norder). */
static void prefetch_after(struct builder *b, int unit, int depth)
{
    int at = 0, limit = b->in->limit_all_gathers;
    while (at < b->norder && b->order[at] != unit)
        at++;
    for (int k = at + 1; k < b->norder && k <= at + depth; k++) {
        int next = b->order[k];
        if (limit && !b->kept[next] && !b->live[next] && b->nlive >= limit)
            break;
        gather_unit(b, next);
    }
}

/* ---- driven entries -------------------------------------------------------------------------- */

static void emit_visit(struct builder *b, enum sched_kind kind, int module, enum fsdp_phase phase)
{
    struct sched_op op = op_of(kind);
    op.module = module;
    op.phase = phase;
    emit(b, op);
}

static bool is_unit_root(const struct builder *b, int module)
{
    return b->in->units[b->in->unit_of_module[module]].module == module;
}

static int subtree_end(const struct builder *b, int module)
{
    int end = module + 1;
    while (end < b->in->nmodules && b->in->parent[end] >= module)
        end++;
    return end;
}

static void need_unit(struct builder *b, int module, int prefetch)
{
    if (is_unit_root(b, module)) {
        gather_unit(b, b->in->unit_of_module[module]);
        prefetch_after(b, b->in->unit_of_module[module], prefetch);
    }
}

/* Calls visit on the children of a module, forward or in reverse. */
static void each_child(struct builder *b, int module, bool reverse,
                       void (*visit)(struct builder *, int))
{
    int end = subtree_end(b, module);
    if (!reverse) {
        for (int child = module + 1; child < end; child = subtree_end(b, child))
            visit(b, child);
        return;
    }
    for (int child = end - 1; child > module; child--)
        if (b->in->parent[child] == module)
            visit(b, child);
}

static void emit_act(struct builder *b, enum sched_kind kind, int module)
{
    struct sched_op op = op_of(kind);
    op.module = module;
    op.slot = b->in->acts[module].slot;
    emit(b, op);
}

static void offload_act(struct builder *b, int module)
{
    if (b->in->program == FSDP_TRAIN && b->in->acts && b->in->acts[module].copied)
        emit_act(b, SCHED_OFFLOAD, module);
}

/* Its slot is free: the module that had it before follows while others compute. In its lane it
 * comes behind the states of updates at the reduction: it waits for this module, and they need not.
 */
static void reload_before(struct builder *b, int module)
{
    if (b->in->acts && b->in->acts[module].before >= 0)
        emit_act(b, SCHED_RELOAD, b->in->acts[module].before);
}

static void visit_forward(struct builder *b, int module)
{
    int unit = b->in->unit_of_module[module];
    need_unit(b, module, b->in->forward_prefetch);
    emit_visit(b, SCHED_ENTER, module, FSDP_FORWARD);
    each_child(b, module, false, visit_forward);
    emit_visit(b, SCHED_LEAVE, module, FSDP_FORWARD);
    offload_act(b, module);
    if (is_unit_root(b, module) && !b->kept[unit]) {
        keep_part(b, unit);
        free_unit(b, unit);
    }
}

static void visit_recompute(struct builder *b, int module)
{
    need_unit(b, module, b->in->backward_prefetch);
    emit_visit(b, SCHED_ENTER, module, FSDP_RECOMPUTE);
    each_child(b, module, false, visit_recompute);
    emit_visit(b, SCHED_LEAVE, module, FSDP_RECOMPUTE);
}

static bool is_last_micro(const struct builder *b)
{
    return b->micro == b->in->accumulation - 1;
}

/* Does the flat's reduction have something to do besides the replicas' sum? */
static bool needs_reduce(const struct builder *b, int flat)
{
    return b->in->flats[flat].trainable && (b->in->sharded || b->in->flats[flat].grad_narrow ||
                                            b->in->update_at_reduce || b->in->offload_grads);
}

/* Where it has not, gradients go straight into the shard: no slot. Every micro-step has the slots
 * of the first: it takes and gives in the same order, or, where gradients are reduced only in the
 * last one, it adds to what is there. */
static void take_grad_slots(struct builder *b, int unit)
{
    int *slot = b->out->grad_slot + b->micro * b->in->nflats;
    for (int f = 0; f < b->in->nflats; f++) {
        if (b->in->flats[f].unit != unit || !needs_reduce(b, f))
            continue;
        slot[f] = b->micro > 0 ? b->out->grad_slot[f]
                               : slot_take(&b->grad_slots, b->in->flats[f].grad_nbytes,
                                           b->in->update_at_reduce ? 1 : b->in->grad_buffers);
        b->grad_slots.busy[slot[f]] = true;
    }
}

/* Updates all but the `most` flats that were reduced last; their slots are then free. An update
 * waits for a reduction, and the next backward pass for the update: so that grad_buffers - 1
 * reductions may be under way meanwhile, a unit is updated when its slot is needed again. */
static void add_early_updates(struct builder *b, int most)
{
    for (; b->nreduced - b->nupdated > most; b->nupdated++) {
        const int f = b->early[b->nupdated];
        const bool away = b->in->flats[f].offloaded;
        const int slot = away ? b->turn++ % b->in->offload_slots : -1;
        if (away)
            emit_flat(b, SCHED_FETCH, f, slot);
        emit_flat(b, SCHED_NORM, f, -1);
        emit_flat(b, SCHED_UPDATE, f, slot);
        if (away)
            emit_flat(b, SCHED_STORE, f, slot);
        slot_give(&b->grad_slots, b->out->grad_slot[b->micro * b->in->nflats + f]);
    }
}

static void reduce_unit(struct builder *b, int unit)
{
    bool last = is_last_micro(b);
    int *slot = b->out->grad_slot + b->micro * b->in->nflats;
    for (int f = 0; f < b->in->nflats; f++) {
        if (b->in->flats[f].unit != unit || !b->in->flats[f].trainable)
            continue;
        if (b->in->update_at_reduce && b->in->flats[f].chunked)
            add_early_updates(b, 0); /* the staging is needed again */
        const bool reduces = needs_reduce(b, f) && (last || !b->in->reduce_last);
        if (b->in->offload_grads && reduces && b->micro > 0 && !b->in->reduce_last)
            emit_grad(b, SCHED_FETCH_GRAD, f);
        if (reduces) {
            if (b->in->flats[f].chunked)
                emit_flat(b, SCHED_PACK, f, slot[f]);
            emit_flat(b, SCHED_REDUCE, f, slot[f]);
            if (b->in->two_level)
                emit_flat(b, SCHED_OUTER_REDUCE, f, slot[f]);
            if (!b->in->update_at_reduce)
                slot_give(&b->grad_slots, slot[f]);
        }
        if (b->in->replicated && last)
            emit_flat(b, SCHED_ALL_REDUCE, f, -1);
        if (b->in->offload_grads && last)
            emit_early_norm(b, f);
        if (b->in->offload_grads && reduces)
            emit_grad(b, SCHED_STORE_GRAD, f);
        if (b->in->update_at_reduce && last) {
            b->early[b->nreduced++] = f;
            add_early_updates(b, b->in->grad_buffers - 1);
        }
    }
}

static void visit_backward(struct builder *b, int module)
{
    int unit = b->in->unit_of_module[module];
    if (b->in->recompute[module])
        visit_recompute(b, module);
    need_unit(b, module, b->in->backward_prefetch);
    if (is_unit_root(b, module))
        take_grad_slots(b, unit);
    emit_visit(b, SCHED_ENTER, module, FSDP_BACKWARD);
    each_child(b, module, true, visit_backward);
    emit_visit(b, SCHED_LEAVE, module, FSDP_BACKWARD);
    if (is_unit_root(b, module)) {
        if (b->in->units[unit].reshard_after_backward || is_last_micro(b))
            free_unit(b, unit);
        reduce_unit(b, unit);
    }
    reload_before(b, module);
}

/* ---- activations ----------------------------------------------------------------------------- */

int sched_place_acts(struct sched_act *out, const bool *keeps, int nmodules, int nslots)
{
    int count = 0;

    for (int m = 0; m < nmodules; m++) {
        out[m] = (struct sched_act){.slot = -1, .before = -1};
        if (!keeps[m])
            continue;
        out[m].slot = count++ % nslots;
        for (int before = m - 1; before >= 0 && out[m].before < 0; before--)
            if (out[before].slot == out[m].slot)
                out[m].before = before;
        if (out[m].before >= 0)
            out[out[m].before].copied = true;
    }
    return count < nslots ? count : nslots;
}

/* ---- the list -------------------------------------------------------------------------------- */

static void note_order(struct builder *b, int module)
{
    if (is_unit_root(b, module) && unit_is_gathered(b, b->in->unit_of_module[module]))
        b->order[b->norder++] = b->in->unit_of_module[module];
}

static void note_forward(struct builder *b, int module)
{
    note_order(b, module);
    each_child(b, module, false, note_forward);
}

static void note_backward(struct builder *b, int module)
{
    note_order(b, module);
    each_child(b, module, true, note_backward);
}

/* Kept from forward to backward: the root, which is entered around the others; the last, whose
 * backward comes first; those that do not reshard. In an evaluation the root alone, while it is
 * entered. */
static void decide_kept(struct builder *b)
{
    bool train = b->in->program == FSDP_TRAIN;
    b->norder = 0;
    note_forward(b, 0);
    for (int u = 0; u < b->in->nunits; u++)
        b->kept[u] = u == 0 || (train && !b->in->units[u].reshard_after_forward);
    if (train && b->norder)
        b->kept[b->order[b->norder - 1]] = true;
    for (int u = 0; train && u < b->in->nunits; u++)
        b->kept[u] &= !b->in->units[u].reshard_always;
}

static void emit_micro(struct builder *b)
{
    emit(b, op_of(SCHED_MICRO_BEGIN));
    decide_kept(b);
    visit_forward(b, 0);
    if (b->in->program == FSDP_TRAIN) {
        b->norder = 0;
        note_backward(b, 0);
        visit_backward(b, 0);
        add_early_updates(b, 0);
    } else {
        free_unit(b, 0);
    }
    emit(b, op_of(SCHED_MICRO_END));
}

/* One scale a tensor, whoever holds it: all ranks look at all of it first. */
static void emit_encode(struct builder *b)
{
    bool any = false;
    for (int f = 0; f < b->in->nflats; f++)
        any |= b->in->flats[f].encoded && b->in->flats[f].trainable;
    if (any)
        emit(b, op_of(SCHED_AMAX));
    for (int f = 0; f < b->in->nflats; f++)
        if (b->in->flats[f].encoded && b->in->flats[f].trainable)
            emit_flat(b, SCHED_ENCODE, f, -1);
}

/* The next flat after `flat` whose state is to be fetched; nflats: none. */
static int next_offloaded(const struct builder *b, int flat)
{
    for (flat++; flat < b->in->nflats; flat++)
        if (b->in->flats[flat].offloaded)
            return flat;
    return flat;
}

/* The first flat behind this one (-1: of all) that has its gradient in the place for an update;
 * nflats: none. */
static int next_in_grad_place(const struct builder *b, int flat, int place)
{
    for (flat++; flat < b->in->nflats; flat++)
        if (b->out->grad_place[flat] == place && !b->in->flats[flat].on_host)
            return flat;
    return flat;
}

/* What has its place behind the flat's gradient. */
static void fetch_grad_behind(struct builder *b, int flat)
{
    const int next = b->in->offload_grads ? next_in_grad_place(b, flat, b->out->grad_place[flat])
                                          : b->in->nflats;

    if (next < b->in->nflats)
        emit_grad(b, SCHED_FETCH_GRAD, next);
}

/* All that have their place first and are no longer there. */
static void fetch_first_grads(struct builder *b)
{
    for (int place = 0; b->in->offload_grads && place < b->in->offload_slots; place++) {
        const int next = next_in_grad_place(b, -1, place);
        if (next < b->in->nflats && b->last_grad[place] != next)
            emit_grad(b, SCHED_FETCH_GRAD, next);
    }
}

/* In the order in which the next forward gathers them. Offloaded state goes through the slots in
 * turn: as many flats are fetched ahead as there are slots, the first of them before the norm. */
static void emit_updates(struct builder *b, int ahead, int fetched)
{
    int turn = 0;
    for (int f = 0; f < b->in->nflats; f++) {
        if (!b->in->flats[f].trainable)
            continue;
        const int slot = b->in->flats[f].offloaded ? turn++ % b->in->offload_slots : -1;
        emit_flat(b, SCHED_UPDATE, f, slot);
        if (!b->in->flats[f].on_host)
            fetch_grad_behind(b, f);
        if (slot < 0)
            continue;
        emit_flat(b, SCHED_STORE, f, slot);
        if (ahead < b->in->nflats)
            emit_flat(b, SCHED_FETCH, ahead, fetched++ % b->in->offload_slots);
        ahead = next_offloaded(b, ahead);
    }
}

static bool updates_on_host(const struct sched_input *in)
{
    for (int f = 0; f < in->nflats; f++)
        if (in->flats[f].on_host)
            return true;
    return false;
}

static void emit_step(struct builder *b)
{
    int ahead = next_offloaded(b, -1), fetched = 0;

    emit(b, op_of(SCHED_STEP));
    if (b->in->update_at_reduce) {
        emit(b, op_of(SCHED_NORM_SUM));
        emit_encode(b);
        return;
    }
    for (; ahead < b->in->nflats && fetched < b->in->offload_slots;
         ahead = next_offloaded(b, ahead))
        emit_flat(b, SCHED_FETCH, ahead, fetched++);
    fetch_first_grads(b);
    /* In the order in which backward finished them, so that the first need not wait for the last.
     */
    for (int f = b->in->nflats - 1; f >= 0; f--)
        if (b->in->flats[f].trainable && !b->in->offload_grads)
            emit_flat(b, SCHED_NORM, f, -1);
    emit(b, op_of(SCHED_NORM_SUM));
    if (updates_on_host(b->in))
        emit(b, op_of(SCHED_STORE_SCALARS));
    emit_updates(b, ahead, fetched);
    emit_encode(b);
}

static int check_input(const struct sched_input *in, struct fsdp_err *err)
{
    if (in->accumulation < 1 || in->accumulation > SCHED_MAX_ACCUMULATION)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "accumulation is %d; it must be 1 to %d: use larger "
                            "micro-batches, more ranks or smaller steps",
                            in->accumulation, SCHED_MAX_ACCUMULATION);
    for (int u = 0; u < in->nunits; u++)
        if (in->units[u].reshard_after_forward && !in->units[u].reshard_after_backward)
            return fsdp_err_set(
                err, FSDP_EINVAL,
                "units resharded after forward must be resharded after backward too");
    if (in->update_at_reduce && in->accumulation > 1 && !in->reduce_last)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "updates at the reduction with an accumulation of %d: gradients must "
                            "be reduced in the last micro-step",
                            in->accumulation);
    if (in->grad_buffers < 1)
        return fsdp_err_set(err, FSDP_EINVAL, "%d gradient buffers: there must be one",
                            in->grad_buffers);
    for (int f = 0; f < in->nflats; f++)
        if (in->flats[f].offloaded && in->offload_slots < 1)
            return fsdp_err_set(err, FSDP_EINVAL,
                                "%d places for offloaded state: there must be one",
                                in->offload_slots);
    if ((in->acts || in->offload_grads) && in->offload_slots < 1)
        return fsdp_err_set(err, FSDP_EINVAL, "%d places for what is offloaded: there must be one",
                            in->offload_slots);
    if (in->forward_prefetch < 0 || in->backward_prefetch < 0 || in->limit_all_gathers < 0)
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "forward_prefetch, backward_prefetch and limit_all_gathers must be >= 0");
    return FSDP_OK;
}

/* In turn, as they are updated. */
static int place_grads(struct sched *out, const struct sched_input *in, struct fsdp_err *err)
{
    int turn = 0;

    if (!in->offload_grads)
        return FSDP_OK;
    out->grad_place = fsdp_alloc((size_t)in->nflats, sizeof *out->grad_place, "schedule", err);
    for (int f = 0; out->grad_place && f < in->nflats; f++)
        out->grad_place[f] = in->flats[f].trainable ? turn++ % in->offload_slots : -1;
    return out->grad_place ? FSDP_OK : FSDP_ENOMEM;
}

static int slots_create(struct slots *slots, int capacity, struct fsdp_err *err)
{
    slots->capacity = capacity;
    slots->nbytes = fsdp_alloc((size_t)capacity, sizeof *slots->nbytes, "schedule slots", err);
    slots->freed = fsdp_alloc((size_t)capacity, sizeof *slots->freed, "schedule slots", err);
    slots->busy = fsdp_alloc((size_t)capacity, sizeof *slots->busy, "schedule slots", err);
    return slots->nbytes && slots->freed && slots->busy ? FSDP_OK : FSDP_ENOMEM;
}

static void slots_release(struct slots *slots, bool keep_nbytes)
{
    if (!keep_nbytes)
        fsdp_free(slots->nbytes);
    fsdp_free(slots->freed);
    fsdp_free(slots->busy);
}

int sched_create(struct sched *out, const struct sched_input *in, struct fsdp_err *err)
{
    struct builder b = {.in = in, .out = out, .err = err};
    size_t nunits = (size_t)in->nunits, nflats = (size_t)in->nflats;
    int rc = FSDP_ENOMEM;

    memset(out, 0, sizeof *out);
    FSDP_TRY(check_input(in, err));
    if (place_grads(out, in, err) || slots_create(&b.param_slots, in->nflats + 2, err) ||
        slots_create(&b.grad_slots, in->nflats + 2, err) ||
        !(b.live = fsdp_alloc(nunits, sizeof *b.live, "schedule", err)) ||
        !(b.kept = fsdp_alloc(nunits, sizeof *b.kept, "schedule", err)) ||
        !(b.parted = fsdp_alloc(nunits, sizeof *b.parted, "schedule", err)) ||
        !(b.order = fsdp_alloc(nunits, sizeof *b.order, "schedule", err)) ||
        !(b.param_slot = fsdp_alloc(nflats, sizeof *b.param_slot, "schedule", err)) ||
        !(b.early = fsdp_alloc(nflats, sizeof *b.early, "schedule", err)) ||
        !(b.last_grad = fsdp_alloc((size_t)in->offload_slots, sizeof(int), "schedule", err)) ||
        !(out->grad_slot =
              fsdp_alloc(nflats * (size_t)in->accumulation, sizeof(int), "schedule", err)))
        goto out;
    memset(out->grad_slot, 0xff, nflats * (size_t)in->accumulation * sizeof(int));
    for (b.micro = 0; b.micro < in->accumulation; b.micro++)
        emit_micro(&b);
    if (in->program == FSDP_TRAIN)
        emit_step(&b);
    if (!b.failed)
        rc = sched_add_edges(out, in, err);
out:
    out->nparam_slots = b.param_slots.count;
    out->ngrad_slots = b.grad_slots.count;
    out->param_slot_nbytes = b.param_slots.nbytes;
    out->grad_slot_nbytes = b.grad_slots.nbytes;
    slots_release(&b.param_slots, true);
    slots_release(&b.grad_slots, true);
    fsdp_free(b.live);
    fsdp_free(b.kept);
    fsdp_free(b.parted);
    fsdp_free(b.order);
    fsdp_free(b.param_slot);
    fsdp_free(b.early);
    fsdp_free(b.last_grad);
    if (rc)
        sched_destroy(out);
    return rc;
}

void sched_destroy(struct sched *sched)
{
    fsdp_free(sched->ops);
    fsdp_free(sched->waits);
    fsdp_free(sched->param_slot_nbytes);
    fsdp_free(sched->grad_slot_nbytes);
    fsdp_free(sched->grad_slot);
    fsdp_free(sched->grad_place);
    memset(sched, 0, sizeof *sched);
}

const char *fsdp_phase_name(enum fsdp_phase phase)
{
    static const char *const names[] = {"forward", "recompute", "backward"};
    return names[phase];
}

uint64_t sched_hash(const struct sched *sched)
{
    uint64_t hash = FSDP_HASH_SEED;
    for (int i = 0; i < sched->nops; i++) {
        const struct sched_op *op = &sched->ops[i];
        int fields[] = {(int)op->kind, (int)op->lane, (int)op->phase, op->module,
                        op->flat,      op->slot,      op->micro,      op->nwaits};
        hash = fsdp_hash(hash, fields, sizeof fields);
    }
    return fsdp_hash(hash, sched->waits, (size_t)sched->nwaits * sizeof *sched->waits);
}
