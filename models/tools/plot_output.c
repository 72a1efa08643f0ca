/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "chart_terminal.h"
#include "output.h"
#include "plot_output.h"

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);

    return n > m && !strcasecmp(text + n - m, end);
}

const char *plot_choose_format(struct plot_settings *set)
{
    if (!set->format && !set->output)
        set->format = PLOT_TEXT;
    else if (!set->format && !strcmp(set->output, "-"))
        set->format = PLOT_SVG;
    else if (!set->format)
        set->format = ends_with(set->output, ".svg")   ? PLOT_SVG
                      : ends_with(set->output, ".png") ? PLOT_PNG
                      : ends_with(set->output, ".txt") ? PLOT_TEXT
                                                       : PLOT_AUTO;
    if (!set->format)
        return "the output's name ends in neither .svg nor .png; give --format svg or --format png";
    if (set->format == PLOT_PNG && !chart_has_png())
        return "this build draws no PNG, because it was made without cairo; write an .svg, or "
               "build "
               "with WITH_CAIRO=1";
    if (set->format == PLOT_PNG && (!set->output || !strcmp(set->output, "-")) &&
        isatty(STDOUT_FILENO))
        return "a PNG is nothing for a terminal; give -o FILE.png";
    return NULL;
}

/* ---- files ----------------------------------------------------------------------------------- */

struct drawing {
    const struct plot_settings *set;
    const struct chart *chart;
};

static int draw(FILE *to, const void *ctx, struct fsdp_err *err)
{
    const struct drawing *d = ctx;
    const struct plot_settings *set = d->set;
    const struct chart_page page = {set->width, set->height, (enum chart_theme)set->theme, false};
    const struct chart_terminal terminal =
        chart_terminal_find(set->width, set->height, (enum chart_colours)set->color);

    if (set->format == PLOT_TEXT)
        return chart_text(to, d->chart, &terminal, err);
    return set->format == PLOT_SVG ? chart_svg(to, d->chart, &page, err)
                                   : chart_png(to, d->chart, &page, err);
}

int plot_output(const struct plot_settings *set, const struct chart *chart, struct fsdp_err *err)
{
    const struct drawing d = {set, chart};
    return output_write(set->output ? set->output : "-", draw, &d, err);
}
