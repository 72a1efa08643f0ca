/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "reader.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

/* A whole tensor of the model states. */
static int whole_take(struct ckpt_ds_reader *r, const char *name, const struct ckpt_pk *value,
                      struct fsdp_err *err)
{
    const struct ckpt_saved *saved = &r->ranks.models[0];
    struct ckpt_ds_stream stream = {0};
    struct ckpt_plain_vector vector;
    struct ckpt_view_args view;
    struct fsdp_tensor tensor = {.name = name};

    FSDP_TRY(ckpt_plain_take(&vector, r->storages, saved, value, name, err));
    FSDP_TRY(ckpt_view_parse(&view, value, saved->what, err));
    tensor.dtype = view.dtype;
    tensor.ndim = view.ndim;
    memcpy(tensor.shape, view.size, sizeof tensor.shape);
    FSDP_TRY(fsdp_tensor_check(&tensor, err));
    FSDP_TRY(ckpt_layout_add_tensor(&r->ckpt->m.layout, &tensor, FSDP_SLICE_MODEL, err));
    int rc = ckpt_ds_stream_add(&stream, &vector, err);
    if (rc == FSDP_OK)
        rc = ckpt_ds_stream_place(&stream, 0, 0, vector.nelem, &r->ckpt->m.layout, err);
    ckpt_ds_stream_free(&stream);
    return rc;
}

/* A frozen parameter: whole in one file, or a part a rank. */
static int frozen_take(struct ckpt_ds_reader *r, const char *name, const struct ckpt_pk *shape,
                       struct fsdp_err *err)
{
    struct fsdp_tensor tensor;
    struct ckpt_ds_stream stream = {0};
    struct ckpt_plain_vector vector;
    int rc = FSDP_OK;

    FSDP_TRY(ckpt_ds_shape(&tensor, name, shape, r->ranks.models[0].what, err));
    const uint64_t nelem = fsdp_tensor_nelem(&tensor);
    for (int i = 0; rc == FSDP_OK && i < r->ranks.nmodels; i++) {
        const struct ckpt_saved *saved = &r->ranks.models[i];
        const struct ckpt_pk *parts = ckpt_pk_get(saved->pickle.root, "frozen_param_fragments");
        rc = ckpt_plain_take(&vector, r->storages, saved, ckpt_pk_get(parts, name), name, err);
        if (rc == FSDP_OK && i && vector.dtype != tensor.dtype)
            rc = BAD("%s: '%s' has another dtype than in %s", saved->what, name,
                     r->ranks.models[0].what);
        tensor.dtype = vector.dtype;
        if (rc == FSDP_OK)
            rc = ckpt_ds_stream_add(&stream, &vector, err);
    }
    const uint64_t parts = (uint64_t)r->ranks.nmodels;
    if (rc == FSDP_OK && stream.nelem != (nelem + parts - 1) / parts * parts)
        rc = BAD("'%s': the parts of '%s' have %llu elements, and it has %llu", r->ckpt->path, name,
                 (unsigned long long)stream.nelem, (unsigned long long)nelem);
    if (rc == FSDP_OK)
        rc = ckpt_layout_add_tensor(&r->ckpt->m.layout, &tensor, FSDP_SLICE_MODEL, err);
    if (rc == FSDP_OK)
        rc = ckpt_ds_stream_place(&stream, 0, 0, nelem, &r->ckpt->m.layout, err);
    ckpt_ds_stream_free(&stream);
    return rc;
}

static bool lists(const struct ckpt_pk *list, const char *name)
{
    for (size_t i = 0; ckpt_pk_is_list(list) && i < list->nitems; i++)
        if (ckpt_pk_is_text(list->u.items[i], name))
            return true;
    return false;
}

static bool groups_have(const struct ckpt_pk *groups, const char *name)
{
    for (size_t g = 0; ckpt_pk_is_list(groups) && g < groups->nitems; g++)
        if (ckpt_pk_get(groups->u.items[g], name))
            return true;
    return false;
}

bool ckpt_ds_names_have(const struct ckpt_names *names, const struct ckpt_pk *name)
{
    for (int i = 0; i < names->nnames; i++)
        if (ckpt_pk_is_text(name, names->names[i]))
            return true;
    return false;
}

/* Buffers; and of ZeRO up to 2, whose module is whole, whatever else no optimizer has: ZeRO 1 does
 * not list frozen parameters. */
static int module_take(struct ckpt_ds_reader *r, const struct ckpt_pk *groups,
                       const struct ckpt_names *have, struct fsdp_err *err)
{
    const struct ckpt_pk *root = r->ranks.models[0].pickle.root;
    const struct ckpt_pk *module = ckpt_pk_get(root, "module");
    const struct ckpt_pk *buffers = ckpt_pk_get(root, "buffer_names");
    const struct ckpt_pk *shared = ckpt_pk_get(root, "shared_params");
    const struct ckpt_pk *frozen = ckpt_pk_get(root, "frozen_param_shapes");
    char name[CKPT_MAX_NAME_NBYTES + 1];

    if (!module || module->type != CKPT_PK_T_DICT)
        return r->by_rank ? FSDP_OK : BAD("%s has no 'module'", r->ranks.models[0].what);
    for (size_t i = 0; i + 1 < module->nitems; i += 2) {
        const struct ckpt_pk *value = module->u.items[i + 1];
        if (value->type != CKPT_PK_T_CALL || (have && ckpt_ds_names_have(have, module->u.items[i])))
            continue;
        FSDP_TRY(ckpt_ds_name(name, sizeof name, module->u.items[i], r->ranks.models[0].what, err));
        const bool buffer = lists(buffers, name);
        if (!buffer && (r->by_rank || ckpt_pk_get(shared, name) || ckpt_pk_get(frozen, name) ||
                        groups_have(groups, name)))
            continue;
        if (!ckpt_view_is(value))
            return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                                "%s: '%s' in 'module' is of a form that is not read",
                                r->ranks.models[0].what, name);
        FSDP_TRY(whole_take(r, name, value, err));
    }
    return FSDP_OK;
}

int ckpt_ds_frozen_take(struct ckpt_ds_reader *r, const struct ckpt_pk *groups,
                        const struct ckpt_names *have, struct fsdp_err *err)
{
    const struct ckpt_pk *root = r->ranks.models[0].pickle.root;
    const struct ckpt_pk *frozen = ckpt_pk_get(root, "frozen_param_shapes");
    char name[CKPT_MAX_NAME_NBYTES + 1];

    for (size_t i = 0; frozen && frozen->type == CKPT_PK_T_DICT && i + 1 < frozen->nitems; i += 2) {
        if (have && ckpt_ds_names_have(have, frozen->u.items[i]))
            continue;
        FSDP_TRY(ckpt_ds_name(name, sizeof name, frozen->u.items[i], r->ranks.models[0].what, err));
        FSDP_TRY(frozen_take(r, name, frozen->u.items[i + 1], err));
    }
    return module_take(r, groups, have, err);
}
