/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "overrides.h"

int fsdp_wrap_policy_parse(enum fsdp_wrap_policy *out, const char *text, struct fsdp_err *err)
{
    static const char *const names[] = {"transformer", "size", "none", "list"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(text, names[i])) {
            *out = (enum fsdp_wrap_policy)i;
            return FSDP_OK;
        }
    return fsdp_err_set(err, FSDP_EINVAL,
                        "unknown wrap policy '%s' (transformer, size, none, list)", text);
}

/* Is module b in the subtree of a? */
static bool covers(const struct fsdp_module_tree *tree, int a, int b)
{
    while (b > a)
        b = tree->modules[b].parent;
    return a == b;
}

/* Lowest module that covers every module using the parameter: tied parameters live in one unit. */
static int home_of_param(const struct fsdp_module_tree *tree, int p)
{
    int home = tree->params[p].module;
    for (int i = 0; i < tree->naliases; i++)
        while (tree->aliases[i].param == p && !covers(tree, home, tree->aliases[i].module))
            home = tree->modules[home].parent;
    return home;
}

/* ---- wrap policies: mark the modules that become units --------------------------------------- */

static int refuse_class(const struct fsdp_module_tree *tree, const char *class_name,
                        struct fsdp_err *err)
{
    char known[512] = "";
    for (int m = 1; m < tree->nmodules; m++) {
        const char *name = tree->modules[m].class_name;
        size_t len = strlen(known);
        bool listed = false;
        for (int k = 1; k < m; k++)
            listed |= !strcmp(tree->modules[k].class_name, name);
        if (!listed)
            snprintf(known + len, sizeof known - len, "%s%s", len ? ", " : "", name);
    }
    return fsdp_err_set(err, FSDP_EINVAL,
                        "wrap policy transformer: no module has class '%s' (there "
                        "are: %s)",
                        class_name, known);
}

static int wrap_transformer(bool *is_unit, const struct fsdp_module_tree *tree,
                            const char *const *classes, struct fsdp_err *err)
{
    for (int c = 0; classes && classes[c]; c++) {
        bool found = false;
        for (int m = 1; m < tree->nmodules; m++) {
            bool same = !strcmp(tree->modules[m].class_name, classes[c]);
            is_unit[m] |= same;
            found |= same;
        }
        if (!found) /* silence would gather the whole model at once */
            return refuse_class(tree, classes[c], err);
    }
    return FSDP_OK;
}

/* Bottom-up: a module whose parameters not yet in a unit reach the threshold becomes one. */
static int wrap_size(bool *is_unit, const struct fsdp_module_tree *tree, uint64_t threshold,
                     struct fsdp_err *err)
{
    uint64_t *open = fsdp_alloc((size_t)tree->nmodules, sizeof *open, "wrap policy", err);
    if (!open)
        return FSDP_ENOMEM;
    for (int p = 0; p < tree->nparams; p++)
        open[home_of_param(tree, p)] += fsdp_tensor_nelem(&tree->params[p].tensor);
    for (int m = tree->nmodules - 1; m > 0; m--) {
        is_unit[m] = open[m] && open[m] >= threshold;
        if (!is_unit[m])
            open[tree->modules[m].parent] += open[m];
    }
    fsdp_free(open);
    return FSDP_OK;
}

static int wrap_list(bool *is_unit, const struct fsdp_module_tree *tree,
                     const char *const *patterns, struct fsdp_err *err)
{
    char known[MODULE_NAMES_NBYTES];

    for (int k = 0; patterns && patterns[k]; k++) {
        bool found = false;
        for (int m = 0; m < tree->nmodules; m++) {
            bool named = module_name_matches(patterns[k], tree->modules[m].name);
            is_unit[m] |= named;
            found |= named;
        }
        if (!found)
            return fsdp_err_set(err, FSDP_EINVAL, "wrap policy list: no module matches '%s'; %s",
                                patterns[k], module_names(known, sizeof known, tree));
    }
    return FSDP_OK;
}

