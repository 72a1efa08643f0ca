/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "util/json.h"
#include "util/limits.h"
#include "safetensors.h"
#include "layout/tensor_name.h"
#include "util/text.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

void ckpt_st_header_free(struct ckpt_st_header *header)
{
    fsdp_free(header->entries);
    fsdp_free(header->names);
    fsdp_free(header->logical_names);
    fsdp_free(header->whys);
    ckpt_pool_free(&header->dims);
    memset(header, 0, sizeof *header);
}

/* For "%.*s" */
static int text_len(const struct ckpt_json_text *text)
{
    return (int)(text->nbytes < 200 ? text->nbytes : 200);
}

/* What the JSON says of an entry, before any of it is believed. */
struct raw_entry {
    struct ckpt_json_text dtype;
    bool is_object, has_dtype, has_shape, has_range;
    bool has_nul; /* in its name */
    int ndim;
    uint64_t shape[FSDP_MAX_DIMS], range[FSDP_MAX_DIMS];
};

static void entry_read(struct raw_entry *out, struct ckpt_json_reader *r)
{
    struct ckpt_json_text key;
    int count;

    out->has_dtype = out->has_shape = out->has_range = false;
    out->is_object = ckpt_json_read_object(r);
    while (out->is_object && ckpt_json_read_key(r, &key)) {
        if (ckpt_json_text_is(&key, "dtype"))
            out->has_dtype = ckpt_json_read_text(r, &out->dtype);
        else if (ckpt_json_text_is(&key, "shape"))
            out->has_shape = ckpt_json_read_dims(r, out->shape, &out->ndim);
        else if (ckpt_json_text_is(&key, "data_offsets"))
            out->has_range = ckpt_json_read_dims(r, out->range, &count) && count == 2;
        else
            ckpt_json_read_skip(r, NULL);
    }
}

/* Exactly the container's names: fsdp_dtype_parse is more generous. False: unknown. */
static bool dtype_parse(enum fsdp_dtype *out, const struct ckpt_json_text *text)
{
    for (int i = 0; i < FSDP_NDTYPES; i++) {
        if (ckpt_json_text_is(text, fsdp_dtype_name((enum fsdp_dtype)i))) {
            *out = (enum fsdp_dtype)i;
            return true;
        }
    }
    return false;
}

/* Adds to `whys` why an entry cannot be read, if it cannot. */
static void why_find(struct ckpt_text *whys, const struct raw_entry *raw, const char *path,
                     const char *name)
{
    enum fsdp_dtype dtype;
    if (strlen(name) > CKPT_MAX_NAME_NBYTES)
        ckpt_text_printf(
            whys, "'%s': tensor '%.64s...' has a name of %zu bytes; at most %d are supported", path,
            name, strlen(name), CKPT_MAX_NAME_NBYTES);
    else if (raw->has_nul)
        ckpt_text_printf(whys, "'%s': tensor '%s' has a name with a 0 byte, which is not supported",
                         path, name);
    else if (!dtype_parse(&dtype, &raw->dtype))
        ckpt_text_printf(whys, "'%s', tensor '%s': unknown dtype '%.*s'", path, name,
                         text_len(&raw->dtype), raw->dtype.data);
    else if (!raw->has_shape && raw->ndim > FSDP_MAX_DIMS)
        ckpt_text_printf(whys, "'%s': tensor '%s' has %d dimensions; at most %d are supported",
                         path, name, raw->ndim, FSDP_MAX_DIMS);
}

