/* SPDX-License-Identifier: Apache-2.0 */
/* Filters of numbers and of any value. */
#include <math.h>

#include "text/chat/builtin/arith.h"
#include "filters.h"
#include "text/chat/value/iterate.h"
#include "text/chat/value/number.h"
#include "text/chat/value/print.h"

CHAT_BUILTIN(filter_default)
{
    const bool truth = !chat_is_absent(&a[2]) && chat_truth(&a[2]);

    *out = a[0];
    if (a[0].kind != CHAT_UNDEF && (!truth || chat_truth(&a[0])))
        return FSDP_OK;
    *out = a[1];
    return chat_is_absent(&a[1]) ? chat_str_copy(r, out, "", 0) : FSDP_OK;
}

CHAT_BUILTIN(filter_attr)
{
    const struct chat_str *name;
    struct chat_val v;

    FSDP_TRY(chat_want_str(r, &name, &a[1], "attr"));
    FSDP_TRY(r->hooks->attribute(r, &v, &a[0], name));
    *out = v;
    if (a[0].kind != CHAT_DICT || v.kind == CHAT_NATIVE)
        return FSDP_OK;
    return chat_undef_new(r, out, &a[0], &a[1], NULL); /* an item is no attribute */
}

CHAT_BUILTIN(filter_int)
{
    chat_int i, base = 10;
    double f;
    bool good = false;

    if (!chat_is_absent(&a[2]))
        FSDP_TRY(chat_want_int(r, &base, &a[2], "int"));
    if (base != 0 && (base < 2 || base > 36))
        return chat_fail(r, "int() base must be >= 2 and <= 36, or 0");
    if (a[0].kind == CHAT_UNDEF)
        return chat_undef_fail(r, &a[0]);
    if (chat_is_int(&a[0])) {
        i = a[0].i;
        good = true;
    } else if (a[0].kind == CHAT_FLOAT) {
        if (isinf(a[0].f))
            return chat_fail(r, "cannot convert float infinity to integer");
        good = chat_float_to_int(&i, a[0].f);
    } else if (a[0].kind == CHAT_STR) {
        good = chat_text_to_int(&i, a[0].s, (int)base) ||
               (chat_text_to_float(&f, a[0].s) && chat_float_to_int(&i, f));
    }
    *out = good ? chat_integer(i) : chat_is_absent(&a[1]) ? chat_integer(0) : a[1];
    return FSDP_OK;
}

CHAT_BUILTIN(filter_float)
{
    double f;

    if (a[0].kind == CHAT_UNDEF)
        return chat_undef_fail(r, &a[0]);
    if (chat_is_number(&a[0]))
        *out = chat_float(chat_as_double(&a[0]));
    else if (a[0].kind == CHAT_STR && chat_text_to_float(&f, a[0].s))
        *out = chat_float(f);
    else
        *out = chat_is_absent(&a[1]) ? chat_float(0) : a[1];
    return FSDP_OK;
}

CHAT_BUILTIN(filter_abs)
{
    if (a[0].kind == CHAT_UNDEF)
        return chat_undef_fail(r, &a[0]);
    if (!chat_is_number(&a[0]))
        return chat_fail(r, "bad operand type for abs(): '%s'", chat_type_name(&a[0]));
    *out = a[0].kind == CHAT_FLOAT ? chat_float(fabs(a[0].f)) : chat_integer(a[0].i);
    return chat_is_int(&a[0]) && a[0].i < 0 ? chat_unary(r, out, CHAT_N_NEG, &a[0]) : FSDP_OK;
}

/* Towards a side, as 10 ** precision allows. */
static int round_to_side(struct chat_run *r, struct chat_val *out, const struct chat_val *v,
                         chat_int precision, const struct chat_str *method)
{
    const double unit = pow(10, (double)precision), f = chat_as_double(v) * unit;

    if (!chat_str_is(method, "ceil") && !chat_str_is(method, "floor"))
        return chat_fail(r, "method must be common, ceil or floor");
    *out = chat_float((chat_str_is(method, "ceil") ? ceil(f) : floor(f)) / unit);
    return FSDP_OK;
}

