/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the staging folders to the store: each file is copied by one of the ranks that see it, and
 * rank 0 publishes as a save does.
 */
#include <string.h>

#include "util/crc.h"
#include "util/pace.h"
#include "saver.h"
#include "stage.h"

struct flush {
    const struct ckpt_flush_args *args;
    struct ckpt_save_args save_args;
    struct ckpt_stage stage;
    struct ckpt_saver s; /* of the store; its manifest is the staged one's */
    struct ckpt_pace pace;
    char *buffer;
    size_t buffer_nbytes;
};

/* ---- one file -------------------------------------------------------------------------------- */

static int pump(struct flush *f, struct ckpt_store_file *in, struct ckpt_store_file *out,
                uint64_t nbytes, uint32_t *crc, struct fsdp_err *err)
{
    for (uint64_t pos = 0; pos < nbytes;) {
        uint64_t left = nbytes - pos;
        size_t part = left < f->buffer_nbytes ? (size_t)left : f->buffer_nbytes;
        if (f->args->gives_up && f->args->gives_up(f->args->gives_up_ctx))
            return fsdp_err_set(err, FSDP_ECANCELED, "step %lld: its copy to '%s' was given up",
                                (long long)f->args->step, f->args->root);
        FSDP_TRY(ckpt_store_pread(in, f->buffer, part, pos, err));
        *crc = ckpt_crc32c(*crc, f->buffer, part);
        FSDP_TRY(ckpt_store_write(out, f->buffer, part, err));
        ckpt_pace_keep(&f->pace);
        pos += part;
    }
    return FSDP_OK;
}

static int copy_open(struct flush *f, const char *from, const char *to, uint64_t nbytes,
                     uint32_t expected, struct fsdp_err *err)
{
    struct ckpt_store_file *in = NULL, *out = NULL;
    uint32_t crc = 0;
    int rc, rc_close = FSDP_OK;
    FSDP_TRY_GOTO(ckpt_store_open(&in, f->stage.store, from, CKPT_STORE_READ, err), out);
    FSDP_TRY_GOTO(ckpt_store_open(&out, f->s.store, to, CKPT_STORE_CREATE, err), out);
    FSDP_TRY_GOTO(pump(f, in, out, nbytes, &crc, err), out);
    if (crc != expected)
        rc = fsdp_err_set(err, FSDP_ECORRUPT, "'%s' is damaged: checksum %08x instead of %08x",
                          from, crc, expected);
    if (rc == FSDP_OK && f->args->fsync)
        rc = ckpt_store_sync(out, err);
out:
    ckpt_store_close(in, NULL);
    if (rc)
        ckpt_store_abandon(out);
    else
        rc_close = ckpt_store_close(out, err);
    return rc ? rc : rc_close;
}

static int copy_file(struct flush *f, int i, struct fsdp_err *err)
{
    const char *name;
    uint64_t nbytes;
    uint32_t crc;
    ckpt_stage_file(&name, &nbytes, &crc, &f->s.m, i);
    char *from = ckpt_path_join(f->stage.folder, name, err);
    char *to = from ? ckpt_path_join(f->s.commit.out, name, err) : NULL;
    int rc = to ? copy_open(f, from, to, nbytes, crc, err) : FSDP_ENOMEM;
    fsdp_free(to);
    fsdp_free(from);
    return rc;
}

static int copy_mine(struct flush *f, struct fsdp_err *err)
{
    f->buffer_nbytes = f->args->share > 0 ? CKPT_PACED_BLOCK_NBYTES : CKPT_BLOCK_NBYTES;
    f->buffer = fsdp_alloc(f->buffer_nbytes, 1, "flush buffer", err);
    if (!f->buffer)
        return FSDP_ENOMEM;
    for (int i = 0; i < f->stage.nfiles; i++)
        if (f->stage.reader[i] == f->s.oob->rank)
            FSDP_TRY(copy_file(f, i, err));
    return FSDP_OK;
}

/* ---- the steps ------------------------------------------------------------------------------- */

static int check(struct flush *f, struct fsdp_err *err)
{
    const struct ckpt_flush_args *args = f->args;
    if (args->version != CKPT_FLUSH_ARGS_VERSION || !args->staging || !args->root || args->step < 0)
        return fsdp_err_set(err, FSDP_EINVAL, "ckpt_flush: a required argument is missing");
    f->pace.share = args->share;
    f->save_args = (struct ckpt_save_args)CKPT_SAVE_ARGS_INIT;
    f->save_args.root = args->root;
    f->save_args.step = args->step;
    f->save_args.fsync = args->fsync;
    f->s.args = &f->save_args;
    f->s.root = args->root;
    return ckpt_store_of(&f->s.store, args->root, err);
}

