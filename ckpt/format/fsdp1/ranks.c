/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ShardedTensor of a flat parameter is the rank's part, if it has one, and a list of the parts of
 * all ranks:
 *
 *     _rebuild_from_type_v2(_rebuild_wrapper_subclass, ShardedTensor, ..., state)
 *     state     ([Shard(tensor, metadata)], ShardedTensorMetadata, group, spec, ...)
 *     metadata  shards_metadata [ShardMetadata(shard_offsets, shard_sizes, placement)], size
 */
#include <stdlib.h>
#include <string.h>

#include "format/dcp/dcp_names.h"
#include "ranks.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

bool ckpt_fsdp1_is_rank(int *rank, size_t *front, const char *name)
{
    static const char *const ends[] = {".bin", ".pt", ".pth"};
    const char *dot = strrchr(name, '.'), *digits = dot;
    bool known = false;

    for (size_t i = 0; dot && i < sizeof ends / sizeof ends[0]; i++)
        known |= !strcmp(dot, ends[i]);
    while (known && digits > name && digits[-1] >= '0' && digits[-1] <= '9')
        digits--;
    if (!known || digits == dot || dot - digits > 6)
        return false;
    *front = (size_t)(digits - name);
    *rank = (int)strtol(digits, NULL, 10);
    const char *word = digits;
    if (word > name && strchr("_-", word[-1]))
        word--;
    return word - name >= 4 && !strncmp(word - 4, "rank", 4);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A member of an object whose class has slots, or a dict. */
static const struct ckpt_pk *member(const struct ckpt_pk *object, const char *key)
{
    const struct ckpt_pk *state = ckpt_pk_state(object);

    if (ckpt_pk_is_list(state)) /* (dict, slots) */
        state = ckpt_pk_item(state, 1);
    return state && state->type == CKPT_PK_T_DICT ? ckpt_pk_get(state, key) : NULL;
}

static const struct ckpt_pk *state_of(const struct ckpt_pk *value)
{
    return ckpt_pk_is_call(value, CKPT_PK_FROM_TYPE) ? ckpt_pk_item(value, 3) : NULL;
}

static const struct ckpt_pk *shards_of(const struct ckpt_pk *value)
{
    return member(ckpt_pk_item(state_of(value), 1), "shards_metadata");
}

/* The one number in a list. */
static bool number_of(uint64_t *out, const struct ckpt_pk *list)
{
    uint64_t dims[FSDP_MAX_DIMS];
    int ndim = 0;
    const bool is = ckpt_pk_dims(dims, &ndim, list) && ndim == 1;
    *out = is ? dims[0] : 0;
    return is;
}

static bool is_flat_key(const struct ckpt_pk *key)
{
    char name[CKPT_MAX_NAME_NBYTES + 1];

    if (key->type != CKPT_PK_T_TEXT || key->nitems >= sizeof name ||
        memchr(key->u.text, 0, key->nitems))
        return false;
    snprintf(name, sizeof name, "%.*s", (int)key->nitems, key->u.text);
    return ckpt_dcp_is_flat_param(name);
}

/* The dict of a file that has flat parameters: all of it, or what it has under a usual key. */
static const struct ckpt_pk *dict_of(const struct ckpt_pk *root)
{
    static const char *const keys[] = {"", "model", "state_dict", "model_state_dict", "module"};

    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        const struct ckpt_pk *dict = *keys[k] ? ckpt_pk_get(root, keys[k]) : root;
        for (size_t i = 0; dict && dict->type == CKPT_PK_T_DICT && i + 1 < dict->nitems; i += 2)
            if (is_flat_key(dict->u.items[i]))
                return dict;
    }
    return NULL;
}

/* ---- a flat parameter ------------------------------------------------------------------------ */

struct reader {
    struct ckpt *ckpt;
    struct ckpt_plain_storages *storages;
    struct ckpt_saved *files;
    int *ranks;                   /* [nfiles] as their names say */
    bool *has_part;               /* [nfiles] of any flat parameter */
    uint32_t most_parts;          /* of a flat parameter */
    const struct ckpt_pk **dicts; /* [nfiles] */
    int nfiles, nopened;
    bool *seen; /* [max_seen] parts of one flat parameter */
    size_t max_seen;
};

