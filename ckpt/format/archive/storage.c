/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a view: the order of its storage, its checksum, values that are stored negated. */
#include "storage.h"
#include "util/crc.h"

/* ---- checksums ------------------------------------------------------------------------------- */

int ckpt_storage_check(struct ckpt *ckpt, const struct ckpt_storage *storage, size_t piece,
                       struct fsdp_err *err)
{
    const struct ckpt_piece *p = &ckpt->m.layout.pieces[piece];
    const uint64_t end = storage->pos + storage->nbytes;
    uint32_t crc = 0;

    if (!storage->crc32)
        return FSDP_OK;
    const size_t most =
        (size_t)(storage->nbytes < CKPT_BLOCK_NBYTES ? storage->nbytes : CKPT_BLOCK_NBYTES);
    char *buffer = fsdp_alloc(most, 1, "read buffer", err);
    int rc = buffer ? FSDP_OK : FSDP_ENOMEM;
    for (uint64_t pos = storage->pos; rc == FSDP_OK && pos < end; pos += most) {
        size_t nbytes = end - pos < most ? (size_t)(end - pos) : most;
        rc = ckpt_file_pread(ckpt, storage->file, buffer, nbytes, pos, err);
        if (rc == FSDP_OK)
            crc = ckpt_crc32(crc, buffer, nbytes);
    }
    fsdp_free(buffer);
    if (rc || crc == storage->crc32)
        return rc;
    char box[256];
    const struct ckpt_tensor *t = &ckpt->m.layout.tensors[p->tensor];
    const struct fsdp_box stored = ckpt_piece_box(p, t->tensor.ndim);
    ckpt_box_text(box, sizeof box, &stored, t->tensor.ndim);
    return fsdp_err_set(err, FSDP_ECORRUPT,
                        "tensor '%s', %s: bytes %llu to %llu of '%s/%s' are damaged (checksum %08x "
                        "instead of %08x)",
                        t->stored, box, (unsigned long long)storage->pos, (unsigned long long)end,
                        ckpt->folder, ckpt->m.layout.files[storage->file].path, crc,
                        storage->crc32);
}

int ckpt_storage_prove(struct ckpt *ckpt, struct ckpt_storage *storage, size_t piece,
                       struct fsdp_err *err)
{
    pthread_mutex_lock(&ckpt->lock);
    const bool proved = storage->proved;
    pthread_mutex_unlock(&ckpt->lock);
    if (proved)
        return FSDP_OK;
    FSDP_TRY(ckpt_storage_check(ckpt, storage, piece, err));
    pthread_mutex_lock(&ckpt->lock);
    storage->proved = true;
    pthread_mutex_unlock(&ckpt->lock);
    return FSDP_OK;
}

/* nbytes, whose contribution to the CRC-32 of the storage is `part`, were read for `piece`. */
static int note_read(struct ckpt *ckpt, struct ckpt_storage *storage, size_t piece, uint32_t part,
                     uint64_t nbytes, struct fsdp_err *err)
{
    bool suspect = false;

    pthread_mutex_lock(&ckpt->lock);
    storage->sum ^= part;
    storage->nsummed += nbytes;
    if (storage->nsummed >= storage->nbytes) {
        suspect = storage->sum != storage->crc32;
        storage->sum = 0;
        storage->nsummed = 0;
    }
    pthread_mutex_unlock(&ckpt->lock);
    /* It may also be that some bytes were read twice and others not yet: look. */
    return suspect ? ckpt_storage_check(ckpt, storage, piece, err) : FSDP_OK;
}

int ckpt_storage_add(struct ckpt *ckpt, struct ckpt_storage *storage, size_t piece, uint64_t pos,
                     uint64_t nbytes, struct fsdp_err *err)
{
    const uint64_t end = pos + nbytes;
    char buffer[4096];

    for (uint64_t at = pos; storage->crc32 && at < end;) {
        const size_t n = end - at < sizeof buffer ? (size_t)(end - at) : sizeof buffer;
        FSDP_TRY(ckpt_file_pread(ckpt, storage->file, buffer, n, at, err));
        const uint32_t part =
            ckpt_crc32_shift(ckpt_crc32(0, buffer, n), storage->pos + storage->nbytes - at - n);
        FSDP_TRY(note_read(ckpt, storage, piece, part, n, err));
        at += n;
    }
    return FSDP_OK;
}

/* The bytes of an extent, in the order of the file: their CRC-32, run by run. */
struct run_sum {
    const struct ckpt_scatter *s;
    struct ckpt_storage *storage;
    size_t piece;
    uint64_t begin, end; /* bytes of the storage that `crc` covers */
    uint32_t crc;
};

static int run_sum_note(struct run_sum *sum)
{
    uint64_t nbytes = sum->end - sum->begin;
    if (!nbytes)
        return FSDP_OK;
    return note_read(sum->s->ckpt, sum->storage, sum->piece,
                     ckpt_crc32_shift(sum->crc, sum->storage->nbytes - sum->end), nbytes,
                     sum->s->err);
}

