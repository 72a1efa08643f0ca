/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From output tensors to files. Whole tensors fill files one after the other; sharded output has a
 * file per rank and kind, cut as libfsdp cuts the units of the source's manifest, or evenly.
 */
#include <string.h>

#include "writer.h"
#include "save/saver.h"

static uint64_t nbytes_of(const struct ckpt_job_tensor *t)
{
    return ckpt_job_nbytes(t, fsdp_tensor_nelem(&t->tensor));
}

/* ---- the cut --------------------------------------------------------------------------------- */

/* first[i]: the first output tensor that begins with rows of stored tensor i, plus one. Those that
 * one stored tensor was split into follow each other. */
static int *first_outputs(const struct ckpt_job *job, struct fsdp_err *err)
{
    int *first = fsdp_alloc((size_t)job->ckpt->m.layout.ntensors, sizeof *first, "job cuts", err);
    for (int i = job->ntensors - 1; first && i >= 0; i--)
        first[job->parts[job->tensors[i].first_part].tensor] = i + 1;
    return first;
}

static bool begins_with(const struct ckpt_job *job, int tensor, int stored)
{
    return tensor < job->ntensors && job->parts[job->tensors[tensor].first_part].tensor == stored;
}

/* One unit's tensors in the order of its flat buffer, as far as they are in the output. */
static int make_cut(struct ckpt_job *job, int unit, const int *first, struct fsdp_err *err)
{
    const struct ckpt_unit *stored = &job->ckpt->m.units[unit];
    struct ckpt_job_cut *cut = &job->cuts[unit];
    size_t count = 0;
    for (int i = 0; i < stored->ntensors; i++)
        for (int t = first[stored->tensors[i]] - 1;
             t >= 0 && begins_with(job, t, stored->tensors[i]); t++)
            count++;
    if (!(cut->tensors = fsdp_alloc(count, sizeof *cut->tensors, "job cut", err)))
        return FSDP_ENOMEM;
    for (int i = 0; i < stored->ntensors; i++) {
        for (int t = first[stored->tensors[i]] - 1;
             t >= 0 && begins_with(job, t, stored->tensors[i]); t++) {
            job->tensors[t].unit = unit;
            job->cut_index[t] = cut->ntensors;
            cut->tensors[cut->ntensors++] = job->tensors[t].tensor;
        }
    }
    return fsdp_cut_create(&cut->cut, cut->tensors, cut->ntensors, job->args->shard_size, err);
}

static int make_cuts(struct ckpt_job *job, struct fsdp_err *err)
{
    int nunits = job->ckpt->m.nunits, rc = FSDP_OK, *first;
    job->cuts = fsdp_alloc((size_t)nunits, sizeof *job->cuts, "job cuts", err);
    job->cut_index = fsdp_alloc((size_t)job->ntensors, sizeof *job->cut_index, "job cuts", err);
    if (!job->cuts || !job->cut_index || !(first = first_outputs(job, err)))
        return FSDP_ENOMEM;
    for (int u = 0; rc == FSDP_OK && u < nunits; u++)
        rc = make_cut(job, u, first, err);
    fsdp_free(first);
    return rc;
}

static bool same_shape(const struct fsdp_tensor *a, const struct fsdp_tensor *b)
{
    return a->ndim == b->ndim && !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape);
}

/* As FSDP2 cuts: equal parts of ceil(rows / ranks) rows, the last ones shorter or empty. A scalar
 * is the first rank's. */
static uint64_t even_box(struct fsdp_box *out, const struct fsdp_tensor *t, int nranks, int rank)
{
    *out = ckpt_box_whole(t);
    if (!t->ndim)
        return rank == 0;
    uint64_t each = (t->shape[0] + (uint64_t)nranks - 1) / (uint64_t)nranks;
    uint64_t begin = each * (uint64_t)rank, end = begin + each;
    begin = begin < t->shape[0] ? begin : t->shape[0];
    end = end < t->shape[0] ? end : t->shape[0];
    out->offset[0] = begin;
    out->length[0] = end - begin;
    return fsdp_box_nelem(out, t->ndim);
}

