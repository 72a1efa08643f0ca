/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A planned list under a clock. Lanes run their operations in order, each when what it waits for is
 * done; transfers share the links that they use, and slow down what computes meanwhile. Time goes
 * from one event to the next: an operation begins or ends, or a transfer's latency is over.
 *
 * The list runs twice, so that the second pass is one that follows another.
 */
#include <math.h>
#include <string.h>

#include "trace.h"

/* What a lane does. */
struct running {
    int item;       /* pass * nops + operation; -1: nothing */
    bool transfers; /* else it computes */
    double latency; /* seconds until bytes move */
    double left;    /* bytes, or seconds of computing */
    double rate;    /* of bytes; of computing 1 where nothing slows it */
};

struct timeline {
    const struct fsdp *f;
    const struct sched *s;
    const struct fsdp_clock *clock;
    struct trace_cost *costs; /* [nops] */
    int *order;               /* [nops] operations lane by lane */
    int first[SCHED_NLANES + 1];
    int at[SCHED_NLANES];     /* items that a lane has begun */
    struct trace_time *times; /* [2][nops] */
    bool *done;               /* [2 * nops] */
    struct running run[SCHED_NLANES];
    double divided; /* rate of a model and an update that run at once; 1: one of them runs */
    double now, slowed, hidden;
};

static enum sched_lane lane_of(const struct timeline *t, const struct sched_op *op)
{
    return t->clock->device.serial ? SCHED_COMPUTE : op->lane;
}

static bool runs(const struct sched_op *op)
{
    return op->kind != SCHED_FREE;
}

static int prepare_list(struct timeline *t, struct fsdp_err *err)
{
    const size_t nops = (size_t)t->s->nops;

    t->costs = fsdp_alloc(nops, sizeof *t->costs, "modelled times", err);
    t->order = fsdp_alloc(nops, sizeof *t->order, "modelled times", err);
    t->times = fsdp_alloc(2 * nops, sizeof *t->times, "modelled times", err);
    t->done = fsdp_alloc(2 * nops, sizeof *t->done, "modelled times", err);
    if (!t->costs || !t->order || !t->times || !t->done)
        return FSDP_ENOMEM;
    int n = 0;
    for (int lane = 0; lane < SCHED_NLANES; lane++) {
        t->first[lane] = n;
        t->run[lane].item = -1;
        for (int i = 0; i < t->s->nops; i++)
            if (runs(&t->s->ops[i]) && (int)lane_of(t, &t->s->ops[i]) == lane)
                t->order[n++] = i;
    }
    t->first[SCHED_NLANES] = n;
    for (int i = 0; i < t->s->nops; i++) {
        if (runs(&t->s->ops[i]))
            t->costs[i] = trace_op_cost(t->f, &t->s->ops[i], t->clock);
        else
            t->done[i] = t->done[t->s->nops + i] = true;
    }
    return FSDP_OK;
}

static void release(struct timeline *t)
{
    fsdp_free(t->costs);
    fsdp_free(t->order);
    fsdp_free(t->times);
    fsdp_free(t->done);
}

/* The item that a lane begins next, or -1. */
static int next_item(const struct timeline *t, int lane)
{
    const int length = t->first[lane + 1] - t->first[lane];

    if (t->at[lane] >= 2 * length)
        return -1;
    const int pass = t->at[lane] / length;
    return pass * t->s->nops + t->order[t->first[lane] + t->at[lane] % length];
}

static bool may_begin(const struct timeline *t, int item)
{
    const int nops = t->s->nops, pass = item / nops, i = item % nops;
    const struct sched_op *op = &t->s->ops[i];

    for (int k = 0; k < op->nwaits; k++) {
        const int target = t->s->waits[op->waits + k];
        const int of_pass = target >= i ? pass - 1 : pass;
        if (of_pass >= 0 && !t->done[of_pass * nops + target])
            return false;
    }
    return true;
}

