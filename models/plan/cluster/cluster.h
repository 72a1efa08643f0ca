/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster.h: the machines that a run is planned for: a clock, and what nodes, failures, power and
 * money are like. From a cluster.yaml, or from the words of a command line. What is not given is
 * that of the stock device (plan/stock.h); each number's origin is kept.
 *
 * Units: seconds, bytes, bytes per second; what is per GPU says so.
 */
#ifndef CLUSTER_H
#define CLUSTER_H

#include <stdio.h>

#include "plan/stock.h"

/* What the clock rests on; an answer's error band follows from it. */
enum cluster_basis {
    CLUSTER_STOCK,      /* data sheets and published runs */
    CLUSTER_CALIBRATED, /* and factors learned from a trace of a run (measured.factors) */
    CLUSTER_MEASURED    /* tables measured on these machines (measured.gemm and others) */
};

/* Measured times divided by modelled ones: 1.1 is a tenth slower than the clock said without it.
 * fsdp-plan --calibrate writes them; they change the clock's constants and tables. */
enum cluster_factor {
    CLUSTER_PRODUCT,   /* products of 16 and 32 bits */
    CLUSTER_PRODUCT_8, /* products of 8 bits */
    CLUSTER_ATTENTION,
    CLUSTER_MEMORY,     /* pointwise kernels, and the engine's own */
    CLUSTER_NODE,       /* transfers inside a node */
    CLUSTER_FLAT,       /* transfers over the network with several ranks on each node */
    CLUSTER_RAIL,       /* with one rank on each node */
    CLUSTER_LATENCY,    /* starts and hops of collectives */
    CLUSTER_HOST,       /* copies between host and device */
    CLUSTER_STEP,       /* what a step takes besides its list */
    CLUSTER_CONTENTION, /* of the slowdown itself: 2 is twice as much of it */
    CLUSTER_NFACTORS
};
const char *cluster_factor_name(enum cluster_factor factor); /* "product", ...; static */

/* Tables of a cluster.yaml's section `measured`. */
enum cluster_table {
    CLUSTER_GEMM,        /* into clock.device.products */
    CLUSTER_SDPA,        /* into clock.device.attention */
    CLUSTER_COPY,        /* into clock.device.copies */
    CLUSTER_COLLECTIVES, /* into clock.net.measured */
    CLUSTER_NTABLES
};
const char *cluster_table_name(enum cluster_table table); /* "gemm", ...; static */

struct cluster {
    struct fsdp_clock clock; /* its tables are the cluster's; the caller may change numbers */
    char gpu[32];            /* word of the stock device that it begins from */
    char net[64];            /* word of the network, "400Gbx8"; "" where node.nic says it */
    int node_ngpus;
    int ngpus;                   /* in all; 0: not said */
    double host_nbytes;          /* memory of a node's host; 0: not said */
    double nvme_nbytes_per_s;    /* of a node; 0: not said */
    double nvme_nbytes;          /* of a node's disks; 0: not said */
    double storage_nbytes_per_s; /* of all nodes together, where checkpoints are; 0: not said */
    double gpu_mtbf_h; /* mean hours between failures of a GPU, with its share of the node */
    double restart_s;  /* from a failure to the first step, without reading the checkpoint */
    double requeue_s;  /* what the queue adds */
    double price_per_gpu_hour; /* in `currency` */
    double watts;              /* per GPU, with its share of the node */
    double pue;                /* the site's power over the machines' */
    bool price_given;          /* without a price there is no cost */
    bool mtbf_given, restart_given, watts_given, pue_given; /* else assumed */
    char currency[8];                                       /* "$" */
    double factor[CLUSTER_NFACTORS];
    enum cluster_basis basis;
    double scatter;   /* how far repeated measurements differ, relative; 0: not said */
    const char *path; /* the cluster.yaml; "" where words made it */
    struct cluster_impl *impl;
};

/* Reads a cluster.yaml (docs/plan.md). Errors name file, line and key, what is allowed, and the key
 * that was probably meant. Nothing is left in *out on failure; else freed by cluster_close. Local,
 * blocks. */