/* What a rank's file holds of a tensor; returns the number of elements. */
static uint64_t rank_box(struct fsdp_box *out, const struct ckpt_job *job, int tensor, int rank)
{
    const struct ckpt_job_tensor *t = &job->tensors[tensor];
    const struct ckpt_job_tensor *param = t->param >= 0 ? &job->tensors[t->param] : NULL;
    int shard = rank % job->args->shard_size;
    struct fsdp_box box;
    uint64_t pos, nelem;

    const struct fsdp_slot slot = {.dtype = t->tensor.dtype, .kind = ckpt_job_slot_kind(job, t)};
    const struct fsdp_tensor shaped = param ? fsdp_slot_tensor(&slot, &param->tensor) : t->tensor;

    if (param && param->unit >= 0 && same_shape(&t->tensor, &shaped)) {
        const struct ckpt_job_cut *cut = &job->cuts[param->unit];
        const struct fsdp_box none = {{0}, {0}};
        box = none;
        nelem = fsdp_cut_box(&box, &pos, &cut->cut, cut->tensors, job->cut_index[t->param], shard);
        struct fsdp_box whole = box;
        nelem = fsdp_slot_box(&box, &slot, &param->tensor, &whole, nelem);
        if (nelem && fsdp_slot_is_shared(&slot, &param->tensor))
            return ckpt_replica_part(out, &box, t->tensor.ndim, rank,
                                     job->args->shard_size * job->args->replicate_size);
    } else {
        nelem = even_box(&box, &t->tensor, job->args->shard_size, shard);
    }
    if (!nelem)
        return 0;
    return ckpt_replica_part(out, &box, t->tensor.ndim, rank / job->args->shard_size,
                             job->args->replicate_size);
}

/* ---- pieces and headers ---------------------------------------------------------------------- */

static int add_piece(struct ckpt_job_piece *out, struct ckpt_st_entry *entry,
                     struct ckpt_pool *dims, const struct ckpt_job *job, int tensor,
                     const struct fsdp_box *box, struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &job->tensors[tensor].tensor;
    *out = (struct ckpt_job_piece){.tensor = tensor,
                                   .row = t->ndim ? box->offset[0] : 0,
                                   .nrows = t->ndim ? box->length[0] : 1};
    *entry = (struct ckpt_st_entry){.name = t->name,
                                    .dtype = (uint8_t)t->dtype,
                                    .ndim = (uint8_t)t->ndim,
                                    .shape = ckpt_pool_dims(dims, box->length, t->ndim, err),
                                    .offset = ckpt_pool_dims(dims, box->offset, t->ndim, err),
                                    .global_shape = t->shape};
    return entry->shape && entry->offset ? FSDP_OK : FSDP_ENOMEM;
}

/* entries' shapes are kept in dims. */
static int list_pieces(int *npieces, struct ckpt_job_piece *out, struct ckpt_st_entry *entries,
                       struct ckpt_pool *dims, const struct ckpt_job *job,
                       const struct ckpt_job_file *file, struct fsdp_err *err)
{
    int count = 0;
    struct fsdp_box box;
    for (int i = 0; i < job->ntensors; i++) {
        int tensor = job->order[i];
        const struct ckpt_job_tensor *t = &job->tensors[tensor];
        if (job->writer->sharded) {
            bool mine = file->kind < 0 || (int)t->kind == file->kind;
            /* Where nothing else lists the tensors, one without elements is the first rank's. */
            bool lists =
                job->writer->lists_empty && file->rank == 0 && !fsdp_tensor_nelem(&t->tensor);
            if (!mine || (!rank_box(&box, job, tensor, file->rank) && !lists))
                continue;
            if (lists)
                box = ckpt_box_whole(&t->tensor);
        } else {
            if (i < file->first || i >= file->first + file->ntensors)
                continue;
            box = ckpt_box_whole(&t->tensor);
        }
        FSDP_TRY(add_piece(&out[count], &entries[count], dims, job, tensor, &box, err));
        count++;
    }
    *npieces = count;
    return FSDP_OK;
}

/* Header and places of a safetensors file. */
static int place_pieces(struct ckpt_job_piece *pieces, struct ckpt_st_entry *entries, int npieces,
                        char **header, struct ckpt_job *job, struct ckpt_job_file *file,
                        struct fsdp_err *err)
{
    size_t header_nbytes;
    FSDP_TRY(ckpt_st_format(header, &header_nbytes, entries, npieces, job->writer->sharded, err));
    file->nbytes = file->header_nbytes = header_nbytes;
    for (int i = 0; i < npieces; i++) {
        pieces[i].pos = entries[i].pos;
        pieces[i].nbytes = entries[i].nbytes;
        file->nbytes += entries[i].nbytes;
    }
    return FSDP_OK;
}

