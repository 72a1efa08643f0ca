/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "files.h"
#include "source/source.h"
#include "util/text.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

int ckpt_dcp_text(char **out, const struct ckpt_pk *value, size_t most, const char *path,
                  struct fsdp_err *err)
{
    *out = NULL;
    if (!value || value->type != CKPT_PK_T_TEXT || value->nitems > most || !value->nitems ||
        memchr(value->u.text, 0, value->nitems))
        return BAD("'%s': a name is missing, too long or not a text", path);
    *out = fsdp_sprintf(err, "%.*s", (int)value->nitems, value->u.text);
    return *out ? FSDP_OK : FSDP_ENOMEM;
}

/* torch follows separators and `..` out of the checkpoint; this reader does not. */
static bool file_name_ok(const char *name)
{
    if (!strcmp(name, ".") || !strcmp(name, ".."))
        return false;
    for (const char *p = name; *p; p++)
        if (*p == '/' || *p == '\\' || (unsigned char)*p < 0x20)
            return false;
    return true;
}

static bool is_newer(const struct ckpt_store_stat *a, const struct ckpt_store_stat *b)
{
    return a->mtime_ns > b->mtime_ns || a->mtime > b->mtime;
}

/* torch writes .metadata last, and no checksum tells one save's data from another's. */
void ckpt_dcp_files_warn(const struct ckpt_dcp_files *f)
{
    if (f->nnewer)
        fsdp_log(FSDP_LOG_WARN,
                 "%d data file%s newer than '%s', such as '%s'; torch writes .metadata last, so "
                 "another save into this folder may have been stopped half-way and mixed two "
                 "saves, or the folder was copied without its times",
                 f->nnewer, f->nnewer == 1 ? " is" : "s are", f->metadata, f->newer);
}

static int file_add(struct ckpt_dcp_files *f, const struct ckpt_pk *value, struct fsdp_err *err)
{
    struct ckpt *ckpt = f->ckpt;
    struct ckpt_store_stat st;
    char *name, *path = NULL;
    int rc = FSDP_ENOMEM;
    FSDP_TRY(ckpt_dcp_text(&name, value, CKPT_MAX_PATH_NBYTES, f->metadata, err));
    if (!file_name_ok(name)) {
        rc = BAD("'%s' places data in '%s': a path that could leave the checkpoint is refused",
                 f->metadata, name);
        goto out;
    }
    if (!(path = ckpt_path_join(ckpt->folder, name, err)))
        goto out;
    rc = ckpt_store_stat(&st, ckpt->store, path, err);
    if (rc == FSDP_ENOTFOUND)
        rc = fsdp_err_set(err, rc,
                          "'%s' is missing: .metadata places data in it (where each node saved to "
                          "its own disk, bring the files of all nodes together)",
                          path);
    else if (rc == FSDP_OK && st.is_folder)
        rc = BAD("'%s' is a folder", path);
    if (rc == FSDP_OK)
        rc = ckpt_layout_add_file(&ckpt->m.layout, name, st.nbytes, err);
    if (rc == FSDP_OK && is_newer(&st, &ckpt->head) && !f->nnewer++)
        snprintf(f->newer, sizeof f->newer, "%s", name);
out:
    fsdp_free(path);
    fsdp_free(name);
    return rc;
}

static bool same_text(const struct ckpt_pk *a, const struct ckpt_pk *b)
{
    return a == b || (a->nitems == b->nitems && !memcmp(a->u.text, b->u.text, a->nitems));
}

static int hash_grow(struct ckpt_dcp_files *f, struct fsdp_err *err)
{
    size_t nhash = f->nhash ? 2 * f->nhash : 256;
    int *by_hash = fsdp_alloc(nhash, sizeof *by_hash, "file index", err);
    const struct ckpt_pk **names = fsdp_alloc(nhash, sizeof *names, "file index", err);
    if (!by_hash || !names) {
        fsdp_free(by_hash);
        fsdp_free(names);
        return FSDP_ENOMEM;
    }
    for (size_t i = 0; i < f->nfiles; i++) {
        names[i] = f->names[i];
        size_t at = ckpt_hash((uintptr_t)f, names[i]->u.text, names[i]->nitems) % nhash;
        while (by_hash[at])
            at = (at + 1) % nhash;
        by_hash[at] = (int)i + 1;
    }
    fsdp_free(f->by_hash);
    fsdp_free(f->names);
    f->by_hash = by_hash;
    f->names = names;
    f->nhash = nhash;
    return FSDP_OK;
}

int ckpt_dcp_files_find(int *out, struct ckpt_dcp_files *f, const struct ckpt_pk *name,
                        struct fsdp_err *err)
{
    if (!name || name->type != CKPT_PK_T_TEXT)
        return BAD("'%s': a chunk's file is not named", f->metadata);
    if (2 * f->nfiles >= f->nhash)
        FSDP_TRY(hash_grow(f, err));
    size_t at = ckpt_hash((uintptr_t)f, name->u.text, name->nitems) % f->nhash;
    for (; f->by_hash[at]; at = (at + 1) % f->nhash) {
        *out = f->by_hash[at] - 1;
        if (same_text(f->names[*out], name))
            return FSDP_OK;
    }
    FSDP_TRY(file_add(f, name, err));
    *out = (int)f->nfiles;
    f->names[f->nfiles++] = name;
    f->by_hash[at] = *out + 1;
    return FSDP_OK;
}

void ckpt_dcp_files_free(struct ckpt_dcp_files *f)
{
    fsdp_free(f->names);
    fsdp_free(f->by_hash);
}
