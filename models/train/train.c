/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The training program: joins the launcher (boot, exit codes, signals), the engine (libfsdp) and
 * checkpoints. No other file includes all three.
 *
 *   configuration -> device, model, data -> mesh, engine -> resume | pretrained | random
 *     -> loop: micro-steps, step, evaluate, save -> exit code
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/ckpt.h"
#include "launch.h"

#include "train.h"
#include "end.h"
#include "train/save/claim.h"
#include "train/node/health.h"
#include "train/save/life.h"
#include "train/save/moments.h"
#include "train/save/save.h"
#include "loop.h"
#include "train/setup/setup.h"
#include "screen.h"
#include "tables.h"
#include "train/report/metrics_table.h"
#include "warm.h"
#include "train/node/watch.h"
#include "weights/weights.h"

struct train {
    struct boot *boot;
    const struct boot_info *info;
    struct fsdp_oob *oob; /* the job's */
    struct report report;
    struct train_parts parts;
    struct train_loop loop;
    struct train_life *life;
    struct train_saver saver;
    struct train_claim *claim;       /* rank 0's on checkpoint.path */
    struct train_state begun;        /* where this run takes over */
    const char *resume;              /* checkpoint.resume, as it is to be taken */
    char resumed[TRAIN_PATH_NBYTES]; /* checkpoint that the run began from, "" for none */
    char converted[64];              /* and what of it was converted, as text */
};

static int each_slice(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err)
{
    return fsdp_state_each(ctx, fn, fn_ctx, err);
}

/* ---- where to start -------------------------------------------------------------------------- */

/* Rank 0 knows from its notes whether the job continues by itself. */
static int choose_resume(struct train *t, struct fsdp_err *err)
{
    int32_t goes_on = t->report.lead && train_life_goes_on(t->life);

    FSDP_TRY(fsdp_oob_broadcast(t->oob, &goes_on, sizeof goes_on, 0, err));
    t->resume = goes_on ? "auto" : t->parts.config->checkpoint.resume;
    return FSDP_OK;
}

/* The checkpoint to resume from, "" for none. Rank 0 looks and tells the others, because a shared
 * folder may look different from each node for a while. */
static int choose_checkpoint(struct train *t, struct fsdp_err *err)
{
    const char *resume = t->resume;
    const char *root = t->parts.config->checkpoint.path;
    char where[CONFIG_TEXT + 128];
    bool automatic = strcmp(resume, "auto") == 0, must = strcmp(resume, "must") == 0;
    int rc = FSDP_OK;

    if (t->report.lead && (automatic || must) && root[0]) {
        rc = ckpt_latest(t->resumed, sizeof t->resumed, root, err);
        if (rc == FSDP_ENOTFOUND) {
            t->resumed[0] = 0;
            rc = automatic
                     ? FSDP_OK
                     : fsdp_err_set(
                           err, FSDP_ENOTFOUND, "%s: must resume, but there is no checkpoint in %s",
                           config_where(where, sizeof where, t->parts.config, "checkpoint.resume"),
                           root);
        }
    } else if (t->report.lead && !automatic && strcmp(resume, "never") != 0) {
        snprintf(t->resumed, sizeof t->resumed, "%s", resume);
    }
    FSDP_TRY(fsdp_oob_agree(t->oob, rc, err));
    return fsdp_oob_broadcast(t->oob, t->resumed, sizeof t->resumed, 0, err);
}

/* Step of a checkpoint's folder, -1 where its name says none. */
static int64_t step_of(const char *path)
{
    const char *name = strrchr(path, '/');
    int64_t step;
    return sscanf(name ? name + 1 : path, "step-%" SCNd64, &step) == 1 ? step : -1;
}

/* A staged checkpoint that is newer than what checkpoint.path has goes there first. */
static int recover_staged(struct train *t, struct fsdp_err *err)
{
    const struct config *c = t->parts.config;
    char latest[TRAIN_PATH_NBYTES];
    int64_t newest = -1;
    int rc = FSDP_OK;

    if (!t->saver.stage.folder ||
        (strcmp(t->resume, "auto") != 0 && strcmp(t->resume, "must") != 0))
        return FSDP_OK;
    if (t->report.lead)
        rc = ckpt_latest(latest, sizeof latest, c->checkpoint.path, err);
    if (t->report.lead && rc == FSDP_OK)
        newest = step_of(latest);
    FSDP_TRY(fsdp_oob_agree(t->oob, rc == FSDP_ENOTFOUND ? FSDP_OK : rc, err));
    return train_stage_recover(&t->saver.stage, newest, err);
}

