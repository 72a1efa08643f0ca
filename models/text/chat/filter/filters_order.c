/* SPDX-License-Identifier: Apache-2.0 */
/* Filters that compare elements. */
#include "text/chat/builtin/arith.h"
#include "filters.h"
#include "text/chat/value/iterate.h"

static bool is_set(const struct chat_val *v)
{
    return !chat_is_absent(v) && chat_truth(v);
}

/* ---- sorting -------------------------------------------------------------------------------- */

struct sorted {
    struct chat_val item, key; /* key: a tuple of what is compared */
};

/* Merge sort, which is stable: sorts at[nelem], with room for as many in `room`. */
static int merge_sort(struct chat_run *r, struct sorted *at, struct sorted *room, size_t nelem,
                      bool reverse)
{
    const size_t half = nelem / 2;
    size_t i = 0, k = half, n = 0;
    int order;

    if (nelem < 2)
        return FSDP_OK;
    FSDP_TRY(merge_sort(r, at, room, half, reverse));
    FSDP_TRY(merge_sort(r, at + half, room, nelem - half, reverse));
    while (i < half && k < nelem) {
        FSDP_TRY(chat_order(r, &order, &at[i].key, &at[k].key, "<"));
        order = order == 2 ? 0 : order;
        room[n++] = (reverse ? order >= 0 : order <= 0) ? at[i++] : at[k++];
    }
    while (i < half)
        room[n++] = at[i++];
    memcpy(at, room, n * sizeof *at);
    return FSDP_OK;
}

static int sort_items(struct chat_run *r, struct sorted *at, size_t nelem, bool reverse)
{
    struct sorted *room;

    FSDP_TRY(chat_new(r, &room, nelem, sizeof *room));
    return merge_sort(r, at, room, nelem, reverse);
}

/* The key of one element: attribute may list several, apart by commas. */
static int key_of(struct chat_run *r, struct chat_val *out, const struct chat_val *item,
                  const struct chat_val *attribute, bool case_sensitive)
{
    const char *at, *end, *comma;
    struct chat_val part, path;

    FSDP_TRY(chat_list_new(r, out, CHAT_TUPLE, 1));
    if (attribute->kind != CHAT_STR) {
        FSDP_TRY(chat_attribute_path(r, &part, item, attribute, NULL));
        if (!case_sensitive)
            FSDP_TRY(chat_ignore_case(r, &part, &part));
        return chat_list_add(r, out->list, &part);
    }
    at = attribute->s->at;
    end = at + attribute->s->nbytes;
    for (;; at = comma + 1) {
        comma = memchr(at, ',', (size_t)(end - at));
        FSDP_TRY(chat_str_part(r, &path, attribute->s, at, (size_t)((comma ? comma : end) - at)));
        FSDP_TRY(chat_attribute_path(r, &part, item, &path, NULL));
        if (!case_sensitive)
            FSDP_TRY(chat_ignore_case(r, &part, &part));
        FSDP_TRY(chat_list_add(r, out->list, &part));
        if (!comma)
            return FSDP_OK;
    }
}

static int with_keys(struct chat_run *r, struct sorted **out, const struct chat_list *list,
                     const struct chat_val *attribute, bool case_sensitive)
{
    FSDP_TRY(chat_new(r, out, list->nelem, sizeof **out));
    for (size_t i = 0; i < list->nelem; i++) {
        (*out)[i].item = list->at[i];
        FSDP_TRY(key_of(r, &(*out)[i].key, &list->at[i], attribute, case_sensitive));
    }
    return FSDP_OK;
}

CHAT_BUILTIN(filter_sort)
{
    struct sorted *sorted;
    struct chat_val list;

    FSDP_TRY(chat_collect(r, &list, &a[0]));
    FSDP_TRY(with_keys(r, &sorted, list.list, &a[3], is_set(&a[2])));
    FSDP_TRY(sort_items(r, sorted, list.list->nelem, is_set(&a[1])));
    for (size_t i = 0; i < list.list->nelem; i++)
        list.list->at[i] = sorted[i].item;
    *out = list;
    return FSDP_OK;
}

CHAT_BUILTIN(filter_dictsort)
{
    const struct chat_dict *d = a[0].dict;
    const bool by_value = a[2].kind == CHAT_STR && chat_str_is(a[2].s, "value");
    struct sorted *sorted;

    if (a[0].kind == CHAT_UNDEF)
        return chat_undef_fail(r, &a[0]);
    if (a[0].kind != CHAT_DICT)
        return chat_fail(r, "'%s' object has no attribute 'items'", chat_type_name(&a[0]));
    if (!chat_is_absent(&a[2]) && !by_value &&
        !(a[2].kind == CHAT_STR && chat_str_is(a[2].s, "key")))
        return chat_fail(r, "dictsort goes by \"key\" or \"value\"");
    FSDP_TRY(chat_new(r, &sorted, d->nelem, sizeof *sorted));
    for (size_t i = 0; i < d->nelem; i++) {
        sorted[i].key = by_value ? d->values[i] : d->keys[i];
        if (!is_set(&a[1]))
            FSDP_TRY(chat_ignore_case(r, &sorted[i].key, &sorted[i].key));
        FSDP_TRY(chat_pair_new(r, &sorted[i].item, &d->keys[i], &d->values[i]));
    }
    FSDP_TRY(sort_items(r, sorted, d->nelem, is_set(&a[3])));
    FSDP_TRY(chat_list_new(r, out, CHAT_LIST, d->nelem));
    for (size_t i = 0; i < d->nelem; i++)
        FSDP_TRY(chat_list_add(r, out->list, &sorted[i].item));
    return FSDP_OK;
}

/* ---- groups --------------------------------------------------------------------------------- */

