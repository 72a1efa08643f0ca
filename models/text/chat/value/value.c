/* SPDX-License-Identifier: Apache-2.0 */
/* Types, truth, texts and lists. */
#include "run.h"

const char *chat_type_name(const struct chat_val *v)
{
    static const char *const names[CHAT_NKINDS] = {
        [CHAT_MISSING] = "missing", [CHAT_UNDEF] = "Undefined",  [CHAT_NONE] = "NoneType",
        [CHAT_BOOL] = "bool",       [CHAT_INT] = "int",          [CHAT_FLOAT] = "float",
        [CHAT_STR] = "str",         [CHAT_LIST] = "list",        [CHAT_TUPLE] = "tuple",
        [CHAT_DICT] = "dict",       [CHAT_VIEW] = "dict_items",  [CHAT_RANGE] = "range",
        [CHAT_SPACE] = "Namespace", [CHAT_ITER] = "generator",   [CHAT_NATIVE] = "function",
        [CHAT_MACRO] = "Macro",     [CHAT_LOOP] = "LoopContext", [CHAT_CYCLER] = "Cycler",
    };
    if (v->kind == CHAT_STR && v->s->markup)
        return "Markup";
    return names[v->kind];
}

static bool range_has_any(const struct chat_range *range)
{
    return range->step > 0 ? range->first < range->end : range->first > range->end;
}

bool chat_truth(const struct chat_val *v)
{
    switch (v->kind) {
    case CHAT_MISSING:
    case CHAT_UNDEF:
    case CHAT_NONE:
        return false;
    case CHAT_BOOL:
    case CHAT_INT:
        return v->i != 0;
    case CHAT_FLOAT:
        return v->f != 0;
    case CHAT_STR:
        return v->s->nbytes > 0;
    case CHAT_LIST:
    case CHAT_TUPLE:
        return v->list->nelem > 0;
    case CHAT_DICT:
        return v->dict->nelem > 0;
    case CHAT_VIEW:
        return v->view->dict->nelem > 0;
    case CHAT_RANGE:
        return range_has_any(v->range);
    default:
        return true;
    }
}

/* ---- texts ---------------------------------------------------------------------------------- */

size_t chat_count_chars(const char *at, size_t nbytes)
{
    size_t nchars = 0;

    for (size_t i = 0; i < nbytes; i++)
        nchars += ((unsigned char)at[i] & 0xc0) != 0x80;
    return nchars;
}

int chat_str_keep(struct chat_run *r, struct chat_val *out, const char *at, size_t nbytes)
{
    struct chat_str *s;

    FSDP_TRY(chat_new(r, &s, 1, sizeof *s));
    *s = (struct chat_str){nbytes ? at : "", nbytes, chat_count_chars(at, nbytes), false};
    *out = chat_str_val(s);
    return chat_step(r, nbytes >> 8);
}

int chat_str_copy(struct chat_run *r, struct chat_val *out, const char *at, size_t nbytes)
{
    char *copy;

    FSDP_TRY(chat_new_bytes(r, &copy, nbytes));
    if (nbytes)
        memcpy(copy, at, nbytes);
    return chat_str_keep(r, out, copy, nbytes);
}

int chat_str_part(struct chat_run *r, struct chat_val *out, const struct chat_str *like,
                  const char *at, size_t nbytes)
{
    struct chat_str *s;

    FSDP_TRY(chat_new(r, &s, 1, sizeof *s));
    s->at = nbytes ? at : "";
    s->nbytes = nbytes;
    s->nchars = like->nchars == like->nbytes ? nbytes : chat_count_chars(at, nbytes);
    s->markup = like->markup;
    *out = chat_str_val(s);
    return chat_step(r, nbytes >> 8);
}

size_t chat_str_offset(const struct chat_str *s, size_t nchars)
{
    size_t at = 0;

    if (nchars >= s->nchars)
        return s->nbytes;
    if (s->nchars == s->nbytes)
        return nchars;
    for (; at < s->nbytes; at++)
        if (((unsigned char)s->at[at] & 0xc0) != 0x80 && nchars-- == 0)
            break;
    return at;
}

