/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of files and fingerprints of tensors, in one reading of the data: each file is streamed
 * once; its CRC-32C runs along, and what each piece contributes to its tensor's CRC-64 is added up
 * across files.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "util/crc.h"
#include "source/format_ops.h"
#include "util/text.h"
#include "util/workers.h"

struct check {
    struct ckpt *ckpt;
    const struct ckpt_verify_args *args;
    size_t *by_file; /* [npieces] piece indices, by file and position */
    size_t *first;   /* [nfiles + 1] into by_file */
    uint64_t *sums;  /* [ntensors] */
    bool *damaged;   /* [nfiles] unreadable, or: */
    bool *wrong;     /* [nfiles] read to the end, and the checksum is wrong */
    bool *explained; /* [nfiles] by a tensor in it that is wrong */
    atomic_int next;
    pthread_mutex_t lock; /* report, progress, sums, nfaults, done */
    int nfaults;
    uint64_t done, total; /* bytes of files, as stored */
};

static void fault(struct check *c, const char *text)
{
    c->nfaults++;
    if (c->args->report)
        c->args->report(c->args->report_ctx, text);
}

/* So many bytes more were looked at. */
static int say_progress(struct check *c, uint64_t nbytes, struct fsdp_err *err)
{
    pthread_mutex_lock(&c->lock);
    c->done += nbytes;
    const bool stop =
        c->args->progress && c->args->progress(c->args->progress_ctx, c->done, c->total);
    pthread_mutex_unlock(&c->lock);
    if (stop)
        return fsdp_err_set(err, FSDP_ECANCELED, "verifying '%s' was stopped", c->ckpt->path);
    return FSDP_OK;
}

/* A streamed piece: the CRC of its bytes so far. */
struct cursor {
    size_t next; /* in by_file */
    uint64_t crc;
};

static size_t elem_nbytes_of(const struct ckpt_layout *layout, const struct ckpt_piece *piece)
{
    return fsdp_dtype_nbytes(layout->tensors[piece->tensor].tensor.dtype);
}

static bool is_rows(const struct fsdp_tensor *tensor, const struct fsdp_box *box)
{
    for (int d = 1; d < tensor->ndim; d++)
        if (box->length[d] != tensor->shape[d])
            return false;
    return true;
}

/* Bytes [pos, pos + nbytes) of a file: feeds the pieces of whole rows that lie there. */
static void feed(struct check *c, struct cursor *cursor, int file, const char *data, size_t nbytes,
                 uint64_t pos)
{
    const struct ckpt_layout *layout = &c->ckpt->m.layout;
    while (cursor->next < c->first[file + 1]) {
        const struct ckpt_piece *piece = &layout->pieces[c->by_file[cursor->next]];
        const struct fsdp_tensor *tensor = &layout->tensors[piece->tensor].tensor;
        const struct fsdp_box box = ckpt_piece_box(piece, tensor->ndim);
        uint64_t size = fsdp_box_nelem(&box, tensor->ndim) * elem_nbytes_of(layout, piece);
        uint64_t begin = piece->pos > pos ? piece->pos : pos, end = piece->pos + size;
        uint64_t stop = end < pos + nbytes ? end : pos + nbytes;
        if (begin >= pos + nbytes)
            return;
        if (is_rows(tensor, &box))
            cursor->crc = ckpt_crc64(cursor->crc, data + (begin - pos), (size_t)(stop - begin));
        if (end > pos + nbytes)
            return;
        if (is_rows(tensor, &box)) {
            uint64_t rows = tensor->ndim ? piece->length[0] : 1;
            uint64_t left = tensor->ndim ? tensor->shape[0] - piece->offset[0] - rows : 0;
            uint64_t sum = ckpt_crc64_shift(cursor->crc, left * (size / rows));
            pthread_mutex_lock(&c->lock);
            c->sums[piece->tensor] ^= sum;
            pthread_mutex_unlock(&c->lock);
        }
        cursor->crc = 0;
        cursor->next++;
    }
}

/* Of a format whose pieces have checksums. */
static int check_pieces(struct check *c, int file, struct fsdp_err *err)
{
    for (size_t i = c->first[file]; i < c->first[file + 1]; i++) {
        struct fsdp_err why = FSDP_ERR_INIT;
        FSDP_TRY(say_progress(c, 0, err));
        int rc = c->ckpt->format->check_piece(c->ckpt, c->by_file[i], &why);
        if (rc == FSDP_OK)
            continue;
        pthread_mutex_lock(&c->lock);
        c->damaged[file] = true;
        fault(c, why.text);
        pthread_mutex_unlock(&c->lock);
    }
    return FSDP_OK;
}

