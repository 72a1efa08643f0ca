/* SPDX-License-Identifier: Apache-2.0 */
/* suite_lanes.h: a device's lanes and events. */
#ifndef DEVICE_SUITE_LANES_H
#define DEVICE_SUITE_LANES_H

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp/device.h"
#include "tap.h"

struct step {
    volatile int *counter, *seen;
};

static int bump(void *arg, struct fsdp_err *err)
{
    struct step *s = arg;
    (void)err;
    *s->seen = ++*s->counter;
    return FSDP_OK;
}

static int fail(void *arg, struct fsdp_err *err)
{
    (void)arg;
    return fsdp_err_set(err, FSDP_EIO, "made to fail");
}

static int copy_counter(void *arg, struct fsdp_err *err)
{
    struct step *s = arg;
    (void)err;
    *s->seen = *s->counter;
    return FSDP_OK;
}

static int pass_gate(void *arg, struct fsdp_err *err)
{
    (void)err;
    while (!atomic_load(*(atomic_int **)arg))
        sched_yield();
    return FSDP_OK;
}

/* Milliseconds. */
static int take_a_while(void *arg, struct fsdp_err *err)
{
    const double end = fsdp_time_now() + *(int *)arg * 1e-3;
    (void)err;
    while (fsdp_time_now() < end)
        sched_yield();
    return FSDP_OK;
}

/* What is asked and said of a lane from outside. */
static void test_beside(const char *mode, struct fsdp_device *device, bool asynchronous)
{
    struct fsdp_lane *lane;
    struct fsdp_event *event, *timed[2];
    struct fsdp_err err = FSDP_ERR_INIT, said = FSDP_ERR_INIT;
    atomic_int open = !asynchronous, *gate = &open;
    double before = fsdp_time_now(), stamp[2] = {0, 0}, seconds = -1;
    bool done = false, early = false;

    fsdp_lane_create(&lane, device, "other", &err);
    fsdp_event_create(&event, device, &err);
    for (int k = 0; k < 2; k++)
        fsdp_event_create_timed(&timed[k], device, &err);
    ok(fsdp_event_done(event, &done, &err) == FSDP_OK && done, "%s: nothing recorded: done", mode);
    fsdp_lane_stamp(lane, &stamp[0], &err);
    fsdp_event_record(timed[0], lane, &err);
    fsdp_lane_call(lane, pass_gate, &gate, sizeof gate, &err);
    fsdp_lane_call(lane, take_a_while, &(int){2}, sizeof(int), &err);
    fsdp_event_record(timed[1], lane, &err);
    fsdp_lane_stamp(lane, &stamp[1], &err);
    fsdp_event_record(event, lane, &err);
    fsdp_event_done(event, &early, &err);
    atomic_store(&open, 1);
    fsdp_lane_sync(lane, &err);
    fsdp_event_done(event, &done, &err);
    ok(early != asynchronous && done, "%s: an event is done when its work is", mode);
    ok(stamp[0] >= before && stamp[1] >= stamp[0] && stamp[1] <= fsdp_time_now(),
       "%s: stamps are times of the lane, in order", mode);
    ok(fsdp_event_seconds(timed[0], timed[1], &seconds, &err) == FSDP_OK && seconds >= 0.00199 &&
           seconds <= stamp[1] - stamp[0] + 1e-5,
       "%s: seconds between two timed events", mode);
    fsdp_err_set(&said, FSDP_EPEER, "said from outside");
    fsdp_lane_fail(lane, &said);
    fsdp_err_set(&said, FSDP_EIO, "said later");
    fsdp_lane_fail(lane, &said);
    ok(fsdp_lane_sync(lane, &err) == FSDP_EPEER && !strcmp(err.text, "said from outside"),
       "%s: a lane keeps the first failure that it is told", mode);
    ok(fsdp_lane_call(lane, pass_gate, &gate, sizeof gate, &err) == FSDP_EPEER &&
           fsdp_event_record(event, lane, &err) == FSDP_OK,
       "%s: and refuses work, but not events", mode);
    ok(!fsdp_lane_native(lane) == fsdp_device_is_host(device),
       "%s: a queue of the maker's library where there is such a thing", mode);
    fsdp_lane_destroy(lane); /* what it still has to do may name the event */
    fsdp_event_destroy(event);
    for (int k = 0; k < 2; k++)
        fsdp_event_destroy(timed[k]);
}

