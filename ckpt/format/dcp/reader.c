/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch.distributed.checkpoint: `.metadata`, one pickle that says which chunks (boxes) of which
 * tensors there are and where, and `*.distcp`, the chunks as torch.save archives back to back.
 *
 *     Metadata.state_dict_metadata   {name: TensorStorageMetadata | BytesStorageMetadata}
 *     Metadata.planner_data          {name: path in the nested state dict}
 *     Metadata.storage_data          {MetadataIndex(name, offset): _StorageInfo(file, offset,
 * length)}
 */
#include <stdlib.h>
#include <string.h>

#include "blob.h"
#include "dcp.h"
#include "dcp_names.h"
#include "files.h"
#include "format/hf/extras.h"
#include "source/source.h"
#include "util/text.h"
#include "format/hf/hf_names.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

enum {
    NDIM_VALUE = -1, /* a Python value, which has no offset */
    NDIM_MANY = -2,  /* more than FSDP_MAX_DIMS: no tensor that is read */
};

/* Where a chunk or value is, by its name and offset. */
struct place {
    const struct ckpt_pk *name, *offset; /* offset: a list of sizes, or NULL */
    const struct ckpt_pk *info;          /* file, position and length */
};

/* The same, looked up. */
struct found {
    int file;
    uint64_t pos, nbytes;
};

struct reader {
    struct ckpt *ckpt;
    struct ckpt_pickle *pickle;
    const char *path; /* of .metadata */
    const struct ckpt_pk *tensors, *paths;
    uint32_t *path_order; /* of the entries of paths, by name; NULL until one is searched */
    size_t npath_order;
    size_t nplaces;
    struct place *places; /* sorted */
    size_t near;          /* the place after the one found last */
    struct ckpt_dcp_files files;
    size_t nvalues;
    const struct place **values; /* Python values: read once all files are known */
    json_t *kept;                /* paths of the values: {name: path} */
};

/* ---- storage_data ---------------------------------------------------------------------------- */

static bool has_many_dims(const struct ckpt_pk *dims)
{
    return ckpt_pk_is_list(dims) && dims->nitems > FSDP_MAX_DIMS;
}

static int place_look_up(struct found *out, struct reader *r, const struct place *place,
                         struct fsdp_err *err)
{
    FSDP_TRY(
        ckpt_dcp_files_find(&out->file, &r->files, ckpt_pk_get(place->info, "relative_path"), err));
    if (ckpt_pk_u64(&out->pos, ckpt_pk_get(place->info, "offset")) &&
        ckpt_pk_u64(&out->nbytes, ckpt_pk_get(place->info, "length")))
        return FSDP_OK;
    return BAD("'%s': '%.*s' has no proper place in '%s'", r->path,
               (int)(place->name->nitems < 200 ? place->name->nitems : 200), place->name->u.text,
               r->ckpt->m.layout.files[out->file].path);
}

