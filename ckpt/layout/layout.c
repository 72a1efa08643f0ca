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

int ckpt_layout_add_tensor(struct ckpt_layout *layout, const struct fsdp_tensor *tensor,
                           enum fsdp_slice_kind kind, struct fsdp_err *err)
{
    if (layout->ntensors >= CKPT_MAX_TENSORS)
        return fsdp_err_set(err, FSDP_EINVAL, "more than %d tensors", CKPT_MAX_TENSORS);
    struct ckpt_tensor *tensors =
        fsdp_alloc_grow(layout->tensors, (size_t)layout->ntensors, &layout->max_tensors,
                        sizeof *tensors, "tensors", err);
    if (!tensors)
        return FSDP_ENOMEM;
    layout->tensors = tensors;
    char *name = fsdp_strdup(tensor->name, err);
    if (!name)
        return FSDP_ENOMEM;
    struct ckpt_tensor *mine = &layout->tensors[layout->ntensors++];
    *mine = (struct ckpt_tensor){.tensor = *tensor, .kind = kind};
    mine->role = kind == FSDP_SLICE_MODEL ? CKPT_ROLE_MODEL : CKPT_ROLE_OPTIM;
    mine->tensor.name = mine->stored = name;
    return FSDP_OK;
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
    mine->offset = ckpt_dims_keep(&layout->dims, piece->offset, ndim, err);
    mine->length = ckpt_dims_keep(&layout->dims, piece->length, ndim, err);
    if (!mine->offset || !mine->length)
        return FSDP_ENOMEM;
    layout->npieces++;
    return FSDP_OK;
}

struct fsdp_box ckpt_piece_box(const struct ckpt_piece *piece, int ndim)
{
    struct fsdp_box box = {{0}, {0}};
    memcpy(box.offset, piece->offset, (size_t)ndim * sizeof *box.offset);
    memcpy(box.length, piece->length, (size_t)ndim * sizeof *box.length);
    return box;
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
            return fsdp_err_set(err, FSDP_ECORRUPT, "tensor '%s' is listed twice", name);
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
    for (int i = 0; i < layout->ntensors; i++) {
        const struct ckpt_tensor *t = &layout->tensors[i];
        if (t->stored != t->tensor.name)
            fsdp_free((char *)(uintptr_t)t->stored);
        fsdp_free((char *)(uintptr_t)t->tensor.name);
    }
    for (int i = 0; i < layout->nfiles; i++)
        fsdp_free(layout->files[i].path);
    fsdp_free(layout->tensors);
    fsdp_free(layout->files);
    fsdp_free(layout->pieces);
    ckpt_dims_free(&layout->dims);
    fsdp_free(layout->first);
    fsdp_free(layout->slots);
    memset(layout, 0, sizeof *layout);
}

void ckpt_box_text(char *out, size_t out_nbytes, const struct fsdp_box *box, int ndim)
{
    size_t len = 0;
    for (int d = 0; d < ndim && len < out_nbytes; d++)
        len += (size_t)snprintf(out + len, out_nbytes - len, "%s%llu:%llu", d ? ", " : "[",
                                (unsigned long long)box->offset[d],
                                (unsigned long long)(box->offset[d] + box->length[d]));
    if (len < out_nbytes)
        snprintf(out + len, out_nbytes - len, ndim ? "]" : "[]");
}

struct fsdp_box ckpt_box_whole(const struct fsdp_tensor *tensor)
{
    struct fsdp_box box = {{0}, {0}};
    memcpy(box.length, tensor->shape, (size_t)tensor->ndim * sizeof *tensor->shape);
    return box;
}

uint64_t ckpt_box_run(struct fsdp_box *out, const struct fsdp_tensor *tensor, uint64_t row,
                      uint64_t nrows, uint64_t at, uint64_t most_nelem)
{
    *out = ckpt_box_whole(tensor);
    if (!tensor->ndim)
        return 1;
    out->offset[0] = row;
    out->length[0] = nrows;
    uint64_t inner =
        fsdp_box_nelem(out, tensor->ndim); /* of one index of the dimensions before d */
    for (int d = 0; d < tensor->ndim; d++) {
        uint64_t length = out->length[d];
        inner /= length;
        uint64_t index = at / inner % length, left = length - index;
        bool aligned = at % inner == 0;
        out->offset[d] += index;
        if (aligned && inner <= most_nelem) {
            out->length[d] = most_nelem / inner < left ? most_nelem / inner : left;
            return out->length[d] * inner;
        }
        out->length[d] = 1;
    }
    return 1;
}

uint64_t ckpt_replica_part(struct fsdp_box *out, const struct fsdp_box *box, int ndim, int replica,
                           int nreplica)
{
    *out = *box;
    if (ndim == 0)
        return replica == 0;
    uint64_t rows = box->length[0], each = rows / (uint64_t)nreplica;
    uint64_t more = rows % (uint64_t)nreplica, r = (uint64_t)replica;
    out->offset[0] += r * each + (r < more ? r : more);
    out->length[0] = each + (r < more);
    return fsdp_box_nelem(out, ndim);
}
