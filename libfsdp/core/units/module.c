/* SPDX-License-Identifier: Apache-2.0 */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "module_tree.h"

int fsdp_module_tree_create(struct fsdp_module_tree **out, struct fsdp_err *err)
{
    *out = fsdp_alloc(1, sizeof **out, "module tree", err);
    return *out ? FSDP_OK : FSDP_ENOMEM;
}

void fsdp_module_tree_destroy(struct fsdp_module_tree *tree)
{
    if (!tree)
        return;
    for (int i = 0; i < tree->nmodules; i++) {
        fsdp_free(tree->modules[i].name);
        fsdp_free(tree->modules[i].class_name);
        fsdp_free(tree->modules[i].work);
    }
    for (int i = 0; i < tree->nparams; i++)
        fsdp_free((char *)(uintptr_t)tree->params[i].tensor.name);
    for (int i = 0; i < tree->naliases; i++)
        fsdp_free(tree->aliases[i].name);
    fsdp_free(tree->modules);
    fsdp_free(tree->params);
    fsdp_free(tree->aliases);
    fsdp_free(tree);
}

int fsdp_module_add(struct fsdp_module_tree *tree, int parent, const char *name,
                    const char *class_name, int *out, struct fsdp_err *err)
{
    if (parent < -1 || parent >= tree->nmodules || (parent == -1) != (tree->nmodules == 0))
        return fsdp_err_set(err, FSDP_EINVAL, "module '%s': parent %d of %d modules", name, parent,
                            tree->nmodules);
    /* Pre-order: the parent must be the last module added or an ancestor of it. */
    int last = tree->nmodules - 1;
    while (last >= 0 && last != parent)
        last = tree->modules[last].parent;
    if (parent >= 0 && last != parent)
        return fsdp_err_set(err, FSDP_EINVAL,
                            "module '%s': added after its parent '%s' was already complete", name,
                            tree->modules[parent].name);
    struct module *modules =
        fsdp_alloc_grow(tree->modules, (size_t)tree->nmodules, &tree->max_modules, sizeof *modules,
                        "module tree", err);
    if (!modules)
        return FSDP_ENOMEM;
    tree->modules = modules;
    struct module *m = &tree->modules[tree->nmodules];
    *m = (struct module){.parent = parent};
    m->name = fsdp_strdup(name, err);
    m->class_name = fsdp_strdup(class_name, err);
    if (!m->name || !m->class_name) {
        fsdp_free(m->name);
        fsdp_free(m->class_name);
        return FSDP_ENOMEM;
    }
    if (out)
        *out = tree->nmodules;
    tree->nmodules++;
    return FSDP_OK;
}

static int check_module(const struct fsdp_module_tree *tree, int module, const char *what,
                        struct fsdp_err *err)
{
    if (module >= 0 && module < tree->nmodules)
        return FSDP_OK;
    return fsdp_err_set(err, FSDP_EINVAL, "%s: there is no module %d", what, module);
}

static int name_is_new(const struct fsdp_module_tree *tree, const char *name, struct fsdp_err *err)
{
    bool taken = false;
    for (int i = 0; i < tree->nparams; i++)
        taken |= !strcmp(tree->params[i].tensor.name, name);
    for (int i = 0; i < tree->naliases; i++)
        taken |= !strcmp(tree->aliases[i].name, name);
    return taken ? fsdp_err_set(err, FSDP_EINVAL, "parameter '%s' is declared twice", name)
                 : FSDP_OK;
}

int fsdp_module_add_param(struct fsdp_module_tree *tree, int module,
                          const struct fsdp_param_desc *desc, int *out, struct fsdp_err *err)
{
    struct param p = {.module = module,
                      .init = desc->init,
                      .flags = desc->flags,
                      .scale_group = desc->scale_group};

    FSDP_TRY(check_module(tree, module, desc->name, err));
    FSDP_TRY(name_is_new(tree, desc->name, err));
    p.tensor = (struct fsdp_tensor){.name = desc->name, .dtype = FSDP_F32, .ndim = desc->ndim};
    if (desc->ndim < 0 || desc->ndim > FSDP_MAX_DIMS)
        return fsdp_tensor_check(&p.tensor, err);
    for (int d = 0; d < desc->ndim; d++)
        p.tensor.shape[d] = desc->shape[d];
    FSDP_TRY(fsdp_tensor_check(&p.tensor, err));
    struct param *params = fsdp_alloc_grow(tree->params, (size_t)tree->nparams, &tree->max_params,
                                           sizeof *params, "module tree", err);
    if (!params)
        return FSDP_ENOMEM;
    tree->params = params;
    p.tensor.name = fsdp_strdup(desc->name, err);
    if (!p.tensor.name)
        return FSDP_ENOMEM;
    tree->params[tree->nparams] = p;
    if (out)
        *out = tree->nparams;
    tree->nparams++;
    return FSDP_OK;
}

