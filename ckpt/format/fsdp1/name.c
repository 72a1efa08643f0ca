/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flat parameters become tensors. The name of one says which module it is of; its parts are the
 * parameters of that module and of what is below it, without what other units have, in the order of
 * the modules. With use_orig_params each begins at a multiple of 16 bytes (of the dtype that is
 * computed in), and the end is padded to a multiple of the number of ranks. Then the parameters are
 * there, too, by their names, as what one rank has of them: a vector, which says nothing of the
 * shape. In files of ranks these names have the order of the modules, which proves that of the
 * table.
 */
#include <stdlib.h>
#include <string.h>

#include "ckpt/ckpt.h"
#include "format/dcp/blob.h"
#include "format/dcp/dcp_names.h"
#include "format/torch/plain.h"
#include "model.h"
#include "util/text.h"

struct unit {
    char module[CKPT_MAX_NAME_NBYTES + 1]; /* "" of the root */
    int tensor;                            /* of the old layout */
    uint64_t nelem, nranks;
    uint64_t nparams, plain_nelem, end; /* what config.json gives it; while parameters are placed */
};

struct namer {
    struct ckpt *ckpt;
    struct ckpt_fsdp1_model model;
    int nunits;
    struct unit *units;
    bool has_parts; /* of parameters, by their names */
    bool is_proved; /* all of these names have the order of the modules */
    int *tensor_of; /* [nparams] of the old layout, which has the parameter's name; -1: none */
    bool *is_part;  /* [tensors of the old layout] it is such a part */
    int *unit_of;   /* [nparams]; -1: the parameter has a tensor of its own */
    uint64_t *pos;  /* [nparams] in the unit's vector */
    struct ckpt_plain_storages *storages;
    struct ckpt_layout layout; /* the new one */
    struct fsdp_err *err;
};

/* ---- units ----------------------------------------------------------------------------------- */

/* A module's path without what wrappers add to it. */
static void clean_path(char *path)
{
    static const char *const wrappers[] = {"_fsdp_wrapped_module", "_checkpoint_wrapped_module",
                                           "_orig_mod"};
    char *to = path;

    for (const char *part = path; *part;) {
        const size_t nbytes = strcspn(part, "."), whole = nbytes + (part[nbytes] == '.');
        bool drop = false;
        for (size_t i = 0; i < sizeof wrappers / sizeof wrappers[0]; i++)
            drop |= nbytes == strlen(wrappers[i]) && !strncmp(part, wrappers[i], nbytes);
        if (!drop) {
            memmove(to, part, whole);
            to += whole;
        }
        part += whole;
    }
    *to = 0;
}

static bool is_flat(const struct ckpt_tensor *tensor)
{
    return tensor->role == CKPT_ROLE_MODEL && ckpt_dcp_is_flat_param(ckpt_own_name(tensor));
}

static int find_units(struct namer *n)
{
    const struct ckpt_layout *layout = &n->ckpt->m.layout;

    size_t count = 0;

    for (int t = 0; t < layout->ntensors; t++)
        count += is_flat(&layout->tensors[t]);
    if (!count)
        return fsdp_err_set(n->err, FSDP_ENOTFOUND, "'%s': none of its flat parameters is a weight",
                            n->ckpt->path);
    n->units = fsdp_alloc(count, sizeof *n->units, "units", n->err);
    if (!n->units)
        return FSDP_ENOMEM;
    for (int t = 0; t < layout->ntensors; t++) {
        const struct ckpt_tensor *tensor = &layout->tensors[t];
        struct unit *unit = &n->units[n->nunits];
        if (!is_flat(tensor))
            continue;
        if (tensor->tensor.ndim != 1)
            return fsdp_err_set(n->err, FSDP_ECORRUPT, "'%s': '%s' is no vector", n->ckpt->path,
                                tensor->stored);
        snprintf(unit->module, sizeof unit->module, "%s", ckpt_own_name(tensor));
        clean_path(unit->module);
        char *dot = strrchr(unit->module, '.');
        if (dot)
            *dot = 0;
        else
            *unit->module = 0;
        unit->tensor = t;
        unit->nelem = tensor->tensor.shape[0];
        unit->nranks = layout->first[t + 1] - layout->first[t];
        n->nunits++;
    }
    return FSDP_OK;
}

