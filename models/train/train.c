/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The training program: joins the launcher (boot, exit codes, signals), the engine (libfsdp) and
 * checkpoints. No other file includes all three.
 *
 *   configuration -> device, model, data -> mesh, engine -> resume | pretrained | random
 *     -> loop: micro-steps, step, evaluate, save -> exit code
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "launch.h"

#include "train.h"
#include "end.h"
#include "fit.h"
#include "screen.h"
#include "start.h"
#include "tables.h"
#include "train/node/health.h"
#include "train/node/watch.h"
#include "train/setup/setup.h"
#include "warm.h"

struct train {
    struct boot *boot;
    const struct boot_info *info;
    struct fsdp_oob *oob; /* the job's */
    struct report report;
    struct train_parts parts;
    struct train_loop loop;
    struct train_life *life;
    struct train_saver saver;
    struct train_start start;
};

static void tell_hang(void *ctx, int rank, const char *host, const char *where)
{
    const struct sink_hang hang = {.rank = rank, .host = host, .where = where};
    sinks_hang(ctx, &hang);
}

static int open_sinks(struct train *t, struct fsdp_err *err)
{
    const struct config *c = t->parts.config;
    const struct sink_run run = {.config = c,
                                 .settings = t->saver.settings,
                                 .resumed = t->start.resumed,
                                 .host = t->info->host,
                                 .step = t->loop.state.step,
                                 .attempt = 1,
                                 .ranks = t->info->size,
                                 .nodes = boot_nodes(t->boot)->nnodes,
                                 .fsdp = t->parts.fsdp,
                                 .mesh = t->parts.mesh,
                                 .device = t->parts.device};
    int rc = FSDP_OK;

    if (t->report.lead)
        rc = sinks_open(&t->loop.sinks.rows, &run, err);
    t->saver.sinks = t->loop.sinks.rows;
    train_watch_tell(t->loop.sinks.watch, tell_hang, t->loop.sinks.rows);
    return fsdp_oob_agree(t->oob, rc, err);
}

/* The host waits in collectives on the CPU only. */
static int open_exposed(struct train *t, struct fsdp_err *err)
{
    int rc = FSDP_OK;

    if (!fsdp_device_is_host(t->parts.device))
        rc = fsdp_exposed_open(t->parts.fsdp, err);
    return fsdp_oob_agree(t->oob, rc, err);
}

static int open_trace(struct train *t, struct fsdp_err *err)
{
    const struct config *c = t->parts.config;

    if (!c->log.trace[0] || c->train.steps <= t->loop.state.step)
        return FSDP_OK;
    return train_trace_open(&t->loop.sinks.trace, c, t->loop.state.step, t->parts.fsdp, t->oob,
                            &t->report, err);
}

static int set_up(struct train *t, const char *config, int noverrides, char *const *overrides,
                  bool verbose, struct fsdp_err *err)
{
    const struct fsdp_node_map *nodes = boot_nodes(t->boot);

    FSDP_TRY(train_parts_config(&t->parts, t->oob, config, noverrides, overrides, err));
    report_open(&t->report, t->info->rank, t->info->host, t->parts.config, verbose);
    FSDP_TRY(train_check_start(t->boot, t->parts.config, &t->report, err));
    FSDP_TRY(train_life_open(&t->life, t->parts.config, t->report.lead, err));
    t->parts.info = t->info;
    t->parts.stop_requested = launch_stop_requested;
    FSDP_TRY(train_parts_local(&t->parts, t->oob, nodes, err));
    t->report.steps = t->parts.config->train.steps; /* of train.epochs, too */
    const int made = train_parts_engine(&t->parts, t->oob, nodes, err);
    if (made == FSDP_ENOMEM && t->report.lead)
        train_fit_tell(&t->parts, nodes, config, noverrides, overrides);
    FSDP_TRY(made);
    FSDP_TRY(open_exposed(t, err));
    FSDP_TRY(train_watch_open(&t->loop.sinks.watch, t->parts.config, t->parts.fsdp, t->parts.mesh,
                              t->oob, nodes, err));
    FSDP_TRY(train_saver_open(&t->saver, &t->parts, t->oob, &t->report, err));
    t->saver.life = t->life;
    t->start.oob = t->oob;
    t->start.report = &t->report;
    t->start.parts = &t->parts;
    t->start.loop = &t->loop;
    t->start.saver = &t->saver;
    t->start.life = t->life;
    FSDP_TRY(train_start_run(&t->start, err));
    FSDP_TRY(open_sinks(t, err));
    return open_trace(t, err);
}