static int check_file(struct check *c, int file, char *buffer, struct fsdp_err *err)
{
    const struct ckpt_layout_file *info = &c->ckpt->m.layout.files[file];
    struct cursor cursor = {c->first[file], 0};
    uint64_t size = info->nbytes;
    uint32_t crc = 0; /* of what is stored; fingerprints are of what it holds */

    if (c->ckpt->format->check_piece)
        return check_pieces(c, file, err);
    if (ckpt_codec_is_name(info->path))
        FSDP_TRY(ckpt_file_nbytes(&size, c->ckpt, file, err));
    for (uint64_t pos = 0; pos < size; pos += CKPT_BLOCK_NBYTES) {
        uint64_t left = size - pos;
        size_t nbytes = (size_t)(left < CKPT_BLOCK_NBYTES ? left : CKPT_BLOCK_NBYTES);
        FSDP_TRY(ckpt_file_pread_summed(&crc, c->ckpt, file, buffer, nbytes, pos, err));
        feed(c, &cursor, file, buffer, nbytes, pos);
        FSDP_TRY(say_progress(c, 0, err));
    }
    if (!info->has_crc || crc == info->crc32c)
        return FSDP_OK;
    char text[1024];
    snprintf(text, sizeof text, "file '%s': checksum %08x instead of %08x", info->path, crc,
             info->crc32c);
    pthread_mutex_lock(&c->lock);
    c->damaged[file] = c->wrong[file] = true;
    fault(c, text);
    pthread_mutex_unlock(&c->lock);
    return FSDP_OK;
}

static int verify_worker(struct ckpt_workers *workers, int index, struct fsdp_err *err)
{
    struct check *c = workers->ctx;
    char *buffer = fsdp_alloc(CKPT_BLOCK_NBYTES, 1, "read buffer", err);
    int rc = buffer ? FSDP_OK : FSDP_ENOMEM, file;
    (void)index;
    while (rc == FSDP_OK && !ckpt_workers_stopped(workers) &&
           (file = atomic_fetch_add(&c->next, 1)) < c->ckpt->m.layout.nfiles) {
        struct fsdp_err why = FSDP_ERR_INIT;
        rc = check_file(c, file, buffer, &why);
        if (rc != FSDP_ECANCELED && say_progress(c, c->ckpt->m.layout.files[file].nbytes, &why))
            rc = FSDP_ECANCELED;
        if (rc == FSDP_ECORRUPT || rc == FSDP_EIO || rc == FSDP_ENOTFOUND) {
            pthread_mutex_lock(&c->lock);
            c->damaged[file] = true;
            fault(c, why.text); /* this file; the others are still worth a look */
            pthread_mutex_unlock(&c->lock);
            rc = FSDP_OK;
        } else if (rc) {
            rc = fsdp_err_pass(err, rc, &why);
        }
    }
    fsdp_free(buffer);
    return rc;
}

static int compare_pos(const void *a, const void *b, void *ctx)
{
    const struct ckpt_piece *x = &((const struct ckpt_piece *)ctx)[*(const size_t *)a];
    const struct ckpt_piece *y = &((const struct ckpt_piece *)ctx)[*(const size_t *)b];
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->pos < y->pos ? -1 : x->pos > y->pos;
}

static int sort_pieces(struct check *c, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &c->ckpt->m.layout;
    c->by_file = fsdp_alloc(layout->npieces, sizeof *c->by_file, "pieces", err);
    c->first = fsdp_alloc((size_t)layout->nfiles + 1, sizeof *c->first, "pieces", err);
    c->sums = fsdp_alloc((size_t)layout->ntensors, sizeof *c->sums, "fingerprints", err);
    c->damaged = fsdp_alloc((size_t)layout->nfiles, sizeof *c->damaged, "files", err);
    c->wrong = fsdp_alloc((size_t)layout->nfiles, sizeof *c->wrong, "files", err);
    c->explained = fsdp_alloc((size_t)layout->nfiles, sizeof *c->explained, "files", err);
    if (!c->by_file || !c->first || !c->sums || !c->damaged || !c->wrong || !c->explained)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < layout->npieces; i++) {
        c->by_file[i] = i;
        c->first[layout->pieces[i].file + 1]++;
    }
    for (int i = 0; i < layout->nfiles; i++)
        c->first[i + 1] += c->first[i];
    if (layout->npieces)
        qsort_r(c->by_file, layout->npieces, sizeof *c->by_file, compare_pos, layout->pieces);
    return FSDP_OK;
}

/* Tensors with a piece that is not whole rows are read again, piece by piece in rows of the tensor.
 */
