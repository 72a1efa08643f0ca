/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.h: how long a device computes and how long a network carries, as formulas of numbers. Pure:
 * no device, no rank. The numbers are measured, fitted or assumed; whoever fills the structs says
 * which (models/plan/stock.h). fsdp_schedule_times (fsdp.h) puts the clock under a planned list.
 *
 * Units: seconds, bytes, FLOP; rates per second. A FLOP is one multiplication or one addition.
 */
#ifndef FSDP_CLOCK_H
#define FSDP_CLOCK_H

#include "fsdp/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- work: what a module computes ------------------------------------------------------------ */

enum fsdp_work_kind {
    FSDP_WORK_PRODUCT,   /* (m, k) times (k, n) */
    FSDP_WORK_ATTENTION, /* m queries, each of which sees k keys; n = elements of all heads */
    FSDP_WORK_BYTES,     /* pointwise kernels: nbytes are read and written */
    FSDP_WORK_NKINDS
};

/* Which kernels read and write the bytes: what they compute differs, which counts where a device is
 * not bound by its memory (CPUs). */
enum fsdp_pass {
    FSDP_PASS_COPY,
    FSDP_PASS_BRANCH,     /* norm of a branch of a layer, rotation, addition to the stream */
    FSDP_PASS_ACTIVATION, /* between the products of an MLP */
    FSDP_PASS_LOSS,       /* and its gradient */
    FSDP_PASS_SQUARES,    /* of gradients, for their norm */
    FSDP_PASS_UPDATE,     /* the optimizer */
    FSDP_NPASSES
};
const char *fsdp_pass_name(enum fsdp_pass pass);

/* In which phases a piece of work is done. */
enum {
    FSDP_WORK_FORWARD = 1,
    FSDP_WORK_BACKWARD = 2,
    FSDP_WORK_RECOMPUTE = 4, /* full activation checkpointing repeats it in backward */
    FSDP_WORK_CHEAP = 8      /* selective activation checkpointing repeats it, too */
};

/* One piece of a module's work for one micro-batch. */
struct fsdp_work {
    enum fsdp_work_kind kind;
    unsigned phases;
    double times;         /* how often, each time the same */
    double m, n, k;       /* may have fractions: means over rows */
    double heads;         /* of ATTENTION: n / heads is the size of one */
    double nbytes;        /* of BYTES */
    enum fsdp_pass pass;  /* of BYTES */
    bool gradient;        /* of ATTENTION and BYTES: backward */
    enum fsdp_dtype type; /* of the operands */
};

/* ---- a device -------------------------------------------------------------------------------- */

/* A rate that was measured at a size. Between sizes the logarithms are interpolated; beyond them
 * the nearest holds. */
struct fsdp_rate {
    enum fsdp_dtype type;
    /* Of a product as in fsdp_work; of attention m: keys of a query, n: elements of a head, k: 1
     * forward, 2 backward; of a copy m: bytes, n: enum fsdp_pass, k: 1 forward, 2 backward. */
    double m, n, k;
    double per_s; /* FLOP/s, or bytes/s */
};
struct fsdp_rates {
    const struct fsdp_rate *rate; /* [nrates], the caller's; those of a type, n and k together */
    int nrates;
};

struct fsdp_device_clock {
    char name[32];
    /* Peak of dense products with operands of 16, 8 and 32 bits; 0: no such products. */
    double flops_16, flops_8, flops_32;
    double product_share; /* of the peak that large products reach */
    double product_share_8;
    double product_half;       /* m, n or k at which a product reaches half of that */
    double attention_share;    /* of flops_16: attention forward */
    double attention_gradient; /* its backward pass: time of a FLOP, relative to forward */
    double score_nbytes;       /* attention that writes its scores: bytes of each; 0: it does not */
    double memory_nbytes_per_s;
    double memory_share;    /* of that rate which kernels reach */
    double pointwise;       /* bytes of pointwise kernels, relative to those described */
    double launch_s;        /* the host's time to enqueue a kernel */
    double step_s;          /* what a step takes besides the list */
    double memory_nbytes;   /* there are */
    double reserved_nbytes; /* of them not for a plan: the context, the communicator's buffers */
    double watts;
    int nsms;
    /* Where all lanes run in the thread that enqueues, as on the CPU: nothing overlaps. */
    bool serial;
    struct fsdp_rates products, attention, copies; /* measured; they replace the shares */
};

/* ---- a network ------------------------------------------------------------------------------- */

/* Links that transfers of a rank share. */
enum fsdp_link {
    FSDP_LINK_NODE, /* between the devices of a node: NVLink, or shared memory */
    FSDP_LINK_NIC,  /* the node's network cards together */
    FSDP_LINK_UP,   /* from the host's memory, and to it */
    FSDP_LINK_DOWN,
    FSDP_NLINKS
};

enum fsdp_collective { FSDP_ALL_GATHER, FSDP_REDUCE_SCATTER, FSDP_ALL_REDUCE, FSDP_NCOLLECTIVES };

enum fsdp_algorithm {
    FSDP_RING,
    FSDP_TREE, /* all-reduce */
    FSDP_NVLS, /* all-reduce inside a node, in its switches */
    FSDP_PAT,  /* gather and scatter with one rank on each node */
    FSDP_NALGORITHMS
};

/* From so many nodes on, a group's rate over the network times `factor`. */
struct fsdp_tier {
    int nodes;
    double factor;
};
enum { FSDP_MAX_TIERS = 8 };

enum { FSDP_FLAT_NODES = 16, FSDP_FLAT_MOST_NODES = 128 }; /* beyond, flat_share falls no further */

