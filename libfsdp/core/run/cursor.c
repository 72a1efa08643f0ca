/* SPDX-License-Identifier: Apache-2.0 */
/* The cursor: the model drives it through the schedule, and what lies between is issued on the way.
 */
#include <stdio.h>

#include "core/state/gather.h"
#include "cursor.h"
#include "hooks.h"
#include "core/state/offload.h"
#include "core/trace/progress.h"
#include "core/trace/ranges.h"
#include "core/trace/trace.h"
#include "view.h"

/* ---- automatic operations -------------------------------------------------------------------- */

static int exec_outer_gather(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    void *slot = f->param_slots[f->current->input.program][op->slot];
    return gather_outer(f, op->flat, slot, f->lanes[SCHED_OUTER_GATHERS], err);
}

static int exec_gather(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    void *slot = f->param_slots[f->current->input.program][op->slot];
    return gather_flat(f, op->flat, slot, f->lanes[SCHED_GATHERS], err);
}

static int exec_load(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    void *slot = f->param_slots[f->current->input.program][op->slot];
    return gather_load(f, op->flat, slot, f->lanes[SCHED_UPLOADS], err);
}

static int exec_unpack(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    void *slot = f->param_slots[f->current->input.program][op->slot];
    return gather_unpack(f, op->flat, slot, f->lanes[SCHED_GATHERS], err);
}

/* Kept parts: rank j of the small group keeps part j of the gathered flat (fsdp_opts). */
static uint64_t part_nelem(const struct fsdp *f, int flat)
{
    return flat_full_nelem(&f->units.flats[flat]) / (uint64_t)f->mesh->regather_size;
}

static int exec_keep_part(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    size_t nbytes =
        part_nelem(f, op->flat) * fsdp_dtype_nbytes(f->units.flats[op->flat].param_dtype);
    int part = f->mesh->rank % f->mesh->regather_size;
    char *slot = f->param_slots[FSDP_TRAIN][op->slot];
    return fsdp_copy(f->lanes[SCHED_GATHERS], f->flats[op->flat].part, slot + (size_t)part * nbytes,
                     nbytes, err);
}

static int exec_regather(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    return fsdp_comm_all_gather(f->mesh->regather, f->param_slots[FSDP_TRAIN][op->slot],
                                f->flats[op->flat].part, part_nelem(f, op->flat),
                                f->units.flats[op->flat].param_dtype, f->lanes[SCHED_GATHERS], err);
}

/* Every shard is written whole: what is between its chunks is summed, too, and must be zero. */
static int exec_pack(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[op->flat];
    uint64_t elem = fsdp_dtype_nbytes(flat->reduce_dtype), nranks = (uint64_t)flat->cut.nranks;
    struct fsdp_lane *lane = f->lanes[SCHED_REDUCES];
    const char *slot = f->grad_slots[op->slot];

    for (int i = 0; i < flat->ntensors; i++) {
        uint64_t chunk = fsdp_cut_chunk_nelem(&flat->cut, &flat->tensors[i]) * elem;
        uint64_t end = i + 1 < flat->ntensors ? flat->cut.start[i + 1] : flat_full_nelem(flat);
        uint64_t room = (end - flat->cut.start[i]) / nranks * elem;
        const char *from = slot + flat->cut.start[i] * elem;
        char *to = (char *)f->reduce_staging + flat->cut.start[i] / nranks * elem;
        for (uint64_t rank = 0; rank < nranks; rank++) {
            FSDP_TRY(fsdp_copy(lane, to, from + rank * chunk, chunk, err));
            FSDP_TRY(fsdp_zero(lane, to + chunk, room - chunk, err));
            to += flat->cut.shard_nelem * elem;
        }
    }
    return FSDP_OK;
}

/* What is reduced: the unsharded gradients, or the ranks' chunks of them. */
static char *scattered(const struct fsdp *f, const struct sched_op *op)
{
    return flat_is_chunked(&f->units.flats[op->flat]) ? f->reduce_staging : f->grad_slots[op->slot];
}

