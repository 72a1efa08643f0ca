/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "diff_names.h"
#include "map.h"

static int rename_one(char **name, const struct ckpt_map *map, const char *path, bool optim,
                      struct fsdp_err *err)
{
    enum ckpt_map_rows rows = CKPT_MAP_ROWS_SAME;
    char *mapped = ckpt_map_tensor_name(map, *name, optim, &rows, err);

    if (!mapped)
        return FSDP_ENOMEM;
    int rc = FSDP_OK;
    if (rows != CKPT_MAP_ROWS_SAME)
        rc = fsdp_err_set(err, FSDP_EUNSUPPORTED,
                          "'%s': under this map '%s' has its rows in another order too; write it "
                          "anew first (ckpt-merge --map), then compare without the map",
                          path, *name);
    fsdp_free(*name);
    *name = mapped;
    return rc;
}

static int rename_all(struct ckpt_diff_names *names, const char *text, struct fsdp_err *err)
{
    struct ckpt_map map;

    FSDP_TRY(ckpt_map_create(&map, text, err));
    int rc = FSDP_OK;
    if (map.action != CKPT_MAP_RENAME)
        rc = fsdp_err_set(err, FSDP_EUNSUPPORTED,
                          "the map %s joins or splits tensors; write one of the two anew first "
                          "(ckpt-merge --map), then compare without the map",
                          text);
    for (int i = 0; rc == FSDP_OK && i < ckpt_ntensors(names->ckpt); i++)
        rc = rename_one(&names->mapped[i], &map, ckpt_path(names->ckpt),
                        ckpt_tensor_at(names->ckpt, i)->kind == FSDP_SLICE_OPTIM, err);
    ckpt_map_destroy(&map);
    return rc;
}

static int by_name(const void *a, const void *b, void *ctx)
{
    char *const *mapped = ctx;
    return strcmp(mapped[*(const int *)a], mapped[*(const int *)b]);
}

static int sort_names(struct ckpt_diff_names *names, struct fsdp_err *err)
{
    const int ntensors = ckpt_ntensors(names->ckpt);

    for (int i = 0; i < ntensors; i++)
        names->sorted[i] = i;
    qsort_r(names->sorted, (size_t)ntensors, sizeof *names->sorted, by_name, names->mapped);
    for (int i = 1; i < ntensors; i++)
        if (!by_name(&names->sorted[i - 1], &names->sorted[i], names->mapped))
            return fsdp_err_set(err, FSDP_EINVAL, "'%s': two tensors would be called '%s'",
                                ckpt_path(names->ckpt), names->mapped[names->sorted[i]]);
    return FSDP_OK;
}

int ckpt_diff_names_create(struct ckpt_diff_names *out, struct ckpt *ckpt,
                           const struct ckpt_select *select, struct fsdp_err *err)
{
    const int ntensors = ckpt_ntensors(ckpt);
    int rc = FSDP_ENOMEM;

    *out = (struct ckpt_diff_names){.ckpt = ckpt};
    if (!select->nmaps)
        return FSDP_OK;
    out->mapped = fsdp_alloc((size_t)ntensors, sizeof *out->mapped, "names", err);
    out->sorted = fsdp_alloc((size_t)ntensors, sizeof *out->sorted, "names", err);
    if (!out->mapped || !out->sorted)
        goto out;
    for (int i = 0; i < ntensors; i++)
        if (!(out->mapped[i] = fsdp_strdup(ckpt_tensor_at(ckpt, i)->tensor.name, err)))
            goto out;
    rc = FSDP_OK;
    for (int i = 0; rc == FSDP_OK && i < select->nmaps; i++)
        rc = rename_all(out, select->maps[i], err);
    if (rc == FSDP_OK)
        rc = sort_names(out, err);
out:
    if (rc)
        ckpt_diff_names_destroy(out);
    return rc;
}

void ckpt_diff_names_destroy(struct ckpt_diff_names *names)
{
    for (int i = 0; names->mapped && i < ckpt_ntensors(names->ckpt); i++)
        fsdp_free(names->mapped[i]);
    fsdp_free(names->mapped);
    fsdp_free(names->sorted);
    *names = (struct ckpt_diff_names){.ckpt = names->ckpt};
}

const char *ckpt_diff_name(const struct ckpt_diff_names *names, int tensor)
{
    return names->mapped ? names->mapped[tensor] : ckpt_tensor_at(names->ckpt, tensor)->tensor.name;
}

const struct ckpt_tensor *ckpt_diff_find(const struct ckpt_diff_names *names, const char *name)
{
    int low = 0, high = ckpt_ntensors(names->ckpt);

    if (!names->mapped)
        return ckpt_tensor_find(names->ckpt, name);
    while (low < high) {
        const int middle = low + (high - low) / 2;
        const int order = strcmp(name, names->mapped[names->sorted[middle]]);
        if (order == 0)
            return ckpt_tensor_at(names->ckpt, names->sorted[middle]);
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}
