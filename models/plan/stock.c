/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "gpus.h"
#include "stock.h"

#define RUNS "fitted to published runs (docs/results/plan.md)"
#define ATTENTION                                                                                  \
    "within what FlashAttention-2 and 3 publish (arXiv 2307.08691: 50 to 73 % of A100; "           \
    "2407.08608: "                                                                                 \
    "up to 75 % of H100)"
#define NONE "no run identifies it"
#define NCCL_TESTS "nccl-tests, published for H100 and A100 nodes of 8"

/* What is not on a data sheet. Shares are of the peak of 16-bit products. */
static const struct stock_gpu {
    const char *word, *gpu; /* gpu: name in the table of peaks */
    double product_share, product_share_8, attention_share;
    double node_gbs, nvls_gbs;   /* 1e9 bytes/s of a rank; in the switches */
    double host_gbs, memory_gbs; /* memory: a rank's share of the host's, two sockets for 8 */
    double watts;
    int nsms;
    enum stock_origin origin; /* of the shares */
    enum stock_origin node_origin;
} gpus[] = {
    /*                              products  fp8   attn  node nvls host mem  W    SMs */
    {"a100", "A100", 0.821, 0, 0.56, 235, 0, 22, 30, 400, 108, STOCK_FITTED, STOCK_MEASURED},
    {"a100-40", "A100-SXM4-40GB", 0.821, 0, 0.56, 235, 0, 22, 30, 400, 108, STOCK_FITTED,
     STOCK_MEASURED},
    {"h100", "H100", 0.692, 0.668, 0.65, 361, 480, 50, 45, 700, 132, STOCK_FITTED, STOCK_MEASURED},
    {"h100-500w", "H100 HBM2e", 0.572, 0.552, 0.54, 361, 480, 50, 45, 500, 132, STOCK_FITTED,
     STOCK_MEASURED},
    {"h200", "H200", 0.692, 0.668, 0.65, 361, 480, 50, 45, 700, 132, STOCK_ASSUMED, STOCK_MEASURED},
    {"gh200", "GH200", 0.692, 0.668, 0.65, 361, 480, 360, 300, 700, 132, STOCK_ASSUMED,
     STOCK_ASSUMED},
    {"b200", "B200", 0.69, 0.63, 0.60, 720, 900, 50, 55, 1000, 148, STOCK_ASSUMED, STOCK_ASSUMED},
    {"cpu", NULL, 0.7, 0, 0.2, 5, 0, 10, 10, 100, 0, STOCK_ASSUMED, STOCK_ASSUMED},
};
/* A rank's share of a machine, to be measured. Its memory is the machine's. */
static const struct gpu_peak cpu_peak = {
    .name = "CPU", .tf32 = 0.1, .bandwidth_gbs = 10, .source = "fsdp-plan --measure replaces it"};
enum { NGPUS = sizeof gpus / sizeof gpus[0] };

/* The same for all. */
static const struct {
    double product_half, attention_gradient, memory_share, pointwise, step_s;
    double flat_share, flat_fall, rail_share, start_s, node_hop_s, net_hop_s, pat_hop_s;
    double node_half_nbytes, net_half_nbytes, contention, jitter, reserved_nbytes;
} common = {
    .product_half = 3.2,
    .attention_gradient = 1.15,
    .memory_share = 0.92,
    .pointwise = 1,
    .step_s = 0.002,
    .flat_share = 0.57,
    .flat_fall = 0.1,
    .rail_share = 0.85,
    .start_s = 8.4e-6,
    .node_hop_s = 3.4e-6,
    .net_hop_s = 14e-6,
    .pat_hop_s = 4e-6,
    .node_half_nbytes = 0,
    .net_half_nbytes = 0,
    .contention = 0.6,
    .jitter = 0.0025,
    .reserved_nbytes = 2.5e9,
};

const char *stock_origin_name(enum stock_origin origin)
{
    static const char *const names[] = {"data sheet", "measured", "fitted", "assumed", "given"};
    return names[origin];
}

static const struct stock_gpu *find_gpu(const char *word)
{
    for (int i = 0; i < NGPUS; i++)
        if (!strcasecmp(gpus[i].word, word))
            return &gpus[i];
    return NULL;
}

const char *stock_word_of(const char *model)
{
    const struct gpu_peak *peak = gpu_find(model);

    for (int i = 0; peak && i < NGPUS; i++)
        if (gpus[i].gpu && gpu_find(gpus[i].gpu) == peak)
            return gpus[i].word;
    return NULL;
}

const char *stock_target(const char *word)
{
    static const struct {
        const char *begin, *target;
    } targets[] = {{"cpu", "cpu"}, {"a100", "sm_80"}, {"b200", "sm_100"}};

    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++)
        if (!strncasecmp(word, targets[i].begin, strlen(targets[i].begin)))
            return targets[i].target;
    return "sm_90";
}

