/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "chart_terminal.h"
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

static int draw_chart(FILE *to, const struct plot_settings *set, const struct chart *chart,
                      struct fsdp_err *err)
{
    const struct chart_page page = {set->width, set->height, (enum chart_theme)set->theme, false};
    const struct chart_terminal terminal = chart_terminal_find(set->width, set->height,
                                                               (enum chart_colours)set->color);

    if (set->format == PLOT_TEXT)
        return chart_text(to, chart, &terminal, err);
    return set->format == PLOT_SVG ? chart_svg(to, chart, &page, err)
                                   : chart_png(to, chart, &page, err);
}

static int draw_and_close(FILE *to, const struct plot_settings *set, const struct chart *chart,
                          const char *path, struct fsdp_err *err)
{
    int rc = draw_chart(to, set, chart, err);

    errno = 0;
    if (fclose(to) && !rc)
        rc = fsdp_err_sys(err, errno ? errno : EIO, "%s", path);
    return rc;
}

/* A picture takes the place of an old one only when it is whole. */
static int replace_file(const struct plot_settings *set, const struct chart *chart,
                        struct fsdp_err *err)
{
    char *other = fsdp_sprintf(err, "%s.tmp%ld", set->output, (long)getpid());

    if (!other)
        return FSDP_ENOMEM;
    FILE *to = fopen(other, "wxe");
    int rc = to ? draw_and_close(to, set, chart, other, err)
                : fsdp_err_sys(err, errno, "%s", set->output);
    if (!rc && rename(other, set->output))
        rc = fsdp_err_sys(err, errno, "%s", set->output);
    if (rc && to)
        unlink(other);
    fsdp_free(other);
    return rc;
}

int plot_output(const struct plot_settings *set, const struct chart *chart, struct fsdp_err *err)
{
    struct stat st;

    if (!set->output || !strcmp(set->output, "-"))
        return draw_and_close(stdout, set, chart, "standard output", err);
    if (lstat(set->output, &st) || S_ISREG(st.st_mode))
        return replace_file(set, chart, err);
    FILE *to = fopen(set->output, "we"); /* a pipe, a device or a link: what it names is written */
    return to ? draw_and_close(to, set, chart, set->output, err)
              : fsdp_err_sys(err, errno, "%s", set->output);
}
