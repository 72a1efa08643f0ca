/* SPDX-License-Identifier: Apache-2.0 */
/* module_tree.h: the tree behind module.h, for the rest of core. */
#ifndef CORE_MODULE_TREE_H
#define CORE_MODULE_TREE_H

#include "fsdp/module.h"

struct module {
    char *name, *class_name;
    int parent;
    struct fsdp_act_bytes act;
    struct fsdp_work *work; /* [nwork] */
    int nwork;
    size_t max_work;
};

struct param {
    struct fsdp_tensor tensor; /* owns its name */
    int module;
    struct fsdp_init init;
    unsigned flags;
    int scale_group;
};

struct alias {
    char *name;
    int param, module;
};

struct fsdp_module_tree {
    int nmodules, nparams, naliases;
    bool has_work; /* some module has */
    size_t max_modules, max_params, max_aliases;
    struct module *modules; /* pre-order */
    struct param *params;
    struct alias *aliases;
};

/* A wildcard stays within one level of names: "layers.*" are the layers, not what is in them. */
bool module_name_matches(const char *pattern, const char *name);

/* For a refusal: "the modules are a, b, c, ...", as many names as fit. Into out, which is returned.
 */
enum { MODULE_NAMES_NBYTES = 300 };
const char *module_names(char *out, size_t out_nbytes, const struct fsdp_module_tree *tree);

#endif
