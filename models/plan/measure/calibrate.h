/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate.h: what a traced run says of the clock that planned it: factors, measured time over
 * modelled time, of the kinds of work that the clock tells apart. They are named as in cluster.yaml
 * (measured.factors). Pure, but for traces that were read.
 */
#ifndef PLAN_CALIBRATE_H
#define PLAN_CALIBRATE_H

#include "measure.h"
#include "trace_file.h"

enum calibrate_factor {
    CALIBRATE_PRODUCT,
    CALIBRATE_ATTENTION,
    CALIBRATE_MEMORY,  /* pointwise kernels, and the engine's own */
    CALIBRATE_NODE,    /* transfers inside a node, without latency */
    CALIBRATE_FLAT,    /* over several nodes with several ranks on each */
    CALIBRATE_RAIL,    /* with one rank on each */
    CALIBRATE_LATENCY, /* starts and hops of collectives */
    CALIBRATE_HOST,    /* copies between host and device */
    CALIBRATE_NFACTORS
};
const char *calibrate_name(enum calibrate_factor factor); /* "product", ... */

struct calibration {
    double factor[CALIBRATE_NFACTORS]; /* 1 where the run had none of it */
    double real_s[CALIBRATE_NFACTORS]; /* of a step, that the factor rests on */
    double jitter;      /* sigma of fsdp_net_clock: what the ranks waited for the slowest */
    double real_step_s; /* median */
    double step_s;      /* what a step takes besides its list, by calibrate_finish */
    int nranks;
};

/* plan: of the same run under the clock to be corrected. Errors as of against_make. Factors of work
 * that one module mixes are told apart as far as modules differ, and stay near their mean where
 * they do not; their sum is that of the run. */
int calibrate_fit(struct calibration *out, const struct trace_file *plan,
                  const struct trace_file *run, struct fsdp_err *err);
/* Corrects a clock's numbers; tables that the clock borrows are corrected in `measured`, which may
 * be NULL where there are none. Where products are bound by memory the next fit finds what is left:
 * two rounds of planning and fitting suffice. */
void calibrate_apply(struct fsdp_clock *clock, struct measured *measured,
                     const struct calibration *calibration);
/* Of the plan under the corrected clock the list takes list_s (fsdp_schedule_time): the rest of the
 * step becomes the clock's step_s. */
void calibrate_finish(struct fsdp_clock *clock, struct calibration *calibration, double list_s);

#endif
