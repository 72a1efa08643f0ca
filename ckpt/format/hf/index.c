/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "index.h"
#include "util/text.h"
#include "util/limits.h"

bool ckpt_hf_names_have(const struct ckpt_names *names, const char *name)
{
    for (int i = 0; i < names->nnames; i++)
        if (!strcmp(names->names[i], name))
            return true;
    return false;
}

void ckpt_hf_files_keep(struct ckpt_names *files, const struct ckpt_hf_belonging *belonging,
                        const struct ckpt *ckpt)
{
    int nkept = 0;
    for (int i = 0; i < files->nnames; i++) {
        char *name = files->names[i];
        if (belonging->takes(belonging->ctx, name)) {
            files->names[nkept++] = name;
        } else {
            fsdp_log(FSDP_LOG_WARN, "'%s/%s' is not read: %s", ckpt->path, name,
                     belonging->why_not);
            fsdp_free(name);
        }
    }
    files->nnames = nkept;
}

int ckpt_hf_refuse_incomplete(const struct ckpt_names *files, const char *folder, const char *stem,
                              const char *ext, struct fsdp_err *err)
{
    int most = 0, seen = 0;
    for (int i = 0; i < files->nnames; i++) {
        const char *name = files->names[i];
        const size_t nstem = strlen(stem), next = strlen(ext);
        int part, of, end = 0;
        if (strncmp(name, stem, nstem) != 0 ||
            sscanf(name + nstem, "-%5d-of-%5d%n", &part, &of, &end) != 2 || !end ||
            strncmp(name + nstem + end, ext, next) != 0 ||
            (name[nstem + (size_t)end + next] && !ckpt_codec_is_name(name)))
            continue;
        if (most && of != most)
            return fsdp_err_set(err, FSDP_ECORRUPT, "'%s/%s' belongs to another set than '%s'",
                                folder, name, files->names[i - 1]);
        most = of;
        if (part != ++seen)
            return fsdp_err_set(err, FSDP_ENOTFOUND, "'%s/%s-%05d-of-%05d%s' is missing", folder,
                                stem, seen, of, ext);
    }
    if (seen != most)
        return fsdp_err_set(err, FSDP_ENOTFOUND, "'%s/%s-%05d-of-%05d%s' is missing", folder, stem,
                            seen + 1, most, ext);
    return FSDP_OK;
}

static int index_read(json_t **out, struct ckpt *ckpt, const char *file_name, struct fsdp_err *err)
{
    char *path = ckpt_path_join(ckpt->folder, file_name, err), *data = NULL;
    json_t *root = NULL;
    size_t nbytes;
    int rc = FSDP_ENOMEM;
    if (!path)
        return rc;
    rc = ckpt_source_get_head(&data, &nbytes, ckpt, path, CKPT_MAX_INDEX_NBYTES, err);
    if (rc == FSDP_OK)
        rc = ckpt_json_parse(&root, data, nbytes, path, err);
    json_t *map = json_object_get(root, "weight_map");
    if (rc == FSDP_OK && !json_is_object(map))
        rc = fsdp_err_set(err, FSDP_ECORRUPT, "'%s' has no weight_map", path);
    const char *name;
    json_t *file;
    if (rc == FSDP_OK) {
        json_object_foreach(map, name, file)
        {
            const char *text = json_string_value(file);
            if (!text || !*text || strchr(text, '/') || text[0] == '.') {
                rc = fsdp_err_set(err, FSDP_ECORRUPT,
                                  "'%s': tensor '%.200s' is not mapped to a plain file name", path,
                                  name);
                break;
            }
        }
    }
    if (rc == FSDP_OK)
        *out = json_incref(map);
    json_decref(root);
    fsdp_free(data);
    fsdp_free(path);
    return rc;
}

static bool is_listed(const void *used, const char *name)
{
    return json_object_get(used, name) != NULL;
}

/* The index's files must be here. It says what belongs to the folder. */
static int index_match_files(const json_t *map, const struct ckpt *ckpt, struct ckpt_names *files,
                             struct fsdp_err *err)
{
    json_t *used = json_object();
    const char *name;
    json_t *file;
    int rc = used ? FSDP_OK : fsdp_err_set(err, FSDP_ENOMEM, "index: out of memory");

    json_object_foreach((json_t *)(uintptr_t)map, name, file)
    {
        const char *text = json_string_value(file);
        if (rc == FSDP_OK && !json_object_get(used, text)) {
            if (!ckpt_hf_names_have(files, text))
                rc = fsdp_err_set(err, FSDP_ENOTFOUND, "'%s/%s' is missing: the index lists it",
                                  ckpt->path, text);
            json_object_set_new(used, text, json_true());
        }
    }
    const struct ckpt_hf_belonging listed = {is_listed, used, "the index does not list it"};
    if (rc == FSDP_OK)
        ckpt_hf_files_keep(files, &listed, ckpt);
    json_decref(used);
    return rc;
}

int ckpt_hf_index_open(struct ckpt_hf_index *out, struct ckpt *ckpt, const char *name,
                       struct ckpt_names *files, struct fsdp_err *err)
{
    out->folder = ckpt->path;
    FSDP_TRY(index_read(&out->map, ckpt, name, err));
    return index_match_files(out->map, ckpt, files, err);
}

void ckpt_hf_index_close(struct ckpt_hf_index *index)
{
    json_decref(index->map);
    index->map = NULL;
}

int ckpt_hf_index_meet(struct ckpt_hf_index *index, const char *tensor, const char *file,
                       struct fsdp_err *err)
{
    const char *placed = json_string_value(json_object_get(index->map, tensor));

    if (!placed || strcmp(file, placed))
        return fsdp_err_set(err, FSDP_ECORRUPT,
                            "'%s/%s' holds tensor '%s', which the index does not place there",
                            index->folder, file, tensor);
    json_object_del(index->map, tensor);
    return FSDP_OK;
}

int ckpt_hf_index_done(const struct ckpt_hf_index *index, struct fsdp_err *err)
{
    void *lacking = json_object_iter(index->map);

    if (!lacking)
        return FSDP_OK;
    return fsdp_err_set(
        err, FSDP_ECORRUPT, "tensor '%s': the index places it in '%s', which lacks it",
        json_object_iter_key(lacking), json_string_value(json_object_iter_value(lacking)));
}
