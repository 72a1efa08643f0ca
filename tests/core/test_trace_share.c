/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over a recorded trace, as a function of its times: what share of communication was exposed,
 * and how clocks of two machines differ. */
#include <math.h>

#include "../../libfsdp/core/trace/trace.h"
#include "tap.h"

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-9;
}

static void test_uncovered(void)
{
    struct trace_time none[1];
    struct trace_time a[] = {{5, 7}, {0, 2}, {1, 3}, {9, 9}},
                      b[] = {{6, 20}, {0.5, 1}, {2.5, 2.75}};
    ok(near(trace_uncovered(a, 4, none, 0), 5), "overlapping intervals count once");
    struct trace_time a2[] = {{5, 7}, {0, 2}, {1, 3}, {9, 9}};
    ok(near(trace_uncovered(a2, 4, b, 3), 3.25), "what others cover does not count");
    struct trace_time one[] = {{1, 4}, {5, 6}, {7, 9}}, wide[] = {{0, 5.5}, {8, 8.5}, {5.5, 5.75}};
    ok(near(trace_uncovered(one, 3, wide, 3), 1.75), "a cover may span several, or lie within one");
    ok(near(trace_uncovered(none, 0, wide, 3), 0), "nothing is nothing");
}

static void test_share(void)
{
    /* Two passes, the second 100 later; its first gather runs under the first's update. */
    static const struct sched_op ops[] = {
        {.kind = SCHED_MICRO_BEGIN, .lane = SCHED_COMPUTE}, /* 0 */
        {.kind = SCHED_GATHER, .lane = SCHED_GATHERS},      /* 1: 0..4, exposed */
        {.kind = SCHED_ENTER, .lane = SCHED_COMPUTE},       /* 2: computes 4..10 */
        {.kind = SCHED_GATHER, .lane = SCHED_GATHERS},      /* 3: 5..12, 10..12 exposed */
        {.kind = SCHED_ENTER, .lane = SCHED_COMPUTE},       /* 4: arrives 10, computes 12..20 */
        {.kind = SCHED_LEAVE, .lane = SCHED_COMPUTE},       /* 5: continues 20..21 */
        {.kind = SCHED_FREE, .lane = SCHED_GATHERS},        /* 6 */
        {.kind = SCHED_REDUCE, .lane = SCHED_REDUCES},      /* 7: 20..25, 21..25 exposed */
        {.kind = SCHED_LEAVE, .lane = SCHED_COMPUTE},       /* 8 */
        {.kind = SCHED_MICRO_END, .lane = SCHED_COMPUTE},   /* 9 */
        {.kind = SCHED_STEP, .lane = SCHED_COMPUTE},        /* 10 */
        {.kind = SCHED_NORM, .lane = SCHED_COMPUTE},        /* 11: 25..26 */
        {.kind = SCHED_NORM_SUM, .lane = SCHED_COMPUTE},    /* 12: 26..28, exposed */
        {.kind = SCHED_UPDATE, .lane = SCHED_COMPUTE},      /* 13: 28..30 */
    };
    enum { NOPS = sizeof ops / sizeof ops[0] };
    struct sched sched = {.nops = NOPS, .ops = (struct sched_op *)(uintptr_t)ops};
    struct trace_time t[2 * NOPS] = {{0, 0},   {0, 4},   {0, 4},   {5, 12},  {10, 12},
                                     {20, 20}, {0, 0},   {20, 25}, {21, 25}, {25, 25},
                                     {25, 30}, {25, 26}, {26, 28}, {28, 30}};
    struct trace_time scratch[4 * NOPS];
    struct fsdp_trace_share share;

    trace_share(&share, &sched, t, 1, scratch);
    ok(share.nsteps == 1 && near(share.wall_s, 30), "from the first begin to the last end: %g",
       share.wall_s);
    ok(near(share.compute_s, 6 + 8 + 1 + 1 + 2), "compute: %g", share.compute_s);
    ok(near(share.comm_s, 12 - 5 + 4 + 5 + 2), "communication: %g", share.comm_s);
    ok(near(share.exposed_s, 4 + 2 + 4 + 2), "exposed: %g", share.exposed_s);
    ok(near(share.lane_s[SCHED_GATHERS], 11) && near(share.lane_s[SCHED_REDUCES], 5) &&
           near(share.lane_s[SCHED_REPLICATES], 0) && near(share.lane_s[SCHED_COMPUTE], 20),
       "lanes: %g, %g, %g", share.lane_s[SCHED_COMPUTE], share.lane_s[SCHED_GATHERS],
       share.lane_s[SCHED_REDUCES]);
    for (int i = 0; i < NOPS; i++)
        t[NOPS + i] = (struct trace_time){t[i].begin + 100, t[i].end + 100};
    t[NOPS + 1] = (struct trace_time){28.5, 29.5};
    trace_share(&share, &sched, t, 2, scratch);
    ok(share.nsteps == 2 && near(share.comm_s, 18 + 14 + 1) && near(share.exposed_s, 12 + 8),
       "over two steps: %g of %g exposed", share.exposed_s, share.comm_s);
    /* A local copy on the gather lane is neither computation nor communication. */
    static const struct sched_op keep[] = {{.kind = SCHED_KEEP_PART, .lane = SCHED_GATHERS}};
    sched = (struct sched){.nops = 1, .ops = (struct sched_op *)(uintptr_t)keep};
    struct trace_time copy[] = {{1, 3}};
    trace_share(&share, &sched, copy, 1, scratch);
    ok(near(share.lane_s[SCHED_GATHERS], 2) && share.comm_s == 0 && share.compute_s == 0,
       "a copy is work of its lane alone");
    trace_share(&share, &sched, t, 0, scratch);
    ok(share.nsteps == 0 && share.wall_s == 0 && share.comm_s == 0, "of no steps nothing");
}

static void test_clock(void)
{
    double root[] = {1, 2, 3, 4, 5}, mine[] = {11.1, 12, 13.9, 14.05, 15.2};
    ok(near(trace_clock_offset(mine, root, 5), 10.1), "the middle difference of the clocks");
    ok(trace_clock_offset(root, root, 5) == 0 && trace_clock_offset(mine, root, 0) == 0,
       "no difference, no ticks");
}

int main(void)
{
    test_uncovered();
    test_share();
    test_clock();
    return tap_done();
}
