/* SPDX-License-Identifier: Apache-2.0 */
/* What the output is called, what must not be overwritten, and the folder that it grows in. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ckpt/adapter.h"
#include "average/average.h"
#include "file/zst.h"
#include "format/hf/hf_names.h"
#include "writer.h"
#include "keep/target.h"
#include "keep/tree.h"

static int refuse_existing(const struct ckpt_job *job, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EEXIST, "'%s' already exists (--overwrite replaces it)",
                        job->commit.final);
}

int ckpt_job_prove_target(const struct ckpt_job *job, struct fsdp_err *err)
{
    const struct ckpt_target target = {.store = job->store,
                                       .path = job->commit.final,
                                       .place = job->writer->place,
                                       .extras = &job->ckpt->m};
    return ckpt_target_prove(&target, err);
}

struct ckpt_temp ckpt_job_temp(const struct ckpt_job *job)
{
    return (struct ckpt_temp){.store = job->store,
                              .final = job->commit.final,
                              .folder = job->commit.temp,
                              .out = job->commit.out,
                              .job = job->key,
                              .extras = &job->ckpt->m};
}

/* Where no folder can be replaced at one instant: but one file, or what one manifest names. */
static int refuse_in_place(bool *done, const struct ckpt_job *job, struct fsdp_err *err)
{
    const bool hidden = ckpt_commit_is_hidden(&job->commit);
    bool taken;
    FSDP_TRY(ckpt_commit_is_taken(&taken, &job->commit, err));
    if (taken && job->notes.found && ckpt_commit_is_there(done, &job->commit, NULL))
        *done = false;
    if (!taken || *done || (job->notes.found && !hidden)) /* the files there are this job's */
        return FSDP_OK;
    if (!job->args->overwrite)
        return refuse_existing(job, err);
    if (!hidden && job->folder)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "'%s' exists, and store '%s' cannot replace a folder at one instant: "
                            "remove it, or name another",
                            job->commit.final, job->store->name);
    return ckpt_job_prove_target(job, err);
}

int ckpt_job_refuse(bool *done, struct ckpt_job *job, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    struct fsdp_err quiet;
    *done = false;
    if (!ckpt_store_can_rename(job->store))
        return refuse_in_place(done, job, err);
    int rc = ckpt_store_stat(&st, job->store, job->commit.final, &quiet);
    if (rc == FSDP_ENOTFOUND)
        return FSDP_OK;
    if (rc)
        return fsdp_err_pass(err, rc, &quiet);
    FSDP_TRY(ckpt_target_refuse_special(job->store, job->commit.final, err));
    if (st.is_folder != job->folder)
        return fsdp_err_set(err, FSDP_EEXIST, "'%s' exists and is a %s", job->commit.final,
                            st.is_folder ? "folder" : "file");
    struct ckpt_temp temp = ckpt_job_temp(job);
    FSDP_TRY(ckpt_temp_was_published(done, &temp, err));
    *done &= !job->args->overwrite;
    if (*done)
        return FSDP_OK;
    if (job->args->overwrite)
        return ckpt_job_prove_target(job, err);
    struct ckpt_names names = {0};
    if (job->folder) /* an empty one is as good as none */
        FSDP_TRY(ckpt_store_names(&names, job->store, job->commit.final, err));
    bool full = !job->folder || names.nnames;
    ckpt_names_free(&names);
    return full ? refuse_existing(job, err) : FSDP_OK;
}

/* Whoever names such a file does not want a folder of that name. */
static int refuse_other_file(const struct ckpt_job *job, struct fsdp_err *err)
{
    static const struct {
        const char *end, *of;
    } files[] = {{".pt", "torch.save"},  {".pth", "torch.save"},
                 {".bin", "torch.save"}, {".safetensors", "safetensors"},
                 {".ckpt", "Lightning"}, {".npz", "NumPy"},
                 {".onnx", "ONNX"},      {".h5", "Keras"}};
    const char *name = job->args->out, *end = strrchr(ckpt_path_base(name), '.');
    for (size_t i = 0; end && i < sizeof files / sizeof files[0]; i++)
        if (!strcasecmp(end, files[i].end))
            return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                "'%s': files of %s are not written here; name a file that ends in "
                                "%s, or a folder",
                                name, files[i].of, job->writer->file_ends);
    return FSDP_OK;
}

/* Adapters are not touched by what is made with them. */
static int refuse_adapters(const struct ckpt_job *job, struct fsdp_err *err)
{
    const struct ckpt *of;
    const char *folder;

    for (int i = 0; job->args->adapters; i++) {
        if (!(folder = ckpt_adapters_folder(job->args->adapters, i, &of)))
            break;
        if (of->store == job->store)
            FSDP_TRY(
                ckpt_target_refuse_within(folder, "adapter", job->commit.final, job->store, err));
        FSDP_TRY(ckpt_target_refuse_input(of, job->commit.final, job->store, err));
    }
    return FSDP_OK;
}

