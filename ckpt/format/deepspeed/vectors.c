/* SPDX-License-Identifier: Apache-2.0 */
/* The flat vectors of all ranks: masters, and what the optimizer keeps for them. */
#include <stdlib.h>
#include <string.h>

#include "reader.h"
#include "util/convert.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)

static const struct ckpt_pk *optimizer_of(const struct ckpt_ds_reader *r, int rank)
{
    return ckpt_pk_get(r->ranks.optims[rank].pickle.root, "optimizer_state_dict");
}

static const struct ckpt_pk *masters_of(const struct ckpt_ds_reader *r, int rank)
{
    return ckpt_pk_get(optimizer_of(r, rank),
                       r->by_rank ? "fp32_flat_groups" : "single_partition_of_fp32_groups");
}

/* What the optimizer keeps for vector i of a rank: {name: tensor}, of {i: …} or a list. */
static const struct ckpt_pk *state_of(const struct ckpt_ds_reader *r, int rank, size_t i)
{
    const struct ckpt_pk *base = ckpt_pk_get(
        optimizer_of(r, rank), r->by_rank ? "optimizer_state_dict" : "base_optimizer_state");
    const struct ckpt_pk *inner = ckpt_pk_get(base, "state"), *states = inner ? inner : base;

    if (ckpt_pk_is_list(states))
        return ckpt_pk_item(states, i);
    for (size_t k = 0; states && states->type == CKPT_PK_T_DICT && k + 1 < states->nitems; k += 2) {
        uint64_t number;
        if (ckpt_pk_u64(&number, states->u.items[k]) && number == i)
            return states->u.items[k + 1];
    }
    return NULL;
}

/* ---- slots ----------------------------------------------------------------------------------- */

static bool has_slot(const struct ckpt_ds_reader *r, const struct ckpt_pk *name)
{
    for (int s = 1; s < r->nslots; s++)
        if (ckpt_pk_is_text(name, r->slots[s].name))
            return true;
    return false;
}

/* A value of at least as many elements as the masters: a number is none, such as `step`. */
static int slot_note(struct ckpt_ds_reader *r, int rank, const struct ckpt_pk *name,
                     const struct ckpt_pk *value, uint64_t nelem, struct fsdp_err *err)
{
    const struct ckpt_saved *saved = &r->ranks.optims[rank];
    char text[CKPT_DS_SLOT_NBYTES];
    struct ckpt_plain_vector vector;

    if (name->type != CKPT_PK_T_TEXT || ckpt_pk_is_text(name, "step") || has_slot(r, name) ||
        name->nitems >= sizeof text || memchr(name->u.text, 0, name->nitems))
        return FSDP_OK;
    snprintf(text, sizeof text, "%.*s", (int)name->nitems, name->u.text);
    if (value->type == CKPT_PK_T_CALL && !ckpt_view_is(value))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "%s: '%s' of the optimizer's state is a tensor of a form that is not "
                            "read",
                            saved->what, text);
    if (!ckpt_view_is(value))
        return FSDP_OK;
    FSDP_TRY(ckpt_plain_take(&vector, r->storages, saved, value, text, err));
    if (!nelem || vector.nelem < nelem)
        return FSDP_OK;
    if (r->nslots == CKPT_DS_MOST_SLOTS)
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "%s: the optimizer keeps more than %d tensors of each parameter",
                            saved->what, CKPT_DS_MOST_SLOTS - 1);
    snprintf(r->slots[r->nslots++].name, sizeof text, "%s", text);
    return FSDP_OK;
}

