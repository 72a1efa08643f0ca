/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "moments.h"
#include "save.h"

/* Files of a Hugging Face folder that travel with the weights. */
static const char *const hf_files[] = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "tekken.json",
    "params.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
};
enum { NHF_FILES = sizeof hf_files / sizeof hf_files[0] };
_Static_assert((int)NHF_FILES + 2 <= (int)TRAIN_MAX_EXTRA, "room for all, and an adapter");

/* ---- opening --------------------------------------------------------------------------------- */

static int collect_aliases(struct train_saver *s, struct fsdp_err *err)
{
    const struct fsdp_module_tree *tree = s->parts->tree;
    const char *alias;
    int param, count = 0;

    while (fsdp_module_alias(tree, count, &alias, &param))
        count++;
    s->aliases = fsdp_alloc((size_t)count, sizeof *s->aliases, "aliases", err);
    if (!s->aliases)
        return FSDP_ENOMEM;
    for (; fsdp_module_alias(tree, s->naliases, &alias, &param); s->naliases++)
        s->aliases[s->naliases] = (struct ckpt_alias){alias, fsdp_param_tensor(tree, param).name};
    return FSDP_OK;
}

/* The small files next to config.json that are there. */
static int collect_extra(struct train_saver *s, struct fsdp_err *err)
{
    if (!(s->extra[s->nextra++] = fsdp_strdup(s->parts->model_config, err)))
        return FSDP_ENOMEM;
    for (int i = 1; i < NHF_FILES; i++) {
        char *path = fsdp_sprintf(err, "%s/%s", s->parts->model_folder, hf_files[i]);
        if (!path)
            return FSDP_ENOMEM;
        bool there = access(path, R_OK) == 0, own = ckpt_extra_is_own(path);
        if (there && !own && s->report->lead)
            fsdp_log(
                FSDP_LOG_WARN,
                "'%s' is a link out of the model's folder and is not kept in checkpoints; copy "
                "the file there to include it",
                path);
        if (there && own)
            s->extra[s->nextra++] = path;
        else
            fsdp_free(path);
    }
    return FSDP_OK;
}

static int collect_peft(struct train_saver *s, struct fsdp_err *err)
{
    FSDP_TRY(train_peft_open(&s->peft, &s->base,
                             s->report->lead && s->parts->config->checkpoint.path[0], err));
    if (!s->peft.folder)
        return FSDP_OK;
    char *const paths[] = {s->peft.config, s->peft.tensors};
    for (int i = 0; i < 2; i++)
        if (!(s->extra[s->nextra++] = fsdp_strdup(paths[i], err)))
            return FSDP_ENOMEM;
    return FSDP_OK;
}

static int open_local(struct train_saver *s, struct fsdp_err *err)
{
    const struct config *c = s->parts->config;

    FSDP_TRY(config_text(&s->settings, c, err));
    FSDP_TRY(train_base_open(&s->base, s->parts, err));
    if (!train_base_is_on(&s->base)) /* else what is tied is not in checkpoints */
        FSDP_TRY(collect_aliases(s, err));
    FSDP_TRY(collect_extra(s, err));
    FSDP_TRY(collect_peft(s, err));
    if (!c->checkpoint.async || !c->checkpoint.path[0])
        return FSDP_OK;
    return fsdp_snapshot_create(&s->snapshot, s->parts->fsdp,
                                (uint64_t)c->checkpoint.async_memory << 20, c->fsdp.timeout, err);
}

