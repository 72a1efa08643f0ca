/* SPDX-License-Identifier: Apache-2.0 */
/* The output of a merge: which files, their headers, the Hugging Face index, and the final name. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "merge.h"
#include "hf_names.h"
#include "text.h"

/* ---- names ----------------------------------------------------------------------------------- */

/* A folder that is to be replaced must look like a model's: replacing deletes what it holds. */
static int refuse_other_folder(const struct ckpt_merger *m, struct fsdp_err *err)
{
    struct ckpt_names names;
    FSDP_TRY(ckpt_store_names(&names, m->store, m->final, err));
    int rc = FSDP_OK;
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++) {
        const char *name = names.names[i];
        bool known = ckpt_hf_is_weights(name) || ckpt_hf_is_extra(name) || ckpt_hf_is_index(name);
        if (!known || !strcmp(name, CKPT_MANIFEST_NAME))
            rc = fsdp_err_set(err, FSDP_EEXIST,
                              "'%s' is not overwritten: it holds '%s', which is not part of a "
                              "model's folder",
                              m->final, name);
    }
    ckpt_names_free(&names);
    return rc;
}

static int refuse_existing(const struct ckpt_merger *m, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    struct fsdp_err quiet;
    int rc = ckpt_store_stat(&st, m->store, m->final, &quiet);
    if (rc == FSDP_ENOTFOUND)
        return FSDP_OK;
    if (rc)
        return fsdp_err_set(err, rc, "%s", quiet.text);
    if (st.is_folder != m->folder)
        return fsdp_err_set(err, FSDP_EEXIST, "'%s' exists and is a %s", m->final,
                            st.is_folder ? "folder" : "file");
    if (m->folder) {
        struct ckpt_names names;
        FSDP_TRY(ckpt_store_names(&names, m->store, m->final, err));
        bool empty = names.nnames == 0;
        ckpt_names_free(&names);
        if (empty)
            return FSDP_OK;
    }
    if (!m->args->overwrite)
        return fsdp_err_set(err, FSDP_EEXIST, "'%s' exists and is not overwritten", m->final);
    return m->folder ? refuse_other_folder(m, err) : FSDP_OK;
}

static bool is_inside(const char *path, const char *folder)
{
    size_t len = strlen(folder);
    return !strncmp(path, folder, len) && (path[len] == '/' || path[len] == 0);
}

/* The output must not lie in the input, nor the input in it. */
static int refuse_input(const struct ckpt_merger *m, struct fsdp_err *err)
{
    char in[PATH_MAX], out[PATH_MAX + 512];
    char *parent = ckpt_path_parent(m->final, err);
    if (!parent)
        return FSDP_ENOMEM;
    bool known = realpath(m->ckpt->path, in) && realpath(parent, out);
    fsdp_free(parent);
    if (!known)
        return FSDP_OK; /* a parent that is yet to be made holds no input */
    size_t len = strlen(out);
    snprintf(out + len, sizeof out - len, "/%.500s", ckpt_path_base(m->final));
    if (is_inside(out, in) || is_inside(in, out))
        return fsdp_err_set(err, FSDP_EINVAL, "output '%s' and input '%s' lie in each other",
                            m->final, m->ckpt->path);
    return FSDP_OK;
}

int ckpt_merge_name(struct ckpt_merger *m, struct fsdp_err *err)
{
    char uuid[37];
    FSDP_TRY(ckpt_store_of(&m->store, m->args->out, err));
    m->folder = !ckpt_hf_is_weights(m->args->out);
    if (ckpt_codec_is_name(m->args->out))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED, "'%s': merged weights are not compressed",
                            m->args->out);
    if (!(m->final = fsdp_strdup(m->args->out, err)))
        return FSDP_ENOMEM;
    for (size_t len = strlen(m->final); len > 1 && m->final[len - 1] == '/'; len--)
        m->final[len - 1] = 0;
    const char *base = ckpt_path_base(m->final);
    if (!*base || !strcmp(base, ".") || !strcmp(base, ".."))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s' cannot be replaced as a whole; name a new "
                            "folder",
                            m->final);
    FSDP_TRY(refuse_existing(m, err));
    FSDP_TRY(refuse_input(m, err));
    FSDP_TRY(ckpt_uuid_make(uuid, err));
    m->temp = fsdp_sprintf(err, "%s.tmp.%s", m->final, uuid);
    return m->temp ? FSDP_OK : FSDP_ENOMEM;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Cuts the items into files: a new one where the limit would be passed. */
