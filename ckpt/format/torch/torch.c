/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State dicts that torch.save wrote: one file, or a Hugging Face folder of pytorch_model*.bin. A
 * tensor is a view of a storage in its file. Keys mean what they mean in torch's distributed
 * checkpoints (format/dcp/dcp_names.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entries.h"
#include "format/dcp/dcp.h"
#include "format/dcp/dcp_names.h"
#include "format/hf/extras.h"
#include "format/hf/hf_names.h"
#include "format/hf/index.h"
#include "saved.h"
#include "torch_write.h"

#define INDEX_NAME CKPT_TORCH_INDEX_NAME
#define ACCELERATE_NAME CKPT_ACCELERATE_FULL /* FSDP's FULL_STATE_DICT */

enum { MOST_TENSOR_TEXT = 2 * CKPT_MAX_PATH_NBYTES };

/* format_state: what reading needs of each tensor. */
struct torch_state {
    size_t nstorages;
    struct ckpt_storage *storages;
    struct ckpt_view *views; /* [ntensors] of the layout */
    struct ckpt_pool strides;
};

struct reader {
    struct ckpt *ckpt;
    struct torch_state *state;
    size_t max_storages;
    size_t nslots,
        *slots; /* a power of two: storages by their places, a number plus one; 0: free */
    struct ckpt_saved *saved; /* [nsaved] the files */
    int nsaved;
    struct ckpt_entries entries;
    struct ckpt_dcp_name *names; /* [entries.count] */
    size_t *storage_of;          /* [ntensors] which of the storages */
};

/* ---- tensors --------------------------------------------------------------------------------- */

static size_t slot_of(const struct reader *r, int file, uint64_t pos)
{
    const uint64_t key[2] = {(uint64_t)file, pos};
    return (size_t)(fsdp_hash(FSDP_HASH_SEED, key, sizeof key) & (r->nslots - 1));
}

/* Twice the slots; the storages' numbers in their new places. */
static int grow_slots(struct reader *r, struct fsdp_err *err)
{
    const size_t nslots = r->nslots ? 2 * r->nslots : 256;
    size_t *slots = fsdp_alloc(nslots, sizeof *slots, "index of storages", err);

    if (!slots)
        return FSDP_ENOMEM;
    fsdp_free(r->slots);
    r->slots = slots;
    r->nslots = nslots;
    for (size_t i = 0; i < r->state->nstorages; i++) {
        size_t at = slot_of(r, r->state->storages[i].file, r->state->storages[i].pos);
        while (slots[at])
            at = (at + 1) & (nslots - 1);
        slots[at] = i + 1;
    }
    return FSDP_OK;
}

/* The number of the tensor's storage: many tensors may be views of one. */
static int storage_take(size_t *at, struct reader *r, const struct ckpt_storage *wanted,
                        struct fsdp_err *err)
{
    struct torch_state *state = r->state;

    if (2 * state->nstorages >= r->nslots)
        FSDP_TRY(grow_slots(r, err));
    size_t slot = slot_of(r, wanted->file, wanted->pos);
    for (; r->slots[slot]; slot = (slot + 1) & (r->nslots - 1)) {
        *at = r->slots[slot] - 1;
        if (state->storages[*at].file == wanted->file && state->storages[*at].pos == wanted->pos)
            return FSDP_OK;
    }
    struct ckpt_storage *grown = fsdp_alloc_grow(state->storages, state->nstorages,
                                                 &r->max_storages, sizeof *grown, "storages", err);
    if (!grown)
        return FSDP_ENOMEM;
    state->storages = grown;
    *at = state->nstorages;
    grown[state->nstorages++] = *wanted;
    r->slots[slot] = *at + 1;
    return FSDP_OK;
}

static int view_take(struct reader *r, const struct ckpt_saved *saved,
                     const struct ckpt_view_args *v, const char *what, struct fsdp_err *err)
{
    struct ckpt_layout *layout = &r->ckpt->m.layout;
    const int tensor = layout->ntensors - 1;
    const size_t elem_nbytes = fsdp_dtype_nbytes(v->dtype);
    struct ckpt_view *view = &r->state->views[tensor];
    struct ckpt_storage storage;
    bool plain = false;
    uint64_t nelem = 0;

    FSDP_TRY(ckpt_view_prove(&plain, &nelem, v, what, err));
    if (!nelem)
        return FSDP_OK;
    FSDP_TRY(ckpt_saved_storage(&storage, saved, v, err));
    FSDP_TRY(storage_take(&r->storage_of[tensor], r, &storage, err));
    *view = (struct ckpt_view){.pos = storage.pos + v->offset * elem_nbytes,
                               .summed = plain && nelem * elem_nbytes == storage.nbytes,
                               .negative = v->negative,
                               .conjugate = v->conjugate};
    if (!plain && !(view->stride = ckpt_pool_dims(&r->state->strides, v->stride, v->ndim, err)))
        return FSDP_ENOMEM;
    const struct ckpt_piece piece = {.tensor = tensor,
                                     .file = saved->file,
                                     .offset = ckpt_dims_zero,
                                     .length = v->size,
                                     .pos = view->pos,
                                     .blob_nbytes = storage.nbytes};
    return ckpt_layout_add_piece(layout, &piece, err);
}

static int tensor_take(struct reader *r, size_t i, struct fsdp_err *err)
{
    const struct ckpt_entry *entry = &r->entries.items[i];
    const struct ckpt_dcp_name *name = &r->names[i];
    const struct ckpt_saved *saved = &r->saved[entry->source];
    const char *here = ckpt_dcp_name_here(name);
    struct ckpt_layout *layout = &r->ckpt->m.layout;
    struct ckpt_view_args v;
    struct fsdp_err why = FSDP_ERR_INIT;
    char what[MOST_TENSOR_TEXT + CKPT_MAX_NAME_NBYTES];

    snprintf(what, sizeof what, "%s: tensor '%.200s'", saved->what, here);
    int rc = ckpt_view_parse(&v, entry->value, what, &why);
    if (rc == FSDP_OK && strlen(name->stored) > CKPT_MAX_NAME_NBYTES)
        rc = fsdp_err_set(&why, FSDP_EUNSUPPORTED, "%s has a name of over %d bytes", what,
                          CKPT_MAX_NAME_NBYTES);
    if (rc == FSDP_EUNSUPPORTED)
        return ckpt_unread_add(r->ckpt, here, name->stored, name->role, why.text, err);
    if (rc)
        return fsdp_err_pass(err, rc, &why);
    struct fsdp_tensor tensor = {.name = here, .dtype = v.dtype, .ndim = v.ndim};
    memcpy(tensor.shape, v.size, sizeof tensor.shape);
    if (fsdp_tensor_check(&tensor, &why))
        return fsdp_err_set(err, FSDP_ECORRUPT, "%s: %s", what, why.text);
    const size_t nbytes = strlen(name->stored) + 1;
    char *stored = ckpt_pool_text(&layout->names, nbytes, err);
    if (!stored)
        return FSDP_ENOMEM;
    memcpy(stored, name->stored, nbytes);
    tensor.name = stored + (here - name->stored);
    FSDP_TRY(ckpt_layout_add_stored(
        layout, &tensor, stored,
        name->role == CKPT_ROLE_MODEL ? FSDP_SLICE_MODEL : FSDP_SLICE_OPTIM, err));
    layout->tensors[layout->ntensors - 1].role = name->role;
    layout->tensors[layout->ntensors - 1].outer_nbytes = name->outer_nbytes;
    return view_take(r, saved, &v, what, err);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* As format/dcp keeps them: {"values": {name: value}, "paths": {name: keys}}. */
static int values_take(struct reader *r, struct fsdp_err *err)
{
    json_t *values = json_object(), *paths = json_object();
    bool any = false;
    int rc = values && paths
                 ? FSDP_OK
                 : fsdp_err_set(err, FSDP_ENOMEM, "'%s': no memory for its values", r->ckpt->path);

    for (size_t i = 0; rc == FSDP_OK && i < r->entries.count; i++) {
        const struct ckpt_entry *entry = &r->entries.items[i];
        const char *why = NULL;
        if (entry->is_tensor)
            continue;
        json_t *value = ckpt_dcp_json(entry->value, &why);
        if (!value) {
            fsdp_log(FSDP_LOG_WARN, "%s: the value '%.200s' is left out: %s",
                     r->saved[entry->source].what, entry->name, why);
            continue;
        }
        json_t *keys = json_array();
        for (size_t k = 0; k < entry->path->nitems; k++) {
            const struct ckpt_pk *key = entry->path->u.items[k];
            json_array_append_new(keys, key->type == CKPT_PK_T_INT
                                            ? json_integer(key->u.integer)
                                            : json_stringn(key->u.text, key->nitems));
        }
        any = true;
        if (json_object_set_new(values, entry->name, value) ||
            (entry->path->nitems > 1 ? json_object_set_new(paths, entry->name, keys)
                                     : (json_decref(keys), 0)))
            fsdp_log(FSDP_LOG_WARN, "%s: a value is left out: its name is not in UTF-8",
                     r->saved[entry->source].what);
    }
    if (rc == FSDP_OK && any) {
        json_t *root = json_pack("{s:O, s:O}", "values", values, "paths", paths);
        char *text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
        r->ckpt->m.state_json = text ? fsdp_strdup(text, err) : NULL;
        if (!r->ckpt->m.state_json)
            rc = fsdp_err_set(err, FSDP_ENOMEM, "'%s': no memory for its values", r->ckpt->path);
        free(text);
        json_decref(root);
    }
    json_decref(values);
    json_decref(paths);
    return rc;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int entries_take(struct reader *r, struct fsdp_err *err)
{
    const size_t count = r->entries.count;
    struct torch_state *state = r->state;

    r->names = fsdp_alloc(count, sizeof *r->names, "names", err);
    r->storage_of = fsdp_alloc(count, sizeof *r->storage_of, "storages of tensors", err);
    state->views = fsdp_alloc(count, sizeof *state->views, "views", err);
    if (!r->names || !r->storage_of || !state->views)
        return FSDP_ENOMEM;
    for (size_t i = 0; i < count; i++)
        r->names[i] = (struct ckpt_dcp_name){.stored = r->entries.items[i].name,
                                             .path = r->entries.items[i].path,
                                             .is_tensor = r->entries.items[i].is_tensor};
    FSDP_TRY(ckpt_dcp_names_settle(r->names, count, err));
    for (size_t i = 0; i < count; i++)
        if (r->entries.items[i].is_tensor)
            FSDP_TRY(tensor_take(r, i, err));
    r->ckpt->has_checksums = true;
    for (size_t i = 0; i < state->nstorages; i++)
        r->ckpt->has_checksums &= state->storages[i].crc32 != 0;
    for (int t = 0; t < r->ckpt->m.layout.ntensors; t++)
        state->views[t].storage = &state->storages[r->storage_of[t]];
    return FSDP_OK;
}

/* The index must know each tensor, in this file. */
static int index_match(struct ckpt_hf_index *index, const struct reader *r, struct fsdp_err *err)
{
    for (size_t i = 0; i < r->entries.count; i++) {
        const struct ckpt_entry *entry = &r->entries.items[i];
        const char *file = r->ckpt->m.layout.files[r->saved[entry->source].file].path;
        if (entry->is_tensor)
            FSDP_TRY(ckpt_hf_index_meet(index, entry->name, file, err));
    }
    return ckpt_hf_index_done(index, err);
}

/* DeepSpeed's, which its folder explains. */
static int refuse_states(const struct ckpt_saved *saved, struct fsdp_err *err)
{
    const struct ckpt_pk *root = saved->pickle.root;

    if (!ckpt_pk_get(root, "param_shapes") && !ckpt_pk_get(root, "optimizer_state_dict"))
        return FSDP_OK;
    if (!ckpt_pk_get(root, "ds_version"))
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                        "%s is a part of a checkpoint of DeepSpeed: name its folder", saved->what);
}

/* One of several files, named alone. */
static void warn_of_part(const struct ckpt *ckpt)
{
    const char *name = ckpt_path_base(ckpt->path), *of = strstr(name, "-of-");

    if (of && of > name && of[-1] >= '0' && of[-1] <= '9' && of[4] >= '0' && of[4] <= '9' &&
        strtoul(of + 4, NULL, 10) > 1)
        fsdp_log(FSDP_LOG_WARN, "'%s' is one of %lu parts of a model: name the folder for all",
                 ckpt->path, strtoul(of + 4, NULL, 10));
}

static int files_open(struct reader *r, const struct ckpt_names *files, struct fsdp_err *err)
{
    struct ckpt *ckpt = r->ckpt;
    struct ckpt_store_stat st;
    int rc = FSDP_OK;

    r->saved = fsdp_alloc((size_t)files->nnames, sizeof *r->saved, "files", err);
    if (!r->saved)
        return FSDP_ENOMEM;
    for (int i = 0; rc == FSDP_OK && i < files->nnames; i++) {
        char *path = ckpt_path_join(ckpt->folder, files->names[i], err);
        rc = path ? ckpt_store_stat(&st, ckpt->store, path, err) : FSDP_ENOMEM;
        fsdp_free(path);
        if (rc == FSDP_OK)
            rc = ckpt_layout_add_file(&ckpt->m.layout, files->names[i], st.nbytes, err);
    }
    FSDP_TRY(rc);
    FSDP_TRY(ckpt_readers_create(ckpt, err));
    for (int i = 0; i < files->nnames; i++) {
        char alone[CKPT_MAX_PATH_NBYTES + 1];
        FSDP_TRY(ckpt_saved_open(&r->saved[i], ckpt, i, ckpt_pickle_parse, err));
        r->nsaved++;
        FSDP_TRY(refuse_states(&r->saved[i], err));
        snprintf(alone, sizeof alone, "%s", files->names[i]);
        char *dot = strrchr(alone, '.');
        if (dot && dot > alone)
            *dot = 0;
        FSDP_TRY(
            ckpt_entries_add(&r->entries, &r->saved[i].pickle, i, alone, r->saved[i].what, err));
    }
    return FSDP_OK;
}

static bool is_weights(const char *name)
{
    int part, of, end = 0;
    return !strcmp(name, "pytorch_model.bin") ||
           (sscanf(name, "pytorch_model-%5d-of-%5d.bin%n", &part, &of, &end) == 2 && end &&
            !name[end]);
}

/* Where there is no file of Hugging Face: what accelerate saved of the first model. */
static int accelerate_find(struct ckpt_names *files, const struct ckpt_names *all,
                           struct fsdp_err *err)
{
    for (int i = 0; !files->nnames && i < all->nnames; i++)
        if (!strcmp(all->names[i], ACCELERATE_NAME))
            return ckpt_names_add(files, ACCELERATE_NAME, err);
    return FSDP_OK;
}

static int files_find(struct ckpt *ckpt, struct ckpt_names *files, struct ckpt_hf_index *index,
                      struct fsdp_err *err)
{
    struct ckpt_names all;
    bool has_index = false;

    if (strcmp(ckpt->folder, ckpt->path)) {
        warn_of_part(ckpt);
        return ckpt_names_add(files, ckpt_path_base(ckpt->path), err);
    }
    FSDP_TRY(ckpt_store_names(&all, ckpt->store, ckpt->path, err));
    int rc = ckpt_extras_find(ckpt, &all, err);
    for (int i = 0; rc == FSDP_OK && i < all.nnames; i++) {
        has_index |= !strcmp(all.names[i], INDEX_NAME);
        if (is_weights(all.names[i]))
            rc = ckpt_names_add(files, all.names[i], err);
        else if (ckpt_hf_is_weights(all.names[i]))
            fsdp_log(FSDP_LOG_WARN, "'%s/%s' is not read: the files of torch.save are", ckpt->path,
                     all.names[i]);
    }
    if (rc == FSDP_OK && !has_index)
        rc = accelerate_find(files, &all, err);
    ckpt_names_free(&all);
    if (rc == FSDP_OK && has_index)
        return ckpt_hf_index_open(index, ckpt, INDEX_NAME, files, err);
    return rc ? rc : ckpt_hf_refuse_incomplete(files, ckpt->path, "pytorch_model", ".bin", err);
}

static int open_torch(struct ckpt *ckpt, struct fsdp_err *err)
{
    struct reader r = {.ckpt = ckpt};
    struct ckpt_names files = {0};
    struct ckpt_hf_index index = {0};
    int rc = FSDP_ENOMEM;

    ckpt->m.step = -1;
    ckpt->m.shard_size = ckpt->m.replicate_size = 1;
    ckpt->format_state = r.state = fsdp_alloc(1, sizeof *r.state, "views", err);
    if (!r.state)
        goto out;
    FSDP_TRY_GOTO(files_find(ckpt, &files, &index, err), out);
    FSDP_TRY_GOTO(files_open(&r, &files, err), out);
    if (index.map)
        FSDP_TRY_GOTO(index_match(&index, &r, err), out);
    FSDP_TRY_GOTO(entries_take(&r, err), out);
    FSDP_TRY_GOTO(values_take(&r, err), out);
    FSDP_TRY_GOTO(ckpt_layout_index(&ckpt->m.layout, err), out);
    FSDP_TRY_GOTO(ckpt_layout_seal(&ckpt->m.layout, err), out);
    FSDP_TRY_GOTO(ckpt_contained_find(ckpt, err), out);
    FSDP_TRY_GOTO(ckpt_dcp_finish(ckpt, err), out);
    rc = index.map ? ckpt_hf_index_total(ckpt, &index, INDEX_NAME, err) : FSDP_OK;
out:
    fsdp_free(r.names);
    fsdp_free(r.storage_of);
    fsdp_free(r.slots);
    ckpt_entries_free(&r.entries);
    for (int i = 0; i < r.nsaved; i++)
        ckpt_saved_close(&r.saved[i]);
    fsdp_free(r.saved);
    ckpt_hf_index_close(&index);
    ckpt_names_free(&files);
    return rc;
}

static void close_torch(struct ckpt *ckpt)
{
    struct torch_state *state = ckpt->format_state;

    if (state) {
        fsdp_free(state->storages);
        fsdp_free(state->views);
        ckpt_pool_free(&state->strides);
    }
    fsdp_free(state);
    ckpt->format_state = NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int read_extent(const struct ckpt_scatter *s, const struct ckpt_extent *extent,
                       const struct ckpt_block *block, const struct fsdp_tensor *tensor)
{
    const struct torch_state *state = s->ckpt->format_state;
    const int at = s->ckpt->m.layout.pieces[extent->piece].tensor;
    return ckpt_view_read(s, &state->views[at], extent, block, tensor);
}

static bool same_view(const struct ckpt *ckpt, int a, int b)
{
    const struct torch_state *state = ckpt->format_state;
    const struct ckpt_view *x = &state->views[a], *y = &state->views[b];
    const size_t ndim = (size_t)ckpt->m.layout.tensors[a].tensor.ndim;
    const bool strides = x->stride && y->stride
                             ? !memcmp(x->stride, y->stride, ndim * sizeof *x->stride)
                             : !x->stride && !y->stride;
    return x->storage == y->storage && x->pos == y->pos && x->negative == y->negative &&
           x->conjugate == y->conjugate && strides;
}

static int check_piece(struct ckpt *ckpt, size_t piece, struct fsdp_err *err)
{
    const struct torch_state *state = ckpt->format_state;
    const int at = ckpt->m.layout.pieces[piece].tensor;
    return ckpt_storage_prove(ckpt, state->views[at].storage, piece, err);
}

static int check_rest(struct ckpt *ckpt, struct fsdp_err *err)
{
    const struct torch_state *state = ckpt->format_state;
    const struct ckpt_layout *layout = &ckpt->m.layout;

    for (size_t i = 0; i < layout->npieces; i++) {
        const struct ckpt_storage *storage = state->views[layout->pieces[i].tensor].storage;
        if (storage->nsummed)
            FSDP_TRY(ckpt_storage_check(ckpt, storage, i, err));
    }
    return FSDP_OK;
}

/* ---- recognizing ----------------------------------------------------------------------------- */

static int probe(char *dst, size_t nbytes, const struct ckpt *ckpt, struct fsdp_err *err)
{
    struct ckpt_store_file *file;
    FSDP_TRY(ckpt_store_open(&file, ckpt->store, ckpt->path, CKPT_STORE_READ, err));
    const int rc = ckpt_store_pread_cached(file, dst, nbytes, 0, err);
    const int closed = ckpt_store_close(file, rc ? NULL : err);
    return rc ? rc : closed;
}

/* Archives under these names are parts of other formats, which say what is wrong with them. */
static bool is_of_others(const char *path)
{
    static const char *const ends[] = {".safetensors", ".distcp"};
    const size_t len = strlen(path);

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (len > strlen(ends[i]) && !strcmp(path + len - strlen(ends[i]), ends[i]))
            return true;
    return false;
}

static int recognize_file(bool *out, struct ckpt *ckpt, const struct ckpt_store_stat *st,
                          struct fsdp_err *err)
{
    char head[CKPT_SAVED_PROBE_NBYTES];
    const size_t nbytes = st->nbytes < sizeof head ? (size_t)st->nbytes : sizeof head;

    *out = false;
    if (st->is_folder || !nbytes || is_of_others(ckpt->path))
        return FSDP_OK;
    FSDP_TRY(probe(head, nbytes, ckpt, err));
    *out = ckpt_saved_is(head, nbytes);
    if (*out && !(ckpt->folder = ckpt_path_parent(ckpt->path, err)))
        return FSDP_ENOMEM;
    return FSDP_OK;
}

struct seen {
    bool weights, accelerate, safetensors;
    bool model;      /* in safetensors, which transformers reads rather than pytorch_model.bin */
    char second[64]; /* the file of another model of accelerate's; "": none */
};

/* pytorch_model_fsdp_1.bin? */
static bool is_second(const char *name)
{
    static const char front[] = CKPT_ACCELERATE_FRONT;
    const char *number = name + sizeof front - 1;

    if (strncmp(name, front, sizeof front - 1) != 0)
        return false;
    const size_t ndigits = strspn(number, "0123456789");
    return ndigits > 0 && ndigits < 10 && !strcmp(number + ndigits, ".bin");
}

static int finds_weights(void *ctx, const char *name, struct fsdp_err *err)
{
    (void)err;
    struct seen *seen = ctx;
    seen->weights |= is_weights(name) || !strcmp(name, INDEX_NAME);
    seen->accelerate |= !strcmp(name, ACCELERATE_NAME);
    seen->safetensors |= ckpt_hf_is_weights(name) || ckpt_hf_is_index(name);
    seen->model |= !strcmp(name, "model.safetensors") || !strcmp(name, CKPT_HF_INDEX_NAME);
    if (is_second(name))
        snprintf(seen->second, sizeof seen->second, "%s", name);
    return FSDP_OK;
}

static int recognize_folder(bool *out, struct ckpt *ckpt, struct fsdp_err *err)
{
    struct seen seen = {.weights = false};
    FSDP_TRY(ckpt_store_list(ckpt->store, ckpt->path, finds_weights, &seen, err));
    seen.weights &= !seen.model;
    *out = seen.weights || (seen.accelerate && !seen.safetensors);
    if (*out && !seen.weights && *seen.second)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s' has the weights of two models, '" ACCELERATE_NAME
                            "' and '%s': name one of them",
                            ckpt->path, seen.second);
    if (*out && !seen.weights)
        fsdp_log(FSDP_LOG_INFO, "'%s': the weights are in '" ACCELERATE_NAME "'", ckpt->path);
    return FSDP_OK;
}

static const char *const heads[] = {INDEX_NAME, NULL};

const struct ckpt_format_ops ckpt_torch_ops = {
    .id = CKPT_TORCH,
    .identity = CKPT_IDENTITY_MTIME,
    .keeps_names = true,
    .heads = heads,
    .recognize = recognize_file,
    .recognize_within = recognize_folder,
    .open = open_torch,
    .close = close_torch,
    .read_extent = read_extent,
    .same_view = same_view,
    .check_piece = check_piece,
    .check_rest = check_rest,
};
