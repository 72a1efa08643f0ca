/* SPDX-License-Identifier: Apache-2.0 */
/* The network's side of the clock: latency and rate of collectives, by algorithm. */
#include <math.h>

#include "rates.h"

const char *fsdp_link_name(enum fsdp_link link)
{
    static const char *const names[FSDP_NLINKS] = {"node", "NIC", "from host", "to host"};
    return names[link];
}

const char *fsdp_algorithm_name(enum fsdp_algorithm algorithm)
{
    static const char *const names[FSDP_NALGORITHMS] = {"ring", "tree", "NVLS", "PAT"};
    return names[algorithm];
}

/* Ranks lie node after node, and a group's are `stride` apart. */
struct fsdp_group fsdp_group_of(const struct fsdp_net_clock *net, int nranks, int stride)
{
    const int node = net->node_nranks > 0 ? net->node_nranks : nranks * stride;
    int on_node = stride >= node ? 1 : node / stride;

    if (on_node > nranks)
        on_node = nranks;
    return (struct fsdp_group){
        .nranks = nranks, .nnodes = (nranks + on_node - 1) / on_node, .node_nranks = on_node};
}

static double tier_factor(const struct fsdp_net_clock *net, int nnodes)
{
    double factor = 1;
    int from = 0;

    for (int i = 0; i < net->ntiers; i++)
        if (nnodes >= net->tiers[i].nodes && net->tiers[i].nodes >= from) {
            from = net->tiers[i].nodes;
            factor = net->tiers[i].factor;
        }
    return factor;
}

double fsdp_link_capacity(const struct fsdp_net_clock *net, enum fsdp_link link)
{
    switch (link) {
    case FSDP_LINK_NODE:
        return net->node_nbytes_per_s;
    case FSDP_LINK_NIC:
        return net->nic_nbytes_per_s * net->node_nranks;
    default:
        return net->host_nbytes_per_s;
    }
}

static double least_of(double a, double b)
{
    return a < b ? a : b;
}

/* Share of the cards that a ring over whole nodes reaches. Measured: 365 of 400 GB/s over 4 nodes
 * (EFA, H200), 200 of 400 over 32 (NVIDIA/nccl issue 1218). */
static double flat_share(const struct fsdp_net_clock *net, int nnodes)
{
    const double most = .92, n = nnodes < FSDP_FLAT_MOST_NODES ? nnodes : FSDP_FLAT_MOST_NODES;
    const double share = net->flat_share * pow(FSDP_FLAT_NODES / n, net->flat_fall);

    if (!(net->flat_fall > 0) || net->flat_share > most)
        return net->flat_share;
    return share < most ? share : most;
}

/* What a group's ring, tree or PAT reaches on the cards: each node has as many groups at work as
 * its ranks allow, and they share them. */
static double net_rate(const struct fsdp_net_clock *net, struct fsdp_group g)
{
    const double share = g.node_nranks > 1 ? flat_share(net, g.nnodes) : net->rail_share;
    const double factor = tier_factor(net, g.nnodes);
    return net->nic_nbytes_per_s * g.node_nranks * share * factor;
}

/* A ring of n ranks makes n - 1 steps, of which N - 1 leave a node; an all-reduce goes round
 * twice. A step of a ring or PAT takes a hop. */
static double ring_latency(const struct fsdp_net_clock *net, struct fsdp_group g)
{
    return net->node_hop_s * (g.nranks - g.nnodes) + net->net_hop_s * (g.nnodes - 1);
}

/* Over the network a byte that a rank receives in a ring passes the node's cards once for the whole
 * ring, as many rings as the node has groups. What the cards do not reach counts as load, too: so
 * that groups together get no more than they would reach. */
