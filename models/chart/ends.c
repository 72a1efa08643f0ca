/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "ends.h"

enum { MAX_ENDS = 16, APART = 14, GAP = 8 };

bool ends_has_label(const struct chart *chart, const struct chart_series *series)
{
    return chart->end_labels && series->label &&
           (series->style == CHART_LINE || series->style == CHART_POINTS);
}

double ends_width(const struct chart *chart)
{
    double width = 0;

    for (int p = 0; p < chart->npanels; p++)
        for (int s = 0; s < chart->panels[p].nseries; s++)
            if (ends_has_label(chart, &chart->panels[p].series[s]))
                width = fmax(width, canvas_text_width(chart->panels[p].series[s].label, TICK_SIZE));
    return width > 0 ? width + GAP + 4 : 0;
}

struct end {
    const struct chart_series *series;
    double x, y;  /* of the last point */
    double label; /* y of the label's middle */
};

static bool find_end(struct end *out, const struct layout *at, const struct chart_series *series,
                     const struct axis *y, double top, double bottom)
{
    for (size_t i = series->npoints; i-- > 0;) {
        const double px = axis_place(&at->x, series->x[i]), py = axis_place(y, series->y[i]);
        if (isnan(px) || isnan(py))
            continue;
        *out = (struct end){series, at->left + px * (at->right - at->left),
                            bottom - py * (bottom - top), 0};
        out->label = out->y;
        return true;
    }
    return false;
}

static int from_top(const void *a, const void *b)
{
    const struct end *x = a, *y = b;

    return (x->y > y->y) - (x->y < y->y);
}

/* Down, each below the one before it, and then up again as far as the panel ends. */
static void push_apart(struct end *end, int nends, double top, double bottom)
{
    double most = bottom - 4;

    for (int i = 0; i < nends; i++)
        end[i].label = fmax(end[i].label, i ? end[i - 1].label + APART : top + 4);
    for (int i = nends - 1; i >= 0; i--) {
        end[i].label = fmin(end[i].label, most);
        most = end[i].label - APART;
    }
}

void ends_draw(const struct layout *at, const struct chart_panel *panel, const struct axis *y,
               double top, double bottom)
{
    struct end end[MAX_ENDS];
    int nends = 0;

    for (int s = 0; s < panel->nseries && nends < MAX_ENDS; s++)
        if (ends_has_label(at->chart, &panel->series[s]) &&
            find_end(&end[nends], at, &panel->series[s], y, top, bottom))
            nends++;
    qsort(end, (size_t)nends, sizeof end[0], from_top);
    push_apart(end, nends, top, bottom);
    for (int i = 0; i < nends; i++) {
        struct canvas_pen pen = layout_pen(end[i].series->colour, 0.8);
        pen.dash = DASH_SHORT;
        layout_stroke(at, pen, end[i].x + 3, end[i].y, at->right + GAP - 2, end[i].label);
        layout_text(at,
                    (struct canvas_text){end[i].series->label, at->right + GAP, end[i].label + 4,
                                         ANCHOR_START, TICK_SIZE, false, end[i].series->colour});
    }
}
