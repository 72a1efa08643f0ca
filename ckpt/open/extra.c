/* SPDX-License-Identifier: Apache-2.0 */
/* Small files next to the weights of an opened checkpoint. */
#include <string.h>

#include "source/format_ops.h"
#include "store/store.h"
#include "util/text.h"

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

int ckpt_extra_load(char **out, size_t *nbytes, const struct ckpt *ckpt, const char *name,
                    struct fsdp_err *err)
{
    const char *path = ckpt_extra_path(ckpt, name);

    *out = NULL;
    return path ? ckpt_extra_read(out, nbytes, path, CKPT_MAX_INDEX_NBYTES, err) : FSDP_OK;
}

int ckpt_extra_json(json_t **out, const struct ckpt *ckpt, const char *name, struct fsdp_err *err)
{
    char *data;
    size_t nbytes;

    *out = NULL;
    FSDP_TRY(ckpt_extra_load(&data, &nbytes, ckpt, name, err));
    const int rc =
        data ? ckpt_json_parse(out, data, nbytes, ckpt_extra_path(ckpt, name), err) : FSDP_OK;
    fsdp_free(data);
    return rc;
}

const char *ckpt_extra_path(const struct ckpt *ckpt, const char *name)
{
    for (int i = 0; i < ckpt->m.nextras; i++)
        if (!strcmp(ckpt_path_base(ckpt->m.extras[i].path), name))
            return ckpt->m.extras[i].full_path;
    return NULL;
}
