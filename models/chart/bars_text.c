/* SPDX-License-Identifier: Apache-2.0 */
/* Panels of horizontal bars in a terminal. */
#include <math.h>
#include <stdio.h>

#include "bars.h"
#include "cells.h"

enum { BLOCK = 0x2588, NOTE_COLUMNS = 18 };

struct place {
    struct cells *cells;
    bool plain; /* letters for parts: neither colours nor blocks */
    int left;   /* column of the bars */
    int right;
};

static uint32_t glyph(const struct place *at, int part)
{
    return at->plain ? (uint32_t)('A' + part % 26) : BLOCK;
}

static int draw_parts(const struct place *at, const struct chart_bars *b, int line)
{
    const int first = line;
    int column = 0;

    for (int i = 0; i < b->nparts; i++) {
        const int width = 2 + cells_text_width(b->parts[i].label);
        if (!bars_has_part(b, i))
            continue;
        if (column && column + width > at->cells->ncolumns) {
            column = 0;
            line++;
        }
        cells_put(at->cells, column, line, glyph(at, i), b->parts[i].colour);
        cells_text(at->cells, column + 2, line, at->cells->ncolumns, b->parts[i].label, INK_TEXT,
                   false);
        column += width + 2;
    }
    return line - first + 1;
}

static void draw_bar(const struct place *at, const struct chart_bars *b, const struct axis *axis,
                     int bar, int line)
{
    int column = at->left;
    double sum = 0;

    cells_text(at->cells, 0, line, at->left - 1, b->names[bar], INK_TEXT, false);
    for (int i = 0; i < b->nparts; i++) {
        const double value = b->values[bar * b->nparts + i];
        if (!isfinite(value) || value <= 0)
            continue;
        sum += value;
        const double place = fmin(1, axis_place(axis, sum));
        const int end = at->left + (int)lround(place * (at->right - at->left));
        for (; column < end; column++)
            cells_put(at->cells, column, line, glyph(at, i), b->parts[i].colour);
    }
    if (sum > axis->hi)
        cells_put(at->cells, column++, line, '>', INK_MUTED);
    if (b->notes && b->notes[bar])
        cells_text(at->cells, column + 1, line, at->cells->ncolumns, b->notes[bar], INK_MUTED,
                   false);
}

/* Returns the lines that it takes; draws if cells has some. */
static int draw_panel(const struct place *at, const struct chart_panel *panel, int line)
{
    const struct chart_bars *b = panel->bars;
    const struct axis axis = bars_axis(b);
    const int first = line;

    if (panel->title)
        cells_text(at->cells, 0, line++, at->cells->ncolumns, panel->title, INK_TEXT, true);
    line += draw_parts(at, b, line);
    for (int i = 0; i < b->nbars; i++)
        draw_bar(at, b, &axis, i, line++);
    return line - first;
}

static int draw_all(const struct place *at, const struct chart *chart)
{
    int line = 0;

    if (chart->title)
        cells_text(at->cells, 0, line++, at->cells->ncolumns, chart->title, INK_TEXT, true);
    for (int p = 0; p < chart->npanels; p++)
        line += draw_panel(at, &chart->panels[p], line) + 1;
    return line - 1;
}

int bars_text(FILE *to, const struct chart *chart, const struct chart_terminal *terminal,
              struct fsdp_err *err)
{
    struct chart_terminal size = *terminal;
    struct cells cells = {.ncolumns = size.ncolumns, .terminal = &size};
    struct place at = {.cells = &cells, .plain = size.ascii || !size.colours};

    FSDP_TRY(bars_check(chart, err));
    for (int p = 0; p < chart->npanels; p++)
        for (int i = 0; i < chart->panels[p].bars->nbars; i++) {
            const int width = cells_text_width(chart->panels[p].bars->names[i]) + 1;
            at.left = width > at.left ? width : at.left;
        }
    at.left = at.left > size.ncolumns / 2 ? size.ncolumns / 2 : at.left;
    at.right = size.ncolumns - NOTE_COLUMNS;
    size.nlines = draw_all(&at, chart); /* nothing is drawn where there are no lines */
    if (at.right < at.left + 8)
        return fsdp_err_set(err, FSDP_EINVAL, "%d columns have no room for bars; they take %d",
                            size.ncolumns, at.left + 8 + NOTE_COLUMNS);
    FSDP_TRY(cells_create(&cells, &size, err));
    draw_all(&at, chart);
    const int rc = cells_print(&cells, to, err);
    cells_destroy(&cells);
    return rc;
}
