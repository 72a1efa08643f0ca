/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "chart_terminal.h"

static int number_in_environment(const char *name)
{
    const char *text = getenv(name);
    const long value = text ? strtol(text, NULL, 10) : 0;

    return value > 0 && value < 20000 ? (int)value : 0;
}

static bool has_part(const char *text, const char *part)
{
    return text && strcasestr(text, part);
}

/* A locale that names another set of characters than UTF-8; one that names none says nothing. */
static bool is_ascii_only(void)
{
    const char *locale = getenv("LC_ALL");

    if (!locale || !*locale)
        locale = getenv("LC_CTYPE");
    if (!locale || !*locale)
        locale = getenv("LANG");
    const char *charset = locale ? strchr(locale, '.') : NULL;
    return (charset && !has_part(charset, "utf")) || has_part(getenv("TERM"), "dumb");
}

static int find_colours(enum chart_colours when)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");

    if (when == CHART_COLOURS_NEVER ||
        (when == CHART_COLOURS_AUTO &&
         ((no && *no) || !isatty(STDOUT_FILENO) || !term || !*term || !strcmp(term, "dumb"))))
        return CHART_NO_COLOUR;
    return has_part(term, "256") || has_part(term, "kitty") || has_part(term, "direct") ||
                   getenv("COLORTERM") || !term
               ? CHART_256_COLOURS
               : CHART_16_COLOURS;
}

struct chart_terminal chart_terminal_find(int ncolumns, int nlines, enum chart_colours when)
{
    struct chart_terminal terminal = {.ascii = is_ascii_only()};
    struct winsize size = {0};
    const bool known = isatty(STDOUT_FILENO) && !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);

    terminal.ncolumns = ncolumns                           ? ncolumns
                        : known && size.ws_col             ? size.ws_col
                        : number_in_environment("COLUMNS") ? number_in_environment("COLUMNS")
                                                           : 80;
    terminal.nlines = nlines                           ? nlines
                      : known && size.ws_row           ? size.ws_row - 1 /* the prompt's */
                      : number_in_environment("LINES") ? number_in_environment("LINES") - 1
                                                       : 23;
    terminal.colours = find_colours(when);
    return terminal;
}
