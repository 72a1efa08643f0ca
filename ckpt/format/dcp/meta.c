/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "archive.h"
#include "meta.h"
#include "util/limits.h"
#include "format/pickle/pickle_write.h"

int ckpt_dcp_meta_create(struct ckpt_dcp_meta **out, struct fsdp_err *err)
{
    *out = fsdp_alloc(1, sizeof **out, "torch metadata", err);
    return *out ? FSDP_OK : FSDP_ENOMEM;
}

void ckpt_dcp_meta_free(struct ckpt_dcp_meta *meta)
{
    if (!meta)
        return;
    for (int i = 0; i < meta->nentries; i++) {
        fsdp_free(meta->entries[i].stored);
        fsdp_free(meta->entries[i].name);
        json_decref(meta->entries[i].path);
    }
    for (int i = 0; i < meta->nfiles; i++)
        fsdp_free(meta->files[i]);
    fsdp_free(meta->entries);
    fsdp_free(meta->boxes);
    fsdp_free(meta->files);
    fsdp_free(meta);
}

const char *ckpt_dcp_meta_file(struct ckpt_dcp_meta *meta, const char *file, struct fsdp_err *err)
{
    /* Boxes come file by file. */
    if (meta->nfiles && !strcmp(meta->files[meta->nfiles - 1], file))
        return meta->files[meta->nfiles - 1];
    for (int i = 0; i < meta->nfiles; i++)
        if (!strcmp(meta->files[i], file))
            return meta->files[i];
    char **files = fsdp_alloc_grow(meta->files, (size_t)meta->nfiles, &meta->max_files,
                                   sizeof *files, "torch metadata", err);
    if (!files)
        return NULL;
    meta->files = files;
    char *copy = fsdp_strdup(file, err);
    if (copy)
        meta->files[meta->nfiles++] = copy;
    return copy;
}

/* ---- collecting ------------------------------------------------------------------------------ */

int ckpt_dcp_meta_add(struct ckpt_dcp_meta *meta, const char *stored, json_t *path,
                      struct fsdp_err *err)
{
    struct ckpt_dcp_entry *entries;
    char *copy;

    if (!path)
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' is not in UTF-8", stored);
    entries = fsdp_alloc_grow(meta->entries, (size_t)meta->nentries, &meta->max_entries,
                              sizeof *entries, "torch metadata", err);
    if (entries)
        meta->entries = entries;
    copy = entries ? fsdp_strdup(stored, err) : NULL;
    if (!copy) {
        json_decref(path);
        return FSDP_ENOMEM;
    }
    meta->entries[meta->nentries] =
        (struct ckpt_dcp_entry){.stored = copy, .path = path, .same_as = -1};
    return meta->nentries++;
}

/* The container that a name lies in, from how the source called it: "optim" and "model" where
 * nothing is known. `stored` ends with `name`. */
static json_t *container_of(const char *name, const char *stored, const char *otherwise)
{
    if (!stored)
        return json_pack("[s]", otherwise);
    json_t *path = json_array();
    const char *end = stored + strlen(stored) - strlen(name);
    for (const char *p = stored; p < end;) {
        const char *dot = memchr(p, '.', (size_t)(end - p));
        size_t nbytes = (size_t)((dot ? dot : end) - p);
        json_array_append_new(path, json_stringn(p, nbytes));
        p += nbytes + 1;
    }
    return path;
}

/* ["optim", "state", "layers.0.weight", "exp_avg"] of state.layers.0.weight.exp_avg */
static json_t *path_of(const char *name, enum ckpt_role role, const char *stored)
{
    const char *last = strrchr(name, '.');
    bool of_state = !strncmp(name, "state.", 6) && last && last > name + 6;
    if (stored && !fsdp_text_ends(stored, name))
        stored = NULL;
    bool contained = role == CKPT_ROLE_OPTIM || (stored && strlen(stored) > strlen(name));
    if (role == CKPT_ROLE_MODEL) {
        json_t *path = container_of(name, stored, "model");
        json_array_append_new(path, json_string(name));
        return path;
    }
    if (!of_state || !contained)
        return json_pack("[s]", stored ? stored : name);
    json_t *path = container_of(name, stored, "optim");
    json_array_append_new(path, json_string("state"));
    json_array_append_new(path, json_stringn(name + 6, (size_t)(last - name) - 6));
    json_array_append_new(path, json_string(last + 1));
    return path;
}

