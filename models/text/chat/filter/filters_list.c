/* SPDX-License-Identifier: Apache-2.0 */
/* Filters that take parts of sequences, or make some. */
#include "filters.h"
#include "text/chat/value/iterate.h"
#include "text/chat/builtin/methods.h"

CHAT_BUILTIN(filter_length)
{
    chat_int nelem;

    FSDP_TRY(chat_length(r, &nelem, &a[0]));
    if (nelem < 0)
        return chat_fail(r, "object of type '%s' has no len()", chat_type_name(&a[0]));
    *out = chat_integer(nelem);
    return FSDP_OK;
}

CHAT_BUILTIN(filter_list)
{
    return chat_collect(r, out, &a[0]);
}

static int no_item(struct chat_run *r, struct chat_val *out, const char *why)
{
    struct chat_val name;

    FSDP_TRY(chat_str_copy(r, &name, "the item", 8));
    return chat_undef_new(r, out, NULL, &name, why);
}

CHAT_BUILTIN(filter_first)
{
    struct chat_iter *it;
    bool more;

    FSDP_TRY(chat_iterate(r, &it, &a[0]));
    FSDP_TRY(chat_next(r, it, out, &more));
    return more ? FSDP_OK : no_item(r, out, "is missing: the sequence is empty");
}

static bool can_reverse(const struct chat_val *v)
{
    return chat_can_iterate(v) && v->kind != CHAT_ITER && v->kind != CHAT_UNDEF;
}

CHAT_BUILTIN(filter_last)
{
    struct chat_val list;

    if (a[0].kind != CHAT_UNDEF && !can_reverse(&a[0]))
        return chat_fail(r, "'%s' object is not reversible", chat_type_name(&a[0]));
    FSDP_TRY(chat_collect(r, &list, &a[0]));
    if (!list.list->nelem)
        return no_item(r, out, "is missing: the sequence is empty");
    *out = list.list->at[list.list->nelem - 1];
    return FSDP_OK;
}

CHAT_BUILTIN(filter_reverse)
{
    struct chat_val list, none[3] = {chat_none(), chat_none(), chat_integer(-1)};
    struct chat_iter *it;
    struct chat_buf b = {0};

    (void)none;
    FSDP_TRY(chat_collect(r, &list, &a[0]));
    for (size_t i = 0; i < list.list->nelem / 2; i++) {
        const struct chat_val v = list.list->at[i];
        list.list->at[i] = list.list->at[list.list->nelem - 1 - i];
        list.list->at[list.list->nelem - 1 - i] = v;
    }
    if (a[0].kind == CHAT_STR) {
        for (size_t i = 0; i < list.list->nelem; i++)
            FSDP_TRY(chat_buf_add(r, &b, list.list->at[i].s->at, list.list->at[i].s->nbytes));
        return chat_buf_str(r, out, &b);
    }
    *out = list;
    if (a[0].kind == CHAT_ITER) /* a list of its own, not an iterator */
        return FSDP_OK;
    FSDP_TRY(chat_iterate(r, &it, &list));
    *out = (struct chat_val){.kind = CHAT_ITER, .iter = it};
    return FSDP_OK;
}

/* ---- items, groups of a number -------------------------------------------------------------- */

CHAT_BUILTIN(filter_items)
{
    struct chat_view *view;
    struct chat_val v = a[0];
    struct chat_iter *it;

    if (a[0].kind != CHAT_UNDEF) {
        if (a[0].kind != CHAT_DICT)
            return chat_fail(r, "can only get item pairs from a mapping");
        FSDP_TRY(chat_new(r, &view, 1, sizeof *view));
        *view = (struct chat_view){CHAT_ITEMS, a[0].dict};
        v = (struct chat_val){.kind = CHAT_VIEW, .view = view};
    }
    FSDP_TRY(chat_iterate(r, &it, &v));
    *out = (struct chat_val){.kind = CHAT_ITER, .iter = it};
    return FSDP_OK;
}

/* A list of lists as an iterator. */
static int iterate_list(struct chat_run *r, struct chat_val *out, const struct chat_val *list)
{
    struct chat_iter *it;

    FSDP_TRY(chat_iterate(r, &it, list));
    *out = (struct chat_val){.kind = CHAT_ITER, .iter = it};
    return FSDP_OK;
}

CHAT_BUILTIN(filter_batch)
{
    const bool fills = !chat_is_absent(&a[2]) && a[2].kind != CHAT_NONE;
    struct chat_val list, batches, batch = {0};
    size_t size;

    FSDP_TRY(chat_want_count(r, &size, &a[1], "batch"));
    FSDP_TRY(chat_collect(r, &list, &a[0]));
    FSDP_TRY(chat_list_new(r, &batches, CHAT_LIST, 0));
    for (size_t i = 0; i < list.list->nelem; i++) {
        if (!batch.kind || batch.list->nelem == size) {
            FSDP_TRY(chat_list_new(r, &batch, CHAT_LIST, 0));
            FSDP_TRY(chat_list_add(r, batches.list, &batch));
        }
        FSDP_TRY(chat_list_add(r, batch.list, &list.list->at[i]));
    }
    while (fills && batch.kind && batch.list->nelem < size) {
        FSDP_TRY(chat_step(r, 1));
        FSDP_TRY(chat_list_add(r, batch.list, &a[2]));
    }
    return iterate_list(r, out, &batches);
}

CHAT_BUILTIN(filter_slice)
{
    const bool fills = !chat_is_absent(&a[2]) && a[2].kind != CHAT_NONE;
    struct chat_val list, slices, slice;
    size_t n, at = 0;

    FSDP_TRY(chat_want_count(r, &n, &a[1], "slice"));
    FSDP_TRY(chat_collect(r, &list, &a[0]));
    if (!n)
        return chat_fail(r, "integer division or modulo by zero");
    FSDP_TRY(chat_list_new(r, &slices, CHAT_LIST, 0));
    for (size_t i = 0; i < n; i++) {
        const bool longer = i < list.list->nelem % n;
        const size_t nelem = list.list->nelem / n + longer;
        FSDP_TRY(chat_step(r, 1));
        FSDP_TRY(chat_list_new(r, &slice, CHAT_LIST, nelem));
        for (size_t k = 0; k < nelem; k++)
            FSDP_TRY(chat_list_add(r, slice.list, &list.list->at[at++]));
        if (fills && !longer)
            FSDP_TRY(chat_list_add(r, slice.list, &a[2]));
        FSDP_TRY(chat_list_add(r, slices.list, &slice));
    }
    return iterate_list(r, out, &slices);
}

const struct chat_builtin chat_list_filters[] = {
    {"length", filter_length, "", 0},
    {"count", filter_length, "", 0},
    {"list", filter_list, "", 0},
    {"first", filter_first, "", 0},
    {"last", filter_last, "", 0},
    {"reverse", filter_reverse, "", 0},
    {"items", filter_items, "", 0},
    {"batch", filter_batch, "linecount fill_with", 1},
    {"slice", filter_slice, "slices fill_with", 1},
    {0},
};
