/* SPDX-License-Identifier: Apache-2.0 */
#include "overrides.h"

#include <stdio.h>
#include <string.h>

static bool names(const struct fsdp_unit_override *row, const struct module *module)
{
    if (row->module && !module_name_matches(row->module, module->name))
        return false;
    return !row->class_name || !strcmp(row->class_name, module->class_name);
}

static int check_dtype(const char *what, int dtype, const struct fsdp_unit_override *row,
                       struct fsdp_err *err)
{
    if (dtype == FSDP_KEEP || dtype == FSDP_F32 || dtype == FSDP_BF16 || dtype == FSDP_F16)
        return FSDP_OK;
    return fsdp_err_set(
        err, FSDP_EUNSUPPORTED, "override of '%s': %s %s; it can be F32, BF16 or F16",
        row->module ? row->module : row->class_name, what, fsdp_dtype_name((enum fsdp_dtype)dtype));
}

static int check_row(const struct fsdp_unit_override *row, struct fsdp_err *err)
{
    if (!row->module && !row->class_name)
        return fsdp_err_set(err, FSDP_EINVAL, "an override names neither module nor class");
    if (row->reshard_after_forward < FSDP_KEEP)
        return fsdp_err_set(err, FSDP_EINVAL, "override of '%s': reshard_after_forward %d",
                            row->module ? row->module : row->class_name,
                            row->reshard_after_forward);
    FSDP_TRY(check_dtype("param_dtype", row->param_dtype, row, err));
    return check_dtype("reduce_dtype", row->reduce_dtype, row, err);
}

int overrides_wrap(bool *is_unit, const struct fsdp_module_tree *tree, const struct fsdp_opts *opts,
                   struct fsdp_err *err)
{
    char known[MODULE_NAMES_NBYTES];

    for (int i = 0; i < opts->nunit_overrides; i++) {
        const struct fsdp_unit_override *row = &opts->unit_overrides[i];
        bool found = false;
        FSDP_TRY(check_row(row, err));
        for (int m = 0; m < tree->nmodules; m++) {
            bool named = names(row, &tree->modules[m]);
            is_unit[m] |= named;
            found |= named;
        }
        if (!found)
            return fsdp_err_set(
                err, FSDP_EINVAL, "override: no module has name '%s' and class '%s'; %s",
                row->module ? row->module : "*", row->class_name ? row->class_name : "*",
                module_names(known, sizeof known, tree));
    }
    return FSDP_OK;
}

static void apply_row(struct unit *unit, const struct fsdp_unit_override *row)
{
    if (row->param_dtype != FSDP_KEEP)
        unit->param_dtype = (enum fsdp_dtype)row->param_dtype;
    if (row->reduce_dtype != FSDP_KEEP)
        unit->reduce_dtype = (enum fsdp_dtype)row->reduce_dtype;
    if (row->gather_codec != FSDP_KEEP)
        unit->encoded = row->gather_codec;
    if (row->reshard_after_forward != FSDP_KEEP) {
        unit->reshard_after_forward = row->reshard_after_forward;
        unit->reshard_always = row->reshard_after_forward > 0;
    }
}

/* A view has one dtype, that of the unit entered. */
static int check_tied(const struct units *u, const struct fsdp_module_tree *tree,
                      struct fsdp_err *err)
{
    for (int i = 0; i < tree->naliases; i++) {
        const struct alias *alias = &tree->aliases[i];
        const struct unit *home = &u->units[u->flats[u->flat_of_param[alias->param]].unit];
        const int modules[] = {alias->module, tree->params[alias->param].module};
        for (int k = 0; k < 2; k++) {
            const struct unit *user = &u->units[u->unit_of_module[modules[k]]];
            if (user->param_dtype == home->param_dtype &&
                user->reduce_dtype == home->reduce_dtype && user->encoded == home->encoded)
                continue;
            return fsdp_err_set(err, FSDP_EINVAL,
                                "override: '%s' and '%s' are one tied parameter, which cannot "
                                "have other dtypes or another gather_codec in '%s' than in the "
                                "rest of its unit",
                                tree->params[alias->param].tensor.name, alias->name,
                                tree->modules[modules[k]].name);
        }
    }
    return FSDP_OK;
}

static void apply_to_flat(struct flat *flat, const struct unit *unit,
                          const struct fsdp_gather_codec *codec)
{
    bool any = false;
    for (int i = 0; codec && i < flat->ntensors; i++)
        any |= codec->applies(&flat->tensors[i]);
    flat->param_dtype = unit->param_dtype;
    flat->reduce_dtype = unit->reduce_dtype;
    flat->codec =
        unit->encoded && any && !flat->whole && !flat->carried && !flat->nf4 ? codec : NULL;
}

int overrides_apply(struct units *units, const struct fsdp_module_tree *tree,
                    const struct fsdp_opts *opts, struct fsdp_err *err)
{
    for (int u = 0; u < units->nunits; u++) {
        struct unit *unit = &units->units[u];
        unit->param_dtype = opts->param_dtype;
        unit->reduce_dtype = opts->reduce_dtype;
        unit->encoded = true;
        unit->reshard_after_forward = opts->reshard_after_forward;
        for (int i = 0; i < opts->nunit_overrides; i++)
            if (names(&opts->unit_overrides[i], &tree->modules[unit->module]))
                apply_row(unit, &opts->unit_overrides[i]);
        for (int k = 0; k < UNIT_NFLATS; k++)
            if (unit->flats[k] >= 0)
                apply_to_flat(&units->flats[unit->flats[k]], unit, opts->gather_codec);
    }
    return check_tied(units, tree, err);
}

/* Names that were not seen before, joined in a text. */
struct name_list {
    char *out;
    size_t out_nbytes, len;
    const char *seen[4];
    int nseen;
};

static void add_name(struct name_list *to, const char *name)
{
    for (int i = 0; i < to->nseen; i++)
        if (!strcmp(to->seen[i], name))
            return;
    if (to->nseen == 4 || to->len >= to->out_nbytes)
        return;
    to->seen[to->nseen++] = name;
    to->len += (size_t)snprintf(to->out + to->len, to->out_nbytes - to->len, "%s%s",
                                to->len ? " and " : "", name);
}

const char *overrides_dtypes(char *out, size_t out_nbytes, const struct units *units,
                             enum overrides_what what)
{
    struct name_list list = {.out = out, .out_nbytes = out_nbytes};

    *out = 0;
    for (int k = 0; k < units->nflats; k++) {
        const struct flat *flat = &units->flats[k];
        const bool sent = what == OVERRIDES_GATHERED || what == OVERRIDES_PLAIN;
        if (what == OVERRIDES_PLAIN && flat->nf4)
            continue;
        if (sent && (flat->nf4 || flat_travels_encoded(flat)))
            add_name(&list, flat_sent_name(flat));
        else
            add_name(&list, fsdp_dtype_name(what == OVERRIDES_REDUCED ? flat->reduce_dtype
                                                                      : flat->param_dtype));
        if (what == OVERRIDES_COMPUTED && flat->any_codes)
            add_name(&list, flat->codec->name);
    }
    return out;
}
