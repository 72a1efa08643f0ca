/* SPDX-License-Identifier: Apache-2.0 */
/* sweep.h: how one piece of work is timed on all ranks at once. */
#ifndef PLAN_SWEEP_H
#define PLAN_SWEEP_H

#include "measure.h"
#include "nn/nn.h"

enum { SWEEP_WINDOWS = 4, SWEEP_MAX_JITTERS = 4096 };

struct sweep {
    const struct measure_opts *opts;
    struct measured *out;
    const struct nn_ops *nn;
    struct fsdp_lane *lane;
    double window_s; /* about how long calls of one window take */
    double deadline; /* fsdp_time_now; after it, only the model's own sizes */
    float *pool;     /* random values; fp32 */
    void *narrow;    /* the same in 16 bits, half the bytes */
    enum fsdp_dtype narrow_type;
    size_t pool_nelem;
    size_t largest_nbytes;            /* of one buffer on a GPU; the same on all ranks */
    double *all;                      /* [size * SWEEP_WINDOWS] */
    double spread[SWEEP_MAX_JITTERS]; /* of the slowest rank over the mean, less 1 */
    int nspread;
    double scatter; /* sum over nsweeps of the windows' standard deviation over their mean */
    int nsweeps;
    double late_sum; /* of collectives: mean less median */
    int nlate;
};

/* Enqueues the work once; call: how often it was before. */
typedef int sweep_f(struct sweep *s, void *ctx, int call, struct fsdp_err *err);

int sweep_open(struct sweep *s, const struct measure_opts *opts, struct measured *out,
               struct fsdp_err *err);
void sweep_close(struct sweep *s);
/* *seconds of one call: the mean over ranks, windows and calls, for a step is a sum, and has its
 * share of what disturbs the machine. Collective, blocks, agreed. */
int sweep_time(double *seconds, struct sweep *s, sweep_f *run, void *ctx, struct fsdp_err *err);
double sweep_mean(const double *values, int nvalues);
/* Has the time run out that all sweeps have? The same on all ranks. Collective. */
int sweep_is_late(bool *late, struct sweep *s, struct fsdp_err *err);
/* Values of a type from the pool, another place for each `turn`; NULL: it has not as many. */
void *sweep_values(struct sweep *s, enum fsdp_dtype type, size_t nelem, int turn);
int sweep_add_rate(struct fsdp_rate **rates, int *nrates, size_t *max, struct fsdp_rate rate,
                   struct fsdp_err *err);
/* One step of AdamW: masters, both moments and gradients of `nelem` elements, all in fp32. */
enum { SWEEP_UPDATE_NBYTES = 7 * sizeof(float) }; /* that it reads and writes, for each element */
int sweep_update(struct fsdp_lane *lane, void *const buffer[4], size_t nelem, int64_t nsteps,
                 struct fsdp_err *err);
void sweep_say(struct sweep *s, const char *fmt, ...) FSDP_PRINTF(2, 3);

/* The sweeps. Collective, block, agreed. */
int sweep_products(struct sweep *s, struct fsdp_err *err);
int sweep_attention(struct sweep *s, struct fsdp_err *err);
int sweep_passes(struct sweep *s, struct fsdp_err *err);
int sweep_host(struct sweep *s, struct fsdp_err *err); /* nothing where the device is the host */
int sweep_collectives(struct sweep *s, struct fsdp_err *err);
int sweep_contention(struct sweep *s, struct fsdp_err *err);

#endif
