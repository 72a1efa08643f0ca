/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a page: title, legend, labels of markers, panels, the x axis. */
#include <math.h>
#include <string.h>

#include "bars.h"
#include "ends.h"
#include "extent.h"
#include "layout.h"
#include "legend.h"
#include "thin.h"

enum {
    PANEL_GAP = 12, /* below a panel */
    FOOT = 40,      /* ticks and title of the x axis */
    FIRST_HEIGHT = 250,
    NEXT_HEIGHT = 130,
    LEAST_HEIGHT = 40,
    MAX_ROWS = 6, /* of labels of markers */
};

/* ---- the head -------------------------------------------------------------------------------- */

static struct canvas_pen pen_of_series(const struct chart_series *series)
{
    const bool dashed = series->dashed || series->colour / CHART_NCOLOURS % 2;
    struct canvas_pen pen = {series->colour, 1.8, 1, dashed ? DASH_LONG : DASH_NONE};

    if (series->style == CHART_FAINT) {
        pen.width = 1;
        pen.opacity = 0.35;
    } else if (series->style == CHART_WIDE) {
        pen.width = 6;
        pen.opacity = 0.4;
    } else if (series->style == CHART_BAND) {
        pen.opacity = 0.16;
    } else if (series->style == CHART_POINTS)
        pen.width = 1;
    return pen;
}

static void draw_entry(const struct layout *at, const struct chart_series *series, double x,
                       double y)
{
    const struct canvas_pen pen = pen_of_series(series);
    const double middle[2] = {x + (MARK - 6) / 2.0, y - 4};

    if (series->style == CHART_BAND) {
        layout_box(at, pen, x, y - 10, x + MARK - 6, y + 1);
    } else
        layout_stroke(at, pen, x, y - 4, x + MARK - 6, y - 4);
    if (series->style == CHART_POINTS) {
        const struct canvas_pen dot = layout_pen(series->colour, 3);
        at->canvas->ops->dots(at->canvas->to, &dot, middle, 1);
    }
    layout_text(at, (struct canvas_text){series->label, x + MARK, y, ANCHOR_START, TEXT_SIZE, false,
                                         INK_TEXT});
}

/* Returns the height that it takes; draws if `draw`. */
static double draw_legend(const struct layout *at, double top, bool draw)
{
    double x = EDGE, y = top + 13;
    int nentries = 0;

    for (int p = 0; p < at->chart->npanels; p++)
        for (int s = 0; s < at->chart->panels[p].nseries; s++) {
            const struct chart_series *series = &at->chart->panels[p].series[s];
            if (!series->label || legend_is_told(at->chart, p, s) ||
                ends_has_label(at->chart, series))
                continue;
            const double width = MARK + canvas_text_width(series->label, TEXT_SIZE) + 18;
            if (x > EDGE && x + width > at->width) {
                x = EDGE;
                y += LINE;
            }
            if (draw)
                draw_entry(at, series, x, y);
            x += width;
            nentries++;
        }
    return nentries ? y - top + 5 : 0;
}

static double draw_head(const struct layout *at, double top)
{
    const double y = top + layout_head(at, top);

    return y + draw_legend(at, y + 2, true) - top + 4;
}

/* ---- markers --------------------------------------------------------------------------------- */

static double x_pixel(const struct layout *at, double value)
{
    return at->left + axis_place(&at->x, value) * (at->right - at->left);
}

/* Where the label of a marker stands: to the right of its line, or to the left where it would leave
 * the page or lie across another line; in the first row that has room. */
struct label_place {
    int row;
    double x; /* where the text begins */
};

static bool is_crossed(const struct layout *at, double begin, double end)
{
    for (int m = 0; m < at->chart->nmarkers; m++) {
        const double x = x_pixel(at, at->chart->markers[m].x);
        if (x > begin && x < end)
            return true;
    }
    return false;
}

