/* SPDX-License-Identifier: Apache-2.0 */
/* From settings to a clock and the rest: stock numbers, what was given in their place, factors. */
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "cluster_impl.h"

static const double gib = 1024.0 * 1024 * 1024;

/* What the clock has instead of the stock number, where a key gives it. */
static const struct {
    const char *key;
    size_t field; /* of struct fsdp_clock, a double */
    double scale;
} numbers[] = {
#define OF(member) offsetof(struct fsdp_clock, member)
    {"gpu.peak_bf16", OF(device.flops_16), 1},
    {"gpu.peak_fp8", OF(device.flops_8), 1},
    {"gpu.peak_fp32", OF(device.flops_32), 1},
    {"gpu.hbm", OF(device.memory_nbytes_per_s), 1},
    {"gpu.memory_gib", OF(device.memory_nbytes), 1024.0 * 1024 * 1024},
    {"gpu.watts", OF(device.watts), 1},
    {"gpu.pcie", OF(net.host_nbytes_per_s), 1},
    {"gpu.product_share", OF(device.product_share), 1},
    {"gpu.product_share_fp8", OF(device.product_share_8), 1},
    {"gpu.product_half", OF(device.product_half), 1},
    {"gpu.attention_share", OF(device.attention_share), 1},
    {"gpu.hbm_share", OF(device.memory_share), 1},
    {"gpu.pointwise", OF(device.pointwise), 1},
    {"gpu.launch_us", OF(device.launch_s), 1e-6},
    {"gpu.step_ms", OF(device.step_s), 1e-3},
    {"node.host_memory", OF(net.host_memory_nbytes_per_s), 1},
    {"node.nvlink", OF(net.node_nbytes_per_s), 1},
    {"node.nvls", OF(net.nvls_nbytes_per_s), 1},
    {"network.eta_flat", OF(net.flat_share), 1},
    {"network.eta_rail", OF(net.rail_share), 1},
    {"network.start_us", OF(net.start_s), 1e-6},
    {"network.node_hop_us", OF(net.node_hop_s), 1e-6},
    {"network.hop_us", OF(net.net_hop_s), 1e-6},
    {"network.pat_hop_us", OF(net.pat_hop_s), 1e-6},
    {"network.node_half_mib", OF(net.node_half_nbytes), 1024.0 * 1024},
    {"network.half_mib", OF(net.net_half_nbytes), 1024.0 * 1024},
    {"network.contention", OF(net.contention), 1},
    {"network.jitter", OF(net.jitter), 1},
    {"network.collectives", OF(net.collectives), 1},
    {"reserved_gib", OF(device.reserved_nbytes), 1024.0 * 1024 * 1024},
#undef OF
};

/* What does not fit is cut. */
static void copy_text(char *out, size_t out_nbytes, const char *text)
{
    const size_t len = strnlen(text, out_nbytes - 1);

    memcpy(out, text, len);
    out[len] = 0;
}

static bool is_given(double x)
{
    return x != CLUSTER_AUTO;
}

/* A GPU described by its own numbers has, in the rest, those of the H100. */
static const char *stock_word(const struct cluster_raw *raw)
{
    const bool own =
        is_given(raw->gpu.peak_bf16) && is_given(raw->gpu.hbm) && is_given(raw->gpu.memory_gib);
    return raw->gpu.like[0] ? raw->gpu.like : own ? "h100" : NULL;
}

static bool is_cpu(const struct cluster_raw *raw)
{
    const char *word = stock_word(raw);
    return word && !strcasecmp(word, "cpu");
}

static bool has_no_network(const struct cluster_raw *raw)
{
    return !strcasecmp(raw->network.cards, "none") ||
           (!raw->network.cards[0] && !is_given(raw->node.nic));
}

/* What has no stock number must be given, once. */
static int check_given(const struct cluster_impl *impl, struct fsdp_err *err)
{
    const struct cluster_raw *raw = &impl->raw;

    if (!stock_word(raw))
        return cluster_refuse(impl, "gpu.like", err,
                              "must be given, such as 'gpu: h100'; or gpu.peak_bf16, gpu.hbm and "
                              "gpu.memory_gib");
    if (raw->node.gpus < 1)
        return cluster_refuse(impl, "node.gpus", err,
                              "must be given: the GPUs of a node, such as 8");
    if (raw->network.cards[0] && is_given(raw->node.nic))
        return cluster_refuse(impl, "node.nic", err,
                              "is given, and network.cards, too; leave out one of them");
    if (!raw->network.cards[0] && !is_given(raw->node.nic) && !is_cpu(raw))
        return cluster_refuse(
            impl, "network.cards", err,
            "must be given, such as 'network: 400Gbx8' (eight cards of 400 Gbit/s "
            "in a node); none where there is one node; or node.nic");
    return FSDP_OK;
}

