/* SPDX-License-Identifier: Apache-2.0 */
/* Reading manifest.json. Nothing in it is believed: not the counts, not the names, not the paths.
 */
#include <stdlib.h>
#include <string.h>

#include "file/zst.h"
#include "util/json.h"
#include "util/limits.h"
#include "layout/contents.h"
#include "util/text.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

struct reader {
    struct ckpt_manifest *m;
    const char *path;
    struct fsdp_err *err;
};

static int check_crc(const char *data, size_t nbytes, const char *path, struct fsdp_err *err)
{
    static const char before[] = ",\n \"crc32c\": \"", after[] = "\"\n}\n";
    const size_t tail = sizeof before - 1 + 8 + sizeof after - 1;
    char digits[9] = "", *end;

    if (nbytes > tail) {
        const char *p = data + nbytes - tail;
        if (!memcmp(p, before, sizeof before - 1) &&
            !memcmp(data + nbytes - (sizeof after - 1), after, sizeof after - 1))
            memcpy(digits, p + sizeof before - 1, 8);
    }
    if (strspn(digits, "0123456789abcdef") != 8)
        return BAD("'%s' does not end with its checksum: truncated, or not a manifest", path);
    uint32_t stored = (uint32_t)strtoul(digits, &end, 16);
    uint32_t actual = ckpt_crc32c(0, data, nbytes - tail);
    if (stored != actual)
        return BAD("'%s': its checksum is %08x, it says %08x: damaged or edited", path, actual,
                   stored);
    return FSDP_OK;
}

/* Plain names joined by single slashes: nothing absolute, hidden, or climbing. */
static bool path_ok(const char *path)
{
    size_t len = strlen(path);
    if (!len || len > CKPT_MAX_PATH_NBYTES)
        return false;
    for (const char *p = path; *p; p++) {
        bool starts = p == path || p[-1] == '/';
        if (starts && (*p == '.' || *p == '/'))
            return false;
        if ((unsigned char)*p < 0x20 || *p == '\\')
            return false;
    }
    return path[len - 1] != '/';
}

static int read_file_entry(const struct reader *r, const json_t *entry, const char **path,
                           uint64_t *nbytes, uint64_t *crc)
{
    struct fsdp_err *err = r->err;
    *path = json_string_value(json_object_get(entry, "path"));
    if (!*path || !path_ok(*path))
        return BAD("'%s': a file's path is missing or not a plain relative path", r->path);
    if (!ckpt_json_u64(nbytes, json_object_get(entry, "nbytes")) ||
        !ckpt_json_hex(crc, json_object_get(entry, "crc32c"), 8))
        return BAD("'%s': file '%s' has no proper nbytes and crc32c", r->path, *path);
    return FSDP_OK;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int refuse_twins(const struct reader *r)
{
    struct ckpt_layout *layout = &r->m->layout;
    size_t count = (size_t)layout->nfiles;
    const char **paths = fsdp_alloc(count, sizeof *paths, "paths", r->err);
    int rc = FSDP_OK;
    if (!paths)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < count; i++)
        paths[i] = layout->files[i].path;
    qsort(paths, count, sizeof *paths, compare_texts);
    for (size_t i = 1; i < count && rc == FSDP_OK; i++)
        if (!strcmp(paths[i], paths[i - 1]))
            rc = fsdp_err_set(r->err, FSDP_ECORRUPT, "'%s' lists file '%s' twice", r->path,
                              paths[i]);
    fsdp_free(paths);
    return rc;
}

