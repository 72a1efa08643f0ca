/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h: what the parts of a page share. */
#ifndef CHART_LAYOUT_H
#define CHART_LAYOUT_H

#include "axis.h"
#include "canvas.h"

enum {
    TITLE_SIZE = 16,
    TEXT_SIZE = 12,
    TICK_SIZE = 11,
    LINE = 18,        /* of text */
    PANEL_TITLE = 22, /* above a panel */
    EDGE = 14,        /* around everything */
    MARK = 22,        /* the line before a text of the legend */
};

struct layout {
    const struct canvas *canvas; /* NULL: nothing is drawn, only measured */
    const struct chart *chart;
    double left, right, top, bottom; /* of the panels, titles included */
    struct axis x;
    double width, height; /* of the page */
};

struct canvas_pen layout_pen(int ink, double width);
void layout_text(const struct layout *at, struct canvas_text text);
void layout_stroke(const struct layout *at, struct canvas_pen pen, double x0, double y0, double x1,
                   double y1);
/* A filled box between two corners. */
void layout_box(const struct layout *at, struct canvas_pen pen, double x0, double y0, double x1,
                double y1);
/* Draws title and subtitle; returns the height that they take. */
double layout_head(const struct layout *at, double top);

#endif
