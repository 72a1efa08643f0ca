/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "best.h"

bool train_best_take(struct train_best *best, const struct config *config, int64_t step,
                     double loss)
{
    const bool first = best->step == 0, lower = isfinite(loss) && (first || loss < best->loss);

    if (lower && (first || loss < best->loss - config->train.early_stop_delta))
        best->stale = 0;
    else
        best->stale++;
    if (!lower)
        return false;
    best->step = step;
    best->loss = loss;
    return true;
}

const char *train_best_text(char *out, size_t nbytes, const struct train_best *best)
{
    if (best->step)
        snprintf(out, nbytes, "the lowest is %.4f, of step %" PRId64, best->loss, best->step);
    else
        snprintf(out, nbytes, "none was a finite number");
    return out;
}

bool train_best_ends(const struct train_best *best, const struct config *config)
{
    return config->train.early_stop > 0 && best->stale >= config->train.early_stop;
}