static int wrap(bool *is_unit, const struct fsdp_module_tree *tree, const struct fsdp_opts *opts,
                struct fsdp_err *err)
{
    is_unit[0] = true;
    switch (opts->wrap_policy) {
    case FSDP_WRAP_TRANSFORMER:
        return fsdp_err_blame(err, wrap_transformer(is_unit, tree, opts->wrap_classes, err),
                              "wrap_classes");
    case FSDP_WRAP_SIZE:
        return wrap_size(is_unit, tree, opts->min_num_params, err);
    case FSDP_WRAP_NONE:
        return FSDP_OK;
    case FSDP_WRAP_LIST:
        return fsdp_err_blame(err, wrap_list(is_unit, tree, opts->wrap_modules, err),
                              "wrap_modules");
    case FSDP_WRAP_CALLBACK:
        for (int m = 1; opts->wrap_callback && m < tree->nmodules; m++)
            is_unit[m] = opts->wrap_callback(opts->wrap_ctx, tree, m);
        return opts->wrap_callback
                   ? FSDP_OK
                   : fsdp_err_set(err, FSDP_EINVAL, "wrap policy callback: no callback is given");
    }
    return fsdp_err_set(err, FSDP_EINVAL, "unknown wrap policy %d", (int)opts->wrap_policy);
}

/* ---- units and flats ------------------------------------------------------------------------- */

static struct unit unit_empty(int module)
{
    struct unit unit = {.module = module};
    for (int k = 0; k < UNIT_NFLATS; k++)
        unit.flats[k] = -1;
    return unit;
}

static void number_units(struct units *u, const struct fsdp_module_tree *tree, const bool *is_unit)
{
    for (int m = 0; m < tree->nmodules; m++) {
        if (is_unit[m]) {
            u->unit_of_module[m] = u->nunits;
            u->units[u->nunits++] = unit_empty(m);
        } else {
            u->unit_of_module[m] = u->unit_of_module[tree->modules[m].parent];
        }
    }
}

/* The kind of every parameter: by its flags and by the patterns of the options. */
static int mark_kinds(unsigned char *kinds, const struct fsdp_module_tree *tree,
                      const char *const *patterns, int kind, const char *what, struct fsdp_err *err)
{
    for (int k = 0; patterns && patterns[k]; k++) {
        bool found = false;
        for (int p = 0; p < tree->nparams; p++) {
            if (!fsdp_glob_match(patterns[k], tree->params[p].tensor.name))
                continue;
            if (kinds[p] != UNIT_CARRIED)
                kinds[p] = (unsigned char)kind;
            found = true;
        }
        if (!found)
            return fsdp_err_set_blame(err, FSDP_EINVAL, what, "%s parameters: none matches '%s'",
                                      what, patterns[k]);
    }
    return FSDP_OK;
}

static int choose_kinds(unsigned char *kinds, const struct fsdp_module_tree *tree,
                        const struct fsdp_opts *opts, struct fsdp_err *err)
{
    bool trains = false, packs = false;
    for (int p = 0; p < tree->nparams; p++) {
        unsigned flags = tree->params[p].flags;
        kinds[p] = flags & FSDP_PARAM_CARRIED   ? UNIT_CARRIED
                   : flags & FSDP_PARAM_IGNORED ? UNIT_IGNORED
                   : flags & FSDP_PARAM_FROZEN  ? UNIT_FROZEN
                                                : UNIT_TRAINABLE;
    }
    FSDP_TRY(mark_kinds(kinds, tree, opts->frozen, UNIT_FROZEN, "frozen", err));
    FSDP_TRY(mark_kinds(kinds, tree, opts->ignored, UNIT_IGNORED, "ignored", err));
    for (int p = 0; p < tree->nparams; p++) {
        trains |= kinds[p] == UNIT_TRAINABLE;
        if (opts->frozen_in_nf4 && kinds[p] == UNIT_FROZEN &&
            tree->params[p].flags & FSDP_PARAM_LINEAR)
            kinds[p] = UNIT_NF4;
        packs |= kinds[p] == UNIT_NF4;
    }
    if (opts->frozen_in_nf4 && !packs)
        return fsdp_err_set(err, FSDP_EINVAL, "NF4: no linear map is frozen");
    return trains ? FSDP_OK
                  : fsdp_err_set_blame(err, FSDP_EINVAL, "frozen",
                                       "every parameter is frozen or ignored");
}

/* Blocks of NF4 run over the flattened tensor, and belong to one rank. Between rows cuts fall on
 * multiples of FSDP_CUT_ALIGN. */