/* A place that cannot be written, or is another run's, should be known now, not after the first
 * hour. Rank 0's part. */
static int prepare_root(struct train *t, struct fsdp_err *err)
{
    const char *root = t->parts.config->checkpoint.path;
    char where[CONFIG_TEXT + 128];

    if (!root[0] || !t->report.lead)
        return FSDP_OK;
    int rc = ckpt_root_make(root, err);
    if (rc == FSDP_OK)
        rc = ckpt_root_try(NULL, root, 1, err);
    fsdp_err_prefix(err, rc,
                    "%s: ", config_where(where, sizeof where, t->parts.config, "checkpoint.path"));
    return rc ? rc : train_claim_take(&t->claim, t->parts.config, err);
}

/* Saves of this run must not meet checkpoints of another that went further. Rank 0's part. */
static int check_root(struct train *t, struct fsdp_err *err)
{
    const char *root = t->parts.config->checkpoint.path;
    char latest[TRAIN_PATH_NBYTES], where[CONFIG_TEXT + 128];

    if (!root[0] || !t->report.lead)
        return FSDP_OK;
    int rc = ckpt_latest(latest, sizeof latest, root, err);
    if (rc != FSDP_OK)
        return rc == FSDP_ENOTFOUND ? FSDP_OK : rc;
    int64_t begin = t->loop.state.step, there = step_of(latest);
    if (there > begin || (there == begin && !t->resumed[0]))
        return fsdp_err_set(err, FSDP_EEXIST,
                            "%s: there is already %s, and this run begins at step %" PRId64
                            "; set checkpoint.resume to auto, or another checkpoint.path",
                            config_where(where, sizeof where, t->parts.config, "checkpoint.path"),
                            latest, begin);
    return FSDP_OK;
}

/* What is read of a checkpoint. */
struct reading {
    struct ckpt *ckpt;
    struct train_moments *moments; /* NULL: the weights alone */
    int kinds;                     /* TRAIN_...; counts where the run has adapters */
    const char *prefix;            /* before its names; NULL: none */
};

/* Only replica 0 reads; the engine sends to the others. */
static int load_slices(struct train *t, const struct reading *r, struct fsdp_err *err)
{
    struct ckpt_load_args args = CKPT_LOAD_ARGS_INIT;
    struct train_base_slices slices = {.base = &t->saver.base,
                                       .kinds = r->kinds,
                                       .prefix = r->prefix,
                                       .slices = r->moments ? train_moments_slices : each_slice,
                                       .ctx = r->moments ? (void *)r->moments : t->parts.fsdp};

    args.slices = train_base_each;
    args.slices_ctx = &slices;
    args.optim = r->moments != NULL;
    args.replica = 0;
    args.aliases = t->saver.aliases;
    args.naliases = t->saver.naliases;
    /* Modules that are trained whole are in the base, too. */
    args.some = r->kinds == TRAIN_BASE && t->parts.adapter.lora.nmodules > 0;
    if (train_base_is_on(&t->saver.base) && r->kinds & TRAIN_BASE) {
        args.whole = train_base_loaded;
        args.whole_ctx = &t->saver.base;
    }
    const int rc = t->report.lead ? weights_check_tied(r->ckpt, t->parts.tree, err) : FSDP_OK;
    FSDP_TRY(fsdp_oob_agree(t->oob, rc, err));
    FSDP_TRY(ckpt_load(r->ckpt, &args, t->saver.oob, err));
    return fsdp_state_loaded(t->parts.fsdp, err);
}

/* step: that of the checkpoint, -1: it tells none. */
static int restore_state(struct train *t, struct ckpt *ckpt, int64_t step, struct fsdp_err *err)
{
    struct train_state saved;
    const char *path = ckpt_path(ckpt);
    bool restart = t->parts.config->checkpoint.data_position == CONFIG_DATA_RESTART;

    if (ckpt_format(ckpt) == CKPT_DCP || train_state_is_foreign(ckpt_state_json(ckpt)))
        FSDP_TRY(train_state_adopt(&saved, &t->loop.state, step, restart, path, err));
    else
        FSDP_TRY(train_state_read(&saved, ckpt_state_json(ckpt), path, err));
    return train_state_resume(&t->loop.state, &saved, restart, path, err);
}

