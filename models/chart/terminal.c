/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a chart in a terminal, like that of a page (page.c), in characters. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bars.h"
#include "cells.h"
#include "extent.h"
#include "legend.h"
#include "thin.h"

enum { LEAST_ROWS = 4, MAX_LABEL_ROWS = 4, MAX_COLUMNS = 1000, MAX_LINES = 400 };

struct glyphs {
    uint32_t side, corner, floor, tick, marker, level, dot, dash;
};
static const struct glyphs lines = {0x2502, 0x2514, 0x2500, 0x2534, 0x2506, 0x2504, 0x25cf, 0x2501};
static const struct glyphs ascii = {'|', '+', '-', '+', ':', '.', 'o', '='};

struct term {
    struct cells cells;
    const struct glyphs *glyphs;
    const struct chart *chart;
    struct axis x;
    int left;    /* column of the y axis; the plot begins after it */
    int npanels; /* that fit */
};

static int plot_columns(const struct term *term)
{
    return term->cells.ncolumns - term->left - 1;
}

static int column_of(const struct term *term, double value)
{
    const double place = axis_place(&term->x, value);

    return isnan(place) ? -1 : term->left + 1 + (int)lround(place * (plot_columns(term) - 1));
}

/* ---- the head -------------------------------------------------------------------------------- */

static int draw_entry(struct term *term, const struct chart_series *series, int column, int line)
{
    const int end = term->cells.ncolumns;

    if (term->glyphs == &ascii)
        cells_put(&term->cells, column + 1, line,
                  (uint32_t) "*+ox#@%&"[series->colour % CHART_NCOLOURS], series -> colour);
    else if (series->style == CHART_POINTS)
        cells_put(&term->cells, column + 1, line, term->glyphs->dot, series->colour);
    else
        for (int i = 0; i < 2; i++)
            cells_put(&term->cells, column + i, line, term->glyphs->dash, series->colour);
    return 3 + cells_text(&term->cells, column + 3, line, end, series->label, INK_TEXT, false);
}

/* Returns the lines that it takes; draws them if `draw`. */
static int draw_legend(struct term *term, int line, bool draw)
{
    const int first = line;
    int column = 0, nentries = 0;

    for (int p = 0; p < term->npanels; p++)
        for (int s = 0; s < term->chart->panels[p].nseries; s++) {
            const struct chart_series *series = &term->chart->panels[p].series[s];
            if (!series->label || series->style == CHART_BAND || legend_is_told(term->chart, p, s))
                continue;
            const int width = 3 + cells_text_width(series->label);
            if (column && column + width > term->cells.ncolumns) {
                column = 0;
                line++;
            }
            if (draw)
                draw_entry(term, series, column, line);
            column += width + 3;
            nentries++;
        }
    return nentries ? line - first + 1 : 0;
}

static int draw_head(struct term *term, bool draw)
{
    const struct chart *chart = term->chart;
    const int end = term->cells.ncolumns;
    int column = 0, line = 0;

    if (chart->title || chart->subtitle) {
        if (draw && chart->title)
            column = cells_text(&term->cells, 0, 0, end, chart->title, INK_TEXT, true) + 2;
        if (draw && chart->subtitle && column + cells_text_width(chart->subtitle) <= end)
            cells_text(&term->cells, column, 0, end, chart->subtitle, INK_MUTED, false);
        line++;
    }
    return line + draw_legend(term, line, draw);
}

/* ---- markers --------------------------------------------------------------------------------- */

static bool is_crossed(const struct term *term, int begin, int end)
{
    for (int m = 0; m < term->chart->nmarkers; m++) {
        const int column = column_of(term, term->chart->markers[m].x);
        if (column >= begin && column < end)
            return true;
    }
    return false;
}

/* As in page.c: right of the line, or left of it at the edge and where another line would cross. */
static int place_label(const struct term *term, int column, int width)
{
    const int right = column + 1, left = column - width;
    const bool right_fits = right + width <= term->cells.ncolumns;

    if (left >= 0 && (!right_fits ||
                      (is_crossed(term, right, right + width) && !is_crossed(term, left, column))))
        return left;
    return right_fits ? right : term->cells.ncolumns > width ? term->cells.ncolumns - width : 0;
}

/* The rows that labels take; draws them, the last above `bottom`, if nrows is not 0. */
static int marker_labels(struct term *term, int bottom, int nrows)
{
    int row_end[MAX_LABEL_ROWS] = {0}, used = 0;

    for (int m = 0; m < term->chart->nmarkers; m++) {
        const struct chart_marker *marker = &term->chart->markers[m];
        const int column = column_of(term, marker->x);
        if (column < 0 || !marker->label)
            continue;
        const int width = cells_text_width(marker->label);
        const int begin = place_label(term, column, width);
        int row = 0;
        while (row < MAX_LABEL_ROWS - 1 && row_end[row] > begin)
            row++;
        row_end[row] = begin + width + 1;
        used = row + 1 > used ? row + 1 : used;
        if (!nrows)
            continue;
        const int line = bottom - nrows + row;
        const int ink = marker->colour < 0 ? INK_MUTED : marker->colour;
        for (int below = line; below < bottom; below++)
            cells_put(&term->cells, column, below, term->glyphs->marker, ink);
        cells_text(&term->cells, begin, line, term->cells.ncolumns, marker->label, ink, false);
    }
    return used;
}

