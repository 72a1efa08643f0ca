/* SPDX-License-Identifier: Apache-2.0 */
/* canvas.h: what SVG and PNG draw with, and the colours of all backends. */
#ifndef CHART_CANVAS_H
#define CHART_CANVAS_H

#include "chart.h"

/* Inks from 0 on are the colours of series. */
enum { INK_TEXT = -1, INK_MUTED = -2, INK_GRID = -3, INK_PAPER = -4, NINKS = CHART_NCOLOURS + 4 };

enum canvas_dash { DASH_NONE, DASH_LONG, DASH_SHORT };

struct canvas_pen {
    int ink;
    double width, opacity;
    enum canvas_dash dash;
};

struct canvas_text {
    const char *text;
    double x, y; /* of the base line */
    enum { ANCHOR_START, ANCHOR_MIDDLE, ANCHOR_END } anchor;
    int size; /* pixels */
    bool is_bold;
    int ink;
};

/* Points are pairs of pixels from the upper left corner. Errors are kept until the backend's end.
 */
struct canvas_ops {
    void (*path)(void *to, const struct canvas_pen *pen, const double *xy, size_t npoints);
    /* A closed area, filled with the pen's ink and opacity. */
    void (*area)(void *to, const struct canvas_pen *pen, const double *xy, size_t npoints);
    void (*dots)(void *to, const struct canvas_pen *pen, const double *xy, size_t npoints);
    void (*text)(void *to, const struct canvas_text *text);
};

struct canvas {
    const struct canvas_ops *ops;
    void *to;
};

/* 0xRRGGBB of an ink. */
unsigned canvas_rgb(int ink, bool is_dark);
/* The place of an ink among NINKS. */
int canvas_ink(int ink);
/* About how wide a text is. */
double canvas_text_width(const char *text, int size);

/* Fills in width and height where they are 0. */
int page_size(struct chart_page *page, const struct chart *chart, struct fsdp_err *err);
/* Draws all but the background. */
int page_draw(const struct canvas *canvas, const struct chart *chart, const struct chart_page *page,
              struct fsdp_err *err);

#endif
