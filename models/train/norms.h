/* SPDX-License-Identifier: Apache-2.0 */
/* norms.h: norms of the gradients of each unit, every log.tensorboard_histograms steps, by way of
 * the engine's hook for gradients. */
#ifndef TRAIN_NORMS_H
#define TRAIN_NORMS_H

#include "train/report/metrics.h"
#include "train/setup/setup.h"

struct train_norms {
    const struct train_parts *parts; /* the caller's; NULL: nothing is to be done */
    struct fsdp_lane *lane;
    int nparams, nunits;  /* nunits 0: not known yet */
    int *module, *unit;   /* [nparams] root of the unit, -1: this rank has no part; its number */
    double *sums, *eight; /* of the device: [nparams] squares of this rank; for fsdp_control_sum */
    double *host, *norms; /* [nparams], [nunits] */
    const char **names;   /* [nunits] */
    double scale;         /* what gradients are multiplied with */
};

/* Local. A failed open is closed, too. */
int train_norms_open(struct train_norms *norms, const struct train_parts *parts,
                     struct fsdp_err *err);
void train_norms_close(struct train_norms *norms);
/* Is step `step` (from 1) one whose norms are wanted? The same on every rank. */
bool train_norms_due(const struct train_norms *norms, int64_t step);
/* Before and after the fsdp_step of such a step; the row gets the norms, valid until the next. The
 * step's result must have been read. Collective, blocks. */
int train_norms_begin(struct train_norms *norms, struct fsdp_err *err);
int train_norms_take(struct train_norms *norms, struct metrics_row *row, struct fsdp_err *err);

#endif
