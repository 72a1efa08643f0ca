/* SPDX-License-Identifier: Apache-2.0 */
/* bars.h: charts whose panels are bars. */
#ifndef CHART_BARS_H
#define CHART_BARS_H

#include "layout.h"

/* Is any panel one of bars? */
bool bars_any(const struct chart *chart);
/* FSDP_EINVAL where a panel has none. Pure. */
int bars_check(const struct chart *chart, struct fsdp_err *err);
/* The axis, from 0, of a panel's values. Pure. */
struct axis bars_axis(const struct chart_bars *bars);
double bars_sum(const struct chart_bars *bars, int bar);
/* Has any bar a part of this index? */
bool bars_has_part(const struct chart_bars *bars, int part);

/* The height of a page that holds all bars. */
int bars_height(const struct chart *chart, int width);
int bars_draw(struct layout *at, struct fsdp_err *err);
int bars_text(FILE *to, const struct chart *chart, const struct chart_terminal *terminal,
              struct fsdp_err *err);

#endif
