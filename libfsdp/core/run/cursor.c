/* SPDX-License-Identifier: Apache-2.0 */
/* The cursor: the model drives it through the schedule, and what lies between is issued on the way.
 */
#include <stdio.h>

#include "cursor.h"
#include "core/trace/exposed.h"
#include "core/trace/progress.h"
#include "core/trace/ranges.h"
#include "core/trace/trace.h"
#include "op_run.h"
#include "view.h"

/* ---- automatic operations -------------------------------------------------------------------- */

static int op_begin(struct fsdp *f, int i, struct fsdp_err *err)
{
    struct program *p = f->cursor.program;
    const struct sched_op *op = &p->sched.ops[i];
    FSDP_TRY(exposed_begin(f, i, err));
    for (int k = 0; k < op->nwaits; k++)
        FSDP_TRY(
            fsdp_event_wait(p->events[p->sched.waits[op->waits + k]], f->lanes[op->lane], err));
    return exposed_waited(f, i, err);
}

static int op_end(struct fsdp *f, int i, struct fsdp_err *err)
{
    struct program *p = f->cursor.program;
    if (!p->events[i])
        return FSDP_OK;
    return fsdp_event_record(p->events[i], f->lanes[p->sched.ops[i].lane], err);
}

/* Issues automatic operations up to the next driven one. */
static int run_automatic(struct fsdp *f, struct fsdp_err *err)
{
    struct sched *s = &f->cursor.program->sched;
    while (f->cursor.index < s->nops && !sched_is_driven(s->ops[f->cursor.index].kind)) {
        int i = f->cursor.index++;
        progress_note(&f->cursor, i);
        ranges_op_begin(f, &s->ops[i]);
        FSDP_TRY(op_begin(f, i, err));
        FSDP_TRY(trace_stamp(f, i, TRACE_BEGIN, err));
        double began = fsdp_time_now();
        FSDP_TRY(op_run(f, &s->ops[i], err));
        if (!f->tracing.exposed)
            progress_spent(&f->cursor, &s->ops[i], fsdp_time_now() - began);
        FSDP_TRY(exposed_ran(f, i, err));
        FSDP_TRY(trace_stamp(f, i, TRACE_END, err));
        FSDP_TRY(op_end(f, i, err));
        ranges_op_end(f, &s->ops[i]);
    }
    return FSDP_OK;
}

/* ---- driven operations ----------------------------------------------------------------------- */

static int refuse_call(struct fsdp *f, enum sched_kind kind, int module, enum fsdp_phase phase,
                       int micro, struct fsdp_err *err)
{
    char expected[160] = "the end of the list", actual[160];
    const struct sched *s = &f->cursor.program->sched;
    if (f->cursor.index < s->nops) {
        const struct sched_op *op = &s->ops[f->cursor.index];
        engine_describe(f->tree, op->kind, op->module, op->phase, op->micro, expected,
                        sizeof expected);
    }
    engine_describe(f->tree, kind, module, phase, micro, actual, sizeof actual);
    f->cursor.broken = true;
    return fsdp_err_set(err, FSDP_EINVAL, "the schedule expects %s, the model called %s", expected,
                        actual);
}

int exec_drive(struct fsdp *f, enum sched_kind kind, int module, enum fsdp_phase phase, int micro,
               struct fsdp_err *err)
{
    if (f->cursor.broken)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "the step was broken by an earlier error; fsdp_step_reset first");
    if (!f->cursor.program)
        return fsdp_err_set(err, FSDP_EINVAL, "call fsdp_micro_begin first");
    struct sched *s = &f->cursor.program->sched;
    const struct sched_op *op = f->cursor.index < s->nops ? &s->ops[f->cursor.index] : NULL;
    bool visit = sched_is_visit(kind);
    if (!op || op->kind != kind || (visit && (op->module != module || op->phase != phase)) ||
        (!visit && kind != SCHED_STEP && op->micro != micro))
        return refuse_call(f, kind, module, phase, micro, err);
    int i = f->cursor.index++, rc;
    progress_note(&f->cursor, i);
    ranges_drive_begin(f, op);
    if ((rc = trace_stamp(f, i, TRACE_BEGIN, err)) || (rc = op_begin(f, i, err)) ||
        (rc = view_complete(f, op, err)) || (rc = op_end(f, i, err)) ||
        (rc = run_automatic(f, err)) || (rc = trace_stamp(f, i, TRACE_END, err)))
        f->cursor.broken = true;
    else
        ranges_drive_end(f, op);
    return rc;
}