int train_saver_open(struct train_saver *s, const struct train_parts *parts, struct fsdp_oob *oob,
                     struct report *report, struct fsdp_err *err)
{
    s->parts = parts;
    s->report = report;
    FSDP_TRY(oob->dup(oob, "checkpoint", &s->oob, err));
    FSDP_TRY(oob->dup(oob, "saves", &s->asked, err));
    return fsdp_oob_agree(oob, open_local(s, err), err);
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* Old checkpoints that cannot be removed are no reason to stop. Until a better one is published the
 * one before stays. */
static void retain(struct train_saver *s)
{
    const struct config *c = s->parts->config;
    const int64_t best[] = {s->best, s->best_published};
    struct fsdp_err err = FSDP_ERR_INIT;

    if (s->report->lead && !train_claim_is_lost(s->claim) &&
        ckpt_retain(c->checkpoint.path, (int)c->checkpoint.keep, best,
                    c->checkpoint.keep_best ? 2 : 0, train_stays_tell, &s->stays, &err))
        fsdp_log(FSDP_LOG_WARN, "old checkpoints stay: %s", err.text);
}

static void tell_sinks(struct train_saver *s, int64_t step, const struct ckpt_save_result *result,
                       double seconds)
{
    const struct sink_saved saved = {.step = step,
                                     .path = result->path,
                                     .nbytes = result->nbytes,
                                     .seconds = seconds,
                                     .staged = result->staged};
    sinks_saved(s->sinks, &saved);
}

/* May the link be made? All but a link to a checkpoint next to it is the user's. */
static bool may_link(const char *link, const char *step)
{
    char now[32] = "";
    const ssize_t nbytes = readlink(link, now, sizeof now - 1);

    if (nbytes < 0 && errno == ENOENT)
        return true;
    if (nbytes >= 0 && !strcmp(now, step))
        return false;
    if (nbytes >= 0 && !strncmp(now, "step-", 5) && !strchr(now, '/'))
        return true;
    fsdp_log(FSDP_LOG_WARN,
             "%s: is not a link to a checkpoint, and stays as it is; the best checkpoint is %s",
             link, step);
    return false;
}

/* Points checkpoint.path/best to the best checkpoint, where that is a folder; also one that a run
 * made which ended before its link was. */
static void link_best(struct train_saver *s)
{
    const char *root = s->parts->config->checkpoint.path;
    char link[TRAIN_PATH_NBYTES], made[TRAIN_PATH_NBYTES], path[TRAIN_PATH_NBYTES];

    if (!s->parts->config->checkpoint.keep_best || s->best_published < 1 || !s->report->lead ||
        train_claim_is_lost(s->claim) || ckpt_path_is_url(root))
        return;
    snprintf(link, sizeof link, "%s/best", root);
    snprintf(made, sizeof made, "%s/.best.new", root);
    snprintf(path, sizeof path, "%s/step-%08" PRId64, root, s->best_published);
    const char *step = strrchr(path, '/') + 1;
    if (access(path, F_OK) || !may_link(link, step))
        return;
    unlink(made); /* of a run that was killed */
    if (symlink(step, made) || rename(made, link))
        fsdp_log(FSDP_LOG_WARN, "%s: %s; the best checkpoint is %s", link, strerror(errno), path);
}

/* Without keep_best the checkpoint that it points to may be removed. */
static void unlink_best(const struct train_saver *s)
{
    const char *root = s->parts->config->checkpoint.path;
    char link[TRAIN_PATH_NBYTES], now[32] = "";
    struct stat st;

    if (s->parts->config->checkpoint.keep_best || !s->report->lead ||
        train_claim_is_lost(s->claim) || ckpt_path_is_url(root))
        return;
    snprintf(link, sizeof link, "%s/best", root);
    if (readlink(link, now, sizeof now - 1) > 0 && !strncmp(now, "step-", 5) && !strchr(now, '/') &&
        stat(link, &st) && errno == ENOENT && unlink(link))
        fsdp_log(FSDP_LOG_WARN, "%s: %s; its checkpoint is removed", link, strerror(errno));
}

/* seconds: until it was published, since it was begun. */
static void published(struct train_saver *s, int64_t step, const struct ckpt_save_result *result,
                      double seconds, const char *how)
{
    char nbytes[REPORT_NUMBER_NBYTES], text[REPORT_NUMBER_NBYTES];

    snprintf(s->saved, sizeof s->saved, "%s", result->path);
    report_line(s->report, "saved %s (%s in %s%s)", result->path,
                fsdp_nbytes_text(nbytes, result->nbytes), report_seconds(text, result->seconds),
                how);
    train_life_saved(s->life, step, seconds);
    tell_sinks(s, step, result, seconds);
    if (s->parts->config->checkpoint.keep_best && step == s->best)
        s->best_published = step;
    link_best(s);
    retain(s);
    unlink_best(s);
}

/* A save has ended: in the store, or staged on its way there. */
static int made(struct train_saver *s, int64_t step, const struct ckpt_save_result *result,
                const char *how, struct fsdp_err *err)
{
    char nbytes[REPORT_NUMBER_NBYTES], seconds[REPORT_NUMBER_NBYTES];

    if (!result->staged) {
        published(s, step, result, result->seconds, how);
        return FSDP_OK;
    }
    snprintf(s->saved, sizeof s->saved, "%s", result->path);
    report_line(s->report, "staged %s (%s in %s%s)", result->path,
                fsdp_nbytes_text(nbytes, result->nbytes), report_seconds(seconds, result->seconds),
                how);
    tell_sinks(s, step, result, result->seconds);
    return train_stage_add(&s->stage, step, result, err);
}

/* A flush has ended, unless step is -1: it was given up. */
static void flushed(struct train_saver *s, int64_t step, const struct ckpt_save_result *result)
{
    if (step < 0)
        return;
    s->flushed = result->seconds;
    published(s, step, result, s->stage.seconds + result->seconds, ", from staging");
}

static int each_live(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err)
{
    return fsdp_state_each(ctx, fn, fn_ctx, err);
}

static int each_taken(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err)
{
    return fsdp_snapshot_each(ctx, fn, fn_ctx, err);
}

static void release_save(void *ctx)
{
    fsdp_snapshot_release(ctx);
}

static void take_slices(struct train_saver *s, struct ckpt_save_args *args, ckpt_slices_f *slices,
                        void *ctx)
{
    s->slices = (struct train_base_slices){&s->base, TRAIN_TRAINED, NULL, slices, ctx};
    args->slices = train_base_each;
    args->slices_ctx = &s->slices;
}

static struct ckpt_save_args args_of(const struct train_saver *s, int64_t step, const char *json)
{
    const struct config *c = s->parts->config;
    struct ckpt_save_args args = CKPT_SAVE_ARGS_INIT;

