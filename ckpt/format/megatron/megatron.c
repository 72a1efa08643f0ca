/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron's folders mp_rank_TT[_PPP]: tensor rank TT has a part of each matrix, stage PPP the
 * layers from a first one on, which it counts from 0. The parts are joined, and layers get the
 * numbers that they have in the whole model; names stay Megatron-Core's (--map megatron-to-hf
 * changes them). The optimizer's state is not read.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/dcp/dcp.h"
#include "format/hf/extras.h"
#include "format/torch/plain.h"
#include "mp_ranks.h"

#define BAD(...) fsdp_err_set(err, FSDP_ECORRUPT, __VA_ARGS__)
#define LATEST_NAME "latest_checkpointed_iteration.txt"
#define LAYERS "decoder.layers."

enum { ITERATION_NBYTES = 32 };

/* How the tensor ranks share a tensor. */
enum share {
    SAME,   /* each has all of it */
    ROWS,   /* each has some of its rows */
    HALVES, /* ... of the first half, and as many of the second */
    COLUMNS,
};

struct reader {
    struct ckpt *ckpt;
    struct ckpt_megatron_ranks ranks;
    struct ckpt_plain_storages *storages;
    int stage;
    uint64_t first_layer; /* of the stage */
};

/* Rows of a weight of the stage; 0: there is none. */
static uint64_t dim_of(const struct ckpt_pk *model, const char *name, const char *from,
                       const char *to, int dim)
{
    const size_t front = strlen(name) - strlen(from);
    char other[CKPT_MAX_NAME_NBYTES + 64];
    struct ckpt_view_args view;

    snprintf(other, sizeof other, "%.*s%s", (int)front, name, to);
    const struct ckpt_pk *value = ckpt_pk_get(model, other);
    if (!ckpt_view_is(value) || ckpt_view_parse(&view, value, other, NULL) || dim >= view.ndim)
        return 0;
    return view.size[dim];
}

/* A gated MLP has twice as many rows in linear_fc1 as linear_fc2 has columns. */
static enum share share_of_fc1(const struct ckpt_pk *model, const char *name, const char *end,
                               uint64_t nrows)
{
    const uint64_t width = dim_of(model, name, end, "linear_fc2.weight", 1);
    return width && nrows == 2 * width ? HALVES : ROWS;
}

static enum share share_of(const struct ckpt_pk *model, const char *name, uint64_t nrows)
{
    static const char *const rows[] = {"word_embeddings.weight", "output_layer.weight",
                                       "linear_qkv.weight", "linear_qkv.bias"};
    static const char *const columns[] = {"linear_proj.weight", "linear_fc2.weight"};
    static const char *const fc1[] = {"linear_fc1.weight", "linear_fc1.bias"};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (fsdp_text_ends(name, rows[i]))
            return ROWS;
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
        if (fsdp_text_ends(name, columns[i]))
            return COLUMNS;
    for (size_t i = 0; i < sizeof fc1 / sizeof fc1[0]; i++)
        if (fsdp_text_ends(name, fc1[i]))
            return share_of_fc1(model, name, fc1[i], nrows);
    return SAME;
}

static const struct ckpt_pk *model_of(const struct reader *r, int split)
{
    const struct ckpt_saved *saved = &r->ranks.files[r->stage * r->ranks.nsplit + split];
    return ckpt_pk_get(saved->pickle.root, "model");
}

/* Rows [from, from + nrows) of a rank's part, which are rows of the whole from `row` on, columns
 * from `column` on. */
static int add_piece(struct reader *r, const struct ckpt_plain_vector *vector,
                     const struct ckpt_view_args *view, uint64_t from, uint64_t nrows, uint64_t row,
                     uint64_t column, struct fsdp_err *err)
{
    const uint64_t width = view->ndim ? vector->nelem / (view->size[0] ? view->size[0] : 1) : 1;
    uint64_t offset[FSDP_MAX_DIMS] = {row, column}, length[FSDP_MAX_DIMS];

    memcpy(length, view->size, sizeof length);
    length[0] = nrows;
    const struct ckpt_piece piece = {.tensor = r->ckpt->m.layout.ntensors - 1,
                                     .file = vector->file,
                                     .offset = offset,
                                     .length = length,
                                     .pos = vector->pos +
                                            from * width * fsdp_dtype_nbytes(vector->dtype)};
    return ckpt_layout_add_piece(&r->ckpt->m.layout, &piece, err);
}

