/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the file of status.h. A thread writes it: the training never waits for a disk, and a file
 * that is not replaced any more says that the process is gone or stopped, however long a step
 * takes.
 */
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "fsdp/sys/thread.h"
#include "sink.h"
#include "status.h"

enum { INTERVAL_S = 2 };

struct status_sink {
    char *path;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    struct status status;
    enum status_state steady; /* what it is between phases */
    double trained;           /* seconds, at the latest row */
    bool now, stop;           /* the thread shall write at once; shall end */
    bool ended;               /* nothing is written any more */
};

static double wall_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- where ----------------------------------------------------------------------------------- */

static bool is_address(const char *path)
{
    return strstr(path, "://") != NULL;
}

/* In checkpoint.path where that is a folder, else next to the metrics. */
static const char *where_of(const struct config *c)
{
    if (c->checkpoint.path[0] && !is_address(c->checkpoint.path))
        return c->checkpoint.path;
    return c->log.metrics;
}

/* Metrics may also go to a pipe or a terminal, next to which no file belongs. */
static bool is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* *out NULL: there is no place. */
static int choose_path(char **out, const char *where, const struct config *c, struct fsdp_err *err)
{
    const bool in_folder = where == c->checkpoint.path;

    *out = NULL;
    if (!in_folder && !is_file(where))
        return FSDP_OK;
    *out = fsdp_sprintf(err, "%s%s", where, in_folder ? "/" STATUS_NAME : STATUS_SUFFIX);
    return *out ? FSDP_OK : FSDP_ENOMEM;
}

/* A path that does not fit is left out: half of one would be another's. */
static void whole_path(char *out, size_t out_nbytes, const char *path)
{
    char whole[PATH_MAX];
    const char *found = path[0] && !is_address(path) && realpath(path, whole) ? whole : path;
    const size_t nbytes = strlen(found) + 1;

    if (nbytes <= out_nbytes)
        memcpy(out, found, nbytes);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* A later run that took the folder has its own status there. */
static bool is_succeeded(const struct status_sink *s)
{
    struct status there;

    return status_read(&there, s->path, NULL) == FSDP_OK &&
           !process_is_same(&there.process, &s->status.process) && there.began > s->status.began;
}

/* With the lock held, which is given up during the write. A full disk is no reason to warn more
 * than once, or to lose the training. */
static void write_now(struct status_sink *s)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    s->now = false;
    if (s->ended)
        return;
    s->status.at = wall_now();
    const struct status copy = s->status;
    pthread_mutex_unlock(&s->lock);
    const bool succeeded = is_succeeded(s);
    const int rc = succeeded ? FSDP_OK : status_write(&copy, s->path, &err);
    if (rc)
        fsdp_log(FSDP_LOG_WARN, "%s; fsdp-top will not see this run", err.text);
    pthread_mutex_lock(&s->lock);
    s->ended |= succeeded || rc;
}

