/* SPDX-License-Identifier: Apache-2.0 */
#include "layout.h"

struct canvas_pen layout_pen(int ink, double width)
{
    return (struct canvas_pen){ink, width, 1, DASH_NONE};
}

void layout_text(const struct layout *at, struct canvas_text text)
{
    if (at->canvas)
        at->canvas->ops->text(at->canvas->to, &text);
}

void layout_stroke(const struct layout *at, struct canvas_pen pen, double x0, double y0, double x1,
                   double y1)
{
    const double xy[4] = {x0, y0, x1, y1};

    if (at->canvas)
        at->canvas->ops->path(at->canvas->to, &pen, xy, 2);
}

void layout_box(const struct layout *at, struct canvas_pen pen, double x0, double y0, double x1,
                double y1)
{
    const double xy[8] = {x0, y0, x1, y0, x1, y1, x0, y1};

    if (at->canvas)
        at->canvas->ops->area(at->canvas->to, &pen, xy, 4);
}

double layout_head(const struct layout *at, double top)
{
    const struct chart *chart = at->chart;
    double y = top;

    if (chart->title) {
        layout_text(at, (struct canvas_text){chart->title, EDGE, y + 14, ANCHOR_START, TITLE_SIZE,
                                             true, INK_TEXT});
        y += 22;
    }
    if (chart->subtitle) {
        layout_text(at, (struct canvas_text){chart->subtitle, EDGE, y + 11, ANCHOR_START, TEXT_SIZE,
                                             false, INK_MUTED});
        y += LINE;
    }
    return y - top;
}