/* The parts of all tensor ranks of this stage. */
static int parts_take(struct reader *r, const char *name, enum share share,
                      const struct ckpt_view_args *first, struct fsdp_err *err)
{
    const int nparts = share == SAME ? 1 : r->ranks.nsplit;
    const uint64_t nrows = first->ndim ? first->size[0] : 1, half = nrows / 2;

    for (int i = 0; i < nparts; i++) {
        const struct ckpt_saved *saved = &r->ranks.files[r->stage * r->ranks.nsplit + i];
        const struct ckpt_pk *value = ckpt_pk_get(model_of(r, i), name);
        const uint64_t at = (uint64_t)i;
        struct ckpt_plain_vector vector;
        struct ckpt_view_args view;
        FSDP_TRY(ckpt_plain_take(&vector, r->storages, saved, value, name, err));
        FSDP_TRY(ckpt_view_parse(&view, value, saved->what, err));
        if (view.ndim != first->ndim || view.dtype != first->dtype ||
            memcmp(view.size, first->size, sizeof *view.size * (size_t)view.ndim))
            return BAD("%s: '%s' has another shape or dtype than in the file of tensor rank 0",
                       saved->what, name);
        if (share == COLUMNS)
            FSDP_TRY(add_piece(r, &vector, &view, 0, nrows, 0, at * view.size[1], err));
        else if (share == HALVES)
            FSDP_TRY(add_piece(r, &vector, &view, 0, half, at * half, 0, err));
        else
            FSDP_TRY(add_piece(r, &vector, &view, 0, nrows, at * nrows, 0, err));
        if (share == HALVES)
            FSDP_TRY(
                add_piece(r, &vector, &view, half, half, ((uint64_t)nparts + at) * half, 0, err));
    }
    return FSDP_OK;
}

/* decoder.layers.N.x, with the layer's number in the whole model. */
static int whole_name(char *out, size_t nbytes, const struct reader *r, const char *name,
                      uint64_t *layer)
{
    char *rest;

    *layer = UINT64_MAX;
    if (strncmp(name, LAYERS, strlen(LAYERS)) != 0)
        return snprintf(out, nbytes, "%s", name);
    *layer = strtoull(name + strlen(LAYERS), &rest, 10);
    return snprintf(out, nbytes, LAYERS "%llu%s", (unsigned long long)(r->first_layer + *layer),
                    rest);
}

static int tensor_take(struct reader *r, const struct ckpt_pk *key, const struct ckpt_pk *value,
                       uint64_t *nlayers, struct fsdp_err *err)
{
    const struct ckpt_saved *saved = &r->ranks.files[r->stage * r->ranks.nsplit];
    char name[CKPT_MAX_NAME_NBYTES + 1], whole[CKPT_MAX_NAME_NBYTES + 64];
    struct ckpt_view_args view;
    uint64_t layer;

    if (key->type != CKPT_PK_T_TEXT || !key->nitems || key->nitems >= sizeof name ||
        memchr(key->u.text, 0, key->nitems))
        return BAD("%s: a name in 'model' is missing, too long or not a text", saved->what);
    snprintf(name, sizeof name, "%.*s", (int)key->nitems, key->u.text);
    whole_name(whole, sizeof whole, r, name, &layer);
    if (layer != UINT64_MAX && layer + 1 > *nlayers)
        *nlayers = layer + 1;
    for (int t = 0; t < r->ckpt->m.layout.ntensors && r->stage && layer == UINT64_MAX; t++)
        if (!strcmp(r->ckpt->m.layout.tensors[t].tensor.name, whole))
            return FSDP_OK; /* the last stage has the embedding, too, where the head is tied to it
                             */
    FSDP_TRY(ckpt_view_parse(&view, value, saved->what, err));
    const enum share share = share_of(model_of(r, 0), name, view.ndim ? view.size[0] : 1);
    if (view.ndim < (share == COLUMNS ? 2 : share == SAME ? 0 : 1))
        return BAD("%s: '%s' has %d dimensions, too few", saved->what, name, view.ndim);
    struct fsdp_tensor tensor = {.name = whole, .dtype = view.dtype, .ndim = view.ndim};
    memcpy(tensor.shape, view.size, sizeof tensor.shape);
    if (share == ROWS || share == HALVES)
        tensor.shape[0] *= (uint64_t)r->ranks.nsplit;
    if (share == COLUMNS)
        tensor.shape[1] *= (uint64_t)r->ranks.nsplit;
    FSDP_TRY(fsdp_tensor_check(&tensor, err));
    FSDP_TRY(ckpt_layout_add_tensor(&r->ckpt->m.layout, &tensor, FSDP_SLICE_MODEL, err));
    return parts_take(r, name, share, &view, err);
}

