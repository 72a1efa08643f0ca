/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "plain.h"

int ckpt_plain_add(struct ckpt_plain_storages *to, const struct ckpt_storage *storage,
                   struct fsdp_err *err)
{
    struct ckpt_storage *items =
        fsdp_alloc_grow(to->items, to->count, &to->max, sizeof *items, "storages", err);
    if (!items)
        return FSDP_ENOMEM;
    to->items = items;
    items[to->count++] = *storage;
    return FSDP_OK;
}

int ckpt_plain_take(struct ckpt_plain_vector *out, struct ckpt_plain_storages *storages,
                    const struct ckpt_saved *saved, const struct ckpt_pk *value, const char *name,
                    struct fsdp_err *err)
{
    char what[2 * CKPT_MAX_PATH_NBYTES];
    struct ckpt_view_args view;
    struct ckpt_storage storage;
    bool plain = false;

    snprintf(what, sizeof what, "%s: '%.200s'", saved->what, name);
    if (!ckpt_view_is(value))
        return fsdp_err_set(err, FSDP_ECORRUPT, "%s is missing, or no tensor", what);
    FSDP_TRY(ckpt_view_parse(&view, value, what, err));
    FSDP_TRY(ckpt_view_prove(&plain, &out->nelem, &view, what, err));
    out->file = saved->file;
    out->dtype = view.dtype;
    out->pos = 0;
    if (!out->nelem)
        return FSDP_OK;
    if (!plain || view.negative || view.conjugate)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s is a tensor with strides", what);
    FSDP_TRY(ckpt_saved_storage(&storage, saved, &view, err));
    out->pos = storage.pos + view.offset * fsdp_dtype_nbytes(view.dtype);
    return ckpt_plain_add(storages, &storage, err);
}

int ckpt_plain_storage(struct ckpt_storage *out, const struct ckpt_saved *saved,
                       const struct ckpt_pk *value, struct fsdp_err *err)
{
    struct ckpt_view_args view;

    *out = (struct ckpt_storage){0};
    if (!ckpt_view_is(value))
        return FSDP_OK;
    FSDP_TRY(ckpt_view_parse(&view, value, saved->what, err));
    return view.storage_nbytes ? ckpt_saved_storage(out, saved, &view, err) : FSDP_OK;
}

int ckpt_plain_place(const struct ckpt_plain_vector *vector, uint64_t pos, uint64_t at,
                     uint64_t nelem, struct ckpt_layout *layout, struct fsdp_err *err)
{
    const int last = layout->ntensors - 1;
    const struct fsdp_tensor tensor = layout->tensors[last].tensor;
    const size_t elem_nbytes = fsdp_dtype_nbytes(vector->dtype);
    struct fsdp_box box;

    while (nelem) {
        const uint64_t n =
            ckpt_box_run(&box, &tensor, 0, tensor.ndim ? tensor.shape[0] : 1, at, nelem);
        const struct ckpt_piece piece = {.tensor = last,
                                         .file = vector->file,
                                         .offset = box.offset,
                                         .length = box.length,
                                         .pos = vector->pos + pos * elem_nbytes};
        FSDP_TRY(ckpt_layout_add_piece(layout, &piece, err));
        pos += n;
        at += n;
        nelem -= n;
    }
    return FSDP_OK;
}

static int compare_storages(const void *a, const void *b)
{
    const struct ckpt_storage *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->pos < y->pos ? -1 : x->pos > y->pos;
}

static int sort_storages(struct ckpt_plain_storages *storages, const struct ckpt *ckpt,
                         struct fsdp_err *err)
{
    size_t kept = 0;

    if (storages->count)
        qsort(storages->items, storages->count, sizeof *storages->items, compare_storages);
    for (size_t i = 0; i < storages->count; i++) {
        const struct ckpt_storage *last = kept ? &storages->items[kept - 1] : NULL;
        const struct ckpt_storage *next = &storages->items[i];
        if (last && last->file == next->file && last->pos == next->pos &&
            last->nbytes == next->nbytes)
            continue;
        if (last && last->file == next->file && next->pos < last->pos + last->nbytes)
            return fsdp_err_set(err, FSDP_ECORRUPT, "'%s/%s': two of its storages overlap",
                                ckpt->folder, ckpt->m.layout.files[next->file].path);
        storages->items[kept++] = *next;
    }
    storages->count = kept;
    return FSDP_OK;
}

static struct ckpt_storage *storage_at(const struct ckpt_plain_storages *storages, int file,
                                       uint64_t pos)
{
    const struct ckpt_storage key = {.file = file, .pos = pos};
    size_t low = 0, high = storages->count;

    while (low < high) { /* the first one behind */
        const size_t mid = low + (high - low) / 2;
        if (compare_storages(&storages->items[mid], &key) <= 0)
            low = mid + 1;
        else
            high = mid;
    }
    struct ckpt_storage *found = low ? &storages->items[low - 1] : NULL;
    return found && found->file == file && pos < found->pos + found->nbytes ? found : NULL;
}