/* The innermost unit that a parameter is below; -1: none. */
static int unit_of(const struct namer *n, const char *param)
{
    size_t longest = 0;
    int found = -1;

    for (int u = 0; u < n->nunits; u++) {
        const char *module = n->units[u].module;
        const size_t nbytes = strlen(module);
        if (nbytes && (strncmp(param, module, nbytes) != 0 || param[nbytes] != '.'))
            continue;
        if (found < 0 || nbytes > longest) {
            found = u;
            longest = nbytes;
        }
    }
    return found;
}

static bool same_shape(const struct fsdp_tensor *a, const struct fsdp_tensor *b)
{
    bool same = a->ndim == b->ndim;
    for (int d = 0; same && d < a->ndim; d++)
        same = a->shape[d] == b->shape[d];
    return same;
}

/* The parameter's name of a tensor. */
static void param_name(char out[CKPT_MAX_NAME_NBYTES + 1], const struct namer *n, int t)
{
    const struct ckpt_fsdp1_model *model = &n->model;

    snprintf(out, CKPT_MAX_NAME_NBYTES + 1, "%s", ckpt_own_name(&n->ckpt->m.layout.tensors[t]));
    clean_path(out);
    if (model->other_head && !strcmp(out, model->other_head))
        snprintf(out, CKPT_MAX_NAME_NBYTES + 1, "%s", model->head);
}

/* Which tensors have the names of parameters, but for what wrappers add to them; and whether these
 * are vectors of one rank (use_orig_params). */
static int find_named(struct namer *n)
{
    const struct ckpt_layout *layout = &n->ckpt->m.layout;
    struct ckpt_layout params = {0}; /* to look names up */
    char name[CKPT_MAX_NAME_NBYTES + 1];
    int rc = FSDP_OK;

    for (size_t i = 0; rc == FSDP_OK && i < n->model.nparams; i++) {
        rc = ckpt_layout_add_tensor(&params, &n->model.params[i], FSDP_SLICE_MODEL, n->err);
        n->tensor_of[i] = -1;
    }
    if (rc == FSDP_OK)
        rc = ckpt_layout_index(&params, n->err);
    for (int t = 0; rc == FSDP_OK && t < layout->ntensors; t++) {
        param_name(name, n, t);
        const int i = ckpt_layout_find(&params, name);
        n->is_part[t] = n->model.tied && !strcmp(name, n->model.tied);
        if (i < 0)
            continue;
        n->tensor_of[i] = t;
        n->has_parts |= n->model.params[i].ndim > 1 && layout->tensors[t].tensor.ndim == 1;
    }
    ckpt_layout_free(&params);
    return rc;
}

/* Is the tensor all of a parameter, which no unit has (an ignored module)? */
static bool is_whole(const struct namer *n, int t, const struct fsdp_tensor *param)
{
    const struct fsdp_tensor *tensor = &n->ckpt->m.layout.tensors[t].tensor;
    return same_shape(tensor, param) && (param->ndim > 1 || !n->has_parts);
}

/* The names in the files of ranks must have the order of the table. */
static int prove_order(struct namer *n)
{
    int last = -1;

    n->is_proved = true;
    for (size_t i = 0; i < n->model.nparams; i++) {
        const int t = n->tensor_of[i];
        if (n->unit_of[i] < 0)
            continue;
        n->is_proved &= t >= 0;
        if (t < 0)
            continue;
        if (t < last)
            return fsdp_err_set(n->err, FSDP_EINVAL,
                                "'%s': '%s' comes before '%s' in its files, and behind it in the "
                                "modules of %s: the model is of other code",
                                n->ckpt->path, n->model.params[i].name,
                                n->ckpt->m.layout.tensors[last].tensor.name, n->model.type);
        last = t;
    }
    return FSDP_OK;
}

