/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp-plot: the curves of runs, in a terminal or as a picture. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "curves/curves.h"
#include "fsdp/sys/cli.h"
#include "plot_output.h"

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
static const struct fsdp_cli_option shown_rows[] = {
    {"keys", .arg = "A,B,...", .kind = FSDP_CLI_OWN, .offset = AT(keys), .parse = take_keys,
     .help = "a panel for each of these keys (default: those of loss,tokens_per_s,grad_norm "
             "that have values)"},
    {"x", .arg = "AXIS", .kind = FSDP_CLI_WORD, .offset = AT(x), .words = axes,
     .help = "step, tokens, time (seconds of training) or wall (default: step)"},
    {"log", .arg = "AXES", .kind = FSDP_CLI_WORD, .offset = AT(log), .words = logs,
     .help = "logarithmic axes: x, y, xy or none; auto: y for losses and norms that are far "
             "apart (default: auto)"},
    {"smooth", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(smooth), .least = 1, .most = 1e9,
     .help = "draw means of N steps on top of the pale values (default: 1)"},
    {"level", .arg = "Y[:LABEL]", .kind = FSDP_CLI_OWN, .offset = AT(levels), .parse = take_level,
     .help = "a horizontal line in the first panel; repeat it for more"},
    {"title", .arg = "TEXT", .kind = FSDP_CLI_TEXT, .offset = AT(title),
     .help = "the title (default: the path, of a single run)"},
    {.help = NULL}};
static const struct fsdp_cli_option output_rows[] = {
    {"output", 'o', "FILE", FSDP_CLI_FILE, AT(output),
     .help = "write a picture: FILE.svg or FILE.png; - is standard output"},
    {"format", .arg = "KIND", .kind = FSDP_CLI_WORD, .offset = AT(format), .words = formats,
     .help = "svg, png or text; auto: by the ending of FILE (default: auto)"},
    {"width", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(width), .least = 1, .most = 20000,
     .help = "pixels, or columns of a terminal"},
    {"height", .arg = "N", .kind = FSDP_CLI_INT, .offset = AT(height), .least = 1, .most = 20000,
     .help = "pixels, or lines of a terminal"},
    {"theme", .arg = "WHICH", .kind = FSDP_CLI_WORD, .offset = AT(theme), .words = themes,
     .help = "light, dark or auto: an SVG follows the theme of the reader's device, a PNG is "
             "light (default: auto)"},
    {"color", .arg = "WHEN", .kind = FSDP_CLI_WORD, .offset = AT(color), .words = whens,
     .help = "colours in a terminal: auto, always or never (default: auto)"},
    {.help = NULL}};
static const struct fsdp_cli_group groups[] = {
    {"What is drawn", shown_rows}, {"Where it goes", output_rows}, {NULL, NULL}};
static const struct fsdp_cli_note environment[] = {
    {"NO_COLOR", "if set, --color=auto draws without colours"},
    {"COLUMNS, LINES", "the size of a chart that does not go to a terminal"},
    {NULL, NULL}};
static const struct fsdp_cli_note exits[] = {
    {"0", "drawn"},
    {"1", "a file cannot be read or written, or holds nothing to draw"},
    {"2", "wrong usage"},
    {NULL, NULL}};
static const struct fsdp_cli_program program = {
    .name = "fsdp-plot",
    .usage = "METRICS... [-o FILE.svg|FILE.png] [options]",
    .purpose =
        "Plots the metrics of one run or of several. METRICS is a file that log.metrics names, a "
        "folder with a metrics.jsonl in it, or - for standard input. Without -o, it draws in the "
        "terminal.\n\n"
        "Kills and resumes are marked. Steps that ran twice are drawn twice: the first time broad "
        "and pale, the second time on top of it.",
    .groups = groups,
    .examples = "fsdp-plot out/metrics.jsonl\n"
                "fsdp-plot out/metrics.jsonl -o loss.svg --keys loss,lr --smooth 20\n"
                "fsdp-plot sweep/*/metrics.jsonl -o sweep.png --x time",
    .environment = environment,
    .exits = exits,
    .least = 1,
    .most = PLOT_MAX_RUNS,
    .operands = "a file of metrics, or a folder that holds one",
};

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
        FSDP_TRY(curves_run_create(&runs[i], columns, ncolumns, err));
        FSDP_TRY(curves_run_read(&runs[i], paths[i], err));
        warn_of_lines(&runs[i]);
        if (!runs[i].nrows)
            return fsdp_err_set(err, FSDP_EINVAL,
                                "%s: there is no complete line of metrics in it; name the file of "
                                "log.metrics",
                                runs[i].path);
    }
    return curves_label(runs, nruns, err);
}

/* With --format, -o could name a run's own file. */
static int check_output(const struct plot_settings *set, const struct run *runs, int nruns,
                        struct fsdp_err *err)
{
    struct stat output, input;

    if (!set->output || stat(set->output, &output))
        return FSDP_OK;
    for (int i = 0; i < nruns; i++)
        if (stat(runs[i].path, &input) == 0 && S_ISREG(input.st_mode) &&
            input.st_dev == output.st_dev && input.st_ino == output.st_ino)
            return fsdp_err_set(err, FSDP_EINVAL,
                                "%s holds the metrics that are drawn; name another file with -o",
                                set->output);
    return FSDP_OK;
}

/* The folder of a run is its best title. */
static const char *title_of(const struct plot_settings *set, const struct run *runs, int nruns)
{
    if (set->title)
        return set->title[0] ? set->title : NULL;
    return nruns == 1 ? runs[0].path : NULL;
}

static int plot_runs(struct plot_settings *set, char **paths, int nruns, struct fsdp_err *err)
{
    struct run *runs = fsdp_alloc((size_t)nruns, sizeof *runs, "runs", err);
    struct curves *curves = NULL;

    if (!runs)
        return FSDP_ENOMEM;
    int rc = read_runs(runs, paths, nruns, set, err);
    if (!rc)
        rc = check_output(set, runs, nruns, err);
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
        curves_run_destroy(&runs[i]);
    fsdp_free(runs);
    return rc;
}

int main(int argc, char **argv)
{
    struct plot_settings set = {.smooth = 1};
    struct fsdp_err err = FSDP_ERR_INIT;
    struct fsdp_cli_line line;

    fsdp_std_fill();
    int rc = fsdp_cli_begin(&line, &program, &set, argc, argv, stderr);
    if (rc >= 0)
        return rc;
    if (!set.keys.nkeys) {
        set.default_keys = true;
        take_keys(&set.keys, "loss,tokens_per_s,grad_norm", NULL);
    }
    const char *wrong = plot_choose_format(&set);
    if (wrong)
        return fsdp_cli_refuse(stderr, &program, wrong);
    rc = plot_runs(&set, line.operands, line.noperands, &err);
    if (rc)
        fprintf(stderr, "fsdp-plot: %s\n", err.text);
    return rc ? 1 : 0;
}