int cluster_load(struct cluster *out, const char *path, struct fsdp_err *err);
/* The same from --gpu h100 --net 400Gbx8 --node-size 8. net NULL: "none", which is one node. "cpu"
 * is this machine. */
int cluster_words(struct cluster *out, const char *gpu, const char *net, int node_ngpus,
                  struct fsdp_err *err);
/* Changes one key as --what-if does: "node.gpus", "network.eta_flat", ...; "net" is short for
 * network.cards, and "price" for price_per_gpu_hour. With "gpu" or "net" the given and measured
 * numbers of the device, or of the network, give way to the stock ones of the new word. Errors are
 * as cluster_load's, with "command line" for the place; *cluster is then as before. */
int cluster_set(struct cluster *cluster, const char *key, const char *value, struct fsdp_err *err);
/* Sets a factor, above 0, in place of the one there was. */
int cluster_set_factor(struct cluster *cluster, enum cluster_factor factor, double value,
                       struct fsdp_err *err);
/* Takes a table in place of the one there was; it is copied. `file` is the path that cluster_write
 * names, NULL: the rows are written inline. */
int cluster_set_rates(struct cluster *cluster, enum cluster_table table, const char *file,
                      const struct fsdp_rate *rate, int nrates, struct fsdp_err *err);
int cluster_set_collectives(struct cluster *cluster, const char *file,
                            const struct fsdp_collective_time *time, int ntimes,
                            struct fsdp_err *err);
/* The columns' names of such a table's file, and its rows, without the line's end. */
void cluster_put_columns(FILE *to, enum cluster_table table);
void cluster_put_rate(FILE *to, enum cluster_table table, const struct fsdp_rate *rate,
                      const char *separator);
void cluster_put_collective(FILE *to, const struct fsdp_collective_time *time,
                            const char *separator);
/* all_gather, ... */
extern const char *const cluster_collective_words[FSDP_NCOLLECTIVES];
/* Numbers of a cluster.yaml's section `measured`, besides tables and factors. */
enum cluster_number {
    CLUSTER_MEASURED_CONTENTION, /* slowdown of compute next to a collective: net.contention */
    CLUSTER_MEASURED_JITTER,     /* sigma of a rank's step: net.jitter */
    CLUSTER_MEASURED_STEP_MS,    /* of a step besides its list: 1000 * device.step_s */
    CLUSTER_MEASURED_HOST,       /* bytes/s of copies to and from the host: net.host_nbytes_per_s */
    CLUSTER_MEASURED_HOST_MEMORY, /* bytes/s of updates on it: net.host_memory_nbytes_per_s */
    CLUSTER_MEASURED_SCATTER,     /* of repeated measurements: cluster.scatter */
    CLUSTER_NNUMBERS
};
/* Sets one, in place of the one there was. */
int cluster_set_number(struct cluster *cluster, enum cluster_number number, double value,
                       struct fsdp_err *err);
void cluster_close(struct cluster *cluster);

/* Writes a cluster.yaml, which takes the place of one that is there at once (rename). One that came
 * from a file keeps its text, comments included, but for the section `measured`, which is written
 * anew; changes by cluster_set are not in it. Local, blocks. */
int cluster_write(const struct cluster *cluster, const char *path, struct fsdp_err *err);
/* Writes the rows of a table as a TSV file, which cluster_load reads. */
int cluster_write_table(const struct cluster *cluster, enum cluster_table table, const char *path,
                        struct fsdp_err *err);

/* The numbers behind an answer and where each is from: the stock ones, with those that the file,
 * the command line or measurements replaced. Returns their count, writes at most max. */
int cluster_facts(struct stock_fact *out, int max, const struct cluster *cluster);
/* Where a key got its value: "cluster.yaml:7: node.nic", or "command line: ..."; into out, which is
 * returned. */
const char *cluster_where(char *out, size_t out_nbytes, const struct cluster *cluster,
                          const char *key);

#endif
