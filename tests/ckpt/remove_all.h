/* SPDX-License-Identifier: Apache-2.0 */
/* Removes whatever lies at a path of a store. */
#ifndef TESTS_REMOVE_ALL_H
#define TESTS_REMOVE_ALL_H

#include "../../ckpt/keep/tree.h"

static inline bool remove_all_judge(const void *ctx, const struct ckpt_store_item *item)
{
    (void)ctx, (void)item;
    return true;
}

static inline int remove_all(const struct ckpt_store_ops *ops, const char *path,
                             struct fsdp_err *err)
{
    struct ckpt_tree tree;
    int rc = ckpt_tree_list(&tree, ops, path, remove_all_judge, NULL, 0, err);
    if (rc == FSDP_OK || rc == FSDP_ENOTFOUND)
        rc = ckpt_tree_remove(&tree, path, err);
    ckpt_tree_free(&tree);
    return rc;
}

#endif
