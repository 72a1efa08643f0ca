/* SPDX-License-Identifier: Apache-2.0 */
/*
 * posix_tree.h: trees of folders in a file system, read and removed relative to open folders, so
 * that no name on the way can be exchanged for a link to somewhere else.
 */
#ifndef CKPT_POSIX_TREE_H
#define CKPT_POSIX_TREE_H

#include "ckpt/sys/store_ops.h"

/* As the members of ckpt_store_ops. */
int posix_tree_walk(const char *path, ckpt_store_item_f *fn, void *ctx, struct fsdp_err *err);
int posix_tree_remove(const char *path, const struct ckpt_store_item *items, size_t nitems,
                      struct fsdp_err *err);

#endif
