/* SPDX-License-Identifier: Apache-2.0 */
/* cells.h: a grid of characters in colours, of which each can hold 2 x 4 dots of braille. */
#ifndef CHART_CELLS_H
#define CHART_CELLS_H

#include "canvas.h"

struct cell {
    uint32_t code; /* a character; 0: none */
    uint8_t dots;
    signed char ink, under; /* of the dots or the character; of a broad line below it, or NINKS */
    bool is_bold;
};

struct cells {
    int ncolumns, nlines;
    struct cell *cell;
    const struct chart_terminal *terminal;
};

int cells_create(struct cells *out, const struct chart_terminal *terminal, struct fsdp_err *err);
void cells_destroy(struct cells *cells);
/* A character where there is no dot yet; outside the grid nothing happens. */
void cells_put(struct cells *cells, int column, int line, uint32_t code, int ink);
void cells_clear(struct cells *cells, int column, int line);
/* Returns the number of columns that the text takes; what does not fit up to `end` is cut. */
int cells_text(struct cells *cells, int column, int line, int end, const char *text, int ink,
               bool is_bold);
int cells_text_width(const char *text);
/* Dots are counted from the upper left: 2 to a column, 4 to a line. is_under: a broad line, which
 * stays visible below another. */
void cells_line(struct cells *cells, const int from[2], const int to[2], int ink, bool is_under);
int cells_print(const struct cells *cells, FILE *to, struct fsdp_err *err);

#endif
