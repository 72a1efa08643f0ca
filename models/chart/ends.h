/* SPDX-License-Identifier: Apache-2.0 */
/* ends.h: labels of lines next to their ends, in place of a legend. */
#ifndef CHART_ENDS_H
#define CHART_ENDS_H

#include "layout.h"

bool ends_has_label(const struct chart *chart, const struct chart_series *series);
/* The width that labels take right of the panels; 0: there are none. */
double ends_width(const struct chart *chart);
void ends_draw(const struct layout *at, const struct chart_panel *panel, const struct axis *y,
               double top, double bottom);

#endif
