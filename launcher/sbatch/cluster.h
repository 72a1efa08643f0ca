/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster.h: what a Slurm says of itself. The text comes from programs of any version, so it is
 * read with distrust: what is not understood is left out or refused, and nothing is too long.
 */
#ifndef SLURM_CLUSTER_H
#define SLURM_CLUSTER_H

#include "fsdp/base.h"

enum {
    SLURM_NAME_NBYTES = 64,
    SLURM_LIST_NBYTES = 1024,
    SLURM_MOST_PARTITIONS = 256,
    SLURM_MOST_COUNT = 1 << 20, /* nodes, CPUs, GPUs */
};
#define SLURM_UNLIMITED INT64_MAX

struct slurm_partition {
    char name[SLURM_NAME_NBYTES];
    char state[SLURM_NAME_NBYTES];    /* UP, DOWN, DRAIN, INACTIVE */
    char accounts[SLURM_LIST_NBYTES]; /* "ALL", or names and commas */
    bool is_default;
    int64_t max_nodes, min_nodes; /* max: may be SLURM_UNLIMITED */
    int64_t max_seconds;          /* may be SLURM_UNLIMITED */
};

/* Nodes of a partition that are alike. */
struct slurm_shape {
    char partition[SLURM_NAME_NBYTES];
    char gpu[SLURM_NAME_NBYTES]; /* the GPUs' type, "" where Slurm does not say */
    int ncpus, nsockets, nthreads, ngpus;
    int64_t memory_mib;
    int nnodes, nusable; /* usable: neither down nor drained */
};

struct slurm_cluster {
    char name[SLURM_NAME_NBYTES], version[SLURM_NAME_NBYTES];
    char requeue_exit[SLURM_NAME_NBYTES]; /* exit statuses that the cluster itself requeues */
    int64_t most_tasks;                   /* of a node */
    bool has_pmix;
    int npartitions, nshapes;
    struct slurm_partition *partitions;
    struct slurm_shape *shapes;
};

/* Asks sinfo, scontrol and srun. Freed with slurm_cluster_destroy. Local, blocks; at most 20 s for
 * each program. FSDP_ENOTFOUND: there is no Slurm here. */
int slurm_cluster_ask(struct slurm_cluster *out, struct fsdp_err *err);
void slurm_cluster_destroy(struct slurm_cluster *cluster);

/* ---- the texts; pure ---- */

/* Lines of `scontrol -o show partition`. A line without a name is left out. */
int slurm_partitions_parse(struct slurm_cluster *out, const char *text, struct fsdp_err *err);
/* Lines of `sinfo -h -N -o SLURM_NODE_FORMAT`. A line that is none is left out. */
#define SLURM_NODE_FORMAT "%R|%c|%m|%G|%t|%X|%Z"
int slurm_shapes_parse(struct slurm_cluster *out, const char *text, struct fsdp_err *err);
/* `scontrol show config`. What it does not say stays as it is. */
void slurm_config_parse(struct slurm_cluster *out, const char *text);
/* `srun --mpi=list`: is there a PMIx among the kinds? */
bool slurm_mpi_has_pmix(const char *text);
/* A time limit as sbatch(1) takes it: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S, UNLIMITED, INFINITE.
 * Seconds, or -1 for a text that is none. */
int64_t slurm_seconds_parse(const char *text);
/* Is `name` a word of the list "a,b,c"? */
bool slurm_list_has(const char *list, const char *name);
/* Does the list of numbers and ranges, "1,70-80", hold this one? */
bool slurm_range_has(const char *list, int number);

#endif
