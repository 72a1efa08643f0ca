/* SPDX-License-Identifier: Apache-2.0 */
/* Executing plans: file ranges into blocks, blocks into slices. */
#include <inttypes.h>
#include <string.h>

#include "util/convert.h"
#include "util/crc.h"
#include "code_names.h"
#include "unpack.h"

/* ---- blocks ---------------------------------------------------------------------------------- */

enum { SPARSE_NBYTES = 64 << 10 };

/* Copies loops [loop, nloops) of an extent whose bytes are in memory at src. */
static void copy_runs(const struct ckpt_scatter *s, const struct ckpt_extent *x, int loop,
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
static int read_runs(const struct ckpt_scatter *s, const struct ckpt_extent *x, int loop,
                     uint64_t pos, char *dst)
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

int ckpt_runs_read(const struct ckpt_scatter *s, const struct ckpt_extent *extent, uint64_t pos,
                   char *dst)
{
    return read_runs(s, extent, 0, pos, dst);
}

int ckpt_block_read(struct ckpt *ckpt, const struct ckpt_plan *plan, const struct ckpt_block *block,
                    void *dst, void *scratch, size_t scratch_nbytes, struct fsdp_err *err)
{
    const struct fsdp_tensor *tensor = &ckpt->m.layout.tensors[plan->tensor].tensor;
    struct ckpt_scatter s = {
        .ckpt = ckpt,
        .elem_nbytes = fsdp_dtype_nbytes(tensor->dtype),
        .dst = dst,
        .scratch = scratch,
        .scratch_nbytes = scratch_nbytes,
        .err = err,
    };
    const struct ckpt_packed *packed = ckpt_packed_find(ckpt, plan->tensor);
    for (size_t i = 0; i < block->nextents; i++) {
        const struct ckpt_extent *x = &plan->extents[block->first + i];
        s.file = x->file;
        if (packed)
            FSDP_TRY(ckpt_packed_read(&s, packed, x));
        else if (ckpt->format->read_extent)
            FSDP_TRY(ckpt->format->read_extent(&s, x, block, tensor));
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

/* buffers->data (nelem elements) in another dtype, in ->converted. */
static int convert_buffer(const void **out, struct ckpt_buffers *buffers, enum fsdp_dtype to,
                          enum fsdp_dtype from, size_t nelem, struct fsdp_err *err)
{
    size_t need = buffers->nbytes / fsdp_dtype_nbytes(from) * fsdp_dtype_nbytes(to);
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
    const bool codes = have->dtype == FSDP_F8_E4M3 || have->dtype == FSDP_F8_E5M2;
    const struct ckpt_tensor *scales =
        codes && want->dtype != have->dtype ? ckpt_scales_of(ckpt, have) : NULL;
    if (scales)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "tensor '%s': '%s' holds codes in %s, and their scales in '%s', which "
                            "its config.json does not describe: decode them first, with ckpt-merge "
                            "or the program that wrote them",
                            want->name, ckpt->path, fsdp_dtype_name(have->dtype),
                            scales->tensor.name);
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
    const bool same = slice->tensor.dtype == have->dtype, direct = same && buffers->into;
    for (size_t i = 0; rc == FSDP_OK && i < plan.nblocks; i++) {
        const struct ckpt_block *block = &plan.blocks[i];
        char *to = direct ? buffers->into + block->pos * out_nbytes : buffers->data;
        const void *data = to;
        rc = ckpt_block_read(ckpt, &plan, block, to, buffers->scratch, buffers->nbytes, err);
        if (rc)
            break;
        if (part)
            *part ^= ckpt_fingerprint_part(have, &block->box, to);
        if (direct)
            continue;
        if (!same)
            rc =
                convert_buffer(&data, buffers, slice->tensor.dtype, have->dtype, block->nelem, err);
        if (rc)
            break;
        rc = io->write(io->ctx, block->pos * out_nbytes, data, block->nelem * out_nbytes, err);
    }
    ckpt_plan_free(&plan);
    return rc;
}

/* The slice is of this tensor. */
static int read_checked(struct ckpt *ckpt, int tensor, const struct fsdp_slice *slice,
                        const struct fsdp_slice_io *io, char *into, struct fsdp_err *err)
{
    struct ckpt_buffers buffers;
    uint64_t part = 0;

    const struct ckpt_tensor *t = &ckpt->m.layout.tensors[tensor];
    uint64_t nelem = fsdp_box_nelem(&slice->box, t->tensor.ndim);
    uint64_t nbytes = nelem * fsdp_dtype_nbytes(t->tensor.dtype);
    if (nbytes == 0)
        return FSDP_OK;
    nbytes = nbytes < CKPT_BLOCK_NBYTES ? nbytes : CKPT_BLOCK_NBYTES;
    /* Strided pieces are read through the scratch buffer: give it some room. */
    nbytes = nbytes > CKPT_MIN_BLOCK_NBYTES ? nbytes : CKPT_MIN_BLOCK_NBYTES;
    FSDP_TRY(ckpt_buffers_create(&buffers, (size_t)nbytes, err));
    buffers.into = into;
    int rc = ckpt_slice_read(ckpt, tensor, slice, io, &buffers, &part, err);
    ckpt_buffers_destroy(&buffers);
    FSDP_TRY(rc);
    if (t->has_fingerprint && nelem == fsdp_tensor_nelem(&t->tensor) && part != t->fingerprint)
        return ckpt_fingerprint_blame(ckpt, tensor, part, err);
    return FSDP_OK;
}

int ckpt_read_slice(struct ckpt *ckpt, const struct fsdp_slice *slice,
                    const struct fsdp_slice_io *io, struct fsdp_err *err)
{
    int tensor = -1;
    FSDP_TRY(ckpt_slice_match(&tensor, ckpt, slice, err));
    return read_checked(ckpt, tensor, slice, io, NULL, err);
}

static int write_memory(void *ctx, uint64_t pos, const void *src, size_t nbytes,
                        struct fsdp_err *err)
{
    (void)err;
    memcpy((char *)ctx + pos, src, nbytes);
    return FSDP_OK;
}

int ckpt_read_into(void *dst, size_t nbytes, struct ckpt *ckpt, const struct fsdp_slice *slice,
                   struct fsdp_err *err)
{
    const struct fsdp_slice_io io = {.ctx = dst, .write = write_memory};
    int tensor = -1;
    FSDP_TRY(ckpt_slice_match(&tensor, ckpt, slice, err));
    const uint64_t need =
        fsdp_box_nelem(&slice->box, slice->tensor.ndim) * fsdp_dtype_nbytes(slice->tensor.dtype);
    if (nbytes != need)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "tensor '%s': the buffer has %zu bytes, and what is read into it has "
                            "%" PRIu64,
                            slice->tensor.name, nbytes, need);
    return read_checked(ckpt, tensor, slice, &io, dst, err);
}

bool ckpt_is_far(const struct ckpt *ckpt)
{
    return ckpt_store_is_far(ckpt->store);
}