/* What becomes of optimizer tensors that are kept in another type than the checkpoint's. */
static void note_conversion(struct train *t, const struct ckpt *ckpt)
{
    const struct fsdp_state_layout *now = fsdp_state_layout(t->parts.fsdp);

    for (int i = 0; !t->converted[0] && i < ckpt_ntensors(ckpt); i++) {
        const struct ckpt_tensor *stored = ckpt_tensor_at(ckpt, i);
        const char *dot = strrchr(stored->tensor.name, '.');
        for (int k = 0; stored->kind == FSDP_SLICE_OPTIM && dot && k < now->nslots; k++)
            if (!strcmp(dot + 1, now->slots[k].name) && stored->tensor.dtype != now->slots[k].dtype)
                snprintf(t->converted, sizeof t->converted, ", whose moments in %s continue in %s",
                         fsdp_dtype_name(stored->tensor.dtype),
                         fsdp_dtype_name(now->slots[k].dtype));
    }
}

/* The weights of a checkpoint. */
static int load_weights(struct train *t, const char *path, int kinds, struct fsdp_err *err)
{
    struct reading reading = {.kinds = kinds};
    int rc = fsdp_oob_agree(t->oob, ckpt_open(&reading.ckpt, path, err), err);

    if (rc == FSDP_OK)
        rc = fsdp_oob_agree(t->oob, weights_find(reading.ckpt, t->parts.tree, err), err);
    if (rc == FSDP_OK)
        rc = load_slices(t, &reading, err);
    ckpt_close(reading.ckpt);
    return rc;
}

/* model.path may be the config.json itself: the weights lie next to it. */
static int load_pretrained(struct train *t, int kinds, struct fsdp_err *err)
{
    const char *path = t->parts.config->model.path, *slash = strrchr(path, '/');
    char folder[CONFIG_TEXT];

    if (strcmp(path, t->parts.model_config) != 0) {
        int rc = load_weights(t, path, kinds, err);
        return rc == FSDP_ENOTFOUND
                   ? fsdp_err_hint(err, rc, " (model.init: random begins without weights)")
                   : rc;
    }
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    return load_weights(t, folder, kinds, err);
}

static bool has_param(const struct fsdp_module_tree *tree, const char *name)
{
    for (int i = 0; i < fsdp_param_count(tree); i++)
        if (!strcmp(fsdp_param_tensor(tree, i).name, name))
            return true;
    return false;
}

/* Adapters that the run would leave out are no start. */
static int check_adapters(const struct train *t, const struct ckpt *ckpt, struct fsdp_err *err)
{
    const size_t nbytes = strlen(CKPT_ADAPTER_PREFIX);

    for (int i = 0; i < ckpt_ntensors(ckpt); i++) {
        const char *name = ckpt_tensor_at(ckpt, i)->tensor.name;
        if (!strncmp(name, CKPT_ADAPTER_PREFIX, nbytes) && has_param(t->parts.tree, name + nbytes))
            continue;
        return fsdp_err_set(err, FSDP_EMISMATCH,
                            "lora.path: %s: this model has no parameter for tensor '%s': it is an "
                            "adapter of another model, or of a module that cannot have one here",
                            ckpt_path(ckpt), name);
    }
    return FSDP_OK;
}

/* New adapters, or those of lora.path, on the model as it is stored. */
static int start_adapters(struct train *t, struct fsdp_err *err)
{
    struct ckpt_adapter *start = t->parts.adapter.start;

    if (start)
        FSDP_TRY(check_adapters(t, ckpt_adapter_ckpt(start), err));
    FSDP_TRY(fsdp_init_params(t->parts.fsdp, err));
    FSDP_TRY(load_pretrained(t, TRAIN_BASE | (start ? 0 : TRAIN_WHOLE), err));
    if (!start)
        return FSDP_OK;
    const struct reading reading = {
        .ckpt = ckpt_adapter_ckpt(start), .kinds = TRAIN_TRAINED, .prefix = CKPT_ADAPTER_PREFIX};
    return load_slices(t, &reading, err);
}

