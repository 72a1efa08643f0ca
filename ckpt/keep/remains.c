/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <time.h>

#include "belongs.h"
#include "commit.h"
#include "remains.h"
#include "source/source.h"

struct walk {
    const struct ckpt_store_ops *ops;
    const char *root;
    int64_t nfs_age_s;
    ckpt_remains_f *fn;
    void *ctx;
};

/* ---- what there is --------------------------------------------------------------------------- */

/* Objects of a file that is still being sent are not there yet, and its upload shows only when it
 * was begun: while there is one of the last day, all next to it may be alive. */
static int has_uploads(bool *has, const struct walk *w, const char *path, struct fsdp_err *err)
{
    int64_t now = (int64_t)time(NULL);
    uint64_t all, old;
    FSDP_TRY(ckpt_store_sweep(&all, w->ops, path, INT64_MAX, true, err));
    FSDP_TRY(ckpt_store_sweep(&old, w->ops, path, now - CKPT_STALE_UPLOAD_SECONDS, true, err));
    *has = all > old;
    return FSDP_OK;
}

/* busy: where uploads say that it is alive. */
static int tell_leftover(const struct walk *w, const char *folder, const char *entry,
                         const char *name, const char *busy, enum ckpt_remains_kind kind,
                         struct fsdp_err *err)
{
    struct ckpt_remains remains = {.name = name, .kind = kind};
    struct ckpt_tree tree = {0};
    struct fsdp_err why = FSDP_ERR_INIT;
    bool alive = false;
    char *path = ckpt_path_join(folder, entry, err), *at = ckpt_path_join(folder, busy, err);
    int rc = FSDP_ENOMEM;
    if (path && at)
        rc = ckpt_tree_list(&tree, w->ops, path, NULL, NULL, w->nfs_age_s, &why);
    bool gone = rc == FSDP_ENOTFOUND; /* somebody else removed it */
    if (rc == FSDP_OK && ckpt_store_can_rename(w->ops) && tree.kind == CKPT_STORE_FILE &&
        tree.nforeign)
        gone = true; /* a file of the user's, which only has such a name */
    rc = gone ? FSDP_OK : fsdp_err_pass(err, rc, &why);
    remains.tree = &tree;
    remains.touched = tree.touched;
    remains.nbytes = tree.nbytes;
    if (rc == FSDP_OK && !gone && ckpt_store_has_uploads(w->ops))
        rc = has_uploads(&alive, w, at, err);
    if (alive)
        remains.touched = (int64_t)time(NULL);
    remains.path = path;
    if (rc == FSDP_OK && !gone)
        rc = w->fn(w->ctx, &remains, err);
    ckpt_tree_free(&tree);
    fsdp_free(at);
    fsdp_free(path);
    return rc;
}

/* What was written for the checkpoint of that folder and is not what it is. */
static int walk_attempts(const struct walk *w, const char *folder, const char *name,
                         struct fsdp_err *err)
{
    struct ckpt_names names;
    int rc = ckpt_commit_leftovers(&names, w->ops, folder, err);
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++)
        rc = tell_leftover(w, folder, names.names[i], name, names.names[i], CKPT_REMAINS_UNFINISHED,
                           err);
    ckpt_names_free(&names);
    return rc;
}

static int walk_entry(const struct walk *w, const char *entry, struct fsdp_err *err)
{
    size_t nbytes;
    enum ckpt_leftover leftover = ckpt_leftover_of(&nbytes, entry);
    enum ckpt_remains_kind kind =
        leftover == CKPT_LEFTOVER_DEL ? CKPT_REMAINS_REMOVED : CKPT_REMAINS_UNFINISHED;
    if (leftover == CKPT_LEFTOVER_PROBE)
        return tell_leftover(w, w->root, entry, entry, entry, CKPT_REMAINS_PROBE, err);
    char *text = nbytes ? fsdp_sprintf(err, "%.*s", (int)nbytes, entry)
                        : ckpt_path_join(w->root, entry, err);
    int rc = FSDP_ENOMEM;
    if (text)
        rc = nbytes ? tell_leftover(w, w->root, entry, text, text, kind, err)
                    : walk_attempts(w, text, entry, err);
    fsdp_free(text);
    return rc;
}

int ckpt_remains_each(const struct ckpt_store_ops *ops, const char *root, int64_t nfs_age_s,
                      ckpt_remains_f *fn, void *ctx, struct fsdp_err *err)
{
    const struct walk w = {ops, root, nfs_age_s, fn, ctx};
    struct ckpt_names names;
    FSDP_TRY(ckpt_store_names(&names, ops, root, err));
    /* The root may be a checkpoint itself. */
    int rc = walk_attempts(&w, root, ckpt_path_base(root), err);
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++)
        if (!ckpt_name_is_uuid(names.names[i]))
            rc = walk_entry(&w, names.names[i], err);
    ckpt_names_free(&names);
    return rc;
}