static int check_sizes(const struct cluster_impl *impl, struct fsdp_err *err)
{
    const struct cluster_raw *raw = &impl->raw;
    const long long node = raw->node.gpus, all = raw->gpus;

    for (int i = 0; i < raw->network.ntiers; i++)
        if (!raw->network.tiers[i].nodes || !(raw->network.tiers[i].factor > 0))
            return cluster_refuse(
                impl, "network.tiers", err,
                "an element has nodes and factor, such as {nodes: 32, factor: 0.9}");
    if (all > node && all % node)
        return cluster_refuse(impl, "gpus", err,
                              "%lld GPUs are no whole number of nodes of %lld; give a multiple, or "
                              "change node.gpus",
                              all, node);
    if (all > node && has_no_network(raw))
        return cluster_refuse(impl, "gpus", err,
                              "%lld GPUs are %lld nodes, and network.cards says that there is no "
                              "network between them",
                              all, all / node);
    if (strlen(raw->currency) >= sizeof((struct cluster *)0)->currency)
        return cluster_refuse(impl, "currency", err, "'%.20s' is longer than %zu bytes",
                              raw->currency, sizeof((struct cluster *)0)->currency - 1);
    return FSDP_OK;
}

/* Between the pairs a straight line, beyond them the nearest. */
static double contention_at(const struct cluster_raw *raw)
{
    const double(*pair)[2] = raw->measured.pairs;
    const int n = raw->measured.npairs;
    const double ctas = raw->network.ctas > 0 ? (double)raw->network.ctas : INFINITY;

    if (!n)
        return raw->measured.number[CLUSTER_MEASURED_CONTENTION];
    if (ctas <= pair[0][0])
        return pair[0][1];
    for (int i = 1; i < n; i++)
        if (ctas < pair[i][0])
            return pair[i - 1][1] + (pair[i][1] - pair[i - 1][1]) * (ctas - pair[i - 1][0]) /
                                        (pair[i][0] - pair[i - 1][0]);
    return pair[n - 1][1];
}

static void apply_numbers(struct fsdp_clock *clock, const struct cluster_raw *raw)
{
    const double *number = raw->measured.number;

    if (raw->other_gpu)
        return;
    if (is_given(contention_at(raw)))
        clock->net.contention = contention_at(raw);
    if (is_given(number[CLUSTER_MEASURED_JITTER]))
        clock->net.jitter = number[CLUSTER_MEASURED_JITTER];
    if (is_given(number[CLUSTER_MEASURED_STEP_MS]))
        clock->device.step_s = number[CLUSTER_MEASURED_STEP_MS] * 1e-3;
    if (is_given(number[CLUSTER_MEASURED_HOST]))
        clock->net.host_nbytes_per_s = number[CLUSTER_MEASURED_HOST];
    if (is_given(number[CLUSTER_MEASURED_HOST_MEMORY]))
        clock->net.host_memory_nbytes_per_s = number[CLUSTER_MEASURED_HOST_MEMORY];
}

static void apply_factors(struct fsdp_clock *clock, const struct cluster_raw *raw)
{
    const double *f = raw->measured.factor;
    struct fsdp_device_clock *d = &clock->device;
    struct fsdp_net_clock *net = &clock->net;

    if (!raw->other_gpu) {
        d->product_share /= f[CLUSTER_PRODUCT];
        d->product_share_8 /= f[CLUSTER_PRODUCT_8];
        d->attention_share /= f[CLUSTER_ATTENTION];
        d->memory_share /= f[CLUSTER_MEMORY];
        d->step_s *= f[CLUSTER_STEP];
        net->node_nbytes_per_s /= f[CLUSTER_NODE];
        net->nvls_nbytes_per_s /= f[CLUSTER_NODE];
        net->host_nbytes_per_s /= f[CLUSTER_HOST];
        net->contention *= f[CLUSTER_CONTENTION];
    }
    if (!raw->other_net) {
        net->flat_share /= f[CLUSTER_FLAT];
        net->rail_share /= f[CLUSTER_RAIL];
        net->start_s *= f[CLUSTER_LATENCY];
        net->node_hop_s *= f[CLUSTER_LATENCY];
        net->net_hop_s *= f[CLUSTER_LATENCY];
        net->pat_hop_s *= f[CLUSTER_LATENCY];
    }
}

static double machine_nbytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (double)pages * (double)page : 0;
}

