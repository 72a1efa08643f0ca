/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where source and output lie in one object store, the store can make a part of an output file out
 * of a range of a source file, and the bytes need not pass through here. The proof is the CRC-32C
 * that the manifest has of each source file. It is the xor of what its ranges contribute: the
 * header, which is read; what passed through here, which is summed; and what the store copied, of
 * which it tells the CRC-32C. So a source file takes part if all its bytes reach the output
 * unchanged, each once. A part of an output file is copied if all of it is one range of one such
 * file. Where a sum differs, nothing of the output was visible yet, and all bytes pass through here
 * after all, so that the fingerprints of the tensors decide.
 */
#include <string.h>

#include "file/sink.h"
#include "source/format_ops.h"
#include "util/crc.h"
#include "writer.h"

enum { SHARED = -2, NONE = -1, HEADER_NBYTES = 1 << 20 };

/* ---- which source files ---------------------------------------------------------------------- */

static bool is_copied(const struct ckpt_job *job, const struct ckpt_job_tensor *t)
{
    const struct ckpt_job_part *part = &job->parts[t->first_part];
    const struct ckpt_tensor *stored = &job->ckpt->m.layout.tensors[part->tensor];
    const struct fsdp_tensor *from = &stored->tensor, *to = &t->tensor;
    return t->form == CKPT_FORM_VALUES && !t->encoding && t->offset == 0 && t->nparts == 1 &&
           stored->has_fingerprint && from->dtype == to->dtype && from->ndim == to->ndim &&
           !memcmp(from->shape, to->shape, (size_t)to->ndim * sizeof *to->shape) &&
           part->order == CKPT_ROWS_SAME && !part->skip && !part->in_slab && !part->row &&
           !part->src_row && part->nrows == (to->ndim ? to->shape[0] : 1);
}

/* of[stored]: the output tensor that is a copy of it; NONE or SHARED where that is not all. */
static int *find_copied(const struct ckpt_job *job, struct fsdp_err *err)
{
    const int count = job->ckpt->m.layout.ntensors;
    int *of = fsdp_alloc((size_t)count, sizeof *of, "copied tensors", err);
    for (int i = 0; of && i < count; i++)
        of[i] = NONE;
    for (int t = 0; of && t < job->ntensors; t++)
        for (int p = 0; p < job->tensors[t].nparts; p++) {
            int *at = &of[job->parts[job->tensors[t].first_part + p].tensor];
            *at = *at == NONE && is_copied(job, &job->tensors[t]) ? t : SHARED;
        }
    return of;
}

/* Does the box lie in rows of the tensor, so that rows of it are ranges of the file? */
static bool is_rows(const struct ckpt_piece *piece, const struct fsdp_tensor *t)
{
    bool rows = !piece->blob_nbytes;
    for (int d = 1; rows && d < t->ndim; d++)
        rows = piece->length[d] == t->shape[d];
    return rows;
}

static uint64_t row_nbytes(const struct fsdp_tensor *t)
{
    return fsdp_tensor_row_nelem(t) * fsdp_dtype_nbytes(t->dtype);
}

static uint64_t piece_rows(const struct ckpt_piece *piece, const struct fsdp_tensor *t)
{
    return t->ndim ? piece->length[0] : 1;
}

static void choose_sources(struct ckpt_job *job, const int *of)
{
    const struct ckpt_layout *layout = &job->ckpt->m.layout;
    struct ckpt_job_source *sources = job->copies.sources;
    for (int f = 0; f < layout->nfiles; f++)
        sources[f] = (struct ckpt_job_source){.fits = layout->files[f].has_crc &&
                                                      !ckpt_codec_is_name(layout->files[f].path)};
    for (size_t i = 0; i < layout->npieces; i++) {
        const struct ckpt_piece *piece = &layout->pieces[i];
        const struct fsdp_tensor *t = &layout->tensors[piece->tensor].tensor;
        sources[piece->file].fits &= of[piece->tensor] >= 0 && is_rows(piece, t);
        sources[piece->file].seen += piece_rows(piece, t) * row_nbytes(t);
    }
    for (int f = 0; f < layout->nfiles; f++) {
        const struct ckpt_layout_file *file = &layout->files[f];
        sources[f].fits &= sources[f].seen + file->header_nbytes == file->nbytes;
        sources[f].seen = 0;
    }
}

