/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "format/dcp/dcp.h"
#include "format/hf/hf_names.h"
#include "format/torch/torch_write.h"
#include "card.h"
#include "target.h"
#include "util/text.h"
#include "tree.h"
#include "format/native/native.h"

/* ---- the name -------------------------------------------------------------------------------- */

static int refuse_kind(const char *path, struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EEXIST,
                        "output '%s' is a pipe, a socket or a device, and no output can be written "
                        "there: name a file or a folder",
                        path);
}

int ckpt_target_refuse_special(const struct ckpt_store_ops *store, const char *path,
                               struct fsdp_err *err)
{
    enum ckpt_store_kind kind;
    struct fsdp_err quiet = FSDP_ERR_INIT;
    if (ckpt_store_has_links(store) && !ckpt_store_kind_at(&kind, store, path, &quiet) &&
        kind == CKPT_STORE_OTHER)
        return refuse_kind(path, err);
    return FSDP_OK;
}

int ckpt_target_resolve(char **path, const struct ckpt_store_ops *store, struct fsdp_err *err)
{
    enum ckpt_store_kind kind;
    struct fsdp_err why = FSDP_ERR_INIT;
    struct stat st;
    if (!ckpt_store_has_links(store))
        return FSDP_OK;
    int rc = ckpt_store_kind_at(&kind, store, *path, &why);
    if (rc == FSDP_ENOTFOUND || (rc == FSDP_OK && kind != CKPT_STORE_LINK))
        return FSDP_OK;
    if (rc)
        return fsdp_err_pass(err, rc, &why);
    char *real = realpath(*path, NULL);
    if (!real && !stat(*path, &st) && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return refuse_kind(*path, err); /* /dev/stdout, of a pipe */
    if (!real)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "output '%s' is a symbolic link to nothing that can be reached (%s): "
                            "remove the link, or name another output",
                            *path, strerror(errno));
    char *copy = fsdp_strdup(real, err);
    free(real);
    if (!copy)
        return FSDP_ENOMEM;
    fsdp_free(*path);
    *path = copy;
    return FSDP_OK;
}

/* ---- the input ------------------------------------------------------------------------------- */

static bool is_object(const char *path, const struct stat *object)
{
    struct stat st;
    return stat(path, &st) == 0 && st.st_dev == object->st_dev && st.st_ino == object->st_ino;
}

/* Is the object at path, or a folder above it? path has no links and is cut while it is followed.
 */
static bool is_above(const struct stat *object, char *path)
{
    for (;;) {
        if (is_object(path, object))
            return true;
        char *slash = strrchr(path, '/');
        if (!slash || !path[1])
            return false;
        slash[slash == path] = 0;
    }
}

/* The path without links of what is at path, or of the nearest folder above it that is there. */
static bool resolve_near(char out[PATH_MAX], const char *path, struct fsdp_err *err)
{
    char *at = fsdp_strdup(path, err);
    bool found = at && realpath(at, out);
    while (at && !found && strcmp(at, ".") && strcmp(at, "/")) {
        char *above = ckpt_path_parent(at, err);
        fsdp_free(at);
        at = above;
        found = at && realpath(at, out);
    }
    fsdp_free(at);
    return found;
}

/* Is a file of the checkpoint the output, or in it, wherever links lead? */
static int refuse_file(const struct ckpt *ckpt, const char *path, const char *final,
                       const struct stat *out, char last[PATH_MAX], struct fsdp_err *err)
{
    char real[PATH_MAX];
    if (!realpath(path, real))
        return FSDP_OK;
    if (is_object(real, out))
        return fsdp_err_set(err, FSDP_EINVAL, "output '%s' is the input's file '%s'", final, real);
    char *slash = strrchr(real, '/');
    slash[slash == real] = 0;
    if (!strcmp(real, last))
        return FSDP_OK;
    strcpy(last, real);
    if (is_above(out, real))
        return fsdp_err_set(err, FSDP_EINVAL, "input '%s' has files in the output '%s'", ckpt->path,
                            final);
    return FSDP_OK;
}