static int check_blocks(const struct flat *flat, struct fsdp_err *err)
{
    for (int i = 0; flat->nf4 && flat->cut.chunked && i < flat->ntensors; i++) {
        const struct fsdp_tensor *tensor = &flat->tensors[i];
        if (flat->cut.nranks > 1 && fsdp_cut_chunk_nelem(&flat->cut, tensor) % FSDP_NF4_BLOCK)
            return fsdp_err_set(
                err, FSDP_EUNSUPPORTED,
                "'%s' cannot be held in NF4 by %d ranks: its unit is cut in chunks, "
                "because its row lengths have no small common multiple, and a cut "
                "would fall within a block of %d elements",
                tensor->name, flat->cut.nranks, FSDP_NF4_BLOCK);
    }
    return FSDP_OK;
}

/* Parameter p is the flat's next tensor: the first one whose scale it shares, or itself. */
static int first_of_group(const struct fsdp_module_tree *tree, const struct flat *flat, int p)
{
    const struct param *own = &tree->params[p];

    for (int i = 0; i < flat->ntensors && own->scale_group; i++) {
        const struct param *other = &tree->params[flat->params[i]];
        if (other->module == own->module && other->scale_group == own->scale_group)
            return i;
    }
    return flat->ntensors;
}

static int fill_flat(struct units *u, const struct fsdp_module_tree *tree, int unit, int kind,
                     const unsigned char *kinds, int shard_size, struct fsdp_err *err)
{
    struct flat *flat = &u->flats[u->nflats];
    int ntensors = 0;

    for (int p = 0; p < tree->nparams; p++)
        ntensors += u->flat_of_param[p] == unit && kinds[p] == kind;
    if (!ntensors)
        return FSDP_OK;
    *flat = (struct flat){.unit = unit,
                          .trainable = kind == UNIT_TRAINABLE,
                          .whole = kind == UNIT_IGNORED,
                          .carried = kind == UNIT_CARRIED,
                          .nf4 = kind == UNIT_NF4};
    flat->tensors = fsdp_alloc((size_t)ntensors, sizeof *flat->tensors, "unit tensors", err);
    flat->params = fsdp_alloc((size_t)ntensors, sizeof *flat->params, "unit tensors", err);
    flat->seen = fsdp_alloc((size_t)ntensors + 1, sizeof *flat->seen, "unit tensors", err);
    flat->codes = fsdp_alloc((size_t)ntensors, sizeof *flat->codes, "unit tensors", err);
    flat->amax = fsdp_alloc((size_t)ntensors, sizeof *flat->amax, "unit tensors", err);
    flat->scale_of = fsdp_alloc((size_t)ntensors, sizeof *flat->scale_of, "unit tensors", err);
    u->units[unit].flats[kind] = u->nflats++;
    if (!flat->tensors || !flat->params || !flat->seen || !flat->codes || !flat->amax ||
        !flat->scale_of)
        return FSDP_ENOMEM;
    for (int p = 0; p < tree->nparams; p++) {
        if (u->flat_of_param[p] != unit || kinds[p] != kind)
            continue;
        flat->params[flat->ntensors] = p;
        flat->codes[flat->ntensors] = tree->params[p].flags & FSDP_PARAM_CODES;
        flat->scale_of[flat->ntensors] = first_of_group(tree, flat, p);
        flat->tensors[flat->ntensors++] = tree->params[p].tensor;
    }
    FSDP_TRY(fsdp_cut_create(&flat->cut, flat->tensors, flat->ntensors,
                             flat->whole ? 1 : shard_size, err));
    return check_blocks(flat, err);
}

static int fill_flats(struct units *u, const struct fsdp_module_tree *tree,
                      const unsigned char *kinds, int shard_size, struct fsdp_err *err)
{
    /* flat_of_param holds the unit while the flats are being made. */
    for (int p = 0; p < tree->nparams; p++)
        u->flat_of_param[p] = u->unit_of_module[home_of_param(tree, p)];
    for (int unit = 0; unit < u->nunits; unit++)
        for (int kind = 0; kind < UNIT_NFLATS; kind++)
            FSDP_TRY(fill_flat(u, tree, unit, kind, kinds, shard_size, err));
    for (int f = 0; f < u->nflats; f++)
        for (int i = 0; i < u->flats[f].ntensors; i++) {
            u->flat_of_param[u->flats[f].params[i]] = f;
            u->index_in_flat[u->flats[f].params[i]] = i;
        }
    return FSDP_OK;
}