static struct label_place place_label(double row_end[MAX_ROWS], const struct layout *at,
                                      const struct chart_marker *marker)
{
    const double x = x_pixel(at, marker->x);
    const double width = canvas_text_width(marker->label, TICK_SIZE);
    const double right = x + 4, left = x - width - 4;
    const bool right_fits = right + width < at->width;
    const bool to_left = left > 0 && (!right_fits || (is_crossed(at, right, right + width) &&
                                                      !is_crossed(at, left, left + width)));
    const double begin =
        to_left || right_fits ? to_left ? left : right : fmax(2, at->width - width - 2);
    int row = 0;

    while (row < MAX_ROWS - 1 && row_end[row] > begin)
        row++;
    row_end[row] = begin + width + 8;
    return (struct label_place){row, begin};
}

/* The rows that labels take; draws them, if nrows is not 0, down to `bottom`, with lines down to
 * the first panel. */
static int marker_labels(const struct layout *at, double bottom, int nrows)
{
    double row_end[MAX_ROWS];
    int used = 0;

    for (int i = 0; i < MAX_ROWS; i++)
        row_end[i] = -INFINITY;
    for (int m = 0; m < at->chart->nmarkers; m++) {
        const struct chart_marker *marker = &at->chart->markers[m];
        if (!marker->label || isnan(axis_place(&at->x, marker->x)))
            continue;
        const struct label_place place = place_label(row_end, at, marker);
        used = place.row + 1 > used ? place.row + 1 : used;
        if (!nrows)
            continue;
        const double y = bottom - 5 - (nrows - 1 - place.row) * 15;
        const struct canvas_pen pen = {marker->colour < 0 ? INK_MUTED : marker->colour, 1, 0.9,
                                       marker->dashed ? DASH_SHORT : DASH_NONE};
        const double x = x_pixel(at, marker->x);
        layout_stroke(at, pen, x,
                      place.x < x && x < place.x + canvas_text_width(marker->label, TICK_SIZE)
                          ? y + 3
                          : y - 9,
                      x, bottom + PANEL_TITLE);
        layout_text(at,
                    (struct canvas_text){marker->label, place.x, y, ANCHOR_START, TICK_SIZE, false,
                                         marker->colour < 0 ? INK_MUTED : marker->colour});
    }
    return used;
}

static void marker_lines(const struct layout *at, double top, double bottom)
{
    for (int m = 0; m < at->chart->nmarkers; m++) {
        const struct chart_marker *marker = &at->chart->markers[m];
        const double x = x_pixel(at, marker->x);
        const struct canvas_pen pen = {marker->colour < 0 ? INK_MUTED : marker->colour, 1, 0.9,
                                       marker->dashed ? DASH_SHORT : DASH_NONE};
        if (!isnan(x))
            layout_stroke(at, pen, x, top, x, bottom);
    }
}

/* ---- panels ---------------------------------------------------------------------------------- */

static void x_axis(const struct layout *at, double top, double bottom, bool with_texts)
{
    struct axis_ticks ticks;

    axis_ticks(&ticks, &at->x,
               (int)((at->right - at->left) / (at->x.unit == CHART_CLOCK ? 95 : 60)));
    for (int i = 0; i < ticks.nticks; i++) {
        const double x = x_pixel(at, ticks.tick[i].value);
        if (ticks.tick[i].is_minor)
            continue;
        layout_stroke(at, layout_pen(INK_GRID, 1), x, top, x, bottom + (with_texts ? 4 : 0));
        if (with_texts)
            layout_text(at, (struct canvas_text){ticks.tick[i].text, x, bottom + 16, ANCHOR_MIDDLE,
                                                 TICK_SIZE, false, INK_MUTED});
    }
}

static void y_axis(const struct layout *at, const struct axis *y, double top, double bottom)
{
    struct axis_ticks ticks;

    axis_ticks(&ticks, y, (int)((bottom - top) / 28));
    for (int i = 0; i < ticks.nticks; i++) {
        const double place = axis_place(y, ticks.tick[i].value);
        const double at_y = bottom - place * (bottom - top);
        struct canvas_pen pen = layout_pen(INK_GRID, 1);
        pen.opacity = ticks.tick[i].is_minor ? 0.45 : 1;
        layout_stroke(at, pen, at->left, at_y, at->right, at_y);
        if (!ticks.tick[i].is_minor)
            layout_text(at, (struct canvas_text){ticks.tick[i].text, at->left - 7, at_y + 4,
                                                 ANCHOR_END, TICK_SIZE, false, INK_MUTED});
    }
}

