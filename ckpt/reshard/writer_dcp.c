/* SPDX-License-Identifier: Apache-2.0 */
/* Output for torch.distributed.checkpoint: the archives around the elements, and .metadata. */
#include "format/dcp/dcp.h"
#include "format/dcp/dcp_write.h"
#include "writer.h"
#include "file/sink.h"

static int measure_piece(struct ckpt_dcp_blob *out, const struct ckpt_job *job,
                         const struct ckpt_job_piece *piece, struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &job->tensors[piece->tensor].tensor;
    struct fsdp_box box = ckpt_job_piece_box(job, piece);
    return ckpt_dcp_blob_measure(out, t->dtype, box.length, t->ndim, err);
}

static int place_blobs(struct ckpt_job_piece *pieces, int npieces, struct ckpt_job *job, int file,
                       struct fsdp_err *err)
{
    uint64_t pos = 0, end = 0;
    for (int i = 0; i < npieces; i++) {
        struct ckpt_dcp_blob blob;
        FSDP_TRY(measure_piece(&blob, job, &pieces[i], err));
        pieces[i].pos = pos + blob.head_nbytes;
        pieces[i].nbytes = blob.data_nbytes;
        end = pos + blob.nbytes;
        pos = (end + CKPT_DCP_ALIGN - 1) / CKPT_DCP_ALIGN * CKPT_DCP_ALIGN;
    }
    job->files[file].nbytes = end;
    return FSDP_OK;
}

static int put_bytes(struct ckpt_job *job, int file, char *data, size_t nbytes, uint64_t pos,
                     struct fsdp_err *err)
{
    int rc = ckpt_job_sink_put(job->files[file].sink, data, nbytes, pos,
                               ckpt_crc32c(0, data, nbytes), err);
    fsdp_free(data);
    return rc;
}

/* Zeros up to the next archive: not every store has files with holes. */
static int fill_gap(struct ckpt_job *job, int file, uint64_t pos, struct fsdp_err *err)
{
    uint64_t end = (pos + CKPT_DCP_ALIGN - 1) / CKPT_DCP_ALIGN * CKPT_DCP_ALIGN;
    if (pos == end || end > job->files[file].nbytes)
        return FSDP_OK;
    char *zeros = fsdp_alloc((size_t)(end - pos), 1, "padding", err);
    return zeros ? put_bytes(job, file, zeros, (size_t)(end - pos), pos, err) : FSDP_ENOMEM;
}

static int wrap_blob(struct ckpt_job *job, int file, const struct ckpt_job_piece *piece,
                     uint32_t crc32, struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &job->tensors[piece->tensor].tensor;
    struct fsdp_box box = ckpt_job_piece_box(job, piece);
    struct ckpt_dcp_blob blob;
    FSDP_TRY(measure_piece(&blob, job, piece, err));
    struct ckpt_dcp_tag tag = ckpt_dcp_tag_of(job->files[file].name, piece->pos - blob.head_nbytes);
    size_t nbytes;
    char *data;
    FSDP_TRY(ckpt_dcp_blob_head(&data, &nbytes, &tag, t->dtype, box.length, t->ndim, err));
    FSDP_TRY(put_bytes(job, file, data, nbytes, piece->pos - nbytes, err));
    FSDP_TRY(ckpt_dcp_blob_tail(&data, &nbytes, &tag, t->dtype, box.length, t->ndim, crc32, err));
    FSDP_TRY(put_bytes(job, file, data, nbytes, piece->pos + piece->nbytes, err));
    return fill_gap(job, file, piece->pos + piece->nbytes + nbytes, err);
}

/* ---- .metadata ------------------------------------------------------------------------------- */

/* at[i]: the index in meta of output tensor i */
static int add_tensors(struct ckpt_dcp_meta *meta, int *at, const struct ckpt_job *job,
                       struct fsdp_err *err)
{
    for (int i = 0; i < job->ntensors; i++) {
        const struct ckpt_job_tensor *t = &job->tensors[i];
        struct fsdp_tensor tensor = t->tensor;
        if (t->stored)
            tensor.name = t->own;
        at[i] = ckpt_dcp_meta_tensor(meta, &tensor, t->role, t->stored, err);
        if (at[i] < 0)
            return at[i];
    }
    return FSDP_OK;
}