static int cut_files(struct ckpt_merger *m, struct fsdp_err *err)
{
    uint64_t most = m->folder && m->args->max_shard_nbytes ? m->args->max_shard_nbytes : UINT64_MAX;
    uint64_t filled = 0;

    m->files = fsdp_alloc((size_t)m->nitems, sizeof *m->files, "merge files", err);
    if (!m->files)
        return FSDP_ENOMEM;
    for (int i = 0; i < m->nitems; i++) {
        uint64_t nbytes = m->items[i].nbytes;
        if (!i || (filled && (filled > most || nbytes > most - filled))) {
            m->files[m->nfiles++].first = i;
            filled = 0;
        }
        filled += nbytes;
        m->items[i].file = m->nfiles - 1;
        m->files[m->nfiles - 1].nitems++;
        m->files[m->nfiles - 1].nleft++;
    }
    for (int i = 0; i < m->nfiles; i++) {
        struct ckpt_merge_file *file = &m->files[i];
        if (m->folder) {
            file->name = m->nfiles == 1 ? fsdp_strdup("model.safetensors", err)
                                        : fsdp_sprintf(err, "model-%05d-of-%05d.safetensors", i + 1,
                                                       m->nfiles);
            file->path = file->name ? ckpt_path_join(m->temp, file->name, err) : NULL;
        } else {
            file->path = fsdp_strdup(m->temp, err);
        }
        if (!file->path)
            return FSDP_ENOMEM;
    }
    return FSDP_OK;
}

static int make_header(struct ckpt_merger *m, struct ckpt_merge_file *file, struct fsdp_err *err)
{
    struct ckpt_st_entry *entries =
        fsdp_alloc((size_t)file->nitems, sizeof *entries, "header entries", err);
    if (!entries)
        return FSDP_ENOMEM;
    for (int i = 0; i < file->nitems; i++) {
        const struct ckpt_merge_item *item = &m->items[file->first + i];
        const struct fsdp_tensor *t = &m->ckpt->m.layout.tensors[item->tensor].tensor;
        entries[i] = (struct ckpt_st_entry){.name = t->name, .dtype = item->dtype, .ndim = t->ndim};
        memcpy(entries[i].shape, t->shape, sizeof t->shape);
    }
    int rc = ckpt_st_format(&file->header, &file->header_nbytes, entries, file->nitems, false, err);
    if (rc == FSDP_OK) {
        file->nbytes = file->header_nbytes;
        for (int i = 0; i < file->nitems; i++) {
            m->items[file->first + i].pos = entries[i].pos;
            file->nbytes += entries[i].nbytes;
        }
        m->nbytes += file->nbytes;
    }
    fsdp_free(entries);
    return rc;
}

int ckpt_merge_arrange(struct ckpt_merger *m, struct fsdp_err *err)
{
    FSDP_TRY(cut_files(m, err));
    for (int i = 0; i < m->nfiles; i++)
        FSDP_TRY(make_header(m, &m->files[i], err));
    return FSDP_OK;
}

int ckpt_merge_begin(struct ckpt_merger *m, struct fsdp_err *err)
{
    uint64_t space, need = m->nbytes;
    char *parent = ckpt_path_parent(m->final, err);
    if (!parent)
        return FSDP_ENOMEM;
    int rc = m->folder ? ckpt_store_mkdirs(m->store, parent, err) : FSDP_OK;
    if (rc == FSDP_OK)
        rc = ckpt_store_space(&space, m->store, parent, err);
    for (int i = 0; m->folder && i < m->ckpt->m.nextras; i++)
        need += m->ckpt->m.extras[i].nbytes;
    if (rc == FSDP_OK && space < need)
        rc = fsdp_err_set(err, FSDP_ENOSPC,
                          "'%s' needs %llu bytes; the file system of '%s' has room for %llu",
                          m->final, (unsigned long long)need, parent, (unsigned long long)space);
    fsdp_free(parent);
    FSDP_TRY(rc);
    m->made_temp = true;
    return m->folder ? ckpt_store_mkdir(m->store, m->temp, err) : FSDP_OK;
}

