/* SPDX-License-Identifier: Apache-2.0 */
/* Panels of horizontal bars on a page. */
#include <math.h>
#include <stdio.h>

#include "bars.h"

enum {
    BAR = 15,
    ROW = 22,
    AXIS = 30, /* below the bars */
    AFTER = 14,
    SWATCH = 12,
    STRIPE = 6,
    NTEXTURES = 3,
};

/* ---- numbers --------------------------------------------------------------------------------- */

bool bars_any(const struct chart *chart)
{
    for (int p = 0; p < chart->npanels; p++)
        if (chart->panels[p].bars)
            return true;
    return false;
}

int bars_check(const struct chart *chart, struct fsdp_err *err)
{
    for (int p = 0; p < chart->npanels; p++)
        if (!chart->panels[p].bars || chart->panels[p].bars->nbars < 1)
            return fsdp_err_set(err, FSDP_EINVAL, "panel %d of the chart has no bars", p + 1);
    return FSDP_OK;
}

double bars_sum(const struct chart_bars *b, int bar)
{
    double sum = 0;

    for (int i = 0; i < b->nparts; i++) {
        const double value = b->values[bar * b->nparts + i];
        sum += isfinite(value) && value > 0 ? value : 0;
    }
    return sum;
}

struct axis bars_axis(const struct chart_bars *b)
{
    double most = b->limit;

    for (int i = 0; i < b->nbars; i++)
        most = fmax(most, bars_sum(b, i));
    if (b->most > 0)
        most = fmin(most, b->most);
    return (struct axis){0, most > 0 ? 1.02 * most : 1, false, CHART_NUMBER};
}