bool stock_is_assumed(const char *word)
{
    const struct stock_gpu *g = find_gpu(word);
    return !g || g->origin == STOCK_ASSUMED;
}

static const struct gpu_peak *peak_of(const struct stock_gpu *g)
{
    return g->gpu ? gpu_find(g->gpu) : &cpu_peak;
}

static int unknown(const char *word, struct fsdp_err *err)
{
    char known[200] = "";
    const char *near = NULL;
    int distance = 3;

    for (int i = 0; i < NGPUS; i++) {
        const size_t len = strlen(known);
        const int d = fsdp_text_distance(word, gpus[i].word);
        if (d < distance) {
            near = gpus[i].word;
            distance = d;
        }
        snprintf(known + len, sizeof known - len, "%s%s", i ? ", " : "", gpus[i].word);
    }
    return fsdp_err_set(err, FSDP_ENOTFOUND, "GPU '%.60s' is not known%s%s%s; known are %s", word,
                        near ? "; did you mean " : "", near ? near : "", near ? "?" : "", known);
}

int stock_device(struct fsdp_device_clock *out, const char *word, struct fsdp_err *err)
{
    const struct stock_gpu *g = find_gpu(word);

    if (!g)
        return unknown(word, err);
    const struct gpu_peak *peak = peak_of(g);
    *out = (struct fsdp_device_clock){
        .flops_16 = peak->bf16 * 1e12,
        .flops_8 = peak->f8 * 1e12,
        .flops_32 = peak->tf32 * 1e12,
        .product_share = g->product_share,
        .product_share_8 = g->product_share_8,
        .product_half = common.product_half,
        .attention_share = g->attention_share,
        .attention_gradient = common.attention_gradient,
        .memory_nbytes_per_s = peak->bandwidth_gbs * 1e9,
        .memory_share = common.memory_share,
        .pointwise = common.pointwise,
        .step_s = common.step_s,
        .memory_nbytes = peak->memory_gb * 1e9,
        .reserved_nbytes = g->gpu ? common.reserved_nbytes : 0,
        .watts = g->watts,
        .nsms = g->nsms,
        .serial = !g->gpu,
    };
    snprintf(out->name, sizeof out->name, "%s", g->word);
    return FSDP_OK;
}

/* "400Gbx8": bytes/s of each of so many cards. */
static int parse_cards(double *card, int *ncards, const char *word, struct fsdp_err *err)
{
    char *end;
    double gbits;
    long n;

    for (const char *const *kind = (const char *const[]){"ib", "roce", "efa", NULL}; *kind; kind++)
        if (!strncasecmp(word, *kind, strlen(*kind))) {
            word += strlen(*kind);
            word += *word == ':' || *word == '-';
            break;
        }
    gbits = strtod(word, &end);
    if (end == word || !(gbits > 0) || gbits > 1e5 || strncasecmp(end, "Gb", 2) != 0)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "network '%s': write the cards of a node, such as 400Gbx8 (8 of 400 "
                            "Gbit/s), or none",
                            word);
    end += 2;
    end += !strncasecmp(end, "it", 2) ? 2 : 0;
    n = 1;
    if (*end == 'x' || *end == 'X') {
        char *digits = end + 1;
        n = strtol(digits, &end, 10);
        if (end == digits)
            n = 0;
    }
    if (*end || n < 1 || n > 64)
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "network '%s': after Gb comes x and the number of cards of a node, 1 to "
            "64, such as 400Gbx8",
            word);
    *card = gbits * 1e9 / 8;
    *ncards = (int)n;
    return FSDP_OK;
}

int stock_network(struct fsdp_net_clock *out, const char *device_word, const char *net_word,
                  int node_nranks, struct fsdp_err *err)
{
    const struct stock_gpu *g = find_gpu(device_word);
    double card = 50e9;
    int ncards = node_nranks;

    if (!g)
        return unknown(device_word, err);
    if (node_nranks < 1)
        return fsdp_err_set(err, FSDP_EINVAL, "nodes of %d GPUs: at least 1", node_nranks);
    if (net_word && *net_word && strcasecmp(net_word, "none") != 0)
        FSDP_TRY(parse_cards(&card, &ncards, net_word, err));
    *out = (struct fsdp_net_clock){
        .node_nranks = node_nranks,
        .node_nbytes_per_s = g->node_gbs * 1e9,
        .nvls_nbytes_per_s = g->nvls_gbs * 1e9,
        .nic_nbytes_per_s = card * ncards / node_nranks,
        .flat_share = common.flat_share,
        .flat_fall = common.flat_fall,
        .rail_share = common.rail_share,
        .start_s = common.start_s,
        .node_hop_s = common.node_hop_s,
        .net_hop_s = common.net_hop_s,
        .pat_hop_s = common.pat_hop_s,
        .node_half_nbytes = common.node_half_nbytes,
        .net_half_nbytes = common.net_half_nbytes,
        .host_nbytes_per_s = g->host_gbs * 1e9,
        .host_memory_nbytes_per_s = g->memory_gbs * 1e9,
        .contention = g->gpu ? common.contention : 0,
        .jitter = common.jitter,
    };
    return FSDP_OK;
}

