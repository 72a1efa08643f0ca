/* SPDX-License-Identifier: Apache-2.0 */
/* log.tensorboard: scalars by the table of metrics, the configuration as text, and histograms of
 * the units' gradient norms. A file per start of the run. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "metrics_table.h"
#include "sink.h"
#include "tfevents.h"

static const char *tensorboard_where(const struct config *config)
{
    return config->log.tensorboard;
}

/* As a block of code in Markdown: each line indented by four blanks. */
static char *as_code(const char *text, struct fsdp_err *err)
{
    size_t nlines = 1;

    for (const char *at = text; *at; at++)
        nlines += *at == '\n';
    char *out = fsdp_alloc(strlen(text) + 4 * nlines + 1, 1, "configuration", err), *to = out;
    bool begins = true;
    for (const char *at = text; out && *at; at++) {
        if (begins)
            to = stpcpy(to, "    ");
        begins = *at == '\n';
        *to++ = *at;
    }
    if (out)
        *to = 0;
    return out;
}

static int write_texts(struct tfevents *e, const struct sink_run *run, struct fsdp_err *err)
{
    char about[512];

    tfevents_begin(e, run->step, run->wall);
    snprintf(about, sizeof about, "start %d, at step %lld, on %d rank%s%s%.300s", run->attempt,
             (long long)run->step, run->ranks, run->ranks == 1 ? "" : "s",
             run->resumed && run->resumed[0] ? ", from " : "", run->resumed ? run->resumed : "");
    FSDP_TRY(tfevents_text(e, "run/start", about, err));
    if (run->settings) {
        char *code = as_code(run->settings, err);
        int rc = code ? tfevents_text(e, "run/configuration", code, err) : FSDP_ENOMEM;
        fsdp_free(code);
        FSDP_TRY(rc);
    }
    return tfevents_end(e, err);
}

static int open_sink(void **ctx, const char *folder, const struct sink_run *run,
                     struct fsdp_err *err)
{
    struct tfevents *e = NULL;

    FSDP_TRY(tfevents_open(&e, folder, run->step, run->wall, err));
    int rc = write_texts(e, run, err);
    if (rc)
        tfevents_close(e);
    else
        *ctx = e;
    return rc;
}

/* A value of a list has its number behind the tag. */
static int write_metric(struct tfevents *e, const struct metric *m, const struct metrics_row *row,
                        struct fsdp_err *err)
{
    const int nvalues = m->tag ? metric_nvalues(m, row) : 0;
    char tag[80];

    for (int i = 0; i < nvalues; i++) {
        snprintf(tag, sizeof tag, m->type == METRIC_SOURCES ? "%s/%d" : "%s", m->tag, i);
        FSDP_TRY(tfevents_scalar(e, tag, metric_value(m, row, i), err));
    }
    return FSDP_OK;
}

static int write_units(struct tfevents *e, const struct metrics_row *row, struct fsdp_err *err)
{
    bool finite = row->nunits > 0;
    char tag[200];

    for (int i = 0; i < row->nunits; i++) {
        snprintf(tag, sizeof tag, "grad_norm_of_units/%s", row->unit_names[i]);
        FSDP_TRY(tfevents_scalar(e, tag, row->unit_norms[i], err));
        finite &= isfinite(row->unit_norms[i]) != 0;
    }
    return finite ? tfevents_histogram(e, "grad_norm_of_units", row->unit_norms, row->nunits, err)
                  : FSDP_OK;
}

static int write_row(void *ctx, const struct metrics_row *row, struct fsdp_err *err)
{
    tfevents_begin(ctx, row->step, row->wall);
    for (int i = 0; i < metrics_ntable; i++)
        FSDP_TRY(write_metric(ctx, &metrics_table[i], row, err));
    FSDP_TRY(write_units(ctx, row, err));
    return tfevents_end(ctx, err);
}

static void close_sink(void *ctx, enum sink_end end, const char *why)
{
    (void)end;
    (void)why;
    tfevents_close(ctx);
}

const struct sink_ops tensorboard_sink = {.key = "log.tensorboard",
                                          .takes_steps = true,
                                          .where = tensorboard_where,
                                          .open = open_sink,
                                          .row = write_row,
                                          .close = close_sink};
