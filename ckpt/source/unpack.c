/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled without joining products and sums in one instruction: a scale is a product, and then a
 * sum. */
#include "unpack.h"

#include <stdio.h>
#include <string.h>

#include "util/convert.h"

/* ---- reading --------------------------------------------------------------------------------- */

const struct ckpt_packed *ckpt_packed_find(const struct ckpt *ckpt, int tensor)
{
    int low = 0, high = ckpt->npacked;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (ckpt->packed[middle].tensor < tensor)
            low = middle + 1;
        else
            high = middle;
    }
    return low < ckpt->npacked && ckpt->packed[low].tensor == tensor ? &ckpt->packed[low] : NULL;
}

enum { PIECE = 1 << 13 };

/* Elements [first, first + n) of the tensor, n at most PIECE. */
static int decode_piece(const struct ckpt_scatter *s, const struct ckpt_packed *p, uint64_t first,
                        size_t n, char *dst)
{
    const uint64_t block = first / CKPT_NF4_BLOCK, end = first + n;
    const size_t nblocks = (size_t)((end - 1) / CKPT_NF4_BLOCK - block + 1);
    uint8_t codes[PIECE / 2 + 1], scales[PIECE / CKPT_NF4_BLOCK + 2];
    float x[PIECE], scale = 0;

    FSDP_TRY(ckpt_file_pread(s->ckpt, p->codes_file, codes, (size_t)((end + 1) / 2 - first / 2),
                             p->codes_pos + first / 2, s->err));
    FSDP_TRY(
        ckpt_file_pread(s->ckpt, p->scales_file, scales, nblocks, p->scales_pos + block, s->err));
    for (size_t i = 0; i < n; i++) {
        const uint64_t at = first + i, of = at / CKPT_NF4_BLOCK;
        const uint8_t both = codes[at / 2 - first / 2];
        if (i == 0 || at % CKPT_NF4_BLOCK == 0) {
            const float product = p->state.map[scales[of - block]] * p->nested[of / CKPT_NF4_SUPER];
            scale = product + p->state.offset;
        }
        x[i] = p->state.values[at % 2 ? both & 15 : both >> 4] * scale;
    }
    ckpt_convert(dst, p->state.tensor.dtype, x, FSDP_F32, n);
    return FSDP_OK;
}

/* Loops [loop, nloops) of an extent, from element `first` of the tensor on. */
static int read_loops(const struct ckpt_scatter *s, const struct ckpt_packed *p,
                      const struct ckpt_extent *x, int loop, uint64_t first, char *dst)
{
    for (uint64_t at = 0; loop == x->nloops && at < x->run_nelem; at += PIECE) {
        const uint64_t n = x->run_nelem - at < PIECE ? x->run_nelem - at : PIECE;
        FSDP_TRY(decode_piece(s, p, first + at, (size_t)n, dst + at * s->elem_nbytes));
    }
    for (uint64_t i = 0; loop < x->nloops && i < x->count[loop]; i++)
        FSDP_TRY(read_loops(s, p, x, loop + 1, first + i * x->src_stride[loop],
                            dst + i * x->dst_stride[loop] * s->elem_nbytes));
    return FSDP_OK;
}

int ckpt_packed_read(const struct ckpt_scatter *s, const struct ckpt_packed *packed,
                     const struct ckpt_extent *extent)
{
    const uint64_t first = (extent->pos - packed->codes_pos) / s->elem_nbytes;
    return read_loops(s, packed, extent, 0, first, s->dst + extent->dst * s->elem_nbytes);
}

void ckpt_packed_free(struct ckpt *ckpt)
{
    for (int i = 0; i < ckpt->npacked; i++)
        fsdp_free(ckpt->packed[i].nested);
    fsdp_free(ckpt->packed);
    ckpt->packed = NULL;
    ckpt->npacked = 0;
}

/* ---- the layout ------------------------------------------------------------------------------ */

/* The one piece that has all of a tensor, as it lies in a file; NULL: there are several. */
static const struct ckpt_piece *only_piece(const struct ckpt_layout *layout, int tensor)
{
    const size_t first = layout->first[tensor];
    return layout->first[tensor + 1] - first == 1 && !layout->pieces[first].blob_nbytes
               ? &layout->pieces[first]
               : NULL;
}

/* What bitsandbytes stores besides the codes of a quantized tensor. */
static bool is_part(const struct ckpt *ckpt, const char *name)
{
    static const char *const parts[] = {".absmax", ".nested_absmax", ".quant_map",
                                        ".nested_quant_map", ".quant_state.bitsandbytes__nf4"};
    char stem[1024];
    const size_t nbytes = strlen(name);

    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const size_t n = strlen(parts[i]);
        if (nbytes <= n || nbytes - n >= sizeof stem || strcmp(name + nbytes - n, parts[i]))
            continue;
        memcpy(stem, name, nbytes - n);
        stem[nbytes - n] = 0;
        if (ckpt_is_quantized(ckpt, stem))
            return true;
    }
    return false;
}