/* The elements of a path joined by dots, as DCP names what lies there; freed with fsdp_free. */
static char *path_join(const json_t *path, struct fsdp_err *err)
{
    struct ckpt_text text = {0};
    for (size_t i = 0; i < json_array_size(path); i++)
        ckpt_text_printf(&text, "%s%s", i ? "." : "", json_string_value(json_array_get(path, i)));
    if (!text.failed)
        return text.data;
    ckpt_text_free(&text);
    fsdp_err_set(err, FSDP_ENOMEM, "torch metadata: out of memory");
    return NULL;
}

int ckpt_dcp_meta_tensor(struct ckpt_dcp_meta *meta, const struct fsdp_tensor *tensor,
                         enum ckpt_role role, const char *stored, struct fsdp_err *err)
{
    FSDP_TRY(fsdp_tensor_check(tensor, err));
    json_t *path = path_of(tensor->name, role, stored);
    char *full = path_join(path, err);
    int at = full ? ckpt_dcp_meta_add(meta, full, path, err) : FSDP_ENOMEM;
    if (!full)
        json_decref(path);
    fsdp_free(full);
    if (at < 0)
        return at;
    struct ckpt_dcp_entry *entry = &meta->entries[at];
    entry->name = fsdp_strdup(tensor->name, err);
    entry->role = role;
    entry->tensor = *tensor;
    entry->tensor.name = entry->name;
    return entry->name ? at : FSDP_ENOMEM;
}

int ckpt_dcp_meta_box(struct ckpt_dcp_meta *meta, int tensor, const struct fsdp_box *box,
                      const char *file, uint64_t pos, struct fsdp_err *err)
{
    const struct fsdp_tensor *t = &meta->entries[tensor].tensor;
    struct ckpt_dcp_blob blob;
    if (!fsdp_box_nelem(box, t->ndim) && fsdp_tensor_nelem(t))
        return FSDP_OK;
    FSDP_TRY(ckpt_dcp_blob_measure(&blob, t->dtype, box->length, t->ndim, err));
    struct ckpt_dcp_box *boxes = fsdp_alloc_grow(meta->boxes, meta->nboxes, &meta->max_boxes,
                                                 sizeof *boxes, "torch metadata", err);
    if (!boxes)
        return FSDP_ENOMEM;
    meta->boxes = boxes;
    const char *name = ckpt_dcp_meta_file(meta, file, err);
    if (!name)
        return FSDP_ENOMEM;
    meta->boxes[meta->nboxes++] = (struct ckpt_dcp_box){tensor, name, *box, pos, blob.nbytes};
    return FSDP_OK;
}

int ckpt_dcp_meta_alias(struct ckpt_dcp_meta *meta, const char *name, int tensor,
                        struct fsdp_err *err)
{
    struct fsdp_tensor copy = meta->entries[tensor].tensor;
    copy.name = name;
    int at = ckpt_dcp_meta_tensor(meta, &copy, CKPT_ROLE_MODEL, NULL, err);
    if (at < 0)
        return at;
    meta->entries[at].same_as = tensor;
    return FSDP_OK;
}

/* ---- formatting ------------------------------------------------------------------------------ */

#define META "torch.distributed.checkpoint.metadata\n"

/* Keys that come often: kept by address. */
static const char k_properties[] = "properties", k_size[] = "size", k_chunks[] = "chunks",
                  k_offsets[] = "offsets", k_sizes[] = "sizes", k_fqn[] = "fqn",
                  k_index[] = "index", k_offset[] = "offset", k_path[] = "relative_path",
                  k_length[] = "length", k_strided[] = "torch.strided";
static const char g_properties[] = META "TensorProperties\n",
                  g_tensor[] = META "TensorStorageMetadata\n",
                  g_bytes[] = META "BytesStorageMetadata\n",
                  g_chunk[] = META "ChunkStorageMetadata\n", g_index[] = META "MetadataIndex\n",
                  g_encoding[] = META "_MEM_FORMAT_ENCODING\n",
                  g_layout[] = "torch.serialization\n_get_layout\n",
                  g_info[] = "torch.distributed.checkpoint.filesystem\n_StorageInfo\n";

