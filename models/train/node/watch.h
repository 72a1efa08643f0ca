/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.h: sees that a run gets on. A thread in every rank exchanges with those of the
 * others, at intervals and over a channel of its own, which step and operation its rank is at and
 * for how long.
 *
 * - A rank that has not moved for a deadline (learnt from the steps seen, with a floor) is a hang:
 * rank 0 prints where each rank is, and every rank aborts its communicators, so that the job ends.
 * - A rank that does not answer at all (stopped, or its machine is) is named by the others.
 * - A rank that computes for longer than the others, interval after interval, is named once: the
 * job is as slow as its slowest rank.
 */
#ifndef TRAIN_WATCH_H
#define TRAIN_WATCH_H

#include "config/config.h"
#include "fsdp/fsdp.h"

struct train_watch;

/* nodes, fsdp and mesh are borrowed. *out is NULL for a job of one rank. Collective, blocks. */
int train_watch_open(struct train_watch **out, const struct config *config, struct fsdp *fsdp,
                     struct fsdp_mesh *mesh, struct fsdp_oob *oob,
                     const struct fsdp_node_map *nodes, struct fsdp_err *err);
/* The thread ends when all ranks come here, or one is lost. NULL is allowed. */
void train_watch_close(struct train_watch *watch);
/* True once in a process: of the thread and the rank itself, which both see the end, one says why.
 * NULL is allowed. Local. */
bool train_watch_may_tell(struct train_watch *watch);
/* The rank is about to do something else than a step, "saving"; NULL: steps again. Local. */
void train_watch_phase(struct train_watch *watch, const char *phase);
/* Who is told of a suspect before the job is ended, from the watchdog's thread. `where`: what it
 * was last seen doing. watch NULL is allowed. Local. */
typedef void watch_suspect_f(void *ctx, int rank, const char *host, const char *where);
void train_watch_tell(struct train_watch *watch, watch_suspect_f *fn, void *ctx);
/* Step `step` took this long. Local. */
void train_watch_step(struct train_watch *watch, int64_t step, double seconds);
/* The rank that computed for longest in the latest interval, and for how long a step; -1 where that
 * is not known yet, or there is one rank alone. NULL is allowed. Local. */
int train_watch_slowest(struct train_watch *watch, double *seconds);

/* ---- pure ---- */

/* Is this the rank that says why a job ends? Rank 0, or rank 1 where rank 0 is at fault; both where
 * the culprit is not known (-1). */
bool watch_speaks(int rank, int culprit);

/* What ranks tell each other. */
struct watch_beat {
    int64_t step;
    uint64_t nops; /* operations of lists so far: the same on every rank at the same place */
    double idle_s; /* since it last moved */
    double step_s, busy_s; /* of the latest interval: a step's mean, and of it not in collectives */
    double longest_s;      /* of the longest step so far, 0: none */
    int32_t leaving, phase, comm;
    char text[160];
};
/* Seconds without movement that are a hang: ten of the longest step, at least `floor_s`; in a phase
 * and before the first step `phase_s`. */
double watch_deadline(const struct watch_beat *beats, int nranks, double floor_s, double phase_s);
/* The rank that has not moved for longer than the deadline and is behind the others, -1: none.
 * Behind is who has come to fewer operations; among equals who is not in a collective. */
int watch_hung(const struct watch_beat *beats, int nranks, double deadline_s);
/* The rank whose time outside collectives is longest, -1: not all are in steps. */
int watch_slowest(const struct watch_beat *beats, int nranks);
/* The rank whose time outside collectives is more than half above the median, -1: none. */
int watch_straggler(const struct watch_beat *beats, int nranks, double *median_s);

#endif