/* ---- panels ---------------------------------------------------------------------------------- */

static void draw_points(struct term *term, const struct chart_series *series,
                        const struct thin_points *points, int top, int nrows)
{
    const int wide = 2 * plot_columns(term) - 1, high = 4 * nrows - 1;
    const int ink = series->colour;
    int last[2];
    bool has_last = false;

    for (size_t i = 0; i < points->npoints; i++) {
        const double *xy = points->xy + 2 * i;
        if (isnan(xy[0]) || isnan(xy[1])) {
            has_last = false;
            continue;
        }
        const int at[2] = {2 * (term->left + 1) + (int)lround(xy[0] * wide),
                           4 * top + (int)lround((1 - xy[1]) * high)};
        if (series->style == CHART_POINTS) { /* over what is there */
            cells_clear(&term->cells, at[0] / 2, at[1] / 4);
            cells_put(&term->cells, at[0] / 2, at[1] / 4, term->glyphs->dot, ink);
            continue;
        }
        cells_line(&term->cells, has_last ? last : at, at, ink, series->style == CHART_WIDE);
        memcpy(last, at, sizeof last);
        has_last = true;
    }
}

static int draw_series(struct term *term, const struct chart_panel *panel, const struct axis *y,
                       int top, int nrows, struct fsdp_err *err)
{
    for (int s = 0; s < panel->nseries; s++) {
        struct thin_points points;
        const enum chart_style style = panel->series[s].style;
        if (style == CHART_FAINT || style == CHART_BAND) /* characters cannot be pale enough */
            continue;
        FSDP_TRY(thin_series(&points, &panel->series[s], &term->x, y, 2 * plot_columns(term), err));
        draw_points(term, &panel->series[s], &points, top, nrows);
        fsdp_free(points.xy);
    }
    return FSDP_OK;
}

static int row_of(const struct axis *y, double value, int nrows)
{
    const double place = axis_place(y, value);

    return isnan(place) ? -1 : (int)lround((1 - place) * (4 * nrows - 1)) / 4;
}

static void draw_y_axis(struct term *term, const struct axis *y, int top, int nrows)
{
    struct axis_ticks ticks;

    for (int row = 0; row < nrows; row++)
        cells_put(&term->cells, term->left, top + row, term->glyphs->side, INK_MUTED);
    axis_ticks(&ticks, y, nrows / 3 < 2 ? 2 : nrows / 3);
    for (int i = 0, last = 1000; i < ticks.nticks; i++) {
        const int row = row_of(y, ticks.tick[i].value, nrows);
        if (ticks.tick[i].is_minor || row < 0 || row >= nrows || row == last)
            continue;
        last = row;
        const int width = cells_text_width(ticks.tick[i].text);
        cells_text(&term->cells, term->left - 1 - width, top + row, term->left, ticks.tick[i].text,
                   INK_MUTED, false);
    }
}

static void draw_levels(struct term *term, const struct chart_panel *panel, const struct axis *y,
                        int top, int nrows)
{
    for (int l = 0; l < panel->nlevels; l++) {
        const struct chart_level *level = &panel->levels[l];
        const int row = row_of(y, level->y, nrows), end = term->cells.ncolumns;
        if (row < 0 || row >= nrows)
            continue;
        for (int column = term->left + 1; column < end; column++)
            cells_put(&term->cells, column, top + row, term->glyphs->level, INK_MUTED);
        const int width = level->label ? cells_text_width(level->label) : 0;
        if (width && width < plot_columns(term) - 4)
            cells_text(&term->cells, end - width - 1, top + row, end, level->label, INK_MUTED,
                       false);
    }
}

static int draw_panel(struct term *term, const struct chart_panel *panel, int top, int nrows,
                      struct fsdp_err *err)
{
    const struct axis y = extent_y(term->chart, panel);

    if (panel->title)
        cells_text(&term->cells, 0, top, term->cells.ncolumns, panel->title, INK_TEXT, true);
    top++;
    draw_y_axis(term, &y, top, nrows);
    for (int m = 0; m < term->chart->nmarkers; m++) {
        const struct chart_marker *marker = &term->chart->markers[m];
        const int column = column_of(term, marker->x);
        for (int row = 0; row < nrows && column >= 0; row++)
            cells_put(&term->cells, column, top + row, term->glyphs->marker,
                      marker->colour < 0 ? INK_MUTED : marker->colour);
    }
    draw_levels(term, panel, &y, top, nrows);
    return draw_series(term, panel, &y, top, nrows, err); /* over all of these */
}

