/* SPDX-License-Identifier: Apache-2.0 */
/* job.h: a run as fsdp-top sees it: what its status says, and whether that is still true. */
#ifndef TOP_JOB_H
#define TOP_JOB_H

#include "train/report/status.h"

/* What is shown; the first are those of a status. */
enum top_state {
    TOP_STALLED = STATUS_DONE + 1, /* it lives, and makes no step */
    TOP_LOST,                      /* it gives no sign, and did not say how it ended */
    TOP_ENDED,                     /* metrics alone, and no new lines */
    TOP_NSTATES
};

struct top_job {
    char *path; /* of the status, or of the metrics; owned */
    char *name; /* as shown; owned */
    bool from_metrics;
    struct status status;
    int state;                      /* enum status_state or top_state */
    double seen_s, saved_s, left_s; /* since the last sign, since the last save; NAN: not known */
    char note[640];                 /* what is wrong, "" for nothing */
};

const char *top_state_word(int state);
/* It trains, or should. */
bool top_state_is_active(int state);
bool top_state_is_bad(int state);

/* Reads the file at path. FSDP_ENOTFOUND: it is gone. FSDP_ECORRUPT: it is damaged, or no metrics.
 * FSDP_EUNSUPPORTED: it is another program's. `now`: Unix time. Local, blocks. */
int top_job_read(struct top_job *job, double now, struct fsdp_err *err);

/* The latest values of a key in the metrics, oldest first; returns their number. */
int top_metrics_values(double *out, int max, const char *path, const char *key);

#endif