static int read_files(const struct reader *r, const json_t *files)
{
    struct fsdp_err *err = r->err;
    struct ckpt_layout *layout = &r->m->layout;
    if (!json_is_array(files))
        return BAD("'%s': no list of files", r->path);
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *entry = json_array_get(files, i);
        const char *path;
        uint64_t nbytes, crc, header_nbytes;
        FSDP_TRY(read_file_entry(r, entry, &path, &nbytes, &crc));
        if (!ckpt_json_u64(&header_nbytes, json_object_get(entry, "header_nbytes")) ||
            (header_nbytes > nbytes && !ckpt_codec_is_name(path)))
            return BAD("'%s': file '%s' has no proper header_nbytes", r->path, path);
        FSDP_TRY(ckpt_layout_add_file(layout, path, nbytes, err));
        struct ckpt_layout_file *file = &layout->files[layout->nfiles - 1];
        file->header_nbytes = header_nbytes;
        file->crc32c = (uint32_t)crc;
        file->has_crc = true;
    }
    return refuse_twins(r);
}

static int read_extras(const struct reader *r, const json_t *extras)
{
    struct fsdp_err *err = r->err;
    size_t count = json_array_size(extras);
    if (!json_is_array(extras) || count > CKPT_MAX_EXTRAS)
        return BAD("'%s': no proper list of extras", r->path);
    if (!(r->m->extras = fsdp_alloc(count, sizeof *r->m->extras, "extras", err)))
        return FSDP_ENOMEM;
    for (size_t i = 0; i < count; i++) {
        struct ckpt_extra *extra = &r->m->extras[i];
        const char *path;
        uint64_t crc;
        FSDP_TRY(read_file_entry(r, json_array_get(extras, i), &path, &extra->nbytes, &crc));
        extra->crc32c = (uint32_t)crc;
        extra->has_crc32c = true;
        if (!(extra->path = fsdp_strdup(path, err)))
            return FSDP_ENOMEM;
        r->m->nextras++;
    }
    return FSDP_OK;
}

/* What the JSON says of a tensor, before any of it is believed. */
struct raw_tensor {
    struct ckpt_json_text kind, dtype;
    bool has_kind, has_dtype, has_shape, has_fingerprint;
    int ndim;
    uint64_t shape[FSDP_MAX_DIMS], fingerprint;
};

static void read_raw(struct raw_tensor *out, struct ckpt_json_reader *json)
{
    struct ckpt_json_text key;

    out->has_kind = out->has_dtype = out->has_shape = out->has_fingerprint = false;
    if (!ckpt_json_read_object(json))
        return;
    while (ckpt_json_read_key(json, &key)) {
        if (ckpt_json_text_is(&key, "kind"))
            out->has_kind = ckpt_json_read_text(json, &out->kind);
        else if (ckpt_json_text_is(&key, "dtype"))
            out->has_dtype = ckpt_json_read_text(json, &out->dtype);
        else if (ckpt_json_text_is(&key, "shape"))
            out->has_shape = ckpt_json_read_dims(json, out->shape, &out->ndim);
        else if (ckpt_json_text_is(&key, "fingerprint"))
            out->has_fingerprint = ckpt_json_read_hex(json, &out->fingerprint, 16);
        else
            ckpt_json_read_skip(json, NULL);
    }
}

static int read_tensor(const struct reader *r, const char *name, const struct raw_tensor *raw)
{
    struct fsdp_err *err = r->err, why = FSDP_ERR_INIT;
    struct ckpt_layout *layout = &r->m->layout;
    struct fsdp_tensor tensor = {.name = name, .ndim = raw->ndim};
    bool model = raw->has_kind && ckpt_json_text_is(&raw->kind, "model");
    char dtype[64] = "";

    if (!model && (!raw->has_kind || !ckpt_json_text_is(&raw->kind, "optim")))
        return BAD("'%s', tensor '%s': its kind is neither model nor optim", r->path, name);
    if (raw->has_dtype && raw->dtype.nbytes < sizeof dtype)
        memcpy(dtype, raw->dtype.data, raw->dtype.nbytes);
    if (fsdp_dtype_parse(&tensor.dtype, dtype, NULL))
        return BAD("'%s', tensor '%s': unknown dtype '%s'", r->path, name, dtype);
    if (!raw->has_shape)
        return BAD("'%s', tensor '%s': no proper shape", r->path, name);
    memcpy(tensor.shape, raw->shape, (size_t)raw->ndim * sizeof *tensor.shape);
    if (fsdp_tensor_check(&tensor, &why))
        return BAD("'%s': %s", r->path, why.text);
    if (!raw->has_fingerprint)
        return BAD("'%s', tensor '%s': no proper fingerprint", r->path, name);
    FSDP_TRY(
        ckpt_layout_add_tensor(layout, &tensor, model ? FSDP_SLICE_MODEL : FSDP_SLICE_OPTIM, err));
    layout->tensors[layout->ntensors - 1].fingerprint = raw->fingerprint;
    layout->tensors[layout->ntensors - 1].has_fingerprint = true;
    return FSDP_OK;
}