int ckpt_job_copies_plan(struct ckpt_job *job, struct fsdp_err *err)
{
    struct ckpt_job_copies *copies = &job->copies;
    ckpt_job_copies_free(job);
    if (copies->never || job->store != job->ckpt->store || !ckpt_store_is_far(job->store) ||
        job->writer->wrap || job->args->average || job->args->adapters || job->ckpt->npacked ||
        job->args->compress == CKPT_COMPRESS_ZSTD || !job->ckpt->format->has_manifest)
        return FSDP_OK;
    copies->sources = fsdp_alloc((size_t)job->ckpt->m.layout.nfiles, sizeof *copies->sources,
                                 "copied files", err);
    int *of = copies->sources ? find_copied(job, err) : NULL;
    if (!of)
        return FSDP_ENOMEM;
    choose_sources(job, of);
    fsdp_free(of);
    return FSDP_OK;
}

void ckpt_job_copies_free(struct ckpt_job *job)
{
    fsdp_free(job->copies.sources);
    job->copies.sources = NULL;
    job->copies.nbytes = 0;
}

/* ---- which ranges of an output file ---------------------------------------------------------- */

/* The first stored piece of a tensor that ends behind the row. */
static size_t first_piece(const struct ckpt_layout *layout, int tensor, uint64_t row)
{
    size_t low = layout->first[tensor], high = layout->first[tensor + 1];
    const struct fsdp_tensor *t = &layout->tensors[tensor].tensor;
    while (t->ndim && low < high) {
        const size_t mid = low + (high - low) / 2;
        if (layout->pieces[mid].offset[0] + layout->pieces[mid].length[0] <= row)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static int add_run(struct ckpt_job_runs *runs, const struct ckpt_job_run *run, struct fsdp_err *err)
{
    struct ckpt_job_run *last = runs->nruns ? &runs->runs[runs->nruns - 1] : NULL;
    if (last && last->file == run->file && last->pos + last->nbytes == run->pos &&
        last->from + last->nbytes == run->from) {
        last->nbytes += run->nbytes;
        return FSDP_OK;
    }
    struct ckpt_job_run *grown =
        fsdp_alloc_grow(runs->runs, runs->nruns, &runs->max, sizeof *grown, "ranges", err);
    if (!grown)
        return FSDP_ENOMEM;
    runs->runs = grown;
    runs->runs[runs->nruns++] = *run;
    return FSDP_OK;
}

/* The ranges of source files that make up a piece of an output file. */
static int add_piece_runs(struct ckpt_job_runs *out, const struct ckpt_job *job,
                          const struct ckpt_job_piece *piece, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &job->ckpt->m.layout;
    const int stored = job->parts[job->tensors[piece->tensor].first_part].tensor;
    const struct fsdp_tensor *t = &layout->tensors[stored].tensor;
    const uint64_t each = row_nbytes(t), end = piece->row + piece->nrows;
    size_t i = first_piece(layout, stored, piece->row);
    for (; i < layout->first[stored + 1]; i++) {
        const struct ckpt_piece *from = &layout->pieces[i];
        const uint64_t first = t->ndim ? from->offset[0] : 0;
        uint64_t begin = first > piece->row ? first : piece->row;
        uint64_t stop = first + piece_rows(from, t);
        stop = stop < end ? stop : end;
        if (begin >= stop)
            break;
        const struct ckpt_job_run run = {.pos = piece->pos + (begin - piece->row) * each,
                                         .nbytes = (stop - begin) * each,
                                         .file = from->file,
                                         .from = from->pos + (begin - first) * each};
        if (job->copies.sources[from->file].fits)
            FSDP_TRY(add_run(out, &run, err));
    }
    return FSDP_OK;
}

/* Is it between two elements? */
static bool is_between(const struct ckpt_job *job, const struct ckpt_job_piece *pieces, int npieces,
                       uint64_t pos)
{
    int low = 0, high = npieces;
    while (low < high) { /* the last piece that begins at or before pos */
        const int mid = low + (high - low) / 2;
        if (pieces[mid].pos <= pos)
            low = mid + 1;
        else
            high = mid;
    }
    if (!low)
        return false;
    const struct ckpt_job_piece *piece = &pieces[low - 1];
    return (pos - piece->pos) % fsdp_dtype_nbytes(job->tensors[piece->tensor].tensor.dtype) == 0;
}

static int add_copies(struct ckpt_job_runs *out, const struct ckpt_job_run *run,
                      const struct ckpt_job *job, const struct ckpt_job_piece *pieces, int npieces,
                      struct ckpt_job_sink *sink, struct fsdp_err *err)
{
    uint64_t begin, nbytes, at = run->pos;
    const uint64_t end = run->pos + run->nbytes;
    for (; at < end && ckpt_job_sink_part_at(&begin, &nbytes, sink, at); at = begin + nbytes) {
        const struct ckpt_job_run copy = {.pos = begin,
                                          .nbytes = nbytes,
                                          .file = run->file,
                                          .from = run->from + (begin - run->pos)};
        if (begin < run->pos)
            continue;
        if (nbytes > end - begin)
            break;
        if (is_between(job, pieces, npieces, begin) &&
            is_between(job, pieces, npieces, begin + nbytes)) {
            struct ckpt_job_run *grown =
                fsdp_alloc_grow(out->runs, out->nruns, &out->max, sizeof *grown, "ranges", err);
            if (!grown)
                return FSDP_ENOMEM;
            out->runs = grown;
            out->runs[out->nruns++] = copy;
        }
    }
    return FSDP_OK;
}

int ckpt_job_copies_of(struct ckpt_job_runs *runs, struct ckpt_job_runs *copies,
                       const struct ckpt_job *job, const struct ckpt_job_piece *pieces, int npieces,
                       struct ckpt_job_sink *sink, struct fsdp_err *err)
{
    for (int i = 0; job->copies.sources && i < npieces; i++)
        if (pieces[i].nbytes)
            FSDP_TRY(add_piece_runs(runs, job, &pieces[i], err));
    for (size_t i = 0; i < runs->nruns; i++)
        FSDP_TRY(add_copies(copies, &runs->runs[i], job, pieces, npieces, sink, err));
    return FSDP_OK;
}

void ckpt_job_runs_free(struct ckpt_job_runs *runs)
{
    fsdp_free(runs->runs);
    memset(runs, 0, sizeof *runs);
}

/* ---- the proof ------------------------------------------------------------------------------- */

struct ckpt_job_share ckpt_job_copies_share(const struct ckpt_job *job, int file, uint64_t from,
                                            uint64_t nbytes, uint32_t crc32c, bool copied)
{
    const uint64_t behind = job->ckpt->m.layout.files[file].nbytes - from - nbytes;
    return (struct ckpt_job_share){.tensor = copied ? CKPT_SHARE_COPIED : CKPT_SHARE_PASSED,
                                   .stored = file,
                                   .nelem = nbytes,
                                   .read = ckpt_crc32c_shift(crc32c, behind)};
}

void ckpt_job_copies_add(struct ckpt_job *job, const struct ckpt_job_share *share)
{
    struct ckpt_job_source *source = &job->copies.sources[share->stored];
    const bool copied = share->tensor == CKPT_SHARE_COPIED;
    source->crc32c ^= (uint32_t)share->read;
    source->seen += share->nelem;
    source->copied |= copied;
    job->copies.nbytes += copied ? share->nelem : 0;
}

static int sum_header(uint32_t *crc32c, const struct ckpt_job *job, int file, struct fsdp_err *err)
{
    const uint64_t nbytes = job->ckpt->m.layout.files[file].header_nbytes;
    char *buffer = fsdp_alloc(HEADER_NBYTES, 1, "header", err);
    int rc = buffer ? FSDP_OK : FSDP_ENOMEM;
    for (uint64_t at = 0; rc == FSDP_OK && at < nbytes; at += HEADER_NBYTES) {
        const uint64_t left = nbytes - at;
        const size_t some = left < HEADER_NBYTES ? (size_t)left : HEADER_NBYTES;
        rc = ckpt_file_pread_stored(job->ckpt, file, buffer, some, at, err);
        if (rc == FSDP_OK)
            *crc32c = ckpt_crc32c(*crc32c, buffer, some);
    }
    fsdp_free(buffer);
    return rc;
}

/* The fingerprint of a tensor of which bytes were copied is that of the source. */
static void take_fingerprints(struct ckpt_job *job)
{
    for (int i = 0; i < job->ntensors; i++) {
        struct ckpt_job_tensor *t = &job->tensors[i];
        const int stored = job->parts[t->first_part].tensor;
        if (is_copied(job, t) && job->proof.seen[stored] != fsdp_tensor_nelem(&t->tensor))
            t->fingerprint = job->ckpt->m.layout.tensors[stored].fingerprint;
    }
}

int ckpt_job_copies_prove(struct ckpt_job *job, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &job->ckpt->m.layout;
    if (!job->copies.nbytes)
        return FSDP_OK;
    for (int f = 0; f < layout->nfiles; f++) {
        const struct ckpt_job_source *source = &job->copies.sources[f];
        const struct ckpt_layout_file *file = &layout->files[f];
        uint32_t crc32c = 0;
        if (!source->copied)
            continue;
        FSDP_TRY(sum_header(&crc32c, job, f, err));
        crc32c = ckpt_crc32c_shift(crc32c, file->nbytes - file->header_nbytes) ^ source->crc32c;
        if (source->seen + file->header_nbytes == file->nbytes && crc32c == file->crc32c)
            continue;
        job->copies.wrong = true;
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "'%s/%s': what the store copied of it, and what was read, has not the "
                            "checksum of the manifest",
                            job->ckpt->folder, file->path);
    }
    take_fingerprints(job);
    return FSDP_OK;
}
