/* SPDX-License-Identifier: Apache-2.0 */
/* log.prometheus: the latest values of all metrics in the text format that node exporter's textfile
 * collector reads. The file is written under another name and renamed: a reader sees all or
 * nothing.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "metrics_table.h"
#include "publish.h"
#include "sink.h"

#define INTERVAL_S 0.5
/* What the file of a run begins with, and the file of another program does not. */
#define PROMETHEUS_MARK "# HELP fsdp_"
enum { MAX_METRICS = 64, LABELS_NBYTES = 2048 };

struct prometheus {
    char *path;
    char labels[LABELS_NBYTES]; /* key="value",... */
    struct sink_saved saved;    /* step -1: none yet; its path is not kept */
    /* What the latest row said of each metric, and of each source. */
    double value[MAX_METRICS], source[METRICS_MAX_SOURCES];
    bool known[MAX_METRICS];
    int nsources;
    bool running;
    double written; /* when the file was */
};

static const char *prometheus_where(const struct config *config)
{
    return config->log.prometheus;
}

/* ---- labels ---------------------------------------------------------------------------------- */

/* In quotes: backslash and quote are escaped. Of a file with one byte that is no UTF-8, node
 * exporter passes on nothing. */
static void add_label(char *labels, const char *key, const char *text)
{
    char clean[LABELS_NBYTES / 2];
    size_t len = strlen(labels);
    if (strlen(text) >= sizeof clean)
        return; /* too long to tell runs apart by */
    const char *value = fsdp_text_clean(strcpy(clean, text));
    char *to = labels + len, *end = labels + LABELS_NBYTES - 8;

    if (strlen(key) + 2 * strlen(value) + 8 > (size_t)(end - to))
        return;
    to += sprintf(to, "%s%s=\"", len ? "," : "", key);
    for (; *value; value++) {
        if (*value == '\\' || *value == '"')
            *to++ = '\\';
        *to++ = *value;
    }
    strcpy(to, "\"");
}

static const char *or_else(const char *variable, const char *otherwise)
{
    const char *text = getenv(variable);
    return text && text[0] ? text : otherwise;
}

/* Prometheus has labels job and instance of its own, so that these have other names. A run outside
 * of Slurm is known by its file. */
static void set_labels(struct prometheus *p, const char *path, const struct sink_run *run)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char stem[256];

    snprintf(stem, sizeof stem, "%.*s", (int)(strlen(name) - strlen(".prom")), name);
    add_label(p->labels, "job_name", or_else("SLURM_JOB_NAME", stem));
    add_label(p->labels, "job_id", or_else("SLURM_JOB_ID", ""));
    add_label(p->labels, "user", or_else("USER", ""));
    add_label(p->labels, "host", run->host ? run->host : "");
}

/* ---- the file -------------------------------------------------------------------------------- */

