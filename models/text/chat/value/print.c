/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "print.h"
#include "unicode.h"

/* ---- numbers -------------------------------------------------------------------------------- */

int chat_print_int(struct chat_run *r, struct chat_buf *b, chat_int i)
{
    char text[48], *at = text + sizeof text;
    __extension__ unsigned __int128 u = i < 0 ? -(unsigned __int128)i : (unsigned __int128)i;

    do
        *--at = (char)('0' + (int)(u % 10));
    while (u /= 10);
    if (i < 0)
        *--at = '-';
    return chat_buf_add(r, b, at, (size_t)(text + sizeof text - at));
}

/* The shortest digits that give the number back: "d.dddde+xx". */
static void shortest(char text[40], double f)
{
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, 40, "%.*e", precision, f);
        if (strtod(text, NULL) == f)
            return;
    }
}

int chat_print_float(struct chat_run *r, struct chat_buf *b, double f)
{
    char text[40], digits[20];
    const char *exponent_at;
    int ndigits = 0, exponent;

    if (isnan(f) || isinf(f))
        return chat_buf_puts(r, b, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
    if (signbit(f))
        FSDP_TRY(chat_buf_puts(r, b, "-"));
    shortest(text, fabs(f));
    exponent_at = strchr(text, 'e');
    exponent = atoi(exponent_at + 1);
    for (const char *at = text; at < exponent_at; at++)
        if (*at != '.')
            digits[ndigits++] = *at;
    if (exponent < -4 || exponent >= 16) {
        FSDP_TRY(chat_buf_add(r, b, digits, 1));
        if (ndigits > 1) {
            FSDP_TRY(chat_buf_puts(r, b, "."));
            FSDP_TRY(chat_buf_add(r, b, digits + 1, (size_t)ndigits - 1));
        }
        snprintf(text, sizeof text, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return chat_buf_puts(r, b, text);
    }
    for (int place = exponent < 0 ? 0 : exponent; place >= exponent - ndigits + 1 || place >= -1;
         place--) {
        const int i = exponent - place;
        if (place == -1)
            FSDP_TRY(chat_buf_puts(r, b, "."));
        FSDP_TRY(chat_buf_add(r, b, i >= 0 && i < ndigits ? &digits[i] : "0", 1));
    }
    return FSDP_OK;
}

/* ---- texts ---------------------------------------------------------------------------------- */

static int repr_char(struct chat_run *r, struct chat_buf *b, uint32_t code, char quote)
{
    char text[16];

    if (code == '\\' || code == (unsigned char)quote) {
        FSDP_TRY(chat_buf_puts(r, b, "\\"));
        return chat_buf_add_code(r, b, code);
    }
    if (code == '\n' || code == '\t' || code == '\r')
        return chat_buf_puts(r, b, code == '\n' ? "\\n" : code == '\t' ? "\\t" : "\\r");
    if (chat_is_printable(code))
        return chat_buf_add_code(r, b, code);
    snprintf(text, sizeof text,
             code < 0x100     ? "\\x%02x"
             : code < 0x10000 ? "\\u%04x"
                              : "\\U%08x",
             code);
    return chat_buf_puts(r, b, text);
}

static int repr_str(struct chat_run *r, struct chat_buf *b, const struct chat_str *s)
{
    const char quote =
        memchr(s->at, '\'', s->nbytes) && !memchr(s->at, '"', s->nbytes) ? '"' : '\'';
    int nbytes;

    if (s->markup)
        FSDP_TRY(chat_buf_puts(r, b, "Markup("));
    FSDP_TRY(chat_buf_add(r, b, &quote, 1));
    for (const char *at = s->at; at < s->at + s->nbytes; at += nbytes) {
        const uint32_t code = chat_decode(at, &nbytes);
        FSDP_TRY(repr_char(r, b, code, quote));
    }
    FSDP_TRY(chat_buf_add(r, b, &quote, 1));
    return s->markup ? chat_buf_puts(r, b, ")") : chat_step(r, s->nbytes >> 4);
}

/* ---- containers ----------------------------------------------------------------------------- */

static int repr_list(struct chat_run *r, struct chat_buf *b, const struct chat_val *v)
{
    const struct chat_list *list = v->list;
    const bool tuple = v->kind == CHAT_TUPLE;

    FSDP_TRY(chat_buf_puts(r, b, tuple ? "(" : "["));
    for (size_t i = 0; i < list->nelem; i++) {
        FSDP_TRY(chat_buf_puts(r, b, i ? ", " : ""));
        FSDP_TRY(chat_repr(r, b, &list->at[i]));
    }
    return chat_buf_puts(r, b, tuple ? list->nelem == 1 ? ",)" : ")" : "]");
}

static int repr_dict(struct chat_run *r, struct chat_buf *b, const struct chat_dict *d)
{
    FSDP_TRY(chat_buf_puts(r, b, "{"));
    for (size_t i = 0; i < d->nelem; i++) {
        FSDP_TRY(chat_buf_puts(r, b, i ? ", " : ""));
        FSDP_TRY(chat_repr(r, b, &d->keys[i]));
        FSDP_TRY(chat_buf_puts(r, b, ": "));
        FSDP_TRY(chat_repr(r, b, &d->values[i]));
    }
    return chat_buf_puts(r, b, "}");
}

static int repr_view(struct chat_run *r, struct chat_buf *b, const struct chat_view *view)
{
    static const char *const names[] = {"dict_keys([", "dict_values([", "dict_items(["};
    const struct chat_dict *d = view->dict;

    FSDP_TRY(chat_buf_puts(r, b, names[view->of]));
    for (size_t i = 0; i < d->nelem; i++) {
        FSDP_TRY(chat_buf_puts(r, b, i ? ", " : ""));
        FSDP_TRY(chat_buf_puts(r, b, view->of == CHAT_ITEMS ? "(" : ""));
        if (view->of != CHAT_VALUES)
            FSDP_TRY(chat_repr(r, b, &d->keys[i]));
        FSDP_TRY(chat_buf_puts(r, b, view->of == CHAT_ITEMS ? ", " : ""));
        if (view->of != CHAT_KEYS)
            FSDP_TRY(chat_repr(r, b, &d->values[i]));
        FSDP_TRY(chat_buf_puts(r, b, view->of == CHAT_ITEMS ? ")" : ""));
    }
    return chat_buf_puts(r, b, "])");
}

static int repr_range(struct chat_run *r, struct chat_buf *b, const struct chat_range *range)
{
    FSDP_TRY(chat_buf_puts(r, b, "range("));
    FSDP_TRY(chat_print_int(r, b, range->first));
    FSDP_TRY(chat_buf_puts(r, b, ", "));
    FSDP_TRY(chat_print_int(r, b, range->end));
    if (range->step != 1) {
        FSDP_TRY(chat_buf_puts(r, b, ", "));
        FSDP_TRY(chat_print_int(r, b, range->step));
    }
    return chat_buf_puts(r, b, ")");
}

static int repr_container(struct chat_run *r, struct chat_buf *b, const struct chat_val *v)
{
    switch (v->kind) {
    case CHAT_LIST:
    case CHAT_TUPLE:
        return repr_list(r, b, v);
    case CHAT_VIEW:
        return repr_view(r, b, v->view);
    case CHAT_SPACE:
        FSDP_TRY(chat_buf_puts(r, b, "<Namespace "));
        FSDP_TRY(repr_dict(r, b, v->dict));
        return chat_buf_puts(r, b, ">");
    default:
        return repr_dict(r, b, v->dict);
    }
}

static int repr_loop(struct chat_run *r, struct chat_buf *b, const struct chat_val *v)
{
    static const struct chat_str index = {.at = "index", .nbytes = 5, .nchars = 5},
                                 length = {.at = "length", .nbytes = 6, .nchars = 6};
    struct chat_val number;

    FSDP_TRY(chat_buf_puts(r, b, "<LoopContext "));
    FSDP_TRY(r->hooks->attribute(r, &number, v, &index));
    FSDP_TRY(chat_print_int(r, b, number.i));
    FSDP_TRY(chat_buf_puts(r, b, "/"));
    FSDP_TRY(r->hooks->attribute(r, &number, v, &length));
    FSDP_TRY(chat_print_int(r, b, number.i));
    return chat_buf_puts(r, b, ">");
}

int chat_repr(struct chat_run *r, struct chat_buf *b, const struct chat_val *v)
{
    int rc;

    FSDP_TRY(chat_step(r, 1));
    switch (v->kind) {
    case CHAT_NONE:
        return chat_buf_puts(r, b, "None");
    case CHAT_BOOL:
        return chat_buf_puts(r, b, v->i ? "True" : "False");
    case CHAT_INT:
        return chat_print_int(r, b, v->i);
    case CHAT_FLOAT:
        return chat_print_float(r, b, v->f);
    case CHAT_STR:
        return repr_str(r, b, v->s);
    case CHAT_UNDEF:
    case CHAT_MISSING:
        return chat_buf_puts(r, b, "Undefined");
    case CHAT_RANGE:
        return repr_range(r, b, v->range);
    case CHAT_LIST:
    case CHAT_TUPLE:
    case CHAT_DICT:
    case CHAT_VIEW:
    case CHAT_SPACE:
        FSDP_TRY(chat_enter(r));
        rc = repr_container(r, b, v);
        chat_leave(r);
        return rc;
    case CHAT_LOOP:
        return repr_loop(r, b, v);
    default:
        FSDP_TRY(chat_buf_puts(r, b, "<"));
        FSDP_TRY(chat_buf_puts(r, b, chat_type_name(v)));
        return chat_buf_puts(r, b, " object>");
    }
}

int chat_print(struct chat_run *r, struct chat_buf *b, const struct chat_val *v)
{
    if (v->kind == CHAT_STR)
        return chat_buf_add(r, b, v->s->at, v->s->nbytes);
    if (v->kind == CHAT_UNDEF)
        return FSDP_OK;
    return chat_repr(r, b, v);
}

int chat_to_str(struct chat_run *r, struct chat_val *out, const struct chat_val *v)
{
    struct chat_buf b = {0};

    if (v->kind == CHAT_STR) {
        *out = *v;
        return FSDP_OK;
    }
    FSDP_TRY(chat_print(r, &b, v));
    return chat_buf_str(r, out, &b);
}

int chat_escape_html(struct chat_run *r, struct chat_val *out, const struct chat_val *v)
{
    static const char special[] = "&<>'\"";
    static const char *const meant[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct chat_buf b = {0};
    struct chat_val text;
    struct chat_str *s;

    FSDP_TRY(chat_to_str(r, &text, v));
    if (text.s->markup) {
        *out = text;
        return FSDP_OK;
    }
    for (size_t i = 0; i < text.s->nbytes; i++) {
        const char *at = &text.s->at[i], *found = *at ? strchr(special, *at) : NULL;
        FSDP_TRY(found ? chat_buf_puts(r, &b, meant[found - special]) : chat_buf_add(r, &b, at, 1));
    }
    FSDP_TRY(chat_buf_str(r, out, &b));
    FSDP_TRY(chat_new(r, &s, 1, sizeof *s));
    *s = *out->s;
    s->markup = true;
    out->s = s;
    return FSDP_OK;
}