bool bars_has_part(const struct chart_bars *b, int part)
{
    for (int i = 0; i < b->nbars; i++)
        if (b->values[i * b->nparts + part] > 0)
            return true;
    return false;
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* Stripes of the paper's colour, which rise (slope 1) or fall (-1), cut to the box: y - y0 is
 * slope * (x - from) for a `from` every STRIPE pixels. */
static void draw_stripes(const struct layout *at, double x0, double y0, double x1, double y1,
                         int slope)
{
    const double height = y1 - y0;
    struct canvas_pen pen = layout_pen(INK_PAPER, 1.4);

    for (double from = x0 - height + STRIPE / 2.0; from < x1; from += STRIPE) {
        const double begin = fmax(from, x0), end = fmin(from + height, x1);
        const double low = begin - from, high = end - from;
        if (end - begin < 0.5)
            continue;
        layout_stroke(at, pen, begin, slope > 0 ? y1 - low : y0 + low, end,
                      slope > 0 ? y1 - high : y0 + high);
    }
}

static void draw_part(const struct layout *at, const struct chart_part *part, int index, double x0,
                      double y0, double x1, double y1)
{
    layout_box(at, layout_pen(part->colour, 1), x0, y0, x1, y1);
    if (index % NTEXTURES)
        draw_stripes(at, x0, y0, x1, y1, index % NTEXTURES == 1 ? 1 : -1);
    /* A gap to the next part: neighbours can be as dark. */
    if (x1 - x0 > 3)
        layout_stroke(at, layout_pen(INK_PAPER, 1), x1, y0, x1, y1);
}

/* Returns the height that it takes. */
static double draw_parts(const struct layout *at, const struct chart_bars *b, double top)
{
    double x = EDGE, y = top + 13;

    for (int i = 0; i < b->nparts; i++) {
        const double width = MARK + canvas_text_width(b->parts[i].label, TEXT_SIZE) + 14;
        if (!bars_has_part(b, i))
            continue;
        if (x > EDGE && x + width > at->width) {
            x = EDGE;
            y += LINE;
        }
        draw_part(at, &b->parts[i], i, x, y - 10, x + SWATCH + 2, y + 2);
        layout_text(at, (struct canvas_text){b->parts[i].label, x + MARK, y, ANCHOR_START,
                                             TEXT_SIZE, false, INK_TEXT});
        x += width;
    }
    return y - top + 8;
}

/* ---- a panel --------------------------------------------------------------------------------- */

static double pixel(const struct layout *at, const struct axis *axis, double value)
{
    return at->left + fmin(1, axis_place(axis, value)) * (at->right - at->left);
}

/* Two slanted lines across the end of a bar that is cut. */
static void draw_cut(const struct layout *at, double x, double y0, double y1)
{
    for (int i = 0; i < 2; i++)
        layout_stroke(at, layout_pen(INK_PAPER, 2.5), x - 12 + 6 * i, y1 + 2, x - 6 + 6 * i,
                      y0 - 2);
}

static void draw_bar(const struct layout *at, const struct chart_bars *b, const struct axis *axis,
                     int bar, double top)
{
    const double y0 = top + (ROW - BAR) / 2.0, y1 = y0 + BAR;
    double sum = 0, end = at->left;

    layout_text(at, (struct canvas_text){b->names[bar], at->left - 8, y1 - 3, ANCHOR_END, TEXT_SIZE,
                                         false, INK_TEXT});
    for (int i = 0; i < b->nparts; i++) {
        const double value = b->values[bar * b->nparts + i];
        if (!isfinite(value) || value <= 0)
            continue;
        sum += value;
        const double next = pixel(at, axis, fmin(sum, axis->hi));
        if (next - end > 0.05)
            draw_part(at, &b->parts[i], i, end, y0, next, y1);
        end = next;
    }
    if (sum > axis->hi)
        draw_cut(at, end, y0, y1);
    if (b->notes && b->notes[bar])
        layout_text(at, (struct canvas_text){b->notes[bar], end + 7, y1 - 3, ANCHOR_START,
                                             TICK_SIZE, false, INK_MUTED});
}

static void draw_axis(const struct layout *at, const struct chart_bars *b, const struct axis *axis,
                      double top, double bottom)
{
    struct axis_ticks ticks;

    axis_ticks(&ticks, axis, (int)((at->right - at->left) / 80));
    for (int i = 0; i < ticks.nticks; i++) {
        const double x = pixel(at, axis, ticks.tick[i].value);
        layout_stroke(at, layout_pen(INK_GRID, 1), x, top, x, bottom + 4);
        layout_text(at, (struct canvas_text){ticks.tick[i].text, x, bottom + 16, ANCHOR_MIDDLE,
                                             TICK_SIZE, false, INK_MUTED});
    }
    if (b->unit)
        layout_text(at, (struct canvas_text){b->unit, at->left - 8, bottom + 16, ANCHOR_END,
                                             TICK_SIZE, false, INK_MUTED});
}

static void draw_limit(const struct layout *at, const struct chart_bars *b, const struct axis *axis,
                       double top, double bottom)
{
    const double x = pixel(at, axis, b->limit);
    struct canvas_pen pen = layout_pen(INK_TEXT, 1.2);

    pen.dash = DASH_LONG;
    layout_stroke(at, pen, x, top - 3, x, bottom);
    if (!b->limit_label)
        return;
    const bool is_left = x + canvas_text_width(b->limit_label, TICK_SIZE) > at->width - EDGE;
    layout_text(at, (struct canvas_text){b->limit_label, is_left ? x - 4 : x + 4, top - 3,
                                         is_left ? ANCHOR_END : ANCHOR_START, TICK_SIZE, false,
                                         INK_TEXT});
}

/* Returns the height that it takes. */
static double draw_panel(const struct layout *at, const struct chart_panel *panel, double top)
{
    const struct chart_bars *b = panel->bars;
    const struct axis axis = bars_axis(b);
    double y = top;

    if (panel->title) {
        layout_text(at, (struct canvas_text){panel->title, EDGE, y + 12, ANCHOR_START, TEXT_SIZE,
                                             true, INK_TEXT});
        y += PANEL_TITLE;
    }
    y += draw_parts(at, b, y);
    y += b->limit > 0 && b->limit_label ? LINE : 4;
    const double bottom = y + b->nbars * ROW;
    draw_axis(at, b, &axis, y, bottom);
    for (int i = 0; i < b->nbars; i++)
        draw_bar(at, b, &axis, i, y + i * ROW);
    if (b->limit > 0)
        draw_limit(at, b, &axis, y, bottom);
    return bottom + AXIS - top;
}

/* ---- the page -------------------------------------------------------------------------------- */

static double draw_all(struct layout *at)
{
    const struct chart *chart = at->chart;
    double names = 30, notes = 0;

    for (int p = 0; p < chart->npanels; p++) {
        const struct chart_bars *b = chart->panels[p].bars;
        for (int i = 0; i < b->nbars; i++) {
            names = fmax(names, canvas_text_width(b->names[i], TEXT_SIZE));
            if (b->notes && b->notes[i])
                notes = fmax(notes, canvas_text_width(b->notes[i], TICK_SIZE));
        }
    }
    at->left = EDGE + fmin(names, at->width / 2) + 8;
    at->right = at->width - EDGE - notes - 10;
    double y = EDGE + layout_head(at, EDGE) + 6;
    for (int p = 0; p < chart->npanels; p++)
        y += draw_panel(at, &chart->panels[p], y) + (p + 1 < chart->npanels ? AFTER : 0);
    return y;
}

int bars_height(const struct chart *chart, int width)
{
    struct layout at = {.chart = chart, .width = width};

    return bars_check(chart, NULL) ? 0 : (int)ceil(draw_all(&at));
}

int bars_draw(struct layout *at, struct fsdp_err *err)
{
    FSDP_TRY(bars_check(at->chart, err));
    const int needed = bars_height(at->chart, (int)at->width);
    if (needed > at->height || at->width < 400)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "a picture of %.0f x %.0f pixels has no room for these bars; it takes "
                            "400 x %d",
                            at->width, at->height, needed);
    draw_all(at);
    return FSDP_OK;
}
