/* SPDX-License-Identifier: Apache-2.0 */
/* The clock's formulas against numbers worked out by hand, and laws over random clocks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fsdp/clock.h"
#include "tap.h"

static bool near(double a, double b)
{
    return a == b || fabs(a - b) <= 1e-9 * fabs(b);
}

/* Round numbers: a node of 4 ranks, 100 B/s inside, 10 B/s of the cards each, flat rings reach half
 * of them, rails 0.8. */
static struct fsdp_net_clock small_net(void)
{
    return (struct fsdp_net_clock){.node_nranks = 4,
                                   .node_nbytes_per_s = 100,
                                   .nvls_nbytes_per_s = 150,
                                   .nic_nbytes_per_s = 10,
                                   .flat_share = .5,
                                   .rail_share = .8,
                                   .start_s = 1,
                                   .node_hop_s = .1,
                                   .net_hop_s = .5,
                                   .pat_hop_s = .2,
                                   .host_nbytes_per_s = 20};
}

static const struct fsdp_group node4 = {4, 1, 4}, node8 = {8, 1, 8}, flat8 = {8, 2, 4},
                               rail4 = {4, 4, 1}, rail16 = {16, 16, 1}, alone = {1, 1, 1};

static bool takes(struct fsdp_transfer t, double latency, double nbytes, double rate)
{
    const bool good = near(t.latency_s, latency) && near(t.nbytes, nbytes) && near(t.rate, rate) &&
                      near(fsdp_transfer_seconds(&t), latency + nbytes / rate);
    if (!good)
        diag("latency %g, bytes %g, rate %g; want %g, %g, %g", t.latency_s, t.nbytes, t.rate,
             latency, nbytes, rate);
    return good;
}

