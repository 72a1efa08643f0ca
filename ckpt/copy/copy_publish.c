/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "copy.h"
#include "format/hf/hf_names.h"
#include "source/format_ops.h"

/* A whole file of that name is an earlier run's; or somebody else's. */
static int compare_small(struct ckpt_copy *c, const char *from, const char *to,
                         struct fsdp_err *err)
{
    uint64_t nbytes, to_nbytes;
    uint32_t crc32c, to_crc32c;
    FSDP_TRY(ckpt_store_copy(&nbytes, &crc32c, c->ckpt->store, from, NULL, NULL, false, err));
    FSDP_TRY(ckpt_store_copy(&to_nbytes, &to_crc32c, c->store, to, NULL, NULL, false, err));
    if (nbytes == to_nbytes && crc32c == to_crc32c)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EEXIST, "'%s' exists, holds other bytes, and is not overwritten",
                        to);
}

static int copy_small(struct ckpt_copy *c, const char *from, const char *to,
                      const struct ckpt_extra *extra, struct fsdp_err *err)
{
    uint64_t nbytes;
    uint32_t crc32c;
    struct ckpt_store_stat st;
    bool whole = ckpt_store_has_whole_files(c->store);

    if (whole && ckpt_store_stat(&st, c->store, to, NULL) == FSDP_OK)
        return compare_small(c, from, to, err);
    if (!whole)
        FSDP_TRY(ckpt_store_discard(c->store, to, err));
    FSDP_TRY(ckpt_store_copy(&nbytes, &crc32c, c->ckpt->store, from, c->store, to, true, err));
    if (!extra || !extra->has_crc32c || crc32c == extra->crc32c)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_ECORRUPT, "'%s': checksum %08x instead of %08x", from, crc32c,
                        extra->crc32c);
}

static int copy_extras(struct ckpt_copy *c, struct fsdp_err *err)
{
    int rc = FSDP_OK;
    for (int i = 0; rc == FSDP_OK && c->folder && i < c->ckpt->m.nextras; i++) {
        const struct ckpt_extra *extra = &c->ckpt->m.extras[i];
        if (ckpt_hf_is_index(extra->path))
            continue; /* it goes last */
        char *to = ckpt_copy_to(c, extra->path, err);
        rc = to ? copy_small(c, extra->full_path, to, extra, err) : FSDP_ENOMEM;
        fsdp_free(to);
    }
    return rc;
}

/* What a reader of the format looks for first. */
static int copy_last(struct ckpt_copy *c, struct fsdp_err *err)
{
    const char *const *names = c->ckpt->format->heads;
    int rc = FSDP_OK;
    for (int i = 0; rc == FSDP_OK && c->folder && names && names[i]; i++) {
        struct ckpt_store_stat st;
        char *from = ckpt_path_join(c->ckpt->folder, names[i], err);
        char *to = ckpt_copy_to(c, names[i], err);
        rc = from && to ? ckpt_store_stat(&st, c->ckpt->store, from, NULL) : FSDP_ENOMEM;
        if (rc == FSDP_OK)
            rc = copy_small(c, from, to, NULL, err);
        else if (rc == FSDP_ENOTFOUND)
            rc = FSDP_OK;
        fsdp_free(to);
        fsdp_free(from);
    }
    return rc;
}

/* ---- the manifest ---------------------------------------------------------------------------- */

static int put_manifest(struct ckpt_copy *c, const struct ckpt_manifest *m, struct fsdp_err *err)
{
    char *text = NULL;
    size_t nbytes;
    int rc = ckpt_manifest_format(&text, &nbytes, m, err);
    if (rc == FSDP_OK)
        rc = ckpt_commit_put_manifest(&c->commit, text, nbytes, false, err);
    fsdp_free(text);
    return rc;
}

static char *path_here(const struct ckpt_copy *c, const char *path, struct fsdp_err *err)
{
    return ckpt_commit_listed(&c->commit, ckpt_copy_plain(c, path), err);
}

/* The source's, with the paths that the files have here. */
static int write_manifest(struct ckpt_copy *c, struct fsdp_err *err)
{
    struct ckpt_manifest m = c->ckpt->m;
    size_t nfiles = (size_t)m.layout.nfiles, nextras = (size_t)m.nextras;
    int rc = FSDP_OK;

    m.layout.files = fsdp_alloc(nfiles, sizeof *m.layout.files, "files", err);
    m.extras = fsdp_alloc(nextras, sizeof *m.extras, "extras", err);
    if (!m.layout.files || !m.extras)
        rc = FSDP_ENOMEM;
    for (size_t i = 0; rc == FSDP_OK && i < nfiles; i++) {
        m.layout.files[i] = c->ckpt->m.layout.files[i];
        m.layout.files[i].path = path_here(c, c->ckpt->m.layout.files[i].path, err);
        rc = m.layout.files[i].path ? FSDP_OK : FSDP_ENOMEM;
    }
    for (size_t i = 0; rc == FSDP_OK && i < nextras; i++) {
        m.extras[i] = c->ckpt->m.extras[i];
        m.extras[i].path = path_here(c, c->ckpt->m.extras[i].path, err);
        rc = m.extras[i].path ? FSDP_OK : FSDP_ENOMEM;
    }
    if (rc == FSDP_OK)
        rc = put_manifest(c, &m, err);
    for (size_t i = 0; m.extras && i < nextras; i++)
        fsdp_free(m.extras[i].path);
    for (size_t i = 0; m.layout.files && i < nfiles; i++)
        fsdp_free(m.layout.files[i].path);
    fsdp_free(m.extras);
    fsdp_free(m.layout.files);
    return rc;
}

/* ---- the final name -------------------------------------------------------------------------- */

/* The folders below this one. */
static int sync_below(const struct ckpt_copy *c, const char *folder, struct fsdp_err *err)
{
    struct ckpt_names names;
    FSDP_TRY(ckpt_store_names(&names, c->store, folder, err));
    int rc = FSDP_OK;
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++) {
        struct ckpt_store_stat st = {0};
        char *below = ckpt_path_join(folder, names.names[i], err);
        rc = below ? ckpt_store_stat(&st, c->store, below, err) : FSDP_ENOMEM;
        if (rc == FSDP_OK && st.is_folder)
            rc = sync_below(c, below, err);
        if (rc == FSDP_OK && st.is_folder)
            rc = ckpt_store_sync_folder(c->store, below, err);
        fsdp_free(below);
    }
    ckpt_names_free(&names);
    return rc;
}

int ckpt_copy_publish(struct ckpt_copy *c, struct fsdp_err *err)
{
    FSDP_TRY(copy_extras(c, err));
    if (c->ckpt->format->has_manifest)
        FSDP_TRY(write_manifest(c, err));
    else
        FSDP_TRY(copy_last(c, err));
    if (c->commit.temp && c->folder)
        FSDP_TRY(sync_below(c, c->commit.out, err));
    FSDP_TRY(ckpt_commit_seal(&c->commit, err));
    if (c->commit.temp)
        FSDP_TRY(ckpt_journal_add_published(&c->journal, err));
    return ckpt_commit_publish(&c->commit, false, err);
}
