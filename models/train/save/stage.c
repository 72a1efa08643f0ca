/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "save.h"
#include "stage.h"

/* ---- the folder ------------------------------------------------------------------------------ */

/* checkpoint.staging with %h, %n and %% filled in. */
static int expand(char out[PATH_MAX], const struct train_parts *parts, struct fsdp_err *err)
{
    const struct boot_info *info = parts->info;
    size_t len = 0;
    int put;

    for (const char *from = parts->config->checkpoint.staging; *from; from++, len += (size_t)put) {
        bool asks = from[0] == '%' && from[1];
        from += asks;
        if (asks && *from == 'h')
            put = snprintf(out + len, PATH_MAX - len, "%s", info->host);
        else if (asks && *from == 'n')
            put = snprintf(out + len, PATH_MAX - len, "%d", info->node);
        else
            put = snprintf(out + len, PATH_MAX - len, "%c", *from);
        if (len + (size_t)put >= PATH_MAX)
            return fsdp_err_set(err, FSDP_EINVAL, "checkpoint.staging: too long a path");
    }
    return FSDP_OK;
}

/* The path without links; what of it is yet to be made stays as it is written. */
static bool make_whole(char out[PATH_MAX], const char *path)
{
    char above[PATH_MAX];
    size_t len = strlen(path), end = len;
    if (len >= sizeof above)
        return false;
    strcpy(above, path);
    while (!realpath(len ? above : *path == '/' ? "/" : ".", out)) {
        if (!len)
            return false;
        while (len && above[len - 1] != '/')
            len--;
        while (len && above[len - 1] == '/')
            len--;
        above[len] = 0;
    }
    while (path[len] == '/')
        len++;
    while (end > len && path[end - 1] == '/')
        end--;
    size_t at = strcmp(out, "/") ? strlen(out) : 0, room = PATH_MAX - at;
    return len == end ||
           (size_t)snprintf(out + at, room, "/%.*s", (int)(end - len), path + len) < room;
}

/* A checkpoint that is staged where it is to be in the end would be written there twice. */
static int refuse_nested(const struct train_stage *s, const char *staging, struct fsdp_err *err)
{
    const struct config *c = s->parts->config;
    char inner[PATH_MAX], outer[PATH_MAX], where[CONFIG_TEXT + 128];
    if (ckpt_path_is_url(c->checkpoint.path) || !make_whole(inner, staging) ||
        !make_whole(outer, c->checkpoint.path))
        return FSDP_OK;
    size_t len = strcmp(outer, "/") ? strlen(outer) : 0;
    if (strncmp(inner, outer, len) || (inner[len] && inner[len] != '/'))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "%.300s: '%.250s' %s checkpoint.path ('%.250s'), so that every "
                        "checkpoint would be written there twice: name a folder of the nodes' own "
                        "disks, or no checkpoint.staging",
                        config_where(where, sizeof where, c, "checkpoint.staging"), staging,
                        inner[len] ? "lies in" : "is", c->checkpoint.path);
}

/* Runs that share a disk have a folder each: the name of where their checkpoints go, and a hash of
 * its whole path, which is rank 0's. */
static int name_folder(struct train_stage *s, struct fsdp_err *err)
{
    const char *root = s->parts->config->checkpoint.path;
    char base[PATH_MAX], whole[PATH_MAX], *end = base + strlen(root);
    uint64_t hash;

    snprintf(base, sizeof base, "%s", root);
    while (end > base + 1 && end[-1] == '/')
        *--end = 0;
    bool is_url = ckpt_path_is_url(base);
    if (is_url || !realpath(base, whole))
        snprintf(whole, sizeof whole, "%s", base);
    hash = fsdp_hash(FSDP_HASH_SEED, whole, strlen(whole));
    FSDP_TRY(fsdp_oob_broadcast(s->oob, &hash, sizeof hash, 0, err));
    const char *slash = strrchr(base, '/');
    int rc = expand(whole, s->parts, err);
    if (rc == FSDP_OK)
        rc = refuse_nested(s, whole, err);
    if (rc == FSDP_OK)
        s->folder = fsdp_sprintf(err, "%s/%s-%016" PRIx64, whole, slash ? slash + 1 : base, hash);
    return rc ? rc : s->folder ? FSDP_OK : FSDP_ENOMEM;
}

static void tell_stays(void *ctx, const struct ckpt_gc_item *item)
{
    if (item->stays)
        train_stays_tell(ctx, item->path, item->stays);
}

/* The folder of a node that cannot be written should be known now. What a killed save left there
 * goes: nobody else writes there. */