/* A driven operation is where the model stops (begin: the lane is free) and continues (end). */
static void begin_item(struct timeline *t, int lane, int item, double *free_at)
{
    const int i = item % t->s->nops;
    const struct trace_cost *cost = &t->costs[i];
    struct running *run = &t->run[lane];

    t->at[lane]++;
    t->times[item].begin = sched_is_driven(t->s->ops[i].kind) ? free_at[lane] : t->now;
    t->times[item].end = t->now;
    *run = (struct running){.item = item, .transfers = cost->transfers, .left = cost->seconds};
    if (cost->transfers) {
        run->latency = cost->transfer.latency_s;
        run->left = cost->transfer.nbytes;
    }
}

static void end_item(struct timeline *t, int lane, double *free_at)
{
    struct running *run = &t->run[lane];
    const int i = run->item % t->s->nops;

    if (!sched_is_driven(t->s->ops[i].kind))
        t->times[run->item].end = t->now;
    t->done[run->item] = true;
    free_at[lane] = t->now;
    run->item = -1;
}

static bool is_over(const struct running *run)
{
    return run->item >= 0 && run->latency <= 0 && run->left <= 0;
}

/* Begins and ends all that can at this time. */
static void settle_lanes(struct timeline *t, double *free_at)
{
    bool moved = true;

    while (moved) {
        moved = false;
        for (int lane = 0; lane < SCHED_NLANES; lane++) {
            if (is_over(&t->run[lane])) {
                end_item(t, lane, free_at);
                moved = true;
            }
            const int item = t->run[lane].item < 0 ? next_item(t, lane) : -1;
            if (item >= 0 && may_begin(t, item)) {
                begin_item(t, lane, item, free_at);
                moved = true;
            }
        }
    }
}

/* By how much collectives slow what computes. Their kernels occupy multiprocessors whatever the
 * rate (assumed: two fifths at the full rate of a node's link), and bytes pass the device's memory.
 */
static double contention(const struct fsdp_net_clock *net, double rate)
{
    const double full = rate / net->node_nbytes_per_s;
    return net->contention * (.4 + .6 * (full < 1 ? full : 1));
}

static bool is_divided(int lane)
{
    return lane == SCHED_COMPUTE || lane == SCHED_UPDATES;
}

static bool computes(const struct timeline *t, enum sched_lane lane)
{
    return t->run[lane].item >= 0 && !t->run[lane].transfers && t->run[lane].left > 0;
}

/* An update is limited by memory, a model's products by arithmetic: next to each other each takes a
 * third more (assumed), so that half of the update is hidden. */
static double divided_rate(const struct timeline *t)
{
    return computes(t, SCHED_COMPUTE) && computes(t, SCHED_UPDATES) ? .75 : 1;
}

/* Sets the rates of all that is under way. Returns whether a collective moves bytes. */
static bool set_rates(struct timeline *t)
{
    const struct fsdp_transfer *moving[SCHED_NLANES];
    double rates[SCHED_NLANES];
    int lanes[SCHED_NLANES], n = 0;
    bool comm = false;
    double moved = 0;

    for (int lane = 0; lane < SCHED_NLANES; lane++) {
        const struct running *run = &t->run[lane];
        if (run->item < 0 || !run->transfers || run->latency > 0)
            continue;
        comm |= t->costs[run->item % t->s->nops].comm;
        moving[n] = &t->costs[run->item % t->s->nops].transfer;
        lanes[n++] = lane;
    }
    if (n)
        fsdp_share_links(rates, &t->clock->net, moving, n);
    for (int i = 0; i < n; i++) {
        t->run[lanes[i]].rate = rates[i];
        if (t->costs[t->run[lanes[i]].item % t->s->nops].comm)
            moved += rates[i];
    }
    for (int lane = 0; lane < SCHED_NLANES; lane++)
        if (t->run[lane].item >= 0 && !t->run[lane].transfers)
            t->run[lane].rate = comm ? 1 / (1 + contention(&t->clock->net, moved)) : 1;
    t->divided = divided_rate(t);
    t->run[SCHED_COMPUTE].rate *= t->divided;
    t->run[SCHED_UPDATES].rate *= t->divided;
    return comm;
}

