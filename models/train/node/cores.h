/* SPDX-License-Identifier: Apache-2.0 */
/* cores.h: which cores the ranks may run on, as srun, taskset or a container left it. */
#ifndef TRAIN_CORES_H
#define TRAIN_CORES_H

#include <sched.h>

#include "fsdp/comm.h"

struct train_cores {
    cpu_set_t mask; /* that this rank may use */
    cpu_set_t all;  /* that it or another rank of its machine may use */
    int nonline;    /* cores of its machine */
    int sharers;    /* ranks of its machine that may use some of the same, itself among them */
    /* The first rank that has fewer cores than sharers although the machine has enough for all of
     * its ranks; -1: none. */
    int crowded, crowded_ncores, crowded_sharers;
};

/* Collective. */
int train_cores_find(struct train_cores *out, struct fsdp_oob *oob,
                     const struct fsdp_node_map *nodes, struct fsdp_err *err);
/* The same by what every rank may use and how many cores its machine has. Pure. */
void train_cores_judge(struct train_cores *out, const cpu_set_t *masks, const int *nonline,
                       int rank, const struct fsdp_node_map *nodes);
/* A fair number of threads for this rank, at least 1. */
int train_cores_share(const struct train_cores *cores);
/* Threads of the first rank of a run on nodes like this machine, without a GPU. Local. */
int train_cores_planned(const struct fsdp_node_map *nodes, bool bound);
/* "0-3,8"; ends in "..." where that is too long. Returns out. */
const char *train_cores_list(char *out, size_t nbytes, const cpu_set_t *mask);

#endif