static int entry_parse(struct ckpt_st_entry *out, struct ckpt_pool *dims, struct ckpt_text *whys,
                       const struct raw_entry *raw, uint64_t data_nbytes, const char *path,
                       const char *name, struct fsdp_err *err)
{
    uint64_t begin = raw->range[0], end = raw->range[1];
    struct fsdp_tensor tensor = {.name = name, .ndim = raw->ndim};
    struct fsdp_err why = FSDP_ERR_INIT;
    size_t nbytes = whys->nbytes;

    if (!raw->is_object)
        return BAD("'%s', tensor '%s': its entry is not an object", path, name);
    if (!raw->has_dtype)
        return BAD("'%s', tensor '%s': it has no dtype", path, name);
    if (!raw->has_shape && raw->ndim <= FSDP_MAX_DIMS)
        return BAD("'%s', tensor '%s': shape is not a list of sizes", path, name);
    if (!raw->has_range)
        return BAD("'%s', tensor '%s': data_offsets are not two positions", path, name);
    if (begin > end || end > data_nbytes)
        return BAD("'%s', tensor '%s': data_offsets [%llu, %llu] leave the file, which has %llu "
                   "bytes of data: truncated?",
                   path, name, (unsigned long long)begin, (unsigned long long)end,
                   (unsigned long long)data_nbytes);
    *out = (struct ckpt_st_entry){
        .shape = ckpt_dims_zero, .offset = ckpt_dims_zero, .pos = begin, .nbytes = end - begin};
    why_find(whys, raw, path, name);
    if (whys->failed)
        return fsdp_err_set(err, FSDP_ENOMEM, "'%s': header: out of memory", path);
    if (whys->nbytes > nbytes) {
        ckpt_text_add(whys, "", 1);
        out->why = (uint32_t)nbytes + 1;
        return FSDP_OK;
    }
    dtype_parse(&tensor.dtype, &raw->dtype);
    memcpy(tensor.shape, raw->shape, (size_t)raw->ndim * sizeof *tensor.shape);
    if (fsdp_tensor_check(&tensor, &why))
        return BAD("'%s': %s", path, why.text);
    uint64_t need = fsdp_tensor_nelem(&tensor) * fsdp_dtype_nbytes(tensor.dtype);
    if (need != end - begin)
        return BAD("'%s', tensor '%s': dtype and shape need %llu bytes, data_offsets hold %llu",
                   path, name, (unsigned long long)need, (unsigned long long)(end - begin));
    out->dtype = (uint8_t)tensor.dtype;
    out->ndim = (uint8_t)tensor.ndim;
    out->shape = ckpt_pool_dims(dims, tensor.shape, tensor.ndim, err);
    return out->shape ? FSDP_OK : FSDP_ENOMEM;
}

/* ---- DCP_SHARDING_INFO ----------------------------------------------------------------------- */

/* What the JSON says of the place of one entry's box. */
struct raw_place {
    struct ckpt_json_text name; /* logical_fqn */
    bool has_offset, has_global, global_fits, has_name, name_fits;
    int offset_ndim, global_ndim;
    uint64_t offset[FSDP_MAX_DIMS], global[FSDP_MAX_DIMS];
};

struct places {
    struct ckpt_st_header *header;
    const char *path;
    int near;      /* the entry after the one found last: both lists mostly have one order */
    int *by_name;  /* NULL until it is needed */
    bool *placed;  /* [nentries] */
    size_t *names; /* [nentries] 1 + where its logical name begins; 0: it has none */
    struct ckpt_text text;
};

static void place_read(struct raw_place *out, struct ckpt_json_reader *r)
{
    struct ckpt_json_text key;

    out->has_offset = out->has_global = out->has_name = false;
    if (!ckpt_json_read_object(r))
        return;
    while (ckpt_json_read_key(r, &key)) {
        if (ckpt_json_text_is(&key, "saved_offsets")) {
            out->has_offset = ckpt_json_read_dims(r, out->offset, &out->offset_ndim);
        } else if (ckpt_json_text_is(&key, "global_shape")) {
            out->has_global = true;
            out->global_fits = ckpt_json_read_dims(r, out->global, &out->global_ndim);
        } else if (ckpt_json_text_is(&key, "logical_fqn")) {
            out->has_name = true;
            out->name_fits = ckpt_json_read_text(r, &out->name) && out->name.nbytes &&
                             out->name.nbytes <= CKPT_MAX_NAME_NBYTES;
        } else {
            ckpt_json_read_skip(r, NULL);
        }
    }
}

