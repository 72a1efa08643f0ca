/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "train_state.h"

enum { STATE_VERSION = 1 };

/* The hyperparameters, for checkpoints in other formats. */
static json_t *optim_json(const struct train_state *s)
{
    const struct fsdp_optim_opts *o = &s->optim;
    return json_pack("{s:s, s:f, s:[f, f], s:f, s:f, s:f, s:b, s:f, s:s}", "name",
                     o->name ? o->name : "adamw", "lr", s->schedule.lr, "betas", o->betas[0],
                     o->betas[1], "eps", o->eps, "momentum", o->momentum, "dampening", o->dampening,
                     "nesterov", (int)o->nesterov, "weight_decay", o->weight_decay, "decay",
                     o->decay == FSDP_DECAY_ALL ? "all" : "matrices");
}

int train_state_write(char **out, const struct train_state *s, const char *config,
                      const json_t *since, struct fsdp_err *err)
{
    char hash[20];
    json_error_t why;

    snprintf(hash, sizeof hash, "%016" PRIx64, s->data.hash);
    json_t *root = json_pack_ex(
        &why, 0,
        "{s:i, s:I, s:I, s:I, s:f, s:I, s:{s:s, s:I, s:I}, s:{s:s, s:I, s:I, s:s}, "
        "s:{s:i, s:f, s:f, s:I, s:I, s:I}, s:{s:f, s:I, s:I}, s:o, s:s}",
        "version", STATE_VERSION, "step", (json_int_t)s->step, "rows", (json_int_t)s->rows,
        "tokens", (json_int_t)s->tokens, "seconds", s->seconds, "global_batch_size",
        (json_int_t)s->global_batch_size, "rng", "kind", "counter", "model_seed",
        (json_int_t)s->model_seed, "data_seed", (json_int_t)s->data.seed, "data", "layout",
        s->data.layout, "seq_len", (json_int_t)s->data.seq_len, "rows_per_pass",
        (json_int_t)s->data.nrows, "hash", hash, "schedule", "kind", (int)s->schedule.kind, "lr",
        s->schedule.lr, "min_lr", s->schedule.min_lr, "warmup_steps",
        (json_int_t)s->schedule.warmup_steps, "total_steps", (json_int_t)s->schedule.total_steps,
        "decay_steps", (json_int_t)s->schedule.decay_steps, "loss_scale", "scale", s->scaler.scale,
        "good_steps", (json_int_t)s->scaler.good_steps, "skipped", (json_int_t)s->scaler.nskipped,
        "optim", optim_json(s), "config", config);
    if (!root)
        return fsdp_err_set(err, FSDP_EINTERNAL, "training state: %s", why.text);
    if (since && json_object_size(since) &&
        json_object_set(root, "moments_since", (json_t *)(uintptr_t)since)) {
        json_decref(root);
        return fsdp_err_set(err, FSDP_ENOMEM, "training state: out of memory");
    }
    if (s->reference < 0 && json_object_set_new(root, "reference", json_real(s->reference))) {
        json_decref(root);
        return fsdp_err_set(err, FSDP_ENOMEM, "training state: out of memory");
    }
    if (s->best.step > 0 &&
        json_object_set_new(root, "best",
                            json_pack("{s:I, s:f, s:I}", "step", (json_int_t)s->best.step, "loss",
                                      s->best.loss, "stale", (json_int_t)s->best.stale))) {
        json_decref(root);
        return fsdp_err_set(err, FSDP_ENOMEM, "training state: out of memory");
    }
    if (s->base && json_object_set(root, "base", s->base)) {
        json_decref(root);
        return fsdp_err_set(err, FSDP_ENOMEM, "training state: out of memory");
    }
    if (s->clip_factor > 0 && s->clip_factor < 1 &&
        json_object_set_new(root, "clip_factor", json_real(s->clip_factor))) {
        json_decref(root);
        return fsdp_err_set(err, FSDP_ENOMEM, "training state: out of memory");
    }
    if (s->averaging.weight_sum > 0 &&
        json_object_set_new(root, "averaging",
                            json_pack("{s:f, s:f}", "lr_max", s->averaging.lr_max, "weight_sum",
                                      s->averaging.weight_sum))) {
        json_decref(root);
        return fsdp_err_set(err, FSDP_ENOMEM, "training state: out of memory");
    }
    char *text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(root);
    *out = text ? fsdp_strdup(text, err) : NULL;
    free(text);
    return *out ? FSDP_OK : fsdp_err_set(err, FSDP_ENOMEM, "training state: out of memory");
}

/* What not every state has: of the scaler, and of an optimizer that averages. */
static int unpack_optional(struct train_state *s, json_t *root, const char *path,
                           struct fsdp_err *err)
{
    json_error_t why;
    json_int_t good_steps = 0, nskipped = 0, best = 0, stale = 0;

