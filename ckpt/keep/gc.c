/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <time.h>

#include "util/limits.h"
#include "remains.h"

#include "ckpt/ckpt.h"

struct gc {
    const struct ckpt_store_ops *ops;
    const struct ckpt_gc_args *args;
    struct ckpt_gc_result *result;
};

static int collect(void *ctx, const struct ckpt_remains *remains, struct fsdp_err *err)
{
    static const char *const whats[] = {"was never finished", "was being removed",
                                        "tried whether there is room"};
    struct gc *gc = ctx;
    struct fsdp_err why = FSDP_ERR_INIT;
    int64_t now = (int64_t)time(NULL), limit = gc->args->older_s;
    struct ckpt_gc_item item = {.path = remains->path,
                                .what = whats[remains->kind],
                                .nbytes = remains->nbytes,
                                .age_s = now > remains->touched ? now - remains->touched : 0};

    limit = limit < 0 ? CKPT_STALE_SECONDS : limit;
    item.is_old = remains->kind == CKPT_REMAINS_REMOVED || item.age_s >= limit;
    int rc = item.is_old ? ckpt_tree_refuse(remains->tree, "removed", &why) : FSDP_OK;
    if (rc == FSDP_OK && item.is_old && !gc->args->dry_run)
        rc = ckpt_tree_remove(remains->tree, remains->path, &why);
    if (rc && rc != FSDP_EEXIST)
        return fsdp_err_pass(err, rc, &why);
    if (rc)
        item.stays = why.text;
    gc->result->nstay += rc != FSDP_OK;
    gc->result->nold += item.is_old && !rc;
    gc->result->nyoung += !item.is_old;
    gc->result->nbytes += item.is_old && !rc ? item.nbytes : 0;
    if (gc->args->report)
        gc->args->report(gc->args->report_ctx, &item);
    return FSDP_OK;
}

/* "s3://bucket", "s3://bucket/" */
static bool is_bucket(const char *root)
{
    const char *name = strstr(root, "://");
    name = name ? name + 3 : root;
    name += strcspn(name, "/");
    return name[strspn(name, "/")] == 0;
}

int ckpt_gc(struct ckpt_gc_result *out, const char *root, const struct ckpt_gc_args *args,
            struct fsdp_err *err)
{
    struct ckpt_gc_result result = {0};
    struct gc gc = {.args = args, .result = &result};
    int64_t upload_s = args->older_s < 0 ? CKPT_STALE_UPLOAD_SECONDS : args->older_s;

    if (args->version != CKPT_GC_ARGS_VERSION)
        return fsdp_err_set(err, FSDP_EINVAL, "ckpt_gc: arguments of version %u", args->version);
    FSDP_TRY(ckpt_store_of(&gc.ops, root, err));
    if (ckpt_store_has_uploads(gc.ops) && is_bucket(root) && !args->whole_bucket && !args->dry_run)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s' is a whole bucket: unfinished uploads of other programs would be "
                            "ended, too. Name the prefix of the checkpoints ('%s%sPREFIX'), look "
                            "first (--dry-run), or allow it (--whole-bucket)",
                            root, root, root[strlen(root) - 1] == '/' ? "" : "/");
    int64_t nfs_age_s = args->older_s < 0 ? CKPT_STALE_SECONDS : args->older_s;
    int rc = ckpt_remains_each(gc.ops, root, nfs_age_s, collect, &gc, err);
    /* A folder in which there are only uploads is not there. */
    if (rc && (rc != FSDP_ENOTFOUND || !ckpt_store_has_uploads(gc.ops)))
        return rc;
    FSDP_TRY(ckpt_store_sweep(&result.nuploads, gc.ops, root, (int64_t)time(NULL) - upload_s,
                              args->dry_run, err));
    if (out)
        *out = result;
    return FSDP_OK;
}
