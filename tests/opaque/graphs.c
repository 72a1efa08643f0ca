/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs of the opaque device. */
#include "graphs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct call {
    fsdp_lane_f *fn;
    size_t nbytes;
    _Alignas(16) unsigned char arg[FSDP_LANE_ARG_NBYTES];
};

struct graph {
    struct call *all;
    size_t n, most;
};

static struct fsdp_device_ops inner;
static __thread struct graph *capturing;
static __thread void *of_lane;
static __thread bool is_lost;
static int ncaptures; /* of a process's one rank */

void graphs_check(const char *what)
{
    if (!capturing)
        return;
    fprintf(stderr, "opaque device: %s, while a graph is captured\n", what);
    abort();
}

static int refuse(const char *what, struct fsdp_err *err)
{
    is_lost = true;
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "opaque device: %s while a graph is captured",
                        what);
}

/* ---- what is captured ------------------------------------------------------------------------ */

static int lane_call(void *lane, fsdp_lane_f *fn, const void *arg, size_t nbytes,
                     struct fsdp_err *err)
{
    struct graph *g = capturing;

    if (!g || lane != of_lane)
        return inner.lane_call(lane, fn, arg, nbytes, err);
    if (g->n == g->most) {
        struct call *more = realloc(g->all, (2 * g->most + 8) * sizeof *more);
        if (!more)
            return fsdp_err_set(err, FSDP_ENOMEM, "opaque device: a graph's calls");
        g->all = more;
        g->most = 2 * g->most + 8;
    }
    struct call *c = &g->all[g->n++];
    c->fn = fn;
    c->nbytes = nbytes;
    memcpy(c->arg, arg, nbytes);
    return FSDP_OK;
}

struct move {
    void *dst;
    const void *src; /* NULL: zeros */
    size_t nbytes;
};

static int run_move(void *arg, struct fsdp_err *err)
{
    const struct move *move = arg;
    (void)err;
    if (move->src)
        memmove(move->dst, move->src, move->nbytes);
    else
        memset(move->dst, 0, move->nbytes);
    return FSDP_OK;
}

static int copy(void *lane, void *dst, const void *src, size_t nbytes, struct fsdp_err *err)
{
    const struct move move = {dst, src, nbytes};
    return capturing ? lane_call(lane, run_move, &move, sizeof move, err)
                     : inner.copy(lane, dst, src, nbytes, err);
}

static int zero(void *lane, void *dst, size_t nbytes, struct fsdp_err *err)
{
    const struct move move = {dst, NULL, nbytes};
    return capturing ? lane_call(lane, run_move, &move, sizeof move, err)
                     : inner.zero(lane, dst, nbytes, err);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static int lane_sync(void *lane, struct fsdp_err *err)
{
    return capturing ? refuse("waiting for a lane", err) : inner.lane_sync(lane, err);
}

static int event_record(void *event, void *lane, struct fsdp_err *err)
{
    return capturing ? refuse("recording an event", err) : inner.event_record(event, lane, err);
}

static int event_wait(void *event, void *lane, struct fsdp_err *err)
{
    return capturing ? refuse("waiting for an event", err) : inner.event_wait(event, lane, err);
}

static void *dev_alloc(void *state, size_t nbytes, const char *name, struct fsdp_err *err)
{
    if (!capturing)
        return inner.alloc(state, nbytes, name, err);
    refuse("an allocation", err);
    return NULL;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static void graph_destroy(void *graph)
{
    struct graph *g = graph;
    free(g->all);
    free(g);
}

static int capture_begin(void *lane, struct fsdp_err *err)
{
    const char *failing = getenv("OPAQUE_GRAPHS");

    if (capturing)
        return refuse("another graph", err);
    if (!(capturing = calloc(1, sizeof *capturing)))
        return fsdp_err_set(err, FSDP_ENOMEM, "opaque device: a graph");
    of_lane = lane;
    is_lost = ++ncaptures == (failing ? atoi(failing) : 0);
    return FSDP_OK;
}

static int capture_end(void **graph, void *lane, struct fsdp_err *err)
{
    struct graph *g = capturing;
    (void)lane;

    capturing = NULL;
    *graph = is_lost ? NULL : g;
    if (!is_lost)
        return FSDP_OK;
    graph_destroy(g);
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "opaque device: this capture is lost");
}

static int graph_launch(void *graph, void *lane, struct fsdp_err *err)
{
    const struct graph *g = graph;

    for (size_t i = 0; i < g->n; i++)
        FSDP_TRY(inner.lane_call(lane, g->all[i].fn, g->all[i].arg, g->all[i].nbytes, err));
    return FSDP_OK;
}

void graphs_fill(struct fsdp_device_ops *ops)
{
    inner = *ops;
    ops->lane_call = lane_call;
    ops->copy = copy;
    ops->zero = zero;
    ops->lane_sync = lane_sync;
    ops->event_record = event_record;
    ops->event_wait = event_wait;
    ops->alloc = dev_alloc;
    ops->capture_begin = capture_begin;
    ops->capture_end = capture_end;
    ops->graph_launch = graph_launch;
    ops->graph_destroy = graph_destroy;
}
