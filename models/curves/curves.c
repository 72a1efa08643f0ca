/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "curves.h"
#include "keys.h"
#include "story.h"

enum {
    MAX_LABELLED = 4, /* restarts of one run; of more, only the lines are drawn */
    LABEL_NBYTES = 64,
    DECADES_APART = 20, /* a range of this factor gets a logarithmic axis */
};

struct curves {
    struct chart chart;
    const struct curves_ask *ask;
    const struct run *runs;
    int nruns;
    struct story *story; /* of each run */
    struct chart_panel *panel;
    struct chart_series **series; /* of each panel */
    size_t *max_series;
    struct chart_marker *marker;
    size_t max_markers;
    double **values; /* what series point to */
    size_t nvalues, max_values;
    char (*text)[LABEL_NBYTES];
    size_t ntexts, max_texts;
    char subtitle[120];
};

int curves_columns(const char *out[RUN_MAX_KEYS], const char *const *keys, int nkeys)
{
    int n = 0;
    bool has_eval = false, has_loss = false;

    for (int i = 0; i < nkeys && n < RUN_MAX_KEYS - 1; i++) {
        has_eval = has_eval || !strcmp(keys[i], "eval_loss");
        has_loss = has_loss || !strcmp(keys[i], "loss");
        out[n++] = keys[i];
    }
    if (has_loss && !has_eval)
        out[n++] = "eval_loss";
    return n;
}

/* ---- values ---------------------------------------------------------------------------------- */

static double *new_values(struct curves *c, size_t nelem, struct fsdp_err *err)
{
    double **all =
        fsdp_alloc_grow(c->values, c->nvalues, &c->max_values, sizeof *all, "values", err);

    if (!all)
        return NULL;
    c->values = all;
    double *values = fsdp_alloc_unset(nelem, sizeof *values, "values", err);
    if (values)
        all[c->nvalues++] = values;
    return values;
}

/* Texts stay where they are: markers and series point to them. */
static char *new_text(struct curves *c)
{
    return c->ntexts < c->max_texts ? c->text[c->ntexts++] : NULL;
}

static double x_of(const struct curves *c, const struct run_row *row)
{
    static const enum run_column columns[] = {RUN_STEP, RUN_TOKENS, RUN_TIME, RUN_WALL};

    return row->value[columns[c->ask->x]];
}

/* Means of n values around each, fewer at the ends: the mean of a slope is then on the slope. */
static void smooth_values(double *to, const double *from, size_t nelem, int n)
{
    double sum = 0;
    size_t begin = 0, end = 0, nfinite = 0;

    for (size_t i = 0; i < nelem; i++) {
        size_t half = (size_t)n / 2;
        half = half < i ? half : i;
        half = half < nelem - 1 - i ? half : nelem - 1 - i;
        half = half > (size_t)n / 8 ? half : (size_t)n / 8;
        const size_t low = i < half ? 0 : i - half;
        const size_t high = i + half + 1 < nelem ? i + half + 1 : nelem;
        for (; end < high; end++)
            if (isfinite(from[end])) {
                sum += from[end];
                nfinite++;
            }
        for (; begin < low; begin++)
            if (isfinite(from[begin])) {
                sum -= from[begin];
                nfinite--;
            }
        for (; end > high; end--) /* the window shrinks towards the end */
            if (isfinite(from[end - 1])) {
                sum -= from[end - 1];
                nfinite--;
            }
        to[i] = nfinite && isfinite(from[i]) ? sum / (double)nfinite : NAN;
    }
}

/* ---- series ---------------------------------------------------------------------------------- */

static int add_series(struct curves *c, int panel, struct chart_series series, struct fsdp_err *err)
{
    struct chart_panel *to = &c->panel[panel];
    struct chart_series *all = fsdp_alloc_grow(c->series[panel], (size_t)to->nseries,
                                               &c->max_series[panel], sizeof *all, "series", err);

    if (!all)
        return FSDP_ENOMEM;
    c->series[panel] = all;
    to->series = all;
    all[to->nseries++] = series;
    return FSDP_OK;
}

static int gather_values(struct curves *c, struct chart_series *out,
                         const struct story_attempt *attempt, int column, struct fsdp_err *err)
{
    double *x = new_values(c, attempt->nrows, err);
    double *y = x ? new_values(c, attempt->nrows, err) : NULL;

    if (!y)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < attempt->nrows; i++) {
        x[i] = x_of(c, attempt->row[i]);
        y[i] = attempt->row[i]->value[column];
    }
    out->x = x;
    out->y = y;
    out->npoints = attempt->nrows;
    return FSDP_OK;
}

