/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chart.h: charts of numbers, drawn as SVG, PNG or text of a terminal.
 *
 * A chart is a column of panels that share the x axis. Markers are vertical lines through all of
 * them. The library has no notion of training: callers bring numbers and labels.
 */
#ifndef CHART_H
#define CHART_H

#include "fsdp/base.h"

enum chart_style {
    CHART_LINE,
    CHART_FAINT,  /* a thin, pale line: what a smoothed one was made from; not in a terminal */
    CHART_WIDE,   /* a broad, pale line, which stays visible under another */
    CHART_POINTS, /* dots, joined by a thin line */
    CHART_BAND,   /* the area between y and y_to, pale, below all lines; not in a terminal */
};

/* Colours are numbers from 0 on. After CHART_NCOLOURS they repeat, with dashed lines. */
enum { CHART_NCOLOURS = 8 };

struct chart_series {
    const char *label; /* in the legend; NULL: not there */
    int colour;
    bool dashed;
    enum chart_style style;
    /* A value that is not finite, or not positive on a logarithmic axis, is a gap. */
    const double *x, *y;
    const double *y_to; /* of CHART_BAND */
    size_t npoints;
};

struct chart_marker { /* a vertical line */
    double x;
    const char *label;
    int colour; /* -1: that of text */
    bool dashed;
};

struct chart_level { /* a horizontal line */
    double y;
    const char *label;
};

/* Horizontal bars of stacked parts, one below the other. Parts have a colour and a texture, which
 * tells them apart in print. */
struct chart_part {
    const char *label;
    int colour;
};

struct chart_bars {
    const char *const *names; /* [nbars], left of the bars */
    const char *const *notes; /* [nbars], right of them; NULL: none */
    int nbars;
    const struct chart_part *parts; /* [nparts], from the left */
    int nparts;
    const double *values; /* [nbars][nparts]; what is not positive is not there */
    const char *unit;     /* of the axis */
    double limit;         /* a vertical line; 0: none */
    const char *limit_label;
    double most; /* the axis ends there at the latest, and longer bars are cut; 0: at the longest */
};

struct chart_panel {
    const char *title;
    /* Not NULL: bars, which have an axis of their own, in place of series. Then all panels of the
     * chart are bars. */
    const struct chart_bars *bars;
    bool log_y;
    bool from_zero; /* a linear axis begins at 0 */
    const struct chart_series *series;
    int nseries;
    const struct chart_level *levels;
    int nlevels;
};

enum chart_unit {
    CHART_NUMBER,
    CHART_COUNT /* whole numbers */,
    CHART_SECONDS,
    CHART_CLOCK /* Unix time */,
    CHART_DOUBLINGS /* whole numbers; a logarithmic axis has its ticks at powers of two */
};

struct chart {
    const char *title, *subtitle; /* NULL: none */
    const char *x_title;
    enum chart_unit x_unit;
    bool log_x;
    bool end_labels; /* of a page: labels stand next to the ends of lines, not in a legend */
    const struct chart_panel *panels;
    int npanels;
    const struct chart_marker *markers;
    int nmarkers;
};

enum chart_theme {
    CHART_AUTO /* SVG: as the reader's device; else light */,
    CHART_LIGHT,
    CHART_DARK
};

struct chart_page {
    int width, height; /* pixels, or columns and lines of a terminal; 0: what suits the chart */
    enum chart_theme theme;
    bool inside; /* SVG is part of a page: no XML header, no background */
};

struct chart_terminal {
    int ncolumns, nlines;
    enum { CHART_NO_COLOUR, CHART_16_COLOURS, CHART_256_COLOURS } colours;
    bool ascii; /* no braille, no line drawing */
};

/* Each draws the chart into `to`. FSDP_EINVAL: there is nothing to draw, or no room. Local, blocks.
 */
int chart_svg(FILE *to, const struct chart *chart, const struct chart_page *page,
              struct fsdp_err *err);
int chart_text(FILE *to, const struct chart *chart, const struct chart_terminal *terminal,
               struct fsdp_err *err);
/* FSDP_EUNSUPPORTED where this build has no cairo (chart_has_png). */
int chart_png(FILE *to, const struct chart *chart, const struct chart_page *page,
              struct fsdp_err *err);
bool chart_has_png(void);

#endif
