/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "train_save.h"

/* Files of a Hugging Face folder that travel with the weights. */
static const char *const hf_files[] = {
    "config.json",     "generation_config.json",  "tokenizer.json",    "tokenizer_config.json",
    "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",      "chat_template.jinja",
};
enum { NHF_FILES = sizeof hf_files / sizeof hf_files[0] };
_Static_assert((int)NHF_FILES <= (int)TRAIN_MAX_EXTRA, "room for all");

/* Of one core, while the training computes on all: steps become at most so much longer. */
#define WRITER_SHARE 0.15

/* ---- opening ----------------------------------------------------------------------------------
 */

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

/* The small files beside config.json that are there. */
static int collect_extra(struct train_saver *s, struct fsdp_err *err)
{
    const char *config = s->parts->model_config, *slash = strrchr(config, '/');
    int folder_len = slash ? (int)(slash - config) + 1 : 0;

    if (!(s->extra[s->nextra++] = fsdp_strdup(config, err)))
        return FSDP_ENOMEM;
    for (int i = 1; i < NHF_FILES; i++) {
        char *path = fsdp_sprintf(err, "%.*s%s", folder_len, config, hf_files[i]);
        if (!path)
            return FSDP_ENOMEM;
        if (access(path, R_OK) == 0)
            s->extra[s->nextra++] = path;
        else
            fsdp_free(path);
    }
    return FSDP_OK;
}

static int open_local(struct train_saver *s, struct fsdp_err *err)
{
    const struct config *c = s->parts->config;

    FSDP_TRY(config_text(&s->settings, c, err));
    FSDP_TRY(collect_aliases(s, err));
    FSDP_TRY(collect_extra(s, err));
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

/* ---- saving -----------------------------------------------------------------------------------
 */

/* Old checkpoints that cannot be removed are no reason to stop. */
static void retain(const struct train_saver *s)
{
    const struct config *c = s->parts->config;
    struct fsdp_err err = FSDP_ERR_INIT;

    if (s->report->lead && !train_claim_is_lost(s->claim) &&
        ckpt_retain(c->checkpoint.path, (int)c->checkpoint.keep, &err))
        fsdp_log(FSDP_LOG_WARN, "old checkpoints stay: %s", err.text);
}

static void published(struct train_saver *s, int64_t step, const struct ckpt_save_result *result,
                      const char *how)
{
    char nbytes[REPORT_NUMBER_NBYTES], seconds[REPORT_NUMBER_NBYTES];

    snprintf(s->saved, sizeof s->saved, "%s", result->path);
    report_line(s->report, "saved %s (%s in %s%s)", result->path,
                fsdp_nbytes_text(nbytes, result->nbytes), report_seconds(seconds, result->seconds),
                how);
    train_life_saved(s->life, step, result->seconds);
    retain(s);
}

static int each_live(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err)
{
    return fsdp_state_each(ctx, fn, fn_ctx, err);
}

static int each_taken(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err)
{
    return fsdp_snapshot_each(ctx, fn, fn_ctx, err);
}

static void release(void *ctx)
{
    fsdp_snapshot_release(ctx);
}

static struct ckpt_save_args args_of(const struct train_saver *s, int64_t step, const char *json)
{
    const struct config *c = s->parts->config;
    struct ckpt_save_args args = CKPT_SAVE_ARGS_INIT;

    args.root = c->checkpoint.path;
    args.step = step;
    args.layout = fsdp_state_layout(s->parts->fsdp);
    args.slices = each_live;
    args.slices_ctx = s->parts->fsdp;
    args.aliases = s->aliases;
    args.naliases = s->naliases;
    args.state_json = json;
    args.nextra = s->nextra;
    args.extra = (const char *const *)s->extra;
    args.fsync = c->checkpoint.fsync;
    args.compress = (enum ckpt_compress)c->checkpoint.compress;
    return args;
}

static int finish(void *ctx, struct fsdp_err *err)
{
    struct train_saver *s = ctx;
    struct ckpt_save_result result;

    if (!s->writing)
        return FSDP_OK;
    int rc = ckpt_saving_end(&result, s->writing, err);
    s->writing = NULL;
    fsdp_free(s->writing_state);
    s->writing_state = NULL;
    if (rc == FSDP_OK)
        published(s, s->writing_step, &result, ", in the background");
    return rc;
}

static bool is_writing(void *ctx)
{
    return ((struct train_saver *)ctx)->writing != NULL;
}

static bool is_done(void *ctx)
{
    const struct train_saver *s = ctx;
    return s->writing && ckpt_saving_is_done(s->writing);
}

static int save_now(struct train_saver *s, int64_t step, const char *json, struct fsdp_err *err)
{
    struct ckpt_save_args args = args_of(s, step, json);
    struct ckpt_save_result result;

    FSDP_TRY(ckpt_save(&result, &args, s->oob, err));
    published(s, step, &result, "");
    return FSDP_OK;
}

/* The state is taken over: it lives until the save ends. */
static int save_behind(struct train_saver *s, int64_t step, char *json, struct fsdp_err *err)
{
    struct ckpt_save_args args = args_of(s, step, json);
    int rc = fsdp_snapshot_take(s->snapshot, err);

    args.slices = each_taken;
    args.slices_ctx = s->snapshot;
    /* A device of its own leaves the cores to the writer. */
    if (fsdp_device_is_host(s->parts->device))
        args.share = WRITER_SHARE;
    if (rc == FSDP_OK)
        rc = ckpt_saving_begin(&s->writing, &args, s->oob, release, s->snapshot, err);
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
    int32_t done = is_done(s), ranks = s->asked->size, ndone = 0;
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

static int save(void *ctx, const struct train_state *state, bool last, bool *saved,
                struct fsdp_err *err)
{
    struct train_saver *s = ctx;
    bool early = false;
    char *json = NULL;

    FSDP_TRY(fsdp_oob_agree(s->asked, train_claim_check(s->claim, err), err));
    if (s->writing && !last && s->parts->config->checkpoint.async_busy == CONFIG_BUSY_SKIP)
        FSDP_TRY(is_too_early(s, state->step, &early, err));
    *saved = !early;
    if (early)
        return FSDP_OK;
    int rc = finish(s, err);
    if (rc && !last)
        return rc;
    if (rc && s->report->lead) /* all the more reason to save what there is now */
        fsdp_log(FSDP_LOG_ERROR, "a background save failed: %s", err->text);
    FSDP_TRY(train_state_write(&json, state, s->settings, err));
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
    fsdp_free(s->writing_state);
    fsdp_snapshot_destroy(s->snapshot);
    if (s->asked)
        s->asked->close(s->asked);
    if (s->oob)
        s->oob->close(s->oob);
    for (int i = 0; i < s->nextra; i++)
        fsdp_free(s->extra[i]);
    fsdp_free(s->aliases);
    fsdp_free(s->settings);
    memset(s, 0, sizeof *s);
}

const struct train_save_ops train_saver_ops = {
    .save = save, .is_writing = is_writing, .is_done = is_done, .finish = finish};