static const char *name_of_unit(const struct units *u, const struct fsdp_module_tree *tree,
                                int unit)
{
    const char *name = tree->modules[u->units[unit].module].name;
    return *name ? name : "the root";
}

/* Policies that follow sizes or classes move a tied parameter to the unit around all its users;
 * where the user named the units, that would be another wrapping than asked for. */
static int check_tied(const struct units *u, const struct fsdp_module_tree *tree,
                      const struct fsdp_opts *opts, struct fsdp_err *err)
{
    if (opts->wrap_policy != FSDP_WRAP_LIST && opts->wrap_policy != FSDP_WRAP_CALLBACK)
        return FSDP_OK;
    for (int i = 0; i < tree->naliases; i++) {
        const struct alias *alias = &tree->aliases[i];
        const struct param *param = &tree->params[alias->param];
        int one = u->unit_of_module[param->module], other = u->unit_of_module[alias->module];
        if (one == other)
            continue;
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s' and '%s' are one tied parameter, but unit '%s' has the one and "
                            "unit '%s' the other: make neither a unit, or a module around both",
                            param->tensor.name, alias->name, name_of_unit(u, tree, one),
                            name_of_unit(u, tree, other));
    }
    return FSDP_OK;
}

int units_create(struct units *out, const struct fsdp_module_tree *tree,
                 const struct fsdp_opts *opts, int shard_size, struct fsdp_err *err)
{
    size_t nmodules = (size_t)tree->nmodules, nparams = (size_t)tree->nparams;
    int rc = FSDP_ENOMEM;
    bool *is_unit = NULL;
    unsigned char *kinds = NULL;

    memset(out, 0, sizeof *out);
    if (!tree->nmodules || !tree->nparams)
        return fsdp_err_set(err, FSDP_EINVAL, "the model has no modules or no parameters");
    out->nmodules = tree->nmodules;
    out->nparams = tree->nparams;
    if (!(is_unit = fsdp_alloc(nmodules, sizeof *is_unit, "wrap policy", err)) ||
        !(out->units = fsdp_alloc(nmodules, sizeof *out->units, "units", err)) ||
        !(kinds = fsdp_alloc(nparams, 1, "parameter kinds", err)) ||
        !(out->flats = fsdp_alloc(UNIT_NFLATS * nmodules, sizeof *out->flats, "units", err)) ||
        !(out->unit_of_module = fsdp_alloc(nmodules, sizeof(int), "units", err)) ||
        !(out->flat_of_param = fsdp_alloc(nparams, sizeof(int), "units", err)) ||
        !(out->index_in_flat = fsdp_alloc(nparams, sizeof(int), "units", err)))
        goto out;
    FSDP_TRY_GOTO(wrap(is_unit, tree, opts, err), out);
    FSDP_TRY_GOTO(fsdp_err_blame(err, overrides_wrap(is_unit, tree, opts, err), "unit_overrides"),
                  out);
    number_units(out, tree, is_unit);
    FSDP_TRY_GOTO(fsdp_err_blame(err, check_tied(out, tree, opts, err), "wrap_modules"), out);
    FSDP_TRY_GOTO(choose_kinds(kinds, tree, opts, err), out);
    FSDP_TRY_GOTO(fill_flats(out, tree, kinds, shard_size, err), out);
    rc = fsdp_err_blame(err, overrides_apply(out, tree, opts, err), "unit_overrides");
out:
    fsdp_free(is_unit);
    fsdp_free(kinds);
    if (rc)
        units_destroy(out);
    return rc;
}

void units_destroy(struct units *units)
{
    for (int f = 0; f < units->nflats; f++) {
        fsdp_free(units->flats[f].tensors);
        fsdp_free(units->flats[f].params);
        fsdp_free(units->flats[f].seen);
        fsdp_free(units->flats[f].codes);
        fsdp_free(units->flats[f].amax);
        fsdp_free(units->flats[f].scale_of);
        fsdp_cut_destroy(&units->flats[f].cut);
    }
    fsdp_free(units->units);
    fsdp_free(units->flats);
    fsdp_free(units->unit_of_module);
    fsdp_free(units->flat_of_param);
    fsdp_free(units->index_in_flat);
    memset(units, 0, sizeof *units);
}
