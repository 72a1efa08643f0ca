/* SPDX-License-Identifier: Apache-2.0 */
/* extent.h: the axes that hold what a chart shows. Pure. */
#ifndef CHART_EXTENT_H
#define CHART_EXTENT_H

#include "axis.h"

/* FSDP_EINVAL where no panel has a point to show. */
int extent_x(struct axis *out, const struct chart *chart, struct fsdp_err *err);
struct axis extent_y(const struct chart *chart, const struct chart_panel *panel);

#endif