/* What the first file says of a flat parameter. */
struct flat {
    char name[CKPT_MAX_NAME_NBYTES + 1];
    const struct ckpt_pk *shards; /* of all ranks */
    uint64_t nelem;
    bool has_tensor; /* in the layout */
};

/* The list of all parts must be that of the first file. */
static int compare_shards(const struct reader *r, int file, const struct flat *flat,
                          const struct ckpt_pk *value, struct fsdp_err *err)
{
    const struct ckpt_pk *shards = shards_of(value);
    uint64_t nelem = 0;

    if (!ckpt_pk_is_list(shards) ||
        !number_of(&nelem, member(ckpt_pk_item(state_of(value), 1), "size")))
        return BAD("%s: '%s' is no ShardedTensor as torch writes it", r->files[file].what,
                   flat->name);
    if (shards->nitems != flat->shards->nitems || nelem != flat->nelem)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "%s has '%s' in %u parts of %llu elements, and %s in %u of %llu: they "
                            "are of two saves, by different numbers of ranks",
                            r->files[file].what, flat->name, shards->nitems,
                            (unsigned long long)nelem, r->files[0].what, flat->shards->nitems,
                            (unsigned long long)flat->nelem);
    return FSDP_OK;
}

/* Which of the parts begins at an element; -1: none. */
static int64_t shard_at(const struct flat *flat, uint64_t at, uint64_t nelem)
{
    for (uint32_t i = 0; i < flat->shards->nitems; i++) {
        const struct ckpt_pk *shard = flat->shards->u.items[i];
        uint64_t offset, length;
        if (number_of(&offset, member(shard, "shard_offsets")) &&
            number_of(&length, member(shard, "shard_sizes")) && offset == at && length == nelem)
            return i;
    }
    return -1;
}

static int piece_add(struct reader *r, struct flat *flat, const struct ckpt_plain_vector *vector,
                     uint64_t at, struct fsdp_err *err)
{
    struct ckpt_layout *layout = &r->ckpt->m.layout;
    struct fsdp_tensor tensor = {
        .name = flat->name, .dtype = vector->dtype, .ndim = 1, .shape = {flat->nelem}};

    if (!flat->has_tensor)
        FSDP_TRY(ckpt_layout_add_tensor(layout, &tensor, FSDP_SLICE_MODEL, err));
    flat->has_tensor = true;
    if (layout->tensors[layout->ntensors - 1].tensor.dtype != vector->dtype)
        return BAD("'%s': '%s' has two dtypes", r->ckpt->path, flat->name);
    const struct ckpt_piece piece = {.tensor = layout->ntensors - 1,
                                     .file = vector->file,
                                     .offset = &at,
                                     .length = &vector->nelem,
                                     .pos = vector->pos};
    return ckpt_layout_add_piece(layout, &piece, err);
}

/* What one file has of it. Replicas of a hybrid mesh have the same parts: the first counts. */
static int shards_take(struct reader *r, int file, struct flat *flat, struct fsdp_err *err)
{
    const struct ckpt_saved *saved = &r->files[file];
    const struct ckpt_pk *value = ckpt_pk_get(r->dicts[file], flat->name);
    struct ckpt_plain_vector vector;
    uint64_t at;

    FSDP_TRY(compare_shards(r, file, flat, value, err));
    const struct ckpt_pk *local = ckpt_pk_item(state_of(value), 0);
    for (uint32_t i = 0; ckpt_pk_is_list(local) && i < local->nitems; i++) {
        const struct ckpt_pk *shard = local->u.items[i];
        r->has_part[file] = true;
        FSDP_TRY(
            ckpt_plain_take(&vector, r->storages, saved, member(shard, "tensor"), flat->name, err));
        const bool placed = number_of(&at, member(member(shard, "metadata"), "shard_offsets"));
        const int64_t which = placed ? shard_at(flat, at, vector.nelem) : -1;
        if (which < 0)
            return BAD("%s: a part of '%s' is none of those that it lists", saved->what,
                       flat->name);
        if (!r->seen[which])
            FSDP_TRY(piece_add(r, flat, &vector, at, err));
        r->seen[which] = true;
    }
    return FSDP_OK;
}