static int read_tensor_list(const struct reader *r, struct ckpt_json_reader *json)
{
    struct fsdp_err *err = r->err;
    struct ckpt_json_text key;
    struct raw_tensor raw;

    if (!ckpt_json_read_object(json))
        return json->rc ? json->rc : BAD("'%s': no list of tensors", r->path);
    const char *first = json->at;
    while (ckpt_json_read_key(json, &key)) {
        char name[CKPT_MAX_NAME_NBYTES + 1];
        if (key.nbytes > CKPT_MAX_NAME_NBYTES)
            return BAD("'%s': a tensor's name has %zu bytes", r->path, key.nbytes);
        memcpy(name, key.data, key.nbytes);
        name[key.nbytes] = 0;
        read_raw(&raw, json);
        FSDP_TRY(json->rc);
        FSDP_TRY(read_tensor(r, name, &raw));
        if (r->m->layout.ntensors == 1) /* the others are mostly about as long */
            FSDP_TRY(ckpt_layout_reserve_tensors(
                &r->m->layout,
                64 + (size_t)(json->end - json->at) / (size_t)(json->at - first) * 9 / 8, err));
    }
    return json->rc;
}

static int read_tensors(const struct reader *r, const struct ckpt_json_text *tensors)
{
    struct fsdp_err *err = r->err;
    struct ckpt_json_reader json;

    if (!tensors->data)
        return BAD("'%s': no list of tensors", r->path);
    ckpt_json_read_begin(&json, tensors->data, tensors->nbytes, r->path, ": tensors", err);
    FSDP_TRY(ckpt_json_read_end(&json, read_tensor_list(r, &json)));
    return ckpt_layout_index(&r->m->layout, err);
}

static int read_unit(const struct reader *r, const json_t *entry)
{
    struct fsdp_err *err = r->err;
    struct ckpt_unit *unit = &r->m->units[r->m->nunits++];
    const char *name = json_string_value(json_object_get(entry, "name"));
    const json_t *tensors = json_object_get(entry, "tensors");
    const json_t *trainable = json_object_get(entry, "trainable");

    if (!name || !json_is_array(tensors) || !json_is_boolean(trainable))
        return BAD("'%s': unit %d needs name, trainable and tensors", r->path, r->m->nunits - 1);
    unit->trainable = json_is_true(trainable);
    unit->name = fsdp_strdup(name, err);
    unit->tensors = fsdp_alloc(json_array_size(tensors), sizeof *unit->tensors, "unit", err);
    if (!unit->name || !unit->tensors)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const char *member = json_string_value(json_array_get(tensors, i));
        int at = member ? ckpt_layout_find(&r->m->layout, member) : -1;
        if (at < 0)
            return BAD("'%s': unit '%s' names the unknown tensor '%s'", r->path, name,
                       member ? member : "");
        unit->tensors[unit->ntensors++] = at;
    }
    return FSDP_OK;
}