static int assign_params(struct namer *n)
{
    const struct ckpt_layout *layout = &n->ckpt->m.layout;
    const size_t count = n->model.nparams;

    n->is_part = fsdp_alloc((size_t)layout->ntensors, sizeof *n->is_part, "tensors", n->err);
    n->unit_of = fsdp_alloc(count, sizeof *n->unit_of, "units of parameters", n->err);
    n->pos = fsdp_alloc(count, sizeof *n->pos, "places of parameters", n->err);
    n->tensor_of = fsdp_alloc(count, sizeof *n->tensor_of, "tensors of parameters", n->err);
    if (!n->tensor_of || !n->is_part || !n->unit_of || !n->pos)
        return FSDP_ENOMEM;
    FSDP_TRY(find_named(n));
    for (size_t i = 0; i < count; i++) {
        const struct fsdp_tensor *param = &n->model.params[i];
        n->unit_of[i] = -1;
        const int t = n->tensor_of[i];
        if (t >= 0 && is_whole(n, t, param))
            continue;
        if (t >= 0)
            n->is_part[t] = true;
        const int u = n->unit_of[i] = unit_of(n, param->name);
        if (u < 0)
            return fsdp_err_set(n->err, FSDP_ENOTFOUND,
                                "'%s': '%s' of config.json's %s lies below none of the modules "
                                "that have a flat parameter, such as '%s'",
                                n->ckpt->path, param->name, n->model.type, n->units[0].module);
        n->units[u].nparams++;
        n->units[u].plain_nelem += fsdp_tensor_nelem(param);
    }
    return n->has_parts && n->ckpt->format == &ckpt_fsdp1_ops ? prove_order(n) : FSDP_OK;
}

/* ---- places ---------------------------------------------------------------------------------- */

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return to > 1 ? (value + to - 1) / to * to : value;
}

/* Where each parameter is if parameters begin at multiples of `align` elements (0: no padding).
 * Returns whether each vector then has the length that it has. *moved: a place differs from the one
 * that pos had. */
static bool place_params(bool *moved, const struct namer *n, uint64_t align, uint64_t *pos)
{
    *moved = false;
    for (int u = 0; u < n->nunits; u++)
        n->units[u].end = 0;
    for (size_t i = 0; i < n->model.nparams; i++) {
        struct unit *unit = n->unit_of[i] < 0 ? NULL : &n->units[n->unit_of[i]];
        if (!unit)
            continue;
        const uint64_t at = round_up(unit->end, align);
        *moved |= pos[i] != at;
        pos[i] = at;
        unit->end = at + fsdp_tensor_nelem(&n->model.params[i]);
    }
    for (int u = 0; u < n->nunits; u++)
        if (n->units[u].nelem !=
            (align ? round_up(n->units[u].end, n->units[u].nranks) : n->units[u].end))
            return false;
    return true;
}

/* The first unit whose length is not that of its parameters. */
static int refuse_lengths(const struct namer *n)
{
    const struct unit *unit = &n->units[0];

    for (int u = n->nunits - 1; u >= 0; u--)
        if (n->units[u].nelem != n->units[u].plain_nelem)
            unit = &n->units[u];
    return fsdp_err_set(
        n->err, FSDP_EINVAL,
        "'%s': the flat parameter of '%s' has %llu elements, and the %llu parameters that "
        "config.json's %s has there have %llu: it is of another model, or a module was wrapped or "
        "ignored of which the files do not tell",
        n->ckpt->path, *unit->module ? unit->module : "the root", (unsigned long long)unit->nelem,
        (unsigned long long)unit->nparams, n->model.type, (unsigned long long)unit->plain_nelem);
}

static int find_places(struct namer *n)
{
    static const uint64_t aligns[] = {0, 2, 4, 8, 16}; /* 16 bytes of f64, f32, bf16, f8 */
    uint64_t *pos = fsdp_alloc(n->model.nparams, sizeof *pos, "places of parameters", n->err);
    bool found = false, moved = false;
    int rc = pos ? FSDP_OK : FSDP_ENOMEM;

    for (size_t i = 0; rc == FSDP_OK && i < sizeof aligns / sizeof aligns[0]; i++) {
        memcpy(pos, n->pos, n->model.nparams * sizeof *pos);
        if (!place_params(&moved, n, aligns[i], pos))
            continue;
        if (found && moved)
            rc = fsdp_err_set(n->err, FSDP_EUNSUPPORTED,
                              "'%s': its flat parameters have the length of two paddings of "
                              "use_orig_params, and nothing tells which it is",
                              n->ckpt->path);
        memcpy(n->pos, pos, n->model.nparams * sizeof *pos);
        found = true;
    }
    fsdp_free(pos);
    if (rc == FSDP_OK && !found)
        return refuse_lengths(n);
    return rc;
}