int fsdp_module_tie(struct fsdp_module_tree *tree, int module, int param, const char *alias,
                    struct fsdp_err *err)
{
    FSDP_TRY(check_module(tree, module, alias, err));
    if (param < 0 || param >= tree->nparams)
        return fsdp_err_set(err, FSDP_EINVAL, "%s: there is no parameter %d to tie to", alias,
                            param);
    FSDP_TRY(name_is_new(tree, alias, err));
    struct alias *aliases =
        fsdp_alloc_grow(tree->aliases, (size_t)tree->naliases, &tree->max_aliases, sizeof *aliases,
                        "module tree", err);
    if (!aliases)
        return FSDP_ENOMEM;
    tree->aliases = aliases;
    struct alias a = {fsdp_strdup(alias, err), param, module};
    if (!a.name)
        return FSDP_ENOMEM;
    tree->aliases[tree->naliases++] = a;
    return FSDP_OK;
}

int fsdp_module_set_act(struct fsdp_module_tree *tree, int module, struct fsdp_act_bytes bytes,
                        struct fsdp_err *err)
{
    FSDP_TRY(check_module(tree, module, "activation bytes", err));
    tree->modules[module].act = bytes;
    return FSDP_OK;
}

int fsdp_module_add_work(struct fsdp_module_tree *tree, int module, const struct fsdp_work *work,
                         struct fsdp_err *err)
{
    FSDP_TRY(check_module(tree, module, "work", err));
    struct module *m = &tree->modules[module];
    struct fsdp_work *all =
        fsdp_alloc_grow(m->work, (size_t)m->nwork, &m->max_work, sizeof *all, "module tree", err);
    if (!all)
        return FSDP_ENOMEM;
    m->work = all;
    m->work[m->nwork++] = *work;
    tree->has_work = true;
    return FSDP_OK;
}

int fsdp_module_count(const struct fsdp_module_tree *tree)
{
    return tree->nmodules;
}

const struct fsdp_work *fsdp_module_work(const struct fsdp_module_tree *tree, int module,
                                         int *nwork)
{
    *nwork = tree->modules[module].nwork;
    return tree->modules[module].work;
}

int fsdp_param_count(const struct fsdp_module_tree *tree)
{
    return tree->nparams;
}

const char *fsdp_module_name(const struct fsdp_module_tree *tree, int module)
{
    return tree->modules[module].name;
}

struct fsdp_tensor fsdp_param_tensor(const struct fsdp_module_tree *tree, int param)
{
    return tree->params[param].tensor;
}

uint64_t fsdp_param_nelem_total(const struct fsdp_module_tree *tree)
{
    uint64_t nelem = 0;
    for (int i = 0; i < tree->nparams; i++)
        nelem += fsdp_tensor_nelem(&tree->params[i].tensor);
    return nelem;
}

bool fsdp_module_alias(const struct fsdp_module_tree *tree, int k, const char **alias, int *param)
{
    if (k < 0 || k >= tree->naliases)
        return false;
    *alias = tree->aliases[k].name;
    *param = tree->aliases[k].param;
    return true;
}

const char *module_names(char *out, size_t out_nbytes, const struct fsdp_module_tree *tree)
{
    size_t len = (size_t)snprintf(out, out_nbytes, "the modules are");

    for (int m = 1; m < tree->nmodules; m++) {
        const char *name = tree->modules[m].name;
        if (len + strlen(name) + sizeof ", ..., " > out_nbytes) {
            snprintf(out + len, out_nbytes - len, ", ...");
            break;
        }
        len += (size_t)snprintf(out + len, out_nbytes - len, "%s %s", m > 1 ? "," : "", name);
    }
    return out;
}

bool module_name_matches(const char *pattern, const char *name)
{
    char path[2][512];
    const char *from[2] = {pattern, name};
    for (int k = 0; k < 2; k++) {
        snprintf(path[k], sizeof path[k], "%s", from[k]);
        for (char *c = path[k]; *c; c++)
            *c = *c == '.' ? '/' : *c;
    }
    return !fnmatch(path[0], path[1], FNM_PATHNAME);
}