static int run_sum_add(struct run_sum *sum, const struct ckpt_extent *x, int loop, uint64_t pos,
                       const char *data)
{
    size_t elem_nbytes = sum->s->elem_nbytes;
    if (loop < x->nloops) {
        for (uint64_t i = 0; i < x->count[loop]; i++)
            FSDP_TRY(run_sum_add(sum, x, loop + 1, pos + i * x->src_stride[loop] * elem_nbytes,
                                 data + i * x->dst_stride[loop] * elem_nbytes));
        return FSDP_OK;
    }
    if (pos != sum->end) {
        FSDP_TRY(run_sum_note(sum));
        sum->begin = sum->end = pos;
        sum->crc = 0;
    }
    sum->crc = ckpt_crc32(sum->crc, data, (size_t)x->run_nelem * elem_nbytes);
    sum->end += x->run_nelem * elem_nbytes;
    return FSDP_OK;
}

/* ---- order and sign -------------------------------------------------------------------------- */

/* The same elements in another order of the storage: one element a run, and the loop with the
 * widest steps outside, so that what a read spans is small. */
static void extent_restride(struct ckpt_extent *x, const struct ckpt_piece *piece,
                            const uint64_t *stride, const struct fsdp_box *block, int ndim,
                            size_t elem_nbytes)
{
    const struct fsdp_box stored = ckpt_piece_box(piece, ndim);
    struct fsdp_box both;
    uint64_t dst_stride[FSDP_MAX_DIMS], step = 1;
    fsdp_box_intersect(&both, &stored, block, ndim);
    x->pos = 0;
    x->nloops = 0;
    x->run_nelem = x->span_nelem = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        dst_stride[d] = step;
        step *= block->length[d];
        x->pos += (both.offset[d] - piece->offset[d]) * stride[d] * elem_nbytes;
    }
    for (int d = 0; d < ndim; d++) {
        int at = x->nloops;
        if (both.length[d] == 1)
            continue;
        for (; at > 0 && x->src_stride[at - 1] < stride[d]; at--) {
            x->count[at] = x->count[at - 1];
            x->src_stride[at] = x->src_stride[at - 1];
            x->dst_stride[at] = x->dst_stride[at - 1];
        }
        x->count[at] = both.length[d];
        x->src_stride[at] = stride[d];
        x->dst_stride[at] = dst_stride[d];
        x->nloops++;
        x->span_nelem += (both.length[d] - 1) * stride[d];
    }
}

/* real: of complex numbers the real parts, too. */
static void negate(void *data, const struct ckpt_extent *x, int loop, enum fsdp_dtype dtype,
                   bool real)
{
    size_t elem_nbytes = fsdp_dtype_nbytes(dtype);
    unsigned char *p = data;
    for (uint64_t i = 0; loop < x->nloops && i < x->count[loop]; i++)
        negate(p + i * x->dst_stride[loop] * elem_nbytes, x, loop + 1, dtype, real);
    for (uint64_t i = 0; loop == x->nloops && i < x->run_nelem; i++, p += elem_nbytes) {
        if (fsdp_dtype_is_float(dtype) || dtype == FSDP_C64) {
            p[elem_nbytes - 1] ^= 0x80;
            if (dtype == FSDP_C64 && real)
                p[elem_nbytes / 2 - 1] ^= 0x80;
            continue;
        }
        unsigned carry = 1;
        for (size_t k = 0; k < elem_nbytes; k++) {
            carry += (unsigned char)~p[k];
            p[k] = (unsigned char)carry;
            carry >>= 8;
        }
    }
}

int ckpt_view_read(const struct ckpt_scatter *s, const struct ckpt_view *view,
                   const struct ckpt_extent *extent, const struct ckpt_block *block,
                   const struct fsdp_tensor *tensor)
{
    struct ckpt_extent x = *extent;

    if (view->stride)
        extent_restride(&x, &s->ckpt->m.layout.pieces[x.piece], view->stride, &block->box,
                        tensor->ndim, s->elem_nbytes);
    if (!view->summed)
        FSDP_TRY(ckpt_storage_prove(s->ckpt, view->storage, x.piece, s->err));
    char *dst = s->dst + x.dst * s->elem_nbytes;
    FSDP_TRY(ckpt_runs_read(s, &x, view->pos + x.pos, dst));
    if (view->summed && view->storage->crc32) {
        const uint64_t at = view->pos - view->storage->pos + x.pos;
        struct run_sum sum = {
            .s = s, .storage = view->storage, .piece = x.piece, .begin = at, .end = at};
        FSDP_TRY(run_sum_add(&sum, &x, 0, at, dst));
        FSDP_TRY(run_sum_note(&sum));
    }
    if (view->negative)
        negate(dst, &x, 0, tensor->dtype, true);
    if (view->conjugate)
        negate(dst, &x, 0, tensor->dtype, false);
    return FSDP_OK;
}
