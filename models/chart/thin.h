/* SPDX-License-Identifier: Apache-2.0 */
/* thin.h: fewer points that look the same. Pure. */
#ifndef CHART_THIN_H
#define CHART_THIN_H

#include "axis.h"

struct thin_points {
    size_t npoints, max;
    double *xy; /* pairs, 0 to 1 across the plot; a pair of NANs is a gap; freed with fsdp_free */
};

/* Places a series on its axes and keeps, of the points that share one of ncolumns columns and
 * follow each other, the first, the lowest, the highest and the last. */
int thin_series(struct thin_points *out, const struct chart_series *series, const struct axis *x,
                const struct axis *y, int ncolumns, struct fsdp_err *err);

#endif
