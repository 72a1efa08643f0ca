/* SPDX-License-Identifier: Apache-2.0 */
/* The toolkit's own format: manifest.json says what there must be, the files' headers say which
 * boxes they hold; each is held against the other. */
#include <string.h>

#include "native.h"
#include "source/format_ops.h"

static int refuse_strays_in(const struct ckpt *ckpt, const char *below,
                            const struct ckpt_layout *layout, struct fsdp_err *err)
{
    struct ckpt_names names;
    char *folder = ckpt_path_join(ckpt->folder, below, err);
    if (!folder)
        return FSDP_ENOMEM;
    int rc = ckpt_store_names(&names, ckpt->store, folder, err);
    if (rc == FSDP_ENOTFOUND)
        rc = FSDP_OK; /* nothing was saved of that kind, or its files are found missing later */
    size_t len = strlen(below);
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++) {
        bool listed = !strstr(names.names[i], ".safetensors");
        for (int k = 0; !listed && k < layout->nfiles; k++)
            listed = !strncmp(layout->files[k].path, below, len) &&
                     layout->files[k].path[len] == '/' &&
                     !strcmp(layout->files[k].path + len + 1, names.names[i]);
        if (!listed)
            rc = fsdp_err_set(err, FSDP_ECORRUPT,
                              "'%s/%s' does not belong to this checkpoint: its manifest does not "
                              "list it",
                              folder, names.names[i]);
    }
    ckpt_names_free(&names);
    fsdp_free(folder);
    return rc;
}

size_t ckpt_attempt_nbytes(const struct ckpt_layout *layout)
{
    const char *path = layout->nfiles ? layout->files[0].path : "";
    const char *kind = strstr(path, "/model/");
    kind = kind ? kind : strstr(path, "/optim/");
    return kind ? (size_t)(kind + 1 - path) : 0;
}

int ckpt_attempt_of(char **out, const struct ckpt_store_ops *ops, const char *folder,
                    struct fsdp_err *err)
{
    struct ckpt_manifest m;
    char *path = ckpt_path_join(folder, CKPT_MANIFEST_NAME, err), *data = NULL;
    size_t nbytes;
    memset(&m, 0, sizeof m);
    *out = NULL;
    int rc = path ? ckpt_store_get(&data, &nbytes, ops, path, CKPT_MAX_MANIFEST_NBYTES, err)
                  : FSDP_ENOMEM;
    if (rc == FSDP_OK)
        rc = ckpt_manifest_parse(&m, data, nbytes, path, err);
    int len = rc == FSDP_OK ? (int)ckpt_attempt_nbytes(&m.layout) : 0;
    if (len && !(*out = fsdp_sprintf(err, "%.*s", len - 1, m.layout.files[0].path)))
        rc = FSDP_ENOMEM;
    ckpt_manifest_free(&m);
    fsdp_free(data);
    fsdp_free(path);
    return rc;
}

bool ckpt_attempt_retract(const struct ckpt_store_ops *ops, const char *folder, const char *attempt)
{
    char *there = NULL, *path = NULL;
    int rc = ckpt_attempt_of(&there, ops, folder, NULL);
    if (rc)
        return rc == FSDP_ENOTFOUND;
    bool gone = !there || strcmp(there, attempt) != 0;
    if (!gone && (path = ckpt_path_join(folder, CKPT_MANIFEST_NAME, NULL)))
        gone = ckpt_store_remove(ops, path, NULL) == FSDP_OK;
    fsdp_free(path);
    fsdp_free(there);
    return gone;
}

static int refuse_strays(const struct ckpt *ckpt, const char *kind, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &ckpt->m.layout;
    char *below = fsdp_sprintf(err, "%.*s%s", (int)ckpt_attempt_nbytes(layout),
                               layout->nfiles ? layout->files[0].path : "", kind);
    int rc = below ? refuse_strays_in(ckpt, below, layout, err) : FSDP_ENOMEM;
    fsdp_free(below);
    return rc;
}

/* `*at`: the tensor found last; in and out. */
static int entry_take(struct ckpt *ckpt, int file, const struct ckpt_st_header *header, int index,
                      int *at, struct fsdp_err *err)
{
    struct ckpt_layout *layout = &ckpt->m.layout;
    const char *path = layout->files[file].path;
    const struct ckpt_st_entry *entry = &header->entries[index];
    if (entry->why)
        return fsdp_err_set(err, FSDP_ECORRUPT, "%s", ckpt_st_why(header, entry));

    *at = ckpt_layout_find_near(layout, entry->name, *at + 1);
    if (*at < 0)
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "'%s/%s' holds tensor '%s', which the manifest does not list",
                            ckpt->path, path, entry->name);
    const struct fsdp_tensor *tensor = &layout->tensors[*at].tensor;
    if (entry->dtype != tensor->dtype)
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "'%s/%s' holds tensor '%s' as %s; the manifest "
                            "says %s",
                            ckpt->path, path, entry->name, fsdp_dtype_name(entry->dtype),
                            fsdp_dtype_name(tensor->dtype));
    bool same = entry->global_shape && entry->ndim == tensor->ndim;
    for (int d = 0; same && d < tensor->ndim; d++)
        same = entry->global_shape[d] == tensor->shape[d];
    if (!same)
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "'%s/%s' holds tensor '%s' of another shape than the manifest says",
                            ckpt->path, path, entry->name);
    const struct ckpt_piece piece = {.tensor = *at,
                                     .file = file,
                                     .offset = entry->offset,
                                     .length = entry->shape,
                                     .pos = entry->pos};
    return ckpt_layout_add_piece(layout, &piece, err);
}