static int stage_take(struct reader *r, struct fsdp_err *err)
{
    const struct ckpt_saved *saved = &r->ranks.files[r->stage * r->ranks.nsplit];
    const struct ckpt_pk *model = model_of(r, 0);
    uint64_t nlayers = 0;

    if (ckpt_pk_get(saved->pickle.root, "model0"))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "%s has several models (virtual pipeline stages), which is not read",
                            saved->what);
    if (!model || model->type != CKPT_PK_T_DICT)
        return BAD("%s has no 'model'", saved->what);
    if (ckpt_pk_get(model, "language_model"))
        return fsdp_err_set(err, FSDP_EUNSUPPORTED,
                            "%s has the names of Megatron-LM before Megatron-Core "
                            "(language_model), which are not read",
                            saved->what);
    for (size_t i = 0; i + 1 < model->nitems; i += 2)
        if (ckpt_view_is(model->u.items[i + 1]))
            FSDP_TRY(tensor_take(r, model->u.items[i], model->u.items[i + 1], &nlayers, err));
    r->first_layer += nlayers;
    return FSDP_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int note_step(struct reader *r, struct fsdp_err *err)
{
    uint64_t step = 0;

    if (!ckpt_pk_u64(&step, ckpt_pk_get(r->ranks.files[0].pickle.root, "iteration")))
        return FSDP_OK;
    r->ckpt->m.state_json = fsdp_sprintf(err, "{\"values\":{\"global_step\":%llu},\"paths\":{}}",
                                         (unsigned long long)step);
    return r->ckpt->m.state_json ? FSDP_OK : FSDP_ENOMEM;
}

static int open_megatron(struct ckpt *ckpt, struct fsdp_err *err)
{
    struct reader r = {.ckpt = ckpt};
    int rc;

    ckpt->m.step = -1;
    ckpt->m.shard_size = ckpt->m.replicate_size = 1;
    FSDP_TRY_GOTO(ckpt_plain_begin(&r.storages, ckpt, err), out);
    FSDP_TRY_GOTO(ckpt_megatron_ranks_open(&r.ranks, ckpt, err), out);
    for (; r.stage < r.ranks.nstages; r.stage++)
        FSDP_TRY_GOTO(stage_take(&r, err), out);
    FSDP_TRY_GOTO(ckpt_plain_end(ckpt, err), out);
    FSDP_TRY_GOTO(ckpt_layout_index(&ckpt->m.layout, err), out);
    FSDP_TRY_GOTO(ckpt_layout_seal(&ckpt->m.layout, err), out);
    FSDP_TRY_GOTO(note_step(&r, err), out);
    FSDP_TRY_GOTO(ckpt_extras_find_here(ckpt, err), out);
    rc = ckpt_dcp_finish(ckpt, err);
out:
    ckpt_megatron_ranks_close(&r.ranks);
    return rc;
}

/* ---- recognizing ----------------------------------------------------------------------------- */

struct seen {
    bool ranks, latest;
};

static int note_name(void *ctx, const char *name, struct fsdp_err *err)
{
    struct seen *seen = ctx;
    int split, stage;
    bool more;
    (void)err;
    seen->ranks |= ckpt_megatron_folder(&split, &stage, &more, name);
    seen->latest |= !strcmp(name, LATEST_NAME);
    return FSDP_OK;
}

/* The folder of the iteration that the file names becomes ckpt->path. */
static int follow_latest(bool *out, struct ckpt *ckpt, struct fsdp_err *err)
{
    struct fsdp_err quiet = FSDP_ERR_INIT;
    struct seen seen = {false, false};
    char *text = NULL, *end = NULL;
    size_t nbytes = 0;
    char *path = ckpt_path_join(ckpt->path, LATEST_NAME, err);
    int rc = path ? ckpt_store_get(&text, &nbytes, ckpt->store, path, ITERATION_NBYTES, err)
                  : FSDP_ENOMEM;

    fsdp_free(path);
    FSDP_TRY(rc);
    const unsigned long iteration = strtoul(text, &end, 10);
    const bool is_number = end != text && strspn(end, " \n\r") == strlen(end);
    fsdp_free(text);
    if (!is_number)
        return FSDP_OK;
    if (!(path = fsdp_sprintf(err, "%s/iter_%07lu", ckpt->path, iteration)))
        return FSDP_ENOMEM;
    if (ckpt_store_list(ckpt->store, path, note_name, &seen, &quiet) == FSDP_OK && seen.ranks) {
        fsdp_log(FSDP_LOG_INFO, "'%s': iteration %lu is the latest", ckpt->path, iteration);
        fsdp_free(ckpt->path);
        ckpt->path = path;
        path = NULL;
        *out = true;
    }
    fsdp_free(path);
    return FSDP_OK;
}

static int recognize_within(bool *out, struct ckpt *ckpt, struct fsdp_err *err)
{
    struct seen seen = {false, false};

    *out = false;
    FSDP_TRY(ckpt_store_list(ckpt->store, ckpt->path, note_name, &seen, err));
    *out = seen.ranks;
    return seen.ranks || !seen.latest ? FSDP_OK : follow_latest(out, ckpt, err);
}

const struct ckpt_format_ops ckpt_megatron_ops = {
    .id = CKPT_MEGATRON,
    .identity = CKPT_IDENTITY_MTIME,
    .recognize_within = recognize_within,
    .open = open_megatron,
    .close = ckpt_plain_close,
    .read_extent = ckpt_plain_read_extent,
    .check_piece = ckpt_plain_check_piece,
    .check_rest = ckpt_plain_check_rest,
};
