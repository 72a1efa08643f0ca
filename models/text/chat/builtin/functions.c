/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that every template has. */
#include "functions.h"
#include "text/chat/value/iterate.h"
#include "text/chat/value/print.h"

static int want_bound(struct chat_run *r, chat_int *out, const struct chat_val *v)
{
    const chat_int most = (chat_int)1 << 62;

    FSDP_TRY(chat_want_int(r, out, v, "range()"));
    if (*out > most || *out < -most)
        return chat_refuse(r, "range() of numbers beyond 2^62");
    return FSDP_OK;
}

CHAT_BUILTIN(function_range)
{
    struct chat_range range = {0, 0, 1}, *copy;

    FSDP_TRY(want_bound(r, &range.end, &a[1]));
    if (!chat_is_absent(&a[2])) {
        range.first = range.end;
        FSDP_TRY(want_bound(r, &range.end, &a[2]));
    }
    if (!chat_is_absent(&a[3]))
        FSDP_TRY(want_bound(r, &range.step, &a[3]));
    if (!range.step)
        return chat_fail(r, "range() arg 3 must not be zero");
    if (chat_range_length(&range) > CHAT_MAX_RANGE)
        return chat_fail(r, "range() of more than %d elements", CHAT_MAX_RANGE);
    FSDP_TRY(chat_new(r, &copy, 1, sizeof *copy));
    *copy = range;
    *out = (struct chat_val){.kind = CHAT_RANGE, .range = copy};
    return FSDP_OK;
}

/* Adds a mapping's pairs, or an iterable's. */
static int add_pairs(struct chat_run *r, struct chat_dict *d, const struct chat_val *from)
{
    struct chat_iter *it;
    struct chat_val item, pair;
    bool more;

    for (size_t i = 0; from->kind == CHAT_DICT && i < from->dict->nelem; i++)
        FSDP_TRY(chat_dict_set(r, d, &from->dict->keys[i], &from->dict->values[i]));
    if (from->kind == CHAT_DICT)
        return FSDP_OK;
    FSDP_TRY(chat_iterate(r, &it, from));
    for (;;) {
        FSDP_TRY(chat_next(r, it, &item, &more));
        if (!more)
            return FSDP_OK;
        FSDP_TRY(chat_collect(r, &pair, &item));
        if (pair.list->nelem != 2)
            return chat_fail(r, "a dictionary is made of pairs");
        FSDP_TRY(chat_check_hashable(r, &pair.list->at[0]));
        FSDP_TRY(chat_dict_set(r, d, &pair.list->at[0], &pair.list->at[1]));
    }
}

static int new_mapping(struct chat_run *r, struct chat_val *out, enum chat_kind kind,
                       const struct chat_args *args)
{
    FSDP_TRY(chat_dict_new(r, out, kind, args->nkeywords));
    if (args->nelem > 1)
        return chat_fail(r, "dict expected at most 1 argument, got %zu", args->nelem);
    if (args->nelem)
        FSDP_TRY(add_pairs(r, out->dict, &args->at[0]));
    for (size_t i = 0; i < args->nkeywords; i++) {
        const struct chat_val key = chat_str_val(args->keywords[i].name);
        FSDP_TRY(chat_dict_set(r, out->dict, &key, &args->keywords[i].value));
    }
    return FSDP_OK;
}

CHAT_BUILTIN(function_dict)
{
    (void)a;
    return new_mapping(r, out, CHAT_DICT, args);
}

CHAT_BUILTIN(function_namespace)
{
    (void)a;
    FSDP_TRY(new_mapping(r, out, CHAT_SPACE, args));
    for (size_t i = 0; i < out->dict->nelem; i++) {
        const struct chat_val *key = &out->dict->keys[i];
        if (key->kind == CHAT_STR && key->s->nbytes && key->s->at[0] == '_')
            return chat_fail(r, "a namespace has no attributes that begin with an underscore");
    }
    return FSDP_OK;
}

/* The template's own refusal. */
CHAT_BUILTIN(function_raise_exception)
{
    struct chat_val text;

    FSDP_TRY(chat_to_str(r, &text, &a[1]));
    return chat_fail(r, "%.*s", text.s->nbytes < 800 ? (int)text.s->nbytes : 800, text.s->at);
}

CHAT_BUILTIN(function_strftime_now)
{
    const struct chat_str *format;

    FSDP_TRY(chat_want_str(r, &format, &a[1], "strftime_now()"));
    return chat_strftime(r, out, format);
}

/* ---- objects -------------------------------------------------------------------------------- */

static int new_cycler(struct chat_run *r, struct chat_val *out, const struct chat_args *args)
{
    struct chat_cycler *cycler;
    struct chat_val items;

    FSDP_TRY(chat_new(r, &cycler, 1, sizeof *cycler));
    FSDP_TRY(chat_list_new(r, &items, CHAT_LIST, args->nelem));
    for (size_t i = 0; i < args->nelem; i++)
        FSDP_TRY(chat_list_add(r, items.list, &args->at[i]));
    cycler->items = items.list;
    *out = (struct chat_val){.kind = CHAT_CYCLER, .cycler = cycler};
    return FSDP_OK;
}

CHAT_BUILTIN(function_cycler)
{
    (void)a;
    if (!args->nelem)
        return chat_fail(r, "at least one item has to be provided");
    return new_cycler(r, out, args);
}

/* Nothing at the first call, then the text between. */
CHAT_BUILTIN(joiner_call)
{
    struct chat_cycler *joiner = a[0].cycler;

    if (!joiner->at++)
        return chat_str_copy(r, out, "", 0);
    if (joiner->items->nelem)
        *out = joiner->items->at[0];
    else
        FSDP_TRY(chat_str_copy(r, out, ", ", 2));
    return FSDP_OK;
}

CHAT_BUILTIN(function_joiner)
{
    static const struct chat_builtin call = {"joiner", joiner_call, "", 0};
    struct chat_args between = {(struct chat_val *)(uintptr_t)&a[1], !chat_is_absent(&a[1]), NULL,
                                0};
    struct chat_val joiner;

    FSDP_TRY(new_cycler(r, &joiner, &between));
    return chat_native_new(r, out, &call, &joiner);
}

static const struct chat_builtin functions[] = {
    {"range", function_range, "start stop step", 1},
    {"dict", function_dict, NULL, 0},
    {"namespace", function_namespace, NULL, 0},
    {"raise_exception", function_raise_exception, "message", 1},
    {"strftime_now", function_strftime_now, "format", 1},
    {"cycler", function_cycler, NULL, 0},
    {"joiner", function_joiner, "sep", 0},
    {0},
};

const struct chat_builtin *chat_function_find(const struct chat_str *name)
{
    return chat_builtin_find(functions, name);
}
