/* SPDX-License-Identifier: Apache-2.0 */
/* legend.h: which series the legend names. Pure. */
#ifndef CHART_LEGEND_H
#define CHART_LEGEND_H

#include "chart.h"

/* Has a series before this one, in its panel or one above, the same label and look? */
bool legend_is_told(const struct chart *chart, int panel, int index);

#endif