static void draw_x_axis(struct term *term, int line)
{
    struct axis_ticks ticks;
    const int end = term->cells.ncolumns;
    int last_end = 0;

    cells_put(&term->cells, term->left, line, term->glyphs->corner, INK_MUTED);
    for (int column = term->left + 1; column < end; column++)
        cells_put(&term->cells, column, line, term->glyphs->floor, INK_MUTED);
    /* The title stands at the left edge of the line of ticks, where there is room, or at the right.
     */
    const char *title = term->chart->x_title;
    axis_ticks(&ticks, &term->x, plot_columns(term) / 12);
    for (int i = 0; i < ticks.nticks; i++) {
        const int column = column_of(term, ticks.tick[i].value);
        const int width = cells_text_width(ticks.tick[i].text);
        int begin = column - width / 2;
        begin = begin + width > end ? end - width : begin;
        if (ticks.tick[i].is_minor || begin < last_end)
            continue;
        cells_put(&term->cells, column, line, term->glyphs->tick, INK_MUTED);
        last_end =
            begin +
            cells_text(&term->cells, begin, line + 1, end, ticks.tick[i].text, INK_MUTED, false) +
            1;
    }
    if (title && last_end + 1 + cells_text_width(title) <= end)
        cells_text(&term->cells, last_end + 1, line + 1, end, title, INK_MUTED, false);
    else if (title)
        cells_text(&term->cells, end - cells_text_width(title), line + 2, end, title, INK_MUTED,
                   false);
}

/* ---- the chart ------------------------------------------------------------------------------- */

static int widest_tick(const struct chart *chart)
{
    int width = 3;

    for (int p = 0; p < chart->npanels; p++) {
        const struct axis y = extent_y(chart, &chart->panels[p]);
        for (int want = 2; want < 8; want++) {
            struct axis_ticks ticks;
            axis_ticks(&ticks, &y, want);
            for (int i = 0; i < ticks.nticks; i++) {
                const int len = cells_text_width(ticks.tick[i].text);
                width = len > width ? len : width;
            }
        }
    }
    return width;
}

/* Rows of the smaller panels, the first has twice as many. Sets how many panels fit. */
static int share_rows(struct term *term, int room)
{
    for (int n = term->chart->npanels; n > 1; n--)
        if ((room - n) / (n + 1) >= LEAST_ROWS) {
            term->npanels = n;
            return (room - n) / (n + 1);
        }
    term->npanels = 1;
    return room - 1;
}

static int draw_all(struct term *term, struct fsdp_err *err)
{
    term->npanels = term->chart->npanels;
    const int nhead = draw_head(term, false), nlabels = marker_labels(term, 0, 0);
    const int room = term->cells.nlines - nhead - nlabels - 3;
    const int unit = share_rows(term, room);
    if (unit < 2)
        return fsdp_err_set(err, FSDP_EINVAL, "%d lines have no room for this chart; it takes %d",
                            term->cells.nlines, term->cells.nlines + 3 - unit);
    draw_head(term, true);
    marker_labels(term, nhead + nlabels, nlabels);
    int top = nhead + nlabels, left_over = room - term->npanels - unit * (term->npanels + 1);
    for (int p = 0; p < term->npanels; p++) {
        const int nrows = term->npanels == 1 ? unit : p ? unit : 2 * unit + left_over;
        FSDP_TRY(draw_panel(term, &term->chart->panels[p], top, nrows, err));
        top += 1 + nrows;
    }
    draw_x_axis(term, top);
    if (term->npanels < term->chart->npanels) {
        char text[80];
        snprintf(text, sizeof text, "(%d more in a window of %d lines)",
                 term->chart->npanels - term->npanels,
                 nhead + nlabels + 3 + term->chart->npanels +
                     LEAST_ROWS * (term->chart->npanels + 1) + 1);
        cells_text(&term->cells, 0, top + 2, term->cells.ncolumns, text, INK_MUTED, false);
    }
    return FSDP_OK;
}

int chart_text(FILE *to, const struct chart *chart, const struct chart_terminal *terminal,
               struct fsdp_err *err)
{
    struct term term = {.chart = chart, .glyphs = terminal->ascii ? &ascii : &lines};
    struct chart_terminal size = *terminal;

    size.ncolumns = size.ncolumns > MAX_COLUMNS ? MAX_COLUMNS : size.ncolumns;
    size.nlines = size.nlines > MAX_LINES ? MAX_LINES : size.nlines;
    if (size.ncolumns < 30 || size.nlines < 8)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "a terminal of %d columns and %d lines: a chart takes 30 and 8",
                            size.ncolumns, size.nlines);
    if (bars_any(chart))
        return bars_text(to, chart, &size, err);
    FSDP_TRY(extent_x(&term.x, chart, err));
    FSDP_TRY(cells_create(&term.cells, &size, err));
    term.left = widest_tick(chart) + 1;
    int rc = draw_all(&term, err);
    if (!rc)
        rc = cells_print(&term.cells, to, err);
    cells_destroy(&term.cells);
    return rc;
}