/* The model that the adapters of a checkpoint were trained on comes first: what an optimizer
 * averages begins as the weights, until it is read. */
static int load_base(struct train *t, const struct ckpt *ckpt, struct fsdp_err *err)
{
    if (train_base_is_on(&t->saver.base))
        FSDP_TRY(load_pretrained(t, TRAIN_BASE, err));
    const int rc = train_base_check(&t->saver.base, ckpt_state_json(ckpt), ckpt_path(ckpt), err);
    return fsdp_oob_agree(t->oob, rc, err);
}

/* The sums of an optimizer that averages its steps: without them it cannot continue. */
static int load_averaging(struct train *t, const struct ckpt *ckpt, struct fsdp_err *err)
{
    const struct train_state *state = &t->loop.state;

    if (fsdp_averages(t->parts.fsdp) && state->step > 0 && !(state->averaging.weight_sum > 0))
        return fsdp_err_set(err, FSDP_EMISMATCH,
                            "%s: the sum of the weights of its steps is not in it, and %s needs "
                            "it; begin a new run with model.path at its merged weights",
                            ckpt_path(ckpt), t->parts.optimizer);
    return fsdp_averaging_set(t->parts.fsdp, &state->averaging, err);
}

static int resume_from(struct train *t, const char *path, struct fsdp_err *err)
{
    struct train_moments moments = {0};
    struct ckpt *ckpt = NULL;
    int rc;

    FSDP_TRY_GOTO(fsdp_oob_agree(t->oob, ckpt_open(&ckpt, path, err), err), out);
    int64_t step = ckpt_step(ckpt);
    FSDP_TRY_GOTO(train_moments_open(&moments, &t->parts, ckpt, &step, t->oob, err), out);
    rc = restore_state(t, ckpt, step, err);
    if (rc == FSDP_OK)
        rc =
            train_moments_decide(&moments, t->loop.state.step - t->loop.state.scaler.nskipped, err);
    FSDP_TRY_GOTO(fsdp_oob_agree(t->oob, rc, err), out);
    FSDP_TRY_GOTO(load_base(t, ckpt, err), out);
    const struct reading reading = {ckpt, &moments, TRAIN_TRAINED, NULL};
    FSDP_TRY_GOTO(load_slices(t, &reading, err), out);
    FSDP_TRY_GOTO(fsdp_scaler_set(t->parts.fsdp, &t->loop.state.scaler, err), out);
    FSDP_TRY_GOTO(load_averaging(t, ckpt, err), out);
    if (t->report.lead)
        train_moments_report(&moments);
    note_conversion(t, ckpt);
    snprintf(t->resumed, sizeof t->resumed, "%s", ckpt_path(ckpt));
    t->loop.saved_step = t->loop.state.step;
    t->saver.best = t->saver.best_published = t->loop.state.best.step;
out:
    train_moments_close(&moments);
    ckpt_close(ckpt);
    return rc;
}

/* The position in the data that the run begins with. */
static int begins_at(struct train_state *at, const struct train *t, struct fsdp_err *err)
{
    const bool restart = t->parts.config->checkpoint.data_position == CONFIG_DATA_RESTART;
    struct ckpt *ckpt = NULL;
    int rc = FSDP_OK;

    *at = t->loop.state;
    if (t->resumed[0] && !restart)
        rc = ckpt_open(&ckpt, t->resumed, err);
    if (rc == FSDP_OK && ckpt && ckpt_format(ckpt) != CKPT_DCP &&
        !train_state_is_foreign(ckpt_state_json(ckpt)))
        rc = train_state_read(at, ckpt_state_json(ckpt), ckpt_path(ckpt), err);
    ckpt_close(ckpt);
    return rc;
}

/* The pairs that the run will read; the batch may have been another before it resumed. */
static int open_reference(struct train *t, struct fsdp_err *err)
{
    const int64_t steps = t->parts.config->train.steps;
    struct train_state at;

    FSDP_TRY(fsdp_oob_agree(t->oob, begins_at(&at, t, err), err));
    const double left = steps > at.step ? (double)(steps - at.step) : 0;
    const double end = (double)at.rows + left * (double)t->parts.batch.rows;
    FSDP_TRY(train_dpo_open(&t->loop.dpo, &t->parts, end < 1e18 ? (uint64_t)end : UINT64_MAX,
                            t->oob, err));
    t->loop.state.reference = t->loop.dpo.probe;
    return FSDP_OK;
}

