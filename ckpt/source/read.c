/* SPDX-License-Identifier: Apache-2.0 */
/* Executing plans: file ranges into blocks, blocks into slices. */
#include <string.h>

#include "format/dcp/blob.h"
#include "util/convert.h"
#include "util/crc.h"
#include "source.h"

/* ---- open files ------------------------------------------------------------------------------ */

/* Closes the idle file that was not asked for the longest. */
static void close_oldest(struct ckpt *ckpt)
{
    struct ckpt_reader *oldest = NULL;
    for (int i = 0; i < ckpt->m.layout.nfiles; i++) {
        struct ckpt_reader *reader = &ckpt->readers[i];
        if (reader->data && !reader->users && (!oldest || reader->used < oldest->used))
            oldest = reader;
    }
    if (oldest) {
        ckpt_data_close(oldest->data);
        oldest->data = NULL;
        ckpt->nopen--;
    }
}

static int note_opened(struct ckpt *ckpt, int file, struct fsdp_err *err)
{
    struct ckpt_store_stat now;
    FSDP_TRY(ckpt_data_stat(&now, ckpt->readers[file].data, err));
    return ckpt_source_note(ckpt, file, &now, err);
}

static int reader_get(struct ckpt_data **out, struct ckpt *ckpt, int file, struct fsdp_err *err)
{
    struct ckpt_reader *reader = &ckpt->readers[file];
    int rc = FSDP_OK;

    pthread_mutex_lock(&ckpt->lock);
    if (!reader->data) {
        char *path = ckpt_path_join(ckpt->folder, ckpt->m.layout.files[file].path, err);
        if (ckpt->nopen >= ckpt->most_open)
            close_oldest(ckpt);
        rc = path ? ckpt_data_open(&reader->data, ckpt->store, path, ckpt->pool, err) : FSDP_ENOMEM;
        ckpt->nopen += rc == FSDP_OK;
        if (rc == FSDP_OK)
            rc = note_opened(ckpt, file, err);
        fsdp_free(path);
    }
    if (rc == FSDP_OK) {
        reader->users++;
        reader->used = ++ckpt->clock;
        *out = reader->data;
    }
    pthread_mutex_unlock(&ckpt->lock);
    return rc;
}

static void reader_put(struct ckpt *ckpt, int file)
{
    pthread_mutex_lock(&ckpt->lock);
    ckpt->readers[file].users--;
    pthread_mutex_unlock(&ckpt->lock);
}

int ckpt_file_pread(struct ckpt *ckpt, int file, void *dst, size_t nbytes, uint64_t pos,
                    struct fsdp_err *err)
{
    struct ckpt_data *data = NULL;
    FSDP_TRY(reader_get(&data, ckpt, file, err));
    int rc = ckpt_data_pread(data, dst, nbytes, pos, err);
    reader_put(ckpt, file);
    return rc;
}

int ckpt_file_pread_summed(uint32_t *crc32c, struct ckpt *ckpt, int file, void *dst, size_t nbytes,
                           uint64_t pos, struct fsdp_err *err)
{
    struct ckpt_data *data = NULL;
    FSDP_TRY(reader_get(&data, ckpt, file, err));
    int rc = ckpt_data_pread_summed(crc32c, data, dst, nbytes, pos, err);
    reader_put(ckpt, file);
    return rc;
}

int ckpt_file_pread_stored(struct ckpt *ckpt, int file, void *dst, size_t nbytes, uint64_t pos,
                           struct fsdp_err *err)
{
    struct ckpt_data *data = NULL;
    FSDP_TRY(reader_get(&data, ckpt, file, err));
    int rc = ckpt_data_pread_stored(data, dst, nbytes, pos, err);
    reader_put(ckpt, file);
    return rc;
}