static int refuse_files(const struct ckpt *ckpt, const char *final, const struct stat *out,
                        struct fsdp_err *err)
{
    char last[PATH_MAX] = "";
    for (int i = 0; i < ckpt->m.layout.nfiles; i++) {
        char *path = ckpt_path_join(ckpt->folder, ckpt->m.layout.files[i].path, err);
        int rc = path ? refuse_file(ckpt, path, final, out, last, err) : FSDP_ENOMEM;
        fsdp_free(path);
        FSDP_TRY(rc);
    }
    for (int i = 0; i < ckpt->m.nextras; i++)
        FSDP_TRY(refuse_file(ckpt, ckpt->m.extras[i].full_path, final, out, last, err));
    return FSDP_OK;
}

static int refuse_object(const struct ckpt *ckpt, const char *final, struct fsdp_err *err)
{
    char path[PATH_MAX];
    struct stat in, out;
    if (stat(ckpt->path, &in) || !resolve_near(path, final, err))
        return FSDP_OK;
    bool exists = stat(final, &out) == 0;
    if (exists && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
        return fsdp_err_set(err, FSDP_EINVAL, "output '%s' and input '%s' are the same", final,
                            ckpt->path);
    if (is_above(&in, path))
        return fsdp_err_set(err, FSDP_EINVAL, "output '%s' lies in the input '%s'", final,
                            ckpt->path);
    if (!exists)
        return FSDP_OK;
    if (realpath(ckpt->path, path) && is_above(&out, path))
        return fsdp_err_set(err, FSDP_EINVAL, "input '%s' lies in the output '%s'", ckpt->path,
                            final);
    return refuse_files(ckpt, final, &out, err);
}

static bool is_inside(const char *path, const char *folder)
{
    size_t len = strlen(folder);
    return !strncmp(path, folder, len) && (path[len] == '/' || path[len] == 0);
}

int ckpt_target_refuse_input(const struct ckpt *ckpt, const char *final,
                             const struct ckpt_store_ops *store, struct fsdp_err *err)
{
    const char *from = ckpt->path;
    if (ckpt->store != store)
        return FSDP_OK;
    if (ckpt_store_has_links(store))
        return refuse_object(ckpt, final, err);
    if (!strcmp(final, from))
        return fsdp_err_set(err, FSDP_EINVAL, "output '%s' and input '%s' are the same", final,
                            from);
    if (is_inside(final, from))
        return fsdp_err_set(err, FSDP_EINVAL, "output '%s' lies in the input '%s'", final, from);
    if (is_inside(from, final))
        return fsdp_err_set(err, FSDP_EINVAL, "input '%s' lies in the output '%s'", from, final);
    return FSDP_OK;
}

int ckpt_target_refuse_within(const char *folder, const char *what, const char *final,
                              const struct ckpt_store_ops *store, struct fsdp_err *err)
{
    char path[PATH_MAX];
    struct stat st;
    const bool within =
        !ckpt_store_has_links(store)
            ? is_inside(final, folder)
            : stat(folder, &st) == 0 && resolve_near(path, final, err) && is_above(&st, path);
    return within ? fsdp_err_set(err, FSDP_EINVAL, "output '%s' is or lies in the %s '%s'", final,
                                 what, folder)
                  : FSDP_OK;
}

/* ---- what may be replaced -------------------------------------------------------------------- */

struct proof {
    const struct ckpt_target *target;
    struct ckpt_belongs native; /* by the manifest */
    bool card_is_ours;
    json_t *files; /* that the index or .metadata names; NULL: there is none */
};

static bool has_end(const char *name, const char *end)
{
    const size_t len = strlen(name), nbytes = strlen(end);
    return len >= nbytes && !strcmp(name + len - nbytes, end);
}

static int parse_native(struct proof *p, struct fsdp_err *err)
{
    const struct ckpt_target *t = p->target;
    char *attempt = NULL;
    int rc = ckpt_attempt_of(&attempt, t->store, t->path, err);
    fsdp_free(attempt);
    return rc ? rc : ckpt_belongs_load(&p->native, t->store, t->path, err);
}

/* The names of the files that hold chunks. One that is too long is none of ours. */
static int take_storage(struct proof *p, const struct ckpt_pk *storage, const char *path,
                        struct fsdp_err *err)
{
    char name[64];

    if (!storage || storage->type != CKPT_PK_T_DICT)
        return fsdp_err_set(err, FSDP_ECORRUPT, "'%s' has no storage_data", path);
    p->files = json_object();
    for (size_t i = 1; p->files && i < storage->nitems; i += 2) {
        const struct ckpt_pk *file = ckpt_pk_get(storage->u.items[i], "relative_path");
        if (!file || file->type != CKPT_PK_T_TEXT || file->nitems >= sizeof name)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)file->nitems, file->u.text);
        json_object_set_new(p->files, name, json_true()); /* not UTF-8: none of ours */
    }
    return p->files ? FSDP_OK : fsdp_err_set(err, FSDP_ENOMEM, "'%s': out of memory", path);
}