static bool has_value(const struct curves *c, int run, int column)
{
    for (size_t i = 0; column >= 0 && i < c->runs[run].nrows; i++)
        if (isfinite(c->runs[run].row[i].value[column]))
            return true;
    return false;
}

static const char *attempt_label(struct curves *c, int run, int index)
{
    const struct story_attempt *attempt = &c->story[run].attempt[index];
    char *text;

    if (c->nruns > 1)
        return index ? NULL : c->runs[run].label;
    if (c->story[run].nattempts == 1)
        return has_value(c, run, curves_run_column(&c->runs[run], "eval_loss")) ? "training" : NULL;
    if (index >= CHART_NCOLOURS || !(text = new_text(c)))
        return NULL;
    if (attempt->ranks)
        snprintf(text, LABEL_NBYTES, "start %d, %d rank%s", attempt->number, attempt->ranks,
                 attempt->ranks == 1 ? "" : "s");
    else
        snprintf(text, LABEL_NBYTES, "start %d", attempt->number);
    return text;
}

/* The lines of one start: pale where its steps were done again, so that the next start's line shows
 * over it. */
static int add_attempt(struct curves *c, int panel, int run, int index, struct fsdp_err *err)
{
    const struct story_attempt *attempt = &c->story[run].attempt[index];
    const int column = curves_run_column(&c->runs[run], c->ask->keys[panel]);
    struct chart_series line = {.label = panel ? NULL : attempt_label(c, run, index),
                                .colour = c->nruns > 1 ? run : index,
                                .dashed = c->nruns > 1 && index % 2};

    FSDP_TRY(gather_values(c, &line, attempt, column, err));
    if (c->ask->smooth > 1) {
        struct chart_series faint = line;
        double *mean = new_values(c, line.npoints, err);
        if (!mean)
            return FSDP_ENOMEM;
        smooth_values(mean, line.y, line.npoints, c->ask->smooth);
        faint.style = CHART_FAINT;
        faint.label = NULL;
        line.y = mean;
        FSDP_TRY(add_series(c, panel, faint, err));
    }
    if (attempt->nkept < attempt->nrows) {
        const size_t first = attempt->nkept ? attempt->nkept - 1 : 0;
        struct chart_series wide = line;
        wide.style = CHART_WIDE;
        wide.label = NULL;
        wide.dashed = false;
        wide.x += first;
        wide.y += first;
        wide.npoints -= first;
        FSDP_TRY(add_series(c, panel, wide, err));
    }
    return add_series(c, panel, line, err);
}

/* What was measured now and then, of all starts; not what was measured again. */
static int add_points(struct curves *c, int panel, int run, int column, const char *label,
                      struct fsdp_err *err)
{
    const struct story *story = &c->story[run];
    struct chart_series points = {
        .label = label, .colour = c->nruns > 1 ? run : CHART_NCOLOURS - 1, .style = CHART_POINTS};
    size_t n = 0;

    for (size_t i = 0; i < c->runs[run].nrows; i++)
        n += isfinite(c->runs[run].row[i].value[column]);
    double *x = new_values(c, n, err), *y = x ? new_values(c, n, err) : NULL;
    if (!y)
        return FSDP_ENOMEM;
    for (int a = 0; a < story->nattempts; a++)
        for (size_t i = 0; i < story->attempt[a].nkept; i++) {
            const struct run_row *row = story->attempt[a].row[i];
            if (!isfinite(row->value[column]))
                continue;
            x[points.npoints] = x_of(c, row);
            y[points.npoints++] = row->value[column];
        }
    points.x = x;
    points.y = y;
    return points.npoints ? add_series(c, panel, points, err) : FSDP_OK;
}

static int fill_panel(struct curves *c, int panel, struct fsdp_err *err)
{
    const char *key = c->ask->keys[panel];
    const bool is_eval = !strncmp(key, "eval_", 5);

    for (int r = 0; r < c->nruns; r++) {
        const int eval = curves_run_column(&c->runs[r], "eval_loss");
        if (is_eval) {
            FSDP_TRY(add_points(c, panel, r, curves_run_column(&c->runs[r], key),
                                c->nruns > 1 ? c->runs[r].label : NULL, err));
            continue;
        }
        for (int a = 0; a < c->story[r].nattempts; a++)
            FSDP_TRY(add_attempt(c, panel, r, a, err));
        if (!strcmp(key, "loss") && has_value(c, r, eval))
            FSDP_TRY(add_points(c, panel, r, eval, c->nruns > 1 ? NULL : "held out", err));
    }
    return FSDP_OK;
}

/* ---- axes ------------------------------------------------------------------------------------ */

