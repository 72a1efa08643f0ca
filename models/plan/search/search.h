/* SPDX-License-Identifier: Apache-2.0 */
/*
 * search.h: the settings with which a run is fastest, cheapest, or needs the fewest GPUs.
 *
 * The space is strategy, size of the shard group and levels, rows of a micro-batch, activation
 * checkpointing, and unless numbers are to stay, types that are sent, reduced and kept. A point
 * that does not fit is tried again with what saves memory and costs time: split masters, updates at
 * the reduction where the run does not clip, then offloading, to the disks of a node where their
 * size is known; where all activations are recomputed, the layers' inputs are offloaded, too, and
 * where updates are not at the reduction, gradient shards. Where nothing fits, all are tried again
 * with gradient shards in bf16 or none, and without masters. The best points are refined by
 * prefetch and buffers.
 *
 * Bounds spare plans: no step is shorter than its work without any communication, and no memory
 * smaller than states and activations alone. Both follow from plans that differ in the strategy
 * only, which changes neither work nor activations.
 */
#ifndef SEARCH_SEARCH_H
#define SEARCH_SEARCH_H

#include "change.h"

enum search_goal { SEARCH_TIME, SEARCH_COST, SEARCH_GPUS };

struct search_opts {
    enum search_goal goal;
    bool keep_numerics;
    int64_t most_rows; /* of a step; 0: as many as the run has */
    bool no_bounds;    /* plan every point: for tests */
    /* (optional) Now and then; false ends the search with what it has. */
    bool (*progress)(void *ctx, int nplanned, const struct answer *best);
    void *ctx;
};

struct search_point {
    struct change change;
    int ngpus;
    double token_s;     /* seconds of a step for each of its tokens */
    double token_gpu_s; /* times the GPUs */
    struct answer answer;
    bool equal; /* no more than 3 % behind the best */
};

enum { SEARCH_MAX_FRONT = 64 };
struct search_result {
    /* No point is better than another in time, memory, GPU-seconds and changes of numbers at once.
     * The best for the goal come first, and of equal ones those that change fewer numbers. */
    struct search_point front[SEARCH_MAX_FRONT];
    int nfront;
    int ncut; /* points that had no place there, the worst for the goal */
    int nplanned, npruned, nrefused, nlarge; /* nlarge: planned, and did not fit */
    bool complete;
    bool last_resort; /* nothing fits without what is tried last: those settings change numbers */
    /* Where nothing fits: of what does not fit, the one with the least memory. */
    struct search_point least;
};

/* *out is large: allocate it. FSDP_EINVAL where the run itself cannot be. Local, blocks. */
int search_run(struct search_result *out, const struct question *question,
               const struct search_opts *opts, struct fsdp_err *err);
/* file: the run.yaml that gets the first point's settings. */
void search_print(const struct search_result *result, const struct question *question,
                  const struct search_opts *opts, const char *file, FILE *to);

/* ---- between search*.c ----------------------------------------------------------------------- */

/* Lower bounds of points with the same rows of a micro-batch, checkpointing and types. */
struct bounds {
    double micro_work_s;      /* of a micro-step */
    double activation_nbytes; /* saved for backward */
    bool known;
};
/* Has the run masters (optim.master)? Where it has none, splitting them saves nothing. */
bool bound_has_masters(const struct answer *answer);
/* Bytes of a GPU that masters and moments take at least, divided among so many ranks. */
double bound_states(const struct answer *answer, int shard_nranks, bool narrow_moments, bool split,
                    bool offloaded);

#endif
