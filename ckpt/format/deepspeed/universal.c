/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Universal checkpoints, which ds_to_universal.py writes: zero/PARAMETER/ has fp32.pt, exp_avg.pt
 * and what else the optimizer keeps, each a whole tensor or {'param': tensor}, and step.pt. The
 * model states lie next to zero/. What is not read (zero/optimizer_state.pt with the settings of
 * the groups, the folders of tied parameters' other names) is of the checkpoint, too: a copy has
 * it.
 */
#include <string.h>

#include "reader.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)
#define FOLDER "zero"

/* One of the files: of which parameter, and what it keeps for it. */
struct part {
    int param; /* among the names of the folder */
    int file;  /* of the layout */
    char slot[CKPT_DS_SLOT_NBYTES];
};

struct parts {
    struct ckpt_names params;
    struct part *items;
    size_t count, max;
};

/* "exp_avg" of exp_avg.pt; false for a name that is no such file. */
static bool slot_of(char *out, size_t nbytes, const char *name)
{
    const size_t len = strlen(name);
    if (name[0] == '.' || len < 4 || len - 3 >= nbytes || strcmp(name + len - 3, ".pt") != 0)
        return false;
    memcpy(out, name, len - 3);
    out[len - 3] = 0;
    return true;
}

/* One more file of the checkpoint, at the end of the layout's. */
static int file_add(struct ckpt *ckpt, const char *folder, const char *name, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    char *file = fsdp_sprintf(err, FOLDER "/%s%s%s", folder, *folder ? "/" : "", name);
    char *path = file ? ckpt_path_join(ckpt->folder, file, err) : NULL;
    int rc = path ? ckpt_store_stat(&st, ckpt->store, path, err) : FSDP_ENOMEM;

    if (rc == FSDP_OK && !st.is_folder)
        rc = ckpt_layout_add_file(&ckpt->m.layout, file, st.nbytes, err);
    fsdp_free(path);
    fsdp_free(file);
    return rc;
}

/* A folder below zero/ whose files are not read. */
static int unread_add(struct ckpt *ckpt, const char *name, struct fsdp_err *err)
{
    struct ckpt_names names;
    char *folder = fsdp_sprintf(err, "%s/" FOLDER "/%s", ckpt->folder, name);

    if (!folder)
        return FSDP_ENOMEM;
    int rc = ckpt_store_names(&names, ckpt->store, folder, err);
    fsdp_free(folder);
    FSDP_TRY(rc);
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++)
        if (names.names[i][0] != '.')
            rc = file_add(ckpt, name, names.names[i], err);
    ckpt_names_free(&names);
    return rc;
}

static int part_add(struct parts *parts, struct ckpt *ckpt, int param, const char *name,
                    struct fsdp_err *err)
{
    struct part part = {.param = param, .file = ckpt->m.layout.nfiles};

    if (!slot_of(part.slot, sizeof part.slot, name))
        return FSDP_OK;
    struct part *items = fsdp_alloc_grow(parts->items, parts->count, &parts->max, sizeof *items,
                                         "files of parameters", err);
    if (!items)
        return FSDP_ENOMEM;
    parts->items = items;
    FSDP_TRY(file_add(ckpt, parts->params.names[param], name, err));
    if (ckpt->m.layout.nfiles > part.file)
        items[parts->count++] = part;
    return FSDP_OK;
}

/* The files of a parameter, that of its masters first. */
static int param_list(struct parts *parts, struct ckpt *ckpt, int param, struct fsdp_err *err)
{
    static const char masters[] = "fp32.pt";
    struct ckpt_names names;
    char *folder = fsdp_sprintf(err, "%s/" FOLDER "/%s", ckpt->folder, parts->params.names[param]);

    if (!folder)
        return FSDP_ENOMEM;
    int rc = ckpt_store_names(&names, ckpt->store, folder, err);
    if (rc) {
        fsdp_free(folder);
        return rc;
    }
    bool has_masters = false;
    for (int i = 0; i < names.nnames; i++)
        has_masters |= !strcmp(names.names[i], masters);
    if (!has_masters)
        rc = fsdp_err_set(err, FSDP_ENOTFOUND, "'%s/%s' is missing", folder, masters);
    if (rc == FSDP_OK)
        rc = part_add(parts, ckpt, param, masters, err);
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++)
        if (strcmp(names.names[i], masters) != 0)
            rc = part_add(parts, ckpt, param, names.names[i], err);
    ckpt_names_free(&names);
    fsdp_free(folder);
    return rc;
}

