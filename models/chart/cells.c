/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cells.h"

int cells_create(struct cells *out, const struct chart_terminal *terminal, struct fsdp_err *err)
{
    *out = (struct cells){terminal->ncolumns, terminal->nlines, NULL, terminal};
    const size_t ncells = (size_t)out->ncolumns * (size_t)out->nlines;
    out->cell = fsdp_alloc(ncells, sizeof *out->cell, "chart", err);
    if (!out->cell)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < ncells; i++)
        out->cell[i] = (struct cell){.ink = INK_TEXT, .under = NINKS};
    return FSDP_OK;
}

void cells_destroy(struct cells *cells)
{
    fsdp_free(cells->cell);
    cells->cell = NULL;
}

static struct cell *cell_at(struct cells *cells, int column, int line)
{
    if (column < 0 || line < 0 || column >= cells->ncolumns || line >= cells->nlines)
        return NULL;
    return &cells->cell[(size_t)line * (size_t)cells->ncolumns + (size_t)column];
}

void cells_put(struct cells *cells, int column, int line, uint32_t code, int ink)
{
    struct cell *cell = cell_at(cells, column, line);

    if (!cell || cell->dots)
        return;
    cell->code = code;
    cell->ink = (signed char)ink;
}

void cells_clear(struct cells *cells, int column, int line)
{
    struct cell *cell = cell_at(cells, column, line);

    if (cell)
        *cell = (struct cell){.ink = INK_TEXT, .under = NINKS};
}

int cells_text(struct cells *cells, int column, int line, int end, const char *text, int ink,
               bool is_bold)
{
    const char *stop = text + strlen(text);
    const int first = column;

    while (text < stop && column < end) {
        uint32_t code;
        const int len = fsdp_utf8_decode(&code, text, stop);
        if (len < 1 || code < 0x20 || (code >= 0x7f && code < 0xa0))
            code = '?';
        if (code > 0x7e && cells->terminal->ascii)
            code = '?';
        cells_put(cells, column, line, code, ink);
        struct cell *cell = cell_at(cells, column++, line);
        if (cell)
            cell->is_bold = is_bold;
        text += len < 1 ? 1 : len;
    }
    return column - first;
}

int cells_text_width(const char *text)
{
    int width = 0;

    for (; *text; text++)
        width += (*text & 0xc0) != 0x80;
    return width;
}

static void put_dot(struct cells *cells, int x, int y, int ink, bool is_under)
{
    static const uint8_t bits[2][4] = {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}};
    struct cell *cell = x < 0 || y < 0 ? NULL : cell_at(cells, x / 2, y / 4);

    if (!cell)
        return;
    cell->dots |= bits[x % 2][y % 4];
    cell->ink = (signed char)ink;
    cell->is_bold = false;
    if (is_under)
        cell->under = (signed char)(ink < 0 ? NINKS : ink);
}

void cells_line(struct cells *cells, const int from[2], const int to[2], int ink, bool is_under)
{
    int x = from[0], y = from[1];
    const int dx = abs(to[0] - x), dy = -abs(to[1] - y);
    const int step_x = x < to[0] ? 1 : -1, step_y = y < to[1] ? 1 : -1;

    for (int error = dx + dy;;) {
        put_dot(cells, x, y, ink, is_under);
        if (x == to[0] && y == to[1])
            return;
        const int twice = 2 * error;
        if (twice >= dy) {
            error += dy;
            x += step_x;
        }
        if (twice <= dx) {
            error += dx;
            y += step_y;
        }
    }
}

/* ---- printing -------------------------------------------------------------------------------- */

static void put_code(FILE *to, uint32_t code)
{
    if (code < 0x80)
        fputc((int)code, to);
    else if (code < 0x800)
        fprintf(to, "%c%c", (int)(0xc0 | code >> 6), (int)(0x80 | (code & 63)));
    else if (code < 0x10000)
        fprintf(to, "%c%c%c", (int)(0xe0 | code >> 12), (int)(0x80 | (code >> 6 & 63)),
                (int)(0x80 | (code & 63)));
    else
        fprintf(to, "%c%c%c%c", (int)(0xf0 | code >> 18), (int)(0x80 | (code >> 12 & 63)),
                (int)(0x80 | (code >> 6 & 63)), (int)(0x80 | (code & 63)));
}

/* Middle tones, which show on dark and on light terminals; the 16 colours are the user's own. */
static const int colours_256[CHART_NCOLOURS] = {33, 208, 35, 169, 99, 37, 136, 167};
static const int colours_16[CHART_NCOLOURS] = {34, 33, 32, 35, 36, 31, 94, 91};

/* The sequence that makes text look like this, "" for plain text. */
static const char *look_of(char out[24], int colours, int ink, bool is_bold)
{
    if (colours == CHART_NO_COLOUR)
        return "";
    if (ink >= 0 && colours == CHART_256_COLOURS)
        snprintf(out, 24, "\033[38;5;%dm", colours_256[ink % CHART_NCOLOURS]);
    else if (ink >= 0)
        snprintf(out, 24, "\033[%dm", colours_16[ink % CHART_NCOLOURS]);
    else
        strcpy(out, ink != INK_TEXT ? "\033[2m" : is_bold ? "\033[1m" : "");
    return out;
}

/* Broad lines show in every other column where another lies on them. */
static int ink_of(const struct cell *cell, int column)
{
    return cell->dots && cell->under != NINKS && column / 2 % 2 ? cell->under : cell->ink;
}

static uint32_t code_of(const struct cells *cells, const struct cell *cell)
{
    static const char marks[] = "*+ox#@%&";

    if (!cell->dots)
        return cell->code ? cell->code : ' ';
    if (cells->terminal->ascii)
        return cell->ink < 0 ? '.' : (uint32_t)marks[cell->ink % CHART_NCOLOURS];
    return 0x2800u + cell->dots;
}

static void print_line(const struct cells *cells, FILE *to, int line)
{
    const struct cell *row = cells->cell + (size_t)line * (size_t)cells->ncolumns;
    char now[24] = "", next[24] = "";
    int end = cells->ncolumns;

    while (end && !row[end - 1].dots && (!row[end - 1].code || row[end - 1].code == ' '))
        end--;
    for (int column = 0; column < end; column++) {
        const struct cell *cell = &row[column];
        const uint32_t code = code_of(cells, cell);
        if (code != ' ') {
            next[0] = 0;
            const char *wanted =
                look_of(next, cells->terminal->colours, ink_of(cell, column), cell->is_bold);
            if (strcmp(wanted, now)) {
                fputs(*now ? "\033[0m" : "", to);
                fputs(wanted, to);
                strcpy(now, wanted);
            }
        }
        put_code(to, code);
    }
    fputs(*now ? "\033[0m\n" : "\n", to);
}

int cells_print(const struct cells *cells, FILE *to, struct fsdp_err *err)
{
    for (int line = 0; line < cells->nlines; line++)
        print_line(cells, to, line);
    if (ferror(to))
        return fsdp_err_sys(err, errno ? errno : EIO, "the chart cannot be written");
    return FSDP_OK;
}
