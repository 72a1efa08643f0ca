/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "packed.h"
#include "start.h"
#include "train/save/moments.h"
#include "train/setup/data.h"
#include "train/setup/magnitudes.h"
#include "train/setup/model_changes.h"
#include "weights/weights.h"

/* Rank 0 knows from its notes whether the job continues by itself. */
static int choose_resume(struct train_start *s, struct fsdp_err *err)
{
    int32_t goes_on = s->report->lead && train_life_goes_on(s->life);

    FSDP_TRY(fsdp_oob_broadcast(s->oob, &goes_on, sizeof goes_on, 0, err));
    s->resume = goes_on ? "auto" : s->parts->config->checkpoint.resume;
    return FSDP_OK;
}

/* The checkpoint to resume from, "" for none. Rank 0 looks and tells the others, because a shared
 * folder may look different from each node for a while. */
static int choose_checkpoint(struct train_start *s, struct fsdp_err *err)
{
    const char *resume = s->resume;
    const char *root = s->parts->config->checkpoint.path;
    char where[CONFIG_TEXT + 128];
    bool automatic = strcmp(resume, "auto") == 0, must = strcmp(resume, "must") == 0;
    int rc = FSDP_OK;

    if (s->report->lead && (automatic || must) && root[0]) {
        rc = ckpt_latest(s->resumed, sizeof s->resumed, root, err);
        if (rc == FSDP_ENOTFOUND) {
            s->resumed[0] = 0;
            rc = automatic
                     ? FSDP_OK
                     : fsdp_err_set(
                           err, FSDP_ENOTFOUND, "%s: must resume, but there is no checkpoint in %s",
                           config_where(where, sizeof where, s->parts->config, "checkpoint.resume"),
                           root);
        }
    } else if (s->report->lead && !automatic && strcmp(resume, "never") != 0) {
        snprintf(s->resumed, sizeof s->resumed, "%s", resume);
    }
    FSDP_TRY(fsdp_oob_agree(s->oob, rc, err));
    return fsdp_oob_broadcast(s->oob, s->resumed, sizeof s->resumed, 0, err);
}

/* Step of a checkpoint's folder, -1 where its name says none. */
static int64_t step_of(const char *path)
{
    const char *name = strrchr(path, '/');
    int64_t step;
    return sscanf(name ? name + 1 : path, "step-%" SCNd64, &step) == 1 ? step : -1;
}

/* A staged checkpoint that is newer than what checkpoint.path has goes there first. */
static int recover_staged(struct train_start *s, struct fsdp_err *err)
{
    const struct config *c = s->parts->config;
    char latest[TRAIN_PATH_NBYTES];
    int64_t newest = -1;
    int rc = FSDP_OK;

    if (!s->saver->stage.folder ||
        (strcmp(s->resume, "auto") != 0 && strcmp(s->resume, "must") != 0))
        return FSDP_OK;
    if (s->report->lead)
        rc = ckpt_latest(latest, sizeof latest, c->checkpoint.path, err);
    if (s->report->lead && rc == FSDP_OK)
        newest = step_of(latest);
    FSDP_TRY(fsdp_oob_agree(s->oob, rc == FSDP_ENOTFOUND ? FSDP_OK : rc, err));
    return train_stage_recover(&s->saver->stage, newest, err);
}

/* A place that cannot be written, or is another run's, should be known now, not after the first
 * hour. Rank 0's part. */
static int prepare_root(struct train_start *s, struct fsdp_err *err)
{
    const char *root = s->parts->config->checkpoint.path;
    char where[CONFIG_TEXT + 128];

    if (!root[0] || !s->report->lead)
        return FSDP_OK;
    int rc = ckpt_root_make(root, err);
    if (rc == FSDP_OK)
        rc = ckpt_root_try(NULL, root, 1, err);
    fsdp_err_prefix(err, rc,
                    "%s: ", config_where(where, sizeof where, s->parts->config, "checkpoint.path"));
    return rc ? rc : train_claim_take(&s->claim, s->parts->config, err);
}