/* The model states know what parameters there must be. */
static int refuse_missing(const struct ckpt_ds_reader *r, const struct ckpt_names *params,
                          const struct ckpt_pk *groups, struct fsdp_err *err)
{
    for (size_t g = 0; ckpt_pk_is_list(groups) && g < groups->nitems; g++) {
        const struct ckpt_pk *shapes = groups->u.items[g];
        for (size_t i = 0; shapes->type == CKPT_PK_T_DICT && i + 1 < shapes->nitems; i += 2)
            if (!ckpt_ds_names_have(params, shapes->u.items[i]))
                return fsdp_err_set(
                    err, FSDP_ENOTFOUND, "'%s/" FOLDER "' lacks the folder of parameter '%.*s'",
                    r->ckpt->path,
                    (int)(shapes->u.items[i]->type == CKPT_PK_T_TEXT ? shapes->u.items[i]->nitems
                                                                     : 0),
                    shapes->u.items[i]->u.text);
    }
    return FSDP_OK;
}

/* The shape that the model states have for a parameter; NULL: they do not know it. */
static const struct ckpt_pk *shape_of(const struct ckpt_pk *groups, const char *param)
{
    const struct ckpt_pk *shape = NULL;
    for (size_t g = 0; !shape && ckpt_pk_is_list(groups) && g < groups->nitems; g++)
        shape = ckpt_pk_get(groups->u.items[g], param);
    return shape;
}

/* The tensor in a file. Of ZeRO 3 it is flat; else it has the shape that the model states know. */
static int part_tensor(struct fsdp_tensor *out, const struct ckpt_view_args *view,
                       const char *param, const struct ckpt_pk *shape, const char *what,
                       struct fsdp_err *err)
{
    struct fsdp_tensor known;

    *out = (struct fsdp_tensor){.name = param, .dtype = view->dtype, .ndim = view->ndim};
    memcpy(out->shape, view->size, sizeof out->shape);
    FSDP_TRY(fsdp_tensor_check(out, err));
    if (!shape)
        return FSDP_OK;
    FSDP_TRY(ckpt_ds_shape(&known, param, shape, what, err));
    const bool flat = view->ndim == 1 && view->size[0] == fsdp_tensor_nelem(&known);
    bool same = view->ndim == known.ndim;
    for (int d = 0; same && d < known.ndim; d++)
        same = view->size[d] == known.shape[d];
    if (!same && !flat)
        return BAD("%s has another shape than the model states know of '%s'", what, param);
    out->ndim = known.ndim;
    memcpy(out->shape, known.shape, sizeof out->shape);
    return FSDP_OK;
}

/* What a file holds becomes a tensor of the layout. `param`: that of the masters, which come
 * first. */
static int part_take(struct ckpt_ds_reader *r, const struct part *part, const char *param,
                     const struct ckpt_pk *shape, struct fsdp_tensor *masters, struct fsdp_err *err)
{
    struct ckpt_layout *layout = &r->ckpt->m.layout;
    const bool is_master = !strcmp(part->slot, "fp32"), is_step = !strcmp(part->slot, "step");
    char name[CKPT_MAX_NAME_NBYTES + CKPT_DS_SLOT_NBYTES + 8];
    struct ckpt_saved saved;
    struct ckpt_plain_vector vector;
    struct ckpt_view_args view;
    struct ckpt_ds_stream stream = {0};

    FSDP_TRY(ckpt_saved_open(&saved, r->ckpt, part->file, ckpt_pickle_parse_opaque, err));
    const struct ckpt_pk *root = saved.pickle.root, *inner = ckpt_pk_get(root, "param");
    const struct ckpt_pk *value = ckpt_view_is(root) ? root : inner;
    if (is_step && !ckpt_view_is(value)) { /* a number: the model states have it, too */
        ckpt_saved_close(&saved);
        return FSDP_OK;
    }
    int rc = ckpt_plain_take(&vector, r->storages, &saved, value, param, err);
    if (rc == FSDP_OK)
        rc = ckpt_view_parse(&view, value, saved.what, err);
    struct fsdp_tensor tensor = {.name = param, .dtype = vector.dtype};
    if (rc == FSDP_OK && !is_step)
        rc = part_tensor(&tensor, &view, param, shape, saved.what, err);
    if (is_master)
        *masters = tensor;
    bool same = tensor.ndim == masters->ndim;
    for (int d = 0; same && d < tensor.ndim; d++)
        same = tensor.shape[d] == masters->shape[d];
    if (rc == FSDP_OK && (is_step ? vector.nelem != 1 : !same))
        rc = BAD("%s has another shape than the parameter's fp32.pt", saved.what);
    snprintf(name, sizeof name, "state.%s.%s", param, part->slot);
    if (!is_master)
        tensor.name = name;
    if (rc == FSDP_OK)
        rc = ckpt_layout_add_tensor(layout, &tensor,
                                    is_master ? FSDP_SLICE_MODEL : FSDP_SLICE_OPTIM, err);
    if (rc == FSDP_OK)
        rc = ckpt_ds_stream_add(&stream, &vector, err);
    if (rc == FSDP_OK)
        rc = ckpt_ds_stream_place(&stream, 0, 0, vector.nelem, layout, err);
    ckpt_ds_stream_free(&stream);
    ckpt_saved_close(&saved);
    return rc;
}