int ckpt_file_nbytes(uint64_t *out, struct ckpt *ckpt, int file, struct fsdp_err *err)
{
    struct ckpt_data *data = NULL;
    FSDP_TRY(reader_get(&data, ckpt, file, err));
    *out = ckpt_data_nbytes(data);
    reader_put(ckpt, file);
    return FSDP_OK;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

enum { SPARSE_NBYTES = 64 << 10 };

struct scatter {
    struct ckpt *ckpt;
    int file;
    size_t elem_nbytes;
    char *dst, *scratch;
    size_t scratch_nbytes;
    struct fsdp_err *err;
};

/* Copies loops [loop, nloops) of an extent whose bytes are in memory at src. */
static void copy_runs(const struct scatter *s, const struct ckpt_extent *x, int loop,
                      const char *src, char *dst)
{
    if (loop == x->nloops) {
        memcpy(dst, src, x->run_nelem * s->elem_nbytes);
        return;
    }
    for (uint64_t i = 0; i < x->count[loop]; i++)
        copy_runs(s, x, loop + 1, src + i * x->src_stride[loop] * s->elem_nbytes,
                  dst + i * x->dst_stride[loop] * s->elem_nbytes);
}

/* Reads loops [loop, nloops): at once where the range they span fits in the scratch buffer, else as
 * many steps of the outermost loop at a time as fit, else step by step. */
static int read_runs(const struct scatter *s, const struct ckpt_extent *x, int loop, uint64_t pos,
                     char *dst)
{
    if (loop == x->nloops)
        return ckpt_file_pread(s->ckpt, s->file, dst, x->run_nelem * s->elem_nbytes, pos, s->err);
    uint64_t inner = x->run_nelem; /* spanned by one step of this loop */
    for (int k = loop + 1; k < x->nloops; k++)
        inner += (x->count[k] - 1) * x->src_stride[k];
    uint64_t room = s->scratch_nbytes / s->elem_nbytes, stride = x->src_stride[loop];
    uint64_t steps = room >= inner ? stride ? 1 + (room - inner) / stride : x->count[loop] : 0;
    /* A narrow column of a wide matrix: not worth reading what lies between. */
    if (stride * s->elem_nbytes >= SPARSE_NBYTES && inner < stride / 8)
        steps = 0;
    for (uint64_t i = 0, part; i < x->count[loop]; i += part) {
        uint64_t left = x->count[loop] - i;
        uint64_t from = pos + i * stride * s->elem_nbytes;
        char *to = dst + i * x->dst_stride[loop] * s->elem_nbytes;
        part = steps < left ? steps : left;
        if (steps < 1) {
            part = 1;
            FSDP_TRY(read_runs(s, x, loop + 1, from, to));
            continue;
        }
        size_t nbytes = (size_t)((part - 1) * stride + inner) * s->elem_nbytes;
        FSDP_TRY(ckpt_file_pread(s->ckpt, s->file, s->scratch, nbytes, from, s->err));
        for (uint64_t k = 0; k < part; k++)
            copy_runs(s, x, loop + 1, s->scratch + k * stride * s->elem_nbytes,
                      to + k * x->dst_stride[loop] * s->elem_nbytes);
    }
    return FSDP_OK;
}

/* ---- pieces in torch's archives -------------------------------------------------------------- */

/* The bytes of an extent, in the order of its piece: their CRC-32, run by run. */
struct run_sum {
    const struct scatter *s;
    size_t piece;
    uint64_t storage_nbytes;
    uint64_t begin, end; /* bytes of the piece that `crc` covers */
    uint32_t crc;
};

static int run_sum_note(struct run_sum *sum)
{
    uint64_t nbytes = sum->end - sum->begin;
    if (!nbytes)
        return FSDP_OK;
    return ckpt_blob_note(sum->s->ckpt, sum->piece,
                          ckpt_crc32_shift(sum->crc, sum->storage_nbytes - sum->end), nbytes,
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

/* Reads an extent whose piece is a blob. */
static int blob_extent_read(const struct scatter *s, const struct ckpt_extent *extent,
                            const struct ckpt_block *block, const struct fsdp_tensor *tensor)
{
    struct ckpt_extent x = *extent;
    struct ckpt_blob blob;
    FSDP_TRY(ckpt_blob_find(&blob, s->ckpt, x.piece, s->err));
    if (blob.stride)
        extent_restride(&x, &s->ckpt->m.layout.pieces[x.piece], blob.stride, &block->box,
                        tensor->ndim, s->elem_nbytes);
    char *dst = s->dst + x.dst * s->elem_nbytes;
    FSDP_TRY(read_runs(s, &x, 0, blob.pos + x.pos, dst));
    if (blob.whole && blob.crc32) {
        struct run_sum sum = {
            .s = s, .piece = x.piece, .storage_nbytes = blob.storage_nbytes, .crc = 0};
        FSDP_TRY(run_sum_add(&sum, &x, 0, x.pos, dst));
        FSDP_TRY(run_sum_note(&sum));
    }
    if (blob.negative)
        negate(dst, &x, 0, tensor->dtype, true);
    if (blob.conjugate)
        negate(dst, &x, 0, tensor->dtype, false);
    return FSDP_OK;
}

int ckpt_block_read(struct ckpt *ckpt, const struct ckpt_plan *plan, const struct ckpt_block *block,
                    void *dst, void *scratch, size_t scratch_nbytes, struct fsdp_err *err)
{
    const struct fsdp_tensor *tensor = &ckpt->m.layout.tensors[plan->tensor].tensor;
    struct scatter s = {
        .ckpt = ckpt,
        .elem_nbytes = fsdp_dtype_nbytes(tensor->dtype),
        .dst = dst,
        .scratch = scratch,
        .scratch_nbytes = scratch_nbytes,
        .err = err,
    };
    for (size_t i = 0; i < block->nextents; i++) {
        const struct ckpt_extent *x = &plan->extents[block->first + i];
        s.file = x->file;
        if (ckpt->format == CKPT_DCP)
            FSDP_TRY(blob_extent_read(&s, x, block, tensor));
        else
            FSDP_TRY(read_runs(&s, x, 0, x->pos, s.dst + x->dst * s.elem_nbytes));
    }
    return FSDP_OK;
}

int ckpt_buffers_create(struct ckpt_buffers *out, size_t nbytes, struct fsdp_err *err)
{
    *out = (struct ckpt_buffers){.nbytes = nbytes};
    out->data = fsdp_alloc(nbytes, 1, "read buffer", err);
    out->scratch = fsdp_alloc(nbytes, 1, "read buffer", err);
    if (out->data && out->scratch)
        return FSDP_OK;
    ckpt_buffers_destroy(out);
    return FSDP_ENOMEM;
}

/* buffers->data (nelem elements) in another dtype: in place where none is needed, else in
 * ->converted. */
static int convert_buffer(const void **out, struct ckpt_buffers *buffers, enum fsdp_dtype to,
                          enum fsdp_dtype from, size_t nelem, struct fsdp_err *err)
{
    size_t need = buffers->nbytes / fsdp_dtype_nbytes(from) * fsdp_dtype_nbytes(to);
    *out = buffers->data;
    if (to == from)
        return FSDP_OK;
    if (buffers->converted_nbytes < need) {
        fsdp_free(buffers->converted);
        buffers->converted_nbytes = 0;
        if (!(buffers->converted = fsdp_alloc(need, 1, "conversion buffer", err)))
            return FSDP_ENOMEM;
        buffers->converted_nbytes = need;
    }
    ckpt_convert(buffers->converted, to, buffers->data, from, nelem);
    *out = buffers->converted;
    return FSDP_OK;
}

void ckpt_buffers_destroy(struct ckpt_buffers *buffers)
{
    fsdp_free(buffers->data);
    fsdp_free(buffers->scratch);
    fsdp_free(buffers->converted);
    memset(buffers, 0, sizeof *buffers);
}

/* ---- slices ---------------------------------------------------------------------------------- */

int ckpt_slice_match(int *tensor, const struct ckpt *ckpt, const struct fsdp_slice *slice,
                     struct fsdp_err *err)
{
    const struct fsdp_tensor *want = &slice->tensor;
    int at = ckpt_tensor_index(ckpt, want->name);
    const char *why = at < 0 ? ckpt_unread_why(ckpt, want->name) : NULL;
    if (why)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s", why);
    if (at < 0)
        return fsdp_err_set(err, FSDP_ENOTFOUND, "'%s' has no tensor '%s'", ckpt->path, want->name);
    const struct fsdp_tensor *have = &ckpt->m.layout.tensors[at].tensor;
    bool same = have->ndim == want->ndim, inside = true;
    for (int d = 0; same && d < have->ndim; d++) {
        same = have->shape[d] == want->shape[d];
        inside &= slice->box.length[d] <= have->shape[d] &&
                  slice->box.offset[d] <= have->shape[d] - slice->box.length[d];
    }
    if (!same) {
        char stored[256], wanted[256];
        struct fsdp_box a = ckpt_box_whole(have), b = ckpt_box_whole(want);
        ckpt_box_text(stored, sizeof stored, &a, have->ndim);
        ckpt_box_text(wanted, sizeof wanted, &b, want->ndim);
        return fsdp_err_set(err, FSDP_EINVAL,
                            "tensor '%s': '%s' holds it as %s, the model has it as %s", want->name,
                            ckpt->path, stored, wanted);
    }
    if (!inside)
        return fsdp_err_set(err, FSDP_EINVAL, "tensor '%s': the wanted box leaves it", want->name);
    if (!ckpt_convert_can(want->dtype, have->dtype))
        return fsdp_err_set(err, FSDP_EINVAL, "tensor '%s': '%s' holds it as %s, wanted is %s",
                            want->name, ckpt->path, fsdp_dtype_name(have->dtype),
                            fsdp_dtype_name(want->dtype));
    *tensor = at;
    return FSDP_OK;
}

int ckpt_slice_read(struct ckpt *ckpt, int tensor, const struct fsdp_slice *slice,
                    const struct fsdp_slice_io *io, struct ckpt_buffers *buffers, uint64_t *part,
                    struct fsdp_err *err)
{
    const struct fsdp_tensor *have = &ckpt->m.layout.tensors[tensor].tensor;
    size_t in_nbytes = fsdp_dtype_nbytes(have->dtype);
    size_t out_nbytes = fsdp_dtype_nbytes(slice->tensor.dtype);
    struct ckpt_plan plan;
    int rc = FSDP_OK;

    FSDP_TRY(ckpt_plan_make(&plan, &ckpt->m.layout, tensor, &slice->box,
                            buffers->nbytes / in_nbytes, err));
    for (size_t i = 0; rc == FSDP_OK && i < plan.nblocks; i++) {
        const struct ckpt_block *block = &plan.blocks[i];
        const void *data;
        rc = ckpt_block_read(ckpt, &plan, block, buffers->data, buffers->scratch, buffers->nbytes,
                             err);
        if (rc)
            break;
        if (part)
            *part ^= ckpt_fingerprint_part(have, &block->box, buffers->data);
        rc = convert_buffer(&data, buffers, slice->tensor.dtype, have->dtype, block->nelem, err);
        if (rc)
            break;
        rc = io->write(io->ctx, block->pos * out_nbytes, data, block->nelem * out_nbytes, err);
    }
    ckpt_plan_free(&plan);
    return rc;
}

int ckpt_read_slice(struct ckpt *ckpt, const struct fsdp_slice *slice,
                    const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    struct ckpt_buffers buffers;
    uint64_t part = 0;
    int tensor = -1;

    FSDP_TRY(ckpt_slice_match(&tensor, ckpt, slice, err));
    const struct ckpt_tensor *t = &ckpt->m.layout.tensors[tensor];
    uint64_t nelem = fsdp_box_nelem(&slice->box, t->tensor.ndim);
    uint64_t nbytes = nelem * fsdp_dtype_nbytes(t->tensor.dtype);
    if (nbytes == 0)
        return FSDP_OK;
    nbytes = nbytes < CKPT_BLOCK_NBYTES ? nbytes : CKPT_BLOCK_NBYTES;
    /* Strided pieces are read through the scratch buffer: give it some room. */
    nbytes = nbytes > CKPT_MIN_BLOCK_NBYTES ? nbytes : CKPT_MIN_BLOCK_NBYTES;
    FSDP_TRY(ckpt_buffers_create(&buffers, (size_t)nbytes, err));
    int rc = ckpt_slice_read(ckpt, tensor, slice, io, &buffers, &part, err);
    ckpt_buffers_destroy(&buffers);
    FSDP_TRY(rc);
    if (t->has_fingerprint && nelem == fsdp_tensor_nelem(&t->tensor) && part != t->fingerprint)
        return ckpt_fingerprint_blame(ckpt, tensor, part, err);
    return FSDP_OK;
}
