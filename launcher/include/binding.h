/* SPDX-License-Identifier: Apache-2.0 */
/* binding.h: the cores, and the network card, that a rank gets on its node. */
#ifndef BINDING_H
#define BINDING_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

#include "fsdp/base.h"
#include "fsdp/comm.h"

/* Each rank of a node sees one GPU alone because Slurm was told to divide them (--gpus-per-task):
 * it can use its own, but not reach those of its neighbours directly. `out` gets a line that
 * says what to change. get: getenv. Pure. */
bool binding_gpus_hidden(char *out, size_t out_nbytes, int local_size,
                         char *(*get)(const char *name));

/* Two ranks run on one machine: on one node, or on nodes that fsdp-launch --nodes presents. Pure.
 */
bool binding_same_machine(const struct fsdp_node_map *nodes, int a, int b);

enum { BINDING_NBYTES = 192 };
struct binding {
    int ncores;                /* whole cores that the rank is bound to; 0: it is not */
    char text[BINDING_NBYTES]; /* what was chosen, or why nothing was, for people */
};

struct binding_opts {
    bool off;              /* report only, bind nothing */
    const char *gpu;       /* the rank's GPU on the PCI bus, "0000:1b:00.0"; "" for none */
    const cpu_set_t *near; /* (optional) cores near it, for where hwloc does not know it */
};

/* Gives each rank of a machine whole cores of its own, by hwloc: ranks that may all run on the same
 * cores get equal parts of them, neighbours by cache, NUMA node and package, and a rank with a GPU
 * those near it. Cores that Slurm or taskset has given to one rank alone, or that ranks share in
 * part, and fewer cores than ranks, are left as they are. Binds all threads that the process has.
 * What does not work is described in `text`. Collective; fails only if the channel does. */
int binding_choose(struct binding *out, struct fsdp_oob *oob, const struct fsdp_node_map *nodes,
                   const struct binding_opts *opts, struct fsdp_err *err);
/* Cores that the first of so many ranks of a machine like this one would get by that, without a
 * GPU; 0: it would not be bound. Local. */
int binding_planned(int nlocal);

/* The cores that a rank may run on, and those that it wants. */
struct binding_card {
    cpu_set_t allowed, wish; /* wish: of allowed, those near its GPU, or all */
};
/* Rank `rank`'s place among the ranks of its machine that wish for the same cores. Returns NULL, or
 * why all is left as it is. Pure. */
const char *binding_judge(const struct binding_card *cards, const struct fsdp_node_map *nodes,
                          int rank, int *place, int *nplaces);

#endif
