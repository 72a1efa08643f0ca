/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "limits.h"
#include "safetensors.h"
#include "text.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

void ckpt_st_header_free(struct ckpt_st_header *header)
{
    fsdp_free(header->entries);
    fsdp_free(header->names);
    fsdp_free(header->logical_names);
    memset(header, 0, sizeof *header);
}

/* Exactly the container's names: fsdp_dtype_parse is more generous. */
static int dtype_parse(enum fsdp_dtype *out, const json_t *value, const char *path,
                       const char *name, struct fsdp_err *err)
{
    const char *text = json_string_value(value);
    for (int i = 0; text && i < FSDP_NDTYPES; i++) {
        if (!strcmp(text, fsdp_dtype_name((enum fsdp_dtype)i))) {
            *out = (enum fsdp_dtype)i;
            return FSDP_OK;
        }
    }
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%s', tensor '%s': unknown dtype '%s'", path, name,
                        text ? text : "(none)");
}

static int entry_parse(struct ckpt_st_entry *out, const json_t *value, uint64_t data_nbytes,
                       const char *path, struct fsdp_err *err)
{
    const json_t *range = json_object_get(value, "data_offsets");
    uint64_t begin, end;

    if (!json_is_object(value))
        return BAD("'%s', tensor '%s': its entry is not an object", path, out->name);
    FSDP_TRY(dtype_parse(&out->dtype, json_object_get(value, "dtype"), path, out->name, err));
    if (!ckpt_json_dims(out->shape, &out->ndim, json_object_get(value, "shape")))
        return BAD("'%s', tensor '%s': shape is not a list of at most %d sizes", path, out->name,
                   FSDP_MAX_DIMS);
    if (json_array_size(range) != 2 || !ckpt_json_u64(&begin, json_array_get(range, 0)) ||
        !ckpt_json_u64(&end, json_array_get(range, 1)))
        return BAD("'%s', tensor '%s': data_offsets are not two positions", path, out->name);
    if (begin > end || end > data_nbytes)
        return BAD("'%s', tensor '%s': data_offsets [%llu, %llu] leave the file, which has %llu "
                   "bytes of data: truncated?",
                   path, out->name, (unsigned long long)begin, (unsigned long long)end,
                   (unsigned long long)data_nbytes);
    struct fsdp_tensor tensor = {.name = out->name, .dtype = out->dtype, .ndim = out->ndim};
    memcpy(tensor.shape, out->shape, sizeof tensor.shape);
    struct fsdp_err why = FSDP_ERR_INIT;
    if (fsdp_tensor_check(&tensor, &why))
        return BAD("'%s': %s", path, why.text);
    if (fsdp_tensor_nelem(&tensor) * fsdp_dtype_nbytes(out->dtype) != end - begin)
        return BAD("'%s', tensor '%s': dtype and shape need %llu bytes, data_offsets hold %llu",
                   path, out->name,
                   (unsigned long long)(fsdp_tensor_nelem(&tensor) * fsdp_dtype_nbytes(out->dtype)),
                   (unsigned long long)(end - begin));
    out->pos = begin;
    out->nbytes = end - begin;
    return FSDP_OK;
}

/* Where the box of one entry lies. */
static int place_parse(struct ckpt_st_entry *entry, const json_t *info, const char *path,
                       struct fsdp_err *err)
{
    const json_t *place = json_object_get(info, entry->name), *global;
    int ndim;

    if (!ckpt_json_dims(entry->offset, &ndim, json_object_get(place, "saved_offsets")) ||
        ndim != entry->ndim)
        return BAD("'%s', tensor '%s': DCP_SHARDING_INFO has no saved_offsets of %d dimensions",
                   path, entry->name, entry->ndim);
    for (int d = 0; d < ndim; d++)
        if (entry->offset[d] > UINT64_MAX / 4 - entry->shape[d])
            return BAD("'%s', tensor '%s': saved_offsets overflow", path, entry->name);
    global = json_object_get(place, "global_shape");
    if (!global)
        return FSDP_OK;
    struct fsdp_tensor whole = {.name = entry->name, .dtype = entry->dtype, .ndim = entry->ndim};
    struct fsdp_err why = FSDP_ERR_INIT;
    if (!ckpt_json_dims(whole.shape, &ndim, global) || ndim != entry->ndim)
        return BAD("'%s', tensor '%s': global_shape does not have %d dimensions", path, entry->name,
                   entry->ndim);
    if (fsdp_tensor_check(&whole, &why))
        return BAD("'%s': global_shape: %s", path, why.text);
    for (int d = 0; d < ndim; d++)
        if (entry->offset[d] + entry->shape[d] > whole.shape[d])
            return BAD("'%s', tensor '%s': its box leaves the tensor in dimension %d", path,
                       entry->name, d);
    memcpy(entry->global_shape, whole.shape, sizeof entry->global_shape);
    entry->has_global_shape = true;
    return FSDP_OK;
}

