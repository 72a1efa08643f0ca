/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"
#include "util/limits.h"
#include "util/text.h"

int ckpt_layout_reserve_tensors(struct ckpt_layout *layout, size_t ntensors, struct fsdp_err *err)
{
    ntensors = ntensors < CKPT_MAX_TENSORS ? ntensors : CKPT_MAX_TENSORS;
    struct ckpt_tensor *tensors =
        fsdp_alloc_reserve(layout->tensors, (size_t)layout->ntensors, &layout->max_tensors,
                           ntensors, sizeof *tensors, "tensors", err);
    if (!tensors && ntensors)
        return FSDP_ENOMEM;
    layout->tensors = tensors;
    return FSDP_OK;
}

int ckpt_layout_add_stored(struct ckpt_layout *layout, const struct fsdp_tensor *tensor,
                           const char *stored, enum fsdp_slice_kind kind, struct fsdp_err *err)
{
    if (layout->ntensors >= CKPT_MAX_TENSORS)
        return fsdp_err_set(err, FSDP_EINVAL, "more than %d tensors", CKPT_MAX_TENSORS);
    struct ckpt_tensor *tensors =
        fsdp_alloc_grow(layout->tensors, (size_t)layout->ntensors, &layout->max_tensors,
                        sizeof *tensors, "tensors", err);
    if (!tensors)
        return FSDP_ENOMEM;
    layout->tensors = tensors;
    layout->tensors[layout->ntensors++] = (struct ckpt_tensor){
        .tensor = *tensor,
        .stored = stored,
        .kind = kind,
        .role = kind == FSDP_SLICE_MODEL ? CKPT_ROLE_MODEL : CKPT_ROLE_OPTIM,
    };
    return FSDP_OK;
}

int ckpt_layout_add_tensor(struct ckpt_layout *layout, const struct fsdp_tensor *tensor,
                           enum fsdp_slice_kind kind, struct fsdp_err *err)
{
    const size_t nbytes = strlen(tensor->name) + 1;
    char *name = ckpt_pool_text(&layout->names, nbytes, err);
    if (!name)
        return FSDP_ENOMEM;
    struct fsdp_tensor named = *tensor;
    named.name = memcpy(name, tensor->name, nbytes);
    return ckpt_layout_add_stored(layout, &named, name, kind, err);
}

int ckpt_layout_add_file(struct ckpt_layout *layout, const char *path, uint64_t nbytes,
                         struct fsdp_err *err)
{
    if (layout->nfiles >= CKPT_MAX_FILES)
        return fsdp_err_set(err, FSDP_EINVAL, "more than %d files", CKPT_MAX_FILES);
    struct ckpt_layout_file *files = fsdp_alloc_grow(
        layout->files, (size_t)layout->nfiles, &layout->max_files, sizeof *files, "files", err);
    if (!files)
        return FSDP_ENOMEM;
    layout->files = files;
    char *copy = fsdp_strdup(path, err);
    if (!copy)
        return FSDP_ENOMEM;
    layout->files[layout->nfiles++] = (struct ckpt_layout_file){.path = copy, .nbytes = nbytes};
    return FSDP_OK;
}

int ckpt_layout_reserve_pieces(struct ckpt_layout *layout, size_t npieces, struct fsdp_err *err)
{
    struct ckpt_piece *pieces =
        fsdp_alloc_reserve(layout->pieces, layout->npieces, &layout->max_pieces, npieces,
                           sizeof *pieces, "pieces", err);
    if (!pieces && npieces)
        return FSDP_ENOMEM;
    layout->pieces = pieces;
    return FSDP_OK;
}

int ckpt_layout_add_piece(struct ckpt_layout *layout, const struct ckpt_piece *piece,
                          struct fsdp_err *err)
{
    const int ndim = layout->tensors[piece->tensor].tensor.ndim;
    const struct fsdp_box box = ckpt_piece_box(piece, ndim);
    if (!fsdp_box_nelem(&box, ndim))
        return FSDP_OK;
    struct ckpt_piece *pieces = fsdp_alloc_grow(layout->pieces, layout->npieces,
                                                &layout->max_pieces, sizeof *pieces, "pieces", err);
    if (!pieces)
        return FSDP_ENOMEM;
    layout->pieces = pieces;
    struct ckpt_piece *mine = &layout->pieces[layout->npieces];
    *mine = *piece;
    mine->offset = ckpt_pool_dims(&layout->dims, piece->offset, ndim, err);
    mine->length = ckpt_pool_dims(&layout->dims, piece->length, ndim, err);
    if (!mine->offset || !mine->length)
        return FSDP_ENOMEM;
    layout->npieces++;
    return FSDP_OK;
}

/* Where `name` is in layout->slots, or the free slot where it belongs. */
static size_t slot_of(const struct ckpt_layout *layout, const char *name)
{
    size_t at = (size_t)ckpt_hash((uintptr_t)layout->slots, name, strlen(name));
    for (at &= layout->nslots - 1; layout->slots[at]; at = (at + 1) & (layout->nslots - 1))
        if (!strcmp(name, layout->tensors[layout->slots[at] - 1].tensor.name))
            break;
    return at;
}

