/* SPDX-License-Identifier: Apache-2.0 */
/* Which folders are finished checkpoints, and which of a run is the newest. */
#include <stdlib.h>
#include <string.h>

#include "native.h"

int ckpt_is_published(bool *out, const struct ckpt_store_ops *ops, const char *folder,
                      struct fsdp_err *err)
{
    struct ckpt_store_stat st;
    struct fsdp_err why = FSDP_ERR_INIT;
    char *path = ckpt_path_join(folder, CKPT_MANIFEST_NAME, err);
    if (!path)
        return FSDP_ENOMEM;
    int rc = ckpt_store_stat(&st, ops, path, &why);
    *out = rc == FSDP_OK && !st.is_folder;
    fsdp_free(path);
    return rc == FSDP_OK || rc == FSDP_ENOTFOUND ? FSDP_OK : fsdp_err_pass(err, rc, &why);
}

int64_t ckpt_step_of_name(const char *name)
{
    static const char prefix[] = "step-";
    if (strncmp(name, prefix, sizeof prefix - 1))
        return -1;
    name += sizeof prefix - 1;
    size_t ndigits = strspn(name, "0123456789");
    if (ndigits < 8 || ndigits > 18 || name[ndigits])
        return -1;
    return (int64_t)strtoll(name, NULL, 10);
}

static int compare_steps(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

int ckpt_steps(int64_t **out, int *nsteps, const char *root, struct fsdp_err *err)
{
    const struct ckpt_store_ops *ops;
    struct ckpt_names names;

    *nsteps = 0;
    FSDP_TRY(ckpt_store_of(&ops, root, err));
    FSDP_TRY(ckpt_store_names(&names, ops, root, err));
    if (!(*out = fsdp_alloc((size_t)names.nnames, sizeof **out, "steps", err))) {
        ckpt_names_free(&names);
        return FSDP_ENOMEM;
    }
    for (int i = 0; i < names.nnames; i++)
        if (ckpt_step_of_name(names.names[i]) >= 0)
            (*out)[(*nsteps)++] = ckpt_step_of_name(names.names[i]);
    qsort(*out, (size_t)*nsteps, sizeof **out, compare_steps);
    ckpt_names_free(&names);
    return FSDP_OK;
}

int ckpt_step_path(char **out, bool *finished, const char *root, int64_t step, struct fsdp_err *err)
{
    const struct ckpt_store_ops *ops;
    FSDP_TRY(ckpt_store_of(&ops, root, err));
    *out = fsdp_sprintf(err, "%s/step-%08lld", root, (long long)step);
    return *out ? ckpt_is_published(finished, ops, *out, err) : FSDP_ENOMEM;
}

int ckpt_latest(char *out, size_t out_nbytes, const char *root, struct fsdp_err *err)
{
    const struct ckpt_store_ops *ops;
    struct ckpt_names names;
    int64_t newest = -1;
    int rc = FSDP_OK;

    FSDP_TRY(ckpt_store_of(&ops, root, err));
    FSDP_TRY(ckpt_store_names(&names, ops, root, err));
    char *best = NULL;
    for (int i = 0; rc == FSDP_OK && i < names.nnames; i++) {
        int64_t step = ckpt_step_of_name(names.names[i]);
        bool published = false;
        if (step <= newest)
            continue;
        char *path = ckpt_path_join(root, names.names[i], err);
        rc = path ? ckpt_is_published(&published, ops, path, err) : FSDP_ENOMEM;
        if (published) {
            newest = step;
            fsdp_free(best);
            best = path;
        } else {
            fsdp_free(path);
        }
    }
    if (rc)
        goto out;
    if (!best)
        rc = fsdp_err_set(err, FSDP_ENOTFOUND, "'%s' holds no finished checkpoint", root);
    else if (strlen(best) >= out_nbytes)
        rc = fsdp_err_set(err, FSDP_EINVAL, "'%s': path too long", best);
    else
        strcpy(out, best);
out:
    fsdp_free(best);
    ckpt_names_free(&names);
    return rc;
}