static int attribute_or(struct chat_run *r, struct chat_val *out, const struct chat_val *item,
                        const struct chat_val *path, const struct chat_val *otherwise)
{
    return chat_attribute_path(r, out, item, path, otherwise);
}

static int new_group(struct chat_run *r, struct chat_val *out, const struct chat_val *name)
{
    struct chat_val items;

    FSDP_TRY(chat_list_new(r, &items, CHAT_LIST, 0));
    FSDP_TRY(chat_pair_new(r, out, name, &items));
    out->list->is_group = true;
    return FSDP_OK;
}

CHAT_BUILTIN(filter_groupby)
{
    struct chat_val list, group = {0}, name;
    struct sorted *sorted;
    bool same = false;

    FSDP_TRY(chat_collect(r, &list, &a[0]));
    FSDP_TRY(chat_new(r, &sorted, list.list->nelem, sizeof *sorted));
    for (size_t i = 0; i < list.list->nelem; i++) {
        sorted[i].item = list.list->at[i];
        FSDP_TRY(attribute_or(r, &sorted[i].key, &sorted[i].item, &a[1], &a[2]));
        if (!is_set(&a[3]))
            FSDP_TRY(chat_ignore_case(r, &sorted[i].key, &sorted[i].key));
    }
    FSDP_TRY(sort_items(r, sorted, list.list->nelem, false));
    FSDP_TRY(chat_list_new(r, out, CHAT_LIST, 0));
    for (size_t i = 0; i < list.list->nelem; i++) {
        if (i)
            FSDP_TRY(chat_equal(r, &same, &sorted[i].key, &sorted[i - 1].key));
        if (!same) {
            FSDP_TRY(attribute_or(r, &name, &sorted[i].item, &a[1], &a[2]));
            FSDP_TRY(new_group(r, &group, &name));
            FSDP_TRY(chat_list_add(r, out->list, &group));
        }
        FSDP_TRY(chat_list_add(r, group.list->at[1].list, &sorted[i].item));
    }
    return FSDP_OK;
}

CHAT_BUILTIN(filter_unique)
{
    struct chat_val list, seen, key, kept;
    struct chat_iter *it;

    FSDP_TRY(chat_collect(r, &list, &a[0]));
    FSDP_TRY(chat_dict_new(r, &seen, CHAT_DICT, 0));
    FSDP_TRY(chat_list_new(r, &kept, CHAT_LIST, 0));
    for (size_t i = 0; i < list.list->nelem; i++) {
        FSDP_TRY(chat_attribute_path(r, &key, &list.list->at[i], &a[2], NULL));
        if (!is_set(&a[1]))
            FSDP_TRY(chat_ignore_case(r, &key, &key));
        FSDP_TRY(chat_check_hashable(r, &key));
        if (chat_dict_get(seen.dict, &key))
            continue;
        FSDP_TRY(chat_dict_set(r, seen.dict, &key, &key));
        FSDP_TRY(chat_list_add(r, kept.list, &list.list->at[i]));
    }
    FSDP_TRY(chat_iterate(r, &it, &kept));
    *out = (struct chat_val){.kind = CHAT_ITER, .iter = it};
    return FSDP_OK;
}

/* ---- extremes, sums ------------------------------------------------------------------------- */

static int find_extreme(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
                        int sign)
{
    struct chat_val list, best = {0}, key, name;
    int order;

    FSDP_TRY(chat_collect(r, &list, &a[0]));
    FSDP_TRY(chat_str_copy(r, &name, "the item", 8));
    if (!list.list->nelem)
        return chat_undef_new(r, out, NULL, &name, "is missing: the sequence is empty");
    for (size_t i = 0; i < list.list->nelem; i++) {
        FSDP_TRY(chat_attribute_path(r, &key, &list.list->at[i], &a[2], NULL));
        if (!is_set(&a[1]))
            FSDP_TRY(chat_ignore_case(r, &key, &key));
        if (i)
            FSDP_TRY(chat_order(r, &order, &key, &best, sign < 0 ? "<" : ">"));
        if (i && (order == 2 || order * sign <= 0))
            continue;
        best = key;
        *out = list.list->at[i];
    }
    return FSDP_OK;
}

CHAT_BUILTIN(filter_min)
{
    return find_extreme(r, out, a, -1);
}

CHAT_BUILTIN(filter_max)
{
    return find_extreme(r, out, a, 1);
}

CHAT_BUILTIN(filter_sum)
{
    struct chat_val sum = chat_is_absent(&a[2]) ? chat_integer(0) : a[2], item;
    struct chat_iter *it;
    bool more;

    if (sum.kind == CHAT_STR)
        return chat_fail(r, "sum() can't sum strings");
    FSDP_TRY(chat_iterate(r, &it, &a[0]));
    for (;;) {
        FSDP_TRY(chat_next(r, it, &item, &more));
        if (!more)
            break;
        FSDP_TRY(chat_attribute_path(r, &item, &item, &a[1], NULL));
        FSDP_TRY(chat_binary(r, &sum, CHAT_N_ADD, &sum, &item));
    }
    *out = sum;
    return FSDP_OK;
}

const struct chat_builtin chat_order_filters[] = {
    {"sort", filter_sort, "reverse case_sensitive attribute", 0},
    {"dictsort", filter_dictsort, "case_sensitive by reverse", 0},
    {"groupby", filter_groupby, "attribute default case_sensitive", 1},
    {"unique", filter_unique, "case_sensitive attribute", 0},
    {"min", filter_min, "case_sensitive attribute", 0},
    {"max", filter_max, "case_sensitive attribute", 0},
    {"sum", filter_sum, "attribute start", 0},
    {0},
};