/* Sums what the ranks of comm have in send and gives this rank's part of it, in the slot at mine,
 * to the gradient shard. The step's first sum lands there at once; later ones are scattered within
 * the slot and added, so that no further buffer is needed. */
static int reduce_to_shard(struct fsdp *f, const struct sched_op *op, struct fsdp_comm *comm,
                           const char *send, char *mine, struct fsdp_err *err)
{
    uint64_t nelem = f->units.flats[op->flat].cut.shard_nelem;
    struct fsdp_lane *lane = f->lanes[op->lane];
    enum fsdp_dtype dtype = f->units.flats[op->flat].reduce_dtype;
    float *grad = f->flats[op->flat].grad;
    bool first = op->micro == 0 || f->current->input.reduce_last;

    if (first && dtype == FSDP_F32)
        return hooks_reduce(f, op, comm, true, grad, send, nelem, dtype, err);
    FSDP_TRY(hooks_reduce(f, op, comm, true, mine, send, nelem, dtype, err));
    if (first)
        return fsdp_cast(lane, grad, FSDP_F32, mine, dtype, nelem, err);
    return fsdp_accumulate(lane, grad, mine, dtype, nelem, err);
}

/* On two levels, of the unsharded gradients: those that this rank's place in all nodes gets. */
static uint64_t inner_nelem(const struct fsdp *f, int flat)
{
    return flat_full_nelem(&f->units.flats[flat]) / (uint64_t)f->mesh->inner_size;
}

static char *inner_part(const struct fsdp *f, int flat, void *slot, enum fsdp_dtype dtype)
{
    uint64_t part = (uint64_t)(f->mesh->shard_rank / f->mesh->outer_size);
    return (char *)slot + part * inner_nelem(f, flat) * fsdp_dtype_nbytes(dtype);
}

static char *shard_in_slot(const struct fsdp *f, const struct sched_op *op)
{
    const struct flat *flat = &f->units.flats[op->flat];
    uint64_t pos = (uint64_t)f->mesh->shard_rank * flat->cut.shard_nelem;
    return scattered(f, op) + pos * fsdp_dtype_nbytes(flat->reduce_dtype);
}

static int exec_reduce(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    enum fsdp_dtype dtype = f->units.flats[op->flat].reduce_dtype;
    char *slot = scattered(f, op);

    if (!f->mesh->inner_size)
        return reduce_to_shard(f, op, f->mesh->reduce, slot, shard_in_slot(f, op), err);
    return hooks_reduce(f, op, f->mesh->reduce, true, inner_part(f, op->flat, slot, dtype), slot,
                        inner_nelem(f, op->flat), dtype, err);
}

static int exec_outer_reduce(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    enum fsdp_dtype dtype = f->units.flats[op->flat].reduce_dtype;
    char *part = inner_part(f, op->flat, scattered(f, op), dtype);
    return reduce_to_shard(f, op, f->mesh->outer_reduce, part, shard_in_slot(f, op), err);
}

/* Replicas sum in reduce_dtype, too; the staging belongs to this lane alone. */
static int exec_all_reduce(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    const struct flat *flat = &f->units.flats[op->flat];
    uint64_t nelem = flat->cut.shard_nelem;
    struct fsdp_lane *lane = f->lanes[SCHED_REPLICATES];
    enum fsdp_dtype dtype = flat->reduce_dtype;
    float *grad = f->flats[op->flat].grad;
    void *sum = dtype == FSDP_F32 ? grad : f->replicate_staging;

    FSDP_TRY(fsdp_cast(lane, sum, dtype, grad, FSDP_F32, nelem, err));
    FSDP_TRY(hooks_reduce(f, op, f->mesh->replicate, false, sum, sum, nelem, dtype, err));
    return fsdp_cast(lane, grad, FSDP_F32, sum, dtype, nelem, err);
}