/* They are small, and a changed config.json gives wrong weights a right look. */
static int extra_prove(struct ckpt *ckpt, const struct ckpt_extra *extra, struct fsdp_err *err)
{
    uint64_t nbytes;
    uint32_t crc32c;

    FSDP_TRY(
        ckpt_store_copy(&nbytes, &crc32c, ckpt->store, extra->full_path, NULL, NULL, false, err));
    if (crc32c == extra->crc32c)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_ECORRUPT, "'%s' was changed: its checksum is %08x, not %08x",
                        extra->full_path, (unsigned)crc32c, (unsigned)extra->crc32c);
}

static int extras_place(struct ckpt *ckpt, struct fsdp_err *err)
{
    for (int i = 0; i < ckpt->m.nextras; i++) {
        struct ckpt_extra *extra = &ckpt->m.extras[i];
        struct ckpt_store_stat st;
        if (!(extra->full_path = ckpt_path_join(ckpt->folder, extra->path, err)))
            return FSDP_ENOMEM;
        int rc = ckpt_store_stat(&st, ckpt->store, extra->full_path, err);
        if (rc == FSDP_ENOTFOUND)
            return fsdp_err_set(err, rc, "'%s' is missing", extra->full_path);
        FSDP_TRY(rc);
        if (st.nbytes != extra->nbytes)
            return fsdp_err_set(err, FSDP_ECORRUPT, "'%s' has %llu bytes instead of %llu",
                                extra->full_path, (unsigned long long)st.nbytes,
                                (unsigned long long)extra->nbytes);
        FSDP_TRY(extra_prove(ckpt, extra, err));
    }
    return FSDP_OK;
}

static int open_native(struct ckpt *ckpt, struct fsdp_err *err)
{
    struct ckpt_st_header *headers = NULL;
    char *path = ckpt_path_join(ckpt->folder, CKPT_MANIFEST_NAME, err), *data = NULL;
    size_t nbytes;
    int rc = FSDP_ENOMEM, nfiles = 0;

    if (!path)
        goto out;
    FSDP_TRY_GOTO(ckpt_source_get_head(&data, &nbytes, ckpt, path, CKPT_MAX_MANIFEST_NBYTES, err),
                  out);
    FSDP_TRY_GOTO(ckpt_manifest_parse(&ckpt->m, data, nbytes, path, err), out);
    FSDP_TRY_GOTO(ckpt_readers_create(ckpt, err), out);
    FSDP_TRY_GOTO(refuse_strays(ckpt, "model", err), out);
    FSDP_TRY_GOTO(refuse_strays(ckpt, "optim", err), out);
    rc = FSDP_ENOMEM;
    if (!(headers = fsdp_alloc((size_t)ckpt->m.layout.nfiles, sizeof *headers, "headers", err)))
        goto out;
    FSDP_TRY_GOTO(ckpt_headers_read(headers, ckpt, err), out);
    nfiles = ckpt->m.layout.nfiles;
    size_t npieces = 0;
    for (int i = 0; i < nfiles; i++)
        npieces += (size_t)headers[i].nentries;
    FSDP_TRY_GOTO(ckpt_layout_reserve_pieces(&ckpt->m.layout, npieces, err), out);
    for (int i = 0, at = -1; i < nfiles; i++)
        for (int k = 0; k < headers[i].nentries; k++)
            FSDP_TRY_GOTO(entry_take(ckpt, i, &headers[i], k, &at, err), out);
    FSDP_TRY_GOTO(ckpt_layout_seal(&ckpt->m.layout, err), out);
    rc = extras_place(ckpt, err);
out:
    for (int i = 0; i < nfiles; i++)
        ckpt_st_header_free(&headers[i]);
    fsdp_free(headers);
    fsdp_free(data);
    fsdp_free(path);
    return rc;
}

static int recognize(bool *out, struct ckpt *ckpt, const struct ckpt_store_stat *st,
                     struct fsdp_err *err)
{
    return st->is_folder ? ckpt_is_published(out, ckpt->store, ckpt->path, err) : FSDP_OK;
}

/* A folder of checkpoints stands for its newest. */
static int recognize_newest(bool *out, struct ckpt *ckpt, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    char latest[4096];
    int rc = ckpt_latest(latest, sizeof latest, ckpt->path, &why);

    if (rc == FSDP_ENOTFOUND)
        return FSDP_OK;
    if (rc)
        return fsdp_err_pass(err, rc, &why);
    fsdp_free(ckpt->path);
    ckpt->path = fsdp_strdup(latest, err);
    *out = true;
    return ckpt->path ? FSDP_OK : FSDP_ENOMEM;
}

const struct ckpt_format_ops ckpt_native_ops = {
    .id = CKPT_NATIVE,
    .identity = CKPT_IDENTITY_SIZE,
    .has_manifest = true,
    .recognize = recognize,
    .recognize_within = recognize_newest,
    .open = open_native,
};