static int place_read(struct place *out, struct reader *r, const struct ckpt_pk *index,
                      const struct ckpt_pk *info, struct fsdp_err *err)
{
    const struct ckpt_pk *offset = ckpt_pk_get(index, "offset");
    const struct ckpt_pk *transforms = ckpt_pk_get(info, "transform_descriptors");

    if (!ckpt_pk_is_call(index, CKPT_PK_INDEX) || !ckpt_pk_is_call(info, CKPT_PK_STORAGE_INFO))
        return BAD("'%s': its storage_data is not as torch writes it", r->path);
    out->name = ckpt_pk_get(index, "fqn");
    if (!out->name || out->name->type != CKPT_PK_T_TEXT)
        return BAD("'%s': a chunk has no name", r->path);
    int len = (int)(out->name->nitems < 200 ? out->name->nitems : 200);
    if (transforms && transforms->type != CKPT_PK_T_NONE && transforms->nitems) {
        const struct ckpt_pk *first = ckpt_pk_item(transforms, 0);
        bool named = first && first->type == CKPT_PK_T_TEXT && first->nitems < 200;
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "'%s': '%.*s' was written through the stream transform '%.*s', which "
                            "is not read; save without extensions",
                            r->path, len, out->name->u.text, named ? (int)first->nitems : 1,
                            named ? first->u.text : "?");
    }
    uint64_t dims[FSDP_MAX_DIMS];
    int ndim;
    out->info = info;
    out->offset = offset && offset->type != CKPT_PK_T_NONE ? offset : NULL;
    if (out->offset && !has_many_dims(offset) && !ckpt_pk_dims(dims, &ndim, offset))
        return BAD("'%s': '%.*s' has a chunk whose offset is not a list of sizes", r->path, len,
                   out->name->u.text);
    struct found at;
    FSDP_TRY(place_look_up(&at, r, out, err));
    const struct ckpt_layout_file *file = &r->ckpt->m.layout.files[at.file];
    if (at.pos > file->nbytes || at.nbytes > file->nbytes - at.pos)
        return BAD("'%s/%s' has %llu bytes, but '%.*s' is at bytes %llu to %llu of it: truncated",
                   r->ckpt->path, file->path, (unsigned long long)file->nbytes, len,
                   out->name->u.text, (unsigned long long)at.pos,
                   (unsigned long long)(at.pos + at.nbytes));
    return FSDP_OK;
}

static int compare_texts(const struct ckpt_pk *a, const struct ckpt_pk *b)
{
    if (a == b)
        return 0;
    size_t nbytes = a->nitems < b->nitems ? a->nitems : b->nitems;
    int order = memcmp(a->u.text, b->u.text, nbytes);
    return order ? order : a->nitems < b->nitems ? -1 : a->nitems > b->nitems;
}

/* Of a place's offset, which place_read has checked. */
static int ndim_of(const struct ckpt_pk *offset)
{
    return !offset ? NDIM_VALUE : has_many_dims(offset) ? NDIM_MANY : (int)offset->nitems;
}

static int compare_places(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    const int order = compare_texts(x->name, y->name);
    const int xndim = ndim_of(x->offset), yndim = ndim_of(y->offset);
    if (order || xndim != yndim)
        return order ? order : xndim < yndim ? -1 : 1;
    for (int d = 0; d < xndim; d++) {
        const int64_t xd = x->offset->u.items[d]->u.integer, yd = y->offset->u.items[d]->u.integer;
        if (xd != yd)
            return xd < yd ? -1 : 1;
    }
    return 0;
}

static int places_read(struct reader *r, const struct ckpt_pk *storage, struct fsdp_err *err)
{
    if (!storage || storage->type != CKPT_PK_T_DICT || storage == r->tensors || storage == r->paths)
        return BAD("'%s' has no storage_data", r->path);
    r->places = fsdp_alloc_unset(storage->nitems / 2, sizeof *r->places, "chunks", err);
    if (!r->places)
        return FSDP_ENOMEM;
    for (size_t i = 0; i + 1 < storage->nitems; i += 2)
        FSDP_TRY(place_read(&r->places[r->nplaces++], r, storage->u.items[i],
                            storage->u.items[i + 1], err));
    ckpt_pickle_drop(r->pickle, storage);
    bool sorted = true;
    for (size_t i = 1; sorted && i < r->nplaces; i++)
        sorted = compare_places(&r->places[i - 1], &r->places[i]) <= 0;
    if (!sorted)
        qsort(r->places, r->nplaces, sizeof *r->places, compare_places);
    for (size_t i = 1; i < r->nplaces; i++) {
        const struct ckpt_pk *name = r->places[i].name;
        if (ndim_of(r->places[i].offset) != NDIM_MANY &&
            !compare_places(&r->places[i - 1], &r->places[i]))
            return BAD("'%s': storage_data places one chunk of '%.*s' twice", r->path,
                       (int)(name->nitems < 200 ? name->nitems : 200), name->u.text);
    }
    return FSDP_OK;
}

/* The first place that is not before `key`. Tries the one after the place found last: a tensor's
 * chunks mostly come in the order of their offsets. */
