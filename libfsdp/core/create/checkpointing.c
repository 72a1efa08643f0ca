/* SPDX-License-Identifier: Apache-2.0 */
/* Activation checkpointing (Chen et al., arXiv 1604.06174; selective: Korthikanti et al., arXiv
 * 2205.05198): which modules drop what after forward. */
#include "arena.h"

static bool has_something(const struct module *module, int kind)
{
    return module->act.cheap || (kind == FSDP_AC_FULL && module->act.recomputed);
}

static bool is_covered(const struct fsdp_opts *opts, const struct module *module)
{
    const char *const *pattern = opts->checkpoint_modules;
    bool covered = !pattern;
    for (; pattern && *pattern && !covered; pattern++)
        covered = module_name_matches(*pattern, module->name);
    return covered;
}

static int check_pattern(const struct fsdp *f, const char *pattern, struct fsdp_err *err)
{
    const int kind = f->opts.activation_checkpointing;
    bool matches = false, has = false;
    char known[MODULE_NAMES_NBYTES];

    for (int m = 0; m < f->tree->nmodules; m++) {
        const bool named = module_name_matches(pattern, f->tree->modules[m].name);
        matches |= named;
        has |= named && has_something(&f->tree->modules[m], kind);
    }
    if (has)
        return FSDP_OK;
    if (matches)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s' names no module that has activations to make again under "
                            "activation checkpointing %s",
                            pattern, kind == FSDP_AC_FULL ? "full" : "selective");
    return fsdp_err_set(err, FSDP_EINVAL, "'%s' names no module; %s", pattern,
                        module_names(known, sizeof known, f->tree));
}

static int check_patterns(const struct fsdp *f, struct fsdp_err *err)
{
    for (const char *const *pattern = f->opts.checkpoint_modules; pattern && *pattern; pattern++)
        FSDP_TRY(check_pattern(f, *pattern, err));
    return FSDP_OK;
}

int checkpointing_create(struct fsdp *f, struct fsdp_err *err)
{
    const int kind = f->opts.activation_checkpointing, nmodules = f->tree->nmodules;

    if (kind < FSDP_AC_NONE || kind > FSDP_AC_SELECTIVE)
        return fsdp_err_set(err, FSDP_EINVAL, "unknown activation checkpointing %d", kind);
    f->plan.recompute = fsdp_alloc((size_t)nmodules, sizeof *f->plan.recompute, "modules", err);
    f->plan.checkpointing =
        fsdp_alloc((size_t)nmodules, sizeof *f->plan.checkpointing, "modules", err);
    if (!f->plan.recompute || !f->plan.checkpointing)
        return FSDP_ENOMEM;
    if (kind == FSDP_AC_NONE)
        return FSDP_OK;
    FSDP_TRY(check_patterns(f, err));
    for (int m = 0; m < nmodules; m++) {
        const struct module *module = &f->tree->modules[m];
        /* The outermost module that has something to rebuild; what is inside goes with it. */
        const bool inside = module->parent >= 0 && f->plan.checkpointing[module->parent];
        f->plan.recompute[m] =
            !inside && has_something(module, kind) && is_covered(&f->opts, module);
        f->plan.checkpointing[m] = inside || f->plan.recompute[m] ? kind : FSDP_AC_NONE;
    }
    return FSDP_OK;
}