/* From here on, entries go by their tensors' names. */
static int logical_names_take(struct ckpt_st_header *out, const json_t *info, const char *path,
                              struct fsdp_err *err)
{
    size_t nbytes = 0;
    for (int pass = 0; pass < 2; pass++) {
        char *next = out->logical_names;
        for (int i = 0; i < out->nentries; i++) {
            struct ckpt_st_entry *entry = &out->entries[i];
            const json_t *name = json_object_get(json_object_get(info, entry->name), "logical_fqn");
            size_t len = json_string_length(name);
            if (!name)
                continue;
            if (!len || len > CKPT_MAX_NAME_NBYTES || strlen(json_string_value(name)) != len)
                return BAD("'%s', tensor '%s': its logical_fqn is not a name", path, entry->name);
            nbytes += len + 1;
            if (pass) {
                entry->name = strcpy(next, json_string_value(name));
                next += len + 1;
            }
        }
        if (!nbytes)
            return FSDP_OK;
        if (!pass && !(out->logical_names = fsdp_alloc(nbytes, 1, "header names", err)))
            return FSDP_ENOMEM;
    }
    return FSDP_OK;
}

static int metadata_parse(struct ckpt_st_header *out, const json_t *metadata, const char *path,
                          struct fsdp_err *err)
{
    const char *key;
    json_t *value, *info;

    if (!metadata)
        return FSDP_OK;
    if (!json_is_object(metadata))
        return BAD("'%s': __metadata__ is not an object", path);
    json_object_foreach(
        (json_t *)(uintptr_t)metadata, key,
        value) if (!json_is_string(value)) return BAD("'%s': __metadata__ '%.200s' is not a string",
                                                      path, key);
    value = json_object_get(metadata, "DCP_SHARDING_INFO");
    if (!value)
        return FSDP_OK;
    char *what = fsdp_sprintf(err, "'%s': DCP_SHARDING_INFO", path);
    if (!what)
        return FSDP_ENOMEM;
    int rc = ckpt_json_parse(&info, json_string_value(value), json_string_length(value), what, err);
    fsdp_free(what);
    FSDP_TRY(rc);
    out->sharded = true;
    for (int i = 0; rc == FSDP_OK && i < out->nentries; i++)
        rc = place_parse(&out->entries[i], info, path, err);
    if (rc == FSDP_OK)
        rc = logical_names_take(out, info, path, err);
    json_decref(info);
    return rc;
}

