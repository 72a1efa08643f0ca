/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which checkpoints stay.
 *
 * One that goes is listed and judged first (tree.h), then renamed to step-N.del.<uuid>, so that
 * there is never a published name with half its files; then its files go. Leftovers (*.del.*: of an
 * interrupted removal; *.tmp.*: of a save that never finished) are swept. A *.tmp.* folder might be
 * a save in progress of some other job, so it goes only when nothing in it has been touched for
 * CKPT_STALE_SECONDS. A link in the place of a step is the user's archive: it does not count.
 *
 * In an object store a manifest is removed first, then what it named; leftovers are folders below a
 * step that its manifest does not name, and uploads that never ended.
 */
#include <stdlib.h>
#include <time.h>

#include "commit.h"
#include "source/source.h"
#include "remains.h"
#include "tree.h"
#include "format/native/native.h"

struct retain {
    const struct ckpt_store_ops *ops;
    const char *root;
    ckpt_stays_f *stays;
    void *ctx;
};

/* What does not belong to a checkpoint stops the removal of its folder, and of nothing else. */
static int tell_stays(const struct retain *r, const char *path, int rc, const struct fsdp_err *why,
                      struct fsdp_err *err)
{
    if (rc != FSDP_EEXIST)
        return fsdp_err_pass(err, rc, why);
    if (r->stays)
        r->stays(r->ctx, path, why->text);
    return FSDP_OK;
}

/* Leftovers of steps; those of other names may be a tool's, which can resume from them. */
static int sweep(void *ctx, const struct ckpt_remains *remains, struct fsdp_err *err)
{
    const struct retain *r = ctx;
    struct fsdp_err why = FSDP_ERR_INIT;
    bool old = remains->touched + CKPT_STALE_SECONDS < (int64_t)time(NULL);
    if (ckpt_step_of_name(remains->name) < 0 || (remains->kind != CKPT_REMAINS_REMOVED && !old))
        return FSDP_OK;
    int rc = ckpt_tree_remove(remains->tree, remains->path, &why);
    return tell_stays(r, remains->path, rc, &why, err);
}

/* Is it a folder of this root, and not a link to an archive or a mount? */
static int is_folder(bool *out, const struct retain *r, const char *path, struct fsdp_err *err)
{
    enum ckpt_store_kind kind = CKPT_STORE_FOLDER;
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = ckpt_store_has_links(r->ops) ? ckpt_store_kind_at(&kind, r->ops, path, &why) : FSDP_OK;
    *out = rc == FSDP_OK && kind == CKPT_STORE_FOLDER;
    return rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
}

static int unpublish_step(const struct retain *r, const char *name, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    char *folder = ckpt_path_join(r->root, name, err);
    if (!folder)
        return FSDP_ENOMEM;
    bool is;
    int rc = is_folder(&is, r, folder, &why);
    if (rc == FSDP_OK && is)
        rc = ckpt_commit_unpublish(r->ops, folder, &why);
    rc = tell_stays(r, folder, rc, &why, err);
    fsdp_free(folder);
    return rc;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = ckpt_step_of_name(*(char *const *)a), y = ckpt_step_of_name(*(char *const *)b);
    return x > y ? -1 : x < y;
}

static bool has_step(const int64_t *steps, int nsteps, const char *name)
{
    for (int i = 0; i < nsteps; i++)
        if (steps[i] == ckpt_step_of_name(name))
            return true;
    return false;
}

int ckpt_retain(const char *root, int keep, const int64_t *spare, int nspare, ckpt_stays_f *stays,
                void *ctx, struct fsdp_err *err)
{
    struct retain r = {.root = root, .stays = stays, .ctx = ctx};
    struct ckpt_names all, published = {0};
    uint64_t nuploads;

    if (keep < 0)
        return fsdp_err_set(err, FSDP_EINVAL, "cannot keep %d checkpoints", keep);
    FSDP_TRY(ckpt_store_of(&r.ops, root, err));
    FSDP_TRY(ckpt_store_names(&all, r.ops, root, err));
    int rc = FSDP_OK;
    for (int i = 0; rc == FSDP_OK && i < all.nnames; i++) {
        bool is = false;
        if (ckpt_step_of_name(all.names[i]) < 0)
            continue;
        char *path = ckpt_path_join(root, all.names[i], err);
        rc = path ? is_folder(&is, &r, path, err) : FSDP_ENOMEM;
        if (is)
            rc = ckpt_is_published(&is, r.ops, path, err);
        if (rc == FSDP_OK && is)
            rc = ckpt_names_add(&published, all.names[i], err);
        fsdp_free(path);
    }
    if (published.nnames)
        qsort(published.names, (size_t)published.nnames, sizeof *published.names, newest_first);
    for (int i = keep; keep && rc == FSDP_OK && i < published.nnames; i++)
        if (!has_step(spare, nspare, published.names[i]))
            rc = unpublish_step(&r, published.names[i], err);
    if (rc == FSDP_OK)
        rc = ckpt_remains_each(r.ops, root, CKPT_STALE_SECONDS, sweep, &r, err);
    if (rc == FSDP_OK)
        rc = ckpt_store_sweep(&nuploads, r.ops, root,
                              (int64_t)time(NULL) - CKPT_STALE_UPLOAD_SECONDS, false, err);
    ckpt_names_free(&published);
    ckpt_names_free(&all);
    return rc;
}

int ckpt_staged_retain(const char *staging, const int64_t *steps, int nsteps, ckpt_stays_f *stays,
                       void *ctx, struct fsdp_err *err)
{
    struct retain r = {.root = staging, .stays = stays, .ctx = ctx};
    struct ckpt_names names;

    FSDP_TRY(ckpt_store_of(&r.ops, staging, err));
    FSDP_TRY(ckpt_store_names(&names, r.ops, staging, err));
    int rc = FSDP_OK;
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++) {
        struct fsdp_err why = FSDP_ERR_INIT;
        const bool wanted =
            ckpt_step_of_name(names.names[i]) < 0 || has_step(steps, nsteps, names.names[i]);
        rc = wanted ? FSDP_OK : unpublish_step(&r, names.names[i], &why);
        if (rc) /* another node that sees the same folder may have been faster */
            rc = rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
    }
    ckpt_names_free(&names);
    return rc;
}
