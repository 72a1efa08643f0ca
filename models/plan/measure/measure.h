/* SPDX-License-Identifier: Apache-2.0 */
/*
 * measure.h: sweeps that measure the numbers of a clock on the ranks, device and backend of a run:
 * products, attention, passes over memory, collectives, and products next to a collective. All
 * ranks work at once, as in a step; the first calls are not counted.
 *
 * The same code measures GPUs; it has run on CPUs alone.
 */
#ifndef PLAN_MEASURE_H
#define PLAN_MEASURE_H

#include "fsdp/mesh.h"
#include "fsdp/module.h"

/* A linear map whose products are measured in its three directions. */
struct measure_linear {
    double rows, nin, nout;
    enum fsdp_dtype type;
};
struct measure_attention {
    double rows, keys, heads, head_dim; /* keys: the mean that a query sees, as in fsdp_work */
    enum fsdp_dtype type;
};
struct measure_pass {
    enum fsdp_pass pass;
    double nbytes; /* forward, as in fsdp_work */
    enum fsdp_dtype type;
};

/* What a model computes; without one, sizes on a grid alone are measured. */
enum { MEASURE_MAX_SHAPES = 64 };
struct measure_shapes {
    struct measure_linear linear[MEASURE_MAX_SHAPES];
    struct measure_attention attention[MEASURE_MAX_SHAPES];
    struct measure_pass pass[MEASURE_MAX_SHAPES];
    int nlinear, nattention, npass;
    int dim, vocab; /* rows of norms and logits; 0: 512, 4096 */
    int seq_len;    /* 0: 256 */
};
/* Of a described model: each different shape once. Local. */
void measure_shapes_of(struct measure_shapes *out, const struct fsdp_module_tree *tree);

struct measure_opts {
    struct fsdp_oob *oob;
    struct fsdp_device *device;
    const struct fsdp_mesh *mesh;        /* its groups are measured; NULL: no collectives */
    int node_nranks;                     /* ranks of a node */
    const struct measure_shapes *shapes; /* NULL: a grid alone */
    enum fsdp_dtype type;                /* of the grid's operands */
    bool no_grid;                        /* the model's shapes alone: for a plan of this model */
    double seconds;                      /* about as long as all may take, 0: 100 */
    void (*progress)(void *ctx, const char *text); /* rank 0; NULL: none */
    void *ctx;
};

/* Tables and numbers for a clock; the same on all ranks. Freed by measured_free. */
struct measured {
    struct fsdp_rate *products, *attention, *copies;
    int nproducts, nattention, ncopies;
    struct fsdp_collective_time *collectives;
    int ncollectives;
    double contention; /* negative: lanes do not overlap here, or there was no mesh */
    /* Of copies between host and device, and of updates on the host, which a rank's threads compute
     * (net.host_memory_nbytes_per_s). 0: the device is the host. */
    double host_nbytes_per_s, host_memory_nbytes_per_s;
    /* In each collective that was measured: how late ranks that slept in it get their core back, on
     * average; 0 on GPUs, and over several nodes. */
    double rendezvous_s;
    double jitter;              /* sigma of a rank's time for the same work */
    double scatter;             /* relative standard deviation of one call's windows, mean of all */
    double memory_nbytes_per_s; /* of large copies, read and write */
    double product_per_s;       /* FLOP/s of the fastest product */
    size_t max_products, max_attention, max_copies, max_collectives;
};
/* Collective, blocks. */
int measure_run(struct measured *out, const struct measure_opts *opts, struct fsdp_err *err);
void measured_free(struct measured *measured);
/* Puts them into a clock that borrows the tables; `serial` as the device is. */
void measured_apply(struct fsdp_clock *clock, const struct measured *measured, bool serial);
/* Four tables as TSV, named DIR/gemm.tsv, sdpa.tsv, copy.tsv, collectives.tsv, each with a line of
 * names first, and numbers.tsv for the rest. Local, blocks. */
int measured_write(const struct measured *measured, const char *folder, struct fsdp_err *err);
int measured_read(struct measured *out, const char *folder, struct fsdp_err *err);

#endif
