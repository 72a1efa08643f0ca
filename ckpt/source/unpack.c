/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a checkpoint whose quantized tensors are decoded as they are read (packed.c). */
#include "code_names.h"
#include "unpack.h"

#include <stdio.h>
#include <string.h>

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

/* The same of a matrix of compressed-tensors. *fits: it can be decoded. */
static int note_codes(bool *fits, struct ckpt *ckpt, int i, int to, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &ckpt->m.layout;
    const struct fsdp_tensor *t = &layout->tensors[i].tensor;
    struct ckpt_packed *p = &ckpt->packed[ckpt->npacked];

    FSDP_TRY(ckpt_codes_read(fits, &p->codes, ckpt, t, err));
    if (!*fits)
        return FSDP_OK;
    const struct ckpt_piece *code = only_piece(layout, i);
    const struct ckpt_piece *scale =
        only_piece(layout, ckpt_layout_find(layout, ckpt_scales_of(ckpt, t)->tensor.name));
    *fits = code && scale;
    if (!*fits)
        return FSDP_OK;
    p->tensor = to;
    p->codes_file = code->file;
    p->codes_pos = code->pos;
    p->scales_file = scale->file;
    p->scales_pos = scale->pos;
    ckpt->npacked++;
    return FSDP_OK;
}

/* Can all codes be decoded? Of a model, all or none are. */
static int codes_fit(bool *fit, struct ckpt *ckpt, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &ckpt->m.layout;
    *fit = true;
    for (int i = 0; *fit && i < layout->ntensors; i++) {
        if (!ckpt_scales_of(ckpt, &layout->tensors[i].tensor))
            continue;
        FSDP_TRY(note_codes(fit, ckpt, i, i, err));
        ckpt->npacked = 0; /* for the next */
    }
    return FSDP_OK;
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

/* Adds what decoded codes are. The name of packed ones has an end that they have not. */
static int add_decoded(struct ckpt_layout *to, const struct ckpt_codes *codes,
                       enum fsdp_slice_kind kind, struct fsdp_err *err)
{
    struct fsdp_tensor tensor = codes->tensor;
    char name[CKPT_MAX_NAME_NBYTES + 1];
    const int n = (int)(strlen(tensor.name) - (codes->words ? strlen("_packed") : 0));
    snprintf(name, sizeof name, "%.*s", n, tensor.name);
    tensor.name = name;
    return ckpt_layout_add_tensor(to, &tensor, kind, err);
}

/* codes: those of compressed-tensors are decoded. */
static int copy_tensor(struct ckpt_layout *to, struct ckpt *ckpt, int i, bool codes,
                       struct fsdp_err *err)
{
    static const uint64_t origin[FSDP_MAX_DIMS];
    const struct ckpt_layout *from = &ckpt->m.layout;
    struct fsdp_tensor tensor = from->tensors[i].tensor;
    const bool nf4 = ckpt_is_quantized(ckpt, tensor.name);
    bool packed = nf4;

    if (is_part(ckpt, tensor.name) || (codes && ckpt_codes_is_part(ckpt, tensor.name)))
        return FSDP_OK;
    if (nf4) {
        FSDP_TRY(note_packed(ckpt, i, to->ntensors, err));
        tensor = ckpt->packed[ckpt->npacked - 1].state.tensor;
        tensor.name = from->tensors[i].tensor.name;
    } else if (codes && ckpt_scales_of(ckpt, &tensor)) {
        FSDP_TRY(note_codes(&packed, ckpt, i, to->ntensors, err));
        tensor = ckpt->packed[ckpt->npacked - 1].codes.tensor;
    }
    FSDP_TRY(packed && !nf4 ? add_decoded(to, &ckpt->packed[ckpt->npacked - 1].codes,
                                          from->tensors[i].kind, err)
                            : ckpt_layout_add_tensor(to, &tensor, from->tensors[i].kind, err));
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
    int nnf4 = 0, ncodes = 0, rc;
    bool codes = false;

    for (int i = 0; i < from->ntensors; i++) {
        nnf4 += ckpt_is_quantized(ckpt, from->tensors[i].tensor.name);
        ncodes += ckpt_scales_of(ckpt, &from->tensors[i].tensor) != NULL;
    }
    const int count = nnf4 + ncodes;
    if (!count)
        return FSDP_OK;
    if (!(ckpt->packed = fsdp_alloc((size_t)count, sizeof *ckpt->packed, "quantized tensors", err)))
        return FSDP_ENOMEM;
    if (ncodes)
        FSDP_TRY_GOTO(codes_fit(&codes, ckpt, err), out);
    if (!nnf4 && !codes) { /* nothing is decoded */
        ckpt_packed_free(ckpt);
        return FSDP_OK;
    }
    FSDP_TRY_GOTO(copy_files(&to, from, err), out);
    for (int i = 0; i < from->ntensors; i++)
        FSDP_TRY_GOTO(copy_tensor(&to, ckpt, i, codes, err), out);
    FSDP_TRY_GOTO(ckpt_layout_index(&to, err), out);
    FSDP_TRY_GOTO(ckpt_layout_seal(&to, err), out);
    for (int i = 0; i < ckpt->npacked; i++)
        ckpt->packed[i].state.tensor.name = ckpt->packed[i].codes.tensor.name =
            to.tensors[ckpt->packed[i].tensor].tensor.name;
    ckpt_layout_free(from);
    *from = to;
    return FSDP_OK;
out:
    ckpt_layout_free(&to);
    ckpt_packed_free(ckpt);
    return rc;
}
