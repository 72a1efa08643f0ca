/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's files. The slices are asked for once to learn their boxes, which gives the headers,
 * and then again to stream their bytes: through one buffer, into each file from its beginning to
 * its end. Elements of 8 bytes come first, then 4, 2, 1, so that every tensor is aligned to its
 * own.
 */
#include <string.h>

#include "util/crc.h"
#include "util/pace.h"
#include "file/safetensors.h"
#include "saver.h"
#include "util/text.h"
#include "util/workers.h"

const char *ckpt_kind_folder(int kind)
{
    return kind == FSDP_SLICE_MODEL ? "model" : "optim";
}

char *ckpt_shard_name(int kind, int number, bool compressed, struct fsdp_err *err)
{
    return fsdp_sprintf(err, "%s/shard-%05d-model-00001-of-00001.safetensors%s",
                        ckpt_kind_folder(kind), number + 1, compressed ? CKPT_CODEC_SUFFIX : "");
}

/* ---- first pass: which boxes ----------------------------------------------------------------- */

static int slice_check(int *tensor, const struct ckpt_saver *s, enum fsdp_slice_kind kind,
                       const struct fsdp_slice *slice, struct fsdp_err *err)
{
    const char *name = slice->tensor.name;
    int at = ckpt_layout_find(&s->m.layout, name);
    if (at < 0)
        return fsdp_err_set(err, FSDP_EINVAL, "tensor '%s' is not in the state's layout", name);
    const struct ckpt_tensor *t = &s->m.layout.tensors[at];
    bool same = t->kind == kind && t->tensor.dtype == slice->tensor.dtype &&
                t->tensor.ndim == slice->tensor.ndim;
    for (int d = 0; same && d < t->tensor.ndim; d++)
        same = t->tensor.shape[d] == slice->tensor.shape[d] &&
               slice->box.length[d] <= t->tensor.shape[d] &&
               slice->box.offset[d] <= t->tensor.shape[d] - slice->box.length[d];
    if (!same)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "tensor '%s': its slice does not fit the state's layout", name);
    if (slice->nreplica < 1 || slice->replica < 0 || slice->replica >= slice->nreplica)
        return fsdp_err_set(err, FSDP_EINVAL, "tensor '%s': replica %d of %d", name, slice->replica,
                            slice->nreplica);
    *tensor = at;
    return FSDP_OK;
}

static int collect_slice(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                         const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    struct ckpt_saver *s = ctx;
    struct ckpt_saved_piece piece = {.kind = (int32_t)kind};
    int tensor = -1;

    (void)io;
    FSDP_TRY(slice_check(&tensor, s, kind, slice, err));
    piece.tensor = tensor;
    if (!ckpt_replica_part(&piece.box, &slice->box, slice->tensor.ndim, slice->replica,
                           slice->nreplica))
        return FSDP_OK;
    struct ckpt_saved_piece *pieces =
        fsdp_alloc_grow(s->pieces, s->npieces, &s->max_pieces, sizeof *pieces, "saved pieces", err);
    if (!pieces)
        return FSDP_ENOMEM;
    s->pieces = pieces;
    s->pieces[s->npieces++] = piece;
    return FSDP_OK;
}

int ckpt_save_collect(struct ckpt_saver *s, struct fsdp_err *err)
{
    s->npieces = 0;
    return s->args->slices(s->args->slices_ctx, collect_slice, s, err);
}

/* ---- second pass: their bytes ---------------------------------------------------------------- */

struct stream {
    struct ckpt_saver *s;
    int kind;
    size_t elem_nbytes; /* written in this pass */
    size_t next;        /* piece that the next slice which is not empty must be */
    struct ckpt_store_file *file;
    struct ckpt_encoder *encoder; /* NULL: not compressed */
    uint64_t pos;                 /* bytes of the safetensors file so far */
    struct ckpt_saved_file *info;
    char *buffer;
    size_t buffer_nbytes;
    struct ckpt_pace pace;
};

static int put_bytes(struct stream *w, const void *data, size_t nbytes, struct fsdp_err *err)
{
    uint64_t pos = w->pos;
    w->pos += nbytes;
    if (w->encoder)
        return ckpt_encoder_put(w->encoder, data, nbytes, pos, err);
    w->info->crc32c = ckpt_crc32c(w->info->crc32c, data, nbytes);
    w->info->nbytes += nbytes;
    return ckpt_store_write(w->file, data, nbytes, err);
}

/* In pieces that stay in a core's second cache while both sums and the file read them. */
static int put_summed(struct stream *w, uint64_t *crc, const char *data, size_t nbytes,
                      struct fsdp_err *err)
{
    enum { PIECE_NBYTES = 256 << 10 };
    for (size_t at = 0, n; at < nbytes; at += n) {
        n = nbytes - at < PIECE_NBYTES ? nbytes - at : PIECE_NBYTES;
        *crc = ckpt_crc64(*crc, data + at, n);
        FSDP_TRY(put_bytes(w, data + at, n, err));
    }
    return FSDP_OK;
}