static size_t place_first(const struct reader *r, const struct place *key)
{
    size_t low = 0, high = r->nplaces;
    if (r->near < high && !compare_places(&r->places[r->near], key))
        return r->near;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (compare_places(&r->places[mid], key) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* NULL if there is none. */
static const struct place *place_find(struct reader *r, const struct place *key)
{
    size_t at = place_first(r, key);
    if (at == r->nplaces || compare_places(&r->places[at], key))
        return NULL;
    r->near = at + 1;
    return &r->places[at];
}

/* ---- tensors --------------------------------------------------------------------------------- */

static int dtype_read(enum fsdp_dtype *out, const struct reader *r, const char *name,
                      const struct ckpt_pk *entry, struct fsdp_err *err)
{
    const struct ckpt_pk *properties = ckpt_pk_get(entry, "properties");
    if (!ckpt_pk_is_call(properties, CKPT_PK_PROPERTIES))
        properties = NULL;
    const struct ckpt_pk *dtype = ckpt_pk_get(properties, "dtype");
    if (!dtype)
        dtype = ckpt_pk_item(ckpt_pk_state(properties), 0);
    const struct ckpt_pk_global *global = ckpt_pk_global_of(dtype);
    if (!global || global->role != CKPT_PK_DTYPE)
        return BAD("'%s': tensor '%s' has no dtype", r->path, name);
    if (global->dtype == CKPT_PK_NO_DTYPE)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "'%s': tensor '%s' is of torch.%s, which is "
                            "not supported",
                            r->path, name, global->name);
    *out = (enum fsdp_dtype)global->dtype;
    return FSDP_OK;
}

static int chunk_take(struct reader *r, const char *stored, const struct ckpt_pk *name, size_t at,
                      const struct ckpt_pk *chunk, struct fsdp_err *err)
{
    struct ckpt_layout *layout = &r->ckpt->m.layout;
    const struct fsdp_tensor *tensor = &layout->tensors[layout->ntensors - 1].tensor;
    uint64_t offset[FSDP_MAX_DIMS], length[FSDP_MAX_DIMS];
    struct place key = {.name = name, .offset = ckpt_pk_get(chunk, "offsets")};
    struct found at_file;
    struct ckpt_piece piece = {.tensor = layout->ntensors - 1, .offset = offset, .length = length};
    int ndim = -1, offset_ndim = -1;

    if (!ckpt_pk_is_call(chunk, CKPT_PK_CHUNK) || !ckpt_pk_dims(offset, &offset_ndim, key.offset) ||
        !ckpt_pk_dims(length, &ndim, ckpt_pk_get(chunk, "sizes")) || ndim != offset_ndim ||
        ndim != tensor->ndim)
        return BAD("'%s': tensor '%s': chunk %zu is not as torch writes it", r->path, stored, at);
    bool empty = false;
    for (int d = 0; d < ndim; d++) {
        empty |= !length[d];
        if (length[d] > tensor->shape[d] || offset[d] > tensor->shape[d] - length[d])
            return BAD("'%s': tensor '%s': chunk %zu leaves the tensor in dimension %d", r->path,
                       stored, at, d);
    }
    if (empty)
        return FSDP_OK;
    const struct place *place = place_find(r, &key);
    if (!place)
        return BAD("'%s': tensor '%s': storage_data does not say where chunk %zu is", r->path,
                   stored, at);
    FSDP_TRY(place_look_up(&at_file, r, place, err));
    piece.file = at_file.file;
    piece.pos = at_file.pos;
    piece.blob_nbytes = at_file.nbytes;
    if (!at_file.nbytes)
        return BAD("'%s': tensor '%s': chunk %zu has no bytes", r->path, stored, at);
    return ckpt_layout_add_piece(layout, &piece, err);
}

static int compare_path_names(const void *a, const void *b, void *ctx)
{
    const struct ckpt_pk *paths = ctx;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    int order = compare_texts(paths->u.items[x], paths->u.items[y]);
    return order ? order : x < y ? -1 : x > y;
}

static int paths_sort(struct reader *r, struct fsdp_err *err)
{
    const struct ckpt_pk *paths = r->paths;
    r->path_order = fsdp_alloc_unset(paths->nitems / 2 + 1, sizeof *r->path_order, "paths", err);
    if (!r->path_order)
        return FSDP_ENOMEM;
    for (uint32_t i = 0; i + 1 < paths->nitems; i += 2)
        if (paths->u.items[i]->type == CKPT_PK_T_TEXT)
            r->path_order[r->npath_order++] = i;
    qsort_r(r->path_order, r->npath_order, sizeof *r->path_order, compare_path_names,
            (void *)(uintptr_t)paths);
    return FSDP_OK;
}

/* *out: the path of `name` in planner_data, or NULL. The dict may have any order: torch merges
 * those of the ranks, last rank first. */
static int path_find(const struct ckpt_pk **out, struct reader *r, const struct ckpt_pk *name,
                     struct fsdp_err *err)
{
    *out = NULL;
    if (!r->paths)
        return FSDP_OK;
    if (!r->path_order)
        FSDP_TRY(paths_sort(r, err));
    size_t low = 0, high = r->npath_order;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (compare_texts(r->paths->u.items[r->path_order[mid]], name) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    if (low < r->npath_order && !compare_texts(r->paths->u.items[r->path_order[low]], name))
        *out = r->paths->u.items[r->path_order[low] + 1];
    return FSDP_OK;
}

static int unread_add(struct ckpt *ckpt, const struct ckpt_dcp_name *name,
                      const struct fsdp_err *why, struct fsdp_err *err)
{
    return ckpt_unread_add(ckpt, ckpt_dcp_name_here(name), name->stored, name->role, why->text,
                           err);
}

static int tensor_add(struct reader *r, const struct ckpt_dcp_name *name,
                      struct fsdp_tensor *tensor, struct fsdp_err *err)
{
    struct ckpt_layout *layout = &r->ckpt->m.layout;
    const bool model = name->role == CKPT_ROLE_MODEL;
    tensor->name = ckpt_dcp_name_here(name);
    FSDP_TRY(ckpt_layout_add_stored(layout, tensor, name->stored,
                                    model ? FSDP_SLICE_MODEL : FSDP_SLICE_OPTIM, err));
    struct ckpt_tensor *mine = &layout->tensors[layout->ntensors - 1];
    mine->role = name->role;
    mine->outer_nbytes = name->outer_nbytes;
    return FSDP_OK;
}

static int tensor_take(struct reader *r, const struct ckpt_pk *key,
                       const struct ckpt_dcp_name *name, const struct ckpt_pk *entry,
                       struct fsdp_err *err)
{
    struct fsdp_tensor tensor = {.name = name->stored};
    const struct ckpt_pk *chunks = ckpt_pk_get(entry, "chunks"), *size = ckpt_pk_get(entry, "size");
    struct fsdp_err why = FSDP_ERR_INIT;

    /* A flat parameter of FSDP1 (LOCAL_STATE_DICT): format/fsdp1 finds out what is in it. */
    r->ckpt->has_flat |= ckpt_dcp_is_flat_param(name->stored);
    const char *here = ckpt_dcp_name_here(name); /* what --exclude knows */
    int readable = dtype_read(&tensor.dtype, r, here, entry, &why);
    if (readable == FSDP_OK && has_many_dims(size))
        readable = fsdp_err_set(&why, FSDP_EUNSUPPORTED,
                                "'%s': tensor '%s' has %u dimensions; at most %d are supported",
                                r->path, here, size->nitems, FSDP_MAX_DIMS);
    if (readable == FSDP_EUNSUPPORTED)
        return unread_add(r->ckpt, name, &why, err);
    if (readable != FSDP_OK)
        return fsdp_err_pass(err, readable, &why);
    if (!ckpt_pk_dims(tensor.shape, &tensor.ndim, size))
        return BAD("'%s': tensor '%s' has no proper size", r->path, name->stored);
    if (fsdp_tensor_check(&tensor, &why))
        return BAD("'%s': %s", r->path, why.text);
    if (!ckpt_pk_is_list(chunks))
        return BAD("'%s': tensor '%s' has no list of chunks", r->path, name->stored);
    FSDP_TRY(tensor_add(r, name, &tensor, err));
    for (size_t i = 0; i < chunks->nitems; i++)
        FSDP_TRY(chunk_take(r, name->stored, key, i, chunks->u.items[i], err));
    return FSDP_OK;
}

static json_t *path_json(const struct ckpt_pk *path)
{
    json_t *out = json_array();
    for (size_t i = 0; i < path->nitems; i++) {
        const struct ckpt_pk *item = path->u.items[i];
        json_array_append_new(out, item->type == CKPT_PK_T_TEXT
                                       ? json_stringn(item->u.text, item->nitems)
                                       : json_integer(item->u.integer));
    }
    return out;
}

static int value_take(struct reader *r, const struct ckpt_pk *key, const struct ckpt_dcp_name *name,
                      struct fsdp_err *err)
{
    struct place wanted = {.name = key};
    const struct place *place = place_find(r, &wanted);
    if (!place)
        return BAD("'%s': storage_data does not say where '%s' is", r->path, name->stored);
    r->values[r->nvalues++] = place;
    if (name->path && name->path->nitems > 1)
        json_object_set_new(r->kept, name->stored, path_json(name->path));
    return FSDP_OK;
}

/* ---- entries --------------------------------------------------------------------------------- */

/* Why an entry of this name is left out, in `why`; false if it is not. */
static bool is_odd(struct fsdp_err *why, const struct reader *r, const struct ckpt_pk *key,
                   const struct ckpt_dcp_name *name)
{
    const char *kind = name->is_tensor ? "tensor" : "value", *what = NULL;
    const char *here = ckpt_dcp_name_here(name);
    if (!*here)
        what = "has an empty name";
    else if (memchr(key->u.text, 0, key->nitems))
        what = "has a name with a 0 byte";
    else if (!name->is_tensor && !ckpt_utf8_check(name->stored))
        what = "has a name that is not valid UTF-8";
    if (what)
        fsdp_err_set(why, FSDP_EUNSUPPORTED, "'%s': %s '%.200s' %s, which is not supported",
                     r->path, kind, here, what);
    else if (key->nitems > CKPT_MAX_NAME_NBYTES)
        fsdp_err_set(why, FSDP_EUNSUPPORTED,
                     "'%s': %s '%.64s...' has a name of %u bytes; at most %d are supported",
                     r->path, kind, here, key->nitems, CKPT_MAX_NAME_NBYTES);
    return what || key->nitems > CKPT_MAX_NAME_NBYTES;
}

static int entry_take(struct reader *r, const struct ckpt_pk *key, const struct ckpt_pk *entry,
                      const struct ckpt_dcp_name *name, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    bool odd = is_odd(&why, r, key, name);
    if (odd && name->is_tensor)
        return unread_add(r->ckpt, name, &why, err);
    if (name->is_tensor)
        return tensor_take(r, key, name, entry, err);
    if (!odd)
        return value_take(r, key, name, err);
    fsdp_log(FSDP_LOG_WARN, "%s; it is left out", why.text);
    return FSDP_OK;
}

/* A name as C text, of layout->names: a 0 byte becomes \0, so that --exclude can name it. */
static const char *stored_of(struct reader *r, const struct ckpt_pk *key, struct fsdp_err *err)
{
    size_t nbytes = (size_t)key->nitems + 1, used = 0;
    for (size_t i = 0; i < key->nitems; i++)
        nbytes += !key->u.text[i];
    char *out = ckpt_pool_text(&r->ckpt->m.layout.names, nbytes, err);
    for (size_t i = 0; out && i < key->nitems; i++) {
        if (!key->u.text[i])
            out[used++] = '\\';
        out[used++] = key->u.text[i] ? key->u.text[i] : '0';
    }
    if (out)
        out[used] = 0;
    return out;
}

/* Of entry i of state_dict_metadata. planner_data mostly has the same names in the same order. */
static int name_read(struct ckpt_dcp_name *out, struct reader *r, size_t i, struct fsdp_err *err)
{
    const struct ckpt_pk *key = r->tensors->u.items[i], *entry = r->tensors->u.items[i + 1];
    const struct ckpt_pk *path = NULL;
    if (key->type != CKPT_PK_T_TEXT)
        return BAD("'%s': a name is not a text", r->path);
    if (r->paths && i + 1 < r->paths->nitems && r->paths->u.items[i]->type == CKPT_PK_T_TEXT &&
        !compare_texts(r->paths->u.items[i], key))
        path = r->paths->u.items[i + 1];
    else
        FSDP_TRY(path_find(&path, r, key, err));
    if (!(out->stored = stored_of(r, key, err)))
        return FSDP_ENOMEM;
    out->path = ckpt_pk_is_list(path) ? path : NULL;
    out->is_tensor = ckpt_pk_is_call(entry, CKPT_PK_TENSOR_STORAGE);
    if (!out->is_tensor && !ckpt_pk_is_call(entry, CKPT_PK_BYTES_STORAGE))
        return BAD("'%s': '%s' is neither a tensor nor a value", r->path, out->stored);
    return FSDP_OK;
}

static int entries_take(struct reader *r, struct fsdp_err *err)
{
    const struct ckpt_pk *tensors = r->tensors;
    size_t count = tensors->nitems / 2;
    struct ckpt_dcp_name *names = fsdp_alloc(count, sizeof *names, "names", err);
    int rc = names ? FSDP_OK : FSDP_ENOMEM;
    r->values = fsdp_alloc(count, sizeof *r->values, "values", err);
    r->kept = json_object();
    if (!r->values || !r->kept)
        rc = FSDP_ENOMEM;
    for (size_t i = 0; rc == FSDP_OK && i < count; i++)
        rc = name_read(&names[i], r, 2 * i, err);
    if (rc == FSDP_OK)
        rc = ckpt_dcp_names_settle(names, count, err);
    for (size_t i = 0; rc == FSDP_OK && i < count; i++)
        rc = entry_take(r, tensors->u.items[2 * i], tensors->u.items[2 * i + 1], &names[i], err);
    fsdp_free(names);
    return rc;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int metadata_take(struct reader *r, const struct ckpt_pk *root, struct fsdp_err *err)
{
    if (!ckpt_pk_is_call(root, CKPT_PK_METADATA))
        return BAD("'%s' is a pickle, but not of torch's checkpoint metadata", r->path);
    r->tensors = ckpt_pk_get(root, "state_dict_metadata");
    r->paths = ckpt_pk_get(root, "planner_data");
    if (!r->tensors || r->tensors->type != CKPT_PK_T_DICT)
        return BAD("'%s' has no state_dict_metadata", r->path);
    if (r->tensors->nitems / 2 > CKPT_MAX_TENSORS)
        return BAD("'%s' lists %u tensors", r->path, r->tensors->nitems / 2);
    if (r->paths && r->paths->type != CKPT_PK_T_DICT)
        r->paths = NULL;
    FSDP_TRY(places_read(r, ckpt_pk_get(root, "storage_data"), err));
    FSDP_TRY(ckpt_layout_reserve_tensors(&r->ckpt->m.layout, r->tensors->nitems / 2, err));
    FSDP_TRY(ckpt_layout_reserve_pieces(&r->ckpt->m.layout, r->nplaces, err));
    return entries_take(r, err);
}

/* The Python values as JSON: {"values": {name: value}, "paths": {name: path}}. */
static int values_read(struct reader *r, struct fsdp_err *err)
{
    struct ckpt *ckpt = r->ckpt;
    json_t *values = json_object();
    int rc = values ? FSDP_OK : FSDP_ENOMEM;
    for (size_t i = 0; rc == FSDP_OK && i < r->nvalues; i++) {
        const struct place *place = r->values[i];
        json_t *value = NULL;
        char *name;
        struct found at;
        rc = ckpt_dcp_text(&name, place->name, CKPT_MAX_NAME_NBYTES, r->path, err);
        if (rc == FSDP_OK)
            rc = place_look_up(&at, r, place, err);
        if (rc == FSDP_OK)
            rc = ckpt_dcp_value(&value, ckpt, &(struct ckpt_blob_place){at.file, at.pos, at.nbytes},
                                name, err);
        if (rc == FSDP_OK && json_object_set_new(values, name, value))
            rc = BAD("'%s': '%s' is not a name in UTF-8", r->path, name);
        fsdp_free(name);
    }
    if (rc == FSDP_OK && r->nvalues) {
        json_t *root = json_pack("{s:O, s:O}", "values", values, "paths", r->kept);
        char *text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
        ckpt->m.state_json = text ? fsdp_strdup(text, err) : NULL;
        rc = ckpt->m.state_json ? FSDP_OK : FSDP_ENOMEM;
        free(text);
        json_decref(root);
    }
    json_decref(values);
    return rc;
}

static int open_dcp(struct ckpt *ckpt, struct fsdp_err *err)
{
    struct ckpt_pickle pickle = {0};
    struct reader r = {.ckpt = ckpt, .pickle = &pickle};
    char *path = ckpt_path_join(ckpt->folder, CKPT_DCP_METADATA_NAME, err), *data = NULL;
    char *what = NULL;
    size_t nbytes;
    int rc = FSDP_ENOMEM;

    ckpt->m.step = -1;
    ckpt->m.shard_size = ckpt->m.replicate_size = 1;
    ckpt->has_checksums = true;
    r.path = path;
    r.files = (struct ckpt_dcp_files){.ckpt = ckpt, .metadata = path};
    if (!path || !(what = fsdp_sprintf(err, "'%s'", path)))
        goto out;
    FSDP_TRY_GOTO(ckpt_source_get_head(&data, &nbytes, ckpt, path, CKPT_MAX_METADATA_NBYTES, err),
                  out);
    FSDP_TRY_GOTO(ckpt_pickle_parse_shared(&pickle, data, nbytes, what, err), out);
    fsdp_free(data); /* as large as what was made of it */
    data = NULL;
    FSDP_TRY_GOTO(metadata_take(&r, pickle.root, err), out);
    FSDP_TRY_GOTO(ckpt_readers_create(ckpt, err), out);
    FSDP_TRY_GOTO(values_read(&r, err), out);
    FSDP_TRY_GOTO(ckpt_layout_index(&ckpt->m.layout, err), out);
    FSDP_TRY_GOTO(ckpt_layout_seal(&ckpt->m.layout, err), out);
    FSDP_TRY_GOTO(ckpt_contained_find(ckpt, err), out);
    FSDP_TRY_GOTO(ckpt_extras_find_here(ckpt, err), out);
    rc = ckpt_dcp_finish(ckpt, err);
    if (rc == FSDP_OK)
        ckpt_dcp_files_warn(&r.files);
out:
    ckpt_pickle_free(&pickle);
    fsdp_free(r.values);
    json_decref(r.kept);
    fsdp_free(r.places);
    fsdp_free(r.path_order);
    ckpt_dcp_files_free(&r.files);
    fsdp_free(data);
    fsdp_free(what);
    fsdp_free(path);
    return rc;
}

/* A folder may have an index of Hugging Face, too. */
static const char *const heads[] = {CKPT_HF_INDEX_NAME, CKPT_DCP_METADATA_NAME, NULL};

/* A blob holds just one box. */
static bool same_view(const struct ckpt *ckpt, int a, int b)
{
    (void)ckpt, (void)a, (void)b;
    return true;
}

const struct ckpt_format_ops ckpt_dcp_ops = {
    .id = CKPT_DCP,
    .identity = CKPT_IDENTITY_MTIME,
    .keeps_names = true,
    .heads = heads,
    .recognize = ckpt_dcp_recognize,
    .recognize_within = ckpt_dcp_recognize_within,
    .explain = ckpt_dcp_explain,
    .open = open_dcp,
    .close = ckpt_blobs_destroy,
    .read_extent = ckpt_blob_extent_read,
    .same_view = same_view,
    .check_piece = ckpt_blob_check,
    .check_rest = ckpt_blobs_finish,
};