int ckpt_job_pieces(struct ckpt_job_piece **out, int *npieces, char **header, struct ckpt_job *job,
                    int index, struct fsdp_err *err)
{
    struct ckpt_job_file *file = &job->files[index];
    struct ckpt_job_piece *pieces =
        fsdp_alloc((size_t)job->ntensors, sizeof *pieces, "job pieces", err);
    struct ckpt_st_entry *entries =
        fsdp_alloc((size_t)job->ntensors, sizeof *entries, "header entries", err);
    struct ckpt_pool dims = {0};
    char *text = NULL;
    int rc = FSDP_ENOMEM, count = 0;

    if (pieces && entries)
        rc = list_pieces(&count, pieces, entries, &dims, job, file, err);
    if (rc == FSDP_OK) {
        file->nbytes = file->header_nbytes = 0;
        if (!count)
            rc = FSDP_OK;
        else if (job->writer->place_pieces)
            rc = job->writer->place_pieces(pieces, count, job, index, err);
        else
            rc = place_pieces(pieces, entries, count, &text, job, file, err);
    }
    if (rc == FSDP_OK && count && header && job->writer->header &&
        !(text = job->writer->header(job, index, err)))
        rc = FSDP_ENOMEM;
    fsdp_free(entries);
    ckpt_pool_free(&dims);
    if (rc) {
        fsdp_free(pieces);
        return rc;
    }
    *out = pieces;
    *npieces = count;
    if (header)
        *header = text;
    else
        fsdp_free(text);
    return FSDP_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Whole tensors in order; a new file where the limit would be passed. */
static int cut_files(struct ckpt_job *job, struct fsdp_err *err)
{
    uint64_t most =
        job->folder && job->args->max_shard_nbytes ? job->args->max_shard_nbytes : UINT64_MAX;
    uint64_t filled = 0;
    size_t max = 0;
    for (int i = 0; i < job->ntensors; i++) {
        uint64_t nbytes = nbytes_of(&job->tensors[job->order[i]]);
        if (!i || (filled && (filled > most || nbytes > most - filled))) {
            struct ckpt_job_file *files = fsdp_alloc_grow(job->files, (size_t)job->nfiles, &max,
                                                          sizeof *files, "job files", err);
            if (!files)
                return FSDP_ENOMEM;
            job->files = files;
            job->files[job->nfiles++] = (struct ckpt_job_file){.first = i};
            filled = 0;
        }
        filled += nbytes;
        job->files[job->nfiles - 1].ntensors++;
    }
    for (int i = 0; i < job->nfiles; i++) {
        job->files[i].name = !job->folder ? fsdp_strdup("", err)
                             : job->nfiles == 1
                                 ? fsdp_sprintf(err, "%s%s", job->writer->stem, job->writer->ext)
                                 : fsdp_sprintf(err, "%s-%05d-of-%05d%s", job->writer->stem, i + 1,
                                                job->nfiles, job->writer->ext);
        if (!job->files[i].name)
            return FSDP_ENOMEM;
    }
    return FSDP_OK;
}

static int rank_files(struct ckpt_job *job, struct fsdp_err *err)
{
    int64_t nranks = (int64_t)job->args->shard_size * job->args->replicate_size;
    const bool by_kind = job->writer->by_kind;
    job->files = fsdp_alloc((size_t)nranks * CKPT_NKINDS, sizeof *job->files, "job files", err);
    if (!job->files)
        return FSDP_ENOMEM;
    FSDP_TRY(make_cuts(job, err));
    for (int rank = 0; rank < nranks; rank++) {
        for (int kind = by_kind ? 0 : -1; kind < (by_kind ? CKPT_NKINDS : 0); kind++) {
            struct ckpt_job_file *file = &job->files[job->nfiles++];
            *file = (struct ckpt_job_file){.rank = rank, .kind = kind};
            if (!(file->name = job->writer->file_name(job, rank, kind, err)))
                return FSDP_ENOMEM;
        }
    }
    return FSDP_OK;
}

int ckpt_job_arrange(struct ckpt_job *job, struct fsdp_err *err)
{
    int nfiles = 0;
    FSDP_TRY(job->writer->sharded ? rank_files(job, err) : cut_files(job, err));
    for (int i = 0; i < job->nfiles; i++) {
        struct ckpt_job_piece *pieces;
        struct ckpt_job_file *file = &job->files[i];
        int npieces;
        FSDP_TRY(ckpt_job_pieces(&pieces, &npieces, NULL, job, i, err));
        fsdp_free(pieces);
        if (!file->nbytes) { /* a rank that holds nothing of a kind writes no file of it */
            fsdp_free(file->name);
            file->name = NULL;
            continue;
        }
        job->nbytes.written += file->nbytes;
        struct ckpt_job_file kept = *file;
        file->name = NULL;
        job->files[nfiles++] = kept;
    }
    job->nfiles = nfiles;
    for (int i = 0; i < job->ntensors; i++)
        job->nbytes.total += nbytes_of(&job->tensors[i]);
    return FSDP_OK;
}

void ckpt_job_files_free(struct ckpt_job *job)
{
    for (int i = 0; job->cuts && i < job->ckpt->m.nunits; i++) {
        fsdp_cut_destroy(&job->cuts[i].cut);
        fsdp_free(job->cuts[i].tensors);
    }
    for (int i = 0; i < job->nfiles; i++)
        fsdp_free(job->files[i].name);
    fsdp_free(job->cuts);
    fsdp_free(job->cut_index);
    fsdp_free(job->files);
}
