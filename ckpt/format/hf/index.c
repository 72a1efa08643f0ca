/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "index.h"
#include "source/format_ops.h"
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

static int index_read(struct ckpt_hf_index *out, struct ckpt *ckpt, const char *file_name,
                      struct fsdp_err *err)
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
    if (rc == FSDP_OK) {
        out->map = json_incref(map);
        out->total_size =
            json_number_value(json_object_get(json_object_get(root, "metadata"), "total_size"));
    }
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
    FSDP_TRY(index_read(out, ckpt, name, err));
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

/* ---- total_size ------------------------------------------------------------------------------ */

static uint64_t tensor_nbytes(const struct fsdp_tensor *t)
{
    return fsdp_tensor_nelem(t) * fsdp_dtype_nbytes(t->dtype);
}

/* Was the excess counted for other names of the embedding: a head, or T5's three? */
static bool is_tied(const struct ckpt *ckpt, double excess, const json_t *config)
{
    static const char *const names[] = {"embed", "wte.", "shared.", "lm_head."};
    const json_t *text = json_object_get(config, "text_config");
    if (json_is_false(json_object_get(config, "tie_word_embeddings")) ||
        json_is_false(json_object_get(text, "tie_word_embeddings")))
        return false;
    for (int i = 0; i < ckpt->m.layout.ntensors; i++) {
        const struct fsdp_tensor *t = &ckpt->m.layout.tensors[i].tensor;
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
            for (int times = 1; strstr(t->name, names[k]) && times <= 3; times++)
                if (excess == (double)times * (double)tensor_nbytes(t))
                    return true;
    }
    return false;
}

static bool is_other_type(double total, uint64_t nelem)
{
    for (unsigned nbytes = 1; nbytes <= 8; nbytes *= 2)
        if (total == (double)nbytes * (double)nelem)
            return true;
    return false;
}

int ckpt_hf_index_total(struct ckpt *ckpt, const struct ckpt_hf_index *index, const char *name,
                        struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &ckpt->m.layout;
    struct fsdp_err quiet = FSDP_ERR_INIT;
    uint64_t nbytes = 0, nelem = 0, nshared = 0;
    json_t *config = NULL;

    for (int i = 0; i < layout->ntensors; i++) {
        nbytes += tensor_nbytes(&layout->tensors[i].tensor);
        nelem += fsdp_tensor_nelem(&layout->tensors[i].tensor);
    }
    for (int i = 0, at; i < ckpt->m.naliases; i++)
        if ((at = ckpt_layout_find(layout, ckpt->m.aliases[i].target)) >= 0)
            nshared += tensor_nbytes(&layout->tensors[at].tensor);
    const double excess = index->total_size - (double)nbytes;
    if (excess <= 0 || excess == (double)nshared || ckpt->nunread ||
        is_other_type(index->total_size, nelem))
        return FSDP_OK;
    if (ckpt_extra_json(&config, ckpt, "config.json", &quiet))
        config = NULL; /* it is judged elsewhere */
    const bool lacks =
        !json_object_get(config, "quantization_config") && !is_tied(ckpt, excess, config);
    if (lacks)
        ckpt->lacks = fsdp_sprintf(
            err,
            "'%s/%s' says a total_size of %.0f bytes; the tensors of its weight_map have %llu: "
            "tensors of %.0f bytes are missing, or its total_size is wrong; compare the folder "
            "with its source",
            ckpt->path, name, index->total_size, (unsigned long long)nbytes, excess);
    json_decref(config);
    return lacks && !ckpt->lacks ? FSDP_ENOMEM : FSDP_OK;
}