    if (json_unpack_ex(
            root, &why, 0, "{s?{s:F, s:I, s:I}, s?{s:F, s:F}, s?{s:I, s:F, s:I}, s?F, s?F}",
            "loss_scale", "scale", &s->scaler.scale, "good_steps", &good_steps, "skipped",
            &nskipped, "averaging", "lr_max", &s->averaging.lr_max, "weight_sum",
            &s->averaging.weight_sum, "best", "step", &best, "loss", &s->best.loss, "stale", &stale,
            "reference", &s->reference, "clip_factor", &s->clip_factor) != 0)
        return fsdp_err_set(err, FSDP_ECORRUPT, "%s: its training state cannot be read: %s", path,
                            why.text);
    s->scaler.good_steps = good_steps;
    s->scaler.nskipped = nskipped;
    s->best.step = best;
    s->best.stale = stale;
    return FSDP_OK;
}

static int unpack(struct train_state *s, json_t *root, const char *path, struct fsdp_err *err)
{
    json_error_t why;
    json_int_t step, rows, tokens, batch, model_seed, data_seed, seq_len, nrows, warmup, total,
        decay;
    int version, kind;
    const char *layout, *hash;

    if (json_unpack_ex(root, &why, 0,
                       "{s:i, s:I, s:I, s:I, s:F, s:I, s:{s:I, s:I}, s:{s:s, s:I, s:I, s:s}, "
                       "s:{s:i, s:F, s:F, s:I, s:I, s:I}}",
                       "version", &version, "step", &step, "rows", &rows, "tokens", &tokens,
                       "seconds", &s->seconds, "global_batch_size", &batch, "rng", "model_seed",
                       &model_seed, "data_seed", &data_seed, "data", "layout", &layout, "seq_len",
                       &seq_len, "rows_per_pass", &nrows, "hash", &hash, "schedule", "kind", &kind,
                       "lr", &s->schedule.lr, "min_lr", &s->schedule.min_lr, "warmup_steps",
                       &warmup, "total_steps", &total, "decay_steps", &decay) != 0)
        return fsdp_err_set(err, FSDP_ECORRUPT, "%s: its training state cannot be read: %s", path,
                            why.text);
    if (version != STATE_VERSION)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "%s: its training state has version %d, this program knows %d", path,
                            version, STATE_VERSION);
    if (step < 0 || rows < 0 || tokens < 0)
        return fsdp_err_set(err, FSDP_ECORRUPT, "%s: its training state has a negative position",
                            path);
    s->step = step;
    s->rows = rows;
    s->tokens = tokens;
    s->global_batch_size = batch;
    s->model_seed = model_seed;
    s->data.seed = data_seed;
    s->data.seq_len = seq_len;
    s->data.nrows = (uint64_t)nrows;
    s->data.hash = strtoull(hash, NULL, 16);
    snprintf(s->data.layout, sizeof s->data.layout, "%s", layout);
    s->schedule.kind = (enum fsdp_schedule_kind)kind;
    s->schedule.warmup_steps = warmup;
    s->schedule.total_steps = total;
    s->schedule.decay_steps = decay;
    return unpack_optional(s, root, path, err);
}

int train_state_read(struct train_state *out, const char *json, const char *path,
                     struct fsdp_err *err)
{
    json_error_t why;

    if (!json)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s: holds no training state, so a run cannot resume from it; for its "
                            "weights alone, set model.path to it and checkpoint.resume to never",
                            path);
    json_t *root = json_loads(json, 0, &why);
    if (!root)
        return fsdp_err_set(err, FSDP_ECORRUPT, "%s: its training state is not JSON: %s", path,
                            why.text);
    *out = (struct train_state){0};
    int rc = unpack(out, root, path, err);
    json_decref(root);
    return rc;
}

bool train_state_is_foreign(const char *json)
{
    json_t *root = json ? json_loads(json, 0, NULL) : NULL;
    bool ours = !root || json_object_get(root, "version");
    json_decref(root);
    return json && !ours;
}

/* AdamW's next step depends on how many there were; SGD's does not but for the first, which has no
 * momentum yet, and torch's keeps no count. */
static bool counts_steps(const struct train_state *state)
{
    return strcmp(state->optim.name, "sgd") != 0;
}

