/* SPDX-License-Identifier: Apache-2.0 */
/* best.h: the lowest held-out loss, and the end of a run whose loss stays as it is. */
#ifndef TRAIN_BEST_H
#define TRAIN_BEST_H

#include "config/config.h"
#include "train/setup/train_state.h"

/* Takes an evaluation into *best. Is its loss the lowest so far? One that is not finite is not.
 * Pure. */
bool train_best_take(struct train_best *best, const struct config *config, int64_t step,
                     double loss);
/* "the lowest is 1.2345, of step 6". Writes to and returns out. Pure. */
const char *train_best_text(char *out, size_t nbytes, const struct train_best *best);
/* Does train.early_stop end the run? Pure. */
bool train_best_ends(const struct train_best *best, const struct config *config);

#endif