    args.root = c->checkpoint.path;
    args.step = step;
    args.layout = train_base_layout(&s->base);
    args.aliases = s->aliases;
    args.naliases = s->naliases;
    args.state_json = json;
    args.nextra = s->nextra;
    args.extra = (const char *const *)s->extra;
    args.fsync = c->checkpoint.fsync;
    args.compress = (enum ckpt_compress)c->checkpoint.compress;
    args.staging = s->stage.folder;
    args.node = s->parts->info->node;
    return args;
}

static int finish_writing(struct train_saver *s, struct fsdp_err *err)
{
    struct ckpt_save_result result;

    if (!s->writing)
        return FSDP_OK;
    int rc = ckpt_saving_end(&result, s->writing, err);
    s->writing = NULL;
    fsdp_free(s->writing_state);
    s->writing_state = NULL;
    train_peft_clear(&s->peft);
    return rc ? rc : made(s, s->writing_step, &result, ", in the background", err);
}

static int finish_flush(struct train_saver *s, struct fsdp_err *err)
{
    struct ckpt_save_result result;
    int64_t step;
    FSDP_TRY(train_stage_finish(&s->stage, &step, &result, err));
    flushed(s, step, &result);
    return FSDP_OK;
}

/* At the end of a run a staged checkpoint must do, if the job's time does not last for more: the
 * next start flushes it. */
static int finish_in_time(struct train_saver *s, struct fsdp_err *err)
{
    enum { RESERVE_S = 10 };
    struct ckpt_save_result result;
    int64_t last = s->stage.flushing_step, step;
    double left = train_life_left(s->life) - RESERVE_S;

    FSDP_TRY(train_stage_finish_within(&s->stage, left > 0 ? left : 0, &step, &result, err));
    flushed(s, step, &result);
    s->left_staged = step < 0;
    if (s->left_staged && s->report->lead)
        fsdp_log(FSDP_LOG_WARN,
                 "the job's time does not last for copying step %" PRId64
                 " to %s: it is staged on the nodes, where the next start on them takes it from",
                 last, s->parts->config->checkpoint.path);
    return FSDP_OK;
}

static int finish_save(void *ctx, bool all, struct fsdp_err *err)
{
    struct train_saver *s = ctx;
    if (!all)
        return s->writing ? finish_writing(s, err) : finish_flush(s, err);
    FSDP_TRY(finish_writing(s, err));
    while (s->stage.flushing)
        FSDP_TRY(s->stage.pending >= 0 ? finish_flush(s, err) : finish_in_time(s, err));
    link_best(s);
    return FSDP_OK;
}

static bool is_writing(void *ctx)
{
    const struct train_saver *s = ctx;
    return s->writing || s->stage.flushing;
}

static bool is_done(void *ctx)
{
    const struct train_saver *s = ctx;
    return s->writing ? ckpt_saving_is_done(s->writing) : train_stage_is_done(&s->stage);
}

static double tell_flushed(void *ctx)
{
    struct train_saver *s = ctx;
    double seconds = s->flushed;
    s->flushed = 0;
    return seconds;
}

static int save_now(struct train_saver *s, int64_t step, const char *json, struct fsdp_err *err)
{
    struct ckpt_save_args args = args_of(s, step, json);
    struct ckpt_save_result result;

    take_slices(s, &args, each_live, s->parts->fsdp);
    const int rc = ckpt_save(&result, &args, s->oob, err);
    train_peft_clear(&s->peft);
    return rc ? rc : made(s, step, &result, "", err);
}

/* The state is taken over: it lives until the save ends. */
static int save_behind(struct train_saver *s, int64_t step, char *json, struct fsdp_err *err)
{
    struct ckpt_save_args args = args_of(s, step, json);
    int rc = fsdp_snapshot_take(s->snapshot, err);

    take_slices(s, &args, each_taken, s->snapshot);
    /* A device of its own leaves the cores to the writer. */
    if (fsdp_device_is_host(s->parts->device))
        args.share = TRAIN_WRITER_SHARE;
    if (rc == FSDP_OK)
        rc = ckpt_saving_begin(&s->writing, &args, s->oob, release_save, s->snapshot, err);
    s->writing_step = step;
    if (rc == FSDP_OK)
        s->writing_state = json;
    else
        fsdp_free(json);
    return fsdp_oob_agree(s->asked, rc, err);
}

/* Whether the save in flight leaves no time for this one; what one rank sees decides for all. */
static int is_too_early(struct train_saver *s, int64_t step, bool *early, struct fsdp_err *err)
{
    bool full = train_stage_is_full(&s->stage);
    int32_t done = !full && (!s->writing || ckpt_saving_is_done(s->writing)),
            ranks = s->asked->size, ndone = 0;
    int32_t *all = fsdp_alloc((size_t)ranks, sizeof *all, "saves", err);

    FSDP_TRY(fsdp_oob_agree(s->asked, all ? FSDP_OK : FSDP_ENOMEM, err));
    int rc = s->asked->allgather(s->asked, &done, sizeof done, all, err);
    for (int r = 0; rc == FSDP_OK && r < ranks; r++)
        ndone += all[r];
    fsdp_free(all);
    *early = rc == FSDP_OK && ndone < ranks;
    if (*early && s->report->lead)
        fsdp_log(FSDP_LOG_WARN,
                 "step %" PRId64 " is not saved: the save before is still being written "
                 "(checkpoint.async_busy: wait would hold the training)",
                 step);
    return rc;
}

/* Makes room for another save. */
static int wait_for_room(struct train_saver *s, bool stopping, struct fsdp_err *err)
{
    struct ckpt_save_result result;
    int64_t step;
    FSDP_TRY(finish_writing(s, err));
    if (!stopping)
        return s->stage.pending >= 0 ? finish_flush(s, err) : FSDP_OK;
    FSDP_TRY(train_stage_give_up(&s->stage, &step, &result, err));
    flushed(s, step, &result);
    return FSDP_OK;
}

static int state_text(char **out, const struct train_saver *s, const struct train_state *state,
                      struct fsdp_err *err)
{
    json_t *since = train_moments_json(s->parts->fsdp, s->parts->tree);
    const bool adapters = train_base_is_on(&s->base);
    json_t *base = adapters ? train_base_json(&s->base) : NULL;
    struct train_state told = *state;