/* ---- the new layout -------------------------------------------------------------------------- */

/* Where the bytes of an old piece are, and its storage. */
static int locate(struct ckpt_plain_vector *out, struct namer *n, size_t index)
{
    struct ckpt *ckpt = n->ckpt;
    const struct ckpt_piece *piece = &ckpt->m.layout.pieces[index];
    const struct fsdp_tensor *tensor = &ckpt->m.layout.tensors[piece->tensor].tensor;
    const struct fsdp_box box = ckpt_piece_box(piece, tensor->ndim);
    struct ckpt_storage storage;

    *out = (struct ckpt_plain_vector){.file = piece->file,
                                      .dtype = tensor->dtype,
                                      .pos = piece->pos,
                                      .nelem = fsdp_box_nelem(&box, tensor->ndim)};
    if (!piece->blob_nbytes)
        return FSDP_OK;
    FSDP_TRY(ckpt_blob_locate(&storage, &out->pos, ckpt, index, n->err));
    return ckpt_plain_add(n->storages, &storage, n->err);
}

static int copy_files(struct namer *n)
{
    const struct ckpt_layout *from = &n->ckpt->m.layout;

    for (int i = 0; i < from->nfiles; i++)
        FSDP_TRY(
            ckpt_layout_add_file(&n->layout, from->files[i].path, from->files[i].nbytes, n->err));
    return FSDP_OK;
}

/* A tensor that is there by its own name. */
static int copy_tensor(struct namer *n, int t)
{
    const struct ckpt_layout *from = &n->ckpt->m.layout;
    struct fsdp_tensor tensor = from->tensors[t].tensor;
    struct ckpt_plain_vector vector;
    char name[CKPT_MAX_NAME_NBYTES + 1];

    param_name(name, n, t);
    tensor.name = name;
    FSDP_TRY(ckpt_layout_add_tensor(&n->layout, &tensor, FSDP_SLICE_MODEL, n->err));
    for (size_t i = from->first[t]; i < from->first[t + 1]; i++) {
        struct ckpt_piece piece = from->pieces[i];
        FSDP_TRY(locate(&vector, n, i));
        piece.tensor = n->layout.ntensors - 1;
        piece.pos = vector.pos;
        piece.blob_nbytes = 0;
        FSDP_TRY(ckpt_layout_add_piece(&n->layout, &piece, n->err));
    }
    return FSDP_OK;
}

static int add_param(struct namer *n, size_t i, const struct ckpt_plain_vector *vectors)
{
    const struct ckpt_layout *from = &n->ckpt->m.layout;
    const struct unit *unit = &n->units[n->unit_of[i]];
    struct fsdp_tensor tensor = n->model.params[i];
    const uint64_t begin = n->pos[i], end = begin + fsdp_tensor_nelem(&tensor);

    tensor.dtype = from->tensors[unit->tensor].tensor.dtype;
    FSDP_TRY(ckpt_layout_add_tensor(&n->layout, &tensor, FSDP_SLICE_MODEL, n->err));
    for (size_t k = from->first[unit->tensor]; k < from->first[unit->tensor + 1]; k++) {
        const uint64_t first = from->pieces[k].offset[0], behind = first + vectors[k].nelem;
        const uint64_t low = first > begin ? first : begin, high = behind < end ? behind : end;
        if (low < high)
            FSDP_TRY(ckpt_plain_place(&vectors[k], low - first, low - begin, high - low, &n->layout,
                                      n->err));
    }
    return FSDP_OK;
}