/* Seconds of one collective that were measured. */
struct fsdp_collective_time {
    enum fsdp_collective kind;
    int nranks, nnodes;
    double nbytes; /* of the whole: what a rank has after a gather, or before a scatter */
    double seconds;
};

struct fsdp_net_clock {
    int node_nranks;          /* ranks of a node */
    double node_nbytes_per_s; /* of a rank's link inside the node, each direction */
    double nvls_nbytes_per_s; /* all-reduce in the switches; 0: there are none */
    double nic_nbytes_per_s;  /* of a rank's share of the node's cards */
    /* Of that which a ring over whole nodes reaches, where it spans FSDP_FLAT_NODES of them; over
     * more of them less, by the power -flat_fall. */
    double flat_share, flat_fall;
    double rail_share;                                /* and a ring with one rank on each node */
    double start_s, node_hop_s, net_hop_s, pat_hop_s; /* of a collective; of each hop */
    /* A message of so many bytes reaches half the rate. */
    double node_half_nbytes, net_half_nbytes;
    double host_nbytes_per_s; /* a rank's copies between host and device */
    double file_nbytes_per_s; /* a rank's share of the node's disks; 0: as the host's memory */
    /* A rank's share of what threads of the host read and write; 0: as host_nbytes_per_s. */
    double host_memory_nbytes_per_s;
    double collectives; /* how many one of the list's is made of; 0: one */
    /* Compute takes (1 + contention) as long next to collectives at a node link's full rate. */
    double contention;
    double jitter;    /* sigma of a rank's step: the slowest of n is sqrt(2 ln n) sigma behind */
    double slow_rank; /* what-if: one rank computes so much slower (0.1: by a tenth) */
    struct fsdp_tier tiers[FSDP_MAX_TIERS];
    int ntiers;
    const struct fsdp_collective_time *measured; /* [nmeasured], the caller's */
    int nmeasured;
};

struct fsdp_clock {
    struct fsdp_device_clock device;
    struct fsdp_net_clock net;
    double ntokens; /* of a rank's micro-batch, for models that do not describe their work */
};
/* FSDP_EINVAL names a rate that is missing or a number that makes no sense. */
int fsdp_clock_check(const struct fsdp_clock *clock, struct fsdp_err *err);

/* ---- formulas -------------------------------------------------------------------------------- */

/* FLOP of one time of a piece of work; 0 of BYTES. */
double fsdp_work_flops(const struct fsdp_work *work);
/* Seconds of all its times. */
double fsdp_work_seconds(const struct fsdp_device_clock *device, const struct fsdp_work *work);
/* Seconds in which kernels of a pass read and write so many bytes of a type. A pass that was not
 * measured is taken for a copy. */
double fsdp_pass_seconds(const struct fsdp_device_clock *device, enum fsdp_pass pass, bool gradient,
                         enum fsdp_dtype type, double nbytes);
double fsdp_touch_seconds(const struct fsdp_device_clock *device, double nbytes); /* PASS_COPY */

/* Who takes part in a collective. */
struct fsdp_group {
    int nranks;
    int nnodes;      /* that they are on */
    int node_nranks; /* of them on each node */
};
/* Of a mesh whose ranks lie node after node: groups of nranks ranks, `stride` apart. */
struct fsdp_group fsdp_group_of(const struct fsdp_net_clock *net, int nranks, int stride);

/* What a collective takes: first the latency, then so many bytes over its links. */
struct fsdp_transfer {
    enum fsdp_algorithm algorithm;
    double latency_s;
    double nbytes; /* each rank receives */
    double rate;   /* bytes/s, where it has the links for itself */
    /* Bytes that a link of this capacity could carry, for each byte that a rank receives. Of a
     * node's cards that is more than pass them: they reach `nic_share` of their capacity. */
    double load[FSDP_NLINKS];
    double nic_share;
};
/* nbytes: of the whole, as in fsdp_collective_time. The fastest algorithm that fits. */
struct fsdp_transfer fsdp_collective_transfer(const struct fsdp_net_clock *net,
                                              enum fsdp_collective kind, struct fsdp_group group,
                                              double nbytes);
/* The same by one algorithm; a rate of 0: it does not fit. */
struct fsdp_transfer fsdp_algorithm_transfer(const struct fsdp_net_clock *net,
                                             enum fsdp_algorithm algorithm,
                                             enum fsdp_collective kind, struct fsdp_group group,
                                             double nbytes);
/* A copy between host and device. */
struct fsdp_transfer fsdp_host_transfer(const struct fsdp_net_clock *net, enum fsdp_link direction,
                                        double nbytes);
/* Seconds of a transfer that has the links for itself. */
double fsdp_transfer_seconds(const struct fsdp_transfer *transfer);
/* Bytes/s that a link can carry: of a rank, or for FSDP_LINK_NIC of a node. */
double fsdp_link_capacity(const struct fsdp_net_clock *net, enum fsdp_link link);
/* rates[i] = max-min fair rates of at most 16 transfers that share links, none above its own rate.
 */
void fsdp_share_links(double *rates, const struct fsdp_net_clock *net,
                      const struct fsdp_transfer *const *transfers, int ntransfers);
/* Factor of a step's time that n ranks take for waiting on the slowest. */
double fsdp_jitter_factor(const struct fsdp_net_clock *net, int nranks);

const char *fsdp_link_name(enum fsdp_link link);
const char *fsdp_algorithm_name(enum fsdp_algorithm algorithm);

#ifdef __cplusplus
}
#endif
#endif
