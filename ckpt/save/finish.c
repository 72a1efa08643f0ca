/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fresh folder at the beginning; at the end proof that what all ranks wrote is whole, then the
 * manifest, and the commit (keep/commit.h). In staging each node's leader does this for its node's
 * folder, with rank 0's manifest.
 */
#include <string.h>

#include "source/source.h"
#include "saver.h"
#include "keep/tree.h"

static int refuse_existing(const struct ckpt_saver *s, struct fsdp_err *err)
{
    bool taken;
    FSDP_TRY(ckpt_commit_is_taken(&taken, &s->commit, err));
    return taken ? fsdp_err_set(err, FSDP_EEXIST, "'%s' exists already", s->commit.final) : FSDP_OK;
}

int ckpt_save_choose(struct ckpt_saver *s, struct fsdp_err *err)
{
    const char *root = s->args->root;
    const struct ckpt_store_ops *store; /* that the files are for, staged or not */
    FSDP_TRY(ckpt_store_of(&store, root, err));
    if (!s->staged)
        FSDP_TRY(ckpt_store_mkdirs(store, root, err));
    s->compress = s->args->compress == CKPT_COMPRESS_ZSTD ||
                  (s->args->compress == CKPT_COMPRESS_AUTO && !ckpt_codec_check(root, NULL) &&
                   ckpt_store_is_remote(store, root));
    return FSDP_OK;
}

static int make_temp(struct ckpt_saver *s, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    if (!s->staged) {
        FSDP_TRY(refuse_existing(s, err));
        return ckpt_store_mkdir(s->store, s->commit.out, err);
    }
    FSDP_TRY(ckpt_store_mkdirs(s->store, s->root, err));
    int rc = ckpt_store_mkdir(s->store, s->commit.out, &why);
    if (rc == FSDP_EEXIST) { /* another node's leader sees the same folder, and came first */
        s->leads = false;
        return FSDP_OK;
    }
    if (rc)
        return fsdp_err_pass(err, rc, &why);
    /* A staged checkpoint of that step is of an earlier start, which went further and lost it. */
    return ckpt_store_remove_tree(s->store, s->commit.final, err);
}

int ckpt_save_begin(struct ckpt_saver *s, struct fsdp_err *err)
{
    FSDP_TRY(make_temp(s, err));
    s->made_temp = s->leads;
    for (int kind = 0; s->leads && kind < CKPT_NKINDS; kind++) {
        char *folder = ckpt_path_join(s->commit.out, ckpt_kind_folder(kind), err);
        int rc = folder ? ckpt_store_mkdir(s->store, folder, err) : FSDP_ENOMEM;
        fsdp_free(folder);
        FSDP_TRY(rc);
    }
    return FSDP_OK;
}

static int take_file(struct ckpt_saver *s, int rank, int kind, const struct ckpt_saved_file *info,
                     struct fsdp_err *err)
{
    struct ckpt_layout *layout = &s->m.layout;
    char *name = ckpt_shard_name(kind, ckpt_save_number(s, rank), s->compress, err);
    char *path = name ? ckpt_commit_listed(&s->commit, name, err) : NULL;
    int rc = path ? ckpt_layout_add_file(layout, path, info->nbytes, err) : FSDP_ENOMEM;
    fsdp_free(path);
    fsdp_free(name);
    FSDP_TRY(rc);
    struct ckpt_layout_file *file = &layout->files[layout->nfiles - 1];
    file->header_nbytes = info->header_nbytes;
    file->crc32c = info->crc32c;
    file->has_crc = true;
    return FSDP_OK;
}

/* One rank's files and boxes into the layout. */
static int take_report(struct ckpt_saver *s, int rank, const char *report, size_t nbytes,
                       struct fsdp_err *err)
{
    struct ckpt_layout *layout = &s->m.layout;
    struct ckpt_saved_file files[CKPT_NKINDS];
    int at[CKPT_NKINDS] = {-1, -1};