/* The state that the run begins with. Where it has a reference, that is the model as it begins,
 * also of a run that resumes. */
static int load_start(struct train *t, struct fsdp_err *err)
{
    const bool refers = t->parts.config->train.objective == CONFIG_DPO;
    const bool stored = t->parts.config->model.init == CONFIG_INIT_PRETRAINED;
    int rc = FSDP_OK;

    if (refers || !t->resumed[0])
        rc = train_base_is_on(&t->saver.base) ? start_adapters(t, err)
             : stored                         ? load_pretrained(t, 0, err)
                                              : fsdp_init_params(t->parts.fsdp, err);
    if (rc == FSDP_OK && refers)
        rc = open_reference(t, err);
    return rc || !t->resumed[0] ? rc : resume_from(t, t->resumed, err);
}

static int start_run(struct train *t, struct fsdp_err *err)
{
    t->loop.state = train_parts_state(&t->parts);
    t->loop.saved_step = -1;
    FSDP_TRY(fsdp_oob_agree(t->oob, prepare_root(t, err), err));
    t->saver.claim = t->claim;
    FSDP_TRY(train_stage_open(&t->saver.stage, &t->parts, t->oob, t->saver.asked, &t->report, err));
    FSDP_TRY(choose_resume(t, err));
    FSDP_TRY(recover_staged(t, err));
    FSDP_TRY(choose_checkpoint(t, err));
    FSDP_TRY(load_start(t, err));
    t->begun = t->loop.state;
    int rc = check_root(t, err);
    if (rc == FSDP_OK)
        rc = train_claim_check(t->claim, err); /* two that came at one moment */
    if (rc == FSDP_OK)
        rc = train_life_begin(t->life, t->loop.state.step, t->resumed[0] != 0, err);
    return fsdp_oob_agree(t->oob, rc, err);
}

/* ---- the run --------------------------------------------------------------------------------- */

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
                                 .resumed = t->resumed,
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
    FSDP_TRY(train_parts_engine(&t->parts, t->oob, nodes, err));
    FSDP_TRY(train_watch_open(&t->loop.sinks.watch, t->parts.config, t->parts.fsdp, t->parts.mesh,
                              t->oob, nodes, err));
    FSDP_TRY(train_saver_open(&t->saver, &t->parts, t->oob, &t->report, err));
    t->saver.life = t->life;
    FSDP_TRY(start_run(t, err));
    FSDP_TRY(open_sinks(t, err));
    return open_trace(t, err);
}

/* Signals count on every rank, clock and files on rank 0. A run that has lost its folder stops
 * where it would save, and is refused there. */
static unsigned asks(void *ctx, double step_seconds)
{
    struct train *t = ctx;
    bool stop = launch_stop_requested() || train_claim_is_lost(t->claim);
    return train_life_asks(t->life, step_seconds) | (stop ? TRAIN_ASK_STOP : 0);
}

static int run_loop(struct train *t, struct fsdp_err *err)
{
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
    if (l->state.step >= t->parts.config->train.steps && t->resumed[0])
        report_line(&t->report,
                    "nothing to do: %s is at step %" PRId64 " of %" PRId64
                    " (a higher train.steps continues, another checkpoint.path begins anew)",
                    t->resumed, l->state.step, t->parts.config->train.steps);
    else if (train_best_ends(&l->state.best, t->parts.config))
        report_line(&t->report,
                    "nothing to do: the held-out loss of %s is not better than in step %" PRId64
                    " (a higher train.early_stop continues)",
                    t->resumed, l->state.best.step);
    else if (l->state.step < t->parts.config->train.steps)
        FSDP_TRY(train_warm(l, err));
    return train_loop_run(l, err);
}

