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

/* Latest modification of a path or of anything below it. */
static int64_t newest_mtime(const struct ckpt_store_ops *ops, const char *path)
{
    struct ckpt_store_stat st;
    struct ckpt_names names;
    if (ckpt_store_stat(&st, ops, path, NULL))
        return 0;
    if (!st.is_folder || ckpt_store_names(&names, ops, path, NULL))
        return st.mtime;
    for (int i = 0; i < names.nnames; i++) {
        char *below = ckpt_path_join(path, names.names[i], NULL);
        int64_t mtime = below ? newest_mtime(ops, below) : INT64_MAX;
        st.mtime = mtime > st.mtime ? mtime : st.mtime;
        fsdp_free(below);
    }
    ckpt_names_free(&names);
    return st.mtime;
}

/* "step-<digits>.<mark>.<anything>" */
static bool is_remains(const char *name, const char *mark)
{
    char step[64];
    const char *dot = strchr(name, '.');
    if (!dot || (size_t)(dot - name) >= sizeof step || strncmp(dot + 1, mark, 3) || dot[4] != '.')
        return false;
    memcpy(step, name, (size_t)(dot - name));
    step[dot - name] = 0;
    return ckpt_step_of_name(step) >= 0;
}

static bool is_stale(const struct ckpt_store_ops *ops, const char *path)
{
    return newest_mtime(ops, path) + CKPT_STALE_SECONDS < (int64_t)time(NULL);
}

/* What is below a step of a flat store and not named by its manifest. */
static int sweep_attempts(const struct ckpt_store_ops *ops, const char *step, struct fsdp_err *err)
{
    struct ckpt_names names;
    char *attempt = NULL;
    FSDP_TRY(ckpt_store_names(&names, ops, step, err));
    int nfolders = 0, rc = FSDP_OK;
    bool published = false;
    for (int i = 0; i < names.nnames; i++) {
        if (!strcmp(names.names[i], CKPT_MANIFEST_NAME))
            published = true;
        else
            nfolders++;
    }
    if (published && nfolders > 1) /* else what there is, is its own */
        rc = ckpt_attempt_of(&attempt, ops, step, err);
    for (int i = 0; rc == FSDP_OK && i < names.nnames && (!published || attempt); i++) {
        if (!strcmp(names.names[i], CKPT_MANIFEST_NAME) ||
            (attempt && !strcmp(names.names[i], attempt)))
            continue;
        char *path = ckpt_path_join(step, names.names[i], err);
        rc = path ? FSDP_OK : FSDP_ENOMEM;
        if (path && is_stale(ops, path))
            rc = ckpt_store_remove_tree(ops, path, err);
        fsdp_free(path);
    }
    fsdp_free(attempt);
    ckpt_names_free(&names);
    return rc == FSDP_ENOTFOUND ? FSDP_OK : rc;
}

static int sweep_flat(const struct ckpt_store_ops *ops, const char *root,
                      const struct ckpt_names *all, struct fsdp_err *err)
{
    uint64_t nuploads;
    int rc = FSDP_OK;
    for (int i = 0; rc == FSDP_OK && i < all->nnames; i++) {
        if (ckpt_step_of_name(all->names[i]) < 0)
            continue;
        char *path = ckpt_path_join(root, all->names[i], err);
        rc = path ? sweep_attempts(ops, path, err) : FSDP_ENOMEM;
        if (rc == FSDP_ENOTFOUND) /* it was just removed */
            rc = FSDP_OK;
        fsdp_free(path);
    }
    if (rc == FSDP_OK)
        rc = ckpt_store_sweep(&nuploads, ops, root, (int64_t)time(NULL) - CKPT_STALE_UPLOAD_SECONDS,
                              err);
    return rc;
}

static int sweep(const struct ckpt_store_ops *ops, const char *root, const char *name,
                 struct fsdp_err *err)
{
    bool removed = is_remains(name, "del"), unfinished = is_remains(name, "tmp");
    int rc = FSDP_OK;
    if (!removed && !unfinished)
        return FSDP_OK;
    char *path = ckpt_path_join(root, name, err);
    if (!path)
        return FSDP_ENOMEM;
    if (removed || is_stale(ops, path))
        rc = ckpt_store_remove_tree(ops, path, err);
    fsdp_free(path);
    return rc;
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
    if (rc == FSDP_OK && ops->flat)
        rc = sweep_flat(ops, root, &all, err);
    for (int i = 0; rc == FSDP_OK && !ops->flat && i < all.nnames; i++)
        rc = sweep(ops, root, all.names[i], err);
    ckpt_names_free(&published);
    ckpt_names_free(&all);
    return rc;
}
