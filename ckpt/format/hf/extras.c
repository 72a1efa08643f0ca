/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "extras.h"
#include "hf_names.h"
#include "source/format_ops.h"

/* ---- links ----------------------------------------------------------------------------------- */

static bool is_inside(const char *path, const char *folder)
{
    size_t len = strlen(folder);
    return !strncmp(path, folder, len) && path[len] == '/';
}

/* huggingface_hub keeps REPO/snapshots/REVISION/FILE as links to REPO/blobs/HASH. Is `target` a
 * blob of the repository that `folder` is a snapshot of? Both are without links. */
static bool is_hub_blob(const char *target, const char *folder)
{
    static const char snapshots[] = "/snapshots/";
    char blobs[PATH_MAX], real[PATH_MAX];
    const char *last = NULL;
    for (const char *p = strstr(folder, snapshots); p; p = strstr(p + 1, snapshots))
        last = p;
    if (!last ||
        (size_t)snprintf(blobs, sizeof blobs, "%.*s/blobs", (int)(last - folder), folder) >=
            sizeof blobs ||
        !realpath(blobs, real) || strcmp(blobs, real)) /* no link itself */
        return false;
    return is_inside(target, blobs) && !strchr(target + strlen(blobs) + 1, '/');
}

bool ckpt_extra_is_own(const char *path)
{
    char home[PATH_MAX], target[PATH_MAX];
    struct stat st;
    if (ckpt_path_is_url(path) || lstat(path, &st) || !S_ISLNK(st.st_mode))
        return true;
    char *folder = ckpt_path_parent(path, NULL);
    bool own = folder && realpath(path, target) && realpath(folder, home) &&
               (is_inside(target, home) || is_hub_blob(target, home));
    fsdp_free(folder);
    return own;
}

static bool is_followed(const char *path)
{
    char target[PATH_MAX];
    if (ckpt_extra_is_own(path))
        return true;
    if (realpath(path, target))
        fsdp_log(FSDP_LOG_WARN,
                 "'%s' is a link to '%s', outside of the checkpoint, and is left out; copy the "
                 "file there to include it",
                 path, target);
    else
        fsdp_log(FSDP_LOG_WARN, "'%s' is a link to nothing and is left out", path);
    return false;
}

/* ---- finding --------------------------------------------------------------------------------- */

static int extra_add(struct ckpt *ckpt, const char *folder, const char *name, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    char *path = ckpt_path_join(folder, name, err);
    int rc = path ? FSDP_OK : FSDP_ENOMEM;
    if (rc == FSDP_OK && !is_followed(path))
        goto out;
    if (rc == FSDP_OK)
        rc = ckpt_store_stat(&st, ckpt->store, path, err);
    if (rc || st.is_folder)
        goto out;
    struct ckpt_extra *extra = &ckpt->m.extras[ckpt->m.nextras++];
    extra->full_path = path;
    extra->nbytes = st.nbytes;
    extra->path = fsdp_strdup(name, err);
    return extra->path ? FSDP_OK : FSDP_ENOMEM;
out:
    fsdp_free(path);
    return rc;
}

/* Megatron-Core's file about its checkpoint says nothing of the model. */
static bool is_of_format(const struct ckpt *ckpt, const char *name)
{
    return ckpt->format->id == CKPT_DCP && !strcmp(name, "metadata.json");
}

/* A model card describes the folder that it is in: a copy has it, a merge writes its own. */
static bool is_card(const struct ckpt *ckpt, const char *name)
{
    return (ckpt->format->id == CKPT_HF || ckpt->format->id == CKPT_TORCH) &&
           !strcmp(name, CKPT_CARD_NAME);
}

static int extras_add(struct ckpt *ckpt, const char *folder, const struct ckpt_names *names,
                      bool (*takes)(const char *name), struct fsdp_err *err)
{
    size_t count = names->nnames < CKPT_MAX_EXTRAS ? (size_t)names->nnames : CKPT_MAX_EXTRAS;
    if (!(ckpt->m.extras = fsdp_alloc(count, sizeof *ckpt->m.extras, "extras", err)))
        return FSDP_ENOMEM;
    for (int i = 0; i < names->nnames && ckpt->m.nextras < CKPT_MAX_EXTRAS; i++)
        if ((takes(names->names[i]) && !is_of_format(ckpt, names->names[i])) ||
            is_card(ckpt, names->names[i]))
            FSDP_TRY(extra_add(ckpt, folder, names->names[i], err));
    return FSDP_OK;
}

static bool has_config(const struct ckpt_names *names)
{
    for (int i = 0; i < names->nnames; i++)
        if (!strcmp(names->names[i], "config.json"))
            return true;
    return false;
}

/* Where the folder above has a config.json. It holds other files of the training program, too: only
 * a model's are taken. */