static void add_properties(struct ckpt_pkw *w, enum fsdp_dtype dtype)
{
    ckpt_pkw_instance(w, g_properties);
    ckpt_pkw_op(w, PK_MARK);
    ckpt_pkw_global(w, ckpt_pkw_dtype(dtype));
    ckpt_pkw_global(w, g_layout);
    ckpt_pkw_kept_text(w, k_strided);
    ckpt_pkw_op(w, PK_TUPLE1);
    ckpt_pkw_op(w, PK_REDUCE);
    ckpt_pkw_op(w, PK_NEWFALSE); /* requires_grad */
    ckpt_pkw_global(w, g_encoding);
    ckpt_pkw_int(w, 0);
    ckpt_pkw_op(w, PK_TUPLE1);
    ckpt_pkw_op(w, PK_REDUCE);
    ckpt_pkw_op(w, PK_NEWFALSE); /* pin_memory */
    ckpt_pkw_op(w, PK_TUPLE);
    ckpt_pkw_op(w, PK_BUILD);
}

static void add_chunk(struct ckpt_pkw *w, const struct fsdp_box *box, int ndim)
{
    ckpt_pkw_object_begin(w, g_chunk);
    ckpt_pkw_kept_text(w, k_offsets);
    ckpt_pkw_size(w, box->offset, ndim);
    ckpt_pkw_kept_text(w, k_sizes);
    ckpt_pkw_size(w, box->length, ndim);
    ckpt_pkw_object_end(w);
}

/* The boxes of an entry are [first[i], first[i + 1]) of sorted. */
struct formatter {
    const struct ckpt_dcp_meta *meta;
    const struct ckpt_dcp_box **sorted;
    size_t *first;
};

static int boxes_of(const struct formatter *f, int entry)
{
    int other = f->meta->entries[entry].same_as;
    return other < 0 ? entry : other;
}

static void add_tensor(struct ckpt_pkw *w, const struct formatter *f, int i)
{
    const struct ckpt_dcp_entry *entry = &f->meta->entries[i];
    int at = boxes_of(f, i), ndim = entry->tensor.ndim;
    ckpt_pkw_object_begin(w, g_tensor);
    ckpt_pkw_kept_text(w, k_properties);
    add_properties(w, entry->tensor.dtype);
    ckpt_pkw_kept_text(w, k_size);
    ckpt_pkw_size(w, entry->tensor.shape, ndim);
    ckpt_pkw_kept_text(w, k_chunks);
    ckpt_pkw_list_begin(w);
    for (size_t b = f->first[at]; b < f->first[at + 1]; b++)
        add_chunk(w, &f->sorted[b]->box, ndim);
    ckpt_pkw_list_end(w);
    ckpt_pkw_object_end(w);
}

/* MetadataIndex -> _StorageInfo; index < 0: a value. */
static void add_place(struct ckpt_pkw *w, const struct ckpt_dcp_entry *entry,
                      const struct ckpt_dcp_box *box, int64_t index)
{
    ckpt_pkw_object_begin(w, g_index);
    ckpt_pkw_kept_text(w, k_fqn);
    ckpt_pkw_kept_text(w, entry->stored);
    if (index >= 0) {
        ckpt_pkw_kept_text(w, k_index);
        ckpt_pkw_int(w, index);
        ckpt_pkw_kept_text(w, k_offset);
        ckpt_pkw_size(w, box->box.offset, entry->tensor.ndim);
    } else {
        ckpt_pkw_kept_text(w, k_index);
        ckpt_pkw_op(w, PK_NONE);
    }
    ckpt_pkw_object_end(w);
    ckpt_pkw_object_begin(w, g_info);
    ckpt_pkw_kept_text(w, k_path);
    ckpt_pkw_kept_text(w, box->file);
    ckpt_pkw_kept_text(w, k_offset);
    ckpt_pkw_u64(w, box->pos);
    ckpt_pkw_kept_text(w, k_length);
    ckpt_pkw_u64(w, box->nbytes);
    ckpt_pkw_object_end(w);
}