/* Saves of this run must not meet checkpoints of another that went further. Rank 0's part. */
static int check_root(struct train_start *s, struct fsdp_err *err)
{
    const char *root = s->parts->config->checkpoint.path;
    char latest[TRAIN_PATH_NBYTES], where[CONFIG_TEXT + 128];

    if (!root[0] || !s->report->lead)
        return FSDP_OK;
    int rc = ckpt_latest(latest, sizeof latest, root, err);
    if (rc != FSDP_OK)
        return rc == FSDP_ENOTFOUND ? FSDP_OK : rc;
    int64_t begin = s->loop->state.step, there = step_of(latest);
    if (there > begin && (!strcmp(latest, s->resumed) || fsdp_file_is_same(latest, s->resumed)))
        return fsdp_err_set(err, FSDP_EEXIST,
                            "%s is a checkpoint of step %" PRId64 ", and saves of this run would "
                            "get older names: rename it to step-%08" PRId64,
                            latest, begin, begin);
    if (there > begin || (there == begin && !s->resumed[0]))
        return fsdp_err_set(err, FSDP_EEXIST,
                            "%s: there is already %s, and this run begins at step %" PRId64
                            "; set checkpoint.resume to auto, or another checkpoint.path",
                            config_where(where, sizeof where, s->parts->config, "checkpoint.path"),
                            latest, begin);
    return FSDP_OK;
}

/* What is read of a checkpoint. */
struct reading {
    struct ckpt *ckpt;
    struct train_moments *moments;    /* NULL: the weights alone */
    int kinds;                        /* TRAIN_...; counts where the run has adapters */
    const struct ckpt_adapter *names; /* whose tensors' names it has; NULL: parameters' own */
};

/* Only replica 0 reads; the engine sends to the others. */
static int load_slices(struct train_start *s, const struct reading *r, struct fsdp_err *err)
{
    struct ckpt_load_args args = CKPT_LOAD_ARGS_INIT;
    struct train_packed packed;
    struct train_base_slices slices = {.base = &s->saver->base,
                                       .kinds = r->kinds,
                                       .names = r->names,
                                       .slices = train_packed_each,
                                       .ctx = &packed};
    struct train_base *base =
        train_base_is_on(&s->saver->base) && r->kinds & TRAIN_BASE ? &s->saver->base : NULL;
    int rc = train_packed_open(&packed, s->parts, r->ckpt, err);

    if (r->moments) {
        slices.slices = train_moments_slices;
        slices.ctx = r->moments;
    }
    args.slices = train_base_each;
    args.slices_ctx = &slices;
    args.optim = r->moments != NULL;
    args.replica = 0;
    args.aliases = s->saver->aliases;
    args.naliases = s->saver->naliases;
    /* Modules that are trained whole are in the base, too. */
    args.some = (r->kinds == TRAIN_BASE && s->parts->adapter.lora.nmodules > 0) || packed.any;
    if (base) {
        args.whole = train_base_loaded;
        args.whole_ctx = base;
    }
    if (rc == FSDP_OK && s->report->lead)
        rc = weights_check_tied(r->ckpt, s->parts->tree, err);
    if (rc == FSDP_OK)
        rc = train_packed_offsets(&packed, base, err);
    FSDP_TRY(fsdp_oob_agree(s->oob, rc, err));
    FSDP_TRY(ckpt_load(r->ckpt, &args, s->saver->oob, err));
    return fsdp_state_loaded(s->parts->fsdp, err);
}

/* step: that of the checkpoint, -1: it tells none. */
static int restore_state(struct train_start *s, struct ckpt *ckpt, int64_t step,
                         struct fsdp_err *err)
{
    struct train_state saved;
    const char *path = ckpt_path(ckpt);
    bool restart = s->parts->config->checkpoint.data_position == CONFIG_DATA_RESTART;

    if (ckpt_format(ckpt) != CKPT_NATIVE || train_state_is_foreign(ckpt_state_json(ckpt)))
        FSDP_TRY(train_state_adopt(&saved, &s->loop->state, step, restart, path, err));
    else
        FSDP_TRY(train_state_read(&saved, ckpt_state_json(ckpt), path, err));
    if (s->report->lead)
        train_tell_model_changes(ckpt, s->parts->model_config);
    return train_state_resume(&s->loop->state, &saved, restart, path, err);
}