static double until_event(const struct timeline *t)
{
    double least = INFINITY;

    for (int lane = 0; lane < SCHED_NLANES; lane++) {
        const struct running *run = &t->run[lane];
        if (run->item < 0)
            continue;
        const double takes = run->latency > 0 ? run->latency : run->left / run->rate;
        least = takes < least ? takes : least;
    }
    return least;
}

/* What is left after an event is no more than rounding leaves of what is left now. */
static double less(double left, double by)
{
    return left - by <= 1e-12 * left ? 0 : left - by;
}

static void advance_time(struct timeline *t, double by, bool comm)
{
    for (int lane = 0; lane < SCHED_NLANES; lane++) {
        struct running *run = &t->run[lane];
        if (run->item < 0)
            continue;
        if (run->latency > 0)
            run->latency = less(run->latency, by);
        else
            run->left = isinf(run->rate) ? 0 : less(run->left, by * run->rate);
        if (comm && !run->transfers && run->item >= t->s->nops)
            t->slowed += by * (1 - run->rate / (is_divided(lane) ? t->divided : 1));
    }
    if (t->divided < 1 && t->run[SCHED_COMPUTE].item >= t->s->nops)
        t->hidden += by * (2 * t->divided - 1);
    t->now += by;
}

static void run_list(struct timeline *t)
{
    double free_at[SCHED_NLANES] = {0};

    for (;;) {
        settle_lanes(t, free_at);
        const bool comm = set_rates(t);
        const double by = until_event(t);
        if (isinf(by))
            return;
        advance_time(t, by, comm);
    }
}

/* Where lanes run in the caller, what a driven operation let run comes before the model continues.
 */
static void extend_driven(struct timeline *t)
{
    const int nops = t->s->nops;
    struct trace_time *times = t->times + nops, *driven = NULL;

    for (int i = 0; i < nops; i++) {
        const struct sched_op *op = &t->s->ops[i];
        if (sched_is_driven(op->kind))
            driven = &times[i];
        else if (runs(op) && driven && lane_of(t, op) == SCHED_COMPUTE)
            driven->end = times[i].end;
    }
}

static double last_end(const struct timeline *t, int pass)
{
    const struct trace_time *times = t->times + (size_t)pass * (size_t)t->s->nops;
    double last = 0;

    for (int i = 0; i < t->s->nops; i++)
        if (runs(&t->s->ops[i]) && times[i].end > last)
            last = times[i].end;
    return last;
}

static void take_second(struct trace_time *out, const struct timeline *t)
{
    const int nops = t->s->nops;
    double first = INFINITY;

    memcpy(out, t->times + nops, (size_t)nops * sizeof *out);
    for (int i = 0; i < nops; i++)
        if (runs(&t->s->ops[i]) && out[i].begin < first)
            first = out[i].begin;
    for (int i = 0; i < nops; i++) {
        out[i].begin -= runs(&t->s->ops[i]) ? first : 0;
        out[i].end -= runs(&t->s->ops[i]) ? first : 0;
    }
}

int trace_timeline(struct trace_time *times, struct trace_totals *totals, const struct fsdp *f,
                   enum fsdp_program program, const struct fsdp_clock *clock, struct fsdp_err *err)
{
    struct timeline t = {.f = f, .s = &f->plan.programs[program].sched, .clock = clock};
    int rc = t.s->nops ? prepare_list(&t, err) : FSDP_OK;

    *totals = (struct trace_totals){0};
    if (rc == FSDP_OK && t.s->nops) {
        run_list(&t);
        extend_driven(&t);
        take_second(times, &t);
        *totals = (struct trace_totals){last_end(&t, 1) - last_end(&t, 0), t.slowed, t.hidden};
    }
    release(&t);
    return rc;
}