static int add_boxes(struct ckpt_dcp_meta *meta, const int *at, struct ckpt_job *job, int file,
                     struct fsdp_err *err)
{
    struct ckpt_job_piece *pieces;
    int npieces, rc = FSDP_OK;
    FSDP_TRY(ckpt_job_pieces(&pieces, &npieces, NULL, job, file, err));
    for (int i = 0; rc == FSDP_OK && i < npieces; i++) {
        struct fsdp_box box = ckpt_job_piece_box(job, &pieces[i]);
        struct ckpt_dcp_blob blob;
        rc = measure_piece(&blob, job, &pieces[i], err);
        if (rc == FSDP_OK)
            rc = ckpt_dcp_meta_box(meta, at[pieces[i].tensor], &box, job->files[file].name,
                                   pieces[i].pos - blob.head_nbytes, err);
    }
    fsdp_free(pieces);
    return rc;
}

static int add_aliases(struct ckpt_dcp_meta *meta, const int *at, const struct ckpt_job *job,
                       struct fsdp_err *err)
{
    for (int i = 0; i < job->naliases; i++) {
        int target = ckpt_job_find_stored(job, job->aliases[i].stored);
        if (target >= 0)
            FSDP_TRY(ckpt_dcp_meta_alias(meta, job->aliases[i].name, at[target], err));
    }
    return FSDP_OK;
}

static int put_named(const struct ckpt_job *job, const char *name, const char *data, size_t nbytes,
                     struct fsdp_err *err)
{
    char *path = ckpt_path_join(job->commit.out, name, err);
    int rc = path ? ckpt_store_replace(job->store, path, data, nbytes, err) : FSDP_ENOMEM;
    fsdp_free(path);
    return rc;
}

/* Counters and parameter groups, in a file behind those of the first rank. */
static int write_train(struct ckpt_dcp_meta *meta, const struct ckpt_job *job, struct fsdp_err *err)
{
    static const char name[] = "__0_1.distcp";
    struct ckpt_dcp_train train = {.step = job->ckpt->m.step,
                                   .state_json = job->ckpt->m.state_json,
                                   .whole = job->args->all && !job->args->select.ninclude};
    char *data = NULL;
    size_t nbytes = 0;
    for (int i = 0; i < job->ntensors; i++)
        train.optim |= job->tensors[i].role == CKPT_ROLE_OPTIM;
    FSDP_TRY(ckpt_dcp_meta_train(&data, &nbytes, meta, name, &train, err));
    int rc = nbytes ? put_named(job, name, data, nbytes, err) : FSDP_OK;
    fsdp_free(data);
    return rc;
}

/* The small files are none of torch's. */
static int write_metadata(struct ckpt_job *job, const struct ckpt_extra *extras, int nextras,
                          struct fsdp_err *err)
{
    (void)extras;
    (void)nextras;
    struct ckpt_dcp_meta *meta = NULL;
    int *at = fsdp_alloc((size_t)job->ntensors, sizeof *at, "metadata", err);
    char *data = NULL;
    size_t nbytes;
    int rc = at ? ckpt_dcp_meta_create(&meta, err) : FSDP_ENOMEM;
    if (rc == FSDP_OK)
        rc = add_tensors(meta, at, job, err);
    for (int i = 0; rc == FSDP_OK && i < job->nfiles; i++)
        rc = add_boxes(meta, at, job, i, err);
    if (rc == FSDP_OK)
        rc = add_aliases(meta, at, job, err);
    if (rc == FSDP_OK)
        rc = write_train(meta, job, err);
    if (rc == FSDP_OK)
        rc = ckpt_dcp_meta_format(&data, &nbytes, meta, err);
    if (rc == FSDP_OK)
        rc = put_named(job, ".metadata", data, nbytes, err);
    fsdp_free(data);
    ckpt_dcp_meta_free(meta);
    fsdp_free(at);
    return rc;
}

static char *name_file(const struct ckpt_job *job, int rank, int kind, struct fsdp_err *err)
{
    (void)job;
    (void)kind;
    return fsdp_sprintf(err, "__%d_0.distcp", rank);
}

const struct ckpt_writer_ops ckpt_writer_dcp = {
    .id = CKPT_OUTPUT_DCP,
    .place = CKPT_PLACE_DCP,
    .sharded = true,
    .containers = true,
    .any_name = true,
    .index_name = CKPT_DCP_METADATA_NAME,
    .file_name = name_file,
    .place_pieces = place_blobs,
    .wrap = wrap_blob,
    .finish = write_metadata,
};

/* ---- its Hugging Face layout ----------------------------------------------------------------- */

static char *name_hf_file(const struct ckpt_job *job, int rank, int kind, struct fsdp_err *err)
{
    (void)job;
    (void)kind;
    return fsdp_sprintf(err, "shard-%05d-model-00001-of-00001.safetensors", rank + 1);
}

const struct ckpt_writer_ops ckpt_writer_hf_dcp = {
    .id = CKPT_OUTPUT_HF_DCP,
    .place = CKPT_PLACE_HF,
    .sharded = true,
    .lists_empty = true, /* nothing else lists them */
    .file_name = name_hf_file,
};