/* Weights that are trained and kept in another type than the checkpoint's: masters are F32. */
static void note_weights(struct train_start *s, const struct ckpt *ckpt)
{
    const struct fsdp_state_layout *now = fsdp_state_layout(s->parts->fsdp);
    bool told[FSDP_NDTYPES][FSDP_NDTYPES] = {{false}};

    for (int k = 0; k < now->nflats; k++)
        for (int i = 0; now->flats[k].trainable && i < now->flats[k].ntensors; i++) {
            const struct fsdp_tensor *tensor = &now->flats[k].tensors[i];
            const struct ckpt_tensor *stored = ckpt_tensor_find(ckpt, tensor->name);
            if (!stored || stored->tensor.dtype == tensor->dtype ||
                told[stored->tensor.dtype][tensor->dtype])
                continue;
            const size_t at = strlen(s->converted);
            told[stored->tensor.dtype][tensor->dtype] = true;
            snprintf(s->converted + at, sizeof s->converted - at,
                     "%s whose weights in %s continue in %s", at ? " and" : ",",
                     fsdp_dtype_name(stored->tensor.dtype), fsdp_dtype_name(tensor->dtype));
        }
}

/* What becomes of tensors that are kept in another type than the checkpoint's. */
static void note_conversion(struct train_start *s, const struct ckpt *ckpt)
{
    const struct fsdp_state_layout *now = fsdp_state_layout(s->parts->fsdp);

    for (int i = 0; !s->converted[0] && i < ckpt_ntensors(ckpt); i++) {
        const struct ckpt_tensor *stored = ckpt_tensor_at(ckpt, i);
        const char *dot = strrchr(stored->tensor.name, '.');
        for (int k = 0; stored->kind == FSDP_SLICE_OPTIM && dot && k < now->nslots; k++)
            if (!strcmp(dot + 1, now->slots[k].name) && stored->tensor.dtype != now->slots[k].dtype)
                snprintf(s->converted, sizeof s->converted, ", whose moments in %s continue in %s",
                         fsdp_dtype_name(stored->tensor.dtype),
                         fsdp_dtype_name(now->slots[k].dtype));
    }
    note_weights(s, ckpt);
}

/* The weights of a checkpoint. */
static int load_weights(struct train_start *s, const char *path, int kinds, struct fsdp_err *err)
{
    struct reading reading = {.kinds = kinds};
    struct ckpt_adapter *start = s->parts->adapter.start;
    int rc = fsdp_oob_agree(s->oob, ckpt_open(&reading.ckpt, path, err), err);

    if (rc == FSDP_OK)
        rc = fsdp_oob_agree(s->oob, weights_find(reading.ckpt, s->parts->tree, err), err);
    if (rc == FSDP_OK && start && kinds & TRAIN_BASE)
        rc = fsdp_oob_agree(
            s->oob, s->report->lead ? ckpt_adapter_check_base(start, reading.ckpt, err) : FSDP_OK,
            err);
    if (rc == FSDP_OK)
        rc = load_slices(s, &reading, err);
    ckpt_close(reading.ckpt);
    return rc;
}

/* What the run begins with, or the model of its adapters. */
static int load_pretrained(struct train_start *s, int kinds, struct fsdp_err *err)
{
    const int rc = load_weights(s, s->parts->weights, kinds, err);
    return rc == FSDP_ENOTFOUND
               ? fsdp_err_hint(err, rc, " (model.init: random begins without weights)")
               : rc;
}

static bool has_param(const struct fsdp_module_tree *tree, const char *name)
{
    for (int i = 0; i < fsdp_param_count(tree); i++)
        if (!strcmp(fsdp_param_tensor(tree, i).name, name))
            return true;
    return false;
}

/* Is a tensor of PEFT's file one of the model's: a parameter, or the head's own weight next to its
 * adapter, which load_weights compares? */
static bool is_of_model(const struct fsdp_module_tree *tree, const char *name)
{
    char weight[CONFIG_TEXT], stored[CONFIG_TEXT];
    const size_t nbytes = strlen(CKPT_ADAPTER_PREFIX);

    if (!ckpt_adapter_is_base(weight, sizeof weight, name))
        snprintf(weight, sizeof weight, "%s",
                 strncmp(name, CKPT_ADAPTER_PREFIX, nbytes) ? "" : name + nbytes);
    return has_param(tree, weight) ||
           (ckpt_adapter_stored_name(stored, sizeof stored, weight) && has_param(tree, stored));
}