/* Signals count on every rank, clock and files on rank 0. A run that has lost its folder stops
 * where it would save, and is refused there. */
static unsigned asks(void *ctx, double step_seconds)
{
    struct train *t = ctx;
    bool stop = launch_stop_requested() || train_claim_is_lost(t->start.claim);
    return train_life_asks(t->life, step_seconds) | (stop ? TRAIN_ASK_STOP : 0);
}

static int run_loop(struct train *t, struct fsdp_err *err)
{
    char lowest[80];
    struct train_loop *l = &t->loop;

    l->parts = &t->parts;
    l->oob = t->oob;
    l->sinks.report = &t->report;
    l->hooks.asks = asks;
    l->hooks.asks_ctx = t;
    if (t->parts.config->checkpoint.path[0])
        l->hooks.save = &train_saver_ops;
    l->hooks.save_ctx = &t->saver;
    FSDP_TRY(train_loop_open(l, err));
    if (l->state.step >= t->parts.config->train.steps && t->start.resumed[0])
        report_line(&t->report,
                    "nothing to do: %s is at step %" PRId64 " of %" PRId64
                    " (a higher train.steps continues, another checkpoint.path begins anew)",
                    t->start.resumed, l->state.step, t->parts.config->train.steps);
    else if (train_best_ends(&l->state.best, t->parts.config))
        report_line(
            &t->report,
            "nothing to do: no better held-out loss in the last evaluations before %s; %s (a "
            "higher train.early_stop continues)",
            t->start.resumed, train_best_text(lowest, sizeof lowest, &l->state.best));
    else if (l->state.step < t->parts.config->train.steps)
        FSDP_TRY(train_warm(l, err));
    if (t->parts.config->model.cuda_graphs)
        FSDP_TRY(t->parts.ops->set_graphs(t->parts.model, err));
    return train_loop_run(l, err);
}

static int finish_run(struct train *t)
{
    const struct train_state *s = &t->loop.state, *begun = &t->start.begun;
    char tokens[REPORT_NUMBER_NBYTES], seconds[REPORT_NUMBER_NBYTES];
    const int64_t nsteps = s->step - begun->step;
    char here[48] = "", lowest[80];

    train_trace_report(t->loop.sinks.trace);
    if (t->loop.stopped && s->step < t->parts.config->train.steps) {
        if (t->loop.saved_step == s->step) {
            report_line(&t->report, "stopped on request at step %" PRId64 "; resume from %s",
                        s->step, t->saver.saved);
            return LAUNCH_REQUEUE;
        }
        if (t->report.lead)
            fsdp_log(FSDP_LOG_ERROR,
                     "stopped on request at step %" PRId64 "; nothing is saved, "
                     "because checkpoint.path is not set",
                     s->step);
        return LAUNCH_FAILED;
    }
    if (t->saver.left_staged)
        return LAUNCH_REQUEUE; /* to bring the last checkpoint to where it belongs */
    if (!nsteps && t->start.resumed[0])
        return LAUNCH_DONE; /* it was said that there is nothing to do */
    if (t->loop.settled)
        report_line(&t->report,
                    "ended early: no better held-out loss in %" PRId64 " evaluations; %s",
                    s->best.stale, train_best_text(lowest, sizeof lowest, &s->best));
    if (begun->step)
        snprintf(here, sizeof here, ", %" PRId64 " of them now", nsteps);
    report_line(&t->report, "done: %" PRId64 " step%s%s, %s tokens in %s", s->step,
                s->step == 1 ? "" : "s", here,
                report_count(tokens, (uint64_t)(s->tokens - begun->tokens)),
                report_seconds(seconds, s->seconds - begun->seconds));
    return LAUNCH_DONE;
}

/* Of those who lost a rank one says so, once. The job's channel knows best who died. */
static bool speaks_of_loss(struct train *t, const struct fsdp_err *err)
{
    struct fsdp_err health = FSDP_ERR_INIT;
    int culprit = err->culprit;

    if (t->oob->health(t->oob, &health) && health.kind == FSDP_ERR_LOST)
        culprit = health.culprit;
    return !err->of_other && watch_speaks(t->info->rank, culprit) &&
           train_watch_may_tell(t->loop.sinks.watch);
}

