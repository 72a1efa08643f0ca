/* SPDX-License-Identifier: Apache-2.0 */
/* str.format and the operator %. */
#include "format.h"
#include "methods.h"
#include "text/chat/value/print.h"

/* ---- str.format ----------------------------------------------------------------------------- */

struct formatter {
    struct chat_run *r;
    struct chat_buf b;
    const struct chat_args *args;
    chat_int next; /* the argument of the next {}; -1: fields are numbered */
    bool markup;
};

/* The argument that a field begins with. */
static int first_value(struct formatter *f, struct chat_val *out, const char *at, size_t nbytes)
{
    chat_int i = 0;
    bool number = true;

    for (size_t k = 0; k < nbytes && k < 9; k++) {
        number &= at[k] >= '0' && at[k] <= '9';
        i = 10 * i + (at[k] - '0');
    }
    if (nbytes && number) {
        if (f->next > 0)
            return chat_fail(f->r, "cannot switch from automatic to manual field numbering");
        f->next = -1;
    } else if (!nbytes) {
        if (f->next < 0)
            return chat_fail(f->r, "cannot switch from manual to automatic field numbering");
        i = f->next++;
    } else {
        for (size_t k = 0; k < f->args->nkeywords; k++)
            if (f->args->keywords[k].name->nbytes == nbytes &&
                !memcmp(f->args->keywords[k].name->at, at, nbytes)) {
                *out = f->args->keywords[k].value;
                return FSDP_OK;
            }
        return chat_fail(f->r, "format() has no argument '%.*s'", nbytes < 60 ? (int)nbytes : 60,
                         at);
    }
    if (nbytes > 8 || i >= (chat_int)f->args->nelem)
        return chat_fail(f->r, "format() has no argument of this number");
    *out = f->args->at[i];
    return FSDP_OK;
}

/* One .name or [key] of a field. */
static int next_part(struct formatter *f, struct chat_val *v, const char **at, const char *end)
{
    const bool item = **at == '[';
    const char *begin = ++*at;
    struct chat_val key, of = *v;
    chat_int i = 0;
    bool number = true;

    while (*at < end && (item ? **at != ']' : **at != '.' && **at != '['))
        ++*at;
    if (*at == begin || (item && *at == end))
        return chat_fail(f->r, "format() has an empty or open attribute");
    FSDP_TRY(chat_str_copy(f->r, &key, begin, (size_t)(*at - begin)));
    if (!item)
        return f->r->hooks->attribute(f->r, v, &of, key.s);
    for (const char *c = begin; c < *at; c++) {
        number &= *c >= '0' && *c <= '9' && *at - begin < 18;
        i = number ? 10 * i + (*c - '0') : 0;
    }
    ++*at;
    key = number ? chat_integer(i) : key;
    return f->r->hooks->item(f->r, v, &of, &key);
}

static int field_value(struct formatter *f, struct chat_val *out, const char *at, const char *end)
{
    const char *begin = at;

    while (at < end && *at != '.' && *at != '[')
        at++;
    FSDP_TRY(first_value(f, out, begin, (size_t)(at - begin)));
    while (at < end)
        FSDP_TRY(next_part(f, out, &at, end));
    return FSDP_OK;
}

static int convert(struct formatter *f, struct chat_val *v, char how)
{
    struct chat_buf b = {0};

    if (how == 's')
        return chat_to_str(f->r, v, v);
    if (how != 'r')
        return chat_refuse(f->r, "the conversion !%c of format()",
                           how > ' ' && how < 127 ? how : '?');
    FSDP_TRY(chat_repr(f->r, &b, v));
    return chat_buf_str(f->r, v, &b);
}

/* In escaped text a value is escaped, too. */
static int add_value(struct formatter *f, const struct chat_val *v, const char *at, const char *end)
{
    struct chat_buf b = {0};
    struct chat_val text;

    if (!f->markup)
        return chat_format_value(f->r, &f->b, v, at, end);
    if (v->kind == CHAT_STR && v->s->markup)
        return at == end ? chat_buf_add(f->r, &f->b, v->s->at, v->s->nbytes)
                         : chat_fail(f->r, "a format specification of an escaped text");
    FSDP_TRY(chat_format_value(f->r, &b, v, at, end));
    FSDP_TRY(chat_buf_str(f->r, &text, &b));
    FSDP_TRY(chat_escape_html(f->r, &text, &text));
    return chat_buf_add(f->r, &f->b, text.s->at, text.s->nbytes);
}

/* {field!conversion:spec}, without the braces. */
static int add_field(struct formatter *f, const char *at, const char *end)
{
    const char *colon = memchr(at, ':', (size_t)(end - at)), *name_end = colon ? colon : end,
               *bang = memchr(at, '!', (size_t)(name_end - at));
    struct chat_val v;

    if (memchr(at, '{', (size_t)(end - at)))
        return chat_refuse(f->r, "a field in a field of format()");
    FSDP_TRY(field_value(f, &v, at, bang ? bang : name_end));
    if (bang && name_end != bang + 2)
        return chat_fail(f->r, "format() has a conversion that is no character");
    if (bang)
        FSDP_TRY(convert(f, &v, bang[1]));
    return add_value(f, &v, colon ? colon + 1 : end, end);
}

static int format_text(struct formatter *f, struct chat_val *out, const struct chat_str *s)
{
    const char *at = s->at, *const end = at + s->nbytes, *close;

    while (at < end) {
        if (*at != '{' && *at != '}') {
            FSDP_TRY(chat_buf_add(f->r, &f->b, at++, 1));
            continue;
        }
        if (at + 1 < end && at[1] == *at) {
            FSDP_TRY(chat_buf_add(f->r, &f->b, at, 1));
            at += 2;
            continue;
        }
        close = *at == '{' ? memchr(at, '}', (size_t)(end - at)) : NULL;
        if (!close)
            return chat_fail(f->r, "format() has a single '%c'", *at);
        FSDP_TRY(add_field(f, at + 1, close));
        at = close + 1;
    }
    FSDP_TRY(chat_step(f->r, s->nbytes >> 4));
    return chat_str_part(f->r, out, &(struct chat_str){.nbytes = 1, .markup = f->markup}, f->b.at,
                         f->b.nbytes);
}

CHAT_BUILTIN(text_format)
{
    struct formatter f = {.r = r, .args = args, .markup = a[0].s->markup};

    return format_text(&f, out, a[0].s);
}

CHAT_BUILTIN(text_format_map)
{
    struct chat_args named = {0};
    struct formatter f = {.r = r, .args = &named};

    f.markup = a[0].s->markup;
    if (a[1].kind != CHAT_DICT)
        return chat_fail(r, "format_map() needs a mapping");
    FSDP_TRY(chat_new(r, &named.keywords, a[1].dict->nelem, sizeof *named.keywords));
    for (size_t i = 0; i < a[1].dict->nelem; i++)
        if (a[1].dict->keys[i].kind == CHAT_STR)
            named.keywords[named.nkeywords++] =
                (struct chat_named){a[1].dict->keys[i].s, a[1].dict->values[i]};
    return format_text(&f, out, a[0].s);
}

const struct chat_builtin chat_format_methods[] = {
    {"format", text_format, NULL, 0}, {"format_map", text_format_map, "mapping", 1}, {0}};