int ckpt_plain_begin(struct ckpt_plain_storages **out, struct ckpt *ckpt, struct fsdp_err *err)
{
    ckpt->format_state = *out = fsdp_alloc(1, sizeof **out, "storages", err);
    return *out ? FSDP_OK : FSDP_ENOMEM;
}

int ckpt_plain_end(struct ckpt *ckpt, struct fsdp_err *err)
{
    struct ckpt_plain_storages *storages = ckpt->format_state;

    FSDP_TRY(sort_storages(storages, ckpt, err));
    ckpt->has_checksums = true;
    for (size_t i = 0; i < storages->count; i++)
        ckpt->has_checksums &= storages->items[i].crc32 != 0;
    return FSDP_OK;
}

void ckpt_plain_close(struct ckpt *ckpt)
{
    struct ckpt_plain_storages *storages = ckpt->format_state;

    if (storages)
        fsdp_free(storages->items);
    fsdp_free(storages);
    ckpt->format_state = NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

int ckpt_plain_read_extent(const struct ckpt_scatter *s, const struct ckpt_extent *extent,
                           const struct ckpt_block *block, const struct fsdp_tensor *tensor)
{
    const struct ckpt_view view = {
        .storage = storage_at(s->ckpt->format_state, extent->file, extent->pos), .summed = true};
    return ckpt_view_read(s, &view, extent, block, tensor);
}

static struct ckpt_storage *storage_of(const struct ckpt *ckpt, size_t piece)
{
    const struct ckpt_piece *p = &ckpt->m.layout.pieces[piece];
    return storage_at(ckpt->format_state, p->file, p->pos);
}

int ckpt_plain_check_piece(struct ckpt *ckpt, size_t piece, struct fsdp_err *err)
{
    return ckpt_storage_prove(ckpt, storage_of(ckpt, piece), piece, err);
}

/* A part of a storage that was read, in the order of the files. */
struct read_part {
    struct ckpt_storage *storage;
    uint64_t pos, nbytes;
    size_t piece;
};

static int compare_parts(const void *a, const void *b)
{
    const struct read_part *x = a, *y = b;
    if (x->storage != y->storage)
        return x->storage < y->storage ? -1 : 1;
    return x->pos < y->pos ? -1 : x->pos > y->pos;
}

/* What no tensor has of the storage of parts[0..count): padding. Then all of it was read. */
static int read_padding(struct ckpt *ckpt, const struct read_part *parts, size_t count,
                        struct fsdp_err *err)
{
    struct ckpt_storage *storage = parts[0].storage;
    uint64_t pos = storage->pos, used = 0;

    for (size_t i = 0; i < count; i++)
        used += parts[i].nbytes;
    if (storage->nsummed != used)
        return ckpt_storage_check(ckpt, storage, parts[0].piece, err);
    for (size_t i = 0; i <= count; i++) {
        const uint64_t end = i < count ? parts[i].pos : storage->pos + storage->nbytes;
        if (end > pos)
            FSDP_TRY(ckpt_storage_add(ckpt, storage, parts[0].piece, pos, end - pos, err));
        pos = i < count ? parts[i].pos + parts[i].nbytes : end;
    }
    return FSDP_OK;
}

int ckpt_plain_check_rest(struct ckpt *ckpt, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &ckpt->m.layout;
    struct read_part *parts = fsdp_alloc(layout->npieces, sizeof *parts, "parts", err);
    size_t count = 0;
    int rc = parts ? FSDP_OK : FSDP_ENOMEM;

    for (size_t i = 0; parts && i < layout->npieces; i++) {
        const struct ckpt_piece *p = &layout->pieces[i];
        const struct fsdp_tensor *tensor = &layout->tensors[p->tensor].tensor;
        const struct fsdp_box box = ckpt_piece_box(p, tensor->ndim);
        struct ckpt_storage *storage = storage_of(ckpt, i);
        if (storage->nsummed)
            parts[count++] = (struct read_part){
                storage, p->pos,
                fsdp_box_nelem(&box, tensor->ndim) * fsdp_dtype_nbytes(tensor->dtype), i};
    }
    if (count)
        qsort(parts, count, sizeof *parts, compare_parts);
    for (size_t i = 0, end; rc == FSDP_OK && i < count; i = end) {
        for (end = i + 1; end < count && parts[end].storage == parts[i].storage; end++)
            ;
        rc = read_padding(ckpt, parts + i, end - i, err);
    }
    fsdp_free(parts);
    return rc;
}