static int compare_pos(const void *a, const void *b)
{
    const struct ckpt_st_entry *x = a, *y = b;
    if (x->pos != y->pos)
        return x->pos < y->pos ? -1 : 1;
    if (x->nbytes != y->nbytes)
        return x->nbytes < y->nbytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Sorts entries by position and proves that they tile [0, data_nbytes). */
static int tile(struct ckpt_st_header *out, uint64_t data_nbytes, const char *path,
                struct fsdp_err *err)
{
    uint64_t next = 0;
    if (out->nentries)
        qsort(out->entries, (size_t)out->nentries, sizeof *out->entries, compare_pos);
    for (int i = 0; i < out->nentries; i++) {
        struct ckpt_st_entry *entry = &out->entries[i];
        if (entry->pos != next)
            return BAD("'%s', tensor '%s': its data %s", path, entry->name,
                       entry->pos > next ? "is preceded by a hole"
                                         : "overlaps that of the tensor before");
        next += entry->nbytes;
        entry->pos += out->header_nbytes;
    }
    if (next != data_nbytes)
        return BAD("'%s' has %llu bytes after its last tensor", path,
                   (unsigned long long)(data_nbytes - next));
    return FSDP_OK;
}

static int root_parse(struct ckpt_st_header *out, json_t *root, uint64_t data_nbytes,
                      const char *path, struct fsdp_err *err)
{
    size_t names_nbytes = 0, count = json_object_size(root);
    const char *key;
    json_t *value;

    if (count > CKPT_MAX_TENSORS)
        return BAD("'%s' lists %zu tensors", path, count);
    json_object_foreach(root, key, value)
    {
        size_t len = strlen(key);
        if (len > CKPT_MAX_NAME_NBYTES)
            return BAD("'%s': a tensor's name has %zu bytes", path, len);
        names_nbytes += len + 1;
    }
    out->entries = fsdp_alloc(count, sizeof *out->entries, "header entries", err);
    out->names = fsdp_alloc(names_nbytes, 1, "header names", err);
    if (!out->entries || !out->names)
        return FSDP_ENOMEM;
    char *next = out->names;
    json_object_foreach(root, key, value)
    {
        if (!strcmp(key, "__metadata__"))
            continue;
        struct ckpt_st_entry *entry = &out->entries[out->nentries++];
        entry->name = strcpy(next, key);
        next += strlen(key) + 1;
        FSDP_TRY(entry_parse(entry, value, data_nbytes, path, err));
    }
    FSDP_TRY(tile(out, data_nbytes, path, err));
    return metadata_parse(out, json_object_get(root, "__metadata__"), path, err);
}

int ckpt_st_parse(struct ckpt_st_header *out, const char *json, size_t json_nbytes,
                  uint64_t file_nbytes, const char *path, struct fsdp_err *err)
{
    json_t *root = NULL;

    memset(out, 0, sizeof *out);
    if (json_nbytes > CKPT_MAX_HEADER_NBYTES || json_nbytes + 8 > file_nbytes)
        return BAD("'%s': its header of %zu bytes does not fit in the file", path, json_nbytes);
    if (!json_nbytes || json[0] != '{')
        return BAD("'%s': its header does not begin with '{': not a safetensors file", path);
    out->header_nbytes = 8 + json_nbytes;
    char *what = fsdp_sprintf(err, "'%s': its header", path);
    if (!what)
        return FSDP_ENOMEM;
    int rc = ckpt_json_parse(&root, json, json_nbytes, what, err);
    fsdp_free(what);
    if (rc == FSDP_OK)
        rc = root_parse(out, root, file_nbytes - out->header_nbytes, path, err);
    json_decref(root);
    if (rc)
        ckpt_st_header_free(out);
    return rc;
}

int ckpt_st_read(struct ckpt_st_header *out, const struct ckpt_store_ops *ops, const char *path,
                 struct ckpt_codec_pool *pool, struct fsdp_err *err)
{
    struct ckpt_data *data = NULL;
    unsigned char raw[8];
    uint64_t json_nbytes = 0;
    char *json = NULL;
    int rc;

    memset(out, 0, sizeof *out);
    FSDP_TRY(ckpt_data_open(&data, ops, path, pool, err));
    uint64_t nbytes = ckpt_data_nbytes(data);
    if (nbytes < sizeof raw) {
        rc = BAD("'%s' has %llu bytes, too few for a safetensors file: truncated?", path,
                 (unsigned long long)nbytes);
        goto out;
    }
    FSDP_TRY_GOTO(ckpt_data_pread(data, raw, sizeof raw, 0, err), out);
    for (int i = 7; i >= 0; i--)
        json_nbytes = json_nbytes << 8 | raw[i];
    if (!memcmp(raw, "PK\3\4", 4)) {
        rc = BAD("'%s' is a zip archive, no safetensors file: of a .distcp file open the folder; "
                 "torch's Hugging Face writer makes such a file when it is given a Python value, "
                 "and it is lost",
                 path);
        goto out;
    }
    if (json_nbytes > CKPT_MAX_HEADER_NBYTES || json_nbytes > nbytes - sizeof raw) {
        rc = BAD("'%s': header length %llu, but the file has %llu bytes: truncated, or not a "
                 "safetensors file",
                 path, (unsigned long long)json_nbytes, (unsigned long long)nbytes);
        goto out;
    }
    rc = FSDP_ENOMEM;
    if (!(json = fsdp_alloc((size_t)json_nbytes + 1, 1, "safetensors header", err)))
        goto out;
    FSDP_TRY_GOTO(ckpt_data_pread(data, json, (size_t)json_nbytes, sizeof raw, err), out);
    rc = ckpt_st_parse(out, json, (size_t)json_nbytes, nbytes, path, err);
out:
    fsdp_free(json);
    ckpt_data_close(data);
    return rc;
}

/* {"<name>":{"saved_offsets":[...],"global_shape":[...]},...} as a quoted string */
static void sharding_info(struct ckpt_text *text, const struct ckpt_st_entry *entries, int nentries)
{
    struct ckpt_text inner = {0};
    ckpt_text_add(&inner, "{", 1);
    for (int i = 0; i < nentries; i++) {
        ckpt_text_printf(&inner, i ? "," : "");
        ckpt_text_json(&inner, entries[i].name);
        ckpt_text_printf(&inner, ":{\"saved_offsets\":");
        ckpt_text_dims(&inner, entries[i].offset, entries[i].ndim);
        ckpt_text_printf(&inner, ",\"global_shape\":");
        ckpt_text_dims(&inner, entries[i].global_shape, entries[i].ndim);
        ckpt_text_add(&inner, "}", 1);
    }
    ckpt_text_add(&inner, "}", 1);
    text->failed |= inner.failed;
    if (!text->failed)
        ckpt_text_json(text, inner.data);
    ckpt_text_free(&inner);
}

static void entry_format(struct ckpt_text *text, const struct ckpt_st_entry *entry)
{
    ckpt_text_add(text, ",", 1);
    ckpt_text_json(text, entry->name);
    ckpt_text_printf(text, ":{\"dtype\":\"%s\",\"shape\":", fsdp_dtype_name(entry->dtype));
    ckpt_text_dims(text, entry->shape, entry->ndim);
    ckpt_text_printf(text, ",\"data_offsets\":[%llu,%llu]}", (unsigned long long)entry->pos,
                     (unsigned long long)(entry->pos + entry->nbytes));
}

int ckpt_st_format(char **out, size_t *out_nbytes, struct ckpt_st_entry *entries, int nentries,
                   bool sharded, struct fsdp_err *err)
{
    struct ckpt_text text = {0};
    uint64_t pos = 0;

    for (int i = 0; i < nentries; i++) {
        entries[i].nbytes = fsdp_dtype_nbytes(entries[i].dtype);
        for (int d = 0; d < entries[i].ndim; d++)
            entries[i].nbytes *= entries[i].shape[d];
        entries[i].pos = pos;
        pos += entries[i].nbytes;
    }
    ckpt_text_add(&text, "\0\0\0\0\0\0\0\0", 8);
    ckpt_text_printf(&text, "{\"__metadata__\":{");
    if (sharded) {
        ckpt_text_printf(&text, "\"DCP_SHARDING_INFO\":");
        sharding_info(&text, entries, nentries);
        ckpt_text_printf(&text, ",\"DCP_VERSION\":\"1.0\",");
    }
    ckpt_text_printf(&text, "\"format\":\"pt\"}");
    for (int i = 0; i < nentries; i++)
        entry_format(&text, &entries[i]);
    ckpt_text_add(&text, "}", 1);
    while (!text.failed && text.nbytes % CKPT_HEADER_ALIGN)
        ckpt_text_add(&text, " ", 1);
    if (text.failed || text.nbytes - 8 > CKPT_MAX_HEADER_NBYTES) {
        bool failed = text.failed;
        ckpt_text_free(&text);
        if (failed)
            return fsdp_err_set(err, FSDP_ENOMEM, "safetensors header: out of memory");
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%d tensors make a safetensors header of more than "
                            "%u bytes",
                            nentries, CKPT_MAX_HEADER_NBYTES);
    }
    for (int i = 0; i < 8; i++)
        text.data[i] = (char)((text.nbytes - 8) >> (8 * i) & 0xff);
    for (int i = 0; i < nentries; i++)
        entries[i].pos += text.nbytes;
    *out = text.data;
    *out_nbytes = text.nbytes;
    return FSDP_OK;
}