/* Of all ranks and vectors: groups may have optimizers of their own. */
static int slots_list(struct ckpt_ds_reader *r, struct fsdp_err *err)
{
    r->nslots = 1;
    for (int rank = 0; rank < r->ranks.world; rank++) {
        const struct ckpt_pk *masters = masters_of(r, rank);
        for (size_t i = 0; i < masters->nitems; i++) {
            const struct ckpt_pk *state = state_of(r, rank, i);
            struct ckpt_plain_vector master;
            FSDP_TRY(ckpt_plain_take(&master, r->storages, &r->ranks.optims[rank],
                                     masters->u.items[i], "masters", err));
            for (size_t k = 0; state && state->type == CKPT_PK_T_DICT && k + 1 < state->nitems;
                 k += 2)
                FSDP_TRY(slot_note(r, rank, state->u.items[k], state->u.items[k + 1], master.nelem,
                                   err));
        }
    }
    for (int i = 0; i < r->nslots; i++)
        if (!(r->slots[i].streams =
                  fsdp_alloc((size_t)r->nstreams, sizeof(struct ckpt_ds_stream), "streams", err)))
            return FSDP_ENOMEM;
    return FSDP_OK;
}

/* Vector i of a rank and what is kept for it go to the ends of `stream`. */
static int vector_add(struct ckpt_ds_reader *r, int rank, size_t i, int stream,
                      struct fsdp_err *err)
{
    const struct ckpt_saved *saved = &r->ranks.optims[rank];
    const struct ckpt_pk *state = state_of(r, rank, i);
    struct ckpt_plain_vector vector;

