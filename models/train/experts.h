/* SPDX-License-Identifier: Apache-2.0 */
/* experts.h: how even the load of a model's experts is, step by step. */
#ifndef TRAIN_EXPERTS_H
#define TRAIN_EXPERTS_H

#include "rows.h"
#include "train/report/metrics.h"

struct train_experts {
    const struct train_parts *parts;
    struct model_router router;
    struct fsdp_lane *lane;
    double *sums[2]; /* of even and of odd steps, on the device; NULL: the model has no experts */
    double *all;     /* the same on the host */
};

/* Local. A failed open is closed, too. */
int train_experts_open(struct train_experts *experts, const struct train_parts *parts,
                       struct fsdp_err *err);
void train_experts_close(struct train_experts *experts);
/* *out: where micro-steps of this step add (model_batch.router_sums). Local, blocks. */
int train_experts_begin(struct train_experts *experts, int64_t step, double **out,
                        struct fsdp_err *err);
/* Fills the row of a step that has run. Local, blocks. */
int train_experts_take(struct train_experts *experts, int64_t step, struct metrics_row *row,
                       struct fsdp_err *err);

#endif
