/* SPDX-License-Identifier: Apache-2.0 */
/* chart_terminal.h: what charts of a terminal need to know of it. */
#ifndef TOOLS_CHART_TERMINAL_H
#define TOOLS_CHART_TERMINAL_H

#include "chart/chart.h"

enum chart_colours { CHART_COLOURS_AUTO, CHART_COLOURS_ALWAYS, CHART_COLOURS_NEVER };
/* Size (0: that of the terminal; where standard output is none, of COLUMNS and LINES), colours and
 * characters of standard output. */
struct chart_terminal chart_terminal_find(int ncolumns, int nlines, enum chart_colours when);

#endif