/* Where the box of one entry lies. */
static int place_parse(struct ckpt_st_entry *entry, struct ckpt_pool *dims,
                       const struct raw_place *raw, const char *path, struct fsdp_err *err)
{
    int ndim = entry->ndim;
    if (!raw->has_offset || raw->offset_ndim != ndim)
        return BAD("'%s', tensor '%s': DCP_SHARDING_INFO has no saved_offsets of %d dimensions",
                   path, entry->name, ndim);
    for (int d = 0; d < ndim; d++)
        if (raw->offset[d] > UINT64_MAX / 4 - entry->shape[d])
            return BAD("'%s', tensor '%s': saved_offsets overflow", path, entry->name);
    if (!(entry->offset = ckpt_pool_dims(dims, raw->offset, ndim, err)))
        return FSDP_ENOMEM;
    if (!raw->has_global)
        return FSDP_OK;
    struct fsdp_tensor whole = {.name = entry->name, .dtype = entry->dtype, .ndim = ndim};
    struct fsdp_err why = FSDP_ERR_INIT;
    if (!raw->global_fits || raw->global_ndim != ndim)
        return BAD("'%s', tensor '%s': global_shape does not have %d dimensions", path, entry->name,
                   ndim);
    memcpy(whole.shape, raw->global, (size_t)ndim * sizeof *whole.shape);
    if (fsdp_tensor_check(&whole, &why))
        return BAD("'%s': global_shape: %s", path, why.text);
    for (int d = 0; d < ndim; d++)
        if (entry->offset[d] + entry->shape[d] > whole.shape[d])
            return BAD("'%s', tensor '%s': its box leaves the tensor in dimension %d", path,
                       entry->name, d);
    entry->global_shape = ckpt_pool_dims(dims, whole.shape, ndim, err);
    return entry->global_shape ? FSDP_OK : FSDP_ENOMEM;
}

static int name_take(struct places *p, int at, const struct raw_place *raw, struct fsdp_err *err)
{
    if (!raw->name_fits)
        return BAD("'%s', tensor '%s': its logical_fqn is not a name", p->path,
                   p->header->entries[at].name);
    p->names[at] = p->text.nbytes + 1;
    ckpt_text_add(&p->text, raw->name.data, raw->name.nbytes);
    ckpt_text_add(&p->text, "", 1);
    return FSDP_OK;
}

static int order_of(const struct ckpt_json_text *text, const char *name)
{
    int order = strncmp(text->data, name, text->nbytes);
    return order ? order : name[text->nbytes] ? -1 : 0;
}

static int compare_names(const void *a, const void *b, void *ctx)
{
    const struct ckpt_st_entry *entries = ctx;
    return strcmp(entries[*(const int *)a].name, entries[*(const int *)b].name);
}

/* *at gets the entry of that name; -1: there is none. */
static int entry_find(int *at, struct places *p, const struct ckpt_json_text *name,
                      struct fsdp_err *err)
{
    struct ckpt_st_entry *entries = p->header->entries;
    int low = 0, high = p->header->nentries;

    *at = p->near;
    if (*at < high && !order_of(name, entries[*at].name))
        return FSDP_OK;
    if (!p->by_name) {
        if (!(p->by_name = fsdp_alloc((size_t)high, sizeof *p->by_name, "header names", err)))
            return FSDP_ENOMEM;
        for (int i = 0; i < high; i++)
            p->by_name[i] = i;
        qsort_r(p->by_name, (size_t)high, sizeof *p->by_name, compare_names, entries);
    }
    while (low < high) {
        int mid = low + (high - low) / 2, order = order_of(name, entries[p->by_name[mid]].name);
        if (!order) {
            *at = p->by_name[mid];
            return FSDP_OK;
        }
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    *at = -1;
    return FSDP_OK;
}

static int places_read(struct places *p, struct ckpt_json_reader *r, struct fsdp_err *err)
{
    struct ckpt_json_text key;
    struct raw_place raw;
    int at;

    if (!ckpt_json_read_object(r))
        return r->rc ? r->rc : BAD("'%s': DCP_SHARDING_INFO is not a JSON object", p->path);
    while (ckpt_json_read_key(r, &key)) {
        place_read(&raw, r);
        if (r->rc)
            break;
        FSDP_TRY(entry_find(&at, p, &key, err));
        if (at < 0)
            continue;
        if (!p->header->entries[at].why)
            FSDP_TRY(place_parse(&p->header->entries[at], &p->header->dims, &raw, p->path, err));
        if (raw.has_name)
            FSDP_TRY(name_take(p, at, &raw, err));
        p->placed[at] = true;
        p->near = at + 1;
    }
    return r->rc;
}

/* All entries have a place; from here on, they go by their tensors' names. */
static int places_finish(struct places *p, struct fsdp_err *err)
{
    struct ckpt_st_header *header = p->header;
    if (p->text.failed)
        return fsdp_err_set(err, FSDP_ENOMEM, "'%s': header names: out of memory", p->path);
    for (int i = 0; i < header->nentries; i++) {
        struct ckpt_st_entry *entry = &header->entries[i];
        if (!p->placed[i] && !entry->why)
            return BAD("'%s', tensor '%s': DCP_SHARDING_INFO has no saved_offsets of %d dimensions",
                       p->path, entry->name, entry->ndim);
        if (p->names[i])
            entry->name = p->text.data + p->names[i] - 1;
    }
    header->logical_names = p->text.data;
    p->text = (struct ckpt_text){0};
    return FSDP_OK;
}

static int sharding_parse(struct ckpt_st_header *out, const struct ckpt_json_text *info,
                          const char *path, struct fsdp_err *err)
{
    size_t count = (size_t)out->nentries;
    struct places p = {.header = out, .path = path};
    struct ckpt_json_reader r;
    int rc = FSDP_ENOMEM;

    ckpt_json_read_begin(&r, info->data, info->nbytes, path, ": DCP_SHARDING_INFO", err);
    p.placed = fsdp_alloc(count, sizeof *p.placed, "places", err);
    p.names = fsdp_alloc(count, sizeof *p.names, "places", err);
    if (p.placed && p.names)
        rc = places_read(&p, &r, err);
    rc = ckpt_json_read_end(&r, rc);
    if (rc == FSDP_OK)
        rc = places_finish(&p, err);
    out->sharded = true;
    ckpt_text_free(&p.text);
    fsdp_free(p.by_name);
    fsdp_free(p.placed);
    fsdp_free(p.names);
    return rc;
}

/* ---- the header ------------------------------------------------------------------------------ */

/* *info gets DCP_SHARDING_INFO, if it is there. */
static int metadata_read(struct ckpt_json_text *info, struct ckpt_json_reader *r, const char *path,
                         struct fsdp_err *err)
{
    struct ckpt_json_text key, value;

