/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of values that are no texts, and which type has which. */
#include "text/chat/value/iterate.h"
#include "methods.h"

/* ---- dictionaries --------------------------------------------------------------------------- */

static int view_of(struct chat_run *r, struct chat_val *out, const struct chat_val *d,
                   enum chat_view_kind of)
{
    struct chat_view *view;

    FSDP_TRY(chat_new(r, &view, 1, sizeof *view));
    *view = (struct chat_view){of, d->dict};
    *out = (struct chat_val){.kind = CHAT_VIEW, .view = view};
    return FSDP_OK;
}

CHAT_BUILTIN(dict_keys)
{
    return view_of(r, out, &a[0], CHAT_KEYS);
}

CHAT_BUILTIN(dict_values)
{
    return view_of(r, out, &a[0], CHAT_VALUES);
}

CHAT_BUILTIN(dict_items)
{
    return view_of(r, out, &a[0], CHAT_ITEMS);
}

CHAT_BUILTIN(dict_get)
{
    const struct chat_val *v;

    FSDP_TRY(chat_check_hashable(r, &a[1]));
    v = chat_dict_get(a[0].dict, &a[1]);
    *out = v ? *v : chat_is_absent(&a[2]) ? chat_none() : a[2];
    return FSDP_OK;
}

CHAT_BUILTIN(dict_copy)
{
    FSDP_TRY(chat_dict_new(r, out, CHAT_DICT, a[0].dict->nelem));
    for (size_t i = 0; i < a[0].dict->nelem; i++)
        FSDP_TRY(chat_dict_set(r, out->dict, &a[0].dict->keys[i], &a[0].dict->values[i]));
    return FSDP_OK;
}

/* ---- lists ---------------------------------------------------------------------------------- */

CHAT_BUILTIN(list_count)
{
    chat_int n = 0;
    bool same;

    for (size_t i = 0; i < a[0].list->nelem; i++) {
        FSDP_TRY(chat_equal(r, &same, &a[0].list->at[i], &a[1]));
        n += same;
    }
    *out = chat_integer(n);
    return FSDP_OK;
}

CHAT_BUILTIN(list_index)
{
    bool same;

    for (size_t i = 0; i < a[0].list->nelem; i++) {
        FSDP_TRY(chat_equal(r, &same, &a[0].list->at[i], &a[1]));
        if (same) {
            *out = chat_integer((chat_int)i);
            return FSDP_OK;
        }
    }
    return chat_fail(r, "the value is not in the list");
}

CHAT_BUILTIN(list_copy)
{
    return chat_collect(r, out, &a[0]);
}

/* ---- numbers, cyclers ----------------------------------------------------------------------- */

CHAT_BUILTIN(int_bit_length)
{
    chat_int i = a[0].i < 0 ? -a[0].i : a[0].i, n = 0;

    for (; i; i >>= 1)
        n++;
    *out = chat_integer(n);
    return chat_step(r, 1);
}

CHAT_BUILTIN(float_is_integer)
{
    *out = chat_bool(a[0].f == __builtin_trunc(a[0].f) && __builtin_isfinite(a[0].f));
    return chat_step(r, 1);
}

CHAT_BUILTIN(cycler_next)
{
    struct chat_cycler *cycler = a[0].cycler;

    *out = cycler->items->at[cycler->at];
    cycler->at = (cycler->at + 1) % cycler->items->nelem;
    return chat_step(r, 1);
}

CHAT_BUILTIN(cycler_reset)
{
    a[0].cycler->at = 0;
    *out = chat_none();
    return chat_step(r, 1);
}

static const struct chat_builtin dict_methods[] = {
    {"get", dict_get, "/key default", 1}, {"items", dict_items, "", 0}, {"keys", dict_keys, "", 0},
    {"values", dict_values, "", 0},       {"copy", dict_copy, "", 0},   {0},
};
static const struct chat_builtin list_methods[] = {
    {"count", list_count, "/value", 1}, {"index", list_index, "/value", 1}, {0}};
static const struct chat_builtin list_copy_method[] = {{"copy", list_copy, "", 0}, {0}};
static const struct chat_builtin int_methods[] = {{"bit_length", int_bit_length, "", 0}, {0}};
static const struct chat_builtin float_methods[] = {{"is_integer", float_is_integer, "", 0}, {0}};
static const struct chat_builtin cycler_methods[] = {
    {"next", cycler_next, "", 0}, {"reset", cycler_reset, "", 0}, {0}};

static const struct {
    enum chat_kind kind;
    const struct chat_builtin *table;
} tables[] = {
    {CHAT_STR, chat_text_methods},   {CHAT_STR, chat_find_methods}, {CHAT_STR, chat_case_methods},
    {CHAT_STR, chat_format_methods}, {CHAT_DICT, dict_methods},     {CHAT_LIST, list_methods},
    {CHAT_TUPLE, list_methods},      {CHAT_LIST, list_copy_method}, {CHAT_INT, int_methods},
    {CHAT_BOOL, int_methods},        {CHAT_FLOAT, float_methods},   {CHAT_CYCLER, cycler_methods},
};

const struct chat_builtin *chat_method_find(const struct chat_val *of, const struct chat_str *name)
{
    const struct chat_builtin *found = NULL;

    for (size_t i = 0; !found && i < sizeof tables / sizeof *tables; i++)
        if (tables[i].kind == of->kind)
            found = chat_builtin_find(tables[i].table, name);
    return found;
}
