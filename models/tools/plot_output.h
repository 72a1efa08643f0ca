/* SPDX-License-Identifier: Apache-2.0 */
/* plot_output.h: where fsdp-plot's chart goes: a file, a pipe, or a terminal. */
#ifndef TOOLS_PLOT_OUTPUT_H
#define TOOLS_PLOT_OUTPUT_H

#include "chart/chart.h"

enum { PLOT_MAX_PANELS = 8, PLOT_MAX_LEVELS = 8, PLOT_MAX_RUNS = 64 };
enum plot_format { PLOT_AUTO, PLOT_SVG, PLOT_PNG, PLOT_TEXT };

struct plot_keys {
    char text[512];
    const char *key[PLOT_MAX_PANELS];
    int nkeys;
};

struct plot_levels {
    struct chart_level level[PLOT_MAX_LEVELS];
    int nlevels;
};

struct plot_settings {
    const char *output, *title;
    int format, x, log, theme, color; /* of the program's words */
    int smooth, width, height;
    struct plot_keys keys;
    bool default_keys;
    struct plot_levels levels;
};

/* Sets the format where it is auto. Returns what is wrong with the command line, or NULL. */
const char *plot_choose_format(struct plot_settings *set);
int plot_output(const struct plot_settings *set, const struct chart *chart, struct fsdp_err *err);

#endif