int ckpt_merge_file_open(struct ckpt_merger *m, int index, struct fsdp_err *err)
{
    struct ckpt_merge_file *file = &m->files[index];
    FSDP_TRY(ckpt_store_open(&file->file, m->store, file->path, CKPT_STORE_CREATE, err));
    file->opened = true;
    FSDP_TRY(ckpt_store_pwrite(file->file, file->header, file->header_nbytes, 0, err));
    fsdp_free(file->header);
    file->header = NULL;
    return FSDP_OK;
}

int ckpt_merge_file_finish(struct ckpt_merger *m, int index, struct fsdp_err *err)
{
    struct ckpt_merge_file *file = &m->files[index];
    if (!file->file)
        return FSDP_OK;
    FSDP_TRY(ckpt_store_sync(file->file, err));
    struct ckpt_store_file *handle = file->file;
    file->file = NULL;
    return ckpt_store_close(handle, err);
}

/* ---- what goes along ------------------------------------------------------------------------- */

static int write_index(struct ckpt_merger *m, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &m->ckpt->m.layout;
    struct ckpt_text text = {0};
    int *file_of = fsdp_alloc((size_t)layout->ntensors, sizeof *file_of, "index", err);
    char *path = ckpt_path_join(m->temp, CKPT_HF_INDEX_NAME, err);
    int rc = FSDP_ENOMEM;

    if (!file_of || !path)
        goto out;
    for (int i = 0; i < m->nitems; i++)
        file_of[m->items[i].tensor] = m->items[i].file + 1;
    ckpt_text_printf(&text,
                     "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n"
                     "  \"weight_map\": {",
                     (unsigned long long)m->total);
    const char *comma = "";
    for (int i = 0; i < layout->ntensors; i++) {
        int tensor = layout->by_name[i];
        if (!file_of[tensor])
            continue;
        ckpt_text_printf(&text, "%s\n    ", comma);
        ckpt_text_json(&text, layout->tensors[tensor].tensor.name);
        ckpt_text_printf(&text, ": \"%s\"", m->files[file_of[tensor] - 1].name);
        comma = ",";
    }
    ckpt_text_printf(&text, "\n  }\n}\n");
    rc = text.failed ? fsdp_err_set(err, FSDP_ENOMEM, "index: out of memory")
                     : ckpt_store_put(m->store, path, text.data, text.nbytes, true, err);
out:
    ckpt_text_free(&text);
    fsdp_free(path);
    fsdp_free(file_of);
    return rc;
}

/* The name that config.json has for the weights' type, NULL where they have several. */
static const char *config_dtype(const struct ckpt_merger *m)
{
    int dtype = -1;
    for (int i = 0; i < m->nitems; i++) {
        if (!fsdp_dtype_is_float(m->items[i].dtype))
            continue;
        if (dtype >= 0 && dtype != (int)m->items[i].dtype)
            return NULL;
        dtype = (int)m->items[i].dtype;
    }
    switch (dtype) {
    case FSDP_F32:
        return "float32";
    case FSDP_BF16:
        return "bfloat16";
    case FSDP_F16:
        return "float16";
    case FSDP_F64:
        return "float64";
    default:
        return NULL;
    }
}

/* config.json says which type the weights have; loaders believe it. *out is NULL where it is right.
 */
static int adjust_config(char **out, const struct ckpt_merger *m, const char *path,
                         struct fsdp_err *err)
{
    static const char *const keys[] = {"torch_dtype", "dtype"};
    const char *actual = config_dtype(m);
    char *data = NULL;
    size_t nbytes;
    json_t *root;
    bool differs = false;

