/* SPDX-License-Identifier: Apache-2.0 */
/* The report of a run as one HTML file. Steps are collected in bounded memory; the file is written
 * anew at the beginning, after each checkpoint and at the end. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "html.h"
#include "publish.h"

const char *const html_keys[] = {"loss", "tokens_per_s", "grad_norm", "lr", "eval_loss", "skipped"};

/* ---- the file -------------------------------------------------------------------------------- */

static int put_page(FILE *to, const void *html, struct fsdp_err *err)
{
    return html_page(to, html, err);
}

static int publish_page(const struct html *html, struct fsdp_err *err)
{
    const int rc = fsdp_file_replace(html->path, put_page, html, err);
    return rc ? fsdp_err_prefix(err, rc, "report: ") : FSDP_OK;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Rows before this start, which metrics.jsonl has. Without such a file the report begins here. */
static int read_earlier(struct html *html, struct fsdp_err *err)
{
    const char *metrics = html->run->config->log.metrics;
    struct stat st;

    if (!metrics[0] || stat(metrics, &st) || !S_ISREG(st.st_mode))
        return FSDP_OK;
    FSDP_TRY(curves_run_read(&html->steps, metrics, err));
    for (size_t i = 0; i < html->steps.nrows; i++) {
        const struct run_row *row = &html->steps.row[i];
        html->nskipped += row->value[HTML_SKIPPED] > 0;
        if (isfinite(row->value[HTML_EVAL]))
            html->eval_loss = row->value[HTML_EVAL];
    }
    while (html->steps.nrows > HTML_MAX_ROWS / 2)
        curves_run_thin(&html->steps, HTML_LOSS);
    return FSDP_OK;
}

/* Room for all rows, so that the step loop allocates nothing. */
static int make_room(struct html *html, struct fsdp_err *err)
{
    struct run *steps = &html->steps;

    if (steps->max_rows >= HTML_MAX_ROWS)
        return FSDP_OK;
    struct run_row *rows = fsdp_alloc_reserve(steps->row, steps->nrows, &steps->max_rows,
                                              HTML_MAX_ROWS, sizeof *rows, "report", err);
    if (!rows)
        return FSDP_ENOMEM;
    steps->row = rows;
    return FSDP_OK;
}

/* ---- as a sink ------------------------------------------------------------------------------- */

static const char *html_where(const struct config *config)
{
    return config->log.html;
}

static void free_html(struct html *html)
{
    curves_run_destroy(&html->steps);
    fsdp_free(html->path);
    fsdp_free(html);
}

static int begin_report(struct html *html, const char *path, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_err_prefix(err, fsdp_folder_make_above(path, 0777, err), "report: "));
    FSDP_TRY(publish_place(&html->path, path, HTML_MARK, html->run->config->log.metrics, "log.html",
                           err));
    FSDP_TRY(curves_run_create(&html->steps, html_keys, HTML_NCOLUMNS - RUN_NFIXED, err));
    FSDP_TRY(read_earlier(html, err));
    FSDP_TRY(make_room(html, err));
    html_host_read(&html->host);
    return publish_page(html, err);
}

static int open_sink(void **ctx, const char *path, const struct sink_run *run, struct fsdp_err *err)
{
    struct html *html = fsdp_alloc(1, sizeof *html, "report", err);

    if (!html)
        return FSDP_ENOMEM;
    html->run = run;
    html->eval_loss = NAN;
    const int rc = begin_report(html, path, err);
    if (rc)
        free_html(html);
    else
        *ctx = html;
    return rc;
}

static int take_row(void *ctx, const struct metrics_row *row, struct fsdp_err *err)
{
    struct html *html = ctx;

    if (html->steps.nrows >= HTML_MAX_ROWS)
        curves_run_thin(&html->steps, HTML_LOSS);
    struct run_row *to = curves_run_add(&html->steps, err);
    if (!to)
        return FSDP_ENOMEM;
    to->value[RUN_STEP] = (double)row->step;
    to->value[RUN_TOKENS] = (double)row->tokens;
    to->value[RUN_TIME] = row->time;
    to->value[RUN_WALL] = row->wall > 0 ? row->wall : NAN;
    to->value[RUN_ATTEMPT] = row->attempt;
    to->value[RUN_RANKS] = row->ranks;
    to->value[HTML_LOSS] = row->loss;
    to->value[HTML_RATE] = row->tokens_per_s;
    to->value[HTML_NORM] = row->grad_norm;
    to->value[HTML_LR] = row->lr;
    to->value[HTML_EVAL] = row->has_eval ? row->eval_loss : NAN;
    if (row->has_eval)
        html->eval_loss = row->eval_loss;
    html->nskipped += row->skipped;
    html->last = *row;
    return FSDP_OK;
}

static int take_saved(void *ctx, const struct sink_saved *saved, struct fsdp_err *err)
{
    struct html *html = ctx;
    struct html_saved *to = &html->saved[html->nsaved++ % HTML_MAX_SAVED];

    *to = (struct html_saved){.step = saved->step,
                              .nbytes = saved->nbytes,
                              .seconds = saved->seconds,
                              .wall = saved->wall,
                              .staged = saved->staged};
    snprintf(to->path, sizeof to->path, "%s", saved->path);
    return publish_page(html, err);
}

static void close_sink(void *ctx, enum sink_end end, const char *why)
{
    struct html *html = ctx;
    struct fsdp_err err = FSDP_ERR_INIT;

    html->has_ended = true;
    html->end = end;
    html->why = why;
    if (publish_page(html, &err))
        fsdp_log(FSDP_LOG_WARN, "%s", err.text);
    free_html(html);
}

const struct sink_ops html_sink = {
    .key = "log.html",
    .where = html_where,
    .open = open_sink,
    .row = take_row,
    .saved = take_saved,
    .close = close_sink,
};
