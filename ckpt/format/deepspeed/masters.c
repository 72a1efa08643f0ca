/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "reader.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

/* ---- the flat vectors ------------------------------------------------------------------------ */

static const struct ckpt_pk *optimizer_of(const struct ckpt_ds_reader *r, int rank)
{
    return ckpt_pk_get(r->ranks.optims[rank].pickle.root, "optimizer_state_dict");
}

/* What the optimizer keeps for the vectors of a rank: {number of the vector: {name: tensor}}, or a
 * list of these. */
static const struct ckpt_pk *states_of(const struct ckpt_ds_reader *r, int rank)
{
    const struct ckpt_pk *optimizer = optimizer_of(r, rank);
    const struct ckpt_pk *base =
        ckpt_pk_get(optimizer, r->by_rank ? "optimizer_state_dict" : "base_optimizer_state");
    const struct ckpt_pk *state = ckpt_pk_get(base, "state");
    return state ? state : base;
}

static const struct ckpt_pk *state_at(const struct ckpt_pk *states, size_t i)
{
    if (ckpt_pk_is_list(states))
        return ckpt_pk_item(states, i);
    for (size_t k = 0; states && states->type == CKPT_PK_T_DICT && k + 1 < states->nitems; k += 2) {
        uint64_t number;
        if (ckpt_pk_u64(&number, states->u.items[k]) && number == i)
            return states->u.items[k + 1];
    }
    return NULL;
}

/* Slots are what rank 0 has for its first vector, element by element. */
static int slots_list(struct ckpt_ds_reader *r, const struct ckpt_pk *masters, struct fsdp_err *err)
{
    const struct ckpt_pk *state = state_at(states_of(r, 0), 0);
    struct ckpt_plain_vector master, other;

    r->nslots = 1;
    FSDP_TRY(ckpt_plain_take(&master, r->storages, &r->ranks.optims[0], ckpt_pk_item(masters, 0),
                             "masters", err));
    for (size_t k = 0; state && state->type == CKPT_PK_T_DICT && k + 1 < state->nitems; k += 2) {
        const struct ckpt_pk *name = state->u.items[k], *value = state->u.items[k + 1];
        if (name->type != CKPT_PK_T_TEXT || name->nitems >= CKPT_DS_SLOT_NBYTES ||
            !ckpt_view_is(value) || memchr(name->u.text, 0, name->nitems))
            continue;
        FSDP_TRY(ckpt_plain_take(&other, r->storages, &r->ranks.optims[0], value,
                                 "the optimizer's state", err));
        if (ckpt_pk_is_text(name, "step")) {
            if (other.nelem == 1)
                r->step = other;
            continue;
        }
        if (other.nelem < master.nelem || r->nslots == CKPT_DS_MOST_SLOTS)
            continue;
        snprintf(r->slots[r->nslots++].name, CKPT_DS_SLOT_NBYTES, "%.*s", (int)name->nitems,
                 name->u.text);
    }
    for (int i = 0; i < r->nslots; i++)
        if (!(r->slots[i].streams =
                  fsdp_alloc((size_t)r->nstreams, sizeof(struct ckpt_ds_stream), "streams", err)))
            return FSDP_ENOMEM;
    return FSDP_OK;
}

/* Vector i of a rank and what is kept for it go to the ends of `stream`. */
static int vector_add(struct ckpt_ds_reader *r, int rank, size_t i, const struct ckpt_pk *master,
                      int stream, struct fsdp_err *err)
{
    const struct ckpt_saved *saved = &r->ranks.optims[rank];
    const struct ckpt_pk *state = state_at(states_of(r, rank), i);
    struct ckpt_plain_vector vector;

    FSDP_TRY(ckpt_plain_take(&vector, r->storages, saved, master, "masters", err));
    FSDP_TRY(ckpt_ds_stream_add(&r->slots[0].streams[stream], &vector, err));
    const uint64_t nelem = vector.nelem;
    for (int s = 1; s < r->nslots; s++) {
        const char *name = r->slots[s].name;
        const struct ckpt_pk *value = ckpt_pk_get(state, name);
        FSDP_TRY(ckpt_plain_take(&vector, r->storages, saved, value, name, err));
        /* The masters may be saved without the padding at their end. */
        if (vector.nelem < nelem)
            return BAD("%s: '%s' of vector %zu has %llu elements, and its masters have %llu",
                       saved->what, name, i, (unsigned long long)vector.nelem,
                       (unsigned long long)nelem);
        FSDP_TRY(ckpt_ds_stream_add(&r->slots[s].streams[stream], &vector, err));
    }
    return FSDP_OK;
}

