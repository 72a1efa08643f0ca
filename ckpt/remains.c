/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <string.h>
#include <time.h>

#include "opened.h"
#include "remains.h"

struct walk {
    const struct ckpt_store_ops *ops;
    const char *root;
    ckpt_remains_f *fn;
    void *ctx;
};

/* ---- what a name says ------------------------------------------------------------------------ */

static bool is_hex(const char *text, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        if (!isxdigit((unsigned char)text[i]))
            return false;
    return true;
}

static bool is_uuid(const char *text)
{
    if (strlen(text) != 36)
        return false;
    for (int i = 0; i < 36; i++)
        if (i == 8 || i == 13 || i == 18 || i == 23 ? text[i] != '-'
                                                    : !isxdigit((unsigned char)text[i]))
            return false;
    return true;
}

/* Bytes of NAME in "NAME.tmp.<uuid or key>" and "NAME.del.<uuid>"; 0: it is none. */
static size_t name_nbytes(const char *entry, enum ckpt_remains_kind *kind)
{
    size_t len = strlen(entry), behind = 0;
    if (len > 41 && is_uuid(entry + len - 36))
        behind = 36;
    else if (len > 21 && is_hex(entry + len - 16, 16))
        behind = 16;
    const char *mark = entry + len - behind - 5;
    if (!behind || (strncmp(mark, ".tmp.", 5) && strncmp(mark, ".del.", 5)))
        return 0;
    *kind = mark[1] == 't' ? CKPT_REMAINS_UNFINISHED : CKPT_REMAINS_REMOVED;
    return (size_t)(mark - entry);
}

static bool is_probe(const char *entry)
{
    return !strncmp(entry, ".check-", 7) && is_uuid(entry + 7);
}

/* ---- what there is --------------------------------------------------------------------------- */

/* Adds what lies at a path and below it. What somebody just removed is nothing. */
static int measure(struct ckpt_remains *out, const struct walk *w, const char *path,
                   struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    struct ckpt_names names = {0};
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = ckpt_store_stat(&st, w->ops, path, &why);
    if (rc == FSDP_OK && st.is_folder)
        rc = ckpt_store_names(&names, w->ops, path, &why);
    if (rc)
        return rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
    out->nbytes += st.is_folder ? 0 : st.nbytes;
    out->touched = st.mtime > out->touched ? st.mtime : out->touched;
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++) {
        char *below = ckpt_path_join(path, names.names[i], err);
        rc = below ? measure(out, w, below, err) : FSDP_ENOMEM;
        fsdp_free(below);
    }
    ckpt_names_free(&names);
    return rc;
}

/* Objects of a file that is still being sent are not there yet, and its upload shows only when it
 * was begun: while there is one of the last day, all beside it may be alive. */
static int has_uploads(bool *has, const struct walk *w, const char *path, struct fsdp_err *err)
{
    int64_t now = (int64_t)time(NULL);
    uint64_t all, old;
    FSDP_TRY(ckpt_store_sweep(&all, w->ops, path, INT64_MAX, true, err));
    FSDP_TRY(ckpt_store_sweep(&old, w->ops, path, now - CKPT_STALE_UPLOAD_SECONDS, true, err));
    *has = all > old;
    return FSDP_OK;
}

/* busy: where in a flat store uploads say that it is alive. */
static int tell(const struct walk *w, const char *folder, const char *entry, const char *name,
                const char *busy, enum ckpt_remains_kind kind, struct fsdp_err *err)
{
    struct ckpt_remains remains = {.name = name, .kind = kind};
    bool alive = false;
    char *path = ckpt_path_join(folder, entry, err), *at = ckpt_path_join(folder, busy, err);
    int rc = path && at ? measure(&remains, w, path, err) : FSDP_ENOMEM;
    if (rc == FSDP_OK && w->ops->flat)
        rc = has_uploads(&alive, w, at, err);
    if (alive)
        remains.touched = (int64_t)time(NULL);
    remains.path = path;
    if (rc == FSDP_OK)
        rc = w->fn(w->ctx, &remains, err);
    fsdp_free(at);
    fsdp_free(path);
    return rc;
}

/* Folders below one of a flat store that its manifest does not name. */
static int walk_attempts(const struct walk *w, const char *folder, const char *name,
                         struct fsdp_err *err)
{
    struct ckpt_names names;
    struct fsdp_err why = FSDP_ERR_INIT;
    char *attempt = NULL;
    int nattempts = 0, rc = ckpt_store_names(&names, w->ops, folder, &why);
    if (rc)
        return rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
    for (int i = 0; i < names.nnames; i++)
        nattempts += is_uuid(names.names[i]);
    if (nattempts)
        rc = ckpt_attempt_of(&attempt, w->ops, folder, &why);
    if (rc && rc != FSDP_ENOTFOUND)
        fsdp_err_pass(err, rc, &why);
    else
        rc = FSDP_OK;
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++)
        if (is_uuid(names.names[i]) && (!attempt || strcmp(names.names[i], attempt)))
            rc =
                tell(w, folder, names.names[i], name, names.names[i], CKPT_REMAINS_UNFINISHED, err);
    fsdp_free(attempt);
    ckpt_names_free(&names);
    return rc;
}

static int walk_entry(const struct walk *w, const char *entry, struct fsdp_err *err)
{
    enum ckpt_remains_kind kind = CKPT_REMAINS_UNFINISHED;
    size_t nbytes = name_nbytes(entry, &kind);
    if (is_probe(entry))
        return tell(w, w->root, entry, entry, entry, CKPT_REMAINS_PROBE, err);
    if (!w->ops->flat && !nbytes)
        return FSDP_OK;
    char *text = nbytes ? fsdp_sprintf(err, "%.*s", (int)nbytes, entry)
                        : ckpt_path_join(w->root, entry, err);
    int rc = FSDP_ENOMEM;
    if (text)
        rc = nbytes ? tell(w, w->root, entry, text, text, kind, err)
                    : walk_attempts(w, text, entry, err);
    fsdp_free(text);
    return rc;
}

int ckpt_remains_each(const struct ckpt_store_ops *ops, const char *root, ckpt_remains_f *fn,
                      void *ctx, struct fsdp_err *err)
{
    const struct walk w = {ops, root, fn, ctx};
    struct ckpt_names names;
    FSDP_TRY(ckpt_store_names(&names, ops, root, err));
    /* A flat store's root may be a checkpoint itself. */
    int rc = ops->flat ? walk_attempts(&w, root, ckpt_path_base(root), err) : FSDP_OK;
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++)
        if (!ops->flat || !is_uuid(names.names[i]))
            rc = walk_entry(&w, names.names[i], err);
    ckpt_names_free(&names);
    return rc;
}