static int prove_parts(const struct reader *r, const struct flat *flat, struct fsdp_err *err)
{
    for (uint32_t i = 0; i < flat->shards->nitems; i++) {
        uint64_t rank = i;
        if (r->seen[i])
            continue;
        ckpt_pk_u64(&rank, member(member(flat->shards->u.items[i], "placement"), "_rank"));
        return fsdp_err_set(
            err, FSDP_ENOTFOUND,
            "'%s': the file of rank %llu is missing, which has part %u of the %u of "
            "'%s': bring the files of all ranks together",
            r->ckpt->path, (unsigned long long)rank, i + 1, flat->shards->nitems, flat->name);
    }
    if (!flat->has_tensor)
        return BAD("'%s': '%s' has no elements", r->ckpt->path, flat->name);
    return FSDP_OK;
}

static int flat_take(struct reader *r, const struct ckpt_pk *key, const struct ckpt_pk *value,
                     struct fsdp_err *err)
{
    struct flat flat = {.shards = shards_of(value)};

    snprintf(flat.name, sizeof flat.name, "%.*s", (int)key->nitems, key->u.text);
    if (!ckpt_pk_is_list(flat.shards) ||
        !number_of(&flat.nelem, member(ckpt_pk_item(state_of(value), 1), "size")))
        return BAD("%s: '%s' is no ShardedTensor as torch writes it", r->files[0].what, flat.name);
    if (flat.shards->nitems > r->max_seen) {
        fsdp_free(r->seen);
        r->max_seen = flat.shards->nitems;
        if (!(r->seen = fsdp_alloc(r->max_seen, sizeof *r->seen, "parts", err)))
            return FSDP_ENOMEM;
    }
    if (flat.shards->nitems > r->most_parts)
        r->most_parts = flat.shards->nitems;
    memset(r->seen, 0, r->max_seen * sizeof *r->seen);
    for (int file = 0; file < r->nfiles; file++)
        FSDP_TRY(shards_take(r, file, &flat, err));
    return prove_parts(r, &flat, err);
}

/* A tensor of its own, of which each rank has all. */
static int other_take(struct reader *r, const struct ckpt_pk *key, const struct ckpt_pk *value,
                      struct fsdp_err *err)
{
    char name[CKPT_MAX_NAME_NBYTES + 1];
    struct ckpt_plain_vector vector;
    struct ckpt_view_args view;
    struct fsdp_err why = FSDP_ERR_INIT;