    *out = NULL;
    FSDP_TRY(ckpt_store_get(&data, &nbytes, m->ckpt->store, path, CKPT_MAX_INDEX_NBYTES, err));
    int rc = ckpt_json_parse(&root, data, nbytes, path, err);
    fsdp_free(data);
    FSDP_TRY(rc);
    for (int i = 0; actual && i < 2; i++) {
        const char *says = json_string_value(json_object_get(root, keys[i]));
        if (says && strcmp(says, actual)) {
            json_object_set_new(root, keys[i], json_string(actual));
            differs = true;
        }
    }
    char *text = differs ? json_dumps(root, JSON_INDENT(2)) : NULL;
    if (text)
        *out = fsdp_sprintf(err, "%s\n", text);
    free(text);
    json_decref(root);
    return !differs || *out ? FSDP_OK
                            : fsdp_err_set(err, FSDP_ENOMEM, "config.json: out of memory");
}

static int copy_extra(struct ckpt_merger *m, const struct ckpt_extra *extra, struct fsdp_err *err)
{
    const char *name = ckpt_path_base(extra->path);
    if (ckpt_hf_is_weights(name) || ckpt_hf_is_index(name))
        return FSDP_OK; /* these are written anew */
    char *to = ckpt_path_join(m->temp, name, err), *text = NULL;
    uint64_t nbytes;
    uint32_t crc;
    int rc = to ? FSDP_OK : FSDP_ENOMEM;

    if (rc == FSDP_OK && !strcmp(name, "config.json"))
        rc = adjust_config(&text, m, extra->full_path, err);
    if (rc == FSDP_OK && text) {
        rc = ckpt_store_put(m->store, to, text, strlen(text), true, err);
    } else if (rc == FSDP_OK) {
        rc = ckpt_store_copy(&nbytes, &crc, m->ckpt->store, extra->full_path, m->store, to, true,
                             err);
        if (rc == FSDP_OK && m->ckpt->format == CKPT_NATIVE && crc != extra->crc32c)
            rc = fsdp_err_set(err, FSDP_ECORRUPT, "'%s': checksum %08x instead of %08x",
                              extra->full_path, crc, extra->crc32c);
    }
    fsdp_free(text);
    fsdp_free(to);
    return rc;
}

/* ---- the final name -------------------------------------------------------------------------- */

/* A folder cannot be renamed over a full one: the old one goes aside first, and back if that fails.
 */
static int replace_folder(struct ckpt_merger *m, struct fsdp_err *err)
{
    char uuid[37];
    FSDP_TRY(ckpt_uuid_make(uuid, err));
    char *aside = fsdp_sprintf(err, "%s.old.%s", m->final, uuid);
    if (!aside)
        return FSDP_ENOMEM;
    int rc = ckpt_store_rename(m->store, m->final, aside, false, err);
    if (rc == FSDP_OK) {
        rc = ckpt_store_rename(m->store, m->temp, m->final, false, err);
        if (rc)
            ckpt_store_rename(m->store, aside, m->final, false, NULL);
        else
            ckpt_store_remove_tree(m->store, aside, NULL);
    }
    fsdp_free(aside);
    return rc;
}

int ckpt_merge_publish(struct ckpt_merger *m, struct fsdp_err *err)
{
    int rc = FSDP_OK;
    if (m->folder) {
        if (m->nfiles > 1)
            FSDP_TRY(write_index(m, err));
        for (int i = 0; i < m->ckpt->m.nextras; i++)
            FSDP_TRY(copy_extra(m, &m->ckpt->m.extras[i], err));
        FSDP_TRY(ckpt_store_sync_folder(m->store, m->temp, err));
    }
    if (!m->folder)
        rc = ckpt_store_rename(m->store, m->temp, m->final, m->args->overwrite, err);
    else if ((rc = ckpt_store_rename(m->store, m->temp, m->final, false, err)) == FSDP_EEXIST &&
             m->args->overwrite)
        rc = replace_folder(m, err);
    FSDP_TRY(rc);
    m->made_temp = false;
    char *parent = ckpt_path_parent(m->final, err);
    rc = parent ? ckpt_store_sync_folder(m->store, parent, err) : FSDP_ENOMEM;
    fsdp_free(parent);
    return rc;
}

void ckpt_merge_undo(struct ckpt_merger *m)
{
    if (m->made_temp)
        ckpt_store_remove_tree(m->store, m->temp, NULL);
}
