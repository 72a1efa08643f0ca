/* SPDX-License-Identifier: Apache-2.0 */
/* Charts of rows over GPUs and of settings. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "plan/answer/text.h"
#include "scale.h"

enum {
    MAX_PARTS = 16,
    MAX_SERIES = 2 * SCALE_MAX_LINES,
    TITLE = 160,
    NOTE = 40,
    NPANELS = 2,
};

struct scale_chart {
    struct chart chart;
    char title[TITLE], subtitle[TITLE], limit[NOTE];
    struct chart_panel panel[NPANELS];
    /* ---- over GPUs ---- */
    struct chart_series series[NPANELS][MAX_SERIES];
    double x[SCALE_MAX_POINTS];
    double y[NPANELS][SCALE_MAX_LINES][SCALE_MAX_POINTS];
    double band[NPANELS][2][SCALE_MAX_POINTS];
    struct chart_marker marker;
    /* ---- of settings ---- */
    struct chart_bars bars[NPANELS];
    const char *names[SETTINGS_MAX], *notes[NPANELS][SETTINGS_MAX];
    char name[SETTINGS_MAX][64], note[NPANELS][SETTINGS_MAX][NOTE];
    struct chart_part part[NPANELS][MAX_PARTS];
    char part_name[MAX_PARTS][64];
    double value[NPANELS][SETTINGS_MAX * MAX_PARTS];
};

const struct chart *scale_chart_get(const struct scale_chart *chart)
{
    return &chart->chart;
}

void scale_chart_destroy(struct scale_chart *chart)
{
    fsdp_free(chart);
}

/* ---- over GPUs ------------------------------------------------------------------------------- */

static double value_of(const struct answer *a, int panel)
{
    return panel ? 100 * a->mfu : a->tokens_s_gpu;
}

/* What does not fit is a gap. */
static void take_points(struct scale_chart *c, const struct scale *s)
{
    for (int p = 0; p < NPANELS; p++)
        for (int l = 0; l < s->nlines; l++)
            for (int i = 0; i < s->npoints; i++) {
                const struct scale_point *point = &s->line[l].point[i];
                const struct answer *a = &point->answer;
                const bool is_shown = point->is_there && a->fits;
                c->y[p][l][i] = is_shown ? value_of(a, p) : NAN;
                if (l)
                    continue;
                c->band[p][0][i] = is_shown ? value_of(a, p) / (1 + a->band.share) : NAN;
                c->band[p][1][i] = is_shown ? value_of(a, p) / (1 - a->band.share) : NAN;
            }
    for (int i = 0; i < s->npoints; i++)
        c->x[i] = s->ngpus[i];
}

/* The first number of GPUs that no published run reaches; 0: there is none. */
static int first_extrapolated(const struct scale *s)
{
    for (int i = 0; i < s->npoints; i++)
        for (int l = 0; l < s->nlines; l++)
            if (s->line[l].point[i].is_there && s->line[l].point[i].answer.band.extrapolated)
                return i;
    return -1;
}

static bool has_points(const struct scale_chart *c, const struct scale *s, int line)
{
    for (int i = 0; i < s->npoints; i++)
        if (!isnan(c->y[0][line][i]))
            return true;
    return false;
}

static void add_series(struct scale_chart *c, const struct scale *s)
{
    const size_t n = (size_t)s->npoints;

    for (int p = 0; p < NPANELS; p++) {
        struct chart_panel *panel = &c->panel[p];
        panel->title = p ? "MFU, %" : "tokens/s of a GPU";
        panel->from_zero = true;
        panel->series = c->series[p];
        if (has_points(c, s, 0))
            c->series[p][panel->nseries++] =
                (struct chart_series){.label = "error band of the run's own",
                                      .style = CHART_BAND,
                                      .x = c->x,
                                      .y = c->band[p][0],
                                      .y_to = c->band[p][1],
                                      .npoints = n};
        for (int l = 0; l < s->nlines; l++)
            if (has_points(c, s, l))
                c->series[p][panel->nseries++] =
                    (struct chart_series){.label = s->line[l].name,
                                          .colour = l,
                                          .dashed = l % 2 == 1,
                                          .style = l > 1 ? CHART_POINTS : CHART_LINE,
                                          .x = c->x,
                                          .y = c->y[p][l],
                                          .npoints = n};
    }
}

static const struct answer *any_answer(const struct scale *s)
{
    for (int l = 0; l < s->nlines; l++)
        for (int i = 0; i < s->npoints; i++)
            if (s->line[l].point[i].is_there)
                return &s->line[l].point[i].answer;
    return NULL;
}

