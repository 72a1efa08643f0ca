/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a cluster.yaml: types, defaults, what is allowed, help; and how one is set. */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "cluster_impl.h"

#define FIELD(field) offsetof(struct cluster_raw, field)
#define ROW(name, kind, def, allowed, field, help)                                                 \
    {                                                                                              \
        name, FSDP_TUNABLE_##kind, def, help, allowed, FIELD(field)                                \
    }
/* A number that the stock device or network has otherwise. */
#define STOCK(section, key, allowed, help)                                                         \
    ROW(#section "." #key, FLOAT, "auto", "auto=-1|" allowed, section.key, help)
#define FLOPS "1e9..1e18"
#define RATE "1e6..1e15"
#define SHARE "0<..1.5"
#define FACTOR(name, index, help)                                                                  \
    ROW("measured.factors." name, FLOAT, "1", "1e-4..1e4", measured.factor[index], help)

/* clang-format off */
const struct fsdp_tunable cluster_table_of_keys[] = {
    ROW("gpu.like", STRING, "", NULL, gpu.like,
        "Stock device whose numbers hold where none are given: h100, ...; cpu: this machine. "
        "'gpu: h100' is short for it"),
    ROW("gpu.name", STRING, "", NULL, gpu.name, "Name in answers; empty: that of gpu.like"),
    STOCK(gpu, peak_bf16, FLOPS, "FLOP/s of dense 16-bit products, by the data sheet"),
    STOCK(gpu, peak_fp8, FLOPS, "The same of 8-bit products"),
    STOCK(gpu, peak_fp32, FLOPS, "The same of 32-bit operands (TF32 on a GPU)"),
    STOCK(gpu, hbm, RATE, "Bytes per second of its memory, by the data sheet"),
    STOCK(gpu, memory_gib, "0<..1e6", "GiB of its memory"),
    ROW("gpu.sms", INT, "auto", "auto=-1|1..100000", gpu.sms, "Multiprocessors"),
    STOCK(gpu, watts, "0<..1e5", "Watts of one GPU under load"),
    STOCK(gpu, pcie, RATE, "Bytes per second of its copies to and from the host's memory"),
    STOCK(gpu, product_share, SHARE, "Share of the peak that large products reach"),
    STOCK(gpu, product_share_fp8, SHARE, "The same of 8-bit products"),
    STOCK(gpu, product_half, "0..1e5", "Dimension at which a product reaches half of that"),
    STOCK(gpu, attention_share, SHARE, "Share of peak_bf16 that attention reaches"),
    STOCK(gpu, hbm_share, SHARE, "Share of the memory's rate that kernels reach"),
    STOCK(gpu, pointwise, "0<..100", "Bytes of pointwise kernels, relative to those described"),
    STOCK(gpu, launch_us, "0..1e6", "Microseconds in which the host enqueues a kernel"),
    STOCK(gpu, step_ms, "0..1e6", "Milliseconds of a step besides its list"),
    ROW("node.gpus", INT, NULL, "1..1024", node.gpus,
        "GPUs of a node. 'node: 8' is short for it"),
    STOCK(node, nvlink, RATE, "Bytes per second of a GPU inside the node, each direction"),
    STOCK(node, nvls, "0..1e15", "The same of all-reduce in the switches; 0: they do not reduce"),
    ROW("node.nics", INT, "auto", "auto=-1|1..64", node.nics, "Network cards; auto: one per GPU"),
    STOCK(node, nic, RATE, "Bytes per second of one, each direction, in place of network.cards"),
    STOCK(node, host_gib, "0<..1e7", "GiB of the host's memory"),
    STOCK(node, host_memory, RATE,
          "Bytes per second that the threads of a rank read and write in it, when all ranks do"),
    STOCK(node, nvme, RATE, "Bytes per second of its own disks"),
    STOCK(node, nvme_gib, "0<..1e9", "GiB of its own disks (fsdp.offload_dir)"),
    ROW("network.cards", STRING, "", NULL, network.cards,
        "Network cards of a node: 400Gbx8 is eight of 400 Gbit/s; none: there is one node. "
        "'network: 400Gbx8' is short for it"),
    ROW("network.kind", CHOICE, "auto", "auto|ib|roce|efa|ethernet", network.kind,
        "Fabric; it changes no number"),
    STOCK(network, eta_flat, SHARE, "Share of the cards that a ring over whole nodes reaches"),
    STOCK(network, eta_rail, SHARE, "The same of a ring with one rank on each node"),
    STOCK(network, start_us, "0..1e6", "Microseconds that a collective takes to begin"),
    STOCK(network, node_hop_us, "0..1e6", "Microseconds of a hop inside a node"),
    STOCK(network, hop_us, "0..1e6", "Microseconds of a hop between nodes"),
    STOCK(network, pat_hop_us, "0..1e6", "The same of the PAT algorithm"),
    STOCK(network, node_half_mib, "0..1e6", "MiB of a message that reaches half the rate in a node"),
    STOCK(network, half_mib, "0..1e6", "The same over the network"),
    STOCK(network, contention, "0..100",
          "Computing takes (1 + this) as long while a collective is under way"),
    ROW("network.ctas", INT, "auto", "auto=-1|1..1024", network.ctas,
        "Thread blocks of a collective, for measured.contention; auto: the most it has"),
    STOCK(network, jitter, "0..1", "Standard deviation of a rank's step, relative to it"),
    STOCK(network, collectives, "1..1000", "Collectives that one of the list's is made of"),
    {"network.tiers", FSDP_TUNABLE_MAPS, "",
        "Slower tiers: - {nodes: 32, factor: 0.9}: a group over 32 nodes or more has 0.9 of the rate",
        NULL, 0},
    ROW("gpus", INT, "auto", "auto=-1|1..10000000", gpus, "GPUs of the cluster in all"),
    ROW("reserved_gib", FLOAT, "auto", "auto=-1|0..1e5", reserved_gib,
        "GiB of a GPU's memory that no plan can have: context, communicators, workspaces"),
    ROW("price_per_gpu_hour", FLOAT, "auto", "auto=-1|0..1e6", price_per_gpu_hour,
        "Price of an hour of one GPU"),
    ROW("currency", STRING, "$", NULL, currency, "Its currency, up to 7 bytes"),
    ROW("watts_per_gpu", FLOAT, "auto", "auto=-1|0<..1e5", watts_per_gpu,
        "Watts per GPU with its share of the node; auto: 1.5 times gpu.watts, which is assumed"),
    ROW("pue", FLOAT, "auto", "auto=-1|1..10", pue,
        "Power of the site over that of its machines; auto: 1.25, which is assumed"),
    ROW("reliability.gpu_mtbf_h", FLOAT, "auto", "auto=-1|0<..1e9", reliability.gpu_mtbf_h,
        "Hours of one GPU, with its share of the node, between failures that end a job; auto: "
        "50700, of a published run on 16,384 H100"),
    ROW("reliability.restart_s", FLOAT, "auto", "auto=-1|0..1e6", reliability.restart_s,
        "Seconds from a failure until a step runs again, without the queue; auto: by the start of "
        "programs and the reading of the checkpoint"),
    ROW("reliability.requeue_s", FLOAT, "0", "0..1e7", reliability.requeue_s,
        "Seconds that the queue adds"),
    ROW("reliability.storage", FLOAT, "auto", "auto=-1|" RATE, reliability.storage,
        "Bytes per second with which all nodes together write and read checkpoints"),
    ROW("measured.gemm", STRING, "", NULL, measured.file[CLUSTER_GEMM],
        "Table of products: type, m, n, k, FLOP/s; a TSV file next to this one, or a list of lists"),
    ROW("measured.sdpa", STRING, "", NULL, measured.file[CLUSTER_SDPA],
        "Table of attention: type, keys, head size, forward or backward, FLOP/s"),
    ROW("measured.copy", STRING, "", NULL, measured.file[CLUSTER_COPY],
        "Table of pointwise kernels: type, bytes, kernels, forward or backward, bytes per second; or "
        "bytes and bytes per second of all"),
    ROW("measured.collectives", STRING, "", NULL, measured.file[CLUSTER_COLLECTIVES],
        "Table of collectives: kind, ranks, nodes, bytes, seconds"),
    ROW("measured.contention", FLOAT, "auto", "auto=-1|0..100",
        measured.number[CLUSTER_MEASURED_CONTENTION],
        "Slowdown of computing next to a collective, 0.1: a tenth; or pairs of thread blocks and "
        "slowdown, [[8, 0.06], [16, 0.12]]"),
    ROW("measured.jitter", FLOAT, "auto", "auto=-1|0..10",
        measured.number[CLUSTER_MEASURED_JITTER],
        "Standard deviation of a rank's step, relative to it"),
    ROW("measured.step_ms", FLOAT, "auto", "auto=-1|0..1e6",
        measured.number[CLUSTER_MEASURED_STEP_MS], "Milliseconds of a step besides its list"),
    ROW("measured.host", FLOAT, "auto", "auto=-1|" RATE, measured.number[CLUSTER_MEASURED_HOST],
        "Bytes per second of a GPU's copies to and from the host's memory"),
    ROW("measured.host_memory", FLOAT, "auto", "auto=-1|" RATE,
        measured.number[CLUSTER_MEASURED_HOST_MEMORY],
        "Bytes per second that the threads of a rank read and write in updates on the host"),
    ROW("measured.scatter", FLOAT, "auto", "auto=-1|0..10",
        measured.number[CLUSTER_MEASURED_SCATTER],
        "How far repeated measurements differ, relative to their mean; no error band is below it"),
    FACTOR("product", CLUSTER_PRODUCT, "Measured over modelled time of products"),
    FACTOR("product_8", CLUSTER_PRODUCT_8, "The same of 8-bit products"),
    FACTOR("attention", CLUSTER_ATTENTION, "The same of attention"),
    FACTOR("memory", CLUSTER_MEMORY, "The same of pointwise kernels"),
    FACTOR("node", CLUSTER_NODE, "The same of transfers inside a node"),
    FACTOR("flat", CLUSTER_FLAT, "The same of transfers over whole nodes"),
    FACTOR("rail", CLUSTER_RAIL, "The same of transfers with one rank on each node"),
    FACTOR("latency", CLUSTER_LATENCY, "The same of starts and hops of collectives"),
    FACTOR("host", CLUSTER_HOST, "The same of copies between host and device"),
    FACTOR("step", CLUSTER_STEP, "The same of a step besides its list"),
    FACTOR("contention", CLUSTER_CONTENTION, "Measured over modelled slowdown"),
};
/* clang-format on */
enum { NROWS = sizeof cluster_table_of_keys / sizeof cluster_table_of_keys[0] };
const int cluster_nkeys = NROWS;
_Static_assert((int)NROWS <= (int)CLUSTER_MAX_KEYS, "struct cluster_raw has a line per key");

const char *cluster_factor_name(enum cluster_factor factor)
{
    return strrchr(
               cluster_table_of_keys[cluster_row("measured.factors.product") + (int)factor].name,
               '.') +
           1;
}

const char *cluster_number_key(enum cluster_number number)
{
    return cluster_table_of_keys[cluster_row("measured.contention") + (int)number].name;
}

const char *cluster_table_name(enum cluster_table table)
{
    static const char *const names[CLUSTER_NTABLES] = {"gemm", "sdpa", "copy", "collectives"};
    return names[table];
}

int cluster_row(const char *key)
{
    int row = 0;
    fsdp_tunable_find(&row, cluster_table_of_keys, NROWS, "", key, NULL);
    return row;
}

double cluster_number(const struct cluster_raw *raw, const char *key)
{
    const struct fsdp_tunable *row = &cluster_table_of_keys[cluster_row(key)];
    const char *field = (const char *)raw + row->offset;

    if (row->type == FSDP_TUNABLE_INT)
        return (double)*(const int64_t *)(const void *)field;
    return row->type == FSDP_TUNABLE_FLOAT ? *(const double *)(const void *)field : CLUSTER_AUTO;
}

const char *cluster_place(char *out, size_t out_nbytes, const struct cluster_impl *impl,
                          const char *key)
{
    const int row = cluster_row(key), line = impl->raw.line[row];
    const int len = impl->raw.aliased[row] ? (int)strcspn(key, ".") : (int)strlen(key);

    if (line > 0)
        snprintf(out, out_nbytes, "%s:%d: %.*s", impl->path, line, len, key);
    else if (line == CLUSTER_FROM_OPTION)
        snprintf(out, out_nbytes, "%s",
                 !strcmp(key, "gpu.like")        ? "--gpu"
                 : !strcmp(key, "network.cards") ? "--net"
                                                 : "--node-size");
    else if (line == CLUSTER_FROM_MEASURE)
        snprintf(out, out_nbytes, "measured: %s", key);
    else if (line == CLUSTER_FROM_COMMAND || !impl->path)
        snprintf(out, out_nbytes, "command line: %.*s", len, key);
    else
        snprintf(out, out_nbytes, "%s: %.*s", impl->path, len, key);
    return out;
}

int cluster_refuse(const struct cluster_impl *impl, const char *key, struct fsdp_err *err,
                   const char *fmt, ...)
{
    char where[FSDP_TUNABLE_STRING_NBYTES + 128], text[FSDP_ERR_TEXT_NBYTES];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fsdp_err_set(err, FSDP_EINVAL, "%s", text);
    fsdp_err_prefix(err, FSDP_EINVAL, "%s: ", cluster_place(where, sizeof where, impl, key));
    return fsdp_err_blame(err, FSDP_EINVAL, key);
}