/* Tensor i, which is quantized, as the one with index `to` of another layout. */
static int note_packed(struct ckpt *ckpt, int i, int to, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &ckpt->m.layout;
    const char *name = layout->tensors[i].tensor.name;
    struct ckpt_packed *p = &ckpt->packed[ckpt->npacked];
    char scales[1024];

    FSDP_TRY(ckpt_nf4_read(&p->state, ckpt, name, err));
    snprintf(scales, sizeof scales, "%s.absmax", name);
    const int of_scales = ckpt_layout_find(layout, scales);
    const struct ckpt_piece *code = only_piece(layout, i);
    const struct ckpt_piece *scale = of_scales < 0 ? NULL : only_piece(layout, of_scales);
    if (!code || !scale)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s: quantized tensor '%s' lies in pieces",
                            ckpt->path, name);
    const uint64_t per = (uint64_t)CKPT_NF4_BLOCK * CKPT_NF4_SUPER;
    const size_t nnested = (size_t)((fsdp_tensor_nelem(&p->state.tensor) + per - 1) / per);
    p->tensor = to;
    p->codes_file = code->file;
    p->codes_pos = code->pos;
    p->scales_file = scale->file;
    p->scales_pos = scale->pos;
    if (!(p->nested = fsdp_alloc(nnested, sizeof *p->nested, "scales", err)))
        return FSDP_ENOMEM;
    ckpt->npacked++;
    return ckpt_nf4_nested(p->nested, nnested, ckpt, name, err);
}

static int copy_files(struct ckpt_layout *to, const struct ckpt_layout *from, struct fsdp_err *err)
{
    for (int i = 0; i < from->nfiles; i++) {
        const struct ckpt_layout_file *file = &from->files[i];
        FSDP_TRY(ckpt_layout_add_file(to, file->path, file->nbytes, err));
        to->files[i].header_nbytes = file->header_nbytes;
        to->files[i].crc32c = file->crc32c;
        to->files[i].has_crc = file->has_crc;
    }
    return FSDP_OK;
}

static int copy_tensor(struct ckpt_layout *to, struct ckpt *ckpt, int i, struct fsdp_err *err)
{
    static const uint64_t origin[FSDP_MAX_DIMS];
    const struct ckpt_layout *from = &ckpt->m.layout;
    struct fsdp_tensor tensor = from->tensors[i].tensor;
    const bool packed = ckpt_is_quantized(ckpt, tensor.name);

    if (is_part(ckpt, tensor.name))
        return FSDP_OK;
    if (packed) {
        FSDP_TRY(note_packed(ckpt, i, to->ntensors, err));
        tensor = ckpt->packed[ckpt->npacked - 1].state.tensor;
        tensor.name = from->tensors[i].tensor.name;
    }
    FSDP_TRY(ckpt_layout_add_tensor(to, &tensor, from->tensors[i].kind, err));
    for (size_t k = from->first[i]; k < from->first[i + 1]; k++) {
        struct ckpt_piece piece = from->pieces[k];
        piece.tensor = to->ntensors - 1;
        if (packed) {
            piece.offset = origin;
            piece.length = tensor.shape;
        }
        FSDP_TRY(ckpt_layout_add_piece(to, &piece, err));
    }
    return FSDP_OK;
}

int ckpt_unpack(struct ckpt *ckpt, struct fsdp_err *err)
{
    struct ckpt_layout *from = &ckpt->m.layout, to = {0};
    int count = 0, rc;

    for (int i = 0; ckpt->format->id == CKPT_HF && i < from->ntensors; i++)
        count += ckpt_is_quantized(ckpt, from->tensors[i].tensor.name);
    if (!count)
        return FSDP_OK;
    if (!(ckpt->packed = fsdp_alloc((size_t)count, sizeof *ckpt->packed, "quantized tensors", err)))
        return FSDP_ENOMEM;
    FSDP_TRY_GOTO(copy_files(&to, from, err), out);
    for (int i = 0; i < from->ntensors; i++)
        FSDP_TRY_GOTO(copy_tensor(&to, ckpt, i, err), out);
    FSDP_TRY_GOTO(ckpt_layout_index(&to, err), out);
    FSDP_TRY_GOTO(ckpt_layout_seal(&to, err), out);
    for (int i = 0; i < ckpt->npacked; i++)
        ckpt->packed[i].state.tensor.name = to.tensors[ckpt->packed[i].tensor].tensor.name;
    ckpt_layout_free(from);
    *from = to;
    return FSDP_OK;
out:
    ckpt_layout_free(&to);
    ckpt_packed_free(ckpt);
    return rc;
}
