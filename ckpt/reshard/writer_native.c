/* SPDX-License-Identifier: Apache-2.0 */
/* Native output. Its manifest: what was written, and of the source's all that stays true. */
#include <stdlib.h>
#include <string.h>

#include "save/saver.h"
#include "writer.h"

/* The same job gives the same bytes, its identity included: made of the key, as a uuid of version 8
 * (RFC 9562). */
static void name_uuid(char out[37], uint64_t key)
{
    uint64_t more = fsdp_hash(key, &key, sizeof key);
    snprintf(out, 37, "%08x-%04x-8%03x-%04x-%012llx", (unsigned)(key >> 32),
             (unsigned)(key >> 16 & 0xffff), (unsigned)(key & 0xfff),
             (unsigned)(more >> 48 & 0x3fff) | 0x8000, (unsigned long long)(more & 0xffffffffffff));
}

static int take_tensors(struct ckpt_manifest *m, const struct ckpt_job *job, struct fsdp_err *err)
{
    for (int i = 0; i < job->ntensors; i++) {
        const struct ckpt_job_tensor *t = &job->tensors[i];
        FSDP_TRY(ckpt_layout_add_tensor(&m->layout, &t->tensor, t->kind, err));
        m->layout.tensors[i].fingerprint = t->fingerprint;
        m->layout.tensors[i].has_fingerprint = true;
    }
    return ckpt_layout_index(&m->layout, err);
}

static int take_files(struct ckpt_manifest *m, const struct ckpt_job *job, struct fsdp_err *err)
{
    for (int i = 0; i < job->nfiles; i++) {
        const struct ckpt_job_file *file = &job->files[i];
        char *path = ckpt_commit_listed(&job->commit, file->name, err);
        int rc =
            path ? ckpt_layout_add_file(&m->layout, path, file->stored_nbytes, err) : FSDP_ENOMEM;
        fsdp_free(path);
        FSDP_TRY(rc);
        m->layout.files[i].header_nbytes = file->header_nbytes;
        m->layout.files[i].crc32c = file->crc32c;
        m->layout.files[i].has_crc = true;
    }
    return FSDP_OK;
}

static int take_unit(struct ckpt_manifest *m, const struct ckpt_job *job, int index,
                     struct fsdp_err *err)
{
    const struct ckpt_unit *from = &job->ckpt->m.units[index];
    const struct ckpt_job_cut *cut = &job->cuts[index];
    if (!cut->ntensors)
        return FSDP_OK;
    struct ckpt_unit *to = &m->units[m->nunits++];
    to->trainable = from->trainable;
    to->name = fsdp_strdup(from->name, err);
    to->tensors = fsdp_alloc((size_t)cut->ntensors, sizeof *to->tensors, "unit", err);
    if (!to->name || !to->tensors)
        return FSDP_ENOMEM;
    for (int i = 0; i < cut->ntensors; i++)
        to->tensors[to->ntensors++] = ckpt_layout_find(&m->layout, cut->tensors[i].name);
    return FSDP_OK;
}

static int take_units(struct ckpt_manifest *m, const struct ckpt_job *job, struct fsdp_err *err)
{
    int nunits = job->ckpt->m.nunits;
    m->units = fsdp_alloc((size_t)nunits, sizeof *m->units, "units", err);
    if (!m->units)
        return FSDP_ENOMEM;
    for (int i = 0; i < nunits; i++)
        FSDP_TRY(take_unit(m, job, i, err));
    return FSDP_OK;
}

/* The slots of the optimizer's tensors: "exp_avg" of "state.<parameter>.exp_avg". */
static int take_optim(struct ckpt_manifest *m, const struct ckpt_job *job, struct fsdp_err *err)
{
    m->optim = fsdp_alloc(CKPT_MAX_OPTIM, sizeof *m->optim, "optim", err);
    if (!m->optim)
        return FSDP_ENOMEM;
    for (int i = 0; i < job->ntensors && m->noptim < CKPT_MAX_OPTIM; i++) {
        const struct ckpt_job_tensor *t = &job->tensors[i];
        const char *dot = strrchr(t->tensor.name, '.');
        bool known = t->kind != FSDP_SLICE_OPTIM || !dot;
        for (int k = 0; !known && k < m->noptim; k++)
            known = !strcmp(m->optim[k].name, dot + 1);
        if (known)
            continue;
        if (!(m->optim[m->noptim].name = fsdp_strdup(dot + 1, err)))
            return FSDP_ENOMEM;
        m->optim[m->noptim].kind = ckpt_job_slot_kind(job, t);
        m->noptim++;
    }
    return FSDP_OK;
}