/* A name; {"name": NAME, "per": KIND} where it is not a tensor of the parameter's shape. */
static int read_slot(const struct reader *r, const json_t *entry)
{
    struct fsdp_err *err = r->err;
    const char *name =
        json_string_value(json_is_object(entry) ? json_object_get(entry, "name") : entry);
    const char *per = json_string_value(json_object_get(entry, "per"));
    struct ckpt_slot *slot = &r->m->optim[r->m->noptim];

    if (!name || (json_is_object(entry) && !per))
        return BAD("'%s': optim is not a list of names", r->path);
    if (per && fsdp_slot_kind_parse(&slot->kind, per, NULL))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "'%s': optimizer state '%s' is kept per '%.60s', which this program "
                            "does not know",
                            r->path, name, per);
    if (!(slot->name = fsdp_strdup(name, err)))
        return FSDP_ENOMEM;
    r->m->noptim++;
    return FSDP_OK;
}

static int read_units(const struct reader *r, const json_t *units, const json_t *optim)
{
    struct fsdp_err *err = r->err;
    size_t count = json_array_size(units), noptim = json_array_size(optim);
    if (!json_is_array(units) || count > CKPT_MAX_UNITS || !json_is_array(optim) ||
        noptim > CKPT_MAX_OPTIM)
        return BAD("'%s': no proper units and optim", r->path);
    r->m->units = fsdp_alloc(count, sizeof *r->m->units, "units", err);
    r->m->optim = fsdp_alloc(noptim, sizeof *r->m->optim, "optim", err);
    if (!r->m->units || !r->m->optim)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < count; i++)
        FSDP_TRY(read_unit(r, json_array_get(units, i)));
    for (size_t i = 0; i < noptim; i++)
        FSDP_TRY(read_slot(r, json_array_get(optim, i)));
    return FSDP_OK;
}

static int compare_aliases(const void *a, const void *b)
{
    return strcmp(((const struct ckpt_alias *)a)->name, ((const struct ckpt_alias *)b)->name);
}

static int read_aliases(const struct reader *r, json_t *aliases)
{
    struct fsdp_err *err = r->err;
    const char *name;
    json_t *target;
    if (!json_is_object(aliases) || json_object_size(aliases) > CKPT_MAX_TENSORS)
        return BAD("'%s': no proper aliases", r->path);
    r->m->aliases = fsdp_alloc(json_object_size(aliases), sizeof *r->m->aliases, "aliases", err);
    if (!r->m->aliases)
        return FSDP_ENOMEM;
    json_object_foreach(aliases, name, target)
    {
        const char *text = json_string_value(target);
        if (!text || ckpt_layout_find(&r->m->layout, text) < 0 ||
            ckpt_layout_find(&r->m->layout, name) >= 0)
            return BAD("'%s': alias '%s' must be a new name for a stored tensor", r->path, name);
        struct ckpt_alias *alias = &r->m->aliases[r->m->naliases++];
        alias->name = fsdp_strdup(name, err);
        alias->target = fsdp_strdup(text, err);
        if (!alias->name || !alias->target)
            return FSDP_ENOMEM;
    }
    qsort(r->m->aliases, (size_t)r->m->naliases, sizeof *r->m->aliases, compare_aliases);
    return FSDP_OK;
}

static int read_head(const struct reader *r, const json_t *root)
{
    struct fsdp_err *err = r->err;
    const char *format = json_string_value(json_object_get(root, "format"));
    const char *uuid = json_string_value(json_object_get(root, "uuid"));
    const json_t *mesh = json_object_get(root, "mesh");
    uint64_t version, step, shard, replicate;

    if (!format || strcmp(format, "fsdp-checkpoint"))
        return BAD("'%s' is not a checkpoint's manifest", r->path);
    if (!ckpt_json_u64(&version, json_object_get(root, "version")))
        return BAD("'%s' has no version", r->path);
    if (version != CKPT_MANIFEST_VERSION)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "'%s' has version %llu; this program reads version %d", r->path,
                            (unsigned long long)version, CKPT_MANIFEST_VERSION);
    if (!uuid || strlen(uuid) != 36)
        return BAD("'%s' has no uuid", r->path);
    strcpy(r->m->uuid, uuid);
    r->m->step = -1;
    if (ckpt_json_u64(&step, json_object_get(root, "step")))
        r->m->step = (int64_t)step;
    else if (!json_is_null(json_object_get(root, "step")))
        return BAD("'%s' has no step", r->path);
    if (!ckpt_json_u64(&shard, json_object_get(mesh, "shard_size")) ||
        !ckpt_json_u64(&replicate, json_object_get(mesh, "replicate_size")) || shard < 1 ||
        replicate < 1 || shard > CKPT_MAX_RANKS || replicate > CKPT_MAX_RANKS)
        return BAD("'%s' has no proper mesh", r->path);
    r->m->shard_size = (int)shard;
    r->m->replicate_size = (int)replicate;
    return FSDP_OK;
}