/* On a device that the caller opened for it. */
static void test_lanes(const char *mode, struct fsdp_device *device, bool asynchronous)
{
    struct fsdp_lane *a, *b;
    struct fsdp_event *event;
    struct fsdp_err err = FSDP_ERR_INIT;
    volatile int counter = 0, seen = 0, after = -1;
    fsdp_lane_create(&a, device, "a", &err);
    fsdp_lane_create(&b, device, "b", &err);
    fsdp_event_create(&event, device, &err);
    bool ordered = true;
    for (int round = 0; round < 200; round++) {
        struct step s = {&counter, &seen}, t = {&counter, &after};
        for (int i = 0; i < 20; i++)
            fsdp_lane_call(a, bump, &s, sizeof s, &err);
        fsdp_event_record(event, a, &err);
        fsdp_event_wait(event, b, &err);
        fsdp_lane_call(b, copy_counter, &t, sizeof t, &err);
        fsdp_lane_sync(b, &err);
        ordered &= after >= (round + 1) * 20;
        fsdp_lane_sync(a, &err);
    }
    ok(ordered && counter == 4000, "%s: work behind an event sees what came before it", mode);
    fsdp_lane_call(a, fail, &(int){0}, sizeof(int), &err);
    ok(fsdp_lane_sync(a, &err) == FSDP_EIO && !strcmp(err.text, "made to fail"),
       "%s: a failure is kept", mode);
    struct step s = {&counter, &seen};
    ok(fsdp_lane_call(a, bump, &s, sizeof s, &err) == FSDP_EIO && counter == 4000,
       "%s: later work is refused", mode);
    ok(fsdp_event_record(event, a, &err) == FSDP_OK && fsdp_event_wait(event, b, &err) == FSDP_OK &&
           fsdp_lane_sync(b, &err) == FSDP_OK,
       "%s: events pass a failed lane", mode);
    char big[FSDP_LANE_ARG_NBYTES + 1] = {0};
    ok(fsdp_lane_call(b, bump, big, sizeof big, &err) == FSDP_EINVAL,
       "%s: too large an argument: %s", mode, err.text);
    test_beside(mode, device, asynchronous);
    fsdp_event_destroy(event);
    fsdp_lane_destroy(a);
    fsdp_lane_destroy(b);
}

/* On CUDA: a call of the host that blocks its lane holds up no kernel and no copy of another; and a
 * poll that finds the lane's work unfinished is no error of the next launch. */
static inline void test_blocked(struct fsdp_device *device)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_lane *blocked = NULL, *other = NULL;
    struct fsdp_event *event = NULL;
    atomic_int open = 0, *gate = &open;
    double *x = fsdp_device_alloc(device, 4 * sizeof *x, "x", &err);
    double *seen = fsdp_host_alloc(device, 4 * sizeof *seen, "seen", &err);
    bool done = true;
    int rc = x && seen ? FSDP_OK : FSDP_ENOMEM;

    rc = rc ? rc : fsdp_lane_create(&blocked, device, "blocked", &err);
    rc = rc ? rc : fsdp_lane_create(&other, device, "other", &err);
    rc = rc ? rc : fsdp_event_create(&event, device, &err);
    if (rc) {
        ok(false, "lanes and memory: %s", err.text);
        return;
    }
    for (int i = 0; i < 4; i++)
        seen[i] = i + 1;
    rc = fsdp_lane_call(blocked, pass_gate, &gate, sizeof gate, &err);
    rc = rc ? rc : fsdp_event_record(event, blocked, &err);
    rc = rc ? rc : fsdp_event_done(event, &done, &err);
    rc = rc ? rc : fsdp_copy(other, x, seen, 4 * sizeof *x, &err);
    rc = rc ? rc : fsdp_max_rows(other, x, x, 2, 2, &err);
    rc = rc ? rc : fsdp_copy(other, seen, x, 2 * sizeof *x, &err);
    rc = rc ? rc : fsdp_lane_sync(other, &err);
    ok(!rc && !done && seen[0] == 3 && seen[1] == 4,
       "kernels and copies next to a call that blocks: %g %g %s", seen[0], seen[1], err.text);
    atomic_store(&open, 1);
    rc = fsdp_lane_sync(blocked, &err);
    rc = rc ? rc : fsdp_event_done(event, &done, &err);
    ok(!rc && done, "which ends then: %s", err.text);
    fsdp_lane_destroy(blocked);
    fsdp_lane_destroy(other);
    fsdp_event_destroy(event);
    fsdp_host_free(device, seen);
    fsdp_device_free(device, x);
}

#endif
