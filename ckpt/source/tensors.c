/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of an opened checkpoint by name, and those that cannot be read. */
#include <stdlib.h>
#include <string.h>

#include "source.h"

static int compare_alias(const void *key, const void *alias)
{
    return strcmp(key, ((const struct ckpt_alias *)alias)->name);
}

static int compare_contained(const void *a, const void *b, void *ctx)
{
    const struct ckpt_tensor *tensors = ctx;
    int x = *(const int *)a, y = *(const int *)b;
    int order = strcmp(ckpt_own_name(&tensors[x]), ckpt_own_name(&tensors[y]));
    return order ? order : x < y ? -1 : x > y;
}

int ckpt_contained_find(struct ckpt *ckpt, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &ckpt->m.layout;
    for (int pass = 0; pass < 2; pass++) {
        ckpt->ncontained = 0;
        for (int i = 0; i < layout->ntensors; i++) {
            const struct ckpt_tensor *t = &layout->tensors[i];
            if (t->role != CKPT_ROLE_MODEL || !t->outer_nbytes)
                continue;
            if (pass)
                ckpt->contained[ckpt->ncontained] = i;
            ckpt->ncontained++;
        }
        size_t count = (size_t)ckpt->ncontained;
        if (!count)
            return FSDP_OK;
        if (!pass && !(ckpt->contained = fsdp_alloc(count, sizeof(int), "tensor names", err)))
            return FSDP_ENOMEM;
    }
    qsort_r(ckpt->contained, (size_t)ckpt->ncontained, sizeof(int), compare_contained,
            layout->tensors);
    return FSDP_OK;
}

/* The first weight of that name within containers around `model`. */
static int find_contained(const struct ckpt *ckpt, const char *name)
{
    const struct ckpt_tensor *tensors = ckpt->m.layout.tensors;
    int low = 0, high = ckpt->ncontained;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (strcmp(ckpt_own_name(&tensors[ckpt->contained[mid]]), name) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    bool found =
        low < ckpt->ncontained && !strcmp(ckpt_own_name(&tensors[ckpt->contained[low]]), name);
    return found ? ckpt->contained[low] : -1;
}

int ckpt_unread_add(struct ckpt *ckpt, const char *name, const char *stored, enum ckpt_role role,
                    const char *why, struct fsdp_err *err)
{
    struct ckpt_unread *grown =
        fsdp_alloc_grow(ckpt->unread, (size_t)ckpt->nunread, &ckpt->max_unread, sizeof *grown,
                        "unreadable tensors", err);
    if (!grown)
        return FSDP_ENOMEM;
    ckpt->unread = grown;
    struct ckpt_unread *mine = &grown[ckpt->nunread++];
    *mine = (struct ckpt_unread){.why = fsdp_strdup(why, err)};
    mine->tensor.role = role;
    mine->tensor.kind = role == CKPT_ROLE_MODEL ? FSDP_SLICE_MODEL : FSDP_SLICE_OPTIM;
    mine->tensor.tensor.name = fsdp_strdup(name, err);
    mine->tensor.stored = fsdp_strdup(stored, err);
    if (!mine->tensor.tensor.name || !mine->tensor.stored || !mine->why)
        return FSDP_ENOMEM;
    return FSDP_OK;
}

void ckpt_warn_unread(const struct ckpt *ckpt)
{
    for (int i = 0; i < ckpt->nunread; i++)
        fsdp_log(FSDP_LOG_WARN, "%s", ckpt->unread[i].why);
}

void ckpt_warn_lacks(const struct ckpt *ckpt)
{
    if (ckpt->lacks)
        fsdp_log(FSDP_LOG_WARN, "%s", ckpt->lacks);
}

const char *ckpt_unread_why(const struct ckpt *ckpt, const char *name)
{
    for (int i = 0; i < ckpt->nunread; i++)
        if (!strcmp(ckpt->unread[i].tensor.tensor.name, name))
            return ckpt->unread[i].why;
    return NULL;
}

int ckpt_tensor_index(const struct ckpt *ckpt, const char *name)
{
    int at = ckpt_layout_find(&ckpt->m.layout, name);
    if (at < 0 || ckpt->m.layout.tensors[at].role != CKPT_ROLE_MODEL) {
        int contained = find_contained(ckpt, name);
        at = contained < 0 ? at : contained;
    }
    if (at >= 0 || !ckpt->m.naliases)
        return at;
    const struct ckpt_alias *alias =
        bsearch(name, ckpt->m.aliases, (size_t)ckpt->m.naliases, sizeof *alias, compare_alias);
    return alias ? ckpt_layout_find(&ckpt->m.layout, alias->target) : -1;
}

const struct ckpt_tensor *ckpt_tensor_at(const struct ckpt *ckpt, int i)
{
    return i >= 0 && i < ckpt->m.layout.ntensors ? &ckpt->m.layout.tensors[i] : NULL;
}

const struct ckpt_tensor *ckpt_tensor_find(const struct ckpt *ckpt, const char *name)
{
    return ckpt_tensor_at(ckpt, ckpt_tensor_index(ckpt, name));
}

int ckpt_alias_add(struct ckpt *ckpt, const char *name, const char *stored, struct fsdp_err *err)
{
    struct ckpt_manifest *m = &ckpt->m;
    const size_t count = (size_t)m->naliases;
    struct ckpt_alias *grown = fsdp_alloc(count + 1, sizeof *grown, "aliases", err);
    struct ckpt_alias mine = {fsdp_strdup(name, err), fsdp_strdup(stored, err)};
    size_t at = 0;

    if (!grown || !mine.name || !mine.target) {
        fsdp_free((char *)(uintptr_t)mine.name);
        fsdp_free((char *)(uintptr_t)mine.target);
        fsdp_free(grown);
        return FSDP_ENOMEM;
    }
    while (at < count && strcmp(m->aliases[at].name, name) < 0)
        at++;
    if (count) {
        memcpy(grown, m->aliases, at * sizeof *grown);
        memcpy(&grown[at + 1], &m->aliases[at], (count - at) * sizeof *grown);
    }
    grown[at] = mine;
    fsdp_free(m->aliases);
    m->aliases = grown;
    m->naliases++;
    return FSDP_OK;
}
