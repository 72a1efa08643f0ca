/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-plot: the curves of runs, in a terminal or as a picture. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "curves/curves.h"
#include "options.h"
#include "plot_output.h"

static const char usage[] =
    "Usage: fsdp-plot METRICS... [-o FILE.svg|FILE.png] [option...]\n"
    "\n"
    "Draws the curves of one run or several: of each METRICS, a file that log.metrics\n"
    "named, a folder with a metrics.jsonl in it, or - for standard input. Without -o\n"
    "it draws in the terminal. Restarts are marked; steps that ran twice are drawn\n"
    "twice.\n"
    "\n"
    "  -o, --output FILE    write a picture: .svg or .png; - is standard output\n"
    "  --format KIND        svg, png or text, whatever FILE is called\n"
    "  --keys A,B,...       a panel for each of these keys\n"
    "                       (loss,tokens_per_s,grad_norm)\n"
    "  --x AXIS             step, tokens, time (seconds of training) or wall (step)\n"
    "  --log AXES           logarithmic axes: x, y, xy, none; auto is y where values\n"
    "                       are far apart (auto)\n"
    "  --smooth N           draw means of N steps, over pale values (1)\n"
    "  --level Y[:LABEL]    a horizontal line in the first panel; may be given again\n"
    "  --title TEXT         a title\n"
    "  --theme WHICH        auto, light or dark; an SVG's auto follows the reader's\n"
    "                       device (auto)\n"
    "  --width N            pixels, or columns of a terminal\n"
    "  --height N           pixels, or lines of a terminal\n"
    "  --color WHEN         in a terminal: auto, always or never (auto)\n"
    "  -h, --help           print this help\n"
    "  --version            print the version\n";

/* ---- settings -------------------------------------------------------------------------------- */

static int take_keys(void *to, const char *text, struct fsdp_err *err)
{
    struct plot_keys *keys = to;
    char *at = keys->text;

    if (strlen(text) >= sizeof keys->text)
        return fsdp_err_set(err, FSDP_EINVAL, "longer than %zu bytes", sizeof keys->text - 1);
    strcpy(keys->text, text);
    keys->nkeys = 0;
    for (char *key; (key = strsep(&at, ","));) {
        if (!*key)
            return fsdp_err_set(err, FSDP_EINVAL,
                                "'%s' has an empty key; name keys such as loss,lr", text);
        if (keys->nkeys == PLOT_MAX_PANELS)
            return fsdp_err_set(err, FSDP_EINVAL, "more than %d keys", PLOT_MAX_PANELS);
        for (int i = 0; i < keys->nkeys; i++)
            if (!strcmp(keys->key[i], key))
                return fsdp_err_set(err, FSDP_EINVAL, "'%s' twice", key);
        keys->key[keys->nkeys++] = key;
    }
    return FSDP_OK;
}

static int take_level(void *to, const char *text, struct fsdp_err *err)
{
    struct plot_levels *levels = to;
    char *end;
    const double y = strtod(text, &end);

    if (end == text || (*end && *end != ':') || !isfinite(y))
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' is not a level such as 2.5:target", text);
    if (levels->nlevels == PLOT_MAX_LEVELS)
        return fsdp_err_set(err, FSDP_EINVAL, "more than %d levels", PLOT_MAX_LEVELS);
    levels->level[levels->nlevels++] = (struct chart_level){y, *end && end[1] ? end + 1 : NULL};
    return FSDP_OK;
}

static const char *const formats[] = {"auto", "svg", "png", "text", NULL};
static const char *const axes[] = {"step", "tokens", "time", "wall", NULL};
static const char *const logs[] = {"auto", "x", "y", "xy", "none", NULL};
static const char *const themes[] = {"auto", "light", "dark", NULL};
static const char *const whens[] = {"auto", "always", "never", NULL};

