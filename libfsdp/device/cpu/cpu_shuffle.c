/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes in random order: a test mode that proves edges.
 *
 * Nothing runs when it is enqueued. Whoever waits for a lane runs them all, in this thread: again
 * and again one of the lanes whose next call may run is drawn, and runs up to its next event. So
 * every order of the work that the events allow can come up, and one seed gives one of them. What
 * lies between two events is the same on ranks that run the same schedule, so that equal seeds keep
 * their collectives in step. That takes waits at the same places of all ranks' programs: where a
 * second thread waits, too (the writer of a snapshot), there may be one rank only.
 */
#include <string.h>

#include "cpu_lane.h"

void device_cpu_shuffle_add(struct lane *lane)
{
    struct lane **end = &lane->device->lanes;
    while (*end)
        end = &(*end)->next;
    *end = lane;
}

void device_cpu_shuffle_remove(struct lane *lane)
{
    struct lane **at = &lane->device->lanes;
    while (*at != lane)
        at = &(*at)->next;
    *at = lane->next;
}

static int enqueue(struct lane *l, fsdp_lane_f *fn, const void *arg, size_t arg_nbytes,
                   struct fsdp_err *err)
{
    if (l->head == l->tail)
        l->head = l->tail = 0;
    struct call *ring =
        fsdp_alloc_grow(l->ring, l->tail, &l->max_calls, sizeof *ring, "cpu lane calls", err);
    if (!ring)
        return FSDP_ENOMEM;
    l->ring = ring;
    struct call *c = &l->ring[l->tail++];
    c->fn = fn;
    memcpy(c->arg, arg, arg_nbytes);
    return FSDP_OK;
}

int device_cpu_shuffle_call(struct lane *l, fsdp_lane_f *fn, const void *arg, size_t arg_nbytes,
                            struct fsdp_err *err)
{
    if (!device_cpu_is_event(fn) && l->failure.status)
        return device_cpu_lane_failure(l, err);
    return enqueue(l, fn, arg, arg_nbytes, err);
}

static bool can_run(const struct lane *l)
{
    if (l->head == l->tail)
        return false;
    const struct call *c = &l->ring[l->head];
    const struct event_arg *a = (const void *)c->arg;
    return c->fn != device_cpu_event_block || a->event->reached >= a->number;
}

/* splitmix64 */
static uint64_t draw(struct device *d)
{
    uint64_t z = d->random += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static bool any_can_run(const struct device *d)
{
    for (const struct lane *l = d->lanes; l; l = l->next)
        if (can_run(l))
            return true;
    return false;
}

static bool others_are_empty(const struct lane *lane)
{
    for (const struct lane *l = lane->device->lanes; l; l = l->next)
        if (l != lane && l->head != l->tail)
            return false;
    return true;
}

/* Number of a lane. One at a time is drawn seldom, so that the others come far ahead of it, as a
 * slow link lets them; which, if any, changes now and then. */
static uint64_t draw_number(struct device *d)
{
    enum { OFTEN = 512, SELDOM = 32 };
    uint64_t nlanes = 0, drawn;

    for (struct lane *l = d->lanes; l; l = l->next)
        nlanes++;
    if (draw(d) % OFTEN == 0)
        d->slow = draw(d) % (nlanes + nlanes / 2);
    do
        drawn = draw(d) % nlanes;
    while (drawn == d->slow && draw(d) % SELDOM);
    return drawn;
}

/* Any lane, so that what a rank has between events does not decide how often is drawn. Without a
 * choice nothing is: ranks read their own state, as much as they have, when all is done. */
static struct lane *draw_lane(struct lane *waited_for)
{
    struct lane *drawn = waited_for->device->lanes;

    if (others_are_empty(waited_for))
        return waited_for;
    for (uint64_t left = draw_number(waited_for->device); left; left--)
        drawn = drawn->next;
    return drawn;
}

static int mark(void *arg, struct fsdp_err *err)
{
    bool **reached = arg;
    (void)err;
    **reached = true;
    return FSDP_OK;
}

static void run_to_event(struct lane *l)
{
    bool at_event = false;
    while (!at_event && can_run(l)) {
        struct call *c = &l->ring[l->head++];
        at_event = device_cpu_is_event(c->fn) || c->fn == mark;
        if (at_event || !l->failure.status)
            device_cpu_lane_run(l, c->fn, c->arg);
    }
}

int device_cpu_shuffle_sync(struct lane *lane, struct fsdp_err *err)
{
    bool done = false, *reached = &done;

    FSDP_TRY(enqueue(lane, mark, &reached, sizeof reached, err));
    while (!done) {
        if (!any_can_run(lane->device)) {
            lane->head = lane->tail; /* the mark among them, which is gone */
            return fsdp_err_set(err, FSDP_EINTERNAL, "lane %s: all lanes wait for each other",
                                lane->name);
        }
        run_to_event(draw_lane(lane));
    }
    return device_cpu_lane_failure(lane, err);
}