static void add_entries(struct ckpt_pkw *w, const struct formatter *f)
{
    const struct ckpt_dcp_meta *meta = f->meta;
    size_t nplaces = 0;
    ckpt_pkw_text(w, "state_dict_metadata");
    ckpt_pkw_dict_begin(w);
    for (int i = 0; i < meta->nentries; i++) {
        ckpt_pkw_dict_next(w, (size_t)i);
        ckpt_pkw_kept_text(w, meta->entries[i].stored);
        if (meta->entries[i].value)
            ckpt_pkw_instance(w, g_bytes);
        else
            add_tensor(w, f, i);
    }
    ckpt_pkw_dict_end(w);
    ckpt_pkw_text(w, "planner_data");
    ckpt_pkw_dict_begin(w);
    for (int i = 0; i < meta->nentries; i++) {
        ckpt_pkw_dict_next(w, (size_t)i);
        ckpt_pkw_kept_text(w, meta->entries[i].stored);
        ckpt_pkw_op(w, PK_MARK);
        for (size_t k = 0; k < json_array_size(meta->entries[i].path); k++)
            ckpt_pkw_json(w, json_array_get(meta->entries[i].path, k));
        ckpt_pkw_op(w, PK_TUPLE);
    }
    ckpt_pkw_dict_end(w);
    ckpt_pkw_text(w, "storage_data");
    ckpt_pkw_dict_begin(w);
    for (int i = 0; i < meta->nentries; i++) {
        const struct ckpt_dcp_entry *entry = &meta->entries[i];
        int at = boxes_of(f, i);
        if (entry->value) {
            ckpt_pkw_dict_next(w, nplaces++);
            add_place(w, entry, &entry->place, -1);
        }
        for (size_t b = f->first[at]; b < f->first[at + 1]; b++) {
            ckpt_pkw_dict_next(w, nplaces++);
            add_place(w, entry, f->sorted[b], (int64_t)(b - f->first[at]));
        }
    }
    ckpt_pkw_dict_end(w);
}

static int compare_boxes(const void *a, const void *b)
{
    const struct ckpt_dcp_box *x = *(const struct ckpt_dcp_box *const *)a;
    const struct ckpt_dcp_box *y = *(const struct ckpt_dcp_box *const *)b;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    for (int d = 0; d < FSDP_MAX_DIMS; d++)
        if (x->box.offset[d] != y->box.offset[d])
            return x->box.offset[d] < y->box.offset[d] ? -1 : 1;
    return 0;
}

static int boxes_sort(struct formatter *f, struct fsdp_err *err)
{
    const struct ckpt_dcp_meta *meta = f->meta;
    f->sorted = fsdp_alloc(meta->nboxes, sizeof *f->sorted, "torch metadata", err);
    f->first = fsdp_alloc((size_t)meta->nentries + 1, sizeof *f->first, "torch metadata", err);
    if (!f->sorted || !f->first)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < meta->nboxes; i++) {
        f->sorted[i] = &meta->boxes[i];
        f->first[meta->boxes[i].tensor + 1]++;
    }
    for (int i = 0; i < meta->nentries; i++)
        f->first[i + 1] += f->first[i];
    if (meta->nboxes)
        qsort(f->sorted, meta->nboxes, sizeof *f->sorted, compare_boxes);
    return FSDP_OK;
}

int ckpt_dcp_meta_format(char **out, size_t *out_nbytes, const struct ckpt_dcp_meta *meta,
                         struct fsdp_err *err)
{
    struct formatter f = {.meta = meta};
    struct ckpt_pkw w;
    int rc = boxes_sort(&f, err);
    if (rc == FSDP_OK) {
        ckpt_pkw_begin(&w);
        ckpt_pkw_object_begin(&w, META "Metadata\n");
        add_entries(&w, &f);
        ckpt_pkw_text(&w, "storage_meta");
        ckpt_pkw_object_begin(&w, META "StorageMeta\n");
        ckpt_pkw_text(&w, "checkpoint_id");
        ckpt_pkw_op(&w, PK_NONE);
        ckpt_pkw_text(&w, "save_id");
        ckpt_pkw_op(&w, PK_NONE);
        ckpt_pkw_text(&w, "load_id");
        ckpt_pkw_op(&w, PK_NONE);
        ckpt_pkw_text(&w, "modules");
        ckpt_pkw_op(&w, PK_EMPTY_LIST);
        ckpt_pkw_object_end(&w);
        ckpt_pkw_text(&w, "version");
        ckpt_pkw_text(&w, "1.0.0");
        ckpt_pkw_object_end(&w);
        rc = ckpt_pkw_end(out, out_nbytes, &w, err);
    }
    fsdp_free(f.sorted);
    fsdp_free(f.first);
    return rc;
}