static int build_layout(struct namer *n)
{
    const struct ckpt_layout *from = &n->ckpt->m.layout;
    struct ckpt_plain_vector *vectors =
        fsdp_alloc(from->npieces, sizeof *vectors, "flat vectors", n->err);
    int rc = vectors ? copy_files(n) : FSDP_ENOMEM;

    for (int u = 0; rc == FSDP_OK && u < n->nunits; u++)
        for (size_t k = from->first[n->units[u].tensor];
             rc == FSDP_OK && k < from->first[n->units[u].tensor + 1]; k++)
            rc = locate(&vectors[k], n, k);
    for (size_t i = 0; rc == FSDP_OK && i < n->model.nparams; i++)
        if (n->unit_of[i] >= 0)
            rc = add_param(n, i, vectors);
    for (int t = 0; rc == FSDP_OK && t < from->ntensors; t++)
        if (!n->is_part[t] && !is_flat(&from->tensors[t]) &&
            from->tensors[t].role == CKPT_ROLE_MODEL)
            rc = copy_tensor(n, t);
    fsdp_free(vectors);
    if (rc == FSDP_OK)
        rc = ckpt_layout_index(&n->layout, n->err);
    return rc ? rc : ckpt_layout_seal(&n->layout, n->err);
}

/* The old layout and what its format kept of it are no longer needed. */
static int adopt(struct namer *n)
{
    struct ckpt *ckpt = n->ckpt;
    const bool own = ckpt->format == &ckpt_fsdp1_ops;

    if (!own) {
        ckpt->format->close(ckpt);
        ckpt->format_state = n->storages;
        ckpt->format = &ckpt_fsdp1_ops;
    }
    fsdp_free(ckpt->contained);
    ckpt->contained = NULL;
    ckpt->ncontained = 0;
    ckpt_layout_free(&ckpt->m.layout);
    ckpt->m.layout = n->layout;
    n->layout = (struct ckpt_layout){0};
    ckpt->has_flat = false;
    if (!own)
        FSDP_TRY(ckpt_plain_end(ckpt, n->err));
    return n->model.tied && ckpt_layout_find(&ckpt->m.layout, n->model.tied_to) >= 0
               ? ckpt_alias_add(ckpt, n->model.tied, n->model.tied_to, n->err)
               : FSDP_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int read_model(struct namer *n)
{
    static const char name[] = "config.json";
    json_t *root;

    FSDP_TRY(ckpt_extra_json(&root, n->ckpt, name, n->err));
    if (!root)
        return fsdp_err_set(n->err, FSDP_ENOTFOUND,
                            "'%s' holds flat parameters of FSDP1 (LOCAL_STATE_DICT), which have "
                            "neither names nor shapes: name the model's config.json, or the folder "
                            "that has it (--config DIR)",
                            n->ckpt->path);
    const int rc = ckpt_fsdp1_model_read(&n->model, root, ckpt_extra_path(n->ckpt, name), n->err);
    json_decref(root);
    return rc;
}

int ckpt_flat_name(struct ckpt *ckpt, struct fsdp_err *err)
{
    struct namer n = {.ckpt = ckpt, .err = err};
    int rc;

    if (ckpt->format != &ckpt_fsdp1_ops) /* else the list there is stays */
        if (!(n.storages = fsdp_alloc(1, sizeof *n.storages, "storages", err)))
            return FSDP_ENOMEM;
    FSDP_TRY_GOTO(read_model(&n), out);
    FSDP_TRY_GOTO(find_units(&n), out);
    FSDP_TRY_GOTO(assign_params(&n), out);
    FSDP_TRY_GOTO(find_places(&n), out);
    FSDP_TRY_GOTO(build_layout(&n), out);
    fsdp_log(FSDP_LOG_INFO,
             "'%s': the flat parameters of %d modules get the names, shapes and order of %s; %s",
             ckpt->path, n.nunits, n.model.type,
             n.is_proved ? "the files have all names in this order (use_orig_params), and the "
                           "number of elements is right"
                         : "no name proves them, only the number of elements");
    rc = adopt(&n);
    n.storages = NULL;
out:
    if (n.storages)
        fsdp_free(n.storages->items);
    fsdp_free(n.storages);
    ckpt_layout_free(&n.layout);
    ckpt_fsdp1_model_free(&n.model);
    fsdp_free(n.units);
    fsdp_free(n.tensor_of);
    fsdp_free(n.is_part);
    fsdp_free(n.unit_of);
    fsdp_free(n.pos);
    return rc;
}