/* The order of UTF-8's bytes is that of code points. */
int chat_str_compare(const struct chat_str *a, const struct chat_str *b)
{
    const size_t nbytes = a->nbytes < b->nbytes ? a->nbytes : b->nbytes;
    const int order = nbytes ? memcmp(a->at, b->at, nbytes) : 0;

    return order ? (order > 0) - (order < 0) : (a->nbytes > b->nbytes) - (a->nbytes < b->nbytes);
}

bool chat_str_equal(const struct chat_str *a, const struct chat_str *b)
{
    return a->nbytes == b->nbytes && (!a->nbytes || !memcmp(a->at, b->at, a->nbytes));
}

const char *chat_find(const char *at, const char *end, const struct chat_str *what)
{
    if (!what->nbytes)
        return at;
    return memmem(at, (size_t)(end - at), what->at, what->nbytes);
}

/* ---- lists ---------------------------------------------------------------------------------- */

int chat_list_new(struct chat_run *r, struct chat_val *out, enum chat_kind kind, size_t max)
{
    struct chat_list *list;

    FSDP_TRY(chat_new(r, &list, 1, sizeof *list));
    if (max)
        FSDP_TRY(chat_new(r, &list->at, max, sizeof *list->at));
    list->max = max;
    *out = (struct chat_val){.kind = kind, .list = list};
    return chat_step(r, max >> 4);
}

int chat_list_add(struct chat_run *r, struct chat_list *list, const struct chat_val *v)
{
    if (list->nelem == list->max) {
        const size_t max = list->max < 4 ? 4 : 2 * list->max;
        struct chat_val *at;
        FSDP_TRY(chat_new(r, &at, max, sizeof *at));
        if (list->nelem)
            memcpy(at, list->at, list->nelem * sizeof *at);
        list->at = at;
        list->max = max;
    }
    list->at[list->nelem++] = *v;
    return FSDP_OK;
}

int chat_pair_new(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
                  const struct chat_val *b)
{
    FSDP_TRY(chat_list_new(r, out, CHAT_TUPLE, 2));
    FSDP_TRY(chat_list_add(r, out->list, a));
    return chat_list_add(r, out->list, b);
}

/* ---- undefined ------------------------------------------------------------------------------ */

int chat_undef_new(struct chat_run *r, struct chat_val *out, const struct chat_val *of,
                   const struct chat_val *name, const char *why)
{
    struct chat_undef *undef;

    FSDP_TRY(chat_new(r, &undef, 1, sizeof *undef));
    undef->of = of ? *of : (struct chat_val){.kind = CHAT_MISSING};
    undef->name = name ? *name : (struct chat_val){.kind = CHAT_MISSING};
    undef->why = why;
    *out = (struct chat_val){.kind = CHAT_UNDEF, .undef = undef};
    return FSDP_OK;
}

int chat_undef_fail(struct chat_run *r, const struct chat_val *v)
{
    const struct chat_undef *undef = v->undef;
    const char *type, *object;

    if (!undef)
        return chat_fail(r, "a value is undefined");
    const bool named = undef->name.kind == CHAT_STR;
    const int nbytes = named ? (int)(undef->name.s->nbytes < 200 ? undef->name.s->nbytes : 200) : 0;
    const char *name = named ? undef->name.s->at : "";
    if (undef->why)
        return chat_fail(r, "'%.*s' %s", nbytes, name, undef->why);
    if (undef->of.kind == CHAT_MISSING)
        return chat_fail(r, "'%.*s' is undefined", nbytes, name);
    type = undef->of.kind == CHAT_NONE ? "None" : chat_type_name(&undef->of);
    object = undef->of.kind == CHAT_NONE ? "" : " object";
    if (named)
        return chat_fail(r, "'%s%s' has no attribute '%.*s'", type, object, nbytes, name);
    if (undef->name.kind == CHAT_INT)
        return chat_fail(r, "%s%s has no element %lld", type, object, (long long)undef->name.i);
    return chat_fail(r, "%s%s has no such element", type, object);
}
