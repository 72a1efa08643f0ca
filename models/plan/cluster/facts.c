/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers behind an answer: stock facts, and what took their place. */
#include <stddef.h>
#include <string.h>

#include "cluster_impl.h"

/* Where the clock has a fact's number now, in the fact's unit, and which factor changes it. */
static const struct now {
    const char *key;
    size_t field; /* of struct fsdp_clock, a double */
    double unit;
    int factor; /* -1: none */
} nows[] = {
#define OF(member) offsetof(struct fsdp_clock, member)
    {"gpu.peak_bf16", OF(device.flops_16), 1e12, -1},
    {"gpu.peak_fp32", OF(device.flops_32), 1e12, -1},
    {"gpu.hbm", OF(device.memory_nbytes_per_s), 1e9, -1},
    {"gpu.product_share", OF(device.product_share), 1, CLUSTER_PRODUCT},
    {"gpu.product_share_fp8", OF(device.product_share_8), 1, CLUSTER_PRODUCT_8},
    {"gpu.attention_share", OF(device.attention_share), 1, CLUSTER_ATTENTION},
    {"gpu.product_half", OF(device.product_half), 1, -1},
    {"gpu.hbm_share", OF(device.memory_share), 1, CLUSTER_MEMORY},
    {"gpu.pcie", OF(net.host_nbytes_per_s), 1e9, CLUSTER_HOST},
    {"gpu.step_ms", OF(device.step_s), 1e-3, CLUSTER_STEP},
    {"node.host_memory", OF(net.host_memory_nbytes_per_s), 1e9, -1},
    {"node.nvlink", OF(net.node_nbytes_per_s), 1e9, CLUSTER_NODE},
    {"node.nvls", OF(net.nvls_nbytes_per_s), 1e9, CLUSTER_NODE},
    {"network.eta_flat", OF(net.flat_share), 1, CLUSTER_FLAT},
    {"network.eta_rail", OF(net.rail_share), 1, CLUSTER_RAIL},
    {"network.start_us", OF(net.start_s), 1e-6, CLUSTER_LATENCY},
    {"network.node_hop_us", OF(net.node_hop_s), 1e-6, CLUSTER_LATENCY},
    {"network.hop_us", OF(net.net_hop_s), 1e-6, CLUSTER_LATENCY},
    {"network.contention", OF(net.contention), 1, CLUSTER_CONTENTION},
    {"network.jitter", OF(net.jitter), 1, -1},
    {"reserved_gib", OF(device.reserved_nbytes), 1e9, -1},
#undef OF
};

/* The table that a fact's number gave way to, as far as its sizes reach. */
static const char *table_instead(const struct cluster *c, const char *key)
{
    if (!strncmp(key, "gpu.product_", 12) && c->clock.device.products.nrates)
        return "measured.gemm, where it has that type";
    if (!strcmp(key, "gpu.attention_share") && c->clock.device.attention.nrates)
        return "measured.sdpa, where it has that type";
    if (!strcmp(key, "gpu.hbm_share") && c->clock.device.copies.nrates)
        return "measured.copy";
    return NULL;
}

static void update(struct stock_fact *fact, const struct cluster *c, const struct now *now)
{
    const struct cluster_raw *raw = &c->impl->raw;
    const double value =
        *(const double *)(const void *)((const char *)&c->clock + now->field) / now->unit;
    const int line = raw->line[cluster_row(now->key)];
    const char *instead = table_instead(c, now->key);

    /* Also where the caller changed the clock. */
    const bool changed = value < fact->value * (1 - 1e-9) || value > fact->value * (1 + 1e-9);
    fact->value = value;
    if (line) {
        fact->origin = STOCK_GIVEN;
        fact->source = line > 0 ? "cluster.yaml" : "command line";
    } else if (changed) {
        fact->origin = STOCK_GIVEN;
        fact->source = "changed";
    }
    enum cluster_number number;
    if (cluster_number_instead(&number, c->impl, now->key)) {
        fact->origin = STOCK_MEASURED;
        fact->source = cluster_number_key(number);
    } else if (now->factor >= 0 && c->factor[now->factor] != 1 &&
               !(now->factor == CLUSTER_FLAT || now->factor == CLUSTER_RAIL ||
                         now->factor == CLUSTER_LATENCY
                     ? raw->other_net
                     : raw->other_gpu)) {
        fact->origin = STOCK_MEASURED;
        fact->source = "measured.factors";
    }
    if (instead) {
        fact->origin = STOCK_MEASURED;
        fact->source = instead;
    }
}

/* What only clusters have. */
static int more_facts(struct stock_fact *out, const struct cluster *c)
{
    static const char runs[] = "Llama 3 405B on 16,384 H100: 419 unexpected stops in 54 days";
    const struct stock_fact facts[] = {
        {"a rank's share of the network cards", c->clock.net.nic_nbytes_per_s * 1e-9, "GB/s",
         c->impl->path ? "cluster.yaml" : "command line", STOCK_GIVEN, "network.cards"},
        {"hours of a GPU between failures", c->gpu_mtbf_h, "h",
         c->mtbf_given ? "cluster.yaml" : runs, c->mtbf_given ? STOCK_GIVEN : STOCK_MEASURED,
         "reliability.gpu_mtbf_h"},
        {"power per GPU with its share of the node", c->watts, "W",
         c->watts_given ? "cluster.yaml" : "1.5 times the GPU's",
         c->watts_given ? STOCK_GIVEN : STOCK_ASSUMED, "watts_per_gpu"},
        {"power of the site over that of its machines", c->pue, "",
         c->pue_given ? "cluster.yaml" : "no source", c->pue_given ? STOCK_GIVEN : STOCK_ASSUMED,
         "pue"},
    };
    memcpy(out, facts, sizeof facts);
    return sizeof facts / sizeof facts[0];
}

int cluster_facts(struct stock_fact *out, int max, const struct cluster *cluster)
{
    enum { MOST = 64 };
    struct stock_fact facts[MOST];
    int n = stock_facts(facts, MOST - 8, cluster->gpu);

    for (int i = 0; i < n; i++)
        for (size_t k = 0; facts[i].key && k < sizeof nows / sizeof nows[0]; k++)
            if (!strcmp(facts[i].key, nows[k].key))
                update(&facts[i], cluster, &nows[k]);
    n += more_facts(facts + n, cluster);
    memcpy(out, facts, (size_t)(n < max ? n : max) * sizeof *out);
    return n;
}