static int parse_dcp(struct proof *p, struct fsdp_err *err)
{
    const struct ckpt_target *t = p->target;
    struct ckpt_pickle pickle = {0};
    char *path = ckpt_path_join(t->path, CKPT_DCP_METADATA_NAME, err), *data = NULL;
    size_t nbytes = 0;
    int rc = path ? ckpt_store_get(&data, &nbytes, t->store, path, CKPT_MAX_METADATA_NBYTES, err)
                  : FSDP_ENOMEM;
    if (rc == FSDP_OK)
        rc = ckpt_pickle_parse(&pickle, data, nbytes, path, err);
    if (rc == FSDP_OK && !ckpt_pk_is_call(pickle.root, CKPT_PK_METADATA))
        rc = fsdp_err_set(err, FSDP_ECORRUPT, "'%s' is not torch's metadata", path);
    if (rc == FSDP_OK)
        rc = take_storage(p, ckpt_pk_get(pickle.root, "storage_data"), path, err);
    ckpt_pickle_free(&pickle);
    fsdp_free(data);
    fsdp_free(path);
    return rc;
}

/* The names of the files in the index's weight_map. */
static int take_map(struct proof *p, const json_t *root, const char *path, struct fsdp_err *err)
{
    json_t *map = json_object_get(root, "weight_map"), *file;
    const char *name;
    if (!json_is_object(map))
        return fsdp_err_set(err, FSDP_ECORRUPT, "'%s' has no weight_map", path);
    p->files = json_object();
    json_object_foreach(map, name, file)
    {
        const char *text = json_string_value(file);
        if (text && json_object_set_new(p->files, text, json_true()))
            return fsdp_err_set(err, FSDP_ENOMEM, "'%s': out of memory", path);
    }
    return p->files ? FSDP_OK : fsdp_err_set(err, FSDP_ENOMEM, "'%s': out of memory", path);
}

static int parse_weights(const struct ckpt_target *t, const char *path, struct fsdp_err *err)
{
    if (t->place == CKPT_PLACE_TORCH)
        return ckpt_target_prove_saved(t->store, path, err);
    struct ckpt_codec_pool *pool = NULL;
    struct ckpt_st_header header = {0};
    struct ckpt_store_stat st;
    int rc = ckpt_codec_pool_create(&pool, err);
    if (rc == FSDP_OK)
        rc = ckpt_st_read(&header, &st, t->store, path, pool, err);
    if (rc == FSDP_OK)
        ckpt_st_header_free(&header);
    ckpt_codec_pool_destroy(pool);
    return rc;
}

static int parse_index(bool *is, struct proof *p, struct fsdp_err *err)
{
    const struct ckpt_target *t = p->target;
    struct fsdp_err why = FSDP_ERR_INIT;
    json_t *root = NULL;
    size_t nbytes = 0;
    const char *name = t->place == CKPT_PLACE_TORCH ? CKPT_TORCH_INDEX_NAME : CKPT_HF_INDEX_NAME;
    char *path = ckpt_path_join(t->path, name, &why), *data = NULL;
    int rc = path ? ckpt_store_get(&data, &nbytes, t->store, path, CKPT_MAX_INDEX_NBYTES, &why)
                  : FSDP_ENOMEM;
    *is = rc == FSDP_OK;
    if (*is)
        rc = ckpt_json_parse(&root, data, nbytes, path, &why);
    if (*is && rc == FSDP_OK)
        rc = take_map(p, root, path, &why);
    json_decref(root);
    fsdp_free(data);
    fsdp_free(path);
    return rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
}

