/* SPDX-License-Identifier: Apache-2.0 */
/* Reading an extent of a piece that lies in an archive of torch: the order of its storage, its
 * checksum, values that are stored negated. */
#include "blob.h"
#include "dcp.h"
#include "util/crc.h"

/* The bytes of an extent, in the order of its piece: their CRC-32, run by run. */
struct run_sum {
    const struct ckpt_scatter *s;
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

int ckpt_dcp_extent_read(const struct ckpt_scatter *s, const struct ckpt_extent *extent,
                         const struct ckpt_block *block, const struct fsdp_tensor *tensor)
{
    struct ckpt_extent x = *extent;
    struct ckpt_blob blob;
    FSDP_TRY(ckpt_blob_find(&blob, s->ckpt, x.piece, s->err));
    if (blob.stride)
        extent_restride(&x, &s->ckpt->m.layout.pieces[x.piece], blob.stride, &block->box,
                        tensor->ndim, s->elem_nbytes);
    char *dst = s->dst + x.dst * s->elem_nbytes;
    FSDP_TRY(ckpt_runs_read(s, &x, blob.pos + x.pos, dst));
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