/* Adapters that the run would leave out are no start. */
static int check_adapters(const struct train_start *s, const struct ckpt *ckpt,
                          struct fsdp_err *err)
{
    for (int i = 0; i < ckpt_ntensors(ckpt); i++) {
        const char *name = ckpt_tensor_at(ckpt, i)->tensor.name;
        if (is_of_model(s->parts->tree, name))
            continue;
        return fsdp_err_set(err, FSDP_EMISMATCH,
                            "lora.path: %s: this model has no parameter for tensor '%s': it is an "
                            "adapter of another model, or of a module that cannot have one here",
                            ckpt_path(ckpt), name);
    }
    return FSDP_OK;
}

/* New adapters, or those of lora.path, on the model as it is stored. */
static int start_adapters(struct train_start *s, struct fsdp_err *err)
{
    struct ckpt_adapter *start = s->parts->adapter.start;

    if (start) {
        FSDP_TRY(check_adapters(s, ckpt_adapter_ckpt(start), err));
        const int rc = s->report->lead ? ckpt_adapter_check_values(start, err) : FSDP_OK;
        FSDP_TRY(fsdp_oob_agree(s->oob, rc, err));
    }
    FSDP_TRY(fsdp_init_params(s->parts->fsdp, err));
    FSDP_TRY(load_pretrained(s, TRAIN_BASE | (start ? 0 : TRAIN_WHOLE), err));
    if (!start)
        return train_magnitudes_begin(s->parts, err);
    const struct reading reading = {
        .ckpt = ckpt_adapter_ckpt(start), .kinds = TRAIN_TRAINED, .names = start};
    return load_slices(s, &reading, err);
}

/* The model that the adapters of a checkpoint were trained on comes first: what an optimizer
 * averages begins as the weights, until it is read. */
static int load_base(struct train_start *s, const struct ckpt *ckpt, struct fsdp_err *err)
{
    if (train_base_is_on(&s->saver->base))
        FSDP_TRY(load_pretrained(s, TRAIN_BASE, err));
    const int rc = train_base_check(&s->saver->base, ckpt_state_json(ckpt), ckpt_path(ckpt), err);
    return fsdp_oob_agree(s->oob, rc, err);
}

/* The sums of an optimizer that averages its steps: without them it cannot continue. */
static int load_averaging(struct train_start *s, const struct ckpt *ckpt, struct fsdp_err *err)
{
    const struct train_state *state = &s->loop->state;

    if (fsdp_averages(s->parts->fsdp) && state->step > 0 && !(state->averaging.weight_sum > 0))
        return fsdp_err_set(err, FSDP_EMISMATCH,
                            "%s: the sum of the weights of its steps is not in it, and %s needs "
                            "it; begin a new run with model.path at its merged weights",
                            ckpt_path(ckpt), s->parts->optimizer);
    return fsdp_averaging_set(s->parts->fsdp, &state->averaging, err);
}

static int resume_from(struct train_start *s, const char *path, struct fsdp_err *err)
{
    struct train_moments moments = {0};
    struct ckpt *ckpt = NULL;
    char where[CONFIG_TEXT + 128];
    int rc;

    rc = ckpt_open(&ckpt, path, err);
    if (!strcmp(path, s->resume)) {
        config_where(where, sizeof where, s->parts->config, "checkpoint.resume");
        rc = train_blame_missing(err, fsdp_err_prefix(err, rc, "%s: ", where), "checkpoint.resume");
    } else if (rc) {
        fsdp_err_hint(err, rc, "; checkpoint.resume may name an older one");
    }
    FSDP_TRY_GOTO(fsdp_oob_agree(s->oob, rc, err), out);
    int64_t step = ckpt_step(ckpt);
    FSDP_TRY_GOTO(train_moments_open(&moments, s->parts, ckpt, &step, s->oob, err), out);
    rc = restore_state(s, ckpt, step, err);
    if (rc == FSDP_OK)
        rc = train_moments_decide(&moments, s->loop->state.step - s->loop->state.scaler.nskipped,
                                  err);
    FSDP_TRY_GOTO(fsdp_oob_agree(s->oob, rc, err), out);
    FSDP_TRY_GOTO(load_base(s, ckpt, err), out);
    const struct reading reading = {ckpt, &moments, TRAIN_TRAINED, NULL};
    FSDP_TRY_GOTO(load_slices(s, &reading, err), out);
    FSDP_TRY_GOTO(fsdp_scaler_set(s->parts->fsdp, &s->loop->state.scaler, err), out);
    if (s->loop->state.clip_factor > 0)
        FSDP_TRY_GOTO(fsdp_clip_factor_set(s->parts->fsdp, s->loop->state.clip_factor, err), out);
    FSDP_TRY_GOTO(load_averaging(s, ckpt, err), out);
    if (s->report->lead)
        train_moments_report(&moments);
    note_conversion(s, ckpt);
    snprintf(s->resumed, sizeof s->resumed, "%s", ckpt_path(ckpt));
    s->loop->saved_step = s->loop->state.step;
    s->saver->best = s->saver->best_published = s->loop->state.best.step;
out:
    train_moments_close(&moments);
    ckpt_close(ckpt);
    return rc;
}