static bool is_weights_of(const struct ckpt_target *t, const char *name)
{
    return t->place == CKPT_PLACE_DCP     ? has_end(name, ".distcp")
           : t->place == CKPT_PLACE_TORCH ? has_end(name, ".bin")
                                          : ckpt_hf_is_weights(name);
}

/* By its index, or, without one, by every file of weights. An index does not tell what else a file
 * of torch.save holds: those that it names are read, too. */
static int parse_hf(struct proof *p, const struct ckpt_names *names, struct fsdp_err *err)
{
    const struct ckpt_target *t = p->target;
    bool is = false;
    int rc = parse_index(&is, p, err);
    for (int i = 0; rc == FSDP_OK && i < names->nnames; i++) {
        if (!is_weights_of(t, names->names[i]) ||
            (p->files &&
             (t->place != CKPT_PLACE_TORCH || !json_object_get(p->files, names->names[i]))))
            continue;
        char *path = ckpt_path_join(t->path, names->names[i], err);
        rc = path ? parse_weights(t, path, err) : FSDP_ENOMEM;
        fsdp_free(path);
        is = true;
    }
    if (rc == FSDP_OK && !is)
        rc = fsdp_err_set(err, FSDP_ENOTFOUND, "'%s' holds no weights", t->path);
    return rc;
}

static bool is_extra_too(const struct ckpt_target *t, const char *name)
{
    for (int i = 0; t->extras && i < t->extras->nextras; i++)
        if (!strcmp(ckpt_path_base(t->extras->extras[i].path), name))
            return true;
    return false;
}

/* One that nobody has changed. */
static int look_at_card(bool *is_ours, const struct ckpt_target *t, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    size_t nbytes = 0;
    char *path = ckpt_path_join(t->path, CKPT_CARD_NAME, err), *data = NULL;
    if (!path)
        return FSDP_ENOMEM;
    const int rc = ckpt_store_get(&data, &nbytes, t->store, path, CKPT_MAX_INDEX_NBYTES, &why);
    *is_ours = rc == FSDP_OK && ckpt_card_is_ours(data, nbytes);
    fsdp_free(data);
    fsdp_free(path);
    return rc == FSDP_EIO ? fsdp_err_pass(err, rc, &why) : FSDP_OK;
}

static bool judge_item(const void *ctx, const struct ckpt_store_item *item)
{
    const struct proof *p = ctx;
    const char *name = item->path;
    bool folder = item->kind == CKPT_STORE_FOLDER;
    if (item->kind == CKPT_STORE_OTHER)
        return false;
    if (!*name)
        return true;
    if (p->target->place == CKPT_PLACE_NATIVE)
        return ckpt_belongs(&p->native, item);
    if (folder || strchr(name, '/'))
        return false;
    if (!strcmp(name, CKPT_CARD_NAME) && !p->card_is_ours)
        return false;
    /* A tokenizer that the new output lacks may have been put there by hand. */
    if (is_extra_too(p->target, name))
        return true;
    if (is_weights_of(p->target, name) && p->files)
        return json_object_get(p->files, name) != NULL;
    return !ckpt_hf_is_extra(name) && ckpt_belongs_name(name, false, p->target->place);
}

/* The kind of what is there; *nothing: there is nothing to lose. */
static int look_at_target(bool *nothing, bool *folder, struct ckpt_names *names,
                          const struct ckpt_target *t, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    struct fsdp_err why = FSDP_ERR_INIT;
    int rc = ckpt_store_stat(&st, t->store, t->path, &why);
    *nothing = rc == FSDP_ENOTFOUND;
    if (rc)
        return *nothing ? FSDP_OK : fsdp_err_pass(err, rc, &why);
    *folder = st.is_folder;
    FSDP_TRY(ckpt_target_refuse_special(t->store, t->path, err));
    if (st.is_folder)
        FSDP_TRY(ckpt_store_names(names, t->store, t->path, err));
    *nothing = st.is_folder ? !names->nnames : !st.nbytes;
    return FSDP_OK;
}