/* Rank 0 makes the folder, under a uuid of its own: what a killed flush left does not meet it. */
static int begin_flush(struct flush *f, struct fsdp_err *err)
{
    struct ckpt_saver *s = &f->s;
    bool lead = s->oob->rank == 0;
    char *folder = NULL;

    s->m = f->stage.m; /* for the store from here on */
    f->stage.m = (struct ckpt_manifest){0};
    s->handed_over = true; /* rank 0 removes the whole folder */
    FSDP_TRY(fsdp_oob_agree(s->oob, lead ? ckpt_uuid_make(s->m.uuid, err) : FSDP_OK, err));
    FSDP_TRY(fsdp_oob_broadcast(s->oob, s->m.uuid, sizeof s->m.uuid, 0, err));
    int rc = ckpt_save_name(s, err);
    s->leads = lead;
    if (rc == FSDP_OK && lead)
        rc = ckpt_store_mkdirs(s->store, s->root, err);
    if (rc == FSDP_OK && lead)
        rc = ckpt_save_begin(s, err);
    if (rc == FSDP_OK && lead && s->m.nextras) {
        folder = ckpt_path_join(s->commit.out, "hf", err);
        rc = folder ? ckpt_store_mkdir(s->store, folder, err) : FSDP_ENOMEM;
    }
    fsdp_free(folder);
    return fsdp_oob_agree(s->oob, rc, err);
}

/* Staged paths become those that the manifest has in this store. */
static int rename_paths(struct flush *f, struct fsdp_err *err)
{
    struct ckpt_layout *layout = &f->s.m.layout;
    for (int i = 0; i < f->stage.nfiles; i++) {
        char **path =
            i < layout->nfiles ? &layout->files[i].path : &f->s.m.extras[i - layout->nfiles].path;
        char *renamed = ckpt_commit_listed(&f->s.commit, *path, err);
        if (!renamed)
            return FSDP_ENOMEM;
        fsdp_free(*path);
        *path = renamed;
    }
    return FSDP_OK;
}

static int sync_extras(struct flush *f, struct fsdp_err *err)
{
    if (!f->args->fsync || !f->s.m.nextras)
        return FSDP_OK;
    char *folder = ckpt_path_join(f->s.commit.out, "hf", err);
    int rc = folder ? ckpt_store_sync_folder(f->s.store, folder, err) : FSDP_ENOMEM;
    fsdp_free(folder);
    return rc;
}

static int commit(struct flush *f, struct fsdp_err *err)
{
    char *text = NULL;
    size_t nbytes;
    FSDP_TRY(rename_paths(f, err));
    int rc = ckpt_manifest_format(&text, &nbytes, &f->s.m, err);
    if (rc == FSDP_OK)
        rc = sync_extras(f, err);
    if (rc == FSDP_OK)
        rc = ckpt_save_publish(&f->s, text, nbytes, err);
    fsdp_free(text);
    f->s.committed = f->s.commit.published && rc == FSDP_OK;
    return rc;
}

static int run_flush(struct flush *f, struct fsdp_err *err)
{
    struct fsdp_oob *oob = f->s.oob;
    FSDP_TRY(fsdp_oob_agree(oob, check(f, err), err));
    FSDP_TRY(ckpt_stage_open(&f->stage, f->args->staging, f->args->step, oob, err));
    if (f->stage.missing[0])
        return fsdp_err_set(err, FSDP_ENOTFOUND, "step %lld is not wholly staged: %s",
                            (long long)f->args->step, f->stage.missing);
    FSDP_TRY(begin_flush(f, err));
    FSDP_TRY(fsdp_oob_agree(oob, copy_mine(f, err), err));
    return fsdp_oob_agree(oob, oob->rank == 0 ? commit(f, err) : FSDP_OK, err);
}

int ckpt_flush(struct ckpt_save_result *out, const struct ckpt_flush_args *args,
               struct fsdp_oob *oob, struct fsdp_err *err)
{
    struct flush f = {.args = args, .s.oob = oob};
    struct fsdp_err why = FSDP_ERR_INIT;
    double begun = fsdp_time_now();

    int rc = run_flush(&f, &why);
    if (rc && f.s.commit.out) {
        ckpt_save_undo(&f.s);
    } else if (rc == FSDP_OK && out) {
        *out = (struct ckpt_save_result){.seconds = fsdp_time_now() - begun};
        for (int i = 0; i < f.s.m.layout.nfiles; i++)
            out->nbytes += f.s.m.layout.files[i].nbytes;
        strcpy(out->path, f.s.commit.final);
    }
    ckpt_save_free(&f.s);
    ckpt_stage_close(&f.stage);
    fsdp_free(f.buffer);
    return fsdp_err_pass(err, rc, &why);
}