    if (nbytes < sizeof files || (nbytes - sizeof files) % sizeof(struct ckpt_saved_piece))
        return fsdp_err_set(err, FSDP_EINTERNAL, "rank %d reported %zu bytes", rank, nbytes);
    memcpy(files, report, sizeof files);
    for (int kind = 0; kind < CKPT_NKINDS; kind++) {
        if (!files[kind].nbytes)
            continue;
        at[kind] = layout->nfiles;
        FSDP_TRY(take_file(s, rank, kind, &files[kind], err));
    }
    for (size_t pos = sizeof files; pos < nbytes; pos += sizeof(struct ckpt_saved_piece)) {
        struct ckpt_saved_piece saved;
        memcpy(&saved, report + pos, sizeof saved);
        if (saved.tensor < 0 || saved.tensor >= layout->ntensors || saved.kind < 0 ||
            saved.kind >= CKPT_NKINDS || at[saved.kind] < 0)
            return fsdp_err_set(err, FSDP_EINTERNAL, "rank %d reported a piece of no tensor", rank);
        struct ckpt_piece piece = {.tensor = saved.tensor,
                                   .file = at[saved.kind],
                                   .offset = saved.box.offset,
                                   .length = saved.box.length};
        FSDP_TRY(ckpt_layout_add_piece(layout, &piece, err));
        layout->tensors[saved.tensor].fingerprint ^= saved.fingerprint_part;
    }
    return FSDP_OK;
}

static int copy_extra(struct ckpt_saver *s, const char *from, struct fsdp_err *err)
{
    struct ckpt_extra *extra = &s->m.extras[s->m.nextras];
    const struct ckpt_store_ops *from_store;

    for (int i = 0; i < s->m.nextras; i++)
        if (!strcmp(ckpt_path_base(s->m.extras[i].path), ckpt_path_base(from)))
            return fsdp_err_set(err, FSDP_EINVAL, "two files to keep are called '%s'",
                                ckpt_path_base(from));
    FSDP_TRY(ckpt_store_of(&from_store, from, err));
    char *name = fsdp_sprintf(err, "hf/%s", ckpt_path_base(from));
    char *to = name ? ckpt_path_join(s->commit.out, name, err) : NULL;
    extra->path = to ? ckpt_commit_listed(&s->commit, name, err) : NULL;
    fsdp_free(name);
    if (!extra->path) {
        fsdp_free(to);
        return FSDP_ENOMEM;
    }
    s->m.nextras++;
    int rc = ckpt_store_copy(&extra->nbytes, &extra->crc32c, from_store, from, s->store, to,
                             s->args->fsync, err);
    fsdp_free(to);
    return rc;
}

static int copy_extras(struct ckpt_saver *s, struct fsdp_err *err)
{
    if (!s->args->nextra)
        return FSDP_OK;
    s->m.extras = fsdp_alloc((size_t)s->args->nextra, sizeof *s->m.extras, "extras", err);
    char *folder = ckpt_path_join(s->commit.out, "hf", err);
    int rc = s->m.extras && folder ? ckpt_store_mkdir(s->store, folder, err) : FSDP_ENOMEM;
    for (int i = 0; rc == FSDP_OK && i < s->args->nextra; i++)
        rc = copy_extra(s, s->args->extra[i], err);
    if (rc == FSDP_OK && s->args->fsync)
        rc = ckpt_store_sync_folder(s->store, folder, err);
    fsdp_free(folder);
    return rc;
}

int ckpt_save_gather(struct ckpt_saver *s, const char *reports, const size_t *lens,
                     struct fsdp_err *err)
{
    for (int rank = 0; rank < s->oob->size; rank++) {
        FSDP_TRY(take_report(s, rank, reports, lens[rank], err));
        reports += lens[rank];
    }
    FSDP_TRY(ckpt_layout_seal(&s->m.layout, err));
    return copy_extras(s, err);
}

static int sync_folders(struct ckpt_saver *s, struct fsdp_err *err)
{
    for (int kind = 0; kind < CKPT_NKINDS; kind++) {
        char *folder = ckpt_path_join(s->commit.out, ckpt_kind_folder(kind), err);
        int rc = folder ? ckpt_store_sync_folder(s->store, folder, err) : FSDP_ENOMEM;
        fsdp_free(folder);
        FSDP_TRY(rc);
    }
    return FSDP_OK;
}

int ckpt_save_publish(struct ckpt_saver *s, const char *manifest, size_t nbytes,
                      struct fsdp_err *err)
{
    if (s->args->fsync)
        FSDP_TRY(sync_folders(s, err));
    FSDP_TRY(ckpt_commit_put_manifest(&s->commit, manifest, nbytes, false, err));
    FSDP_TRY(ckpt_commit_seal(&s->commit, err));
    return ckpt_commit_publish(&s->commit, false, err);
}