static void head(struct scale_chart *c, const struct answer *a, const struct question *q)
{
    char params[ANSWER_TEXT_NBYTES];

    snprintf(c->title, sizeof c->title, "%s of %s parameters on %s", a->family,
             answer_count(params, a->nparams), q->cluster->clock.device.name);
    c->chart.title = c->title;
    c->chart.subtitle = c->subtitle;
    c->chart.panels = c->panel;
    c->chart.npanels = NPANELS;
}

int scale_chart_create(struct scale_chart **out, const struct scale *s, const struct question *q,
                       struct fsdp_err *err)
{
    const struct answer *a = any_answer(s);
    char tokens[ANSWER_TEXT_NBYTES];
    struct scale_chart *c;

    if (!a || !(c = fsdp_alloc(1, sizeof *c, "chart", err)))
        return a ? FSDP_ENOMEM : fsdp_err_set(err, FSDP_EINVAL, "there is no row to draw");
    memset(c, 0, sizeof *c);
    take_points(c, s);
    add_series(c, s);
    if (!c->panel[0].nseries) {
        scale_chart_destroy(c);
        return fsdp_err_set(err, FSDP_EINVAL,
                            "nothing of it fits on a GPU, so there is nothing to draw");
    }
    head(c, a, q);
    if (s->batch == SCALE_PER_GPU)
        snprintf(c->subtitle, sizeof c->subtitle,
                 "%s tokens of a GPU and step, nodes of %d%s%s; what does not fit is left out",
                 answer_whole(tokens, (double)s->gpu_rows * (double)s->seq_len),
                 q->cluster->clock.net.node_nranks, *q->cluster->net ? ", " : "", q->cluster->net);
    else
        snprintf(c->subtitle, sizeof c->subtitle,
                 "%s tokens of a step, nodes of %d%s%s; what does not fit is left out",
                 answer_count(tokens, (double)s->rows * (double)s->seq_len),
                 q->cluster->clock.net.node_nranks, *q->cluster->net ? ", " : "", q->cluster->net);
    c->chart.x_title = "GPUs";
    c->chart.x_unit = CHART_DOUBLINGS;
    c->chart.log_x = true;
    c->chart.end_labels = true;
    const int far = first_extrapolated(s);
    if (far >= 0) {
        c->marker =
            (struct chart_marker){far ? sqrt(c->x[far - 1] * c->x[far]) : c->x[far],
                                  far ? "from here on extrapolated" : "all extrapolated", -1, true};
        c->chart.markers = &c->marker;
        c->chart.nmarkers = 1;
    }
    *out = c;
    return FSDP_OK;
}

/* ---- memory of settings ---------------------------------------------------------------------- */

enum { MEMORY, TIME };
static const double gib = 1 << 30;

static int find_part(struct scale_chart *c, const char *name)
{
    int *const nparts = &c->bars[MEMORY].nparts;

    for (int i = 0; i < *nparts; i++)
        if (!strcmp(c->part_name[i], name))
            return i;
    if (*nparts == MAX_PARTS)
        return MAX_PARTS - 1;
    snprintf(c->part_name[*nparts], sizeof c->part_name[0], "%s", name);
    return (*nparts)++;
}

/* Rows below a hundredth of what a GPU has, in all settings, are one part. */
static bool is_small(const struct settings *s, const char *what, double limit)
{
    for (int i = 0; i < s->nsettings; i++)
        for (int k = 0; k < s->answer[i].nmemory; k++) {
            const struct answer_memory *row = &s->answer[i].memory[k];
            if (!row->host && !strcmp(row->what, what) && row->nbytes > 0.01 * limit)
                return false;
        }
    return true;
}

/* Names end in types ("BF16"), which are not needed to tell rows apart. */
static void take_memory(struct scale_chart *c, const struct settings *s)
{
    static const char reserved[] = "context and communicators", other[] = "other rows";
    const struct answer *own = &s->answer[0];
    const double limit = own->limit_nbytes > 0 ? own->limit_nbytes : own->device_nbytes;
    double values[SETTINGS_MAX][MAX_PARTS] = {{0}};

    for (int i = 0; i < s->nsettings; i++)
        for (int k = 0; k < s->answer[i].nmemory; k++) {
            const struct answer_memory *row = &s->answer[i].memory[k];
            if (!row->host && !row->file && !is_small(s, row->what, limit))
                values[i][find_part(c, row->what)] += row->nbytes / gib;
        }
    const int rest = find_part(c, other), last = find_part(c, reserved);
    for (int i = 0; i < s->nsettings; i++) {
        const struct answer *a = &s->answer[i];
        double sum = a->device_nbytes / gib;
        for (int k = 0; k < rest; k++)
            sum -= values[i][k];
        values[i][rest] = sum > 0.005 ? sum : 0;
        values[i][last] += a->reserved_nbytes / gib;
        snprintf(c->note[MEMORY][i], NOTE, "%.1f GiB%s",
                 (a->device_nbytes + a->reserved_nbytes) / gib, a->fits ? "" : ", too much");
    }
    struct chart_bars *b = &c->bars[MEMORY];
    for (int k = 0; k < b->nparts; k++)
        c->part[MEMORY][k] = (struct chart_part){c->part_name[k], k};
    for (int i = 0; i < s->nsettings; i++)
        memcpy(&c->value[MEMORY][i * b->nparts], values[i], (size_t)b->nparts * sizeof(double));
    b->unit = "GiB";
    const double plan = own->plan_limit_nbytes + own->reserved_nbytes;
    const bool by_plan =
        own->plan_limit_nbytes > 0 && (own->limit_nbytes <= 0 || plan < own->limit_nbytes);
    if (own->limit_nbytes > 0 || by_plan) {
        b->limit = (by_plan ? plan : own->limit_nbytes) / gib;
        b->most = 1.5 * b->limit;
        if (by_plan)
            snprintf(c->limit, sizeof c->limit, "memory_limit %.1f", own->plan_limit_nbytes / gib);
        else
            snprintf(c->limit, sizeof c->limit, "a GPU has %.1f", b->limit);
        b->limit_label = c->limit;
    }
}