/* Positive, and so far apart that a linear axis would show only the largest. */
static bool wants_log(const struct chart_panel *panel)
{
    double lo = INFINITY, hi = -INFINITY;

    for (int s = 0; s < panel->nseries; s++)
        for (size_t i = 0; i < panel->series[s].npoints; i++)
            if (isfinite(panel->series[s].y[i])) {
                lo = fmin(lo, panel->series[s].y[i]);
                hi = fmax(hi, panel->series[s].y[i]);
            }
    return lo > 0 && hi / lo > DECADES_APART;
}

static void shape_panel(struct curves *c, int panel)
{
    const struct curves_key key = curves_key(c->ask->keys[panel]);
    struct chart_panel *to = &c->panel[panel];

    to->title = key.title;
    to->from_zero = key.from_zero;
    to->log_y = c->ask->log == CURVES_LOG_Y || c->ask->log == CURVES_LOG_XY ||
                (c->ask->log == CURVES_LOG_AUTO && key.likes_log && wants_log(to));
    if (!panel) {
        to->levels = c->ask->levels;
        to->nlevels = c->ask->nlevels;
    }
}

/* ---- marks ----------------------------------------------------------------------------------- */

static int add_marker(struct curves *c, struct chart_marker marker, const char *label,
                      struct fsdp_err *err)
{
    struct chart_marker *all = fsdp_alloc_grow(c->marker, (size_t)c->chart.nmarkers,
                                               &c->max_markers, sizeof *all, "marks", err);
    char *text = label[0] ? new_text(c) : NULL;

    if (!all)
        return FSDP_ENOMEM;
    if (text) {
        snprintf(text, LABEL_NBYTES, "%s", label);
        marker.label = text;
    }
    c->marker = all;
    c->chart.markers = all;
    all[c->chart.nmarkers++] = marker;
    return FSDP_OK;
}

/* " on 2 ranks", where their number changed. */
static void ranks_text(char out[24], int ranks, int before)
{
    out[0] = 0;
    if (ranks && ranks != before)
        snprintf(out, 24, " on %d rank%s", ranks, ranks == 1 ? "" : "s");
}

static int mark_restart(struct curves *c, int run, int index, bool labelled, struct fsdp_err *err)
{
    const struct story_restart *restart = &c->story[run].restart[index];
    const struct run_row *from =
        restart->from && c->ask->x != CURVES_WALL ? restart->from : restart->next;
    const int colour = c->nruns > 1 ? run : index;
    const bool anew = restart->next->value[RUN_STEP] == 1; /* without a checkpoint */
    char label[LABEL_NBYTES] = "", ranks[24];

    ranks_text(ranks, restart->ranks_after, restart->ranks_before);
    if (labelled && anew)
        snprintf(label, sizeof label, "began anew%s", ranks);
    else if (labelled)
        snprintf(label, sizeof label, "resumed from step %.0f%s",
                 restart->from ? restart->from->value[RUN_STEP]
                               : restart->next->value[RUN_STEP] - 1,
                 ranks);
    FSDP_TRY(add_marker(
        c, (struct chart_marker){x_of(c, from), NULL, c->nruns > 1 ? run : index + 1, true}, label,
        err));
    if (!restart->was_killed || anew)
        return FSDP_OK;
    if (labelled)
        snprintf(label, sizeof label, "killed at step %.0f", restart->last->value[RUN_STEP]);
    return add_marker(c, (struct chart_marker){x_of(c, restart->last), NULL, colour, false}, label,
                      err);
}

static int mark_restarts(struct curves *c, struct fsdp_err *err)
{
    const int most = c->nruns > 1 ? MAX_LABELLED / 2 : MAX_LABELLED;
    int nrestarts = 0, nkills = 0;

    for (int r = 0; r < c->nruns; r++)
        for (int a = 0; a + 1 < c->story[r].nattempts; a++) {
            nrestarts++;
            nkills += c->story[r].restart[a].was_killed;
        }
    for (int r = 0; r < c->nruns; r++)
        for (int a = 0; a + 1 < c->story[r].nattempts; a++)
            FSDP_TRY(mark_restart(c, r, a, nrestarts <= most, err));
    if (nrestarts > most)
        snprintf(c->subtitle, sizeof c->subtitle,
                 nkills ? "%d restarts (dashed), %d of them after a kill (solid)"
                        : "%d restarts (dashed)",
                 nrestarts, nkills);
    return FSDP_OK;
}

/* ---- the chart ------------------------------------------------------------------------------- */