static int run_op(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    switch (op->kind) {
    case SCHED_LOAD:
        return exec_load(f, op, err);
    case SCHED_OUTER_GATHER:
        return exec_outer_gather(f, op, err);
    case SCHED_GATHER:
        return exec_gather(f, op, err);
    case SCHED_UNPACK:
        return exec_unpack(f, op, err);
    case SCHED_KEEP_PART:
        return exec_keep_part(f, op, err);
    case SCHED_REGATHER:
        return exec_regather(f, op, err);
    case SCHED_PACK:
        return exec_pack(f, op, err);
    case SCHED_REDUCE:
        return exec_reduce(f, op, err);
    case SCHED_OUTER_REDUCE:
        return exec_outer_reduce(f, op, err);
    case SCHED_ALL_REDUCE:
        return exec_all_reduce(f, op, err);
    case SCHED_NORM:
        return exec_norm(f, op, err);
    case SCHED_NORM_SUM:
        return exec_norm_sum(f, op, err);
    case SCHED_FETCH:
        return offload_fetch(f, op->flat, op->slot, f->lanes[SCHED_UPLOADS], err);
    case SCHED_UPDATE:
        return exec_update(f, op, err);
    case SCHED_STORE:
        return offload_store(f, op->flat, op->slot, f->lanes[SCHED_DOWNLOADS], err);
    case SCHED_AMAX:
        return gather_amax(f, false, err);
    case SCHED_ENCODE:
        return gather_encode(f, op->flat, err);
    default:
        return FSDP_OK;
    }
}

static int op_begin(struct fsdp *f, const struct sched_op *op, struct fsdp_err *err)
{
    struct program *p = f->current;
    for (int k = 0; k < op->nwaits; k++)
        FSDP_TRY(
            fsdp_event_wait(p->events[p->sched.waits[op->waits + k]], f->lanes[op->lane], err));
    return FSDP_OK;
}

static int op_end(struct fsdp *f, int i, struct fsdp_err *err)
{
    struct program *p = f->current;
    if (!p->events[i])
        return FSDP_OK;
    return fsdp_event_record(p->events[i], f->lanes[p->sched.ops[i].lane], err);
}

/* Issues automatic operations up to the next driven one. */
static int run_automatic(struct fsdp *f, struct fsdp_err *err)
{
    struct sched *s = &f->current->sched;
    while (f->cursor < s->nops && !sched_is_driven(s->ops[f->cursor].kind)) {
        int i = f->cursor++;
        progress_note(f, i);
        ranges_op_begin(f, &s->ops[i]);
        FSDP_TRY(op_begin(f, &s->ops[i], err));
        FSDP_TRY(trace_stamp(f, i, TRACE_BEGIN, err));
        double began = fsdp_time_now();
        FSDP_TRY(run_op(f, &s->ops[i], err));
        progress_spent(f, &s->ops[i], fsdp_time_now() - began);
        FSDP_TRY(trace_stamp(f, i, TRACE_END, err));
        FSDP_TRY(op_end(f, i, err));
        ranges_op_end(f, &s->ops[i]);
    }
    return FSDP_OK;
}

/* ---- driven operations ----------------------------------------------------------------------- */

static int refuse(struct fsdp *f, enum sched_kind kind, int module, enum fsdp_phase phase,
                  int micro, struct fsdp_err *err)
{
    char expected[160] = "the end of the list", actual[160];
    const struct sched *s = &f->current->sched;
    if (f->cursor < s->nops) {
        const struct sched_op *op = &s->ops[f->cursor];
        engine_describe(f, op->kind, op->module, op->phase, op->micro, expected, sizeof expected);
    }
    engine_describe(f, kind, module, phase, micro, actual, sizeof actual);
    f->broken = true;
    return fsdp_err_set(err, FSDP_EINVAL, "the schedule expects %s, the model called %s", expected,
                        actual);
}

