/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commit by the last file, where a file appears whole or not at all and of several writers of
 * one name one wins. Files of several attempts lie below one name and do not meet; those of all but
 * the one that the manifest names are leftovers.
 */
#include <string.h>

#include "belongs.h"
#include "commit.h"
#include "format/native/native.h"
#include "layout/contents.h"
#include "tree.h"

static int begin(struct ckpt_commit *c, struct fsdp_err *err)
{
    c->out =
        c->has_manifest ? ckpt_path_join(c->final, c->attempt, err) : fsdp_strdup(c->final, err);
    return c->out ? FSDP_OK : FSDP_ENOMEM;
}

static bool is_hidden(const struct ckpt_commit *c)
{
    return c->has_manifest;
}

/* Others may be writing below the same name; who comes first to the manifest wins. */
static int is_taken(bool *taken, const struct ckpt_commit *c, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    struct fsdp_err why = FSDP_ERR_INIT;
    if (c->has_manifest)
        return ckpt_is_published(taken, c->store, c->final, err);
    int rc = ckpt_store_stat(&st, c->store, c->final, &why);
    *taken = rc == FSDP_OK;
    return rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
}

static char *listed(const struct ckpt_commit *c, const char *name, struct fsdp_err *err)
{
    return ckpt_path_join(c->attempt, name, err);
}

static const char *manifest_folder(const struct ckpt_commit *c)
{
    return c->final;
}

/* The commit. */
static int put_manifest(struct ckpt_commit *c, const char *path, const char *text, size_t nbytes,
                        bool overwrite, struct fsdp_err *err)
{
    char *old = NULL;
    if (overwrite && ckpt_attempt_of(&old, c->store, c->final, NULL) == FSDP_OK && old &&
        strcmp(old, c->attempt))
        c->replaced = ckpt_path_join(c->final, old, NULL);
    fsdp_free(old);
    FSDP_TRY(overwrite ? ckpt_store_replace(c->store, path, text, nbytes, err)
                       : ckpt_store_put(c->store, path, text, nbytes, c->sync, err));
    c->published = true;
    return FSDP_OK;
}

static int seal(struct ckpt_commit *c, struct fsdp_err *err)
{
    (void)c;
    (void)err;
    return FSDP_OK;
}

/* What it replaced goes: from the manifest on nobody reads it. */
static int publish_manifest(struct ckpt_commit *c, bool overwrite, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    (void)overwrite;
    (void)err;
    c->published = true;
    if (c->replaced && ckpt_store_remove_tree(c->store, c->replaced, &why))
        fsdp_log(FSDP_LOG_WARN, "'%s' is done; what it replaced is left in '%s': %s", c->final,
                 c->replaced, why.text);
    return FSDP_OK;
}

static int is_file_there(bool *is, const struct ckpt_commit *c, struct fsdp_err *err)
{
    struct ckpt_store_stat st = {.id = ""};
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = ckpt_store_stat(&st, c->store, c->final, &why);
    *is = rc ? rc != FSDP_ENOTFOUND : !strcmp(st.id, c->attempt);
    return rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
}

static int is_there(bool *is, const struct ckpt_commit *c, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    char *there = NULL;
    if (!c->has_manifest && !c->folder)
        return is_file_there(is, c, err);
    int rc = c->has_manifest ? ckpt_attempt_of(&there, c->store, c->final, &why) : FSDP_ENOTFOUND;
    *is = rc ? rc != FSDP_ENOTFOUND : there && !strcmp(there, c->attempt);
    fsdp_free(there);
    return rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
}

static bool retract(struct ckpt_commit *c)
{
    return ckpt_attempt_retract(c->store, c->final, c->attempt);
}

/* The manifest goes first: what it named is then no checkpoint's. Objects that it does not name
 * stay. */
static int unpublish_manifest(const struct ckpt_store_ops *store, const char *folder,
                              struct fsdp_err *err)
{
    struct ckpt_tree tree = {0};
    struct fsdp_err why = FSDP_ERR_INIT;
    char *attempt = NULL, *data = NULL;
    char *manifest = ckpt_path_join(folder, CKPT_MANIFEST_NAME, err);
    int rc = manifest ? ckpt_attempt_of(&attempt, store, folder, err) : FSDP_ENOMEM;
    if (rc == FSDP_OK) /* another program may have put the data next to the manifest */
        data = attempt ? ckpt_path_join(folder, attempt, err) : fsdp_strdup(folder, err);
    if (rc == FSDP_OK)
        rc = data ? ckpt_tree_list(&tree, store, data, NULL, NULL, INT64_MAX / 2, &why)
                  : FSDP_ENOMEM;
    if (data && rc == FSDP_ENOTFOUND) /* its data is gone */
        rc = FSDP_OK;
    else if (data && rc)
        fsdp_err_pass(err, rc, &why);
    if (rc == FSDP_OK)
        rc = ckpt_tree_refuse(&tree, "removed", err);
    if (rc == FSDP_OK)
        rc = ckpt_store_remove(store, manifest, err);
    if (rc == FSDP_OK)
        rc = ckpt_tree_remove(&tree, data, err);
    ckpt_tree_free(&tree);
    fsdp_free(data);
    fsdp_free(attempt);
    fsdp_free(manifest);
    return rc;
}

static int leftovers(struct ckpt_names *out, const struct ckpt_store_ops *store, const char *folder,
                     struct fsdp_err *err)
{
    struct ckpt_names names;
    struct fsdp_err why = FSDP_ERR_INIT;
    char *attempt = NULL;
    int nattempts = 0, rc = ckpt_store_names(&names, store, folder, &why);
    if (rc)
        return rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
    for (int i = 0; i < names.nnames; i++)
        nattempts += ckpt_name_is_uuid(names.names[i]);
    if (nattempts)
        rc = ckpt_attempt_of(&attempt, store, folder, &why);
    rc = rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++)
        if (ckpt_name_is_uuid(names.names[i]) && (!attempt || strcmp(names.names[i], attempt)))
            rc = ckpt_names_add(out, names.names[i], err);
    fsdp_free(attempt);
    ckpt_names_free(&names);
    return rc;
}

const struct ckpt_commit_ops ckpt_commit_manifest_last = {
    .begin = begin,
    .is_hidden = is_hidden,
    .is_taken = is_taken,
    .listed = listed,
    .manifest_folder = manifest_folder,
    .put_manifest = put_manifest,
    .seal = seal,
    .publish = publish_manifest,
    .is_there = is_there,
    .retract = retract,
    .unpublish = unpublish_manifest,
    .leftovers = leftovers,
};