static int refuse_key(const struct curves *c, const char *key, struct fsdp_err *err)
{
    char keys[400];

    curves_run_keys_text(keys, sizeof keys, c->runs[0].path);
    return fsdp_err_set(err, FSDP_EINVAL, "%s: no value for '%s'%s%s", c->runs[0].path, key,
                        keys[0] ? "; it has " : "", keys);
}

static int fill_chart(struct curves *c, struct fsdp_err *err)
{
    static const struct {
        const char *title;
        enum chart_unit unit;
    } xs[] = {{"step", CHART_COUNT},
              {"tokens", CHART_COUNT},
              {"time of training", CHART_SECONDS},
              {"time", CHART_CLOCK}};

    for (int p = 0; p < c->ask->nkeys; p++) {
        FSDP_TRY(fill_panel(c, p, err));
        shape_panel(c, p);
    }
    FSDP_TRY(mark_restarts(c, err));
    c->chart.title = c->ask->title;
    c->chart.subtitle = c->subtitle[0] ? c->subtitle : NULL;
    c->chart.x_title = xs[c->ask->x].title;
    c->chart.x_unit = xs[c->ask->x].unit;
    c->chart.log_x = c->ask->log == CURVES_LOG_X || c->ask->log == CURVES_LOG_XY;
    c->chart.panels = c->panel;
    return FSDP_OK;
}

static int make_room(struct curves *c, struct fsdp_err *err)
{
    const size_t nruns = (size_t)c->nruns, npanels = (size_t)c->ask->nkeys;

    c->story = fsdp_alloc(nruns, sizeof *c->story, "runs", err);
    c->panel = fsdp_alloc(npanels, sizeof *c->panel, "panels", err);
    c->series = fsdp_alloc(npanels, sizeof *c->series, "panels", err);
    c->max_series = fsdp_alloc(npanels, sizeof *c->max_series, "panels", err);
    c->chart.npanels = c->ask->nkeys;
    c->max_texts = CHART_NCOLOURS + 2 * MAX_LABELLED;
    c->text = fsdp_alloc(c->max_texts, sizeof *c->text, "labels", err);
    if (!c->story || !c->panel || !c->series || !c->max_series || !c->text)
        return FSDP_ENOMEM;
    for (int r = 0; r < c->nruns; r++)
        FSDP_TRY(story_make(&c->story[r], &c->runs[r], err));
    return FSDP_OK;
}

/* Leaves out the keys that have no value, or refuses them. */
static int choose_keys(const char *out[RUN_MAX_KEYS], int *nkeys, const struct curves *c,
                       const struct curves_ask *ask, struct fsdp_err *err)
{
    *nkeys = 0;
    for (int k = 0; k < ask->nkeys; k++) {
        bool any = false;
        for (int r = 0; r < c->nruns && !any; r++)
            any = has_value(c, r, curves_run_column(&c->runs[r], ask->keys[k]));
        if (any)
            out[(*nkeys)++] = ask->keys[k];
        else if (!ask->skip_empty)
            return refuse_key(c, ask->keys[k], err);
    }
    return *nkeys || !ask->nkeys ? FSDP_OK : refuse_key(c, ask->keys[0], err);
}

int curves_create(struct curves **out, const struct run *runs, int nruns,
                  const struct curves_ask *given, struct fsdp_err *err)
{
    const char *keys[RUN_MAX_KEYS];
    struct curves_ask ask = *given;
    struct curves *c = fsdp_alloc(1, sizeof *c, "chart", err);

    if (!c)
        return FSDP_ENOMEM;
    c->runs = runs;
    c->nruns = nruns;
    int rc = choose_keys(keys, &ask.nkeys, c, given, err);
    ask.keys = keys;
    c->ask = &ask;
    if (!rc)
        rc = make_room(c, err);
    if (!rc)
        rc = fill_chart(c, err);
    c->ask = NULL; /* what it asked is done */
    if (rc)
        curves_destroy(c);
    else
        *out = c;
    return rc;
}

const struct chart *curves_chart(const struct curves *c)
{
    return &c->chart;
}

void curves_destroy(struct curves *c)
{
    if (!c)
        return;
    for (int r = 0; c->story && r < c->nruns; r++)
        story_destroy(&c->story[r]);
    for (int p = 0; c->series && p < c->chart.npanels; p++)
        fsdp_free(c->series[p]);
    for (size_t i = 0; i < c->nvalues; i++)
        fsdp_free(c->values[i]);
    fsdp_free(c->story);
    fsdp_free(c->panel);
    fsdp_free(c->series);
    fsdp_free(c->max_series);
    fsdp_free(c->marker);
    fsdp_free(c->values);
    fsdp_free(c->text);
    fsdp_free(c);
}