int ckpt_job_name(struct ckpt_job *job, struct fsdp_err *err)
{
    FSDP_TRY(ckpt_store_of(&job->store, job->args->out, err));
    if (job->writer->single_file && ckpt_codec_is_name(job->args->out))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%s': merged weights are not compressed",
                            job->args->out);
    job->folder = !job->writer->file_only &&
                  (!job->writer->names_file || !job->writer->names_file(job->args->out));
    if (job->folder && job->writer->names_file)
        FSDP_TRY(refuse_other_file(job, err));
    if (!(job->commit.final = fsdp_strdup(job->args->out, err)))
        return FSDP_ENOMEM;
    for (size_t len = strlen(job->commit.final); len > 1 && job->commit.final[len - 1] == '/';
         len--)
        job->commit.final[len - 1] = 0;
    const char *base = ckpt_path_base(job->commit.final);
    if (!*base || !strcmp(base, ".") || !strcmp(base, ".."))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s' cannot be replaced as a whole; name a new folder",
                            job->commit.final);
    FSDP_TRY(ckpt_target_resolve(&job->commit.final, job->store, err));
    FSDP_TRY(refuse_adapters(job, err));
    const struct ckpt *of;
    for (int i = 1; job->args->average; i++) {
        if (!(of = ckpt_average_member(job->args->average, i)))
            break;
        FSDP_TRY(ckpt_target_refuse_input(of, job->commit.final, job->store, err));
    }
    return ckpt_target_refuse_input(job->ckpt, job->commit.final, job->store, err);
}

/* ---- the temporary folder -------------------------------------------------------------------- */

static uint64_t hash_text(uint64_t hash, const char *text)
{
    return text ? fsdp_hash(hash, text, strlen(text) + 1) : fsdp_hash(hash, "\1", 1);
}

/* All that decides the bytes of the output and the ranges they are written in. */
static int make_key(struct ckpt_job *job, struct fsdp_err *err)
{
    const struct ckpt_reshard_args *args = job->args;
    uint64_t hash = hash_text(FSDP_HASH_SEED, FSDP_VERSION_STRING);
    uint64_t numbers[] = {args->output,
                          args->compress == CKPT_COMPRESS_ZSTD,
                          (uint64_t)args->shard_size,
                          job->budget.block_nbytes,
                          (uint64_t)args->replicate_size,
                          job->nbytes.written,
                          (uint64_t)job->nfiles,
                          (uint64_t)job->ntensors,
                          job->plan_hash,
                          args->card};

    FSDP_TRY(ckpt_source_hash(&hash, job->ckpt, err));
    if (args->adapters)
        FSDP_TRY(ckpt_adapters_hash(&hash, args->adapters, err));
    if (args->average)
        hash = ckpt_average_hash(args->average, hash);
    hash = fsdp_hash(hash, numbers, sizeof numbers);
    for (int i = 0; i < job->ntensors; i++) {
        const struct ckpt_job_tensor *t = &job->tensors[job->order[i]];
        hash = hash_text(hash, t->tensor.name);
        hash = fsdp_hash(hash, &t->tensor.dtype, sizeof t->tensor.dtype);
        hash = fsdp_hash(hash, t->tensor.shape, sizeof t->tensor.shape);
        if (t->encoding)
            hash = hash_text(hash, t->encoding->name);
    }
    for (int i = 0; i < job->nparts; i++) {
        const struct ckpt_job_part *part = &job->parts[i];
        uint64_t text[] = {(uint64_t)part->tensor,
                           part->row,
                           part->nrows,
                           part->src_row,
                           part->order,
                           part->group,
                           part->skip,
                           part->slab};
        hash = fsdp_hash(hash, text, sizeof text);
    }
    job->key = hash;
    return FSDP_OK;
}

static int check_space(const struct ckpt_job *job, const char *parent, struct fsdp_err *err)
{
    uint64_t space, need = job->nbytes.written, have = 0;
    FSDP_TRY(ckpt_store_space(&space, job->store, parent, err));
    for (int i = 0; job->folder && i < job->ckpt->m.nextras; i++)
        need += job->ckpt->m.extras[i].nbytes;
    /* An earlier run's files are there already. */
    for (int i = 0; i < job->nfiles; i++) {
        struct ckpt_store_stat st;
        struct fsdp_err quiet;
        char *path = *job->files[i].name ? ckpt_path_join(job->commit.out, job->files[i].name, err)
                                         : fsdp_strdup(job->commit.out, err);
        if (!path)
            return FSDP_ENOMEM;
        if (ckpt_store_stat(&st, job->store, path, &quiet) == FSDP_OK)
            have += st.nbytes;
        fsdp_free(path);
        if (!have)
            break;
    }
    if (space >= need || space >= need - (have < need ? have : need))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_ENOSPC,
                        "'%s' needs %llu bytes; the file system of '%s' has room for %llu: free "
                        "some, or name an output elsewhere",
                        job->commit.final, (unsigned long long)need, parent,
                        (unsigned long long)space);
}