static int sum_by_plan(struct check *c, int tensor, struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &c->ckpt->m.layout.tensors[tensor].tensor;
    struct fsdp_slice slice = {.tensor = *t, .box = ckpt_box_whole(t), .nreplica = 1};
    struct ckpt_buffers buffers;
    struct ckpt_plan plan;
    int rc = ckpt_buffers_create(&buffers, CKPT_BLOCK_NBYTES, err);
    if (rc)
        return rc;
    rc = ckpt_plan_make(&plan, &c->ckpt->m.layout, tensor, &slice.box,
                        CKPT_BLOCK_NBYTES / fsdp_dtype_nbytes(t->dtype), err);
    c->sums[tensor] = 0;
    for (size_t i = 0; rc == FSDP_OK && i < plan.nblocks; i++) {
        rc = ckpt_block_read(c->ckpt, &plan, &plan.blocks[i], buffers.data, buffers.scratch,
                             buffers.nbytes, err);
        if (rc == FSDP_OK)
            c->sums[tensor] ^= ckpt_fingerprint_part(t, &plan.blocks[i].box, buffers.data);
    }
    ckpt_plan_free(&plan);
    ckpt_buffers_destroy(&buffers);
    return rc;
}

/* The piece that holds the element with this row-major index, and the element's place in it. */
static const struct ckpt_piece *piece_of(uint64_t *nelem_before, uint64_t *index,
                                         const struct ckpt_layout *layout, int tensor, uint64_t at)
{
    const struct fsdp_tensor *t = &layout->tensors[tensor].tensor;
    for (int d = t->ndim - 1; d >= 0; d--) {
        index[d] = at % t->shape[d];
        at /= t->shape[d];
    }
    for (size_t p = layout->first[tensor]; p < layout->first[tensor + 1]; p++) {
        const struct ckpt_piece *piece = &layout->pieces[p];
        bool inside = true;
        *nelem_before = 0;
        for (int d = 0; d < t->ndim; d++) {
            inside &=
                index[d] >= piece->offset[d] && index[d] - piece->offset[d] < piece->length[d];
            *nelem_before = *nelem_before * piece->length[d] + index[d] - piece->offset[d];
        }
        if (inside)
            return piece;
    }
    return NULL;
}

/* One wrong byte, or two neighbours, can be found by their CRC alone. False where it is more. */
static bool say_byte(struct ckpt_text *text, struct check *c, int tensor)
{
    const struct ckpt_layout *layout = &c->ckpt->m.layout;
    const struct ckpt_tensor *t = &layout->tensors[tensor];
    size_t elem_nbytes = fsdp_dtype_nbytes(t->tensor.dtype);
    uint64_t pos, before, index[FSDP_MAX_DIMS];
    unsigned char is = 0;
    uint16_t error;

    if (!ckpt_crc64_locate(&pos, &error, c->sums[tensor] ^ t->fingerprint,
                           fsdp_tensor_nelem(&t->tensor) * elem_nbytes))
        return false;
    const struct ckpt_piece *piece = piece_of(&before, index, layout, tensor, pos / elem_nbytes);
    if (!piece)
        return false;
    uint64_t at = piece->pos + before * elem_nbytes + pos % elem_nbytes;
    if (ckpt_file_pread(c->ckpt, piece->file, &is, 1, at, NULL))
        return false;
    ckpt_text_printf(text, ": byte %llu of '%s' is %02x and was %02x", (unsigned long long)at,
                     layout->files[piece->file].path, is, is ^ (error & 0xff));
    if (error >> 8)
        ckpt_text_printf(text, ", and the one behind it is wrong too");
    ckpt_text_printf(text, "; element ");
    ckpt_text_dims(text, index, t->tensor.ndim);
    return true;
}

/* Else: what the files with a wrong checksum hold of the tensor. */
static void say_ranges(struct ckpt_text *text, const struct check *c, int tensor)
{
    const struct ckpt_layout *layout = &c->ckpt->m.layout;
    const struct fsdp_tensor *t = &layout->tensors[tensor].tensor;
    const char *before = ": somewhere in ";
    for (size_t p = layout->first[tensor]; p < layout->first[tensor + 1]; p++) {
        const struct ckpt_piece *piece = &layout->pieces[p];
        const struct fsdp_box stored = ckpt_piece_box(piece, t->ndim);
        char box[256];
        if (!c->damaged[piece->file])
            continue;
        uint64_t nbytes = fsdp_box_nelem(&stored, t->ndim) * fsdp_dtype_nbytes(t->dtype);
        ckpt_box_text(box, sizeof box, &stored, t->ndim);
        ckpt_text_printf(text, "%sbytes %llu to %llu of '%s', which hold %s", before,
                         (unsigned long long)piece->pos,
                         (unsigned long long)(piece->pos + nbytes - 1),
                         layout->files[piece->file].path, box);
        before = ", or ";
    }
    if (before[0] == ':')
        ckpt_text_printf(text, ", though the checksums of its files are right");
}

