/* SPDX-License-Identifier: Apache-2.0 */
/* `text % values`. */
#include "format.h"
#include "methods.h"
#include "text/chat/value/number.h"
#include "text/chat/value/print.h"

struct percent {
    struct chat_run *r;
    struct chat_buf b;
    const struct chat_val *values;
    size_t next;
    bool named, markup; /* markup: values are escaped */
};

static int next_value(struct percent *p, struct chat_val *out)
{
    const bool many = p->values->kind == CHAT_TUPLE;

    if (p->next >= (many ? p->values->list->nelem : 1))
        return chat_fail(p->r, "not enough arguments for format string");
    *out = many ? p->values->list->at[p->next] : *p->values;
    p->next++;
    return FSDP_OK;
}

/* The value of %(name)s; *at is behind the opening parenthesis. */
static int named_value(struct percent *p, struct chat_val *out, const char **at, const char *end)
{
    const char *close = memchr(*at, ')', (size_t)(end - *at));
    const struct chat_val *v;
    struct chat_val key;

    if (!close || p->values->kind != CHAT_DICT)
        return chat_fail(p->r, "format requires a mapping");
    FSDP_TRY(chat_str_copy(p->r, &key, *at, (size_t)(close - *at)));
    if (!(v = chat_dict_get(p->values->dict, &key)))
        return chat_fail(p->r, "the mapping has no '%.*s'",
                         key.s->nbytes < 60 ? (int)key.s->nbytes : 60, key.s->at);
    *out = *v;
    *at = close + 1;
    p->named = true;
    return FSDP_OK;
}

static int read_count(struct percent *p, size_t *out, const char **at, const char *end)
{
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at)
        if ((*out = 10 * *out + (size_t)(**at - '0')) > 100000)
            return chat_fail(p->r, "a width or precision is too large");
    return FSDP_OK;
}

static int convert_value(struct percent *p, struct chat_val *v, char type)
{
    struct chat_buf b = {0};
    chat_int i;

    if (type == 'r' || type == 'a') {
        FSDP_TRY(chat_repr(p->r, &b, v));
        FSDP_TRY(chat_buf_str(p->r, v, &b));
    }
    if (strchr("ras", type))
        return p->markup ? chat_escape_html(p->r, v, v) : chat_to_str(p->r, v, v);
    if (!chat_is_number(v))
        return chat_fail(p->r, "%%%c format: a number is required, not %s", type,
                         chat_type_name(v));
    if (!strchr("dxXo", type) || v->kind != CHAT_FLOAT) {
        *v = v->kind == CHAT_BOOL ? chat_integer(v->i) : *v;
        return FSDP_OK;
    }
    if (type != 'd' || !chat_float_to_int(&i, v->f))
        return chat_fail(p->r, "%%%c format: an integer is required, not float", type);
    *v = chat_integer(i);
    return FSDP_OK;
}

/* *at is behind the percent sign. */
static int add_conversion(struct percent *p, const char **at, const char *end)
{
    struct chat_spec spec = {.fill = " ", .nfill = 1, .align = '>'};
    struct chat_val v = {0};
    bool left = false;

    if (*at < end && **at == '(' && ++*at)
        FSDP_TRY(named_value(p, &v, at, end));
    for (; *at < end && **at && strchr("-+ #0", **at); ++*at) {
        left |= **at == '-';
        spec.zero |= **at == '0';
        spec.alternate |= **at == '#';
        spec.sign = **at == '+' || (**at == ' ' && !spec.sign) ? **at : spec.sign;
    }
    FSDP_TRY(read_count(p, &spec.width, at, end));
    if (*at < end && **at == '.' && ++*at) {
        spec.has_precision = true;
        FSDP_TRY(read_count(p, &spec.precision, at, end));
    }
    if (*at == end || !**at || !strchr("sradiuxXoeEfFgG%", **at) || spec.precision > 1000)
        return chat_refuse(p->r, "a conversion of %% that is not supported");
    spec.type = **at == 'i' || **at == 'u' ? 'd' : **at;
    ++*at;
    if (spec.type == '%')
        return chat_buf_puts(p->r, &p->b, "%");
    if (chat_is_absent(&v))
        FSDP_TRY(next_value(p, &v));
    FSDP_TRY(convert_value(p, &v, spec.type));
    const bool text = v.kind == CHAT_STR;
    if (left || (spec.zero && !text))
        spec.align = left ? '<' : 0;
    spec.zero &= !left && !text;
    spec.has_precision &= text || !strchr("dxXo", spec.type);
    if (text)
        spec.type = 's';
    return chat_format_spec(p->r, &p->b, &v, &spec);
}

int chat_percent(struct chat_run *r, struct chat_val *out, const struct chat_str *s,
                 const struct chat_val *values)
{
    struct percent p = {.r = r, .values = values, .markup = s->markup};
    const char *at = s->at, *const end = at + s->nbytes, *sign;

    while (at < end) {
        sign = memchr(at, '%', (size_t)(end - at));
        FSDP_TRY(chat_buf_add(r, &p.b, at, (size_t)((sign ? sign : end) - at)));
        if (!sign)
            break;
        at = sign + 1;
        FSDP_TRY(add_conversion(&p, &at, end));
        FSDP_TRY(chat_step(r, 1));
    }
    const bool spare = values->kind == CHAT_TUPLE
                           ? p.next < values->list->nelem
                           : !p.next && values->kind != CHAT_DICT && values->kind != CHAT_LIST;
    if (spare && !p.named)
        return chat_fail(r, "not all arguments converted during string formatting");
    return chat_str_part(r, out, &(struct chat_str){.nbytes = 1, .markup = p.markup}, p.b.at,
                         p.b.nbytes);
}
