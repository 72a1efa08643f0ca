/* SPDX-License-Identifier: Apache-2.0 */
#include "exposed.h"

#include <string.h>

/* Passes whose events are not read yet: more than a host is ahead of its device. */
enum { EXPOSED_PASSES = 4 };

struct exposed {
    int nops, nspans;
    int *span_of;                               /* [nops] of the training list, -1: none */
    struct fsdp_event **events[EXPOSED_PASSES]; /* [2 * nspans] begin and end */
    int nended[EXPOSED_PASSES];                 /* spans that the pass has ended, in order */
    int now;                                    /* the current pass, -1: nothing is measured */
    int next;
};

/* ---- what is measured ------------------------------------------------------------------------ */

static bool communicates(enum sched_lane lane)
{
    return lane == SCHED_GATHERS || lane == SCHED_REDUCES || lane == SCHED_REPLICATES ||
           lane == SCHED_OUTER_GATHERS || lane == SCHED_OUTER_REDUCES;
}

static bool runs_communication(const struct sched_op *op)
{
    return op->kind != SCHED_FREE && op->lane == SCHED_COMPUTE && sched_is_comm(op->kind);
}

static bool waits_for_communication(const struct sched *s, const struct sched_op *op)
{
    if (op->kind == SCHED_FREE || op->lane != SCHED_COMPUTE)
        return false;
    for (int k = 0; k < op->nwaits; k++)
        if (communicates(s->ops[s->waits[op->waits + k]].lane))
            return true;
    return false;
}