static int tensor_fault(struct check *c, int tensor, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &c->ckpt->m.layout;
    const struct ckpt_tensor *t = &layout->tensors[tensor];
    struct ckpt_text text = {0};
    ckpt_text_printf(&text, "tensor '%s': fingerprint %016llx instead of %016llx", t->tensor.name,
                     (unsigned long long)c->sums[tensor], (unsigned long long)t->fingerprint);
    if (!say_byte(&text, c, tensor))
        say_ranges(&text, c, tensor);
    if (text.failed)
        return fsdp_err_set(err, FSDP_ENOMEM, "verify: out of memory");
    for (size_t p = layout->first[tensor]; p < layout->first[tensor + 1]; p++)
        c->explained[layout->pieces[p].file] = true;
    fault(c, text.data);
    ckpt_text_free(&text);
    return FSDP_OK;
}

/* A file with a wrong checksum whose tensors are all right. */
static void header_faults(struct check *c)
{
    const struct ckpt_layout *layout = &c->ckpt->m.layout;
    for (int i = 0; i < layout->nfiles; i++) {
        char text[1024];
        if (!c->wrong[i] || c->explained[i] || !layout->files[i].header_nbytes)
            continue;
        snprintf(text, sizeof text,
                 "file '%s': what it holds of tensors is right; the damage is in its header (bytes "
                 "0 to %llu)%s",
                 layout->files[i].path, (unsigned long long)layout->files[i].header_nbytes - 1,
                 ckpt_codec_is_name(layout->files[i].path) ? " or its frames" : "");
        fault(c, text);
    }
}

static int check_tensors(struct check *c, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &c->ckpt->m.layout;
    for (int i = 0; i < layout->ntensors; i++) {
        const struct ckpt_tensor *t = &layout->tensors[i];
        bool rows = true, damaged = false;
        for (size_t p = layout->first[i]; p < layout->first[i + 1]; p++) {
            const struct fsdp_box box = ckpt_piece_box(&layout->pieces[p], t->tensor.ndim);
            rows &= is_rows(&t->tensor, &box);
            damaged |= c->damaged[layout->pieces[p].file] && !c->wrong[layout->pieces[p].file];
        }
        if (!t->has_fingerprint)
            continue;
        FSDP_TRY(say_progress(c, 0, err));
        if (!rows && !damaged)
            FSDP_TRY(sum_by_plan(c, i, err));
        if (c->sums[i] == t->fingerprint || (!rows && damaged))
            continue;
        FSDP_TRY(tensor_fault(c, i, err));
    }
    header_faults(c);
    return FSDP_OK;
}

int ckpt_verify(struct ckpt *ckpt, ckpt_fault_f *report, void *ctx, struct fsdp_err *err)
{
    struct ckpt_verify_args args = CKPT_VERIFY_ARGS_INIT;
    args.report = report;
    args.report_ctx = ctx;
    return ckpt_verify_watched(ckpt, &args, err);
}

int ckpt_verify_watched(struct ckpt *ckpt, const struct ckpt_verify_args *args,
                        struct fsdp_err *err)
{
    if (args->version != CKPT_VERIFY_ARGS_VERSION)
        return fsdp_err_set(err, FSDP_EINVAL, "ckpt_verify_args: version %u is not %d",
                            (unsigned)args->version, CKPT_VERIFY_ARGS_VERSION);
    struct check c = {.ckpt = ckpt, .args = args};
    ckpt_warn_unread(ckpt);
    for (int i = 0; i < ckpt->m.layout.nfiles; i++)
        c.total += ckpt->m.layout.files[i].nbytes;
    pthread_mutex_init(&c.lock, NULL);
    int rc = sort_pieces(&c, err);
    if (rc == FSDP_OK)
        rc = ckpt_workers_run(ckpt->m.layout.nfiles > 1 ? 2 : 1, verify_worker, &c, err);
    if (rc == FSDP_OK)
        rc = check_tensors(&c, err);
    if (rc == FSDP_OK)
        rc = ckpt_unchanged(ckpt, err);
    if (rc == FSDP_OK && ckpt->lacks)
        fault(&c, ckpt->lacks);
    if (rc == FSDP_OK && c.nfaults)
        rc = fsdp_err_set(err, FSDP_ECORRUPT, "'%s': %d fault%s", ckpt->path, c.nfaults,
                          c.nfaults == 1 ? "" : "s");
    if (rc == FSDP_OK && ckpt->nunread)
        rc =
            fsdp_err_set(err, FSDP_EUNSUPPORTED,
                         "'%s': %d tensor%s cannot be read, and so not verified; all else is sound",
                         ckpt->path, ckpt->nunread, ckpt->nunread == 1 ? "" : "s");
    pthread_mutex_destroy(&c.lock);
    fsdp_free(c.by_file);
    fsdp_free(c.first);
    fsdp_free(c.sums);
    fsdp_free(c.damaged);
    fsdp_free(c.wrong);
    fsdp_free(c.explained);
    return rc;
}
