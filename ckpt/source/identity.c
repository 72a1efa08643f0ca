/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint that changes while it is read. What a file is (size, inode, times; an object's ETag)
 * is noted when it is first opened. It is compared each time the file is opened again, and in the
 * end with what lies at its path then. So every byte came from one file, and that file is still
 * there and unchanged.
 */
#include <string.h>

#include "format_ops.h"

/* Which changes count depends on what proves the bytes. Fingerprints prove those of a native
 * checkpoint: its files may be touched, or replaced by equal ones. The checksums of torch's
 * archives do not tell one save's file from another's, but a changed ctime alone is fine.
 * Safetensors files have no checksums. */
static const char *changed_since(const struct ckpt *ckpt, const struct ckpt_store_stat *then,
                                 const struct ckpt_store_stat *now)
{
    if (ckpt->format->identity == CKPT_IDENTITY_SIZE)
        return then->nbytes != now->nbytes ? "its size" : NULL;
    return ckpt_store_changed(then, now, ckpt->format->identity == CKPT_IDENTITY_CTIME);
}

int ckpt_source_note(struct ckpt *ckpt, int file, const struct ckpt_store_stat *now,
                     struct fsdp_err *err)
{
    struct ckpt_reader *reader = &ckpt->readers[file];
    const char *changed = reader->is_seen ? changed_since(ckpt, &reader->seen, now) : NULL;
    if (changed) {
        char *path = ckpt_path_join(ckpt->folder, ckpt->m.layout.files[file].path, err);
        int rc = path ? ckpt_store_changed_error(path, changed, err) : FSDP_ENOMEM;
        fsdp_free(path);
        return rc;
    }
    reader->seen = *now;
    reader->is_seen = true;
    return FSDP_OK;
}

int ckpt_source_get_head(char **out, size_t *nbytes, struct ckpt *ckpt, const char *path,
                         size_t max_nbytes, struct fsdp_err *err)
{
    FSDP_TRY(ckpt_store_get_seen(out, &ckpt->head, ckpt->store, path, max_nbytes, err));
    *nbytes = (size_t)ckpt->head.nbytes;
    fsdp_free(ckpt->head_path);
    ckpt->head_path = fsdp_strdup(path, err);
    return ckpt->head_path ? FSDP_OK : FSDP_ENOMEM;
}

/* Opens the file, because an NFS client asks the server again only then. */
static int look_again(const struct ckpt *ckpt, const char *path, const struct ckpt_store_stat *then,
                      struct fsdp_err *err)
{
    struct ckpt_store_file *file = NULL;
    struct ckpt_store_stat now;
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = ckpt_store_open(&file, ckpt->store, path, CKPT_STORE_READ, &why);
    if (rc == FSDP_ENOTFOUND)
        return ckpt_store_changed_error(path, "it is not there any more", err);
    if (rc == FSDP_OK)
        rc = ckpt_store_stat_open(&now, file, &why);
    ckpt_store_close(file, NULL);
    if (rc)
        return fsdp_err_pass(err, rc, &why);
    const char *changed = changed_since(ckpt, then, &now);
    return changed ? ckpt_store_changed_error(path, changed, err) : FSDP_OK;
}

int ckpt_unchanged(struct ckpt *ckpt, struct fsdp_err *err)
{
    if (ckpt->head_path)
        FSDP_TRY(look_again(ckpt, ckpt->head_path, &ckpt->head, err));
    for (int i = 0; i < ckpt->m.layout.nfiles; i++) {
        if (!ckpt->readers[i].is_seen)
            continue;
        char *path = ckpt_path_join(ckpt->folder, ckpt->m.layout.files[i].path, err);
        int rc = path ? look_again(ckpt, path, &ckpt->readers[i].seen, err) : FSDP_ENOMEM;
        fsdp_free(path);
        FSDP_TRY(rc);
    }
    return FSDP_OK;
}

/* ---- the same source as that of a killed run? ------------------------------------------------ */

static uint64_t hash_stat(uint64_t hash, const struct ckpt *ckpt, const struct ckpt_store_stat *st)
{
    const uint64_t facts[] = {st->nbytes, st->inode, (uint64_t)st->mtime_ns, st->tag,
                              ckpt->format->identity == CKPT_IDENTITY_CTIME ? (uint64_t)st->ctime_ns
                                                                            : 0};
    return fsdp_hash(hash, facts, sizeof facts);
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
    return fsdp_hash(hash, text, strlen(text) + 1);
}

int ckpt_source_hash(uint64_t *hash, const struct ckpt *ckpt, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &ckpt->m.layout;
    *hash = hash_text(*hash, ckpt->m.uuid);
    if (ckpt->head_path && !ckpt->format->has_manifest)
        *hash = hash_stat(*hash, ckpt, &ckpt->head);
    for (int i = 0; i < layout->nfiles; i++) {
        const struct ckpt_layout_file *file = &layout->files[i];
        const struct ckpt_reader *reader = &ckpt->readers[i];
        *hash = hash_text(*hash, file->path);
        *hash = fsdp_hash(*hash, &file->nbytes, sizeof file->nbytes);
        if (file->has_crc) {
            *hash = fsdp_hash(*hash, &file->crc32c, sizeof file->crc32c);
            continue;
        }
        struct ckpt_store_stat st = reader->seen;
        if (!reader->is_seen) {
            char *path = ckpt_path_join(ckpt->folder, file->path, err);
            int rc = path ? ckpt_store_stat(&st, ckpt->store, path, err) : FSDP_ENOMEM;
            fsdp_free(path);
            FSDP_TRY(rc);
        }
        *hash = hash_stat(*hash, ckpt, &st);
    }
    return FSDP_OK;
}