int stock_facts(struct stock_fact *out, int max, const char *word)
{
    const struct stock_gpu *g = find_gpu(word);
    const struct gpu_peak *peak = g ? peak_of(g) : NULL;
    int n = 0;

    if (!g)
        return 0;
    const bool gpu = g->gpu;
    const enum stock_origin sheet = gpu ? STOCK_SHEET : STOCK_ASSUMED;
    const enum stock_origin fitted = gpu ? STOCK_FITTED : STOCK_ASSUMED;
    const enum stock_origin tuned = gpu ? STOCK_MEASURED : STOCK_ASSUMED;
    const char *runs = gpu ? RUNS : cpu_peak.source, *nccl = gpu ? NCCL_TESTS : cpu_peak.source;
    const char *tuning = gpu ? "NCCL's tuning tables" : cpu_peak.source;
    const struct stock_fact facts[] = {
        {gpu ? "peak of 16-bit products" : "peak of 32-bit products", gpu ? peak->bf16 : peak->tf32,
         "TFLOP/s", peak->source, sheet, gpu ? "gpu.peak_bf16" : "gpu.peak_fp32"},
        {"memory bandwidth", peak->bandwidth_gbs, "GB/s", peak->source, sheet, "gpu.hbm"},
        {"share of the peak that products reach", g->product_share, "", runs, g->origin,
         "gpu.product_share"},
        {"the same of 8-bit products", g->product_share_8, "", runs, g->origin,
         "gpu.product_share_fp8"},
        {"the same of attention", g->attention_share, "", gpu ? ATTENTION : runs, STOCK_ASSUMED,
         "gpu.attention_share"},
        {"bandwidth inside a node", g->node_gbs, "GB/s", nccl, g->node_origin, "node.nvlink"},
        {"the same of all-reduce in switches", g->nvls_gbs, "GB/s", nccl, g->node_origin,
         "node.nvls"},
        {"copies between host and device", g->host_gbs, "GB/s",
         gpu ? "PCIe generation" : cpu_peak.source, STOCK_ASSUMED, "gpu.pcie"},
        {"a rank's share of the host's memory bandwidth", g->memory_gbs, "GB/s",
         gpu ? "3/5 of the peak of two sockets, for eight" : cpu_peak.source, STOCK_ASSUMED,
         "node.host_memory"},
        {"size at which a product reaches half", common.product_half, "", NONE, STOCK_ASSUMED,
         "gpu.product_half"},
        {"share of the memory bandwidth", common.memory_share, "", NONE, STOCK_ASSUMED,
         "gpu.hbm_share"},
        {"share of the cards in flat rings over 16 nodes", common.flat_share, "", runs, fitted,
         "network.eta_flat"},
        {"fall of that share with the nodes, power", common.flat_fall, "",
         "fits allow 0 to 0.2, measured collectives give 0.29", STOCK_ASSUMED, NULL},
        {"share of the cards on rails", common.rail_share, "", NONE, STOCK_ASSUMED,
         "network.eta_rail"},
        {"start of a collective", common.start_s * 1e6, "us", tuning, tuned, "network.start_us"},
        {"hop inside a node", common.node_hop_s * 1e6, "us", tuning, tuned, "network.node_hop_us"},
        {"hop between nodes", common.net_hop_s * 1e6, "us", tuning, tuned, "network.hop_us"},
        {"slowdown of compute next to communication", gpu ? common.contention : 0, "",
         gpu ? "fits allow 0.4 to 0.7" : runs, STOCK_ASSUMED, "network.contention"},
        {"spread of a rank's step", common.jitter, "", NONE, STOCK_ASSUMED, "network.jitter"},
        {"time of a step besides its list", common.step_s * 1e3, "ms", NONE, STOCK_ASSUMED,
         "gpu.step_ms"},
        {"memory for context and communicators", gpu ? common.reserved_nbytes * 1e-9 : 0, "GB",
         NONE, STOCK_ASSUMED, "reserved_gib"},
    };
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++, n++)
        if (n < max)
            out[n] = facts[i];
    return n;
}
