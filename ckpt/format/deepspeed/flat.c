/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "flat.h"

static int storage_add(struct ckpt_ds_storages *to, const struct ckpt_storage *storage,
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

int ckpt_ds_vector_take(struct ckpt_ds_vector *out, struct ckpt_ds_storages *storages,
                        const struct ckpt_saved *saved, const struct ckpt_pk *value,
                        const char *name, struct fsdp_err *err)
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
    return storage_add(storages, &storage, err);
}

int ckpt_ds_stream_add(struct ckpt_ds_stream *stream, const struct ckpt_ds_vector *vector,
                       struct fsdp_err *err)
{
    struct ckpt_ds_vector *vectors = fsdp_alloc_grow(stream->vectors, stream->count, &stream->max,
                                                     sizeof *vectors, "flat vectors", err);
    if (!vectors)
        return FSDP_ENOMEM;
    stream->vectors = vectors;
    vectors[stream->count++] = *vector;
    stream->nelem += vector->nelem;
    return FSDP_OK;
}

void ckpt_ds_stream_free(struct ckpt_ds_stream *stream)
{
    fsdp_free(stream->vectors);
    *stream = (struct ckpt_ds_stream){0};
}

/* A part of a vector: boxes, each contiguous in the tensor. */
static int vector_place(const struct ckpt_ds_vector *vector, uint64_t pos, uint64_t at,
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

int ckpt_ds_stream_place(const struct ckpt_ds_stream *stream, uint64_t pos, uint64_t at,
                         uint64_t nelem, struct ckpt_layout *layout, struct fsdp_err *err)
{
    for (size_t i = 0; i < stream->count && nelem; i++) {
        const struct ckpt_ds_vector *vector = &stream->vectors[i];
        if (pos >= vector->nelem) {
            pos -= vector->nelem;
            continue;
        }
        const uint64_t left = vector->nelem - pos, n = nelem < left ? nelem : left;
        FSDP_TRY(vector_place(vector, pos, at, n, layout, err));
        pos = 0;
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

void ckpt_ds_storages_sort(struct ckpt_ds_storages *storages)
{
    size_t kept = 0;
    if (storages->count)
        qsort(storages->items, storages->count, sizeof *storages->items, compare_storages);
    for (size_t i = 0; i < storages->count; i++)
        if (!kept || compare_storages(&storages->items[kept - 1], &storages->items[i]))
            storages->items[kept++] = storages->items[i];
    storages->count = kept;
}

struct ckpt_storage *ckpt_ds_storage_at(const struct ckpt_ds_storages *storages, int file,
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