    if (key->type != CKPT_PK_T_TEXT || !key->nitems || key->nitems >= sizeof name ||
        memchr(key->u.text, 0, key->nitems))
        return BAD("%s: a name is missing, too long or not a text", r->files[0].what);
    snprintf(name, sizeof name, "%.*s", (int)key->nitems, key->u.text);
    FSDP_TRY(ckpt_view_parse(&view, value, r->files[0].what, err));
    FSDP_TRY(ckpt_plain_take(&vector, r->storages, &r->files[0], value, name, err));
    struct fsdp_tensor tensor = {.name = name, .dtype = view.dtype, .ndim = view.ndim};
    memcpy(tensor.shape, view.size, sizeof tensor.shape);
    if (fsdp_tensor_check(&tensor, &why))
        return BAD("%s: %s", r->files[0].what, why.text);
    FSDP_TRY(ckpt_layout_add_tensor(&r->ckpt->m.layout, &tensor, FSDP_SLICE_MODEL, err));
    return ckpt_plain_place(&vector, 0, 0, vector.nelem, &r->ckpt->m.layout, err);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* No rank has two files: "rank01.bin" may be a copy of "rank1.bin". */
static int add_rank(struct reader *r, int rank, const char *name, struct fsdp_err *err)
{
    for (int i = 0; i < r->nfiles; i++)
        if (r->ranks[i] == rank)
            return fsdp_err_set(err, FSDP_EINVAL,
                                "'%s' has two files of rank %d, '%s' and '%s': move one of them "
                                "to another folder",
                                r->ckpt->path, rank, r->ckpt->m.layout.files[i].path, name);
    r->ranks[r->nfiles++] = rank;
    return FSDP_OK;
}

static int add_file(struct reader *r, const char *name, struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    char *path = ckpt_path_join(r->ckpt->folder, name, err);
    int rc = path ? ckpt_store_stat(&st, r->ckpt->store, path, err) : FSDP_ENOMEM;

    fsdp_free(path);
    return rc ? rc : ckpt_layout_add_file(&r->ckpt->m.layout, name, st.nbytes, err);
}

static int open_files(struct reader *r, const char *front, struct fsdp_err *err)
{
    struct ckpt *ckpt = r->ckpt;
    struct ckpt_names names;
    size_t nbytes;
    int rank;

    FSDP_TRY(ckpt_store_names(&names, ckpt->store, ckpt->folder, err));
    int rc = FSDP_OK;
    ckpt_names_sort(&names);
    r->ranks = fsdp_alloc((size_t)names.nnames, sizeof *r->ranks, "files of ranks", err);
    if (!r->ranks)
        rc = FSDP_ENOMEM;
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++) {
        if (!ckpt_fsdp1_is_rank(&rank, &nbytes, names.names[i]) || nbytes != strlen(front) ||
            strncmp(names.names[i], front, nbytes) != 0)
            continue;
        rc = add_rank(r, rank, names.names[i], err);
        if (rc == FSDP_OK)
            rc = add_file(r, names.names[i], err);
    }
    ckpt_names_free(&names);
    FSDP_TRY(rc);
    const size_t count = (size_t)ckpt->m.layout.nfiles;
    r->files = fsdp_alloc(count, sizeof *r->files, "files of ranks", err);
    r->dicts = fsdp_alloc(count, sizeof *r->dicts, "files of ranks", err);
    r->has_part = fsdp_alloc(count, sizeof *r->has_part, "files of ranks", err);
    if (!r->files || !r->dicts || !r->has_part)
        return FSDP_ENOMEM;
    FSDP_TRY(ckpt_readers_create(ckpt, err));
    for (int i = 0; i < r->nfiles; i++) {
        FSDP_TRY(ckpt_saved_open(&r->files[i], ckpt, i, ckpt_pickle_parse_opaque, err));
        r->nopened++;
        if (!(r->dicts[i] = dict_of(r->files[i].pickle.root)))
            return fsdp_err_set(err, FSDP_ENOTFOUND,
                                "%s has the name of a rank's part, but holds no flat parameters of "
                                "FSDP1; if it is a state dict of its own, name the file itself",
                                r->files[i].what);
    }
    return FSDP_OK;
}

static int dict_take(struct reader *r, struct fsdp_err *err)
{
    const struct ckpt_pk *dict = r->dicts[0];

    for (size_t i = 0; i + 1 < dict->nitems; i += 2) {
        const struct ckpt_pk *key = dict->u.items[i], *value = dict->u.items[i + 1];
        if (is_flat_key(key))
            FSDP_TRY(flat_take(r, key, value, err));
        else if (ckpt_view_is(value))
            FSDP_TRY(other_take(r, key, value, err));
    }
    return FSDP_OK;
}

/* Each rank has one part of a flat parameter, or none where there are fewer elements than ranks.
 * Replicas of a hybrid mesh have all parts again. Another number of files is of two saves. */
static int prove_ranks(const struct reader *r, struct fsdp_err *err)
{
    int last = -1;
    uint32_t count = 0;

    for (int i = 0; i < r->nfiles; i++) {
        count += r->has_part[i];
        if (r->has_part[i] && (last < 0 || r->ranks[i] > r->ranks[last]))
            last = i;
    }
    if (last < 0 || count % r->most_parts == 0)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL,
                        "'%s' has %u files of ranks, but flat parameters are in %u parts, of one "
                        "rank each: if '%s' is of another save, move it to another folder; if the "
                        "mesh was hybrid, bring the files of all ranks together",
                        r->ckpt->path, count, r->most_parts, r->ckpt->m.layout.files[last].path);
}

int ckpt_fsdp1_ranks_take(struct ckpt *ckpt, struct ckpt_plain_storages *storages,
                          const char *front, struct fsdp_err *err)
{
    struct reader r = {.ckpt = ckpt, .storages = storages};
    int rc = open_files(&r, front, err);

    if (rc == FSDP_OK)
        rc = dict_take(&r, err);
    if (rc == FSDP_OK)
        rc = prove_ranks(&r, err);
    for (int i = 0; i < r.nopened; i++)
        ckpt_saved_close(&r.files[i]);
    fsdp_free(r.files);
    fsdp_free(r.dicts);
    fsdp_free(r.ranks);
    fsdp_free(r.has_part);
    fsdp_free(r.seen);
    return rc;
}
