/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which checkpoints stay.
 *
 * One that goes is first renamed to step-N.del.<uuid>, so that there is never a published name with
 * half its files; then its files go. Remains (*.del.*: of an interrupted removal; *.tmp.*: of a
 * save that never finished) are swept. A *.tmp.* folder might be a save in progress of some other
 * job, so it goes only when nothing in it has been touched for CKPT_STALE_SECONDS.
 *
 * In a flat store a manifest is removed first, then what it named; remains are folders below a step
 * that its manifest does not name, and uploads that never ended.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "opened.h"
#include "remains.h"

/* Remains of steps; those of other names may be a tool's, which goes on with them. */
static int sweep(void *ctx, const struct ckpt_remains *remains, struct fsdp_err *err)
{
    const struct ckpt_store_ops *ops = ctx;
    bool old = remains->touched + CKPT_STALE_SECONDS < (int64_t)time(NULL);
    bool is_step = ckpt_step_of_name(remains->name) >= 0;
    if (is_step && (remains->kind == CKPT_REMAINS_REMOVED || old))
        return ckpt_store_remove_tree(ops, remains->path, err);
    return FSDP_OK;
}

static int unpublish_flat(const struct ckpt_store_ops *ops, const char *root, const char *name,
                          struct fsdp_err *err)
{
    char *folder = ckpt_path_join(root, name, err);
    char *manifest = folder ? ckpt_path_join(folder, CKPT_MANIFEST_NAME, err) : NULL;
    int rc = manifest ? ckpt_store_remove(ops, manifest, err) : FSDP_ENOMEM;
    if (rc == FSDP_OK)
        rc = ckpt_store_remove_tree(ops, folder, err);
    fsdp_free(manifest);
    fsdp_free(folder);
    return rc;
}

static int unpublish(const struct ckpt_store_ops *ops, const char *root, const char *name,
                     struct fsdp_err *err)
{
    char uuid[37];
    if (ops->flat)
        return unpublish_flat(ops, root, name, err);
    FSDP_TRY(ckpt_uuid_make(uuid, err));
    char *from = ckpt_path_join(root, name, err);
    char *to = from ? fsdp_sprintf(err, "%s.del.%s", from, uuid) : NULL;
    int rc = to ? ckpt_store_rename(ops, from, to, false, err) : FSDP_ENOMEM;
    if (rc == FSDP_OK)
        rc = ckpt_store_sync_folder(ops, root, err);
    if (rc == FSDP_OK)
        rc = ckpt_store_remove_tree(ops, to, err);
    fsdp_free(to);
    fsdp_free(from);
    return rc;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = ckpt_step_of_name(*(char *const *)a), y = ckpt_step_of_name(*(char *const *)b);
    return x > y ? -1 : x < y;
}

int ckpt_retain(const char *root, int keep, struct fsdp_err *err)
{
    const struct ckpt_store_ops *ops;
    struct ckpt_names all, published = {0};
    uint64_t nuploads;

    if (keep < 0)
        return fsdp_err_set(err, FSDP_EINVAL, "cannot keep %d checkpoints", keep);
    FSDP_TRY(ckpt_store_of(&ops, root, err));
    FSDP_TRY(ckpt_store_names(&all, ops, root, err));
    int rc = FSDP_OK;
    for (int i = 0; rc == FSDP_OK && i < all.nnames; i++) {
        bool is = false;
        if (ckpt_step_of_name(all.names[i]) < 0)
            continue;
        char *path = ckpt_path_join(root, all.names[i], err);
        rc = path ? ckpt_is_published(&is, ops, path, err) : FSDP_ENOMEM;
        if (is)
            rc = ckpt_names_add(&published, all.names[i], err);
        fsdp_free(path);
    }
    if (published.nnames)
        qsort(published.names, (size_t)published.nnames, sizeof *published.names, newest_first);
    for (int i = keep; keep && rc == FSDP_OK && i < published.nnames; i++)
        rc = unpublish(ops, root, published.names[i], err);
    if (rc == FSDP_OK)
        rc = ckpt_remains_each(ops, root, sweep, (void *)(uintptr_t)ops, err);
    if (rc == FSDP_OK)
        rc = ckpt_store_sweep(&nuploads, ops, root, (int64_t)time(NULL) - CKPT_STALE_UPLOAD_SECONDS,
                              false, err);
    ckpt_names_free(&published);
    ckpt_names_free(&all);
    return rc;
}

int ckpt_staged_retain(const char *staging, const int64_t *steps, int nsteps, struct fsdp_err *err)
{
    const struct ckpt_store_ops *ops;
    struct ckpt_names names;

    FSDP_TRY(ckpt_store_of(&ops, staging, err));
    FSDP_TRY(ckpt_store_names(&names, ops, staging, err));
    int rc = FSDP_OK;
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++) {
        int64_t step = ckpt_step_of_name(names.names[i]);
        struct fsdp_err why = FSDP_ERR_INIT;
        bool wanted = step < 0;
        for (int k = 0; k < nsteps; k++)
            wanted |= steps[k] == step;
        rc = wanted ? FSDP_OK : unpublish(ops, staging, names.names[i], &why);
        if (rc) /* another node that sees the same folder may have been faster */
            rc = rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
    }
    ckpt_names_free(&names);
    return rc;
}