/* A single rank needs no name. Of one machine all ranks refuse a setting alike. */
static bool is_alike(const struct train *t, const struct fsdp_err *err)
{
    return t->info->size == 1 ||
           (err->setting[0] && t->report.lead && boot_nodes(t->boot)->nnodes == 1);
}

/* Says why, once: of those who lost a peer one speaks, and of what all found alike, rank 0. */
static int fail_run(struct train *t, const struct fsdp_err *err)
{
    const int own = err->setting[0] ? LAUNCH_USAGE : LAUNCH_FAILED;
    /* A communicator that another rank aborted is that rank's loss, too. */
    bool lost = err->status == FSDP_EPEER || err->status == FSDP_ECANCELED;
    bool mismatch = err->status == FSDP_EMISMATCH;
    struct fsdp_err why = *err;

    if (t->parts.stopped) {
        if (t->report.lead)
            report_error(&t->report, err->text, false);
        return LAUNCH_REQUEUE;
    }
    if (lost ? speaks_of_loss(t, err) : mismatch ? t->report.lead : !err->of_other)
        report_error(&t->report, lost ? err->text + err->cause : err->text, is_alike(t, err));
    if (!lost && why.culprit < 0)
        why.culprit = t->info->rank;
    if (!err->of_other) /* else that rank says it better */
        t->oob->abort(t->oob, lost ? LAUNCH_PEER_LOST : own, &why);
    if (t->parts.mesh)
        fsdp_mesh_abort(t->parts.mesh, &why);
    return lost ? LAUNCH_PEER_LOST : own;
}

/* After a failure what frees the memory of a GPU has a deadline; what waits for a save does not. */
static void tear_down(struct train *t, int code, const struct fsdp_err *why)
{
    const bool bound = why && t->parts.device && !fsdp_device_is_host(t->parts.device);
    struct train_end end = {.armed = false};

    train_watch_close(t->loop.sinks.watch);
    if (bound)
        train_end_arm(&end, t->info->rank, t->info->host, code);
    train_loop_close(&t->loop);
    train_end_disarm(&end);
    sinks_close(t->loop.sinks.rows,
                why               ? SINK_FAILED
                : t->loop.stopped ? SINK_STOPPED
                                  : SINK_DONE,
                why ? why->text : NULL);
    train_trace_close(t->loop.sinks.trace);
    train_saver_close(&t->saver);
    train_claim_release(t->start.claim);
    train_life_close(t->life);
    if (bound)
        train_end_arm(&end, t->info->rank, t->info->host, code);
    train_parts_close(&t->parts);
    train_end_disarm(&end);
    report_close(&t->report);
}

/* One screen; under -v its tables, too. Warnings come with either. Collective. */
static int show_plan(struct train *t, struct fsdp_err *err)
{
    const struct train_begun begun = {t->loop.state.step, t->start.resumed, t->start.converted,
                                      t->life};
    const struct fsdp_node_map *nodes = boot_nodes(t->boot);

    train_show_screen(&t->report, &t->parts, &begun);
    t->report.hide_rows = !t->report.verbose;
    train_show_environment(&t->report, &t->parts, nodes);
    int rc = train_bind_show(&t->report, &t->parts.binding, t->oob, nodes, err);
    train_show_mesh(&t->report, &t->parts);
    train_show_training(&t->report, &t->parts, &begun);
    train_show_memory(&t->report, t->parts.fsdp);
    t->report.hide_rows = false;
    train_warn_of_settings(&t->report, &t->parts);
    return rc;
}

int train_run(struct boot *boot, const char *config, int noverrides, char *const *overrides,
              bool verbose)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct train *t = fsdp_alloc(1, sizeof *t, "training", &err);
    int code;

    if (!t) {
        fprintf(stderr, "fsdp-launch: %s\n", err.text);
        return LAUNCH_FAILED;
    }
    t->loop.began = fsdp_time_now();
    t->boot = boot;
    t->info = boot_info(boot);
    t->oob = boot_oob(boot);
    report_open(&t->report, t->info->rank, t->info->host, NULL, verbose);
    int rc = set_up(t, config, noverrides, overrides, verbose, &err);
    if (rc == FSDP_OK)
        rc = show_plan(t, &err);
    if (rc == FSDP_OK)
        rc = run_loop(t, &err);
    err.status = rc;
    code = rc == FSDP_OK ? finish_run(t) : fail_run(t, &err);
    tear_down(t, code, rc == FSDP_OK ? NULL : &err);
    fsdp_free(t);
    return code;
}
