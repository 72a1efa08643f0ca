/* SPDX-License-Identifier: Apache-2.0 */
/* curves.h: runs as a chart: a panel for each key, a colour for each run (of one run: for each of
 * its starts), marks where it was killed and resumed. */
#ifndef CURVES_CURVES_H
#define CURVES_CURVES_H

#include "chart/chart.h"
#include "run.h"

enum curves_x { CURVES_STEP, CURVES_TOKENS, CURVES_TIME, CURVES_WALL };
enum curves_log { CURVES_LOG_AUTO, CURVES_LOG_X, CURVES_LOG_Y, CURVES_LOG_XY, CURVES_LOG_NONE };

struct curves_ask {
    const char *const *keys;
    int nkeys;
    bool skip_empty; /* leave out keys without a value; else they are an error */
    enum curves_x x;
    enum curves_log log;
    int smooth; /* mean of so many steps; 0 or 1: none */
    const char *title;
    const struct chart_level *levels; /* of the first panel */
    int nlevels;
};

/* The columns that a chart of these keys reads, besides the fixed ones: with loss, eval_loss.
 * Returns their number, at most RUN_MAX_KEYS. */
int curves_columns(const char *out[RUN_MAX_KEYS], const char *const *keys, int nkeys);

struct curves;

/* The runs stay in use. FSDP_EINVAL: a key has no value in any run. */
int curves_create(struct curves **out, const struct run *runs, int nruns,
                  const struct curves_ask *ask, struct fsdp_err *err);
const struct chart *curves_chart(const struct curves *curves);
void curves_destroy(struct curves *curves);

/* Sets each run's label: the shortest end of its path that tells it from the others. */
int curves_label(struct run *runs, int nruns, struct fsdp_err *err);

#endif