    if (!ckpt_json_read_object(r))
        return r->rc ? r->rc : BAD("'%s': __metadata__ is not an object", path);
    while (ckpt_json_read_key(r, &key)) {
        if (!ckpt_json_read_text(r, &value))
            return r->rc ? r->rc
                         : BAD("'%s': __metadata__ '%.*s' is not a string", path, text_len(&key),
                               key.data);
        if (ckpt_json_text_is(&key, "DCP_SHARDING_INFO"))
            *info = value;
    }
    return r->rc;
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
    bool sorted = true;
    for (int i = 1; sorted && i < out->nentries; i++)
        sorted = compare_pos(&out->entries[i - 1], &out->entries[i]) < 0;
    if (!sorted)
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

/* A header while it is read: entries get their names' addresses when all names are there. */
struct building {
    struct ckpt_st_header *header;
    size_t max_entries;
    struct ckpt_text names, whys;
};

/* Room for one more entry. With the first, whose bytes begin at `first`, comes room for all that
 * follow if they are about as long; what is not used is not touched. */
static int entries_grow(struct building *b, const struct ckpt_json_reader *r, const char *first,
                        struct fsdp_err *err)
{
    struct ckpt_st_header *header = b->header;
    size_t nentries = (size_t)header->nentries, expected = 0;

    if (!nentries) {
        size_t each = (size_t)(r->at - first), left = (size_t)(r->end - r->at);
        expected = 64 + left / each + left / each / 8;
        expected = expected < CKPT_MAX_TENSORS ? expected : CKPT_MAX_TENSORS;
        ckpt_text_reserve(&b->names, left / each * b->names.nbytes * 5 / 4);
    }
    struct ckpt_st_entry *entries =
        expected ? fsdp_alloc_reserve(NULL, 0, &b->max_entries, expected, sizeof *entries,
                                      "header entries", err)
                 : fsdp_alloc_grow(header->entries, nentries, &b->max_entries, sizeof *entries,
                                   "header entries", err);
    if (!entries)
        return FSDP_ENOMEM;
    header->entries = entries;
    return FSDP_OK;
}

/* A 0 byte becomes \0, so that --exclude can name the tensor. Returns whether there was one. */
static bool name_add(struct ckpt_text *names, const struct ckpt_json_text *key)
{
    const char *at = key->data, *end = at + key->nbytes, *nul;
    for (; (nul = memchr(at, 0, (size_t)(end - at))); at = nul + 1) {
        ckpt_text_add(names, at, (size_t)(nul - at));
        ckpt_text_add(names, "\\0", 2);
    }
    ckpt_text_add(names, at, (size_t)(end - at));
    ckpt_text_add(names, "", 1);
    return at != key->data;
}

static int entry_take(struct building *b, struct ckpt_json_reader *r,
                      const struct ckpt_json_text *key, uint64_t data_nbytes, const char *path,
                      struct fsdp_err *err)
{
    const char *begin = r->at;
    struct ckpt_st_header *header = b->header;
    struct raw_entry raw;
    size_t at = b->names.nbytes;