/* Streams a part that begins at byte pos of its slice; *sum gets what it adds to the fingerprint.
 * The part is cut between its rows where these are not whole rows of the tensor, else anywhere. */
static int stream_part(struct stream *w, uint64_t *sum, const struct fsdp_tensor *tensor,
                       const struct fsdp_box *part, uint64_t pos, const struct fsdp_slice_io *io,
                       struct fsdp_err *err)
{
    uint64_t left = fsdp_box_nelem(part, tensor->ndim) * w->elem_nbytes, crc = 0;
    uint64_t row_nbytes = tensor->ndim ? left / part->length[0] : left;
    uint64_t most = w->buffer_nbytes;
    struct fsdp_box rows = *part;
    bool whole = true;

    for (int d = 1; d < tensor->ndim; d++)
        whole &= part->length[d] == tensor->shape[d];
    if (!whole && row_nbytes > most)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "tensor '%s': a box with rows of %llu bytes, which are parts of rows",
                            tensor->name, (unsigned long long)row_nbytes);
    if (!whole)
        most -= most % row_nbytes;
    *sum = 0;
    while (left) {
        size_t nbytes = (size_t)(left < most ? left : most);
        const void *data = io->at ? io->at(io->ctx, pos, nbytes) : NULL;
        if (!data) {
            FSDP_TRY(io->read(io->ctx, pos, w->buffer, nbytes, err));
            data = w->buffer;
        }
        if (whole) {
            FSDP_TRY(put_summed(w, &crc, data, nbytes, err));
        } else {
            rows.length[0] = nbytes / row_nbytes;
            *sum ^= ckpt_fingerprint_part(tensor, &rows, data);
            rows.offset[0] += rows.length[0];
            FSDP_TRY(put_bytes(w, data, nbytes, err));
        }
        ckpt_pace_keep(&w->pace);
        pos += nbytes;
        left -= nbytes;
    }
    if (whole) {
        uint64_t end = tensor->ndim ? part->offset[0] + part->length[0] : 1;
        uint64_t nrows = tensor->ndim ? tensor->shape[0] : 1;
        *sum = ckpt_crc64_shift(crc, (nrows - end) * row_nbytes);
    }
    return FSDP_OK;
}

static int stream_slice(void *ctx, enum fsdp_slice_kind kind, const struct fsdp_slice *slice,
                        const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    struct stream *w = ctx;
    struct ckpt_saver *s = w->s;
    const struct fsdp_tensor *tensor = &slice->tensor;
    struct fsdp_box part;
    uint64_t nelem =
        ckpt_replica_part(&part, &slice->box, tensor->ndim, slice->replica, slice->nreplica);

    if (!nelem)
        return FSDP_OK;
    struct ckpt_saved_piece *piece = w->next < s->npieces ? &s->pieces[w->next] : NULL;
    if (!piece || strcmp(s->m.layout.tensors[piece->tensor].tensor.name, tensor->name) ||
        memcmp(&piece->box, &part, sizeof part))
        return fsdp_err_set(err, FSDP_EINVAL, "tensor '%s': the slices changed during the save",
                            tensor->name);
    w->next++;
    if ((int)kind != w->kind || fsdp_dtype_nbytes(tensor->dtype) != w->elem_nbytes)
        return FSDP_OK;
    uint64_t pos = 0;
    if (tensor->ndim)
        pos = (part.offset[0] - slice->box.offset[0]) * (nelem / part.length[0]) * w->elem_nbytes;
    return stream_part(w, &piece->fingerprint_part, tensor, &part, pos, io, err);
}

/* The header for this rank's pieces of a kind, largest elements first. *out is NULL if there are
 * none. */
static int header_make(char **out, size_t *out_nbytes, const struct ckpt_saver *s, int kind,
                       struct fsdp_err *err)
{
    struct ckpt_st_entry *entries = fsdp_alloc(s->npieces, sizeof *entries, "header entries", err);
    int nentries = 0;

    *out = NULL;
    if (!entries)
        return FSDP_ENOMEM;
    for (size_t elem_nbytes = 8; elem_nbytes; elem_nbytes /= 2) {
        for (size_t i = 0; i < s->npieces; i++) {
            const struct ckpt_saved_piece *piece = &s->pieces[i];
            const struct fsdp_tensor *tensor = &s->m.layout.tensors[piece->tensor].tensor;
            if (piece->kind != kind || fsdp_dtype_nbytes(tensor->dtype) != elem_nbytes)
                continue;
            struct ckpt_st_entry *entry = &entries[nentries++];
            *entry = (struct ckpt_st_entry){.name = tensor->name,
                                            .dtype = (uint8_t)tensor->dtype,
                                            .ndim = (uint8_t)tensor->ndim,
                                            .shape = piece->box.length,
                                            .offset = piece->box.offset,
                                            .global_shape = tensor->shape};
        }
    }
    int rc = nentries ? ckpt_st_format(out, out_nbytes, entries, nentries, true, err) : FSDP_OK;
    fsdp_free(entries);
    return rc;
}

