/* SPDX-License-Identifier: Apache-2.0 */
#include "temp.h"
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
    if (store->flat)
        return FSDP_OK;
    FSDP_TRY(ckpt_tree_kind(&kind, store, path, err));
    if (kind == CKPT_STORE_FOLDER)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "'%s' is a %s in the place of a temporary folder: remove it", path,
                        kind == CKPT_STORE_LINK ? "symbolic link" : "mount point");
}

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
    int rc = *out ? ckpt_store_remove_tree(temp->store, path, err) : FSDP_OK;
    fsdp_free(path);
    return rc;
}

int ckpt_temp_was_published(bool *out, const struct ckpt_temp *temp, struct fsdp_err *err)
{
    struct ckpt_journal journal;
    struct ckpt_store_stat st;
    enum ckpt_store_kind kind;
    FSDP_TRY(was_done(out, temp, err));
    if (*out || ckpt_tree_kind(&kind, temp->store, temp->folder, NULL) ||
        kind != CKPT_STORE_FOLDER ||
        ckpt_store_stat(&st, temp->store, temp->out, NULL) != FSDP_ENOTFOUND)
        return FSDP_OK;
    FSDP_TRY(ckpt_temp_journal(&journal, temp, err));
    *out = journal.published;
    ckpt_journal_close(&journal);
    return *out ? FSDP_OK : ckpt_store_remove_tree(temp->store, temp->folder, err);
}

static void tell_left(const struct ckpt_temp *temp, const char *path, const struct fsdp_err *why)
{
    fsdp_log(FSDP_LOG_WARN, "'%s' is done; what is left of '%s' can be removed: %s", temp->final,
             path, why->text);
}

void ckpt_temp_remove_left(const struct ckpt_temp *temp, const char *path)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    if (ckpt_store_remove_tree(temp->store, path, &why))
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