    const bool has_nul = name_add(&b->names, key);
    if (b->names.failed)
        return fsdp_err_set(err, FSDP_ENOMEM, "'%s': header names: out of memory", path);
    entry_read(&raw, r);
    if (r->rc)
        return r->rc;
    raw.has_nul = has_nul;
    struct ckpt_st_entry entry;
    FSDP_TRY(entry_parse(&entry, &header->dims, &b->whys, &raw, data_nbytes, path,
                         b->names.data + at, err));
    if (header->nentries == CKPT_MAX_TENSORS)
        return BAD("'%s' lists more than %d tensors", path, CKPT_MAX_TENSORS);
    FSDP_TRY(entries_grow(b, r, begin, err));
    header->entries[header->nentries++] = entry;
    return FSDP_OK;
}

static int root_parse(struct building *b, struct ckpt_json_reader *r, uint64_t data_nbytes,
                      const char *path, struct fsdp_err *err)
{
    struct ckpt_st_header *header = b->header;
    struct ckpt_json_text key, info = {0};

    if (ckpt_json_read_object(r))
        while (ckpt_json_read_key(r, &key))
            FSDP_TRY(ckpt_json_text_is(&key, "__metadata__")
                         ? metadata_read(&info, r, path, err)
                         : entry_take(b, r, &key, data_nbytes, path, err));
    FSDP_TRY(r->rc);
    header->whys = b->whys.data;
    b->whys = (struct ckpt_text){0};
    const char *name = header->names = b->names.data;
    b->names = (struct ckpt_text){0};
    for (int i = 0; i < header->nentries; i++, name += strlen(name) + 1)
        header->entries[i].name = name;
    FSDP_TRY(tile(header, data_nbytes, path, err));
    return info.data ? sharding_parse(header, &info, path, err) : FSDP_OK;
}

int ckpt_st_parse(struct ckpt_st_header *out, const char *json, size_t json_nbytes,
                  uint64_t file_nbytes, const char *path, struct fsdp_err *err)
{
    struct building b = {.header = out};
    struct ckpt_json_reader r;

    memset(out, 0, sizeof *out);
    if (json_nbytes > CKPT_MAX_HEADER_NBYTES || json_nbytes + 8 > file_nbytes)
        return BAD("'%s': its header of %zu bytes does not fit in the file", path, json_nbytes);
    if (!json_nbytes || json[0] != '{')
        return BAD("'%s': its header does not begin with '{': not a safetensors file", path);
    out->header_nbytes = 8 + json_nbytes;
    ckpt_json_read_begin(&r, json, json_nbytes, path, ": its header", err);
    r.takes_nul = true;
    int rc = root_parse(&b, &r, file_nbytes - out->header_nbytes, path, err);
    rc = ckpt_json_read_end(&r, rc);
    ckpt_text_free(&b.names);
    ckpt_text_free(&b.whys);
    if (rc)
        ckpt_st_header_free(out);
    return rc;
}

/* torch.save's archives, and the bare pickles that it wrote before torch 1.6. */
static int refuse_torch_file(const unsigned char first[8], const char *path, struct fsdp_err *err)
{
    size_t len = strlen(path);
    bool zip = !memcmp(first, "PK\3\4", 4);
    if (!zip && memcmp(first, "\x80\2\x8a\n", 4))
        return FSDP_OK;
    if (zip && len > 12 && !strcmp(path + len - 12, ".safetensors"))
        return BAD("'%s' is a zip archive, no safetensors file: torch's Hugging Face writer makes "
                   "such a file when it is given a Python value, and it is lost",
                   path);
    if (zip && len > 7 && !strcmp(path + len - 7, ".distcp"))
        return BAD("'%s' is a part of a checkpoint of torch.distributed.checkpoint: name its "
                   "folder",
                   path);
    return BAD("'%s' begins as a file of torch.save does, and is none that can be read: it is "
               "damaged, or has the name of another format",
               path);
}

int ckpt_st_read(struct ckpt_st_header *out, struct ckpt_store_stat *seen,
                 const struct ckpt_store_ops *ops, const char *path, struct ckpt_codec_pool *pool,
                 struct fsdp_err *err)
{
    struct ckpt_data *data = NULL;
    unsigned char raw[8];
    uint64_t json_nbytes = 0;
    char *json = NULL;
    int rc;

