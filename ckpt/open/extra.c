/* SPDX-License-Identifier: Apache-2.0 */
/* Small files next to the weights of an opened checkpoint. */
#include <string.h>

#include "source/source.h"
#include "store/store.h"

int ckpt_nextra(const struct ckpt *ckpt)
{
    return ckpt->m.nextras;
}

const char *ckpt_extra_at(const struct ckpt *ckpt, int i)
{
    return i >= 0 && i < ckpt->m.nextras ? ckpt->m.extras[i].full_path : NULL;
}

int ckpt_extra_read(char **out, size_t *nbytes, const char *path, size_t max_nbytes,
                    struct fsdp_err *err)
{
    const struct ckpt_store_ops *ops;

    FSDP_TRY(ckpt_store_of(&ops, path, err));
    return ckpt_store_get(out, nbytes, ops, path, max_nbytes, err);
}

const char *ckpt_extra_path(const struct ckpt *ckpt, const char *name)
{
    for (int i = 0; i < ckpt->m.nextras; i++)
        if (!strcmp(ckpt_path_base(ckpt->m.extras[i].path), name))
            return ckpt->m.extras[i].full_path;
    return NULL;
}