static int try_folder(struct train_stage *s, struct fsdp_err *err)
{
    const struct config *c = s->parts->config;
    struct ckpt_gc_args gc = CKPT_GC_ARGS_INIT;
    char where[CONFIG_TEXT + 128];

    if (s->parts->info->local_rank != 0)
        return FSDP_OK;
    gc.older_s = 0;
    gc.report = tell_stays;
    gc.report_ctx = &s->stays;
    int rc = ckpt_root_make(s->folder, err);
    if (rc == FSDP_OK)
        rc = ckpt_root_try(NULL, s->folder, 1, err);
    if (rc == FSDP_OK)
        rc = ckpt_gc(NULL, s->folder, &gc, err);
    return fsdp_err_prefix(
        err, rc, "%s: on %s: ", config_where(where, sizeof where, c, "checkpoint.staging"),
        s->parts->info->host);
}

int train_stage_open(struct train_stage *s, const struct train_parts *parts, struct fsdp_oob *oob,
                     struct fsdp_oob *asked, struct report *report, struct fsdp_err *err)
{
    const struct config *c = parts->config;
    size_t nkept = (size_t)c->checkpoint.staging_keep;

    *s = (struct train_stage){
        .parts = parts, .report = report, .asked = asked, .flushing_step = -1, .pending = -1};
    if (!c->checkpoint.staging[0] || !c->checkpoint.path[0])
        return FSDP_OK;
    FSDP_TRY(oob->dup(oob, "staging", &s->oob, err));
    s->kept = fsdp_alloc(nkept, sizeof *s->kept, "staged steps", err);
    FSDP_TRY(fsdp_oob_agree(oob, s->kept ? FSDP_OK : FSDP_ENOMEM, err));
    memset(s->kept, -1, nkept * sizeof *s->kept);
    FSDP_TRY(fsdp_oob_agree(oob, name_folder(s, err), err));
    return fsdp_oob_agree(oob, try_folder(s, err), err);
}

void train_stage_close(struct train_stage *s)
{
    if (s->flushing) {
        ckpt_flushing_limit(s->flushing, 0);
        ckpt_saving_end(NULL, s->flushing, NULL);
    }
    if (s->oob)
        s->oob->close(s->oob);
    train_stays_free(&s->stays);
    fsdp_free(s->kept);
    fsdp_free(s->folder);
    *s = (struct train_stage){.flushing_step = -1, .pending = -1};
}

/* ---- flushing -------------------------------------------------------------------------------- */

static struct ckpt_flush_args args_of(const struct train_stage *s, int64_t step)
{
    const struct config *c = s->parts->config;
    struct ckpt_flush_args args = CKPT_FLUSH_ARGS_INIT;
    args.staging = s->folder;
    args.root = c->checkpoint.path;
    args.step = step;
    args.fsync = c->checkpoint.fsync;
    return args;
}

static int begin_flush(struct train_stage *s, int64_t step, struct fsdp_err *err)
{
    struct ckpt_flush_args args = args_of(s, step);
    /* A device of its own leaves the cores to the writer. */
    if (fsdp_device_is_host(s->parts->device))
        args.share = TRAIN_WRITER_SHARE;
    s->flushing_step = step;
    return fsdp_oob_agree(s->asked, ckpt_flushing_begin(&s->flushing, &args, s->oob, err), err);
}

/* Steps that are neither kept nor needed go. That they cannot is no reason to stop. */
static void retain(struct train_stage *s)
{
    size_t nkept = (size_t)s->parts->config->checkpoint.staging_keep;
    struct fsdp_err err = FSDP_ERR_INIT;
    int64_t *steps = fsdp_alloc(nkept + 2, sizeof *steps, "staged steps", &err);

    if (steps && s->parts->info->local_rank == 0) {
        memcpy(steps, s->kept, nkept * sizeof *steps);
        steps[nkept] = s->flushing_step;
        steps[nkept + 1] = s->pending;
        if (ckpt_staged_retain(s->folder, steps, (int)nkept + 2, train_stays_tell, &s->stays, &err))
            fsdp_log(FSDP_LOG_WARN, "old staged checkpoints stay: %s", err.text);
    }
    fsdp_free(steps);
}

bool train_stage_is_done(const struct train_stage *s)
{
    return s->flushing && ckpt_saving_is_done(s->flushing);
}

bool train_stage_is_full(const struct train_stage *s)
{
    return s->pending >= 0 && !train_stage_is_done(s);
}