static int finish_run(struct train *t)
{
    const struct train_state *s = &t->loop.state, *begun = &t->begun;
    char tokens[REPORT_NUMBER_NBYTES], seconds[REPORT_NUMBER_NBYTES];
    const int64_t nsteps = s->step - begun->step;
    char here[48] = "";

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
    if (!nsteps && t->resumed[0])
        return LAUNCH_DONE; /* it was said that there is nothing to do */
    if (t->loop.settled)
        report_line(&t->report,
                    "ended early: no better held-out loss in %" PRId64
                    " evaluations; the lowest is %.4f, of step %" PRId64,
                    s->best.stale, s->best.loss, s->best.step);
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
    train_claim_release(t->claim);
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
    const struct train_begun begun = {t->loop.state.step, t->resumed, t->converted, t->life};
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

/* ---- before any rank starts ------------------------------------------------------------------ */

static int print_error(const struct fsdp_err *err)
{
    fprintf(stderr, "fsdp-launch: %s\n", err->text);
    return LAUNCH_USAGE;
}

int train_check(const char *config, int noverrides, char *const *overrides)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct config *settings = NULL;
    int rc = config_load(&settings, config, noverrides, overrides, &err);

    if (rc == FSDP_OK)
        rc = train_stores_check(settings, &err);
    fsdp_free(settings);
    return rc == FSDP_OK ? LAUNCH_DONE : print_error(&err);
}

bool train_setting(char *out, size_t nbytes, const char *key, const char *config, int noverrides,
                   char *const *overrides)
{
    struct config *settings = NULL;
    const bool loaded = config_load(&settings, config, noverrides, overrides, NULL) == FSDP_OK;

    out[0] = '\0';
    if (loaded)
        config_word(out, nbytes, settings, key);
    fsdp_free(settings);
    return loaded && out[0];
}

bool train_uses_mpi(const char *config, int noverrides, char *const *overrides)
{
    char word[16] = "";

    return train_setting(word, sizeof word, "fsdp.backend", config, noverrides, overrides) &&
           strcmp(word, "mpi") == 0;
}

static int check_batch(const struct config *c, int nranks, struct fsdp_err *err)
{
    struct config_batch batch;
    char where[400];

    config_divide(&batch, c, nranks);
    config_where(where, sizeof where, c, "train.global_batch_size");
    if (batch.rows < nranks)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: a step has %" PRId64 " rows for %d ranks, so %" PRId64
                            " ranks would have none. Type train.global_batch_size=%d or a multiple "
                            "of it, or ask for fewer ranks",
                            where, batch.rows, nranks, nranks - batch.rows, nranks);
    const double waste = config_batch_waste(&batch);
    if (waste <= 0)
        return FSDP_OK;
    const struct config_batch better = config_batch_better(&batch, c, 0);
    fprintf(stderr,
            "fsdp-launch: warning: %s: %" PRId64 " rows on %d ranks waste %.1f %% of the "
            "computation on padding; train.global_batch_size=%" PRId64 " wastes nothing\n",
            where, batch.rows, nranks, 100 * waste, better.rows);
    return FSDP_OK;
}

int train_check_ranks(const char *config, int noverrides, char *const *overrides, int nranks)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct config *settings = NULL;
    int rc = config_load(&settings, config, noverrides, overrides, &err);

    if (rc == FSDP_OK)
        rc = check_batch(settings, nranks, &err);
    fsdp_free(settings);
    return rc == FSDP_OK ? LAUNCH_DONE : print_error(&err);
}

const struct fsdp_tunable *train_keys(int *nkeys)
{
    return config_keys(nkeys);
}

int train_begin_mpi(struct fsdp_err *err)
{
    return fsdp_comm_begin_mpi(err);
}

int train_print_config(const char *config, int noverrides, char *const *overrides)
{
    struct fsdp_err err = FSDP_ERR_INIT;
    struct config *settings = NULL;
    int rc = config_load_unchecked(&settings, config, noverrides, overrides, &err);

    if (rc == FSDP_OK)
        rc = config_print(settings, true, stdout, &err);
    if (rc == FSDP_OK)
        train_gpu_print(stdout);
    if (rc == FSDP_OK && fflush(stdout) != 0)
        rc = fsdp_err_sys(&err, errno, "standard output");
    fsdp_free(settings);
    return rc == FSDP_OK ? LAUNCH_DONE : print_error(&err);
}

int train_print_metrics(void)
{
    struct fsdp_err err = FSDP_ERR_INIT;

    metrics_print_table(stdout);
    return fflush(stdout) == 0 && !ferror(stdout)
               ? LAUNCH_DONE
               : print_error((fsdp_err_sys(&err, errno, "standard output"), &err));
}