/* A program's lanes start only after all lanes of the one before: their edges know only themselves.
 */
static int order_after_other_program(struct fsdp *f, struct fsdp_err *err)
{
    for (int lane = 0; lane < SCHED_NLANES; lane++)
        FSDP_TRY(fsdp_event_record(f->plan.tails[lane], f->lanes[lane], err));
    for (int lane = 0; lane < SCHED_NLANES; lane++)
        for (int other = 0; other < SCHED_NLANES; other++)
            if (other != lane)
                FSDP_TRY(fsdp_event_wait(f->plan.tails[other], f->lanes[lane], err));
    return FSDP_OK;
}

int fsdp_micro_begin(struct fsdp *f, enum fsdp_program program, int index, struct fsdp_err *err)
{
    struct program *p = &f->plan.programs[program];
    bool at_start =
        index == 0 && (!f->cursor.program || f->cursor.index == f->cursor.program->sched.nops);

    if (at_start && !f->cursor.broken) {
        if (program == FSDP_TRAIN)
            FSDP_TRY(engine_check_resharded(f, "a training step", err));
        if (f->cursor.program != p)
            FSDP_TRY(order_after_other_program(f, err));
        f->cursor.program = p;
        f->cursor.index = 0;
        if (program == FSDP_TRAIN && f->opts.offload_gradients)
            FSDP_TRY(fsdp_zero(f->lanes[SCHED_COMPUTE], f->scalars.sums + FSDP_CONTROL_NELEM,
                               f->scalars.npartials * sizeof *f->scalars.sums, err));
        trace_pass(&f->tracing, program);
        FSDP_TRY(exposed_pass(f, program, err));
    }
    return exec_drive(f, SCHED_MICRO_BEGIN, -1, FSDP_FORWARD, index, err);
}

/* Other ranks may still use this one's shards, and no reduction tells when they are done. What
 * changes them comes after this barrier, as do the next gathers. */
static int end_evaluation(struct fsdp *f, struct fsdp_err *err)
{
    struct fsdp_lane *compute = f->lanes[SCHED_COMPUTE];
    struct fsdp_event *tail = f->plan.tails[SCHED_COMPUTE];

    FSDP_TRY(fsdp_comm_barrier(f->mesh->gather, compute, err));
    FSDP_TRY(fsdp_event_record(tail, compute, err));
    return fsdp_event_wait(tail, f->lanes[SCHED_GATHERS], err);
}

int fsdp_micro_end(struct fsdp *f, struct fsdp_err *err)
{
    const struct program *p = f->cursor.program;
    int micro = 0;
    if (p && f->cursor.index < p->sched.nops)
        micro = p->sched.ops[f->cursor.index].micro;
    FSDP_TRY(exec_drive(f, SCHED_MICRO_END, -1, FSDP_FORWARD, micro, err));
    return f->plan.in_place && p->input.program == FSDP_EVAL ? end_evaluation(f, err) : FSDP_OK;
}

int fsdp_warm(struct fsdp *f, struct fsdp_err *err)
{
    const struct program *p = &f->plan.programs[FSDP_TRAIN];

    if (f->cursor.program != p || f->cursor.index == 0 || f->cursor.index == p->sched.nops)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "fsdp_warm comes after a micro-step of FSDP_TRAIN, before fsdp_step");
    for (int i = f->cursor.index; i < p->sched.nops; i++) {
        const struct sched_op *op = &p->sched.ops[i];
        /* Without gradient shards there is nothing to sum before the last micro-step. */
        if (op->kind == SCHED_ALL_REDUCE && f->flats[op->flat].grad)
            FSDP_TRY(op_run(f, op, err));
    }
    FSDP_TRY(update_warm(f, err));
    return fsdp_sync(f, err);
}

void fsdp_step_reset(struct fsdp *f)
{
    ranges_reset(f);
    f->cursor.program = NULL;
    f->cursor.index = 0;
    f->cursor.broken = false;
    f->optim.step_args = NULL;
}

int fsdp_module_checkpointing(const struct fsdp *f, int module)
{
    return f->plan.checkpointing[module];
}

bool fsdp_module_recomputes(const struct fsdp *f, int module)
{
    return f->plan.recompute[module];
}
