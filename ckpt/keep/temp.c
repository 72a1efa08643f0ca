/* SPDX-License-Identifier: Apache-2.0 */
#include "temp.h"

#include "belongs.h"
#include "tree.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_NBYTES = 16, SUFFIX_NBYTES = sizeof ".tmp." - 1 + KEY_NBYTES };

int ckpt_temp_check_name(const char *final, struct fsdp_err *err)
{
    size_t nbytes = strlen(ckpt_path_base(final)), most = NAME_MAX - SUFFIX_NBYTES;
    if (nbytes <= most)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "the output's name '%.40s...' has %zu bytes; at most %zu leave room for "
                        "the name of its temporary folder",
                        ckpt_path_base(final), nbytes, most);
}

char *ckpt_temp_name(const char *final, uint64_t key, struct fsdp_err *err)
{
    return fsdp_sprintf(err, "%s.tmp.%0*" PRIx64, final, KEY_NBYTES, key);
}

static char *done_name(const struct ckpt_temp *temp, struct fsdp_err *err)
{
    const char *key = temp->folder + strlen(temp->folder) - KEY_NBYTES;
    return ckpt_temp_name(temp->final, ~(uint64_t)strtoull(key, NULL, 16), err);
}

int ckpt_temp_mkdir(const struct ckpt_store_ops *store, const char *path, struct fsdp_err *err)
{
    enum ckpt_store_kind kind;
    FSDP_TRY(ckpt_store_mkdirs(store, path, err));
    if (!ckpt_store_has_links(store))
        return FSDP_OK;
    FSDP_TRY(ckpt_store_kind_at(&kind, store, path, err));
    if (kind == CKPT_STORE_FOLDER)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "'%s' is a %s in the place of a temporary folder: remove it", path,
                        kind == CKPT_STORE_LINK ? "symbolic link" : "mount point");
}

bool ckpt_temp_is_plain(const struct ckpt_temp *temp)
{
    enum ckpt_store_kind kind;
    if (!ckpt_store_has_links(temp->store))
        return true;
    if (ckpt_store_kind_at(&kind, temp->store, temp->folder, NULL) || kind != CKPT_STORE_FOLDER)
        return false;
    int rc = ckpt_store_kind_at(&kind, temp->store, temp->out, NULL);
    return rc == FSDP_ENOTFOUND ||
           (rc == FSDP_OK && (kind == CKPT_STORE_FOLDER || kind == CKPT_STORE_FILE));
}

/* ---- removal --------------------------------------------------------------------------------- */

struct judge {
    struct ckpt_belongs belongs;
    const struct ckpt_manifest *extras;
};

static bool is_ours(const void *ctx, const struct ckpt_store_item *item)
{
    const struct judge *j = ctx;
    const char *name = item->path;

    if (ckpt_belongs(&j->belongs, item))
        return true;
    if (!strncmp(name, "out/", 4) || !strncmp(name, "old/", 4))
        name += 4;
    for (int i = 0; item->kind == CKPT_STORE_FILE && j->extras && i < j->extras->nextras; i++)
        if (!strcmp(ckpt_path_base(j->extras->extras[i].path), name))
            return true;
    return false;
}

/* What lies at path, judged by the table and the names of the output's small files. */
static int list(struct ckpt_tree *out, const struct ckpt_temp *temp, const char *path,
                struct fsdp_err *err)
{
    struct judge judge = {.extras = temp->extras};
    int rc = ckpt_belongs_load(&judge.belongs, temp->store, path, err);

    *out = (struct ckpt_tree){0};
    if (rc == FSDP_OK)
        rc = ckpt_tree_list(out, temp->store, path, is_ours, &judge, INT64_MAX / 2, err);
    ckpt_belongs_free(&judge.belongs);
    return rc;
}

static int remove_tree(const struct ckpt_temp *temp, const char *path, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    struct ckpt_tree tree;
    int rc = list(&tree, temp, path, &why);

    if (rc == FSDP_ENOTFOUND && !ckpt_store_has_uploads(temp->store))
        rc = FSDP_OK;
    else if (rc && rc != FSDP_ENOTFOUND)
        fsdp_err_pass(err, rc, &why);
    else /* there may still be uploads below it */
        rc = ckpt_tree_remove(&tree, path, err);
    ckpt_tree_free(&tree);
    return rc;
}

int ckpt_temp_drop(const struct ckpt_temp *temp, const char *path)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = remove_tree(temp, path, &why);
    if (rc && rc != FSDP_ENOTFOUND)
        fsdp_log(FSDP_LOG_WARN, "what was written is left in '%s': %s", path, why.text);
    return rc;
}

int ckpt_temp_check_output(const struct ckpt_temp *temp, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    struct ckpt_tree tree;
    int rc = list(&tree, temp, temp->out, &why);

    if (rc == FSDP_OK)
        rc = ckpt_tree_refuse(&tree, "resumed", &why);
    ckpt_tree_free(&tree);
    return rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
}

/* ---- the journal ----------------------------------------------------------------------------- */

int ckpt_temp_journal(struct ckpt_journal *out, const struct ckpt_temp *temp, struct fsdp_err *err)
{
    char *path = ckpt_path_join(temp->folder, "journal", err);
    int rc = path ? ckpt_journal_open(out, temp->store, path, temp->job, err) : FSDP_ENOMEM;
    fsdp_free(path);
    return rc;
}

/* Removes what a killed run had not come to when all was done. */
static int was_done(bool *out, const struct ckpt_temp *temp, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    char *path = done_name(temp, err);
    if (!path)
        return FSDP_ENOMEM;
    *out = ckpt_store_stat(&st, temp->store, path, NULL) == FSDP_OK;
    int rc = *out ? remove_tree(temp, path, err) : FSDP_OK;
    fsdp_free(path);
    return rc;
}

int ckpt_temp_was_published(bool *out, const struct ckpt_temp *temp, struct fsdp_err *err)
{
    struct ckpt_journal journal;
    struct ckpt_store_stat st;
    enum ckpt_store_kind kind;
    FSDP_TRY(was_done(out, temp, err));
    if (*out || ckpt_store_kind_at(&kind, temp->store, temp->folder, NULL) ||
        kind != CKPT_STORE_FOLDER ||
        ckpt_store_stat(&st, temp->store, temp->out, NULL) != FSDP_ENOTFOUND)
        return FSDP_OK;
    FSDP_TRY(ckpt_temp_journal(&journal, temp, err));
    *out = journal.published;
    ckpt_journal_close(&journal);
    return *out ? FSDP_OK : remove_tree(temp, temp->folder, err);
}

static void tell_left(const struct ckpt_temp *temp, const char *path, const struct fsdp_err *why)
{
    fsdp_log(FSDP_LOG_WARN, "'%s' is done; what is left of '%s' can be removed: %s", temp->final,
             path, why->text);
}

void ckpt_temp_remove_left(const struct ckpt_temp *temp, const char *path)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    if (remove_tree(temp, path, &why))
        tell_left(temp, path, &why);
}

void ckpt_temp_remove(const struct ckpt_temp *temp)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    char *path = done_name(temp, &why);
    if (!path)
        return;
    ckpt_temp_remove_left(temp, path); /* of a run before */
    int rc = ckpt_store_rename(temp->store, temp->folder, path, false, &why);
    if (rc == FSDP_OK)
        ckpt_temp_remove_left(temp, path);
    else if (rc != FSDP_ENOTFOUND) /* the same command, given again, may have been faster */
        tell_left(temp, temp->folder, &why);
    fsdp_free(path);
}