/* ---- time of settings ------------------------------------------------------------------------ */

static void take_time(struct scale_chart *c, const struct settings *s)
{
    static const char *const names[] = {"products",
                                        "attention",
                                        "pointwise",
                                        "optimizer and copies",
                                        "slowed by hidden communication",
                                        "exposed communication",
                                        "rest"};
    enum { NPARTS = sizeof names / sizeof names[0] };
    const double own = s->answer[0].step_s, scale = own >= 1 ? 1 : 1e3;
    struct chart_bars *b = &c->bars[TIME];

    for (int i = 0; i < s->nsettings; i++) {
        const struct answer *a = &s->answer[i];
        const struct fsdp_schedule_times *t = &a->times;
        double *to = &c->value[TIME][i * NPARTS], sum = 0;
        const double parts[NPARTS] = {t->work_s[FSDP_WORK_PRODUCT],
                                      t->work_s[FSDP_WORK_ATTENTION],
                                      t->work_s[FSDP_WORK_BYTES],
                                      t->memory_s,
                                      t->slowed_s,
                                      t->exposed_s,
                                      0};
        for (int k = 0; k < NPARTS; k++) {
            to[k] = scale * parts[k];
            sum += parts[k];
        }
        to[NPARTS - 1] = scale * fmax(0, a->step_s - sum);
        char step[ANSWER_TEXT_NBYTES], rate[ANSWER_TEXT_NBYTES];
        snprintf(c->note[TIME][i], NOTE, "%s, %s tok/s", answer_seconds(step, a->step_s),
                 answer_whole(rate, a->tokens_s_gpu));
    }
    for (int k = 0; k < NPARTS; k++)
        c->part[TIME][k] = (struct chart_part){names[k], k};
    b->nparts = NPARTS;
    b->unit = own >= 1 ? "s" : "ms";
    b->most = 3 * scale * own;
}

int settings_chart_create(struct scale_chart **out, const struct settings *s,
                          const struct question *q, struct fsdp_err *err)
{
    struct scale_chart *c = fsdp_alloc(1, sizeof *c, "chart", err);
    const struct answer *a = &s->answer[0];
    char gpus[ANSWER_TEXT_NBYTES], tokens[ANSWER_TEXT_NBYTES];

    if (!c)
        return FSDP_ENOMEM;
    memset(c, 0, sizeof *c);
    head(c, a, q);
    snprintf(c->subtitle, sizeof c->subtitle,
             "%s GPUs, %s; %s tokens a step; times +- %.0f %%%s; each line changes the run's own",
             answer_whole(gpus, a->nranks), a->strategy, answer_count(tokens, a->step_tokens),
             100 * a->band.share, a->band.extrapolated ? " (extrapolated)" : "");
    take_memory(c, s);
    take_time(c, s);
    for (int i = 0; i < s->nsettings; i++) {
        memcpy(c->name[i], s->name[i], sizeof c->name[i]);
        c->names[i] = c->name[i];
        for (int p = 0; p < NPANELS; p++)
            c->notes[p][i] = c->note[p][i];
    }
    for (int p = 0; p < NPANELS; p++) {
        c->panel[p].title = p == MEMORY ? "memory of a GPU" : "time of a step";
        c->panel[p].bars = &c->bars[p];
        c->bars[p].names = c->names;
        c->bars[p].notes = c->notes[p];
        c->bars[p].nbars = s->nsettings;
        c->bars[p].parts = c->part[p];
        c->bars[p].values = c->value[p];
    }
    *out = c;
    return FSDP_OK;
}