int train_state_adopt(struct train_state *out, const struct train_state *now, int64_t step,
                      bool restart_data, const char *path, struct fsdp_err *err)
{
    bool anew = step < 0 && restart_data && !counts_steps(now);
    if (step < 0 && !anew && !counts_steps(now))
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "%s: how many steps were made is not in it, as torch's SGD does not count: save it as "
            "'step' next to model and optim, or set checkpoint.data_position to restart to count "
            "them as one and begin with the first rows of data",
            path);
    if (step < 0 && !anew)
        return fsdp_err_set(
            err, FSDP_EINVAL,
            "%s: no optimizer's step is in it, so a run cannot resume from it; for "
            "its weights alone, set model.path to it and checkpoint.resume to never",
            path);
    *out = *now;
    out->step = anew ? 1 : step;
    out->rows = out->step * now->global_batch_size;
    if (!restart_data)
        fsdp_log(FSDP_LOG_INFO,
                 "%s was made by another program: the data continue behind %" PRId64
                 " rows, %" PRId64
                 " for each of its steps; set checkpoint.data_position to restart to "
                 "begin with the first",
                 path, out->rows, now->global_batch_size);
    return FSDP_OK;
}

#define DATA_HINT                                                                                  \
    "the position in the data cannot be restored; set checkpoint.data_position to restart to "     \
    "read this data from its start"

static int check_data(const struct train_data_id *now, const struct train_data_id *then,
                      const char *path, struct fsdp_err *err)
{
    if (now->seed != then->seed)
        return fsdp_err_set(err, FSDP_EMISMATCH,
                            "%s: was made with train.seed %" PRId64 ", and it is %" PRId64
                            " now: " DATA_HINT,
                            path, then->seed, now->seed);
    if (strcmp(now->layout, then->layout) != 0)
        return fsdp_err_set(err, FSDP_EMISMATCH,
                            "%s: was made with data.layout %s, and it is %s now: " DATA_HINT, path,
                            then->layout, now->layout);
    if (now->seq_len != then->seq_len)
        return fsdp_err_set(err, FSDP_EMISMATCH,
                            "%s: was made with data.seq_len %" PRId64 ", and it is %" PRId64
                            " now: " DATA_HINT,
                            path, then->seq_len, now->seq_len);
    if (now->hash != then->hash || now->nrows != then->nrows)
        return fsdp_err_set(err, FSDP_EMISMATCH,
                            "%s: was made with other data (%" PRIu64 " rows, now %" PRIu64
                            "; files, their sizes or data.pack differ): " DATA_HINT,
                            path, then->nrows, now->nrows);
    return FSDP_OK;
}

/* Do two schedules give another rate at any step from `first` on? One that has ended keeps its last
 * rate. Of very long runs some 100,000 steps are compared. */
static bool schedule_differs(const struct fsdp_schedule *now, const struct fsdp_schedule *then,
                             int64_t first)
{
    int64_t stride = (now->total_steps - first) / 100000 + 1;
    for (int64_t step = first; step < now->total_steps; step += stride)
        if (fsdp_schedule_lr(now, step) != fsdp_schedule_lr(then, step))
            return true;
    return false;
}

/* Its log-probabilities tell another reference, but for rounding. */
static int check_reference(const struct train_state *now, const struct train_state *then,
                           const char *path, struct fsdp_err *err)
{
    const double apart = now->reference - then->reference;

    if (!(now->reference < 0) || !(then->reference < 0) ||
        fabs(apart) <= 1e-2 * fabs(then->reference))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EMISMATCH,
                        "%s: was made with another reference: the model of model.path gives the "
                        "first pairs the log-probability %g, and then it was %g; set model.path to "
                        "the model that the run began with",
                        path, now->reference, then->reference);
}

int train_state_resume(struct train_state *state, const struct train_state *saved,
                       bool restart_data, const char *path, struct fsdp_err *err)
{
    /* A state saved before any data was read (train.steps 0) has no position to restore. */
    if (!restart_data && saved->rows > 0 && state->data.nrows > 0)
        FSDP_TRY(check_data(&state->data, &saved->data, path, err));
    if (schedule_differs(&state->schedule, &saved->schedule, saved->step))
        fsdp_log(FSDP_LOG_INFO,
                 "the learning rate's schedule differs from that of %s; it follows the "
                 "configuration from step %" PRId64 " on",
                 path, saved->step + 1);
    if (state->global_batch_size != saved->global_batch_size)
        fsdp_log(FSDP_LOG_INFO,
                 "train.global_batch_size was %" PRId64 " in %s and is %" PRId64 " now",
                 saved->global_batch_size, path, state->global_batch_size);
    if (!restart_data)
        FSDP_TRY(check_reference(state, saved, path, err));
    state->step = saved->step;
    state->rows = restart_data ? 0 : saved->rows;
    state->tokens = saved->tokens;
    state->seconds = saved->seconds;
    state->scaler = saved->scaler;
    state->clip_factor = saved->clip_factor;
    state->averaging = saved->averaging;
    state->best = saved->best;
    return FSDP_OK;
}