static int is_folder(bool *out, const struct ckpt *ckpt, const char *name, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    char *path = fsdp_sprintf(err, "%s/" FOLDER "/%s", ckpt->folder, name);
    const int rc = path ? ckpt_store_stat(&st, ckpt->store, path, err) : FSDP_ENOMEM;

    fsdp_free(path);
    *out = rc == FSDP_OK && st.is_folder;
    return rc;
}

static int parts_take(struct ckpt_ds_reader *r, struct parts *parts, const struct ckpt_pk *groups,
                      struct fsdp_err *err)
{
    const struct ckpt_pk *shared = ckpt_pk_get(r->ranks.models[0].pickle.root, "shared_params");
    const struct ckpt_pk *module = ckpt_pk_get(r->ranks.models[0].pickle.root, "module");
    struct fsdp_tensor masters = {.ndim = 0};

    FSDP_TRY(refuse_missing(r, &parts->params, groups, err));
    for (int i = 0; i < parts->params.nnames; i++) {
        const char *param = parts->params.names[i];
        bool is = false;
        /* The folder of another name has the run's dtype, not the masters. */
        if (param[0] == '.')
            continue;
        FSDP_TRY(is_folder(&is, r->ckpt, param, err));
        if (ckpt_pk_get(shared, param) || !is) {
            FSDP_TRY(is ? unread_add(r->ckpt, param, err) : file_add(r->ckpt, "", param, err));
            continue;
        }
        if (!shape_of(groups, param) && module && !ckpt_pk_get(module, param))
            return BAD("'%s/" FOLDER "/%s': the model states do not know this parameter",
                       r->ckpt->path, param);
        FSDP_TRY(param_list(parts, r->ckpt, i, err));
    }
    FSDP_TRY(ckpt_readers_create(r->ckpt, err));
    for (size_t i = 0; i < parts->count; i++) {
        const char *param = parts->params.names[parts->items[i].param];
        if (strlen(param) > CKPT_MAX_NAME_NBYTES - CKPT_DS_SLOT_NBYTES - 8)
            return BAD("'%s/" FOLDER "': the name '%.64s...' is too long", r->ckpt->path, param);
        FSDP_TRY(part_take(r, &parts->items[i], param, shape_of(groups, param), &masters, err));
    }
    return FSDP_OK;
}

int ckpt_ds_universal_take(bool *is, struct ckpt_ds_reader *r, const struct ckpt_pk *groups,
                           struct fsdp_err *err)
{
    struct parts parts = {.count = 0};
    struct ckpt_store_stat st;
    struct fsdp_err quiet = FSDP_ERR_INIT;
    char *folder = ckpt_path_join(r->ckpt->folder, FOLDER, err);

    if (!folder)
        return FSDP_ENOMEM;
    *is = ckpt_store_stat(&st, r->ckpt->store, folder, &quiet) == FSDP_OK && st.is_folder;
    int rc = *is ? ckpt_store_names(&parts.params, r->ckpt->store, folder, err) : FSDP_OK;
    fsdp_free(folder);
    if (*is && rc == FSDP_OK) {
        r->by_rank = r->ranks.by_rank;
        rc = parts_take(r, &parts, groups, err);
        if (rc == FSDP_OK)
            rc = ckpt_ds_frozen_take(r, groups, &parts.params, err);
        ckpt_names_free(&parts.params);
    }
    fsdp_free(parts.items);
    return rc;
}
