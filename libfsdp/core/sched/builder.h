/* SPDX-License-Identifier: Apache-2.0 */
/* builder.h: what sched.c and edges.c share. */
#ifndef CORE_SCHED_BUILD_H
#define CORE_SCHED_BUILD_H

#include "sched.h"

struct slots {
    int count, capacity;
    uint64_t *nbytes;
    uint64_t *freed; /* clock of the latest release: the smallest is longest unused */
    bool *busy;
    uint64_t clock;
};

struct builder {
    const struct sched_input *in;
    struct sched *out;
    struct fsdp_err *err;
    size_t max_ops;
    int micro;
    bool failed;
    struct slots param_slots, grad_slots;
    bool *live, *kept; /* [nunits] */
    bool *parted;      /* [nunits] a part was kept after forward */
    int nlive;         /* live units that are not kept */
    int *order, norder;
    int *param_slot; /* [nflats] of live flats */
    /* update_at_reduce: flats [updated, reduced) of `early` were reduced and not yet updated. */
    int *early; /* [nflats] in the order of their reductions */
    int nupdated, nreduced;
    int turn;       /* state slots that were used */
    int *last_grad; /* [offload_slots] the flat whose gradient came to a place last */
};

int sched_add_edges(struct sched *sched, const struct sched_input *in, struct fsdp_err *err);

#endif
