/* SPDX-License-Identifier: Apache-2.0 */
/* Filters that apply another filter or a test to each element: iterators, which work when they are
 * read. */
#include "filters.h"
#include "text/chat/value/iterate.h"

struct choice {
    const struct chat_builtin *builtin; /* NULL: the element's truth, or itself */
    const struct chat_str *unknown;     /* the name of a filter or test that there is not */
    struct chat_args args;
    struct chat_val path, otherwise; /* MISSING: the element itself; none */
    bool rejects;
};

/* The filter or test is looked for when the first element is there. */
static int apply_builtin(struct chat_run *r, struct chat_val *out, const struct choice *c,
                         const struct chat_val *v)
{
    if (c->unknown)
        return chat_refuse(r, "unknown filter or test '%.*s'",
                           c->unknown->nbytes < 60 ? (int)c->unknown->nbytes : 60, c->unknown->at);
    if (c->builtin)
        return chat_builtin_call(r, out, c->builtin, v, &c->args);
    *out = *v;
    return FSDP_OK;
}

static int next_mapped(struct chat_run *r, struct chat_iter *it, struct chat_val *out, bool *more)
{
    const struct choice *c = it->state;
    struct chat_val v;

    FSDP_TRY(chat_next(r, it->inner, &v, more));
    if (!*more)
        return FSDP_OK;
    FSDP_TRY(chat_attribute_path(r, &v, &v, &c->path, &c->otherwise));
    return apply_builtin(r, out, c, &v);
}

static int next_selected(struct chat_run *r, struct chat_iter *it, struct chat_val *out, bool *more)
{
    const struct choice *c = it->state;
    struct chat_val part, verdict;

    for (;;) {
        FSDP_TRY(chat_next(r, it->inner, out, more));
        if (!*more)
            return FSDP_OK;
        FSDP_TRY(chat_attribute_path(r, &part, out, &c->path, NULL));
        FSDP_TRY(apply_builtin(r, &verdict, c, &part));
        if (chat_truth(&verdict) != c->rejects)
            return FSDP_OK;
    }
}

static int new_choice(struct chat_run *r, struct chat_val *out, struct choice **choice,
                      int (*next)(struct chat_run *, struct chat_iter *, struct chat_val *, bool *),
                      const struct chat_val *over)
{
    struct chat_val empty = {.kind = CHAT_UNDEF};
    struct chat_iter *inner;

    FSDP_TRY(chat_new(r, choice, 1, sizeof **choice));
    FSDP_TRY(chat_iterate(r, &inner, chat_truth(over) ? over : &empty));
    FSDP_TRY(chat_iter_new(r, out, next, *choice));
    out->iter->inner = inner;
    return FSDP_OK;
}

/* The name at args[at], the rest of the arguments being its. */
static int take_builtin(struct chat_run *r, struct choice *c, const struct chat_args *args,
                        size_t at, const struct chat_builtin *(*find)(const struct chat_str *))
{
    const struct chat_str *name;

    if (at >= args->nelem)
        return FSDP_OK;
    FSDP_TRY(chat_want_str(r, &name, &args->at[at], "the name of a filter or test"));
    c->builtin = find(name);
    c->unknown = c->builtin ? NULL : name;
    c->args = *args;
    c->args.at += at + 1;
    c->args.nelem -= at + 1;
    return FSDP_OK;
}

CHAT_BUILTIN(filter_map)
{
    const struct chat_val *path = chat_keyword_get(args, "attribute"),
                          *otherwise = chat_keyword_get(args, "default");
    struct choice *c;

    FSDP_TRY(new_choice(r, out, &c, next_mapped, &a[0]));
    if (args->nelem)
        return take_builtin(r, c, args, 0, r->hooks->filter);
    if (!path)
        return chat_fail(r, "map needs a filter or an attribute");
    if (args->nkeywords != (otherwise ? 2 : 1))
        return chat_fail(r, "map takes attribute and default alone");
    c->path = *path;
    if (otherwise && otherwise->kind != CHAT_NONE)
        c->otherwise = *otherwise;
    return FSDP_OK;
}

static int select_by(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
                     const struct chat_args *args, bool rejects, bool by_attribute)
{
    struct choice *c;

    FSDP_TRY(new_choice(r, out, &c, next_selected, &a[0]));
    c->rejects = rejects;
    if (by_attribute && !args->nelem)
        return chat_fail(r, "the name of the attribute is missing");
    if (by_attribute)
        c->path = args->at[0];
    return take_builtin(r, c, args, by_attribute, r->hooks->test);
}

CHAT_BUILTIN(filter_select)
{
    return select_by(r, out, a, args, false, false);
}

CHAT_BUILTIN(filter_reject)
{
    return select_by(r, out, a, args, true, false);
}

CHAT_BUILTIN(filter_selectattr)
{
    return select_by(r, out, a, args, false, true);
}

CHAT_BUILTIN(filter_rejectattr)
{
    return select_by(r, out, a, args, true, true);
}

const struct chat_builtin chat_choice_filters[] = {
    {"map", filter_map, NULL, 0},
    {"select", filter_select, NULL, 0},
    {"reject", filter_reject, NULL, 0},
    {"selectattr", filter_selectattr, NULL, 0},
    {"rejectattr", filter_rejectattr, NULL, 0},
    {0},
};
