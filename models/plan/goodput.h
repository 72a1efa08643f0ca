/* SPDX-License-Identifier: Apache-2.0 */
/*
 * goodput.h: how much of a run's time trains, where GPUs fail and checkpoints are saved; and what
 * the run then takes in hours, energy and money. Pure. Times in seconds unless the name says else.
 */
#ifndef PLAN_GOODPUT_H
#define PLAN_GOODPUT_H

#include <time.h>

#include "fsdp/base.h"

/* What is known of failures and saves. */
struct goodput_in {
    int ngpus;
    double gpu_mtbf_h;  /* hours of one GPU between failures that end the job; 0: none fail */
    double save_held_s; /* a save holds up the training so long */
    double save_s;      /* until it is on the storage; 0: as soon as it holds up no more */
    double restart_s;   /* from a failure until training continues, requeueing included */
    double interval_s;  /* of saves; 0: the best one; INFINITY: the run saves none */
};

struct goodput {
    double job_mtbf_s;      /* M: between failures of the job; INFINITY: there are none */
    double best_interval_s; /* Daly's, and no shorter than a save takes */
    double best_share;      /* of the time that trains, with it: 0 to 1 */
    double interval_s;      /* the one taken */
    double share;           /* with it */
    double save_share, lost_share, restart_share; /* of the time: held by saves, trained again
                                                     after failures, restarting; they and `share`
                                                     add up to 1 */
    bool stalled; /* failures come faster than the run advances: share is 0 */
};
/* share = 1 - C/tau - (tau/2 + S)/M - R/M, where S is what a save takes in the background: a
 * failure meanwhile falls back on the one before. Of first order: below about a half it says too
 * little. J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
 * dumps", Future Generation Computer Systems 22 (2006), equation 37; but no save begins before the
 * last is on the storage. Lost shares that exceed 1 are scaled to it. */
void goodput(struct goodput *out, const struct goodput_in *in);
/* Daly's interval between the end of a save and the begin of the next, for saves that hold up the
 * training C and a job that fails every M. INFINITY where M is. */
double goodput_daly(double save_held_s, double job_mtbf_s);

/* What a save and a restart take, from the sizes of things. */
struct goodput_state {
    double nbytes;      /* of the whole state: all ranks' */
    double rank_nbytes; /* of one rank's, copied to host memory by a background save */
    int ngpus, nnodes;
    double storage_nbytes_per_s; /* of all nodes together; 0: not known */
    double host_nbytes_per_s;    /* a rank's copies to host memory */
    bool background;             /* checkpoint.async */
    double start_s;              /* of programs and rendezvous; 0: assumed (goodput_start) */
    double requeue_s;
};
/* Seconds of processes' start and rendezvous over so many nodes, assumed: 20 s and a second for
 * each doubling of the nodes. */
double goodput_start(int nnodes);
/* Seconds that a save holds up training; 0 where the storage's rate is not known. */
double goodput_save_held(const struct goodput_state *state);
/* Seconds until a save is on the storage. */
double goodput_save(const struct goodput_state *state);
/* Seconds from a failure until the first step: queue, start, reading. */
double goodput_restart(const struct goodput_state *state);

/* What a run takes. */
struct goodput_bill_in {
    double ntokens;      /* to train on */
    double tokens_per_s; /* of all GPUs, while training */
    double share;        /* of the time that trains, 0 to 1 */
    int ngpus;
    double watts; /* per GPU, with its share of the node */
    double pue;
    double price_per_gpu_hour; /* 0: not given */
    time_t now;                /* when it begins */
};
struct goodput_bill {
    double seconds; /* until it is finished; INFINITY: never */
    double gpu_hours, kwh, money;
    time_t finish; /* 0: beyond the year 9999, or never */
};
void goodput_bill(struct goodput_bill *out, const struct goodput_bill_in *in);

#endif
