/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What saves, removals and tools left that never ended, in a folder of checkpoints or below an
 * address.
 *
 *   on a file system   NAME.tmp.<uuid or key>, NAME.del.<uuid>, .check-<uuid>
 *   in an object store NAME/<uuid>/ that no NAME/manifest.json names, NAME.tmp.<key>,
 *                      .check-<uuid>; and uploads, which show nowhere
 */
#ifndef CKPT_REMAINS_H
#define CKPT_REMAINS_H

#include "tree.h"

enum ckpt_remains_kind {
    CKPT_REMAINS_UNFINISHED, /* what somebody began to write, and may be writing */
    CKPT_REMAINS_REMOVED,    /* what somebody began to remove: nobody needs it */
    CKPT_REMAINS_PROBE,      /* a file that tried whether there is room */
};

struct ckpt_remains {
    const char *path;
    const char *name; /* of what it should have become, or was: an entry of the folder */
    enum ckpt_remains_kind kind;
    const struct ckpt_tree *tree; /* listed and judged */
    uint64_t nbytes;
    int64_t touched; /* seconds since the epoch: the latest in it; now, where an upload runs */
};

typedef int ckpt_remains_f(void *ctx, const struct ckpt_remains *remains, struct fsdp_err *err);

/* All there are. A nonzero return of fn ends it. nfs_age_s: as ckpt_tree_list takes it. */
int ckpt_remains_each(const struct ckpt_store_ops *ops, const char *root, int64_t nfs_age_s,
                      ckpt_remains_f *fn, void *ctx, struct fsdp_err *err);

#endif