static int prove_tree(const struct proof *p, struct fsdp_err *err)
{
    const struct ckpt_target *t = p->target;
    struct ckpt_tree tree;
    if (!ckpt_store_can_rename(t->store)) /* only what the manifest names is replaced */
        return FSDP_OK;
    int rc = ckpt_tree_list(&tree, t->store, t->path, judge_item, p, INT64_MAX / 2, err);
    if (rc == FSDP_OK)
        rc = ckpt_tree_refuse(&tree, "overwritten", err);
    ckpt_tree_free(&tree);
    return rc;
}

static int parse_gguf(const struct ckpt_target *t, struct fsdp_err *err)
{
    struct ckpt_store_file *file = NULL;
    struct fsdp_err why = FSDP_ERR_INIT;
    char magic[4] = "";
    FSDP_TRY(ckpt_store_open(&file, t->store, t->path, CKPT_STORE_READ, err));
    int rc = ckpt_store_pread(file, magic, sizeof magic, 0, &why); /* fails where it is shorter */
    ckpt_store_close(file, NULL);
    if (rc == FSDP_EIO)
        return fsdp_err_pass(err, rc, &why);
    return rc == FSDP_OK && !memcmp(magic, "GGUF", sizeof magic)
               ? FSDP_OK
               : fsdp_err_set(err, FSDP_EINVAL, "it does not begin with GGUF");
}

static int parse_head(struct proof *p, bool folder, const struct ckpt_names *names,
                      struct fsdp_err *err)
{
    if (!folder && p->target->place == CKPT_PLACE_GGUF)
        return parse_gguf(p->target, err);
    if (!folder)
        return parse_weights(p->target, p->target->path, err);
    return p->target->place == CKPT_PLACE_NATIVE ? parse_native(p, err)
           : p->target->place == CKPT_PLACE_DCP  ? parse_dcp(p, err)
                                                 : parse_hf(p, names, err);
}

/* What cannot be read as the output that it would have to be. why: of reading it. */
static int refuse_target(const struct ckpt_target *t, const struct ckpt_names *names,
                         const char *why, struct fsdp_err *err)
{
    static const char *const kinds[] = {[CKPT_PLACE_NATIVE] = "checkpoint with a manifest.json",
                                        [CKPT_PLACE_HF] = "safetensors model",
                                        [CKPT_PLACE_GGUF] = "GGUF file",
                                        [CKPT_PLACE_TORCH] = "model of torch.save",
                                        [CKPT_PLACE_DCP] = "torch checkpoint with .metadata"};
    struct ckpt_text text = {0};
    for (int i = 0; i < names->nnames && i < CKPT_TREE_FOREIGN_SHOWN; i++)
        ckpt_text_printf(&text, "%s'%.60s'", i ? ", " : "; it holds ", names->names[i]);
    if (names->nnames > CKPT_TREE_FOREIGN_SHOWN)
        ckpt_text_printf(&text, " and %d more", names->nnames - CKPT_TREE_FOREIGN_SHOWN);
    int rc = fsdp_err_set(err, FSDP_EEXIST,
                          "'%s' is not overwritten: it is no %s (%.400s)%s; name another output, "
                          "or remove it yourself",
                          t->path, kinds[t->place], why, text.data ? text.data : "");
    ckpt_text_free(&text);
    return rc;
}

int ckpt_target_prove(const struct ckpt_target *target, struct fsdp_err *err)
{
    struct proof p = {.target = target};
    struct ckpt_names names = {0};
    struct fsdp_err why = FSDP_ERR_INIT;
    bool nothing, folder = false;
    int rc = look_at_target(&nothing, &folder, &names, target, err);
    if (rc == FSDP_OK && !nothing) {
        rc = parse_head(&p, folder, &names, &why);
        if (rc == FSDP_EINVAL || rc == FSDP_ENOTFOUND || rc == FSDP_ECORRUPT ||
            rc == FSDP_EUNSUPPORTED)
            rc = refuse_target(target, &names, why.text, err);
        else if (rc)
            fsdp_err_pass(err, rc, &why);
        else if (folder)
            rc = look_at_card(&p.card_is_ours, target, err);
        if (rc == FSDP_OK && folder)
            rc = prove_tree(&p, err);
    }
    ckpt_belongs_free(&p.native);
    json_decref(p.files);
    ckpt_names_free(&names);
    return rc;
}