/* The file that holds the first bytes of a tensor; NULL: none is known. */
static const char *file_of(const struct ckpt_layout *layout, int tensor)
{
    for (size_t i = 0; i < layout->npieces; i++)
        if (layout->pieces[i].tensor == tensor)
            return layout->files[layout->pieces[i].file].path;
    return NULL;
}

static int refuse_twice(const struct ckpt_layout *layout, int one, int other, struct fsdp_err *err)
{
    const char *name = layout->tensors[one].tensor.name;
    const char *a = file_of(layout, one), *b = file_of(layout, other);
    if (!a || !b)
        return fsdp_err_set(err, FSDP_ECORRUPT, "tensor '%s' is listed twice", name);
    if (!strcmp(a, b))
        return fsdp_err_set(
            err, FSDP_ECORRUPT,
            "tensor '%s' is listed twice in '%s': two of its values have this name, and "
            "no option can tell them apart; save one under another name",
            name, a);
    return fsdp_err_set(err, FSDP_ECORRUPT,
                        "tensor '%s' is listed twice: in '%s' and in '%s'; if one of them is "
                        "another model's, or an older one, move it elsewhere",
                        name, a, b);
}

int ckpt_layout_index(struct ckpt_layout *layout, struct fsdp_err *err)
{
    layout->nslots = 64;
    while (layout->nslots < 2 * (size_t)layout->ntensors)
        layout->nslots *= 2;
    fsdp_free(layout->slots);
    layout->slots = fsdp_alloc(layout->nslots, sizeof *layout->slots, "tensor index", err);
    if (!layout->slots)
        return FSDP_ENOMEM;
    for (int i = 0; i < layout->ntensors; i++) {
        const char *name = layout->tensors[i].tensor.name;
        size_t at = slot_of(layout, name);
        if (layout->slots[at])
            return refuse_twice(layout, layout->slots[at] - 1, i, err);
        layout->slots[at] = i + 1;
    }
    return FSDP_OK;
}

int ckpt_layout_find(const struct ckpt_layout *layout, const char *name)
{
    return layout->slots ? layout->slots[slot_of(layout, name)] - 1 : -1;
}

int ckpt_layout_find_near(const struct ckpt_layout *layout, const char *name, int near)
{
    if (near >= 0 && near < layout->ntensors && !strcmp(name, layout->tensors[near].tensor.name))
        return near;
    return ckpt_layout_find(layout, name);
}

static int compare_pieces(const void *a, const void *b, void *ctx)
{
    const struct ckpt_piece *x = a, *y = b;
    const struct ckpt_layout *layout = ctx;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    for (int d = 0; d < layout->tensors[x->tensor].tensor.ndim; d++)
        if (x->offset[d] != y->offset[d])
            return x->offset[d] < y->offset[d] ? -1 : 1;
    return x->file < y->file ? -1 : x->file > y->file;
}

int ckpt_layout_seal(struct ckpt_layout *layout, struct fsdp_err *err)
{
    size_t count = layout->npieces, p = 0;
    int rc = FSDP_OK;

    fsdp_free(layout->first);
    layout->first = fsdp_alloc((size_t)layout->ntensors + 1, sizeof *layout->first, "pieces", err);
    size_t *order = fsdp_alloc(count, sizeof *order, "pieces", err);
    if (!layout->first || !order) {
        fsdp_free(order);
        return FSDP_ENOMEM;
    }
    bool sorted = true;
    for (size_t i = 1; sorted && i < count; i++)
        sorted = compare_pieces(&layout->pieces[i - 1], &layout->pieces[i], layout) < 0;
    if (!sorted)
        qsort_r(layout->pieces, count, sizeof *layout->pieces, compare_pieces, layout);
    for (int t = 0; t < layout->ntensors; t++) {
        layout->first[t] = p;
        uint64_t reach = 0;
        for (; p < count && layout->pieces[p].tensor == t; p++) {
            struct ckpt_piece *piece = &layout->pieces[p];
            uint64_t end = piece->offset[0] + piece->length[0];
            piece->reach = reach = end > reach ? end : reach;
            order[p - layout->first[t]] = p;
        }
        if (rc == FSDP_OK)
            rc = ckpt_coverage_prove(layout, t, order, p - layout->first[t], err);
    }
    layout->first[layout->ntensors] = p;
    fsdp_free(order);
    return rc;
}

void ckpt_layout_free(struct ckpt_layout *layout)
{
    for (int i = 0; i < layout->nfiles; i++)
        fsdp_free(layout->files[i].path);
    fsdp_free(layout->tensors);
    fsdp_free(layout->files);
    fsdp_free(layout->pieces);
    ckpt_pool_free(&layout->names);
    ckpt_pool_free(&layout->dims);
    fsdp_free(layout->first);
    fsdp_free(layout->slots);
    memset(layout, 0, sizeof *layout);
}