#define AT(field) offsetof(struct plot_settings, field)
static const struct option_row rows[] = {
    {"output", OPTION_TEXT, AT(output), 0, 0, NULL, NULL},
    {"format", OPTION_WORD, AT(format), 0, 0, formats, NULL},
    {"keys", OPTION_OWN, AT(keys), 0, 0, NULL, take_keys},
    {"x", OPTION_WORD, AT(x), 0, 0, axes, NULL},
    {"log", OPTION_WORD, AT(log), 0, 0, logs, NULL},
    {"smooth", OPTION_INT, AT(smooth), 1, 1000000000, NULL, NULL},
    {"level", OPTION_OWN, AT(levels), 0, 0, NULL, take_level},
    {"title", OPTION_TEXT, AT(title), 0, 0, NULL, NULL},
    {"theme", OPTION_WORD, AT(theme), 0, 0, themes, NULL},
    {"width", OPTION_INT, AT(width), 1, 20000, NULL, NULL},
    {"height", OPTION_INT, AT(height), 1, 20000, NULL, NULL},
    {"color", OPTION_WORD, AT(color), 0, 0, whens, NULL},
};
static const struct option_table table = {"fsdp-plot", usage, rows, sizeof rows / sizeof rows[0],
                                          true};

/* ---- what it does ---------------------------------------------------------------------------- */

static void warn_of_lines(const struct run *run)
{
    if (run->nbad)
        fprintf(stderr, "fsdp-plot: %s: %llu line%s no metrics, left out\n", run->path,
                (unsigned long long)run->nbad, run->nbad == 1 ? " is" : "s are");
}

static int read_runs(struct run *runs, char **paths, int nruns, const struct plot_settings *set,
                     struct fsdp_err *err)
{
    const char *columns[RUN_MAX_KEYS];
    const int ncolumns = curves_columns(columns, set->keys.key, set->keys.nkeys);

    for (int i = 0; i < nruns; i++) {
        FSDP_TRY(run_create(&runs[i], columns, ncolumns, err));
        FSDP_TRY(run_read(&runs[i], paths[i], err));
        warn_of_lines(&runs[i]);
        if (!runs[i].nrows)
            return fsdp_err_set(err, FSDP_EINVAL, "%s: there is no line of metrics in it%s",
                                runs[i].path, runs[i].ends_in_middle ? " that has an end" : "");
    }
    return curves_label(runs, nruns, err);
}

/* The folder of a run is its best title. */
static const char *title_of(const struct plot_settings *set, const struct run *runs, int nruns)
{
    if (set->title)
        return set->title[0] ? set->title : NULL;
    return nruns == 1 ? runs[0].path : NULL;
}

static int plot(struct plot_settings *set, char **paths, int nruns, struct fsdp_err *err)
{
    struct run *runs = fsdp_alloc((size_t)nruns, sizeof *runs, "runs", err);
    struct curves *curves = NULL;

    if (!runs)
        return FSDP_ENOMEM;
    int rc = read_runs(runs, paths, nruns, set, err);
    const struct curves_ask ask = {.keys = set->keys.key,
                                   .nkeys = set->keys.nkeys,
                                   .skip_empty = set->default_keys,
                                   .x = (enum curves_x)set->x,
                                   .log = (enum curves_log)set->log,
                                   .smooth = set->smooth,
                                   .title = rc ? NULL : title_of(set, runs, nruns),
                                   .levels = set->levels.level,
                                   .nlevels = set->levels.nlevels};
    if (!rc)
        rc = curves_create(&curves, runs, nruns, &ask, err);
    if (!rc)
        rc = plot_output(set, curves_chart(curves), err);
    curves_destroy(curves);
    for (int i = 0; i < nruns; i++)
        run_destroy(&runs[i]);
    fsdp_free(runs);
    return rc;
}

int main(int argc, char **argv)
{
    struct plot_settings set = {.smooth = 1};
    struct fsdp_err err = FSDP_ERR_INIT;

    fsdp_std_fill();
    int rc = options_parse(&table, &set, argc, argv);
    if (rc >= 0)
        return rc;
    if (optind == argc)
        return options_refuse(&table, "name a file of metrics, or a folder that holds one");
    if (argc - optind > PLOT_MAX_RUNS)
        return options_refuse(&table, "more than 64 runs in one picture");
    if (!set.keys.nkeys) {
        set.default_keys = true;
        take_keys(&set.keys, "loss,tokens_per_s,grad_norm", NULL);
    }
    const char *wrong = plot_choose_format(&set);
    if (wrong)
        return options_refuse(&table, wrong);
    rc = plot(&set, argv + optind, argc - optind, &err);
    if (rc)
        fprintf(stderr, "fsdp-plot: %s\n", err.text);
    return rc ? 1 : 0;
}
