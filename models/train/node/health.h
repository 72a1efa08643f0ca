/* SPDX-License-Identifier: Apache-2.0 */
/*
 * health.h: are the nodes fit for a job? fsdp-launch --check tries all, trains nothing, and
 * takes seconds; every job on several nodes begins with what takes none. Every rank tells what it
 * finds, which is folded into a row for each node, and a node that cannot do what the others can is
 * named.
 */
#ifndef TRAIN_HEALTH_H
#define TRAIN_HEALTH_H

#include "fsdp/comm.h"

struct boot;
struct config;
struct report;

/* What one rank finds; folded over the ranks of a node, the worst of each. */
struct health {
    char host[FSDP_HOST_NBYTES];
    char version[32];
    double clock_s;                 /* ahead of rank 0's */
    double shm_free, files, locked; /* bytes of /dev/shm, descriptors, bytes; INFINITY: no limit */
    double write_rate;              /* bytes/s to the checkpoint folder; 0: not tried */
    double inside,
        across; /* bytes/s of an all-gather in the node, with another node; 0: not tried */
    /* Of the rank's GPU by NVML, 0 where it says nothing: bytes free, NVLinks that work, lanes of
     * PCIe in use. */
    double gpu_free, gpu_links, gpu_lanes;
    char gpu_warning[96];                   /* "": nothing */
    char write_error[256], comm_error[256]; /* "": it works */
    int nranks;                             /* that it is folded from */
};

/* rows[nnodes] of the ranks' findings ranks[nodes->nranks]. Pure. */
void health_fold(struct health *rows, const struct health *ranks,
                 const struct fsdp_node_map *nodes);

/* What row `node` cannot do at all; returns whether there is something. Pure. */
bool health_broken(char *out, size_t nbytes, const struct health *rows, int node);
/* What is wrong with row `node` that makes a job fail or slow there and not elsewhere; returns
 * whether there is something. Speeds are compared with the lower median, so that of two nodes
 * neither is an outlier. Pure. */
bool health_fault(char *out, size_t nbytes, const struct health *rows, int nnodes, int node);
/* What the user may not have meant, but all nodes may share. Pure. */
bool health_warning(char *out, size_t nbytes, const struct health *rows, int nnodes, int node);

/* ---- health.c ---- */

/* Before a job on several nodes: versions, limits, clocks, a small file in the checkpoint folder.
 * A node that cannot do what another can is an error, and rank 0 prints "bad nodes: n1,n3" to
 * standard output; what is only less than elsewhere is a warning. Collective. */
int train_check_start(struct boot *boot, struct config *config, struct report *report,
                      struct fsdp_err *err);

/* Tries out what a job needs of its nodes, trains nothing, and prints those that are bad; config
 * may be NULL. Returns an exit code: LAUNCH_FAILED where a node is bad. Collective. */
int train_check_nodes(struct boot *boot, const char *config, int noverrides, char *const *overrides,
                      bool verbose);

#endif