static void *write_thread(void *arg)
{
    struct status_sink *s = arg;

    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        write_now(s);
        const struct timespec until = fsdp_cond_time(INTERVAL_S);
        while (!s->stop && !s->now && pthread_cond_timedwait(&s->changed, &s->lock, &until) == 0)
            ;
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int start_thread(struct status_sink *s, struct fsdp_err *err)
{
    pthread_mutex_init(&s->lock, NULL);
    fsdp_cond_init(&s->changed);
    const int why = fsdp_thread_start(&s->thread, write_thread, s);
    s->has_thread = !why;
    return why ? fsdp_err_sys(err, why, "cannot start a thread for %s", s->path) : FSDP_OK;
}

/* ---- the sink -------------------------------------------------------------------------------- */

/* The latest save is the one that the run begins from, until it has one of its own. */
static void fill_resumed(struct status *st, const struct sink_run *run)
{
    struct stat there;

    if (!run->resumed || !run->resumed[0])
        return;
    st->saved.step = run->step;
    if (!is_address(run->resumed) && stat(run->resumed, &there) == 0)
        st->saved.at = (double)there.st_mtim.tv_sec + 1e-9 * (double)there.st_mtim.tv_nsec;
}

static void fill_begin(struct status_sink *s, const struct sink_run *run)
{
    const char *job = getenv("SLURM_JOB_ID");
    struct status *st = &s->status;

    *st = (struct status){.state = STATUS_STARTING,
                          .attempt = run->attempt,
                          .ranks = run->ranks,
                          .nodes = run->nodes,
                          .first_step = run->step,
                          .step = run->step,
                          .steps = run->config->train.steps,
                          .loss = (double)NAN,
                          .eval_loss = (double)NAN,
                          .began = run->wall,
                          .saved.step = -1,
                          .slowest.rank = -1,
                          .hung.rank = -1};
    fill_resumed(st, run);
    process_self(&st->process);
    whole_path(st->config, sizeof st->config, run->config->file);
    whole_path(st->checkpoints, sizeof st->checkpoints, run->config->checkpoint.path);
    whole_path(st->metrics, sizeof st->metrics, run->config->log.metrics);
    snprintf(st->job, sizeof st->job, "%s", job ? job : "");
    s->steady = STATUS_STARTING;
}

static void close_sink(void *ctx, enum sink_end end, const char *why)
{
    static const enum status_state ends[] = {
        [SINK_DONE] = STATUS_DONE, [SINK_STOPPED] = STATUS_STOPPED, [SINK_FAILED] = STATUS_FAILED};
    struct status_sink *s = ctx;

    if (s->has_thread) {
        pthread_mutex_lock(&s->lock);
        s->stop = true;
        pthread_cond_signal(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
        pthread_mutex_lock(&s->lock);
        if (s->status.state != STATUS_HUNG)
            s->status.state = ends[end];
        snprintf(s->status.reason, sizeof s->status.reason, "%s", why ? why : "");
        write_now(s);
        pthread_mutex_unlock(&s->lock);
        pthread_cond_destroy(&s->changed);
        pthread_mutex_destroy(&s->lock);
    }
    fsdp_free(s->path);
    fsdp_free(s);
}

static int open_sink(void **out, const char *where, const struct sink_run *run,
                     struct fsdp_err *err)
{
    char *path;

    *out = NULL;
    FSDP_TRY(choose_path(&path, where, run->config, err));
    if (path && !status_may_replace(path)) {
        fsdp_log(FSDP_LOG_WARN,
                 "%s is there already, and is no status of a run: it stays, and "
                 "fsdp-top will not see this run",
                 path);
        fsdp_free(path);
        path = NULL;
    }
    if (!path)
        return FSDP_OK;
    struct status_sink *s = fsdp_alloc(1, sizeof *s, "status", err);
    if (!s) {
        fsdp_free(path);
        return FSDP_ENOMEM;
    }
    s->path = path;
    fill_begin(s, run);
    const int rc = start_thread(s, err);
    if (rc)
        close_sink(s, SINK_FAILED, NULL);
    else
        *out = s;
    return rc;
}

static int take_row(void *ctx, const struct metrics_row *row, struct fsdp_err *err)
{
    const double weight = 0.1;
    struct status_sink *s = ctx;
    struct status *st = &s->status;

    (void)err;
    pthread_mutex_lock(&s->lock);
    const double seconds = row->time - s->trained;
    if (st->step_at > 0 && row->step > st->step && seconds > 0) {
        const double each = seconds / (double)(row->step - st->step);
        st->step_s = st->step_s > 0 ? (1 - weight) * st->step_s + weight * each : each;
    }
    s->trained = row->time;
    st->step = row->step;
    st->step_at = row->wall > 0 ? row->wall : wall_now();
    st->loss = row->loss;
    st->lr = row->lr;
    st->tokens_per_s = row->tokens_per_s;
    st->mfu = row->mfu;
    if (row->slowest_s > 0) {
        st->slowest.rank = row->slowest_rank;
        st->slowest.seconds = row->slowest_s;
    }
    if (row->has_eval)
        st->eval_loss = row->eval_loss;
    s->steady = row->saving ? STATUS_SAVING : STATUS_RUNNING;
    if (st->state == STATUS_STARTING || st->state == STATUS_RUNNING || st->state == STATUS_SAVING)
        st->state = s->steady;
    pthread_mutex_unlock(&s->lock);
    return FSDP_OK;
}

static int take_saved(void *ctx, const struct sink_saved *saved, struct fsdp_err *err)
{
    struct status_sink *s = ctx;

    (void)err;
    pthread_mutex_lock(&s->lock);
    s->status.saved.step = saved->step;
    s->status.saved.at = saved->wall;
    pthread_mutex_unlock(&s->lock);
    return FSDP_OK;
}

/* A phase is written at once, since a hang may be in it. */
static void take_phase(void *ctx, enum sink_phase phase)
{
    struct status_sink *s = ctx;

    pthread_mutex_lock(&s->lock);
    s->status.state = phase == SINK_SAVES       ? STATUS_SAVING
                      : phase == SINK_EVALUATES ? STATUS_EVALUATING
                                                : s->steady;
    s->now = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void take_hang(void *ctx, const struct sink_hang *hang)
{
    struct status_sink *s = ctx;
    struct status *st = &s->status;

    pthread_mutex_lock(&s->lock);
    st->state = STATUS_HUNG;
    st->hung.rank = hang->rank;
    snprintf(st->hung.host, sizeof st->hung.host, "%s", hang->host);
    snprintf(st->hung.where, sizeof st->hung.where, "%s", hang->where);
    write_now(s); /* the process may be about to end */
    pthread_mutex_unlock(&s->lock);
}

const struct sink_ops status_sink = {
    .key = STATUS_NAME,
    .where = where_of,
    .open = open_sink,
    .row = take_row,
    .saved = take_saved,
    .phase = take_phase,
    .hang = take_hang,
    .close = close_sink,
};
