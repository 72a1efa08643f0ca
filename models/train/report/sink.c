/* SPDX-License-Identifier: Apache-2.0 */
#include <time.h>

#include "sink.h"

static const struct sink_ops *const table[] = {&metrics_sink, &status_sink, &tensorboard_sink,
                                               &prometheus_sink, &html_sink};
enum { NSINKS = sizeof table / sizeof table[0] };

struct sinks {
    struct sink_run run;
    void *ctx[NSINKS]; /* NULL: not open */
};

static double wall_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The status lies with the checkpoints: no setting of its own names it. */
static int open_one(struct sinks *s, int i, const char *to, struct fsdp_err *err)
{
    const char *key = table[i] == &status_sink ? "checkpoint.path" : table[i]->key;
    const int rc = table[i]->open(&s->ctx[i], to, &s->run, err);
    char where[CONFIG_TEXT + 128];

    return fsdp_err_prefix(err, rc, "%s: ", config_where(where, sizeof where, s->run.config, key));
}

int sinks_open(struct sinks **out, const struct sink_run *run, struct fsdp_err *err)
{
    struct sinks *s = fsdp_alloc(1, sizeof *s, "sinks", err);
    int rc = FSDP_OK;

    if (!s)
        return FSDP_ENOMEM;
    s->run = *run;
    if (!s->run.wall)
        s->run.wall = wall_now();
    const int seen = metrics_attempts(run->config->log.metrics);
    if (s->run.attempt <= seen)
        s->run.attempt = seen + 1;
    for (int i = 0; i < NSINKS && rc == FSDP_OK; i++) {
        const char *where = table[i]->where(run->config);
        const bool has_any = run->config->train.steps > 0 || !table[i]->takes_steps;
        if (where[0] && has_any)
            rc = open_one(s, i, where, err);
    }
    if (rc)
        sinks_close(s, SINK_FAILED, err ? err->text : "");
    else
        *out = s;
    return rc;
}

int sinks_attempt(const struct sinks *s)
{
    return s ? s->run.attempt : 1;
}

/* A full disk for the metrics is no reason to lose the training. */
static void close_failed(struct sinks *s, int i, int rc, const struct fsdp_err *err)
{
    if (rc == FSDP_OK)
        return;
    fsdp_log(FSDP_LOG_WARN, "%s; no more is written to %s", err->text, table[i]->key);
    table[i]->close(s->ctx[i], SINK_FAILED, err->text);
    s->ctx[i] = NULL;
}

void sinks_row(struct sinks *s, struct metrics_row *row)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    if (!s)
        return;
    row->attempt = s->run.attempt;
    row->ranks = s->run.ranks;
    for (int i = 0; i < NSINKS; i++)
        if (s->ctx[i])
            close_failed(s, i, table[i]->row(s->ctx[i], row, &err), &err);
}

void sinks_saved(struct sinks *s, const struct sink_saved *saved)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct sink_saved told = *saved;

    if (!s)
        return;
    if (!told.wall)
        told.wall = wall_now();
    for (int i = 0; i < NSINKS; i++)
        if (s->ctx[i] && table[i]->saved)
            close_failed(s, i, table[i]->saved(s->ctx[i], &told, &err), &err);
}

void sinks_phase(struct sinks *s, enum sink_phase phase)
{
    for (int i = 0; s && i < NSINKS; i++)
        if (s->ctx[i] && table[i]->phase)
            table[i]->phase(s->ctx[i], phase);
}

/* A sink that hears of hangs never fails, and so is not closed meanwhile. */
void sinks_hang(struct sinks *s, const struct sink_hang *hang)
{
    for (int i = 0; s && i < NSINKS; i++)
        if (table[i]->hang && s->ctx[i])
            table[i]->hang(s->ctx[i], hang);
}

void sinks_close(struct sinks *s, enum sink_end end, const char *why)
{
    if (!s)
        return;
    for (int i = 0; i < NSINKS; i++)
        if (s->ctx[i])
            table[i]->close(s->ctx[i], end, why);
    fsdp_free(s);
}