static int vectors_take(struct ckpt_ds_reader *r, int ngroups, struct fsdp_err *err)
{
    const struct ckpt_pk *first = optimizer_of(r, 0);
    const struct ckpt_pk *masters = ckpt_pk_get(first, "single_partition_of_fp32_groups");

    r->by_rank = !masters;
    r->nstreams = r->by_rank ? r->ranks.world : ngroups;
    if (!(r->pos = fsdp_alloc((size_t)r->nstreams, sizeof *r->pos, "places", err)))
        return FSDP_ENOMEM;
    const char *key = r->by_rank ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    for (int rank = 0; rank < r->ranks.world; rank++) {
        const char *what = r->ranks.optims[rank].what;
        masters = ckpt_pk_get(optimizer_of(r, rank), key);
        if (!ckpt_pk_is_list(masters) || !masters->nitems)
            return BAD("%s has no '%s': no fp32 masters of ZeRO 1, 2 or 3", what, key);
        if (!r->by_rank && masters->nitems != (uint32_t)ngroups)
            return BAD("%s has masters of %u groups, and the model states of %d", what,
                       masters->nitems, ngroups);
        if (!rank)
            FSDP_TRY(slots_list(r, masters, err));
        for (size_t i = 0; i < masters->nitems; i++)
            FSDP_TRY(vector_add(r, rank, i, masters->u.items[i], r->by_rank ? rank : (int)i, err));
    }
    return FSDP_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

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

/* What one slot keeps for a parameter, at the present places. */
static int slot_place(struct ckpt_ds_reader *r, const struct ckpt_ds_slot *slot,
                      const struct fsdp_tensor *param, int group, struct fsdp_err *err)
{
    struct ckpt_layout *layout = &r->ckpt->m.layout;
    const uint64_t nelem = fsdp_tensor_nelem(param), world = (uint64_t)r->ranks.world;
    const uint64_t part = (nelem + world - 1) / world;
    char name[CKPT_MAX_NAME_NBYTES + 1];
    struct fsdp_tensor tensor = *param;
    const int first = r->by_rank ? 0 : group;

    if (slot->name[0]) {
        snprintf(name, sizeof name, "state.%s.%s", param->name, slot->name);
        tensor.name = name;
    }
    if (slot->streams[first].count)
        tensor.dtype = slot->streams[first].vectors[0].dtype;
    FSDP_TRY(ckpt_layout_add_tensor(layout, &tensor,
                                    slot->name[0] ? FSDP_SLICE_OPTIM : FSDP_SLICE_MODEL, err));
    for (size_t i = 0; i < slot->streams[first].count; i++)
        if (slot->streams[first].vectors[i].dtype != tensor.dtype)
            return BAD("'%s': the flat vectors of '%s' have two dtypes", r->ckpt->path,
                       param->name);
    if (!r->by_rank)
        return ckpt_ds_stream_place(&slot->streams[group], r->pos[group], 0, nelem, layout, err);
    for (uint64_t rank = 0; rank * part < nelem; rank++) {
        const uint64_t at = rank * part, left = nelem - at;
        FSDP_TRY(ckpt_ds_stream_place(&slot->streams[rank], r->pos[rank], at,
                                      left < part ? left : part, layout, err));
    }
    return FSDP_OK;
}

/* The counter of a parameter is that of all. */
static int step_place(struct ckpt_ds_reader *r, const char *param, struct fsdp_err *err)
{
    struct ckpt_layout *layout = &r->ckpt->m.layout;
    char name[CKPT_MAX_NAME_NBYTES + 1];
    const struct fsdp_tensor tensor = {.name = name, .dtype = r->step.dtype};

    if (!r->step.nelem)
        return FSDP_OK;
    snprintf(name, sizeof name, "state.%s.step", param);
    FSDP_TRY(ckpt_layout_add_tensor(layout, &tensor, FSDP_SLICE_OPTIM, err));
    const struct ckpt_piece piece = {.tensor = layout->ntensors - 1,
                                     .file = r->step.file,
                                     .offset = ckpt_dims_zero,
                                     .length = ckpt_dims_zero,
                                     .pos = r->step.pos};
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
    for (int i = 0; i < r->nslots; i++)
        FSDP_TRY(slot_place(r, &r->slots[i], param, group, err));
    FSDP_TRY(step_place(r, param->name, err));
    for (int s = r->by_rank ? 0 : group; s < (r->by_rank ? r->nstreams : group + 1); s++)
        r->pos[s] += need + padding;
    return FSDP_OK;
}

/* Padding behind parameter i of a group, which newer versions tell; else 0. */
static uint64_t padding_of(const struct ckpt_ds_reader *r, int group, size_t i)
{
    const struct ckpt_pk *all = ckpt_pk_get(optimizer_of(r, 0), "param_alignment_paddings");
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
    FSDP_TRY(vectors_take(r, (int)groups->nitems, err));
    FSDP_TRY(params_take(r, groups, err));
    return refuse_leftovers(r, err);
}
