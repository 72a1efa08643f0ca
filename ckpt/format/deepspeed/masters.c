/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "reader.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

int ckpt_ds_name(char *out, size_t nbytes, const struct ckpt_pk *name, const char *what,
                 struct fsdp_err *err)
{
    if (name->type != CKPT_PK_T_TEXT || !name->nitems || name->nitems > CKPT_MAX_NAME_NBYTES - 64 ||
        memchr(name->u.text, 0, name->nitems))
        return BAD("%s: a parameter's name is missing, too long or not a text", what);
    snprintf(out, nbytes, "%.*s", (int)name->nitems, name->u.text);
    return FSDP_OK;
}

int ckpt_ds_shape(struct fsdp_tensor *out, const char *name, const struct ckpt_pk *shape,
                  const char *what, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;

    *out = (struct fsdp_tensor){.name = name, .dtype = FSDP_F32};
    if (ckpt_pk_is_call(shape, CKPT_PK_SIZE)) /* torch.Size() of a scalar */
        shape = ckpt_pk_item(shape, 0);
    if (shape && !ckpt_pk_dims(out->shape, &out->ndim, shape))
        return BAD("%s: the shape of '%s' is not a list of sizes", what, name);
    if (fsdp_tensor_check(out, &why))
        return BAD("%s: %s", what, why.text);
    return FSDP_OK;
}

/* Elements [at, at + nelem) of a parameter are those of a stream from its present place on. */
struct share {
    int stream;
    uint64_t at, nelem;
};

/* Share i of a parameter: of ZeRO 3 that of rank i, else all of it, of a group. False: no more. */
static bool share_of(struct share *out, const struct ckpt_ds_reader *r, uint64_t nelem, int group,
                     uint64_t i)
{
    const uint64_t world = (uint64_t)r->ranks.world;
    const uint64_t part = r->by_rank ? (nelem + world - 1) / world : nelem;

    out->stream = r->by_rank ? (int)i : group;
    out->at = i * part;
    if (i >= (r->by_rank ? world : 1) || out->at >= nelem)
        return false;
    out->nelem = nelem - out->at < part ? nelem - out->at : part;
    return true;
}

/* The vector that a slot has for the parameter, NULL: it has none. All shares must be alike. */
static int slot_vector(const struct ckpt_plain_vector **out, size_t *index,
                       const struct ckpt_ds_reader *r, const struct ckpt_ds_slot *slot,
                       const struct fsdp_tensor *param, int group, struct fsdp_err *err)
{
    const struct ckpt_plain_vector *first = NULL;
    struct share share;
    size_t at;

    for (uint64_t i = 0; share_of(&share, r, fsdp_tensor_nelem(param), group, i); i++) {
        bool whole;
        const struct ckpt_plain_vector *vector = ckpt_ds_stream_at(
            &whole, &at, &slot->streams[share.stream], r->pos[share.stream], share.nelem);
        if (!vector || !whole ||
            (first && ((first->file == CKPT_DS_NOTHING) != (vector->file == CKPT_DS_NOTHING) ||
                       first->dtype != vector->dtype)))
            return BAD("'%s': '%s' of '%s' is not there as a whole, or has two dtypes",
                       r->ckpt->path, slot->name[0] ? slot->name : "masters", param->name);
        *index = first ? *index : at;
        first = first ? first : vector;
    }
    *out = first && first->file != CKPT_DS_NOTHING ? first : NULL;
    return FSDP_OK;
}

/* What one slot keeps for a parameter, at the present places. */
static int slot_place(struct ckpt_ds_reader *r, const struct ckpt_ds_slot *slot,
                      const struct fsdp_tensor *param, int group, struct fsdp_err *err)
{
    struct ckpt_layout *layout = &r->ckpt->m.layout;
    const uint64_t nelem = fsdp_tensor_nelem(param);
    const bool is_master = !slot->name[0];
    char name[CKPT_MAX_NAME_NBYTES + 1];
    struct fsdp_tensor tensor = *param;
    const struct ckpt_plain_vector *vector;
    struct share share;
    size_t index;

    FSDP_TRY(slot_vector(&vector, &index, r, slot, param, group, err));
    if (!vector && !(is_master && !nelem))
        return FSDP_OK;
    if (!is_master) {
        snprintf(name, sizeof name, "state.%s.%s", param->name, slot->name);
        tensor.name = name;
    }
    tensor.dtype = vector ? vector->dtype : FSDP_F32;
    FSDP_TRY(ckpt_layout_add_tensor(layout, &tensor,
                                    is_master ? FSDP_SLICE_MODEL : FSDP_SLICE_OPTIM, err));
    for (uint64_t i = 0; share_of(&share, r, nelem, group, i); i++)
        FSDP_TRY(ckpt_ds_stream_place(&slot->streams[share.stream], r->pos[share.stream], share.at,
                                      share.nelem, layout, err));
    return FSDP_OK;
}

/* The counter of a parameter is that of its vector. */
static int step_place(struct ckpt_ds_reader *r, const struct fsdp_tensor *param, int group,
                      struct fsdp_err *err)
{
    struct ckpt_layout *layout = &r->ckpt->m.layout;
    char name[CKPT_MAX_NAME_NBYTES + 1];
    const struct ckpt_plain_vector *vector, *step;
    size_t index = 0;