static void load_links(struct fsdp_transfer *t, const struct fsdp_net_clock *net,
                       struct fsdp_group g)
{
    if (g.node_nranks > 1)
        t->load[FSDP_LINK_NODE] = 1;
    if (g.nnodes > 1) {
        const double groups = (double)net->node_nranks / g.node_nranks;
        const double reached = net_rate(net, g) / (net->nic_nbytes_per_s * g.node_nranks);
        t->load[FSDP_LINK_NIC] = reached > 0 ? groups / reached : groups;
        t->nic_share = reached > 0 ? reached : 1;
    }
}

static bool algorithm_fits(const struct fsdp_net_clock *net, enum fsdp_algorithm algorithm,
                           enum fsdp_collective kind, struct fsdp_group g)
{
    switch (algorithm) {
    case FSDP_RING:
        return true;
    case FSDP_TREE:
        return kind == FSDP_ALL_REDUCE && g.nnodes > 1;
    case FSDP_NVLS:
        return kind == FSDP_ALL_REDUCE && g.nnodes == 1 && g.nranks > 4 &&
               net->nvls_nbytes_per_s > 0;
    default:
        return kind != FSDP_ALL_REDUCE && g.nnodes > 1 && g.node_nranks == 1;
    }
}

struct fsdp_transfer fsdp_algorithm_transfer(const struct fsdp_net_clock *net,
                                             enum fsdp_algorithm algorithm,
                                             enum fsdp_collective kind, struct fsdp_group g,
                                             double nbytes)
{
    const double n = g.nranks, passes = kind == FSDP_ALL_REDUCE ? 2 : 1;
    const double others = nbytes * (n - 1) / n;
    struct fsdp_transfer t = {.algorithm = algorithm, .latency_s = net->start_s};

    if (g.nranks < 2) {
        t.latency_s = 0;
        t.rate = INFINITY;
        return t;
    }
    if (!algorithm_fits(net, algorithm, kind, g))
        return t;
    t.nbytes = passes * others;
    t.rate = g.node_nranks > 1 || g.nnodes == 1 ? net->node_nbytes_per_s : INFINITY;
    if (g.nnodes > 1)
        t.rate = least_of(t.rate, net_rate(net, g));
    switch (algorithm) {
    case FSDP_RING:
        t.latency_s += passes * ring_latency(net, g);
        break;
    case FSDP_TREE: /* up and down, over the nodes; inside a node a chain */
        t.latency_s +=
            2 * (ceil(log2(g.nnodes)) * net->net_hop_s + (g.node_nranks - 1) * net->node_hop_s);
        break;
    case FSDP_NVLS:
        t.rate = net->nvls_nbytes_per_s;
        t.latency_s += 2 * net->node_hop_s;
        break;
    default:
        t.latency_s += (ceil(log2(g.nnodes)) + .7 * g.nnodes) * net->pat_hop_s;
        break;
    }
    load_links(&t, net, g);
    if (algorithm == FSDP_NVLS) /* switches add: a link carries each byte once */
        t.load[FSDP_LINK_NODE] = net->node_nbytes_per_s / net->nvls_nbytes_per_s;
    const double half = g.nnodes > 1 ? net->net_half_nbytes : net->node_half_nbytes;
    t.latency_s += passes * half / t.rate;
    return t;
}

/* Where it was measured, that counts: no faster than the rate of its links, the rest latency. */
static struct fsdp_transfer measured_transfer(struct fsdp_transfer t, double seconds)
{
    const double carried = t.rate > 0 && isfinite(t.rate) ? t.nbytes / t.rate : 0;

    if (carried <= seconds) {
        t.latency_s = seconds - carried;
    } else {
        t.latency_s = 0;
        for (int link = 0; link < FSDP_NLINKS; link++)
            t.load[link] *= seconds / carried;
        t.rate = seconds > 0 ? t.nbytes / seconds : INFINITY;
    }
    return t;
}