/* The position in the data that the run begins with. */
static int begins_at(struct train_state *at, const struct train_start *s, struct fsdp_err *err)
{
    const bool restart = s->parts->config->checkpoint.data_position == CONFIG_DATA_RESTART;
    struct ckpt *ckpt = NULL;
    int rc = FSDP_OK;

    *at = s->loop->state;
    if (s->resumed[0] && !restart)
        rc = ckpt_open(&ckpt, s->resumed, err);
    if (rc == FSDP_OK && ckpt && ckpt_format(ckpt) == CKPT_NATIVE &&
        !train_state_is_foreign(ckpt_state_json(ckpt)))
        rc = train_state_read(at, ckpt_state_json(ckpt), ckpt_path(ckpt), err);
    ckpt_close(ckpt);
    return rc;
}

/* The pairs that the run will read; the batch may have been another before it resumed. */
static int open_reference(struct train_start *s, struct fsdp_err *err)
{
    const int64_t steps = s->parts->config->train.steps;
    struct train_state at;

    FSDP_TRY(fsdp_oob_agree(s->oob, begins_at(&at, s, err), err));
    const double left = steps > at.step ? (double)(steps - at.step) : 0;
    const double end = (double)at.rows + left * (double)s->parts->batch.rows;
    FSDP_TRY(train_dpo_open(&s->loop->dpo, s->parts, end < 1e18 ? (uint64_t)end : UINT64_MAX,
                            s->oob, err));
    s->loop->state.reference = s->loop->dpo.probe;
    return FSDP_OK;
}

/* The state that the run begins with. Where it has a reference, that is the model as it begins,
 * also of a run that resumes. */
static int load_start(struct train_start *s, struct fsdp_err *err)
{
    const bool refers = s->parts->config->train.objective == CONFIG_DPO;
    const bool stored = s->parts->config->model.init == CONFIG_INIT_PRETRAINED;
    int rc = FSDP_OK;

    if (refers || !s->resumed[0])
        rc = train_base_is_on(&s->saver->base) ? start_adapters(s, err)
             : stored                          ? load_pretrained(s, 0, err)
                                               : fsdp_init_params(s->parts->fsdp, err);
    if (rc == FSDP_OK && refers)
        rc = open_reference(s, err);
    return rc || !s->resumed[0] ? rc : resume_from(s, s->resumed, err);
}

int train_start_run(struct train_start *s, struct fsdp_err *err)
{
    s->loop->state = train_parts_state(s->parts);
    s->loop->saved_step = -1;
    FSDP_TRY(fsdp_oob_agree(s->oob, prepare_root(s, err), err));
    s->saver->claim = s->claim;
    FSDP_TRY(train_stage_open(&s->saver->stage, s->parts, s->oob, s->saver->asked, s->report, err));
    FSDP_TRY(choose_resume(s, err));
    FSDP_TRY(recover_staged(s, err));
    FSDP_TRY(choose_checkpoint(s, err));
    FSDP_TRY(load_start(s, err));
    s->begun = s->loop->state;
    int rc = check_root(s, err);
    if (rc == FSDP_OK)
        rc = train_claim_check(s->claim, err); /* two that came at one moment */
    if (rc == FSDP_OK)
        rc = train_life_begin(s->life, s->loop->state.step, s->resumed[0] != 0, err);
    return fsdp_oob_agree(s->oob, rc, err);
}
char lowest[80];
