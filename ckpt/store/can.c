/* SPDX-License-Identifier: Apache-2.0 */
/* What a store can do: the questions that its callers may ask, so that none asks which store it is.
 */
#include "store.h"

bool ckpt_store_can_rename(const struct ckpt_store_ops *ops)
{
    return !ops->object_store;
}

bool ckpt_store_can_append(const struct ckpt_store_ops *ops)
{
    return !ops->object_store;
}

bool ckpt_store_has_whole_files(const struct ckpt_store_ops *ops)
{
    return ops->object_store;
}

bool ckpt_store_has_links(const struct ckpt_store_ops *ops)
{
    return !ops->object_store;
}

bool ckpt_store_has_uploads(const struct ckpt_store_ops *ops)
{
    return ops->object_store;
}

bool ckpt_store_is_far(const struct ckpt_store_ops *ops)
{
    return ops->object_store;
}

int ckpt_store_open_anew(struct ckpt_store_file **out, const struct ckpt_store_ops *ops,
                         const char *path, bool replace, struct fsdp_err *err)
{
    if (ops->object_store && replace)
        return ckpt_store_open(out, ops, path, CKPT_STORE_REPLACE, err);
    if (!ops->object_store)
        FSDP_TRY(ckpt_store_discard(ops, path, err));
    return ckpt_store_open(out, ops, path, CKPT_STORE_CREATE, err);
}

int ckpt_store_open_again(struct ckpt_store_file **out, const struct ckpt_store_ops *ops,
                          const char *path, bool replace, struct fsdp_err *err)
{
    if (ops->object_store && replace)
        return ckpt_store_open(out, ops, path, CKPT_STORE_REPLACE, err);
    int rc = ckpt_store_open(out, ops, path, CKPT_STORE_RESUME, err);
    return rc == FSDP_EUNSUPPORTED ? ckpt_store_open(out, ops, path, CKPT_STORE_CREATE, err) : rc;
}