CHAT_BUILTIN(filter_round)
{
    const struct chat_str *method = NULL;
    chat_int precision = 0;

    if (a[0].kind == CHAT_UNDEF)
        return chat_undef_fail(r, &a[0]);
    if (!chat_is_absent(&a[1]))
        FSDP_TRY(chat_want_int(r, &precision, &a[1], "round"));
    if (!chat_is_absent(&a[2]))
        FSDP_TRY(chat_want_str(r, &method, &a[2], "round"));
    if (!chat_is_number(&a[0]))
        return chat_fail(r, "type %s cannot be rounded", chat_type_name(&a[0]));
    precision = precision > 400 ? 400 : precision < -400 ? -400 : precision;
    if (method && !chat_str_is(method, "common"))
        return round_to_side(r, out, &a[0], precision, method);
    if (chat_is_int(&a[0]))
        *out = chat_integer(precision >= 0 ? a[0].i
                                           : (chat_int)chat_round((double)a[0].i, (int)precision));
    else
        *out = chat_float(chat_round(a[0].f, (int)precision));
    return FSDP_OK;
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static int want_indent(struct chat_run *r, struct chat_val *text, struct chat_json_style *style,
                       const struct chat_val *v)
{
    struct chat_buf b = {0};
    size_t n;

    if (chat_is_absent(v) || v->kind == CHAT_NONE)
        return FSDP_OK;
    style->indents = true;
    if (v->kind == CHAT_STR) {
        *text = *v;
    } else {
        FSDP_TRY(chat_want_count(r, &n, v, "tojson"));
        FSDP_TRY(chat_buf_pad(r, &b, n));
        FSDP_TRY(chat_buf_str(r, text, &b));
    }
    style->indent = text->s;
    return FSDP_OK;
}

static int want_separators(struct chat_run *r, struct chat_json_style *style,
                           const struct chat_val *v)
{
    struct chat_val pair;

    if (chat_is_absent(v) || v->kind == CHAT_NONE)
        return FSDP_OK;
    FSDP_TRY(chat_collect(r, &pair, v));
    if (pair.list->nelem != 2)
        return chat_fail(r, "tojson needs two separators");
    FSDP_TRY(chat_want_str(r, &style->between, &pair.list->at[0], "tojson"));
    return chat_want_str(r, &style->colon, &pair.list->at[1], "tojson");
}

CHAT_BUILTIN(filter_tojson)
{
    static const struct chat_str comma = {.at = ",", .nbytes = 1, .nchars = 1},
                                 comma_blank = {.at = ", ", .nbytes = 2, .nchars = 2},
                                 colon = {.at = ": ", .nbytes = 2, .nchars = 2};
    struct chat_json_style style = {.colon = &colon};
    struct chat_buf b = {0};
    struct chat_val indent;

    style.ascii = !chat_is_absent(&a[1]) && chat_truth(&a[1]);
    style.sort_keys = !chat_is_absent(&a[4]) && chat_truth(&a[4]);
    FSDP_TRY(want_indent(r, &indent, &style, &a[2]));
    style.between = style.indents ? &comma : &comma_blank;
    FSDP_TRY(want_separators(r, &style, &a[3]));
    FSDP_TRY(chat_print_json(r, &b, &a[0], &style));
    return chat_buf_str(r, out, &b);
}

const struct chat_builtin chat_value_filters[] = {
    {"default", filter_default, "default_value boolean", 0},
    {"d", filter_default, "default_value boolean", 0},
    {"attr", filter_attr, "name", 1},
    {"int", filter_int, "default base", 0},
    {"float", filter_float, "default", 0},
    {"abs", filter_abs, "", 0},
    {"round", filter_round, "precision method", 0},
    {"tojson", filter_tojson, "ensure_ascii indent separators sort_keys", 0},
    {0},
};
