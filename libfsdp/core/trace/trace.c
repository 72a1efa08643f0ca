/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recording. Each lane takes its own times, as calls in its queue, into memory that is there before
 * the first step; nobody reads it before all lanes have been synced.
 */
#include <stdlib.h>
#include <string.h>

#include "trace.h"

const char *fsdp_trace_lane(int lane)
{
    return lane >= 0 && lane < SCHED_NLANES ? sched_lane_name((enum sched_lane)lane) : NULL;
}
_Static_assert((int)SCHED_NLANES <= (int)FSDP_TRACE_MAX_LANES,
               "fsdp_trace_share has a sum per lane");

int fsdp_trace_open(struct fsdp *f, int max_nsteps, struct fsdp_err *err)
{
    int nops = f->plan.programs[FSDP_TRAIN].sched.nops;

    if (f->tracing.trace || max_nsteps < 1)
        return fsdp_err_set(err, FSDP_EINVAL,
                            f->tracing.trace ? "the run is being traced already"
                                             : "a trace of no steps");
    struct trace *t = fsdp_alloc(1, sizeof *t, "trace", err);
    if (!t)
        return FSDP_ENOMEM;
    f->tracing.trace = t;
    t->nops = nops;
    t->capacity = max_nsteps;
    t->step = fsdp_alloc((size_t)max_nsteps, sizeof *t->step, "trace", err);
    t->times = fsdp_alloc((size_t)max_nsteps * (size_t)nops, sizeof *t->times, "trace", err);
    if (t->step && t->times)
        return FSDP_OK;
    trace_close(&f->tracing);
    return FSDP_ENOMEM;
}

void trace_close(struct engine_tracing *tracing)
{
    if (!tracing->trace)
        return;
    fsdp_free(tracing->trace->step);
    fsdp_free(tracing->trace->times);
    fsdp_free(tracing->trace);
    tracing->trace = NULL;
}

void fsdp_trace_next(struct fsdp *f, int64_t step)
{
    if (!f->tracing.trace)
        return;
    f->tracing.trace->armed = f->tracing.trace->nsteps < f->tracing.trace->capacity;
    f->tracing.trace->next = step;
}

void trace_pass(struct engine_tracing *tracing, enum fsdp_program program)
{
    struct trace *t = tracing->trace;
    if (!t)
        return;
    /* A step that did not end leaves its place to this one. */
    t->now = NULL;
    if (program != FSDP_TRAIN || !t->armed)
        return;
    t->armed = false;
    t->step[t->nsteps] = t->next;
    t->now = t->times + (size_t)t->nsteps * (size_t)t->nops;
}

int trace_stamp_now(struct fsdp *f, int i, enum trace_which which, struct fsdp_err *err)
{
    struct trace *t = f->tracing.trace;
    const struct sched *s = &f->cursor.program->sched;
    const struct sched_op *op = &s->ops[i];
    double *to = which == TRACE_BEGIN ? &t->now[i].begin : &t->now[i].end;

    if (op->kind != SCHED_FREE)
        FSDP_TRY(fsdp_lane_stamp(f->lanes[op->lane], to, err));
    if (which == TRACE_END && sched_is_driven(op->kind) && f->cursor.index == s->nops) {
        t->nsteps++;
        t->now = NULL;
    }
    return FSDP_OK;
}

/* ---- what all ranks have --------------------------------------------------------------------- */

/* Ranks leave a barrier at about the same time; the middle one of some differences is a fair guess.
 */
enum { NTICKS = 9 };

struct header {
    uint64_t clock; /* equal where the clock is the same: one boot of one machine */
    double ticks[NTICKS], begin;
    int32_t nsteps;
    struct fsdp_trace_share share;
};

double trace_clock_offset(const double *mine, const double *root, int nticks)
{
    double ahead[NTICKS];
    nticks = nticks < NTICKS ? nticks : NTICKS;
    for (int i = 0; i < nticks; i++)
        ahead[i] = mine[i] - root[i];
    qsort(ahead, (size_t)nticks, sizeof *ahead, fsdp_compare_doubles);
    return nticks > 0 ? ahead[nticks / 2] : 0;
}

static uint64_t clock_id(void)
{
    char id[FSDP_BOOT_ID_NBYTES];

    fsdp_boot_id(id);
    return fsdp_hash(FSDP_HASH_SEED, id, strlen(id));
}

struct gathered {
    struct header *headers; /* [world] */
    struct trace_time *times, *scratch;
    int nsteps;
};

static int gathered_alloc(struct gathered *g, const struct fsdp *f, struct fsdp_err *err)
{
    size_t nops = (size_t)f->tracing.trace->nops, nsteps = (size_t)f->tracing.trace->nsteps;
    size_t world = (size_t)f->mesh->size;

    g->headers = fsdp_alloc(world, sizeof *g->headers, "trace of all ranks", err);
    g->times = fsdp_alloc(world * nops, sizeof *g->times, "trace of all ranks", err);
    g->scratch = fsdp_alloc(2 * nops * nsteps, sizeof *g->scratch, "trace", err);
    return g->headers && g->times && g->scratch ? FSDP_OK : FSDP_ENOMEM;
}