/* Each run of points without a gap is an area: along y, and back along y_to. */
static int draw_band(const struct layout *at, const struct chart_series *series,
                     const struct axis *y, double top, double bottom, struct fsdp_err *err)
{
    const size_t n = series->npoints;
    const struct canvas_pen pen = pen_of_series(series);
    double *xy = fsdp_alloc(4 * n + 1, sizeof *xy, "band", err);
    size_t nrun = 0;

    if (!xy)
        return FSDP_ENOMEM;
    for (size_t i = 0; i <= n; i++) {
        const double x = i < n ? axis_place(&at->x, series->x[i]) : NAN;
        const double from = i < n ? axis_place(y, series->y[i]) : NAN;
        const double to = i < n ? axis_place(y, series->y_to[i]) : NAN;
        if (!isnan(x) && !isnan(from) && !isnan(to)) {
            /* The way back is kept from the end of xy on. */
            double *there = xy + 2 * nrun, *back = xy + 4 * n - 2 * (nrun + 1);
            there[0] = back[0] = at->left + x * (at->right - at->left);
            there[1] = bottom - from * (bottom - top);
            back[1] = bottom - to * (bottom - top);
            nrun++;
        } else if (nrun) {
            memmove(xy + 2 * nrun, xy + 4 * n - 2 * nrun, 2 * nrun * sizeof *xy);
            at->canvas->ops->area(at->canvas->to, &pen, xy, 2 * nrun);
            nrun = 0;
        }
    }
    fsdp_free(xy);
    return FSDP_OK;
}

static int draw_series(const struct layout *at, const struct chart_series *series,
                       const struct axis *y, double top, double bottom, struct fsdp_err *err)
{
    struct thin_points points;
    const struct canvas_pen pen = pen_of_series(series);

    if (series->style == CHART_BAND)
        return draw_band(at, series, y, top, bottom, err);
    FSDP_TRY(thin_series(&points, series, &at->x, y, (int)(at->right - at->left), err));
    for (size_t i = 0; i < points.npoints; i++) {
        double *xy = points.xy + 2 * i;
        xy[0] = at->left + xy[0] * (at->right - at->left);
        xy[1] = bottom - xy[1] * (bottom - top);
    }
    at->canvas->ops->path(at->canvas->to, &pen, points.xy, points.npoints);
    if (series->style == CHART_POINTS) {
        const struct canvas_pen dot = layout_pen(series->colour, points.npoints > 200 ? 1.5 : 3.2);
        at->canvas->ops->dots(at->canvas->to, &dot, points.xy, points.npoints);
    }
    fsdp_free(points.xy);
    return FSDP_OK;
}

static void draw_level(const struct layout *at, const struct chart_level *level,
                       const struct axis *y, double top, double bottom)
{
    const double at_y = bottom - axis_place(y, level->y) * (bottom - top);
    struct canvas_pen pen = layout_pen(INK_MUTED, 1.2);

    if (isnan(at_y))
        return;
    pen.dash = DASH_LONG;
    layout_stroke(at, pen, at->left, at_y, at->right, at_y);
    if (level->label)
        layout_text(at, (struct canvas_text){level->label, at->right - 4, at_y - 5, ANCHOR_END,
                                             TICK_SIZE, false, INK_MUTED});
}