/* Other names of tensors that are still there. */
static int take_aliases(struct ckpt_manifest *m, const struct ckpt_job *job, struct fsdp_err *err)
{
    m->aliases = fsdp_alloc((size_t)job->naliases, sizeof *m->aliases, "aliases", err);
    if (!m->aliases)
        return FSDP_ENOMEM;
    for (int i = 0; i < job->naliases; i++) {
        int target = ckpt_job_find_stored(job, job->aliases[i].stored);
        if (target < 0 || ckpt_layout_find(&m->layout, job->aliases[i].name) >= 0)
            continue;
        struct ckpt_alias *alias = &m->aliases[m->naliases++];
        alias->name = fsdp_strdup(job->aliases[i].name, err);
        alias->target = fsdp_strdup(job->tensors[target].tensor.name, err);
        if (!alias->name || !alias->target)
            return FSDP_ENOMEM;
    }
    return FSDP_OK;
}

static int take_extras(struct ckpt_manifest *m, const struct ckpt_job *job,
                       const struct ckpt_extra *extras, int nextras, struct fsdp_err *err)
{
    if (!(m->extras = fsdp_alloc((size_t)nextras, sizeof *m->extras, "extras", err)))
        return FSDP_ENOMEM;
    for (int i = 0; i < nextras; i++) {
        m->extras[i] = (struct ckpt_extra){.nbytes = extras[i].nbytes, .crc32c = extras[i].crc32c};
        m->nextras++;
        if (!(m->extras[i].path = ckpt_commit_listed(&job->commit, extras[i].path, err)))
            return FSDP_ENOMEM;
    }
    return FSDP_OK;
}

static int fill_manifest(struct ckpt_manifest *m, const struct ckpt_job *job,
                         const struct ckpt_extra *extras, int nextras, struct fsdp_err *err)
{
    const struct ckpt_manifest *from = &job->ckpt->m;
    name_uuid(m->uuid, job->key);
    m->step = from->step;
    m->shard_size = job->args->shard_size;
    m->replicate_size = job->args->replicate_size;
    FSDP_TRY(take_tensors(m, job, err));
    FSDP_TRY(take_files(m, job, err));
    FSDP_TRY(take_units(m, job, err));
    FSDP_TRY(take_optim(m, job, err));
    FSDP_TRY(take_aliases(m, job, err));
    FSDP_TRY(take_extras(m, job, extras, nextras, err));
    if (from->state_json && !(m->state_json = fsdp_strdup(from->state_json, err)))
        return FSDP_ENOMEM;
    return FSDP_OK;
}

static int sync_folders(const struct ckpt_job *job, struct fsdp_err *err)
{
    static const char *const below[] = {"model", "optim"};
    for (int i = 0; i < 2; i++) {
        char *path = ckpt_path_join(job->commit.out, below[i], err);
        int rc = path ? ckpt_store_sync_folder(job->store, path, err) : FSDP_ENOMEM;
        fsdp_free(path);
        FSDP_TRY(rc);
    }
    return FSDP_OK;
}

static int write_manifest(struct ckpt_job *job, const struct ckpt_extra *extras, int nextras,
                          struct fsdp_err *err)
{
    struct ckpt_manifest m;
    memset(&m, 0, sizeof m);
    char *path = ckpt_commit_manifest(&job->commit, err), *text = NULL;
    size_t nbytes;
    int rc = path ? fill_manifest(&m, job, extras, nextras, err) : FSDP_ENOMEM;
    if (rc == FSDP_OK)
        rc = sync_folders(job, err);
    if (rc == FSDP_OK)
        rc = ckpt_manifest_format(&text, &nbytes, &m, err);
    if (rc == FSDP_OK) { /* what cannot be read is not published */
        ckpt_manifest_free(&m);
        rc = ckpt_manifest_parse(&m, text, nbytes, path, err);
    }
    if (rc == FSDP_OK)
        rc = ckpt_commit_put_manifest(&job->commit, text, nbytes, job->args->overwrite, err);
    ckpt_manifest_free(&m);
    fsdp_free(text);
    fsdp_free(path);
    return rc;
}

static char *name_file(const struct ckpt_job *job, int rank, int kind, struct fsdp_err *err)
{
    return ckpt_shard_name(kind, rank, job->args->compress == CKPT_COMPRESS_ZSTD, err);
}

static const char *const folders[] = {"model", "optim", NULL};

const struct ckpt_writer_ops ckpt_writer_native = {
    .id = CKPT_OUTPUT_NATIVE,
    .place = CKPT_PLACE_NATIVE,
    .sharded = true,
    .by_kind = true,
    .own_folder = true,
    .compresses = true,
    .as_stored = true,
    .folders = folders,
    .extras_folder = "hf",
    .file_name = name_file,
    .finish = write_manifest,
};