static void gathered_free(struct gathered *g)
{
    fsdp_free(g->headers);
    fsdp_free(g->times);
    fsdp_free(g->scratch);
}

/* A lane may have begun the step before the compute lane came to it. */
static double first_begin(const struct fsdp *f)
{
    const struct trace *t = f->tracing.trace;
    const struct sched *s = &f->plan.programs[FSDP_TRAIN].sched;
    double first = t->nsteps ? t->times[0].begin : 0;

    for (int i = 0; t->nsteps && i < s->nops; i++)
        if (s->ops[i].kind != SCHED_FREE && t->times[i].begin < first)
            first = t->times[i].begin;
    return first;
}

static int gather_headers(struct gathered *g, const struct fsdp *f, struct fsdp_err *err)
{
    const struct trace *t = f->tracing.trace;
    struct fsdp_oob *oob = f->mesh->oob;
    struct header mine = {.clock = clock_id(), .nsteps = t->nsteps};

    for (int i = 0; i < NTICKS; i++) {
        FSDP_TRY(oob->allgather(oob, &mine.clock, sizeof mine.clock, g->times, err));
        mine.ticks[i] = fsdp_time_now();
    }
    mine.begin = first_begin(f);
    trace_share(&mine.share, &f->plan.programs[FSDP_TRAIN].sched, t->times, t->nsteps, g->scratch);
    FSDP_TRY(oob->allgather(oob, &mine, sizeof mine, g->headers, err));
    g->nsteps = t->nsteps;
    for (int r = 0; r < f->mesh->size; r++)
        if (g->headers[r].nsteps < g->nsteps)
            g->nsteps = g->headers[r].nsteps;
    return FSDP_OK;
}

static double offset_of(const struct gathered *g, int rank)
{
    const struct header *h = &g->headers[rank], *root = &g->headers[0];
    return h->clock == root->clock ? 0 : trace_clock_offset(h->ticks, root->ticks, NTICKS);
}

/* A step at a time, so that no rank holds more than one step of all. */
static int write_steps(struct trace_json *json, struct gathered *g, const struct fsdp *f,
                       struct fsdp_err *err)
{
    struct fsdp_oob *oob = f->mesh->oob;
    size_t nops = (size_t)f->tracing.trace->nops;
    double origin = json->origin;
    char name[32];

    for (int k = 0; k < g->nsteps; k++) {
        FSDP_TRY(oob->allgather(oob, f->tracing.trace->times + (size_t)k * nops,
                                nops * sizeof *g->times, g->times, err));
        snprintf(name, sizeof name, "step %lld", (long long)f->tracing.trace->step[k]);
        for (int r = 0; json->to && r < f->mesh->size; r++) {
            json->origin = origin + offset_of(g, r);
            trace_json_pass(json, f, FSDP_TRAIN, r, name, g->times + (size_t)r * nops);
        }
    }
    return FSDP_OK;
}

static int gather_and_write(struct fsdp *f, struct gathered *g, FILE *to,
                            struct fsdp_trace_share *shares, struct fsdp_err *err)
{
    struct trace_json json = {0};
    char name[32];

    FSDP_TRY(gather_headers(g, f, err));
    double origin = g->headers[0].begin;
    for (int r = 0; r < f->mesh->size; r++) {
        double begin = g->headers[r].begin - offset_of(g, r);
        origin = begin < origin ? begin : origin;
        shares[r] = g->headers[r].share;
    }
    if (to) {
        trace_json_begin(&json, to, origin);
        for (int r = 0; r < f->mesh->size; r++) {
            snprintf(name, sizeof name, "rank %d", r);
            trace_json_process(&json, r, name);
        }
    }
    FSDP_TRY(write_steps(&json, g, f, err));
    if (to)
        trace_json_end(&json, shares, f->mesh->size, "recorded on the lanes");
    return FSDP_OK;
}

int fsdp_trace_finish(struct fsdp *f, FILE *to, struct fsdp_trace_share *shares,
                      struct fsdp_err *err)
{
    struct gathered g = {0};

    if (!f->tracing.trace)
        return fsdp_err_set(err, FSDP_EINVAL, "nothing is being traced; fsdp_trace_open first");
    int rc = fsdp_sync(f, err);
    if (rc == FSDP_OK)
        rc = gathered_alloc(&g, f, err);
    rc = fsdp_oob_agree(f->mesh->oob, rc, err);
    if (rc == FSDP_OK)
        rc = gather_and_write(f, &g, to, shares, err);
    gathered_free(&g);
    trace_close(&f->tracing);
    return rc;
}