int exec_drive(struct fsdp *f, enum sched_kind kind, int module, enum fsdp_phase phase, int micro,
               struct fsdp_err *err)
{
    if (f->broken)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "the step was broken by an earlier error; fsdp_step_reset first");
    if (!f->current)
        return fsdp_err_set(err, FSDP_EINVAL, "call fsdp_micro_begin first");
    struct sched *s = &f->current->sched;
    const struct sched_op *op = f->cursor < s->nops ? &s->ops[f->cursor] : NULL;
    bool visit = kind == SCHED_ENTER || kind == SCHED_LEAVE;
    if (!op || op->kind != kind || (visit && (op->module != module || op->phase != phase)) ||
        (!visit && kind != SCHED_STEP && op->micro != micro))
        return refuse(f, kind, module, phase, micro, err);
    int i = f->cursor++, rc;
    progress_note(f, i);
    ranges_drive_begin(f, op);
    if ((rc = trace_stamp(f, i, TRACE_BEGIN, err)) || (rc = op_begin(f, op, err)) ||
        (rc = view_complete(f, op, err)) || (rc = op_end(f, i, err)) ||
        (rc = run_automatic(f, err)) || (rc = trace_stamp(f, i, TRACE_END, err)))
        f->broken = true;
    else
        ranges_drive_end(f, op);
    return rc;
}

/* A program's lanes start only after all lanes of the one before: their edges know only themselves.
 */
static int order_after_other_program(struct fsdp *f, struct fsdp_err *err)
{
    for (int lane = 0; lane < SCHED_NLANES; lane++)
        FSDP_TRY(fsdp_event_record(f->tails[lane], f->lanes[lane], err));
    for (int lane = 0; lane < SCHED_NLANES; lane++)
        for (int other = 0; other < SCHED_NLANES; other++)
            if (other != lane)
                FSDP_TRY(fsdp_event_wait(f->tails[other], f->lanes[lane], err));
    return FSDP_OK;
}

int fsdp_micro_begin(struct fsdp *f, enum fsdp_program program, int index, struct fsdp_err *err)
{
    struct program *p = &f->programs[program];
    bool at_start = index == 0 && (!f->current || f->cursor == f->current->sched.nops);

    if (at_start && !f->broken) {
        if (program == FSDP_TRAIN)
            FSDP_TRY(engine_check_resharded(f, "a training step", err));
        if (f->current != p)
            FSDP_TRY(order_after_other_program(f, err));
        f->current = p;
        f->cursor = 0;
        trace_pass(f, program);
    }
    return exec_drive(f, SCHED_MICRO_BEGIN, -1, FSDP_FORWARD, index, err);
}

int fsdp_micro_end(struct fsdp *f, struct fsdp_err *err)
{
    int micro = 0;
    if (f->current && f->cursor < f->current->sched.nops)
        micro = f->current->sched.ops[f->cursor].micro;
    return exec_drive(f, SCHED_MICRO_END, -1, FSDP_FORWARD, micro, err);
}

int fsdp_warm(struct fsdp *f, struct fsdp_err *err)
{
    const struct program *p = &f->programs[FSDP_TRAIN];

    if (f->current != p || f->cursor == 0 || f->cursor == p->sched.nops)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "fsdp_warm comes after a micro-step of FSDP_TRAIN, before fsdp_step");
    for (int i = f->cursor; i < p->sched.nops; i++)
        if (p->sched.ops[i].kind == SCHED_ALL_REDUCE)
            FSDP_TRY(exec_all_reduce(f, &p->sched.ops[i], err));
    FSDP_TRY(update_warm(f, err));
    return fsdp_sync(f, err);
}

void fsdp_step_reset(struct fsdp *f)
{
    ranges_reset(f);
    f->current = NULL;
    f->cursor = 0;
    f->broken = false;
}

int fsdp_module_checkpointing(const struct fsdp *f, int module)
{
    return f->checkpointing[module];
}

bool fsdp_module_recomputes(const struct fsdp *f, int module)
{
    return f->recompute[module];
}