    FSDP_TRY(ckpt_plain_take(&vector, r->storages, saved, masters_of(r, rank)->u.items[i],
                             "masters", err));
    FSDP_TRY(ckpt_ds_stream_add(&r->slots[0].streams[stream], &vector, err));
    const uint64_t nelem = vector.nelem;
    for (int s = 1; s < r->nslots; s++) {
        const char *name = r->slots[s].name;
        const struct ckpt_pk *value = ckpt_pk_get(state, name);
        vector = (struct ckpt_plain_vector){.file = CKPT_DS_NOTHING, .nelem = nelem};
        if (value)
            FSDP_TRY(ckpt_plain_take(&vector, r->storages, saved, value, name, err));
        /* The masters may be saved without the padding at their end. */
        if (vector.nelem < nelem || vector.nelem - nelem >= 2 * (uint64_t)r->ranks.world)
            return BAD("%s: '%s' of vector %zu has %llu elements, and its masters have %llu",
                       saved->what, name, i, (unsigned long long)vector.nelem,
                       (unsigned long long)nelem);
        FSDP_TRY(ckpt_ds_stream_add(&r->slots[s].streams[stream], &vector, err));
    }
    return FSDP_OK;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* How many updates vector i of a rank has had; -1: it does not tell. */
static int step_read(int64_t *out, struct ckpt_plain_vector *where, struct ckpt_ds_reader *r,
                     int rank, size_t i, struct fsdp_err *err)
{
    const struct ckpt_pk *value = ckpt_pk_get(state_of(r, rank, i), "step");
    char raw[8] = {0};
    uint64_t number;
    float real;

    *out = -1;
    *where = (struct ckpt_plain_vector){.nelem = 0};
    if (ckpt_pk_u64(&number, value))
        *out = (int64_t)number;
    if (!ckpt_view_is(value))
        return FSDP_OK;
    FSDP_TRY(ckpt_plain_take(where, r->storages, &r->ranks.optims[rank], value, "step", err));
    const size_t nbytes = fsdp_dtype_nbytes(where->dtype);
    if (where->nelem != 1 || nbytes > sizeof raw)
        return FSDP_OK;
    FSDP_TRY(ckpt_file_pread(r->ckpt, where->file, raw, nbytes, where->pos, err));
    if (fsdp_dtype_is_float(where->dtype)) {
        ckpt_convert(&real, FSDP_F32, raw, where->dtype, 1);
        *out = real >= 0 && real < 1e15f ? (int64_t)real : -1;
    } else {
        memcpy(out, raw, sizeof raw);
    }
    return FSDP_OK;
}

/* All ranks have made the same updates. Their number may be less than the model's, where a run went
 * on without the optimizer's state. */
static int steps_check(struct ckpt_ds_reader *r, struct fsdp_err *err)
{
    const size_t nvectors = masters_of(r, 0)->nitems;
    uint64_t made = 0, skipped = 0;
    const struct ckpt_pk *root = r->ranks.models[0].pickle.root;
    bool tells = ckpt_pk_u64(&made, ckpt_pk_get(root, "global_steps"));

    ckpt_pk_u64(&skipped, ckpt_pk_get(root, "skipped_steps"));
    if (!(r->steps = fsdp_alloc(nvectors, sizeof *r->steps, "counters", err)))
        return FSDP_ENOMEM;
    for (size_t i = 0; i < nvectors; i++) {
        int64_t first = -1, step;
        struct ckpt_plain_vector where;
        for (int rank = 0; rank < r->ranks.world; rank++) {
            FSDP_TRY(step_read(&step, &where, r, rank, i, err));
            if (rank && step != first)
                return BAD("%s is of update %lld, and %s of update %lld: they are of two saves",
                           r->ranks.optims[rank].what, (long long)step, r->ranks.optims[0].what,
                           (long long)first);
            if (!rank)
                r->steps[i] = where;
            first = step;
        }
        if (tells && first >= 0 && (uint64_t)first != made - skipped) {
            fsdp_log(
                FSDP_LOG_WARN,
                "'%s': the optimizer has made %lld updates, and the model %llu steps: files of "
                "two saves may be mixed, or a run went on without its optimizer's state",
                r->ckpt->path, (long long)first, (unsigned long long)made);
            tells = false;
        }
    }
    return FSDP_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* What a rank's masters are: of their checksums. */
struct print {
    uint64_t hash;
    int rank;
};

static int compare_prints(const void *a, const void *b)
{
    const struct print *x = a, *y = b;
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    return x->rank - y->rank;
}

/* hash 0: nothing that tells ranks apart. */
static int print_rank(struct print *out, const struct ckpt_ds_reader *r, int rank,
                      struct fsdp_err *err)
{
    const struct ckpt_pk *masters = masters_of(r, rank);
    uint64_t hash = FSDP_HASH_SEED, nbytes = 0;

    *out = (struct print){.rank = rank};
    for (size_t i = 0; i < masters->nitems; i++) {
        struct ckpt_storage storage;
        FSDP_TRY(ckpt_plain_storage(&storage, &r->ranks.optims[rank], masters->u.items[i], err));
        if (storage.nbytes && !storage.crc32)
            return FSDP_OK;
        hash = fsdp_hash(hash, &storage.crc32, sizeof storage.crc32);
        hash = fsdp_hash(hash, &storage.nbytes, sizeof storage.nbytes);
        nbytes += storage.nbytes;
    }
    out->hash = nbytes >= 64 ? hash : 0;
    return FSDP_OK;
}

/* Is there a copy of a rank's file under another rank's name? Masters of two ranks are not alike.
 */
static int refuse_copies(const struct ckpt_ds_reader *r, struct fsdp_err *err)
{
    const size_t world = (size_t)r->ranks.world;
    struct print *prints = fsdp_alloc(world, sizeof *prints, "checksums of ranks", err);
    int rc = prints ? FSDP_OK : FSDP_ENOMEM;

    for (size_t rank = 0; rc == FSDP_OK && rank < world; rank++)
        rc = print_rank(&prints[rank], r, (int)rank, err);
    if (rc == FSDP_OK)
        qsort(prints, world, sizeof *prints, compare_prints);
    for (size_t i = 1; rc == FSDP_OK && i < world; i++)
        if (prints[i].hash && prints[i].hash == prints[i - 1].hash)
            rc =
                BAD("%s holds the same masters as %s: it is a copy",
                    r->ranks.optims[prints[i].rank].what, r->ranks.optims[prints[i - 1].rank].what);
    fsdp_free(prints);
    return rc;
}

static int check_rank(const struct ckpt_ds_reader *r, int rank, int ngroups, struct fsdp_err *err)
{
    const char *what = r->ranks.optims[rank].what;
    const struct ckpt_pk *masters = masters_of(r, rank);
    const struct ckpt_pk *count = ckpt_pk_get(optimizer_of(r, rank), "partition_count");
    uint64_t world = 0, item = 0;

    if (!ckpt_pk_is_list(masters) || !masters->nitems)
        return BAD("%s has no '%s': no fp32 masters of ZeRO 1, 2 or 3", what,
                   r->by_rank ? "fp32_flat_groups" : "single_partition_of_fp32_groups");
    const uint32_t want = r->by_rank ? masters_of(r, 0)->nitems : (uint32_t)ngroups;
    if (masters->nitems != want)
        return BAD("%s has masters in %u vectors, and %s in %u", what, masters->nitems,
                   r->by_rank ? r->ranks.optims[0].what : r->ranks.models[0].what, want);
    ckpt_pk_u64(&world, count);
    for (size_t i = 0; ckpt_pk_is_list(count) && i < count->nitems; i++)
        if (ckpt_pk_u64(&item, count->u.items[i]) && item > world)
            world = item; /* groups of experts have fewer */
    if (world && world != (uint64_t)r->ranks.world)
        return fsdp_err_set(err, FSDP_ENOTFOUND, "%s was saved by %llu ranks, and there are %d",
                            what, (unsigned long long)world, r->ranks.world);
    return FSDP_OK;
}

int ckpt_ds_vectors_take(struct ckpt_ds_reader *r, int ngroups, struct fsdp_err *err)
{
    r->by_rank = !ckpt_pk_get(optimizer_of(r, 0), "single_partition_of_fp32_groups");
    r->nstreams = r->by_rank ? r->ranks.world : ngroups;
    if (!(r->pos = fsdp_alloc((size_t)r->nstreams, sizeof *r->pos, "places", err)))
        return FSDP_ENOMEM;
    for (int rank = 0; rank < r->ranks.world; rank++)
        FSDP_TRY(check_rank(r, rank, ngroups, err));
    FSDP_TRY(refuse_copies(r, err));
    FSDP_TRY(steps_check(r, err));
    FSDP_TRY(slots_list(r, err));
    for (int rank = 0; rank < r->ranks.world; rank++)
        for (size_t i = 0; i < masters_of(r, rank)->nitems; i++)
            FSDP_TRY(vector_add(r, rank, i, r->by_rank ? rank : (int)i, err));
    return FSDP_OK;
}

/* fragment_address(numel, start) of a parameter in a rank's part of a group; *nelem 0: none. */
static void mapped(uint64_t *nelem, const struct ckpt_pk *mapping, const char *param)
{
    const struct ckpt_pk *address = ckpt_pk_get(mapping, param);
    *nelem = 0;
    if (!ckpt_pk_u64(nelem, ckpt_pk_get(address, "numel")))
        ckpt_pk_u64(nelem, ckpt_pk_item(address, 0));
}

int ckpt_ds_mapping_check(const struct ckpt_ds_reader *r, const char *param, int group,
                          uint64_t nelem, struct fsdp_err *err)
{
    const struct ckpt_ds_stream *stream = &r->slots[0].streams[group];
    const uint64_t begin = r->pos[group], end = begin + nelem;
    uint64_t from = 0;

    for (int rank = 0; !r->by_rank && rank < r->ranks.world; rank++) {
        const struct ckpt_pk *all = ckpt_pk_get(optimizer_of(r, rank), "param_slice_mappings");
        const struct ckpt_pk *mapping = ckpt_pk_item(all, (size_t)group);
        const uint64_t to = from + stream->vectors[rank].nelem;
        const uint64_t low = begin > from ? begin : from, high = end < to ? end : to;
        uint64_t told;
        if (mapping && mapping->type == CKPT_PK_T_DICT) {
            mapped(&told, mapping, param);
            if (told != (high > low ? high - low : 0))
                return BAD("%s says that it has %llu elements of '%s', and its place has %llu: the "
                           "files of ranks were swapped, or are not of one save",
                           r->ranks.optims[rank].what, (unsigned long long)told, param,
                           (unsigned long long)(high > low ? high - low : 0));
        }
        from = to;
    }
    return FSDP_OK;
}
