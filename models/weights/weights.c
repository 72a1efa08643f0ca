/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "weights.h"

/* ---- names ----------------------------------------------------------------------------------- */

/* The other name of a tied weight that the checkpoint has; NULL: none. */
static const char *find_tied(const struct ckpt *ckpt, const struct fsdp_module_tree *tree,
                             int param)
{
    const char *alias;
    int of;

    for (int k = 0; fsdp_module_alias(tree, k, &alias, &of); k++)
        if (of == param && ckpt_tensor_find(ckpt, alias))
            return alias;
    return NULL;
}

/* The name that the checkpoint has for parameter `param`, whose own it lacks; NULL: none. */
static const char *find_other(const struct ckpt *ckpt, const struct fsdp_module_tree *tree,
                              int param)
{
    static const char head[] = "embed_out.weight", other_head[] = "lm_head.weight";
    const char *name = fsdp_param_tensor(tree, param).name, *dot = strchr(name, '.');

    if (dot && ckpt_tensor_find(ckpt, dot + 1))
        return dot + 1;
    if (!strcmp(name, head) && ckpt_tensor_find(ckpt, other_head))
        return other_head;
    return find_tied(ckpt, tree, param);
}

int weights_find(struct ckpt *ckpt, const struct fsdp_module_tree *tree, struct fsdp_err *err)
{
    for (int i = 0; i < fsdp_param_count(tree); i++) {
        const char *name = fsdp_param_tensor(tree, i).name;
        const char *other = ckpt_tensor_find(ckpt, name) ? NULL : find_other(ckpt, tree, i);
        if (other)
            FSDP_TRY(ckpt_alias_add(ckpt, name, other, err));
    }
    return FSDP_OK;
}

/* ---- ties ------------------------------------------------------------------------------------ */

int weights_check_tied(struct ckpt *ckpt, const struct fsdp_module_tree *tree, struct fsdp_err *err)
{
    const char *alias;
    int param;

    for (int k = 0; fsdp_module_alias(tree, k, &alias, &param); k++) {
        const int rc = ckpt_check_equal(ckpt, alias, fsdp_param_tensor(tree, param).name, err);
        if (rc == FSDP_EINVAL)
            return fsdp_err_hint(err, rc,
                                 ", but config.json ties them; set tie_word_embeddings to false in "
                                 "it to use both");
        FSDP_TRY(rc);
    }
    return FSDP_OK;
}
