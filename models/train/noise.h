/* SPDX-License-Identifier: Apache-2.0 */
/*
 * noise.h: the gradient noise scale (McCandlish et al., arXiv 1812.06162), every log.noise_scale
 * steps: how many rows a step should have, so that more would hardly help. It compares the norm of
 * the step's gradient with those of the ranks' micro-steps, by way of the engine's hook for
 * reductions.
 */
#ifndef TRAIN_NOISE_H
#define TRAIN_NOISE_H

#include "train/report/metrics.h"
#include "train/setup/setup.h"

struct train_noise {
    const struct train_parts *parts; /* the caller's; NULL: nothing is to be done */
    struct fsdp_lane *lane;
    size_t room, used;
    double *sums, *host;     /* [room] a square for each sum of gradients; sums: of the device */
    double *total;           /* of the device */
    double scale;            /* what gradients are multiplied with */
    bool scatters;           /* micro-steps are reduced; else all of them together */
    bool unread;             /* a gradient was in a type that is not read */
    double variance, square; /* means over the estimates, of which later ones weigh more */
};

/* Local. A failed open is closed, too. */
int train_noise_open(struct train_noise *noise, const struct train_parts *parts,
                     struct fsdp_err *err);
void train_noise_close(struct train_noise *noise);
/* Is step `step` (from 1) one whose noise is wanted? The same on every rank. */
bool train_noise_due(const struct train_noise *noise, int64_t step);
/* Before the first micro-step and after the fsdp_step of such a step, whose result must have been
 * read: the row has its norm, and gets the noise. Collective, block. */
int train_noise_begin(struct train_noise *noise, struct fsdp_err *err);
int train_noise_take(struct train_noise *noise, struct metrics_row *row, struct fsdp_err *err);

#endif
