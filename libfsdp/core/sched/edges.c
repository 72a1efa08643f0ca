/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Edges between lanes, derived from the buffers that operations touch.
 *
 * The list is walked twice, because a step follows a step: what the second pass finds is the steady
 * state, and a wait for an operation of the first pass is a wait for the previous step's. For every
 * buffer the latest writer and, per lane, the latest reader since are known. A vector clock per
 * operation (the latest operation of each lane that is certain to be complete before it) drops
 * waits that others imply.
 */
#include <string.h>

#include "builder.h"

static bool has_lane(const struct sched_op *op)
{
    return sched_infos[op->kind].accesses != NULL;
}

struct track {
    int64_t writer;               /* time of the latest write, -1: none */
    int64_t reader[SCHED_NLANES]; /* time of the latest read on each lane since, -1: none */
};

struct edges {
    struct sched *sched;
    const struct sched_input *in;
    int nbuffers, base[SCHED_SCALARS + 2];
    struct track *tracks;
    int64_t (*clock)[SCHED_NLANES];                /* [2 * nops] */
    int64_t lane_tail[SCHED_NLANES][SCHED_NLANES]; /* clock after the lane's latest operation */
    size_t max_waits;
    struct fsdp_err *err;
};

static void need(int64_t latest[SCHED_NLANES], const struct edges *e, int64_t time)
{
    if (time < 0)
        return;
    enum sched_lane lane = e->sched->ops[time % e->sched->nops].lane;
    if (latest[lane] < time)
        latest[lane] = time;
}

/* Does another of the latest operations come behind this lane's anyway? */
static bool implied(const struct edges *e, const int64_t latest[SCHED_NLANES], int lane)
{
    for (int k = 0; k < SCHED_NLANES; k++)
        if (k != lane && latest[k] >= 0 && e->clock[latest[k]][lane] >= latest[lane])
            return true;
    return false;
}

static int add_wait(struct edges *e, struct sched_op *op, int target)
{
    struct sched *s = e->sched;
    int *waits = fsdp_alloc_grow(s->waits, (size_t)s->nwaits, &e->max_waits, sizeof *waits,
                                 "schedule edges", e->err);
    if (!waits)
        return FSDP_ENOMEM;
    s->waits = waits;
    if (!op->nwaits)
        op->waits = s->nwaits;
    op->nwaits++;
    s->waits[s->nwaits++] = target;
    s->ops[target].waited_for = true;
    return FSDP_OK;
}

static int order_op(struct edges *e, int pass, int i)
{
    struct sched *s = e->sched;
    struct sched_op *op = &s->ops[i];
    struct sched_access access[SCHED_MAX_ACCESSES];
    int64_t latest[SCHED_NLANES], now = (int64_t)pass * s->nops + i;

    if (!has_lane(op))
        return FSDP_OK;
    memset(latest, 0xff, sizeof latest);
    int naccesses = sched_accesses(s, e->in, i, access);
    for (int k = 0; k < naccesses; k++) {
        struct track *t = &e->tracks[e->base[access[k].buffer] + access[k].index];
        need(latest, e, t->writer);
        for (int lane = 0; access[k].write && lane < SCHED_NLANES; lane++)
            need(latest, e, t->reader[lane]);
    }
    int64_t *clock = e->lane_tail[op->lane];
    for (int lane = 0; lane < SCHED_NLANES; lane++) {
        if (lane == (int)op->lane || latest[lane] <= clock[lane] || implied(e, latest, lane))
            continue;
        for (int k = 0; k < SCHED_NLANES; k++)
            if (clock[k] < e->clock[latest[lane]][k])
                clock[k] = e->clock[latest[lane]][k];
        if (pass == 1)
            FSDP_TRY(add_wait(e, op, (int)(latest[lane] % s->nops)));
    }
    clock[op->lane] = now;
    memcpy(e->clock[now], clock, sizeof e->clock[now]);
    for (int k = 0; k < naccesses; k++) {
        struct track *t = &e->tracks[e->base[access[k].buffer] + access[k].index];
        if (access[k].write) {
            t->writer = now;
            memset(t->reader, 0xff, sizeof t->reader);
        } else {
            t->reader[op->lane] = now;
        }
    }
    return FSDP_OK;
}

int sched_add_edges(struct sched *sched, const struct sched_input *in, struct fsdp_err *err)
{
    struct edges e = {.sched = sched, .in = in, .err = err};
    int rc = FSDP_ENOMEM;

    const int nslots = in->nflats + 2; /* the most that sched.c makes of a kind */
    const int counts[] = {[SCHED_PARAM_SHARD] = in->nflats,
                          [SCHED_GRAD_SHARD] = in->nflats,
                          [SCHED_KEPT_PART] = in->nflats,
                          [SCHED_PARAM_SLOT] = nslots,
                          [SCHED_GRAD_SLOT] = nslots,
                          [SCHED_GATHER_STAGING] = 1,
                          [SCHED_REDUCE_STAGING] = 1,
                          [SCHED_HOST_PARAM] = in->nflats,
                          [SCHED_HOST_STATE] = in->nflats,
                          [SCHED_STATE_SLOT] = in->offload_slots,
                          [SCHED_ACT_SLOT] = in->acts ? in->offload_slots : 0,
                          [SCHED_HOST_GRAD] = in->nflats,
                          [SCHED_HOST_ACT] = in->acts ? in->nmodules : 0,
                          [SCHED_HOST_SCALARS] = 1,
                          [SCHED_SCALARS] = 1};
    for (int k = 0; k <= SCHED_SCALARS; k++)
        e.base[k + 1] = e.base[k] + counts[k];
    e.nbuffers = e.base[SCHED_SCALARS + 1];
    memset(e.lane_tail, 0xff, sizeof e.lane_tail);
    e.tracks = fsdp_alloc((size_t)e.nbuffers, sizeof *e.tracks, "schedule edges", err);
    e.clock = fsdp_alloc((size_t)sched->nops * 2, sizeof *e.clock, "schedule edges", err);
    if (!e.tracks || !e.clock)
        goto out;
    memset(e.tracks, 0xff, (size_t)e.nbuffers * sizeof *e.tracks);
    rc = FSDP_OK;
    for (int pass = 0; pass < 2 && !rc; pass++)
        for (int i = 0; i < sched->nops && !rc; i++)
            rc = order_op(&e, pass, i);
out:
    fsdp_free(e.tracks);
    fsdp_free(e.clock);
    return rc;
}