    memset(out, 0, sizeof *out);
    FSDP_TRY(ckpt_data_open(&data, ops, path, pool, err));
    uint64_t nbytes = ckpt_data_nbytes(data);
    FSDP_TRY_GOTO(ckpt_data_stat(seen, data, err), out);
    if (nbytes < sizeof raw) {
        rc = BAD("'%s' has %llu bytes, too few for a safetensors file: truncated?", path,
                 (unsigned long long)nbytes);
        goto out;
    }
    FSDP_TRY_GOTO(ckpt_data_pread(data, raw, sizeof raw, 0, err), out);
    for (int i = 7; i >= 0; i--)
        json_nbytes = json_nbytes << 8 | raw[i];
    FSDP_TRY_GOTO(refuse_torch_file(raw, path, err), out);
    if (json_nbytes > CKPT_MAX_HEADER_NBYTES || json_nbytes > nbytes - sizeof raw) {
        rc = BAD("'%s': header length %llu, but the file has %llu bytes: truncated, or not a "
                 "safetensors file",
                 path, (unsigned long long)json_nbytes, (unsigned long long)nbytes);
        goto out;
    }
    rc = FSDP_ENOMEM;
    if (!(json = fsdp_alloc_unset((size_t)json_nbytes, 1, "safetensors header", err)))
        goto out;
    FSDP_TRY_GOTO(ckpt_data_pread_header(data, json, (size_t)json_nbytes, sizeof raw, err), out);
    rc = ckpt_st_parse(out, json, (size_t)json_nbytes, nbytes, path, err);
out:
    fsdp_free(json);
    ckpt_data_close(data);
    return rc;
}

/* Bytes of the names and of two lists of sizes in text, each with `more` around them: growing a
 * text step by step would touch three times its memory. */
static size_t text_nbytes(const struct ckpt_st_entry *entries, int nentries, size_t more)
{
    size_t nbytes = 0;
    for (int i = 0; i < nentries; i++)
        nbytes += strlen(entries[i].name) + 8 * (size_t)entries[i].ndim + more;
    return nbytes;
}

/* {"<name>":{"saved_offsets":[...],"global_shape":[...]},...} as a quoted string */
static void sharding_info(struct ckpt_text *text, const struct ckpt_st_entry *entries, int nentries)
{
    struct ckpt_text inner = {0}; /* one entry */
    ckpt_text_add(text, "\"{", 2);
    for (int i = 0; i < nentries; i++) {
        inner.nbytes = 0;
        ckpt_text_printf(&inner, i ? "," : "");
        ckpt_text_json(&inner, entries[i].name);
        ckpt_text_printf(&inner, ":{\"saved_offsets\":");
        ckpt_text_dims(&inner, entries[i].offset, entries[i].ndim);
        ckpt_text_printf(&inner, ",\"global_shape\":");
        ckpt_text_dims(&inner, entries[i].global_shape, entries[i].ndim);
        ckpt_text_add(&inner, "}", 1);
        if (!inner.failed)
            ckpt_text_escape(text, inner.data);
    }
    ckpt_text_add(text, "}\"", 2);
    text->failed |= inner.failed;
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
        const char *wrong = ckpt_tensor_name_wrong(entries[i].name, false);
        if (wrong)
            return fsdp_err_set(err, FSDP_EINVAL, "tensor '%.200s' cannot be stored: %s",
                                entries[i].name, wrong);
        entries[i].nbytes = fsdp_dtype_nbytes(entries[i].dtype);
        for (int d = 0; d < entries[i].ndim; d++)
            entries[i].nbytes *= entries[i].shape[d];
        entries[i].pos = pos;
        pos += entries[i].nbytes;
    }
    ckpt_text_reserve(&text, text_nbytes(entries, nentries, 72) * (sharded ? 2 : 1) + 4096);
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