static void put_value(FILE *to, const struct prometheus *p, const struct metric *m, int source,
                      double value)
{
    fprintf(to, "%s{%s", m->prom, p->labels);
    if (source >= 0)
        fprintf(to, ",source=\"%d\"", source);
    if (isfinite(value))
        fprintf(to, "} %.17g\n", value);
    else
        fprintf(to, "} %s\n", isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf");
}

/* A metric that was never seen is not in the file. */
static void put_metric(FILE *to, const struct prometheus *p, int i)
{
    const struct metric *m = &metrics_table[i];

    if (!p->known[i])
        return;
    fprintf(to, "# HELP %s %s%s%s%s\n# TYPE %s %s\n", m->prom, m->help, m->unit[0] ? " (" : "",
            m->unit, m->unit[0] ? ")" : "", m->prom, m->counter ? "counter" : "gauge");
    if (m->type != METRIC_SOURCES)
        put_value(to, p, m, -1, p->value[i]);
    for (int s = 0; m->type == METRIC_SOURCES && s < p->nsources; s++)
        put_value(to, p, m, s, p->source[s]);
}

static int put_all(FILE *to, const void *ctx, struct fsdp_err *err)
{
    const struct prometheus *p = ctx;

    (void)err;
    for (int i = 0; i < metrics_ntable && i < MAX_METRICS; i++)
        put_metric(to, p, i);
    return FSDP_OK;
}

static int write_file(const struct prometheus *p, struct fsdp_err *err)
{
    const int rc = fsdp_file_replace(p->path, put_all, p, err);
    return rc ? fsdp_err_prefix(err, rc, "Prometheus: ") : FSDP_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static void take_of_run(struct prometheus *p, int i)
{
    const bool saved = p->saved.step >= 0;

    switch (metrics_table[i].type) {
    case METRIC_SAVED_STEP:
        p->value[i] = (double)p->saved.step;
        p->known[i] = saved;
        break;
    case METRIC_SAVED_SECONDS:
        p->value[i] = p->saved.seconds;
        p->known[i] = saved;
        break;
    case METRIC_SAVED_WALL:
        p->value[i] = p->saved.wall;
        p->known[i] = saved;
        break;
    default:
        p->value[i] = p->running;
        p->known[i] = true;
    }
}

/* What a step has nothing to say of is 0 where an earlier one had; the latest evaluation stays. */
static void take_row(struct prometheus *p, const struct metrics_row *row)
{
    for (int i = 0; i < metrics_ntable && i < MAX_METRICS; i++) {
        const struct metric *m = &metrics_table[i];
        const int nvalues = metric_nvalues(m, row);
        const bool stays = m->when == METRIC_EVAL || m->when == METRIC_EVAL_NONZERO;
        if (m->when == METRIC_OF_RUN || (!nvalues && stays))
            continue;
        p->value[i] = nvalues ? metric_value(m, row, 0) : 0;
        p->known[i] |= nvalues > 0;
        if (m->type != METRIC_SOURCES)
            continue;
        p->nsources = nvalues;
        for (int s = 0; s < nvalues; s++)
            p->source[s] = metric_value(m, row, s);
    }
}

static int write_all(struct prometheus *p, struct fsdp_err *err)
{
    for (int i = 0; i < metrics_ntable && i < MAX_METRICS; i++)
        if (metrics_table[i].when == METRIC_OF_RUN)
            take_of_run(p, i);
    return write_file(p, err);
}

/* ---- the sink -------------------------------------------------------------------------------- */

static void close_file(struct prometheus *p)
{
    fsdp_free(p->path);
    fsdp_free(p);
}

static int open_sink(void **ctx, const char *path, const struct sink_run *run, struct fsdp_err *err)
{
    struct prometheus *p = fsdp_alloc(1, sizeof *p, "metrics for Prometheus", err);

    if (!p)
        return FSDP_ENOMEM;
    p->saved.step = -1;
    p->running = true;
    set_labels(p, path, run);
    int rc = publish_place(&p->path, path, PROMETHEUS_MARK, run->config->log.metrics,
                           "log.prometheus", err);
    if (!rc)
        rc = write_all(p, err);
    if (rc)
        close_file(p);
    else
        *ctx = p;
    return rc;
}

static int write_row(void *ctx, const struct metrics_row *row, struct fsdp_err *err)
{
    struct prometheus *p = ctx;

    take_row(p, row);
    if (fsdp_time_now() - p->written < INTERVAL_S)
        return FSDP_OK; /* nobody reads it that often */
    p->written = fsdp_time_now();
    return write_all(p, err);
}

static int write_saved(void *ctx, const struct sink_saved *saved, struct fsdp_err *err)
{
    struct prometheus *p = ctx;

    p->saved = *saved;
    p->saved.path = NULL;
    return write_all(p, err);
}

/* The file stays, and says that the run has ended. */
static void close_sink(void *ctx, enum sink_end end, const char *why)
{
    struct prometheus *p = ctx;

    (void)end;
    (void)why;
    p->running = false;
    write_all(p, NULL);
    close_file(p);
}

const struct sink_ops prometheus_sink = {.key = "log.prometheus",
                                         .where = prometheus_where,
                                         .open = open_sink,
                                         .row = write_row,
                                         .saved = write_saved,
                                         .close = close_sink};