struct fsdp_transfer fsdp_collective_transfer(const struct fsdp_net_clock *net,
                                              enum fsdp_collective kind, struct fsdp_group group,
                                              double nbytes)
{
    struct fsdp_transfer best = {.latency_s = INFINITY};
    const double seconds = group.nranks > 1 ? rates_collective(net, kind, group, nbytes) : -1;
    const double several = net->collectives > 1 ? net->collectives : 1;

    for (int a = 0; a < FSDP_NALGORITHMS; a++) {
        const struct fsdp_transfer t =
            fsdp_algorithm_transfer(net, (enum fsdp_algorithm)a, kind, group, nbytes);
        if (t.rate > 0 && fsdp_transfer_seconds(&t) < fsdp_transfer_seconds(&best))
            best = t;
    }
    if (seconds >= 0)
        return measured_transfer(best, seconds);
    best.latency_s *= several;
    return best;
}

struct fsdp_transfer fsdp_host_transfer(const struct fsdp_net_clock *net, enum fsdp_link direction,
                                        double nbytes)
{
    struct fsdp_transfer t = {
        .latency_s = net->start_s, .nbytes = nbytes, .rate = net->host_nbytes_per_s};
    t.load[direction] = 1;
    return t;
}

double fsdp_transfer_seconds(const struct fsdp_transfer *t)
{
    if (!(t->nbytes > 0))
        return t->latency_s;
    return t->latency_s + (t->rate > 0 ? t->nbytes / t->rate : INFINITY);
}

/* Blom's first term for the largest of n normal values. */
double fsdp_jitter_factor(const struct fsdp_net_clock *net, int nranks)
{
    const double slowest = nranks > 1 ? net->jitter * sqrt(2 * log(nranks)) : 0;
    return (1 + slowest) * (1 + net->slow_rank);
}

/* Water-filling: the rates of all that are not at a limit rise together; where a link is full, or a
 * transfer at its own rate, those are fixed. */
void fsdp_share_links(double *rates, const struct fsdp_net_clock *net,
                      const struct fsdp_transfer *const *transfers, int ntransfers)
{
    enum { MOST = 16 };
    bool fixed[MOST] = {false};
    double left[FSDP_NLINKS];
    int open = ntransfers < MOST ? ntransfers : MOST;
    const int count = open;

    for (int link = 0; link < FSDP_NLINKS; link++)
        left[link] = fsdp_link_capacity(net, (enum fsdp_link)link);
    while (open > 0) {
        double level = INFINITY;
        for (int link = 0; link < FSDP_NLINKS; link++) {
            double load = 0;
            for (int i = 0; i < count; i++)
                load += fixed[i] ? 0 : transfers[i]->load[link];
            if (load > 0)
                level = least_of(level, left[link] / load);
        }
        for (int i = 0; i < count; i++)
            if (!fixed[i])
                level = least_of(level, transfers[i]->rate);
        /* Fix those that this level stops: at their own rate, or on a link that it fills. */
        bool full[FSDP_NLINKS] = {false};
        for (int link = 0; link < FSDP_NLINKS; link++) {
            double load = 0;
            for (int i = 0; i < count; i++)
                load += fixed[i] ? 0 : transfers[i]->load[link];
            full[link] = load > 0 && load * level >= left[link] * (1 - 1e-12);
        }
        int before = open;
        for (int i = 0; i < count; i++) {
            bool stops = transfers[i]->rate <= level * (1 + 1e-12);
            for (int link = 0; link < FSDP_NLINKS; link++)
                stops |= full[link] && transfers[i]->load[link] > 0;
            if (fixed[i] || !stops)
                continue;
            fixed[i] = true;
            rates[i] = level;
            open--;
            for (int link = 0; link < FSDP_NLINKS; link++)
                left[link] -= level * transfers[i]->load[link];
        }
        for (int link = 0; link < FSDP_NLINKS; link++)
            left[link] = left[link] > 0 ? left[link] : 0;
        if (open == before) /* nothing stops them: no link carries them */
            for (int i = 0; i < count; i++)
                if (!fixed[i]) {
                    fixed[i] = true;
                    rates[i] = transfers[i]->rate;
                    open--;
                }
    }
}