    FSDP_TRY(slot_vector(&vector, &index, r, &r->slots[0], param, group, err));
    step = &r->steps[r->by_rank ? index : (size_t)group];
    if (!vector || step->nelem != 1)
        return FSDP_OK;
    snprintf(name, sizeof name, "state.%s.step", param->name);
    const struct fsdp_tensor tensor = {.name = name, .dtype = step->dtype};
    FSDP_TRY(ckpt_layout_add_tensor(layout, &tensor, FSDP_SLICE_OPTIM, err));
    const struct ckpt_piece piece = {.tensor = layout->ntensors - 1,
                                     .file = step->file,
                                     .offset = ckpt_dims_zero,
                                     .length = ckpt_dims_zero,
                                     .pos = step->pos};
    return ckpt_layout_add_piece(layout, &piece, err);
}

static int param_take(struct ckpt_ds_reader *r, const struct fsdp_tensor *param, int group,
                      uint64_t padding, struct fsdp_err *err)
{
    const uint64_t nelem = fsdp_tensor_nelem(param), world = (uint64_t)r->ranks.world;
    const uint64_t need = r->by_rank ? (nelem + world - 1) / world : nelem;

    for (int s = r->by_rank ? 0 : group; s < (r->by_rank ? r->nstreams : group + 1); s++) {
        const uint64_t have = r->slots[0].streams[s].nelem;
        if (need + padding > have - r->pos[s])
            return BAD("'%s': the flat vectors of %s %d have %llu elements, too few for '%s': "
                       "the files are not of one save",
                       r->ckpt->path, r->by_rank ? "rank" : "group", s, (unsigned long long)have,
                       param->name);
    }
    FSDP_TRY(ckpt_ds_mapping_check(r, param->name, group, nelem, err));
    for (int i = 0; i < r->nslots; i++)
        FSDP_TRY(slot_place(r, &r->slots[i], param, group, err));
    FSDP_TRY(step_place(r, param, group, err));
    for (int s = r->by_rank ? 0 : group; s < (r->by_rank ? r->nstreams : group + 1); s++)
        r->pos[s] += need + padding;
    return FSDP_OK;
}

/* Padding behind parameter i of a group, which newer versions tell; else 0. */
static uint64_t padding_of(const struct ckpt_ds_reader *r, int group, size_t i)
{
    const struct ckpt_pk *all =
        ckpt_pk_get(ckpt_pk_get(r->ranks.optims[0].pickle.root, "optimizer_state_dict"),
                    "param_alignment_paddings");
    uint64_t padding = 0;

    if (!r->by_rank)
        ckpt_pk_u64(&padding, ckpt_pk_item(ckpt_pk_item(all, (size_t)group), i));
    return padding < UINT32_MAX ? padding : UINT32_MAX;
}

static int params_take(struct ckpt_ds_reader *r, const struct ckpt_pk *groups, struct fsdp_err *err)
{
    const char *what = r->ranks.models[0].what;
    char name[CKPT_MAX_NAME_NBYTES + 1];
    struct fsdp_tensor param;

    for (int g = 0; g < (int)groups->nitems; g++) {
        const struct ckpt_pk *shapes = groups->u.items[g];
        if (shapes->type != CKPT_PK_T_DICT)
            return BAD("%s: group %d of 'param_shapes' is no dict", what, g);
        for (size_t i = 0; i + 1 < shapes->nitems; i += 2) {
            FSDP_TRY(ckpt_ds_name(name, sizeof name, shapes->u.items[i], what, err));
            FSDP_TRY(ckpt_ds_shape(&param, name, shapes->u.items[i + 1], what, err));
            FSDP_TRY(param_take(r, &param, g, padding_of(r, g, i / 2), err));
        }
    }
    return FSDP_OK;
}

/* What is left at the end of the vectors is padding: of ZeRO 1 and 2 for 2 ranks' alignment, of
 * ZeRO 3 none. More is a sign of other files. */
static int refuse_leftovers(const struct ckpt_ds_reader *r, struct fsdp_err *err)
{
    const uint64_t most = r->by_rank ? 0 : 2 * (uint64_t)r->ranks.world - 1;

    for (int s = 0; s < r->nstreams; s++)
        for (int i = 0; i < r->nslots; i++) {
            const uint64_t left = r->slots[i].streams[s].nelem - r->pos[s];
            if (left > most)
                return BAD("'%s': the flat vectors of %s %d have %llu elements more than its "
                           "parameters: the files are not of one save",
                           r->ckpt->path, r->by_rank ? "rank" : "group", s,
                           (unsigned long long)left);
        }
    return FSDP_OK;
}

int ckpt_ds_masters_take(struct ckpt_ds_reader *r, const struct ckpt_pk *groups,
                         struct fsdp_err *err)
{
    FSDP_TRY(ckpt_ds_vectors_take(r, (int)groups->nitems, err));
    FSDP_TRY(params_take(r, groups, err));
    return refuse_leftovers(r, err);
}
