/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commit by one rename. A save's folder is the temporary one, FINAL.tmp.<uuid>; a tool's lies
 * in FINAL.tmp.<key> next to its journal (temp.h), and outlives a kill there.
 */
#include "commit.h"
#include "temp.h"
#include "tree.h"

static int begin(struct ckpt_commit *c, struct fsdp_err *err)
{
    if (!c->key) {
        c->temp = fsdp_sprintf(err, "%s.tmp.%s", c->final, c->attempt);
        c->out = c->temp ? fsdp_strdup(c->temp, err) : NULL;
        return c->out ? FSDP_OK : FSDP_ENOMEM;
    }
    FSDP_TRY(ckpt_temp_check_name(c->final, err));
    c->temp = ckpt_temp_name(c->final, c->key ^ ckpt_lock_domain(c->final), err);
    c->out = c->temp ? ckpt_path_join(c->temp, c->folder ? "out" : "out.safetensors", err) : NULL;
    return c->out ? FSDP_OK : FSDP_ENOMEM;
}

static bool is_hidden(const struct ckpt_commit *c)
{
    (void)c;
    return true;
}

static int is_taken(bool *taken, const struct ckpt_commit *c, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = ckpt_store_stat(&st, c->store, c->final, &why);
    *taken = rc == FSDP_OK;
    return rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
}

static char *listed(const struct ckpt_commit *c, const char *name, struct fsdp_err *err)
{
    (void)c;
    return fsdp_strdup(name, err);
}

static const char *manifest_folder(const struct ckpt_commit *c)
{
    return c->out;
}

/* A tool's folder may hold that of an earlier run. */
static int put_manifest(struct ckpt_commit *c, const char *path, const char *text, size_t nbytes,
                        bool overwrite, struct fsdp_err *err)
{
    (void)overwrite;
    return c->key ? ckpt_store_replace(c->store, path, text, nbytes, err)
                  : ckpt_store_put(c->store, path, text, nbytes, c->sync, err);
}

/* A folder cannot be renamed over a full one. Where two names cannot be exchanged, the old one goes
 * aside first, and back if that fails. */
static int replace_folder(const struct ckpt_commit *c, struct fsdp_err *err)
{
    int rc = ckpt_store_exchange(c->store, c->out, c->final, err);
    if (rc != FSDP_EUNSUPPORTED)
        return rc;
    char *aside = ckpt_path_join(c->temp, "old", err);
    if (!aside)
        return FSDP_ENOMEM;
    rc = ckpt_store_rename(c->store, c->final, aside, false, err);
    if (rc == FSDP_OK) {
        rc = ckpt_store_rename(c->store, c->out, c->final, false, err);
        if (rc)
            ckpt_store_rename(c->store, aside, c->final, false, NULL);
    }
    fsdp_free(aside);
    return rc;
}

static int sync_parent(const struct ckpt_store_ops *store, const char *path, struct fsdp_err *err)
{
    char *parent = ckpt_path_parent(path, err);
    int rc = parent ? ckpt_store_sync_folder(store, parent, err) : FSDP_ENOMEM;
    fsdp_free(parent);
    return rc;
}

static int seal(struct ckpt_commit *c, struct fsdp_err *err)
{
    return c->sync && c->folder ? ckpt_store_sync_folder(c->store, c->out, err) : FSDP_OK;
}

static int publish_renamed(struct ckpt_commit *c, bool overwrite, struct fsdp_err *err)
{
    int rc = ckpt_store_rename(c->store, c->out, c->final, overwrite && !c->folder, err);
    if (rc == FSDP_EEXIST && overwrite && c->folder)
        rc = replace_folder(c, err);
    FSDP_TRY(rc);
    c->published = true;
    return c->sync ? sync_parent(c->store, c->final, err) : FSDP_OK;
}

static int is_there(bool *is, const struct ckpt_commit *c, struct fsdp_err *err)
{
    (void)err;
    *is = c->published;
    return FSDP_OK;
}

/* Published, but not known to be durable: the caller is told of a failure, so there must be none.
 */
static bool retract(struct ckpt_commit *c)
{
    return !c->published || !ckpt_store_rename(c->store, c->final, c->out, false, NULL);
}

static int unpublish_renamed(const struct ckpt_store_ops *store, const char *from,
                             struct fsdp_err *err)
{
    struct ckpt_tree tree;
    char uuid[37], *to = NULL;
    int rc = ckpt_tree_list(&tree, store, from, NULL, NULL, INT64_MAX / 2, err);
    if (rc == FSDP_OK)
        rc = ckpt_tree_refuse(&tree, "removed", err);
    if (rc == FSDP_OK)
        rc = ckpt_uuid_make(uuid, err);
    if (rc == FSDP_OK && !(to = fsdp_sprintf(err, "%s.del.%s", from, uuid)))
        rc = FSDP_ENOMEM;
    if (rc == FSDP_OK)
        rc = ckpt_store_rename(store, from, to, false, err);
    if (rc == FSDP_OK)
        rc = sync_parent(store, from, err);
    if (rc == FSDP_OK)
        rc = ckpt_tree_remove(&tree, to, err);
    fsdp_free(to);
    ckpt_tree_free(&tree);
    return rc;
}

/* They lie next to it, and their names say what they are (belongs.h). */
static int leftovers(struct ckpt_names *out, const struct ckpt_store_ops *store, const char *folder,
                     struct fsdp_err *err)
{
    (void)out;
    (void)store;
    (void)folder;
    (void)err;
    return FSDP_OK;
}

const struct ckpt_commit_ops ckpt_commit_rename = {
    .begin = begin,
    .is_hidden = is_hidden,
    .is_taken = is_taken,
    .listed = listed,
    .manifest_folder = manifest_folder,
    .put_manifest = put_manifest,
    .seal = seal,
    .publish = publish_renamed,
    .is_there = is_there,
    .retract = retract,
    .unpublish = unpublish_renamed,
    .leftovers = leftovers,
};