    told.base = base;
    int rc = since && (base || !adapters)
                 ? train_state_write(out, &told, s->settings, since, err)
                 : fsdp_err_set(err, FSDP_ENOMEM, "training state: out of memory");
    json_decref(since);
    json_decref(base);
    return rc;
}

static int save(void *ctx, const struct train_state *state, bool last, bool *saved,
                struct fsdp_err *err)
{
    struct train_saver *s = ctx;
    const struct config *c = s->parts->config;
    bool early = false;
    char *json = NULL;

    const bool best = c->checkpoint.keep_best && state->best.step == state->step;

    FSDP_TRY(fsdp_oob_agree(s->asked, train_claim_check(s->claim, err), err));
    if (is_writing(s) && !last && !best && c->checkpoint.async_busy == CONFIG_BUSY_SKIP)
        FSDP_TRY(is_too_early(s, state->step, &early, err));
    *saved = !early;
    if (early)
        return FSDP_OK;
    int rc = wait_for_room(s, last && state->step < c->train.steps, err);
    if (rc && !last)
        return rc;
    if (rc && s->report->lead) /* all the more reason to save what there is now */
        fsdp_log(FSDP_LOG_ERROR, "a background save failed: %s", err->text);
    if (train_base_is_on(&s->base))
        FSDP_TRY(train_peft_write(&s->peft, &s->base, s->asked, err));
    FSDP_TRY(state_text(&json, s, state, err));
    s->best = state->best.step;
    if (s->snapshot && !last)
        return save_behind(s, state->step, json, err);
    rc = save_now(s, state->step, json, err);
    fsdp_free(json);
    return rc;
}

void train_saver_close(struct train_saver *s)
{
    if (s->writing)
        ckpt_saving_end(NULL, s->writing, NULL);
    train_stage_close(&s->stage);
    train_stays_free(&s->stays);
    fsdp_free(s->writing_state);
    fsdp_snapshot_destroy(s->snapshot);
    if (s->asked)
        s->asked->close(s->asked);
    if (s->oob)
        s->oob->close(s->oob);
    for (int i = 0; i < s->nextra; i++)
        fsdp_free(s->extra[i]);
    train_peft_close(&s->peft);
    train_base_close(&s->base);
    fsdp_free(s->aliases);
    fsdp_free(s->settings);
    memset(s, 0, sizeof *s);
}

const struct train_save_ops train_saver_ops = {.save = save,
                                               .is_writing = is_writing,
                                               .is_done = is_done,
                                               .finish = finish_save,
                                               .flushed = tell_flushed};