static bool has_pieces(const struct ckpt_saver *s, int kind, size_t elem_nbytes)
{
    for (size_t i = 0; i < s->npieces; i++)
        if (s->pieces[i].kind == kind &&
            fsdp_dtype_nbytes(s->m.layout.tensors[s->pieces[i].tensor].tensor.dtype) == elem_nbytes)
            return true;
    return false;
}

static uint64_t pieces_nbytes(const struct ckpt_saver *s, int kind)
{
    uint64_t nbytes = 0;
    for (size_t i = 0; i < s->npieces; i++) {
        const struct ckpt_saved_piece *piece = &s->pieces[i];
        const struct fsdp_tensor *tensor = &s->m.layout.tensors[piece->tensor].tensor;
        if (piece->kind == kind)
            nbytes += fsdp_box_nelem(&piece->box, tensor->ndim) * fsdp_dtype_nbytes(tensor->dtype);
    }
    return nbytes;
}

/* The header, and with it an encoder where one is wanted. */
static int write_header(struct stream *w, const char *path, const char *header,
                        size_t header_nbytes, struct fsdp_err *err)
{
    w->info->header_nbytes = header_nbytes;
    if (!w->s->compress)
        return put_bytes(w, header, header_nbytes, err);
    int ncpus = ckpt_workers_default(CKPT_COMPRESS_THREADS);
    struct ckpt_encoder_args args = {.header = header,
                                     .header_nbytes = header_nbytes,
                                     .nbytes = header_nbytes + pieces_nbytes(w->s, w->kind),
                                     .window = ncpus + 2,
                                     .nhelpers = ncpus > 1 && !w->pace.share ? ncpus : 0};
    w->pos = header_nbytes;
    return ckpt_encoder_create(&w->encoder, w->file, path, &args, err);
}

static int write_end(struct stream *w, struct fsdp_err *err)
{
    struct ckpt_encoder_result result;
    if (w->encoder) {
        FSDP_TRY(ckpt_encoder_finish(&result, w->encoder, err));
        w->info->nbytes = result.stored_nbytes;
        w->info->crc32c = result.stored_crc32c;
    }
    return w->s->args->fsync ? ckpt_store_sync(w->file, err) : FSDP_OK;
}

static int write_kind(struct stream *w, struct fsdp_err *err)
{
    struct ckpt_saver *s = w->s;
    char *header = NULL, *name = NULL, *path = NULL;
    size_t header_nbytes;
    int rc;

    FSDP_TRY(header_make(&header, &header_nbytes, s, w->kind, err));
    if (!header)
        return FSDP_OK;
    rc = FSDP_ENOMEM;
    if (!(name = ckpt_shard_name(w->kind, ckpt_save_number(s, s->oob->rank), s->compress, err)) ||
        !(path = ckpt_path_join(s->commit.out, name, err)))
        goto out;
    FSDP_TRY_GOTO(ckpt_store_open(&w->file, s->store, path, CKPT_STORE_CREATE, err), out);
    FSDP_TRY_GOTO(write_header(w, path, header, header_nbytes, err), out);
    for (w->elem_nbytes = 8; w->elem_nbytes; w->elem_nbytes /= 2) {
        if (!has_pieces(s, w->kind, w->elem_nbytes))
            continue;
        w->next = 0;
        FSDP_TRY_GOTO(s->args->slices(s->args->slices_ctx, stream_slice, w, err), out);
    }
    rc = write_end(w, err);
out:
    ckpt_encoder_destroy(w->encoder);
    int rc_close = FSDP_OK;
    if (rc)
        ckpt_store_abandon(w->file);
    else
        rc_close = ckpt_store_close(w->file, err);
    w->file = NULL;
    fsdp_free(path);
    fsdp_free(name);
    fsdp_free(header);
    return rc ? rc : rc_close;
}

int ckpt_save_write(struct ckpt_saver *s, struct fsdp_err *err)
{
    int rc = FSDP_OK;
    uint64_t largest = 0;
    for (size_t i = 0; i < s->npieces; i++) {
        const struct fsdp_tensor *tensor = &s->m.layout.tensors[s->pieces[i].tensor].tensor;
        uint64_t nbytes =
            fsdp_box_nelem(&s->pieces[i].box, tensor->ndim) * fsdp_dtype_nbytes(tensor->dtype);
        largest = nbytes > largest ? nbytes : largest;
    }
    size_t most = s->args->share > 0 ? CKPT_PACED_BLOCK_NBYTES : CKPT_BLOCK_NBYTES;
    size_t buffer_nbytes = largest < most ? (size_t)largest : most;
    char *buffer = fsdp_alloc(buffer_nbytes, 1, "save buffer", err);
    if (!buffer)
        return FSDP_ENOMEM;
    for (int kind = 0; rc == FSDP_OK && kind < CKPT_NKINDS; kind++) {
        struct stream w = {.s = s,
                           .kind = kind,
                           .info = &s->files[kind],
                           .buffer = buffer,
                           .buffer_nbytes = buffer_nbytes,
                           .pace = {.share = s->args->share}};
        rc = write_kind(&w, err);
    }
    fsdp_free(buffer);
    for (size_t i = 0; i < s->npieces; i++)
        s->files[s->pieces[i].kind].npieces++;
    return rc;
}