static int draw_panel(const struct layout *at, const struct chart_panel *panel, double top,
                      double bottom, bool is_last, struct fsdp_err *err)
{
    const struct axis y = extent_y(at->chart, panel);
    int rc = FSDP_OK;

    if (panel->title)
        layout_text(at, (struct canvas_text){panel->title, EDGE, top - 7, ANCHOR_START, TEXT_SIZE,
                                             true, INK_TEXT});
    x_axis(at, top, bottom, is_last);
    y_axis(at, &y, top, bottom);
    marker_lines(at, top, bottom);
    for (int l = 0; l < panel->nlevels; l++)
        draw_level(at, &panel->levels[l], &y, top, bottom);
    for (int band = 1; band >= 0; band--) /* bands lie below all lines */
        for (int s = 0; s < panel->nseries && !rc; s++)
            if ((panel->series[s].style == CHART_BAND) == band)
                rc = draw_series(at, &panel->series[s], &y, top, bottom, err);
    if (at->chart->end_labels)
        ends_draw(at, panel, &y, top, bottom);
    layout_stroke(at, layout_pen(INK_MUTED, 1), at->left, bottom, at->right, bottom);
    return rc;
}

/* The width of the widest text of a y axis. */
static double widest_tick(const struct chart *chart)
{
    double width = 0;

    for (int p = 0; p < chart->npanels; p++) {
        const struct axis y = extent_y(chart, &chart->panels[p]);
        struct axis_ticks ticks;
        axis_ticks(&ticks, &y, 8);
        for (int i = 0; i < ticks.nticks; i++)
            width = fmax(width, canvas_text_width(ticks.tick[i].text, TICK_SIZE));
    }
    return width;
}

/* ---- the page -------------------------------------------------------------------------------- */

int page_size(struct chart_page *page, const struct chart *chart, struct fsdp_err *err)
{
    if (chart->npanels < 1)
        return fsdp_err_set(err, FSDP_EINVAL, "there is no point to draw");
    if (!page->width)
        page->width = 960;
    if (bars_any(chart))
        FSDP_TRY(bars_check(chart, err));
    if (!page->height && bars_any(chart))
        page->height = bars_height(chart, page->width);
    if (!page->height)
        page->height = 100 + FOOT + FIRST_HEIGHT +
                       (chart->npanels - 1) * (NEXT_HEIGHT + PANEL_TITLE + PANEL_GAP);
    if (page->width < 200 || page->height < 150 || page->width > 20000 || page->height > 20000)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "a picture of %d x %d pixels: it needs 200 x 150 to 20000 x 20000",
                            page->width, page->height);
    return FSDP_OK;
}

int page_draw(const struct canvas *canvas, const struct chart *chart, const struct chart_page *page,
              struct fsdp_err *err)
{
    struct layout at = {
        .canvas = canvas, .chart = chart, .width = page->width, .height = page->height};

    if (bars_any(chart))
        return bars_draw(&at, err);
    FSDP_TRY(extent_x(&at.x, chart, err));
    at.left = EDGE + fmax(widest_tick(chart) + 6, 30);
    at.right = at.width - EDGE - fmax(10, ends_width(chart));
    at.top = EDGE + draw_head(&at, EDGE) + 2;
    const int nrows = marker_labels(&at, 0, 0);
    at.top += nrows * 15;
    at.bottom = at.height - FOOT - (chart->x_title ? 0 : -14);

    /* The first panel is twice as high as the others. */
    const int n = chart->npanels;
    const double room = at.bottom - at.top - n * PANEL_TITLE - (n - 1) * PANEL_GAP;
    const double unit = room / (n > 1 ? n + 1 : 1);
    if (unit < LEAST_HEIGHT)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "a height of %d pixels has no room for %d panels; it takes %.0f",
                            page->height, n, page->height + (LEAST_HEIGHT - unit) * (n + 1));
    double top = at.top;
    for (int p = 0; p < n; p++) {
        const double height = p || n == 1 ? unit : 2 * unit;
        if (!p && nrows)
            marker_labels(&at, top, nrows);
        top += PANEL_TITLE;
        FSDP_TRY(draw_panel(&at, &chart->panels[p], top, top + height, p == n - 1, err));
        top += height + PANEL_GAP;
    }
    if (chart->x_title)
        layout_text(&at,
                    (struct canvas_text){chart->x_title, (at.left + at.right) / 2, at.height - 8,
                                         ANCHOR_MIDDLE, TEXT_SIZE, false, INK_MUTED});
    return FSDP_OK;
}