/* Folders of the output; those of an earlier run are fine. */
static int make_folders(const struct ckpt_job *job, struct fsdp_err *err)
{
    const char *const *below = job->writer->folders;
    FSDP_TRY(ckpt_temp_mkdir(job->store, job->commit.temp, err));
    if (!job->folder)
        return FSDP_OK;
    FSDP_TRY(ckpt_temp_mkdir(job->store, job->commit.out, err));
    for (int i = 0; below && below[i]; i++) {
        char *path = ckpt_path_join(job->commit.out, below[i], err);
        int rc = path ? ckpt_temp_mkdir(job->store, path, err) : FSDP_ENOMEM;
        fsdp_free(path);
        FSDP_TRY(rc);
    }
    return FSDP_OK;
}

/* Two native jobs of one output do not meet, each in its attempt; two others would, and have one
 * place for their notes. */
static int name_notes(struct ckpt_job *job, struct fsdp_err *err)
{
    const char *final = job->commit.final;
    uint64_t name = job->writer->own_folder ? job->key : hash_text(FSDP_HASH_SEED, final);
    job->notes.folder = ckpt_temp_name(final, name, err);
    return job->notes.folder ? ckpt_job_notes_find(job, err) : FSDP_ENOMEM;
}

int ckpt_job_name_temp(struct ckpt_job *job, struct fsdp_err *err)
{
    FSDP_TRY(make_key(job, err));
    FSDP_TRY(ckpt_uuid_make(job->notes.attempt, err));
    if (!ckpt_store_can_append(job->store))
        FSDP_TRY(name_notes(job, err)); /* may know another attempt */
    struct ckpt_commit *commit = &job->commit;
    commit->store = job->store;
    commit->attempt = job->notes.attempt;
    commit->key = job->key;
    commit->folder = job->folder;
    commit->has_manifest = job->writer->own_folder;
    commit->sync = true;
    return ckpt_commit_begin(commit, err);
}

/* An earlier run with --overwrite was killed while two names were exchanged: `out` may be what it
 * had replaced. */
static int start_anew(struct ckpt_job *job, struct fsdp_err *err)
{
    ckpt_journal_close(&job->journal);
    FSDP_TRY(ckpt_store_remove_tree(job->store, job->commit.temp, err));
    FSDP_TRY(make_folders(job, err));
    struct ckpt_temp temp = ckpt_job_temp(job);
    return ckpt_temp_journal(&job->journal, &temp, err);
}

/* The folder that the output will be in, or the nearest one above that exists. */
static int parent_of(char **out, const struct ckpt_job *job, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    struct fsdp_err quiet;
    if (!(*out = ckpt_path_parent(job->commit.final, err)))
        return FSDP_ENOMEM;
    while (strcmp(*out, "/") && strcmp(*out, ".") &&
           ckpt_store_stat(&st, job->store, *out, &quiet) == FSDP_ENOTFOUND) {
        char *above = ckpt_path_parent(*out, err);
        fsdp_free(*out);
        if (!(*out = above))
            return FSDP_ENOMEM;
    }
    return FSDP_OK;
}

/* One file is there or not; of several, some may be left by a failure. */
static int begin_notes(struct ckpt_job *job, struct fsdp_err *err)
{
    if (!job->notes.found)
        FSDP_TRY(ckpt_job_notes_begin(job, err));
    else if (!job->folder)
        FSDP_TRY(ckpt_job_notes_share(job, err));
    job->made_temp = true;
    return FSDP_OK;
}

int ckpt_job_begin(struct ckpt_job *job, struct fsdp_err *err)
{
    char *parent;
    if (!job->commit.temp)
        return job->notes.folder && !job->args->dry_run ? begin_notes(job, err) : FSDP_OK;
    FSDP_TRY(parent_of(&parent, job, err));
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = check_space(job, parent, &why);
    fsdp_free(parent);
    if (job->args->dry_run && rc == FSDP_ENOSPC)
        fsdp_log(FSDP_LOG_WARN, "%s", why.text);
    else if (rc)
        return fsdp_err_pass(err, rc, &why);
    if (job->args->dry_run)
        return FSDP_OK;
    job->made_temp = true;
    FSDP_TRY(make_folders(job, err));
    struct ckpt_temp temp = ckpt_job_temp(job);
    if (job->folder && (rc = ckpt_temp_check_output(&temp, err))) {
        job->made_temp = rc != FSDP_EEXIST; /* what is there is somebody's */
        return rc;
    }
    rc = ckpt_temp_journal(&job->journal, &temp, err);
    job->made_temp = rc != FSDP_EEXIST; /* another process is at work in it */
    FSDP_TRY(rc);
    return job->journal.published && job->args->overwrite ? start_anew(job, err) : FSDP_OK;
}
