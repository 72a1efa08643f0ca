/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "dcp_names.h"

static bool starts_with(const struct ckpt_pk *value, const char *text)
{
    size_t len = strlen(text);
    return value && value->type == CKPT_PK_T_TEXT && value->nitems >= len &&
           !memcmp(value->u.text, text, len);
}

bool ckpt_dcp_is_contained(const struct ckpt_pk *path)
{
    return path && path->nitems > 1 && ckpt_pk_is_text(ckpt_pk_item(path, 0), "model");
}

/* Bytes of the stored name that path elements before `at` take, dots included. */
static size_t before(const struct ckpt_pk *path, size_t at)
{
    size_t nbytes = 0;
    char digits[24];
    for (size_t i = 0; i < at; i++) {
        const struct ckpt_pk *item = ckpt_pk_item(path, i);
        nbytes += item->type == CKPT_PK_T_TEXT
                      ? item->nitems
                      : (size_t)snprintf(digits, sizeof digits, "%lld", (long long)item->u.integer);
        nbytes++;
    }
    return nbytes;
}

/* The element of the path with which the optimizer's state begins; nitems if there is none. */
static size_t state_begin(const struct ckpt_pk *path)
{
    for (size_t i = 0; i < path->nitems; i++) {
        const struct ckpt_pk *item = ckpt_pk_item(path, i);
        bool last = i + 1 == path->nitems;
        if (i > 0 && !starts_with(ckpt_pk_item(path, i - 1), "optim"))
            continue;
        if (!last && ckpt_pk_is_text(item, "state"))
            return i;
        if (last && i > 0 && starts_with(item, "state."))
            return i;
    }
    return path->nitems;
}

/* A container whose tensors are never weights. */
static bool is_other(const struct ckpt_pk *path)
{
    static const char *const names[] = {"optim",     "train_state",  "lr_scheduler",
                                        "scheduler", "dataloader",   "data_loader",
                                        "rng",       "random_state", "extra"};
    for (size_t i = 0; path->nitems > 1 && i < sizeof names / sizeof names[0]; i++)
        for (size_t k = 0; k + 1 < path->nitems; k++)
            if (starts_with(ckpt_pk_item(path, k), names[i]))
                return true;
    return false;
}

/* Elements up to the container `model`, itself included; 0: there is none. */
static size_t model_end(const struct ckpt_pk *path)
{
    for (size_t k = 0; k + 1 < path->nitems; k++)
        if (ckpt_pk_is_text(ckpt_pk_item(path, k), "model"))
            return k + 1;
    return 0;
}

int ckpt_dcp_name(char **name, size_t *outer_nbytes, enum ckpt_role *role, const char *stored,
                  const struct ckpt_pk *path, bool contained, struct fsdp_err *err)
{
    size_t skip = 0, begin;
    *outer_nbytes = 0;
    *role = contained ? CKPT_ROLE_OTHER : CKPT_ROLE_MODEL;
    if (ckpt_dcp_is_contained(path)) {
        *role = CKPT_ROLE_MODEL;
        skip = before(path, 1);
    } else if (path && (begin = state_begin(path)) < path->nitems) {
        *role = CKPT_ROLE_OPTIM;
        skip = before(path, begin);
    } else if (path && is_other(path)) {
        *role = CKPT_ROLE_OTHER;
    } else if (path && (begin = model_end(path))) {
        *role = CKPT_ROLE_MODEL;
        *outer_nbytes = before(path, begin);
        if (*outer_nbytes >= strlen(stored))
            *outer_nbytes = 0;
    }
    if (skip >= strlen(stored))
        skip = 0; /* a path that does not spell the name */
    *name = fsdp_strdup(stored + skip, err);
    return *name ? FSDP_OK : FSDP_ENOMEM;
}

bool ckpt_dcp_is_flat_param(const char *stored)
{
    const char *last = strrchr(stored, '.');
    last = last ? last + 1 : stored;
    return !strcmp(last, "_flat_param") || !strcmp(last, "flat_param");
}
