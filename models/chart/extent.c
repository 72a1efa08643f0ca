/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "extent.h"

struct range {
    double lo, hi;
};

static const struct range nothing = {INFINITY, -INFINITY};

static void widen_range(struct range *range, double value, bool is_log)
{
    if (!isfinite(value) || (is_log && value <= 0))
        return;
    range->lo = fmin(range->lo, value);
    range->hi = fmax(range->hi, value);
}

/* Only points that can be placed on both axes count. */
static void widen_to_panel(struct range *x, struct range *y, const struct chart *chart,
                           const struct chart_panel *panel)
{
    for (int s = 0; s < panel->nseries; s++) {
        const struct chart_series *series = &panel->series[s];
        for (size_t i = 0; i < series->npoints; i++) {
            const double at = series->x[i], value = series->y[i];
            if (!isfinite(at) || !isfinite(value) || (chart->log_x && at <= 0) ||
                (panel->log_y && value <= 0))
                continue;
            widen_range(x, at, chart->log_x);
            widen_range(y, value, panel->log_y);
            if (series->style == CHART_BAND)
                widen_range(y, series->y_to[i], panel->log_y);
        }
    }
}

int extent_x(struct axis *out, const struct chart *chart, struct fsdp_err *err)
{
    struct range x = nothing, y = nothing;

    for (int p = 0; p < chart->npanels; p++)
        widen_to_panel(&x, &y, chart, &chart->panels[p]);
    if (!(x.lo <= x.hi))
        return fsdp_err_set(err, FSDP_EINVAL, "there is no point to draw");
    for (int m = 0; m < chart->nmarkers; m++)
        widen_range(&x, chart->markers[m].x, chart->log_x);
    *out = axis_make(x.lo, x.hi, 0.01, chart->log_x, chart->x_unit);
    if (!chart->log_x && chart->x_unit != CHART_CLOCK && x.lo >= 0 && x.lo < 0.1 * x.hi)
        out->lo = 0;
    return FSDP_OK;
}

struct axis extent_y(const struct chart *chart, const struct chart_panel *panel)
{
    struct range x = nothing, y = nothing;

    widen_to_panel(&x, &y, chart, panel);
    for (int l = 0; l < panel->nlevels && y.lo <= y.hi; l++)
        widen_range(&y, panel->levels[l].y, panel->log_y);
    struct axis axis = axis_make(y.lo, y.hi, 0.05, panel->log_y, CHART_NUMBER);
    if (panel->from_zero && !panel->log_y && axis.lo > 0)
        axis.lo = 0;
    else if (!panel->log_y && y.lo >= 0 && axis.lo < 0)
        axis.lo = 0;
    return axis;
}