static void test_groups(void)
{
    const struct fsdp_net_clock net = {.node_nranks = 8};
    const struct {
        int nranks, stride;
        struct fsdp_group want;
    } rows[] = {
        {8, 1, {8, 1, 8}}, {4, 1, {4, 1, 4}},   {64, 1, {64, 8, 8}},
        {8, 8, {8, 8, 1}}, {16, 4, {16, 8, 2}}, {2, 4, {2, 1, 2}},
        {1, 1, {1, 1, 1}}, {4, 16, {4, 4, 1}},  {12, 1, {12, 2, 8}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct fsdp_group g = fsdp_group_of(&net, rows[i].nranks, rows[i].stride);
        ok(!memcmp(&g, &rows[i].want, sizeof g), "%d ranks, %d apart: %d nodes of %d",
           rows[i].nranks, rows[i].stride, g.nnodes, g.node_nranks);
    }
}

static void test_algorithms(void)
{
    const struct fsdp_net_clock n = small_net();
    struct fsdp_transfer t;

    /* 3 hops of 0.1 s; 3/4 of 400 bytes at 100 B/s. */
    t = fsdp_algorithm_transfer(&n, FSDP_RING, FSDP_ALL_GATHER, node4, 400);
    ok(takes(t, 1.3, 300, 100), "ring in a node: gather");
    t = fsdp_algorithm_transfer(&n, FSDP_RING, FSDP_REDUCE_SCATTER, node4, 400);
    ok(takes(t, 1.3, 300, 100), "scatter is a gather backwards");
    ok(t.load[FSDP_LINK_NODE] == 1 && t.load[FSDP_LINK_NIC] == 0, "it is on the node's link alone");
    t = fsdp_algorithm_transfer(&n, FSDP_RING, FSDP_ALL_REDUCE, node4, 400);
    ok(takes(t, 1.6, 600, 100), "all-reduce is both");
    /* 8 ranks on 2 nodes: 6 hops inside, 1 outside; 4 ranks' cards together, half of 40 B/s. */
    t = fsdp_algorithm_transfer(&n, FSDP_RING, FSDP_ALL_GATHER, flat8, 800);
    ok(takes(t, 1 + .6 + .5, 700, 20), "flat ring");
    ok(near(t.load[FSDP_LINK_NIC], 2) && t.load[FSDP_LINK_NODE] == 1,
       "each byte passes the cards once, and as much again is lost");
    t = fsdp_algorithm_transfer(&n, FSDP_RING, FSDP_ALL_REDUCE, flat8, 800);
    ok(takes(t, 1 + 1.2 + 1, 1400, 20), "its all-reduce");
    /* One rank on each of 4 nodes: 0.8 of one's share; four such rings share the cards. */
    t = fsdp_algorithm_transfer(&n, FSDP_RING, FSDP_ALL_GATHER, rail4, 400);
    ok(takes(t, 1 + 1.5, 300, 8), "ring on a rail");
    ok(near(t.load[FSDP_LINK_NIC], 4 / .8) && t.load[FSDP_LINK_NODE] == 0, "which is one of four");
    /* log2 16 + 0.7 * 16 = 15.2 hops of 0.2 s. */
    t = fsdp_algorithm_transfer(&n, FSDP_PAT, FSDP_ALL_GATHER, rail16, 1600);
    ok(takes(t, 1 + 15.2 * .2, 1500, 8), "PAT");
    /* Up and down: 2 * (4 hops outside + 0 inside). */
    t = fsdp_algorithm_transfer(&n, FSDP_TREE, FSDP_ALL_REDUCE, rail16, 1600);
    ok(takes(t, 1 + 4, 3000, 8), "tree on a rail");
    t = fsdp_algorithm_transfer(&n, FSDP_TREE, FSDP_ALL_REDUCE, flat8, 800);
    ok(takes(t, 1 + 2 * (.5 + .3), 1400, 20), "tree over whole nodes");
    struct fsdp_net_clock big = n;
    big.node_nranks = 8;
    t = fsdp_algorithm_transfer(&big, FSDP_NVLS, FSDP_ALL_REDUCE, node8, 800);
    ok(takes(t, 1.2, 1400, 150), "NVLS");
    t = fsdp_algorithm_transfer(&n, FSDP_RING, FSDP_ALL_GATHER, alone, 800);
    ok(fsdp_transfer_seconds(&t) == 0, "one rank has everything");
}

static void test_fits(void)
{
    const struct fsdp_net_clock n = small_net();
    const struct {
        enum fsdp_algorithm algorithm;
        enum fsdp_collective kind;
        struct fsdp_group group;
        const char *why;
    } rows[] = {{FSDP_TREE, FSDP_ALL_GATHER, rail16, "a tree does not gather"},
                {FSDP_TREE, FSDP_ALL_REDUCE, node4, "nor is it inside a node"},
                {FSDP_NVLS, FSDP_ALL_REDUCE, node4, "NVLS is for more than 4"},
                {FSDP_NVLS, FSDP_ALL_GATHER, node8, "and for all-reduce"},
                {FSDP_PAT, FSDP_ALL_REDUCE, rail16, "PAT does not all-reduce"},
                {FSDP_PAT, FSDP_ALL_GATHER, flat8, "PAT has one rank on each node"}};
    struct fsdp_net_clock none = n;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        ok(fsdp_algorithm_transfer(&n, rows[i].algorithm, rows[i].kind, rows[i].group, 100).rate ==
               0,
           "%s", rows[i].why);
    none.nvls_nbytes_per_s = 0;
    ok(fsdp_algorithm_transfer(&none, FSDP_NVLS, FSDP_ALL_REDUCE, node8, 100).rate == 0,
       "nor without such switches");
}

static void test_collectives(void)
{
    struct fsdp_net_clock n = small_net();
    struct fsdp_transfer t;

    t = fsdp_collective_transfer(&n, FSDP_ALL_GATHER, rail16, 1600);
    ok(t.algorithm == FSDP_PAT && takes(t, 4.04, 1500, 8), "the fastest: PAT, 4.04 s before 8.5");
    t = fsdp_collective_transfer(&n, FSDP_ALL_REDUCE, rail16, 1600);
    ok(t.algorithm == FSDP_TREE, "the tree");
    t = fsdp_collective_transfer(&n, FSDP_ALL_REDUCE, node8, 800);
    ok(t.algorithm == FSDP_NVLS, "the switches");
    n.collectives = 3;
    t = fsdp_collective_transfer(&n, FSDP_ALL_GATHER, node4, 400);
    ok(takes(t, 3.9, 300, 100), "three collectives have three latencies");
    n.collectives = 0;
    n.node_half_nbytes = 50;
    n.net_half_nbytes = 30;
    t = fsdp_collective_transfer(&n, FSDP_ALL_GATHER, node4, 400);
    ok(takes(t, 1.3 + .5, 300, 100), "the half size takes as long as its bytes");
    ok(near(fsdp_transfer_seconds(&t) - 1.3, 300. / 100 * (1 + 50. / 300)),
       "S / (S + half) of the rate");
    t = fsdp_collective_transfer(&n, FSDP_ALL_REDUCE, flat8, 800);
    ok(t.algorithm == FSDP_TREE && takes(t, 1 + 1.6 + 2 * 30. / 20, 1400, 20),
       "twice in an all-reduce");
    n.net_half_nbytes = 0;
    n.tiers[0] = (struct fsdp_tier){4, .5};
    n.tiers[1] = (struct fsdp_tier){16, .25};
    n.ntiers = 2;
    ok(near(fsdp_algorithm_transfer(&n, FSDP_RING, FSDP_ALL_GATHER, flat8, 800).rate, 20) &&
           near(fsdp_algorithm_transfer(&n, FSDP_RING, FSDP_ALL_GATHER, rail4, 800).rate, 4) &&
           near(fsdp_algorithm_transfer(&n, FSDP_RING, FSDP_ALL_GATHER, rail16, 800).rate, 2),
       "tiers from 4 and from 16 nodes");
    t = fsdp_host_transfer(&n, FSDP_LINK_UP, 40);
    ok(takes(t, 1, 40, 20) && t.load[FSDP_LINK_UP] == 1 && t.load[FSDP_LINK_DOWN] == 0,
       "from the host");
}

static void test_measured_collectives(void)
{
    struct fsdp_net_clock n = small_net();
    const struct fsdp_collective_time times[] = {
        {FSDP_ALL_GATHER, 4, 1, 400, 6},    {FSDP_ALL_GATHER, 4, 1, 100, 2},
        {FSDP_ALL_GATHER, 4, 1, 800, 10},   {FSDP_ALL_GATHER, 8, 2, 800, 99},
        {FSDP_ALL_REDUCE, 4, 1, 100, 5},    {FSDP_REDUCE_SCATTER, 4, 1, 100, 5},
        {FSDP_REDUCE_SCATTER, 4, 1, 200, 4}};
    struct fsdp_transfer t;

    n.measured = times;
    n.nmeasured = sizeof times / sizeof times[0];
    t = fsdp_collective_transfer(&n, FSDP_ALL_GATHER, node4, 400);
    ok(near(fsdp_transfer_seconds(&t), 6) && near(t.latency_s, 3),
       "as measured; bytes at the link's rate");
    t = fsdp_collective_transfer(&n, FSDP_ALL_GATHER, node4, 200);
    ok(near(fsdp_transfer_seconds(&t), 2 + 4. / 3), "between two");
    t = fsdp_collective_transfer(&n, FSDP_ALL_GATHER, node4, 10);
    ok(near(fsdp_transfer_seconds(&t), 2), "below all");
    t = fsdp_collective_transfer(&n, FSDP_ALL_GATHER, node4, 1600);
    ok(near(fsdp_transfer_seconds(&t), 18), "above all");
    t = fsdp_collective_transfer(&n, FSDP_ALL_REDUCE, node4, 200);
    ok(near(fsdp_transfer_seconds(&t), 10), "one size alone: as much per byte");
    t = fsdp_collective_transfer(&n, FSDP_REDUCE_SCATTER, node4, 400);
    ok(near(fsdp_transfer_seconds(&t), 8), "a larger one that took less: as much per byte");
    t = fsdp_collective_transfer(&n, FSDP_ALL_GATHER, rail4, 400);
    ok(near(t.rate, 8), "another group is not measured");
    const struct fsdp_collective_time fast[] = {{FSDP_ALL_GATHER, 4, 1, 400, 1.5}};
    n.measured = fast;
    n.nmeasured = 1;
    t = fsdp_collective_transfer(&n, FSDP_ALL_GATHER, node4, 400);
    ok(takes(t, 0, 300, 200) && near(t.load[FSDP_LINK_NODE], .5),
       "faster than the link was thought to be");
}

/* ---- sharing --------------------------------------------------------------------------------- */

/* Transfers that begin together, by events: seconds until each has ended. */
static void run_fluid(double *ends, const struct fsdp_net_clock *net, const struct fsdp_transfer *t,
                      int n)
{
    double left[8], rates[8], now = 0;

    for (int i = 0; i < n; i++)
        left[i] = t[i].nbytes;
    for (int open = n; open > 0;) {
        const struct fsdp_transfer *moving[8];
        int of[8], nmoving = 0;
        double next = INFINITY;
        for (int i = 0; i < n; i++)
            if (left[i] > 0) {
                of[nmoving] = i;
                moving[nmoving++] = &t[i];
            }
        fsdp_share_links(rates, net, moving, nmoving);
        for (int k = 0; k < nmoving; k++)
            next = fmin(next, left[of[k]] / rates[k]);
        now += next;
        for (int k = 0; k < nmoving; k++) {
            left[of[k]] -= next * rates[k];
            if (left[of[k]] < 1e-9) {
                left[of[k]] = 0;
                ends[of[k]] = now;
                open--;
            }
        }
    }
}

static void test_sharing(void)
{
    const struct fsdp_net_clock n = small_net();
    struct fsdp_transfer t[3];
    double ends[3];

    for (int i = 0; i < 3; i++)
        t[i] = fsdp_algorithm_transfer(&n, FSDP_RING, FSDP_ALL_GATHER, node4, 400);
    run_fluid(ends, &n, t, 1);
    ok(near(ends[0], 3), "alone: 300 bytes at 100 B/s");
    run_fluid(ends, &n, t, 2);
    ok(near(ends[0], 6) && near(ends[1], 6), "two share the link");
    t[1].nbytes = 100; /* 50 B/s each until 2 s; then 200 bytes at 100 B/s */
    run_fluid(ends, &n, t, 2);
    ok(near(ends[1], 2) && near(ends[0], 4), "when one has ended the other is as fast as alone");
    /* A rail's ring (8 B/s, 5 of the cards' 40 B/s for each byte) and one in the node. */
    t[1] = fsdp_algorithm_transfer(&n, FSDP_RING, FSDP_ALL_GATHER, rail4, 400);
    run_fluid(ends, &n, t, 2);
    ok(near(ends[0], 3) && near(ends[1], 300. / 8), "node and cards do not share");
    t[0] = t[1];
    run_fluid(ends, &n, t, 2);
    ok(near(ends[0], 75) && near(ends[1], 75), "two on the cards do");
    /* A flat ring is on both: 20 B/s alone, half the cards next to the rail's: 2 x + 5 x = 40. */
    t[0] = fsdp_algorithm_transfer(&n, FSDP_RING, FSDP_ALL_GATHER, flat8, 800);
    double rates[3];
    const struct fsdp_transfer *both[] = {&t[0], &t[1], &t[2]};
    fsdp_share_links(rates, &n, both, 2);
    ok(near(rates[0], 40. / 7) && near(rates[1], 40. / 7),
       "the same rate for both where they meet");
    fsdp_share_links(rates, &n, both, 3);
    ok(near(rates[2], 100 - 40. / 7), "what the flat ring leaves of the node's link");
    t[0] = fsdp_host_transfer(&n, FSDP_LINK_UP, 40);
    t[1] = fsdp_host_transfer(&n, FSDP_LINK_DOWN, 40);
    fsdp_share_links(rates, &n, both, 3);
    ok(near(rates[0], 20) && near(rates[1], 20) && near(rates[2], 100),
       "up, down and the node's do not meet");
}

/* ---- a device -------------------------------------------------------------------------------- */

/* 1000 FLOP/s of 16 bits, of which products reach 0.5; 100 B/s, of which kernels reach 0.8. */
static struct fsdp_device_clock small_device(void)
{
    return (struct fsdp_device_clock){.flops_16 = 1000,
                                      .flops_8 = 2000,
                                      .flops_32 = 250,
                                      .product_share = .5,
                                      .product_share_8 = .4,
                                      .attention_share = .25,
                                      .attention_gradient = 2,
                                      .memory_nbytes_per_s = 100,
                                      .memory_share = .8,
                                      .pointwise = 1.5};
}

static void test_device(void)
{
    struct fsdp_device_clock d = small_device();
    struct fsdp_work w = {
        .kind = FSDP_WORK_PRODUCT, .times = 2, .m = 100, .n = 100, .k = 100, .type = FSDP_BF16};

    ok(fsdp_work_flops(&w) == 2e6, "2 m n k");
    ok(near(fsdp_work_seconds(&d, &w), 2 * 2e6 / 500), "a large product is bound by arithmetic");
    w.type = FSDP_F8_E4M3;
    ok(near(fsdp_work_seconds(&d, &w), 2 * 2e6 / 800), "8 bits");
    w.type = FSDP_F32;
    ok(near(fsdp_work_seconds(&d, &w), 2 * 2e6 / 125), "32 bits");
    w.type = FSDP_BF16;
    w.m = 1;
    /* 2 * 10000 / 500 = 40 s; 2 bytes * (100 + 10000 + 100) at 80 B/s = 255 s. */
    ok(near(fsdp_work_seconds(&d, &w), 2 * 255), "a thin one by memory");
    d.memory_nbytes_per_s = 1e6;
    d.product_half = 1;
    ok(near(fsdp_work_seconds(&d, &w), 2 * 40 * 2 * 1.01 * 1.01),
       "at the half size half of the share");
    w.m = 0;
    ok(fsdp_work_seconds(&d, &w) == 0, "nothing takes no time");
    d = small_device();
    w = (struct fsdp_work){.kind = FSDP_WORK_ATTENTION,
                           .times = 1,
                           .m = 10,
                           .k = 5,
                           .n = 8,
                           .heads = 2,
                           .type = FSDP_BF16};
    ok(fsdp_work_flops(&w) == 1600 && near(fsdp_work_seconds(&d, &w), 1600 / 250.), "attention");
    w.gradient = true;
    ok(fsdp_work_flops(&w) == 4000 && near(fsdp_work_seconds(&d, &w), 4000 / 125.),
       "its backward pass");
    d.score_nbytes = 4; /* 2 * 10 * 5 * 4 = 400 bytes, twice */
    ok(near(fsdp_work_seconds(&d, &w), 4000 / 125. + 2 * 400 / 80.), "with scores in memory");
    w = (struct fsdp_work){.kind = FSDP_WORK_BYTES, .times = 3, .nbytes = 80};
    ok(fsdp_work_flops(&w) == 0 && near(fsdp_work_seconds(&d, &w), 4.5), "pointwise");
    ok(near(fsdp_touch_seconds(&d, 160), 2), "the engine's own are as described");
    d.flops_8 = 0;
    w = (struct fsdp_work){
        .kind = FSDP_WORK_PRODUCT, .times = 1, .m = 100, .n = 100, .k = 100, .type = FSDP_F8_E5M2};
    ok(near(fsdp_work_seconds(&d, &w), 2e6 / 500), "8 bits without such products: as 16");
}

static void test_rates(void)
{
    struct fsdp_device_clock d = small_device();
    const struct fsdp_rate products[] = {
        {FSDP_BF16, 10, 100, 100, 50},
        {FSDP_BF16, 1000, 100, 100, 200},
        {FSDP_BF16, 10, 1000, 100, 400},
        {FSDP_F32, 10, 100, 100, 7},
    };
    const struct fsdp_rate attention[] = {{FSDP_BF16, 100, 64, 1, 100},
                                          {FSDP_BF16, 100, 64, 2, 50}};
    const struct fsdp_rate copies[] = {{FSDP_F32, 1e3, 0, 0, 10}, {FSDP_F32, 1e6, 0, 0, 1000}};
    struct fsdp_work w = {
        .kind = FSDP_WORK_PRODUCT, .times = 1, .m = 10, .n = 100, .k = 100, .type = FSDP_BF16};

    d.products = (struct fsdp_rates){products, 4};
    d.attention = (struct fsdp_rates){attention, 2};
    d.copies = (struct fsdp_rates){copies, 2};
    ok(near(fsdp_work_seconds(&d, &w), 2e5 / 50), "at a measured size");
    w.m = 100;
    ok(near(fsdp_work_seconds(&d, &w), 2e6 / 100), "in the middle of two by logarithms");
    w.m = 1;
    ok(near(fsdp_work_seconds(&d, &w), 2e4 / 50), "below all the nearest");
    w.m = 1e6;
    ok(near(fsdp_work_seconds(&d, &w), 2e10 / 200), "above all, too");
    w.m = 10;
    w.n = sqrt(1e5);
    ok(near(fsdp_work_seconds(&d, &w), fsdp_work_flops(&w) / sqrt(50. * 400)),
       "as far from n 100 as from 1000");
    w.type = FSDP_F16;
    ok(near(fsdp_work_seconds(&d, &w), fsdp_work_flops(&w) / 500), "another type is not measured");
    w = (struct fsdp_work){.kind = FSDP_WORK_ATTENTION,
                           .times = 1,
                           .m = 10,
                           .k = 100,
                           .n = 96,
                           .heads = 1,
                           .type = FSDP_BF16};
    ok(near(fsdp_work_seconds(&d, &w), fsdp_work_flops(&w) / 100),
       "another head size takes the nearest");
    w.gradient = true;
    ok(near(fsdp_work_seconds(&d, &w), fsdp_work_flops(&w) / 50), "but not the other pass");
    ok(near(fsdp_touch_seconds(&d, 1e6), 1000) && near(fsdp_touch_seconds(&d, 1e3), 100), "copies");
}

static void test_jitter(void)
{
    struct fsdp_net_clock n = {.jitter = .01};

    ok(fsdp_jitter_factor(&n, 1) == 1, "one rank waits for nobody");
    ok(near(fsdp_jitter_factor(&n, 1024), 1 + .01 * sqrt(2 * log(1024))), "the slowest of 1024");
    n.slow_rank = .1;
    ok(near(fsdp_jitter_factor(&n, 1), 1.1), "one that is slow by a tenth");
}

static void test_check(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    const struct fsdp_clock good = {.device = small_device(), .net = small_net()};
    struct fsdp_clock c = good;

    ok(!fsdp_clock_check(&c, &err), "a clock that makes sense: %s", err.text);
    c.net.flat_share = 0;
    ok(fsdp_clock_check(&c, &err) && strstr(err.text, "share of flat rings"), "%s", err.text);
    c = good;
    c.device.memory_nbytes_per_s = NAN;
    ok(fsdp_clock_check(&c, &err) && strstr(err.text, "memory bandwidth"), "%s", err.text);
    c = good;
    c.net.start_s = -1;
    ok(fsdp_clock_check(&c, &err) && strstr(err.text, "latency"), "%s", err.text);
    c = good;
    c.net.node_nranks = 0;
    ok(fsdp_clock_check(&c, &err) && strstr(err.text, "ranks of a node"), "%s", err.text);
}

/* ---- laws over random clocks ----------------------------------------------------------------- */

enum { NROUNDS = 20000 };

static double draw(double low, double high)
{
    return low * pow(high / low, (double)rand() / RAND_MAX);
}

static struct fsdp_net_clock any_net(void)
{
    struct fsdp_net_clock n = {.node_nranks = 1 << rand() % 4,
                               .node_nbytes_per_s = draw(1e9, 1e12),
                               .nvls_nbytes_per_s = rand() % 2 ? draw(1e9, 1e12) : 0,
                               .nic_nbytes_per_s = draw(1e8, 1e11),
                               .flat_share = draw(.1, 1),
                               .rail_share = draw(.1, 1),
                               .start_s = draw(1e-7, 1e-4),
                               .node_hop_s = draw(1e-7, 1e-4),
                               .net_hop_s = draw(1e-7, 1e-4),
                               .pat_hop_s = draw(1e-7, 1e-4),
                               .node_half_nbytes = rand() % 2 ? draw(1e3, 1e8) : 0,
                               .net_half_nbytes = rand() % 2 ? draw(1e3, 1e8) : 0,
                               .host_nbytes_per_s = draw(1e9, 1e11),
                               .collectives = rand() % 10,
                               .jitter = draw(1e-4, 1e-1)};
    if (rand() % 2) {
        n.tiers[0] = (struct fsdp_tier){1 + rand() % 64, draw(.1, 1)};
        n.tiers[1] =
            (struct fsdp_tier){n.tiers[0].nodes + 1 + rand() % 64, n.tiers[0].factor * draw(.1, 1)};
        n.ntiers = 2;
    }
    return n;
}

static struct fsdp_group any_group(const struct fsdp_net_clock *n)
{
    return fsdp_group_of(n, 2 << rand() % 8, 1 << rand() % 5);
}

static double seconds_of(const struct fsdp_net_clock *n, enum fsdp_collective kind,
                         struct fsdp_group g, double nbytes)
{
    const struct fsdp_transfer t = fsdp_collective_transfer(n, kind, g, nbytes);
    return fsdp_transfer_seconds(&t);
}

static void test_network_laws(void)
{
    bool wider = true, bytes = true, halves = true, ranks = true, nodes = true, slower = true,
         finite = true, all_reduce = true;

    srand(2);
    for (int i = 0; i < NROUNDS; i++) {
        const struct fsdp_net_clock n = any_net();
        const struct fsdp_group g = any_group(&n);
        const enum fsdp_collective kind = (enum fsdp_collective)(rand() % FSDP_NCOLLECTIVES);
        const double nbytes = draw(1, 1e11), before = seconds_of(&n, kind, g, nbytes);
        struct fsdp_net_clock m = n;
        double *const rates[] = {&m.node_nbytes_per_s, &m.nvls_nbytes_per_s, &m.nic_nbytes_per_s,
                                 &m.flat_share,        &m.rail_share,        &m.host_nbytes_per_s};
        double *const delays[] = {&m.start_s,   &m.node_hop_s,       &m.net_hop_s,
                                  &m.pat_hop_s, &m.node_half_nbytes, &m.net_half_nbytes};
        finite &= isfinite(before) && before > 0;
        *rates[rand() % 6] *= draw(1, 10);
        *delays[rand() % 6] *= draw(.1, 1);
        wider &= seconds_of(&m, kind, g, nbytes) <= before * (1 + 1e-12);
        bytes &= seconds_of(&n, kind, g, nbytes * draw(1, 10)) >= before * (1 - 1e-12);
        /* The bytes of two halves take as long as those of the whole. */
        const struct fsdp_transfer whole = fsdp_algorithm_transfer(&n, FSDP_RING, kind, g, nbytes);
        const struct fsdp_transfer half =
            fsdp_algorithm_transfer(&n, FSDP_RING, kind, g, nbytes / 2);
        halves &= near(2 * half.nbytes / half.rate, whole.nbytes / whole.rate) &&
                  near(half.latency_s, whole.latency_s);
        struct fsdp_group more = g;
        more.nranks += g.node_nranks;
        more.nnodes += 1;
        const struct fsdp_transfer longer =
            fsdp_algorithm_transfer(&n, FSDP_RING, kind, more, nbytes);
        /* The half sizes of the node and of the network are drawn apart. */
        ranks &= (g.nnodes == 1 && n.node_half_nbytes > 0) ||
                 fsdp_transfer_seconds(&longer) >= fsdp_transfer_seconds(&whole) * (1 - 1e-12);
        if (g.nnodes == 1) {
            more = g;
            more.nranks = ++more.node_nranks;
            const struct fsdp_transfer wide =
                fsdp_algorithm_transfer(&n, FSDP_RING, kind, more, nbytes);
            nodes &= fsdp_transfer_seconds(&wide) >= fsdp_transfer_seconds(&whole) * (1 - 1e-12);
        }
        all_reduce &= seconds_of(&n, FSDP_ALL_REDUCE, g, nbytes) <=
                          seconds_of(&n, FSDP_ALL_GATHER, g, nbytes) * 2 * (1 + 1e-12) ||
                      g.node_nranks == 1;
        m = n;
        m.slow_rank = draw(1e-3, 1);
        const int nranks = 1 + rand() % 20000;
        slower &= fsdp_jitter_factor(&m, nranks) >= fsdp_jitter_factor(&n, nranks) &&
                  fsdp_jitter_factor(&n, nranks + 1) >= fsdp_jitter_factor(&n, nranks);
    }
    ok(finite, "every collective takes a finite time");
    ok(wider, "more bandwidth and less latency are never slower");
    ok(bytes, "more bytes are never faster");
    ok(halves, "two halves are one whole");
    ok(ranks, "another node never makes a ring faster");
    ok(nodes, "nor another rank in the node");
    ok(all_reduce, "an all-reduce is never slower than a scatter and a gather");
    ok(slower, "a slower rank never helps, nor more ranks");
}

static void test_sharing_laws(void)
{
    bool capacity = true, own = true, stopped = true, one = true, fewer = true;

    srand(3);
    for (int i = 0; i < NROUNDS; i++) {
        const struct fsdp_net_clock n = any_net();
        struct fsdp_transfer t[8];
        const struct fsdp_transfer *at[8];
        double rates[8], less[8];
        const int ntransfers = 1 + rand() % 8;
        for (int k = 0; k < ntransfers; k++) {
            t[k] = rand() % 4
                       ? fsdp_collective_transfer(
                             &n, (enum fsdp_collective)(rand() % FSDP_NCOLLECTIVES), any_group(&n),
                             draw(1, 1e11))
                       : fsdp_host_transfer(&n, rand() % 2 ? FSDP_LINK_UP : FSDP_LINK_DOWN, 1e9);
            at[k] = &t[k];
        }
        fsdp_share_links(rates, &n, at, ntransfers);
        double used[FSDP_NLINKS] = {0};
        for (int k = 0; k < ntransfers; k++) {
            own &= rates[k] > 0 && rates[k] <= t[k].rate * (1 + 1e-9);
            for (int link = 0; link < FSDP_NLINKS; link++)
                used[link] += rates[k] * t[k].load[link];
        }
        for (int link = 0; link < FSDP_NLINKS; link++)
            capacity &= used[link] <= fsdp_link_capacity(&n, (enum fsdp_link)link) * (1 + 1e-9);
        for (int k = 0; k < ntransfers; k++) {
            bool stops = rates[k] >= t[k].rate * (1 - 1e-9);
            for (int link = 0; link < FSDP_NLINKS; link++)
                stops |= t[k].load[link] > 0 &&
                         used[link] >= fsdp_link_capacity(&n, (enum fsdp_link)link) * (1 - 1e-9);
            stopped &= stops;
        }
        fsdp_share_links(less, &n, at, 1);
        one &= near(less[0], t[0].rate);
        /* The slowest of fewer transfers is no slower. */
        double slowest = INFINITY, slowest_of_less = INFINITY;
        fsdp_share_links(less, &n, at, ntransfers - (ntransfers > 1));
        for (int k = 0; k < ntransfers - (ntransfers > 1); k++) {
            slowest = fmin(slowest, rates[k]);
            slowest_of_less = fmin(slowest_of_less, less[k]);
        }
        fewer &= slowest_of_less >= slowest * (1 - 1e-9);
    }
    ok(own, "no transfer is faster than alone, and all move");
    ok(capacity, "no link carries more than it can");
    ok(stopped, "and each is stopped by a link that is full, or by itself");
    ok(one, "alone a transfer has its own rate");
    ok(fewer, "the slowest of fewer transfers is no slower");
}

static void test_device_laws(void)
{
    static const enum fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F8_E4M3};
    bool faster = true, larger = true, halves = true, tables = true;

    srand(4);
    for (int i = 0; i < NROUNDS; i++) {
        struct fsdp_device_clock d = {.flops_16 = draw(1e11, 1e16),
                                      .flops_8 = rand() % 2 ? draw(1e11, 1e16) : 0,
                                      .flops_32 = draw(1e10, 1e15),
                                      .product_share = draw(.1, 1),
                                      .product_share_8 = draw(.1, 1),
                                      .attention_share = draw(.05, 1),
                                      .attention_gradient = draw(.5, 4),
                                      .memory_nbytes_per_s = draw(1e10, 1e13),
                                      .memory_share = draw(.3, 1),
                                      .product_half = rand() % 2 ? draw(1, 1e3) : 0,
                                      .score_nbytes = rand() % 2 ? 14 : 0,
                                      .pointwise = draw(.5, 3)};
        struct fsdp_work w = {.kind = (enum fsdp_work_kind)(rand() % FSDP_WORK_NKINDS),
                              .times = 1 + rand() % 4,
                              .m = draw(1, 1e6),
                              .n = draw(1, 1e5),
                              .k = draw(1, 1e5),
                              .heads = 1 + rand() % 64,
                              .nbytes = draw(1, 1e11),
                              .gradient = rand() % 2,
                              .type = types[rand() % 3]};
        const double before = fsdp_work_seconds(&d, &w);
        struct fsdp_device_clock e = d;
        double *const rates[] = {&e.flops_16,
                                 &e.flops_8,
                                 &e.flops_32,
                                 &e.product_share,
                                 &e.product_share_8,
                                 &e.attention_share,
                                 &e.memory_nbytes_per_s,
                                 &e.memory_share};
        *rates[rand() % 8] *= draw(1, 10);
        faster &= fsdp_work_seconds(&e, &w) <= before * (1 + 1e-12);
        struct fsdp_work v = w;
        double *const sizes[] = {&v.m, &v.n, &v.k, &v.nbytes, &v.times};
        *sizes[rand() % 5] *= draw(1, 10);
        larger &= fsdp_work_seconds(&d, &v) >= before * (1 - 1e-12);
        v = w;
        v.times = w.times / 2;
        halves &= near(2 * fsdp_work_seconds(&d, &v), before);
        v = w;
        v.nbytes /= 2;
        v.m /= 2; /* two halves of a product read its weights twice */
        halves &= 2 * fsdp_work_seconds(&d, &v) >= before * (1 - 1e-12);
        /* A table whose own times grow with the size: between its rows they do, too. */
        struct fsdp_rate rows[6];
        double size = draw(1, 1e3), seconds = draw(1e-6, 1e-3);
        for (int k = 0; k < 6; k++) {
            rows[k] = (struct fsdp_rate){FSDP_F32, size, 0, 0, size / seconds};
            size *= draw(1.5, 10);
            seconds *= draw(1, 10);
        }
        d.copies = (struct fsdp_rates){rows, 6};
        const double nbytes = draw(1, 1e7);
        tables &= fsdp_touch_seconds(&d, nbytes * draw(1, 10)) >=
                  fsdp_touch_seconds(&d, nbytes) * (1 - 1e-12);
    }
    ok(faster, "a faster device is never slower");
    ok(larger, "more work never takes less time");
    ok(halves, "half as often is half the time, and halves of a product are no faster");
    ok(tables, "nor do measured tables make more faster");
}

int main(void)
{
    test_groups();
    test_algorithms();
    test_fits();
    test_collectives();
    test_measured_collectives();
    test_sharing();
    test_device();
    test_rates();
    test_jitter();
    test_check();
    test_network_laws();
    test_sharing_laws();
    test_device_laws();
    return tap_done();
}