/* Kept as the text that it is: numbers that were parsed and printed again might be others. */
static int read_state(const struct reader *r, const struct ckpt_json_text *state)
{
    if (!state->nbytes || ckpt_json_text_is(state, "null"))
        return FSDP_OK;
    if (state->data[0] != '{')
        return fsdp_err_set(r->err, FSDP_ECORRUPT, "'%s': state is not an object", r->path);
    r->m->state_json = fsdp_sprintf(r->err, "%.*s", (int)state->nbytes, state->data);
    return r->m->state_json ? FSDP_OK : FSDP_ENOMEM;
}

/* The tensors, which are many, and the state as bytes; all else, which is little, as a tree. */
static int split_root(const struct reader *r, json_t *root, struct ckpt_json_text *tensors,
                      struct ckpt_json_text *state, struct ckpt_json_reader *json)
{
    struct fsdp_err *err = r->err;
    struct ckpt_json_text key, value;
    json_error_t why;

    if (!ckpt_json_read_object(json))
        return json->rc ? json->rc : BAD("'%s' is not a JSON object", r->path);
    while (ckpt_json_read_key(json, &key)) {
        ckpt_json_read_skip(json, &value);
        FSDP_TRY(json->rc);
        if (ckpt_json_text_is(&key, "tensors")) {
            *tensors = value;
            continue;
        }
        if (ckpt_json_text_is(&key, "state")) {
            *state = value;
            continue;
        }
        json_t *tree =
            json_loadb(value.data, value.nbytes, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
        if (!tree)
            return BAD("'%s' is not valid JSON: %s", r->path, why.text);
        if (json_object_setn_new(root, key.data, key.nbytes, tree))
            return fsdp_err_set(err, FSDP_ENOMEM, "'%s': out of memory", r->path);
    }
    return json->rc;
}

static int read_root(const struct reader *r, const json_t *root,
                     const struct ckpt_json_text *tensors, const struct ckpt_json_text *state)
{
    FSDP_TRY(read_head(r, root));
    FSDP_TRY(read_files(r, json_object_get(root, "files")));
    FSDP_TRY(read_extras(r, json_object_get(root, "extras")));
    FSDP_TRY(read_tensors(r, tensors));
    FSDP_TRY(read_units(r, json_object_get(root, "units"), json_object_get(root, "optim")));
    FSDP_TRY(read_aliases(r, json_object_get(root, "aliases")));
    return read_state(r, state);
}

int ckpt_manifest_parse(struct ckpt_manifest *out, const char *data, size_t nbytes,
                        const char *path, struct fsdp_err *err)
{
    struct reader r = {out, path, err};
    struct ckpt_json_text tensors = {0}, state = {0};
    struct ckpt_json_reader json;

    memset(out, 0, sizeof *out);
    FSDP_TRY(check_crc(data, nbytes, path, err));
    json_t *root = json_object();
    if (!root)
        return fsdp_err_set(err, FSDP_ENOMEM, "'%s': out of memory", path);
    ckpt_json_read_begin(&json, data, nbytes, path, "", err);
    int rc = ckpt_json_read_end(&json, split_root(&r, root, &tensors, &state, &json));
    if (rc == FSDP_OK)
        rc = read_root(&r, root, &tensors, &state);
    json_decref(root);
    if (rc)
        ckpt_manifest_free(out);
    return rc;
}