static int derive_clock(struct fsdp_clock *clock, struct cluster_impl *impl, struct fsdp_err *err)
{
    const struct cluster_raw *raw = &impl->raw;
    const char *word = stock_word(raw);
    const int node = (int)raw->node.gpus;
    char where[FSDP_TUNABLE_STRING_NBYTES + 128];
    int rc;

    rc = stock_device(&clock->device, word, err);
    if (rc == FSDP_OK)
        clock->device.memory_nbytes += is_cpu(raw) ? machine_nbytes() / node : 0;
    if (rc)
        return fsdp_err_prefix(err, rc,
                               "%s: ", cluster_place(where, sizeof where, impl, "gpu.like"));
    rc = stock_network(&clock->net, word, raw->network.cards, node, err);
    if (rc)
        return fsdp_err_prefix(err, rc,
                               "%s: ", cluster_place(where, sizeof where, impl, "network.cards"));
    if (is_given(raw->node.nic))
        clock->net.nic_nbytes_per_s =
            raw->node.nic * (double)(raw->node.nics > 0 ? raw->node.nics : node) / node;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const double x = cluster_number(raw, numbers[i].key);
        if (is_given(x))
            *(double *)(void *)((char *)clock + numbers[i].field) = x * numbers[i].scale;
    }
    if (raw->gpu.sms > 0)
        clock->device.nsms = (int)raw->gpu.sms;
    copy_text(clock->device.name, sizeof clock->device.name,
              raw->gpu.name[0] ? raw->gpu.name : word);
    apply_numbers(clock, raw);
    clock->net.ntiers = raw->network.ntiers;
    memcpy(clock->net.tiers, raw->network.tiers, sizeof clock->net.tiers);
    apply_factors(clock, raw);
    return fsdp_clock_check(clock, err);
}

static enum cluster_basis basis_of(const struct cluster *c)
{
    const struct cluster_raw *raw = &c->impl->raw;

    if (c->clock.device.products.nrates || c->clock.net.nmeasured)
        return CLUSTER_MEASURED;
    for (int i = 0; i < CLUSTER_NFACTORS; i++)
        if (raw->measured.factor[i] != 1 && !raw->other_gpu)
            return CLUSTER_CALIBRATED;
    if (is_given(raw->measured.number[CLUSTER_MEASURED_STEP_MS]) && !raw->other_gpu)
        return CLUSTER_CALIBRATED;
    return CLUSTER_STOCK;
}

static double scatter_of(const struct cluster_raw *raw)
{
    const double given = raw->measured.number[CLUSTER_MEASURED_SCATTER];

    return is_given(given) && !raw->other_gpu ? given : 0;
}

static double or_else(double x, double other)
{
    return is_given(x) ? x : other;
}

/* Meta's 54 days of Llama 3 405B on 16,384 H100: 419 unexpected stops (Llama team, "The Llama 3
 * herd of models", arXiv 2407.21783, section 3.3.4). */
static const double assumed_mtbf_h = 50700, assumed_pue = 1.25, assumed_node = 1.5;

static void derive_rest(struct cluster *c)
{
    const struct cluster_raw *raw = &c->impl->raw;
    const double machine = is_cpu(raw) ? machine_nbytes() : 0;

    copy_text(c->gpu, sizeof c->gpu, stock_word(raw));
    copy_text(c->net, sizeof c->net,
              is_given(raw->node.nic) ? ""
              : raw->network.cards[0] ? raw->network.cards
                                      : "none");
    c->node_ngpus = (int)raw->node.gpus;
    c->ngpus = raw->gpus > 0 ? (int)raw->gpus : 0;
    c->host_nbytes = or_else(raw->node.host_gib, machine / gib) * gib;
    c->nvme_nbytes_per_s = or_else(raw->node.nvme, 0);
    c->nvme_nbytes = or_else(raw->node.nvme_gib, 0) * gib;
    c->clock.net.file_nbytes_per_s = c->nvme_nbytes_per_s / raw->node.gpus;
    c->storage_nbytes_per_s = or_else(raw->reliability.storage, 0);
    c->mtbf_given = is_given(raw->reliability.gpu_mtbf_h);
    c->gpu_mtbf_h = or_else(raw->reliability.gpu_mtbf_h, assumed_mtbf_h);
    c->restart_given = is_given(raw->reliability.restart_s);
    c->restart_s = or_else(raw->reliability.restart_s, 0);
    c->requeue_s = raw->reliability.requeue_s;
    c->price_given = is_given(raw->price_per_gpu_hour);
    c->price_per_gpu_hour = or_else(raw->price_per_gpu_hour, 0);
    c->watts_given = is_given(raw->watts_per_gpu);
    c->watts = or_else(raw->watts_per_gpu, c->clock.device.watts * assumed_node);
    c->pue_given = is_given(raw->pue);
    c->pue = or_else(raw->pue, assumed_pue);
    copy_text(c->currency, sizeof c->currency, raw->currency);
    for (int i = 0; i < CLUSTER_NFACTORS; i++)
        c->factor[i] = raw->measured.factor[i];
    c->scatter = scatter_of(raw);
    c->path = c->impl->path ? c->impl->path : "";
}

int cluster_derive(struct cluster *cluster, struct fsdp_err *err)
{
    struct cluster next = {.impl = cluster->impl};

    FSDP_TRY(check_given(cluster->impl, err));
    FSDP_TRY(check_sizes(cluster->impl, err));
    FSDP_TRY(derive_clock(&next.clock, cluster->impl, err));
    next.clock.ntokens = cluster->clock.ntokens;
    next.clock.net.slow_rank = cluster->clock.net.slow_rank;
    derive_rest(&next);
    FSDP_TRY(cluster_scale(&next.clock, cluster->impl, err));
    next.basis = basis_of(&next);
    *cluster = next;
    return FSDP_OK;
}