int train_stage_finish(struct train_stage *s, int64_t *step, struct ckpt_save_result *result,
                       struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    *step = -1;
    if (!s->flushing)
        return FSDP_OK;
    int rc = ckpt_saving_end(result, s->flushing, &why);
    int64_t flushed = s->flushing_step, next = s->pending;
    s->flushing = NULL;
    s->flushing_step = s->pending = -1;
    if (rc && !(rc == FSDP_ECANCELED && s->dropped))
        return fsdp_err_set(err, rc, "step %" PRId64 " is staged, but not in %s: %s", flushed,
                            s->parts->config->checkpoint.path, why.text);
    if (rc == FSDP_OK)
        *step = flushed;
    s->dropped = false;
    if (next >= 0)
        FSDP_TRY(begin_flush(s, next, err));
    retain(s);
    return FSDP_OK;
}

int train_stage_add(struct train_stage *s, int64_t step, const struct ckpt_save_result *result,
                    struct fsdp_err *err)
{
    size_t nkept = (size_t)s->parts->config->checkpoint.staging_keep;

    memmove(s->kept + 1, s->kept, (nkept - 1) * sizeof *s->kept);
    s->kept[0] = step;
    s->seconds = result->seconds;
    if (s->flushing)
        s->pending = step;
    else
        FSDP_TRY(begin_flush(s, step, err));
    retain(s);
    return FSDP_OK;
}

static void stays_out(const struct train_stage *s, int64_t step)
{
    if (step >= 0 && s->report->lead)
        fsdp_log(FSDP_LOG_WARN,
                 "step %" PRId64 " stays out of %s: the run stops, and a newer one goes first",
                 step, s->parts->config->checkpoint.path);
}

int train_stage_give_up(struct train_stage *s, int64_t *step, struct ckpt_save_result *result,
                        struct fsdp_err *err)
{
    int64_t flushing = s->flushing_step, pending = s->pending;
    *step = -1;
    if (!s->flushing)
        return FSDP_OK;
    s->pending = -1;
    s->dropped = true;
    ckpt_flushing_limit(s->flushing, 0);
    FSDP_TRY(train_stage_finish(s, step, result, err));
    if (*step < 0)
        stays_out(s, flushing);
    stays_out(s, pending);
    return FSDP_OK;
}

int train_stage_finish_within(struct train_stage *s, double seconds, int64_t *step,
                              struct ckpt_save_result *result, struct fsdp_err *err)
{
    *step = -1;
    if (!s->flushing)
        return FSDP_OK;
    FSDP_TRY(fsdp_oob_broadcast(s->asked, &seconds, sizeof seconds, 0, err));
    if (!isinf(seconds)) {
        s->dropped = true;
        ckpt_flushing_limit(s->flushing, seconds);
    }
    return train_stage_finish(s, step, result, err);
}

/* ---- the start ------------------------------------------------------------------------------- */

static void left_out(void *ctx, int64_t step, const char *why)
{
    const struct train_stage *s = ctx;
    fsdp_log(FSDP_LOG_WARN,
             "step %" PRId64 " was staged (%s), but is left out: %s; was a node lost, or are these "
             "others?",
             step, s->parts->config->checkpoint.staging, why);
}

int train_stage_recover(struct train_stage *s, int64_t newest, struct fsdp_err *err)
{
    char nbytes[REPORT_NUMBER_NBYTES], seconds[REPORT_NUMBER_NBYTES];
    struct ckpt_save_result result;
    struct fsdp_err why = FSDP_ERR_INIT;
    int64_t step = -1;

    if (!s->folder)
        return FSDP_OK;
    FSDP_TRY(fsdp_oob_broadcast(s->oob, &newest, sizeof newest, 0, err));
    FSDP_TRY(ckpt_staged_latest(&step, s->folder, newest, left_out, s, s->oob, err));
    if (step < 0)
        return FSDP_OK;
    report_line(s->report, "step %" PRId64 " was staged and is not in %s: copying it there", step,
                s->parts->config->checkpoint.path);
    const struct ckpt_flush_args args = args_of(s, step);
    int rc = ckpt_flush(&result, &args, s->oob, &why);
    if (rc == FSDP_ECORRUPT) {
        if (s->report->lead)
            left_out(s, step, why.text);
        return FSDP_OK;
    }
    if (rc)
        return fsdp_err_pass(err, rc, &why);
    report_line(s->report, "saved %s (%s in %s, from staging)", result.path,
                fsdp_nbytes_text(nbytes, result.nbytes), report_seconds(seconds, result.seconds));
    return FSDP_OK;
}