static int find_spans(struct exposed *e, const struct sched *s, struct fsdp_err *err)
{
    e->span_of = fsdp_alloc((size_t)s->nops, sizeof *e->span_of, "exposed communication", err);
    if (!e->span_of)
        return FSDP_ENOMEM;
    for (int i = 0; i < s->nops; i++) {
        const struct sched_op *op = &s->ops[i];
        const bool measured = runs_communication(op) || waits_for_communication(s, op);
        e->span_of[i] = measured ? e->nspans++ : -1;
    }
    return FSDP_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int create_events(struct exposed *e, struct fsdp_device *device, struct fsdp_err *err)
{
    const size_t nevents = 2 * (size_t)e->nspans;

    for (int p = 0; p < EXPOSED_PASSES; p++) {
        e->events[p] =
            fsdp_alloc(nevents, sizeof(struct fsdp_event *), "exposed communication", err);
        if (!e->events[p])
            return FSDP_ENOMEM;
        for (size_t i = 0; i < nevents; i++)
            FSDP_TRY(fsdp_event_create_timed(&e->events[p][i], device, err));
    }
    return FSDP_OK;
}

int fsdp_exposed_open(struct fsdp *f, struct fsdp_err *err)
{
    const struct sched *s = &f->plan.programs[FSDP_TRAIN].sched;

    if (f->tracing.exposed)
        return fsdp_err_set(err, FSDP_EINVAL, "exposed communication is being measured already");
    struct exposed *e = fsdp_alloc(1, sizeof *e, "exposed communication", err);
    if (!e)
        return FSDP_ENOMEM;
    *e = (struct exposed){.nops = s->nops, .now = -1};
    f->tracing.exposed = e;
    int rc = find_spans(e, s, err);
    if (rc == FSDP_OK && e->nspans)
        rc = create_events(e, f->device, err);
    if (rc)
        exposed_close(&f->tracing);
    return rc;
}

void exposed_close(struct engine_tracing *tracing)
{
    struct exposed *e = tracing->exposed;

    if (!e)
        return;
    for (int p = 0; p < EXPOSED_PASSES; p++) {
        for (int i = 0; e->events[p] && i < 2 * e->nspans; i++)
            fsdp_event_destroy(e->events[p][i]);
        fsdp_free(e->events[p]);
    }
    fsdp_free(e->span_of);
    fsdp_free(e);
    tracing->exposed = NULL;
}

/* ---- a pass ---------------------------------------------------------------------------------- */

/* Adds up what pass p has measured, if its last event has come. A lane's events come in order. */
static int take_pass(struct fsdp *f, int p, struct fsdp_err *err)
{
    struct exposed *e = f->tracing.exposed;
    double sum = 0, seconds;
    bool done;

    if (!e->nended[p])
        return FSDP_OK;
    FSDP_TRY(fsdp_event_done(e->events[p][2 * e->nended[p] - 1], &done, err));
    if (!done)
        return FSDP_OK;
    for (int k = 0; k < e->nended[p]; k++) {
        FSDP_TRY(fsdp_event_seconds(e->events[p][2 * k], e->events[p][2 * k + 1], &seconds, err));
        sum += seconds > 0 ? seconds : 0;
    }
    atomic_fetch_add_explicit(&f->cursor.comm_ns, (uint64_t)(sum * 1e9), memory_order_relaxed);
    e->nended[p] = 0;
    return FSDP_OK;
}

int exposed_pass(struct fsdp *f, enum fsdp_program program, struct fsdp_err *err)
{
    struct exposed *e = f->tracing.exposed;

    if (!e || !e->nspans)
        return FSDP_OK;
    for (int p = 0; p < EXPOSED_PASSES; p++)
        FSDP_TRY(take_pass(f, p, err));
    e->now = -1;
    if (program != FSDP_TRAIN)
        return FSDP_OK;
    e->now = e->next;
    e->next = (e->next + 1) % EXPOSED_PASSES;
    e->nended[e->now] = 0;
    return FSDP_OK;
}

/* The event of operation i's span in the current pass, NULL: it has none. */
static struct fsdp_event *event_of(const struct fsdp *f, int i, int end)
{
    const struct exposed *e = f->tracing.exposed;

    return e && e->now >= 0 && e->span_of[i] >= 0 ? e->events[e->now][2 * e->span_of[i] + end]
                                                  : NULL;
}

static bool is_copy(enum sched_lane lane)
{
    return lane == SCHED_UPLOADS || lane == SCHED_DOWNLOADS;
}

/* What operation i waits for may itself wait for an update on a lane of its own, or for the copy of
 * one, which is no communication: the compute lane, which has to wait for it anyway, does so before
 * the span. */
static int pass_updates(struct fsdp *f, int i, struct fsdp_err *err)
{
    const struct program *p = f->cursor.program;
    const struct sched *s = &p->sched;
    const struct sched_op *op = &s->ops[i];

    for (int k = 0; k < op->nwaits; k++) {
        const int target = s->waits[op->waits + k];
        const enum sched_lane lane = s->ops[target].lane;
        if (lane == SCHED_UPDATES || (is_copy(lane) && s->ops[target].kind == SCHED_STORE))
            FSDP_TRY(fsdp_event_wait(p->events[target], f->lanes[SCHED_COMPUTE], err));
        else if ((communicates(lane) || is_copy(lane)) && target < i)
            FSDP_TRY(pass_updates(f, target, err));
    }
    return FSDP_OK;
}

int exposed_begin(struct fsdp *f, int i, struct fsdp_err *err)
{
    struct fsdp_event *event = event_of(f, i, 0);

    if (event && (f->opts.update_at == FSDP_UPDATE_AT_FORWARD || engine_updates_on_host(f)))
        FSDP_TRY(pass_updates(f, i, err));
    return event ? fsdp_event_record(event, f->lanes[SCHED_COMPUTE], err) : FSDP_OK;
}

static int end_span(struct fsdp *f, int i, struct fsdp_err *err)
{
    struct fsdp_event *event = event_of(f, i, 1);
    struct exposed *e = f->tracing.exposed;

    if (!event)
        return FSDP_OK;
    FSDP_TRY(fsdp_event_record(event, f->lanes[SCHED_COMPUTE], err));
    e->nended[e->now] = e->span_of[i] + 1;
    return FSDP_OK;
}

int exposed_waited(struct fsdp *f, int i, struct fsdp_err *err)
{
    return runs_communication(&f->cursor.program->sched.ops[i]) ? FSDP_OK : end_span(f, i, err);
}

int exposed_ran(struct fsdp *f, int i, struct fsdp_err *err)
{
    return runs_communication(&f->cursor.program->sched.ops[i]) ? end_span(f, i, err) : FSDP_OK;
}
