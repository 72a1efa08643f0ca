/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removal. A tree is listed and judged as a whole, then it may be given another name, and then
 * exactly what was listed is removed: objects that belong to a checkpoint (belongs.h), and links to
 * other places as what they are, links. One object that does not belong stops the removal of the
 * whole tree.
 */
#ifndef CKPT_TREE_H
#define CKPT_TREE_H

#include "store/store.h"

/* Does this object belong to what is removed? */
typedef bool ckpt_tree_judge_f(const void *ctx, const struct ckpt_store_item *item);

enum { CKPT_TREE_FOREIGN_SHOWN = 5 };

struct ckpt_tree {
    const struct ckpt_store_ops *ops;
    char *path;                    /* where it was listed */
    struct ckpt_store_item *items; /* what belongs, in the order of the walk; paths owned */
    size_t nitems, max;
    enum ckpt_store_kind kind; /* of the object at path */
    uint64_t nbytes;
    int64_t touched; /* the latest mtime */
    uint64_t nforeign;
    char *foreign[CKPT_TREE_FOREIGN_SHOWN]; /* paths of the first that do not belong */
    uint64_t nopen; /* '.nfs*': files that an NFS client removed while they were open */
};

/* What lies at path and below it. A folder that does not belong is not entered. judge NULL: by
 * belongs.h. FSDP_ENOTFOUND if there is nothing. Freed with ckpt_tree_free, also after a failure.
 * nfs_age_s: an '.nfs*' file as old as that belongs; a younger one is left. */
int ckpt_tree_list(struct ckpt_tree *out, const struct ckpt_store_ops *ops, const char *path,
                   ckpt_tree_judge_f *judge, const void *ctx, int64_t nfs_age_s,
                   struct fsdp_err *err);
void ckpt_tree_free(struct ckpt_tree *tree);
/* FSDP_EEXIST, naming them, if there are objects that do not belong. action: what is refused, such
 * as "removed". */
int ckpt_tree_refuse(const struct ckpt_tree *tree, const char *action, struct fsdp_err *err);
/* Refuses, or removes what was listed, which now lies at path. Goes as far as it can; the first
 * failure is returned. */
int ckpt_tree_remove(const struct ckpt_tree *tree, const char *path, struct fsdp_err *err);

/* Lists, judges and removes. What is not there is fine. */
int ckpt_store_remove_tree(const struct ckpt_store_ops *ops, const char *path,
                           struct fsdp_err *err);
/* What a failed writer leaves: that it cannot be removed is logged. */
int ckpt_store_drop_tree(const struct ckpt_store_ops *ops, const char *path);

#endif