static int parent_extras_add(bool *taken, struct ckpt *ckpt, struct fsdp_err *err)
{
    struct ckpt_names names;
    struct fsdp_err quiet = FSDP_ERR_INIT;
    char *parent = ckpt_path_parent(ckpt->folder, err);
    if (!parent)
        return FSDP_ENOMEM;
    int rc = FSDP_OK;
    if (ckpt_store_names(&names, ckpt->store, parent, &quiet) == FSDP_OK) {
        if ((*taken = has_config(&names))) {
            fsdp_log(FSDP_LOG_INFO, "'%s': config.json and the tokenizer files are those of '%s'",
                     ckpt->path, parent);
            rc = extras_add(ckpt, parent, &names, ckpt_hf_is_companion, err);
        }
        ckpt_names_free(&names);
    }
    fsdp_free(parent);
    return rc;
}

int ckpt_extras_find(struct ckpt *ckpt, const struct ckpt_names *names, struct fsdp_err *err)
{
    static const char accelerate[] = "pytorch_model_fsdp";
    const char *base = ckpt_path_base(ckpt->folder);
    bool taken = false;
    const bool below =
        ckpt->format->id == CKPT_DEEPSPEED ||
        (ckpt->format->id == CKPT_DCP && !strncmp(base, accelerate, sizeof accelerate - 1));
    if (below && !has_config(names))
        FSDP_TRY(parent_extras_add(&taken, ckpt, err));
    return taken ? FSDP_OK : extras_add(ckpt, ckpt->folder, names, ckpt_hf_is_extra, err);
}

/* Is an adapter what was read, and not the model next to it? Its file or its tensors say so. */
static bool is_adapter(const struct ckpt *ckpt)
{
    const struct ckpt_layout *layout = &ckpt->m.layout;
    for (int i = 0; i < layout->nfiles; i++)
        if (!strncmp(ckpt_path_base(layout->files[i].path), "adapter_", 8))
            return true;
    for (int i = 0; i < layout->ntensors; i++)
        if (strstr(layout->tensors[i].tensor.name, ".lora_"))
            return true;
    return false;
}

void ckpt_extras_drop_adapter(struct ckpt *ckpt)
{
    struct ckpt_manifest *m = &ckpt->m;
    int nkept = 0;
    if (ckpt->format->has_manifest || is_adapter(ckpt))
        return;
    for (int i = 0; i < m->nextras; i++) {
        struct ckpt_extra *extra = &m->extras[i];
        if (!strncmp(extra->path, "adapter_", 8)) {
            fsdp_log(FSDP_LOG_INFO,
                     "'%s' belongs to an adapter and is left out; ckpt-merge --adapter %s adds the "
                     "adapter to weights",
                     extra->full_path, ckpt->folder);
            fsdp_free(extra->path);
            fsdp_free(extra->full_path);
        } else {
            m->extras[nkept++] = *extra;
        }
    }
    m->nextras = nkept;
}

/* One file, as config.json. */
static int config_add(struct ckpt *ckpt, const char *path, uint64_t nbytes, struct fsdp_err *err)
{
    struct ckpt_extra *extra = &ckpt->m.extras[0];

    extra->nbytes = nbytes;
    extra->path = fsdp_strdup("config.json", err);
    extra->full_path = fsdp_strdup(path, err);
    ckpt->m.nextras = 1;
    return extra->path && extra->full_path ? FSDP_OK : FSDP_ENOMEM;
}

int ckpt_extras_replace(struct ckpt *ckpt, const char *config, struct fsdp_err *err)
{
    const struct ckpt_store_ops *store;
    struct ckpt_store_stat st;
    struct ckpt_names names = {0};

    FSDP_TRY(ckpt_store_of(&store, config, err));
    if (store != ckpt->store)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s' is in another kind of store than '%s': copy it next to that",
                            config, ckpt->path);
    FSDP_TRY(ckpt_store_stat(&st, store, config, err));
    if (st.is_folder)
        FSDP_TRY(ckpt_store_names(&names, store, config, err));
    if (st.is_folder && !has_config(&names)) {
        ckpt_names_free(&names);
        return fsdp_err_set(err, FSDP_ENOTFOUND, "'%s' has no config.json", config);
    }
    for (int i = 0; i < ckpt->m.nextras; i++) {
        fsdp_free(ckpt->m.extras[i].path);
        fsdp_free(ckpt->m.extras[i].full_path);
    }
    fsdp_free(ckpt->m.extras);
    ckpt->m.extras = NULL;
    ckpt->m.nextras = 0;
    int rc;
    if (st.is_folder)
        rc = extras_add(ckpt, config, &names, ckpt_hf_is_companion, err);
    else if (!(ckpt->m.extras = fsdp_alloc(1, sizeof *ckpt->m.extras, "extras", err)))
        rc = FSDP_ENOMEM;
    else
        rc = config_add(ckpt, config, st.nbytes, err);
    ckpt_names_free(&names);
    return rc;
}

int ckpt_extras_find_here(struct ckpt *ckpt, struct fsdp_err *err)
{
    struct ckpt_names names;

    FSDP_TRY(ckpt_store_names(&names, ckpt->store, ckpt->folder, err));
    const int rc = ckpt_extras_find(ckpt, &names, err);
    ckpt_names_free(&names);
    return rc;
}
