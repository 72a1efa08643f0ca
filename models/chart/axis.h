/* SPDX-License-Identifier: Apache-2.0 */
/* axis.h: the range of an axis, its ticks and their texts. Pure. */
#ifndef CHART_AXIS_H
#define CHART_AXIS_H

#include "chart.h"

struct axis {
    double lo, hi; /* lo < hi; both positive if is_log */
    bool is_log;
    enum chart_unit unit;
};

enum { AXIS_MAX_TICKS = 64, AXIS_TEXT_NBYTES = 24 };

struct axis_tick {
    double value;
    bool is_minor; /* a line without a text */
    char text[AXIS_TEXT_NBYTES];
};

struct axis_ticks {
    int nticks;
    struct axis_tick tick[AXIS_MAX_TICKS];
};

/* An axis that holds lo to hi: a range of one value, or of none (lo > hi), gets a width; `pad` is
 * the share of the range that is added at each end. */
struct axis axis_make(double lo, double hi, double pad, bool is_log, enum chart_unit unit);
/* 0 at lo, 1 at hi; NAN for what the axis cannot show. */
double axis_place(const struct axis *axis, double value);
/* About `want` ticks with texts, at round values. */
void axis_ticks(struct axis_ticks *out, const struct axis *axis, int want);

#endif
