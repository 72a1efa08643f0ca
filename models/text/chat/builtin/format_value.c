/* SPDX-License-Identifier: Apache-2.0 */
/* A value in a field of a width. */
#include <math.h>

#include "format.h"
#include "text/chat/value/number.h"
#include "text/chat/value/print.h"
#include "text/chat/value/unicode.h"

enum { MAX_WIDTH = 100000 };

static size_t read_number(const char **at, const char *end)
{
    size_t n = 0;

    for (; *at < end && **at >= '0' && **at <= '9'; ++*at)
        n = n > MAX_WIDTH ? n : 10 * n + (size_t)(**at - '0');
    return n;
}

static bool is_align(const char *at, const char *end)
{
    return at < end && *at && strchr("<>=^", *at);
}

static int read_spec(struct chat_run *r, struct chat_spec *spec, const char *at, const char *end)
{
    int nbytes = 1;

    *spec = (struct chat_spec){.fill = " ", .nfill = 1};
    if (at < end)
        chat_decode(at, &nbytes);
    if (is_align(at + nbytes, end)) {
        memcpy(spec->fill, at, (size_t)nbytes);
        spec->nfill = nbytes;
        at += nbytes;
        spec->align = *at++;
    } else if (is_align(at, end)) {
        spec->align = *at++;
    }
    if (at < end && *at && strchr("+- ", *at))
        spec->sign = *at++;
    if (at < end && *at == '#' && at++)
        spec->alternate = true;
    if (at < end && *at == '0' && at++)
        spec->zero = true;
    spec->width = read_number(&at, end);
    if (at < end && *at == ',' && at++)
        spec->comma = true;
    if (at < end && *at == '.' && at++) {
        spec->has_precision = true;
        spec->precision = read_number(&at, end);
    }
    if (at < end)
        spec->type = *at++;
    if (at < end || spec->width > MAX_WIDTH || spec->precision > 1000 ||
        (spec->type && !strchr("sdbxXoeEfFgG%", spec->type)))
        return chat_refuse(r, "a format specification that is not supported");
    return FSDP_OK;
}

/* ---- numbers -------------------------------------------------------------------------------- */

static int digits_of(struct chat_run *r, struct chat_buf *b, chat_int i, char type)
{
    const unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    char text[130], *at = text + sizeof text;
    __extension__ unsigned __int128 u = i < 0 ? -(unsigned __int128)i : (unsigned __int128)i;

    do
        *--at = (type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[(unsigned)(u % base)];
    while (u /= base);
    return chat_buf_add(r, b, at, (size_t)(text + sizeof text - at));
}

static int digits_of_float(struct chat_run *r, struct chat_buf *b, double f,
                           const struct chat_spec *spec)
{
    const int precision = spec->has_precision ? (int)spec->precision : 6;
    char text[1500], format[8] = "%.*f";

    f = fabs(f);
    if (!spec->type && !spec->has_precision)
        return chat_print_float(r, b, f);
    format[3] = !spec->type ? 'g' : spec->type == '%' ? 'f' : spec->type;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text, sizeof text, format, precision, spec->type == '%' ? 100 * f : f);
#pragma GCC diagnostic pop
    FSDP_TRY(chat_buf_puts(r, b, text));
    return chat_buf_puts(r, b, spec->type == '%' ? "%" : "");
}

/* The digits before the point, in groups of three. */
static int add_commas(struct chat_run *r, struct chat_buf *b, const struct chat_buf *digits)
{
    size_t n = 0;

    while (n < digits->nbytes && digits->at[n] >= '0' && digits->at[n] <= '9')
        n++;
    for (size_t i = 0; i < digits->nbytes; i++) {
        if (i && i < n && (n - i) % 3 == 0)
            FSDP_TRY(chat_buf_puts(r, b, ","));
        FSDP_TRY(chat_buf_add(r, b, &digits->at[i], 1));
    }
    return FSDP_OK;
}

static int format_number(struct chat_run *r, struct chat_buf *sign, struct chat_buf *digits,
                         const struct chat_val *v, const struct chat_spec *spec)
{
    const bool as_float = v->kind == CHAT_FLOAT || (spec->type && strchr("eEfFgG%", spec->type));
    const double f = chat_as_double(v);
    const bool negative = v->kind == CHAT_FLOAT ? signbit(f) : v->i < 0;
    struct chat_buf plain = {0};

    if (v->kind == CHAT_FLOAT && spec->type && strchr("dbxXo", spec->type))
        return chat_fail(r, "unknown format code '%c' for object of type 'float'", spec->type);
    if (!as_float && spec->has_precision)
        return chat_fail(r, "precision not allowed in integer format specifier");
    if (negative || (spec->sign && spec->sign != '-'))
        FSDP_TRY(chat_buf_add(r, sign, negative ? "-" : &spec->sign, 1));
    if (spec->alternate && spec->type && strchr("xXob", spec->type)) {
        FSDP_TRY(chat_buf_puts(r, sign, "0"));
        FSDP_TRY(chat_buf_add(r, sign, &spec->type, 1));
    }
    FSDP_TRY(as_float ? digits_of_float(r, &plain, f, spec)
                      : digits_of(r, &plain, v->i, spec->type));
    if (spec->comma)
        return add_commas(r, digits, &plain);
    *digits = plain;
    return FSDP_OK;
}

/* ---- fields --------------------------------------------------------------------------------- */

static int add_fill(struct chat_run *r, struct chat_buf *b, const struct chat_spec *spec, size_t n,
                    bool zero)
{
    for (size_t i = 0; i < n; i++)
        FSDP_TRY(chat_buf_add(r, b, zero ? "0" : spec->fill, zero ? 1 : (size_t)spec->nfill));
    return chat_step(r, n >> 4);
}

int chat_format_spec(struct chat_run *r, struct chat_buf *b, const struct chat_val *v,
                     const struct chat_spec *spec)
{
    const bool number = chat_is_number(v) && !(spec->type == 's');
    struct chat_buf sign = {0}, body = {0};
    char align = spec->align;

    if (number) {
        FSDP_TRY(format_number(r, &sign, &body, v, spec));
    } else {
        FSDP_TRY(chat_print(r, &body, v));
        const struct chat_str s = {body.at, body.nbytes, chat_count_chars(body.at, body.nbytes), 0};
        if (spec->has_precision && spec->precision < s.nchars)
            body.nbytes = chat_str_offset(&s, spec->precision);
    }
    const bool zero = spec->zero && !spec->align;
    align = zero && number ? '=' : align ? align : number ? '>' : '<';
    const size_t nchars = sign.nbytes + chat_count_chars(body.at, body.nbytes),
                 n = spec->width > nchars ? spec->width - nchars : 0,
                 left = align == '>'   ? n
                        : align == '^' ? n / 2
                                       : 0;
    FSDP_TRY(add_fill(r, b, spec, left, zero));
    FSDP_TRY(chat_buf_add(r, b, sign.at, sign.nbytes));
    FSDP_TRY(add_fill(r, b, spec, align == '=' ? n : 0, zero));
    FSDP_TRY(chat_buf_add(r, b, body.at, body.nbytes));
    return add_fill(r, b, spec, align == '<' || align == '^' ? n - left : 0, zero);
}

int chat_format_value(struct chat_run *r, struct chat_buf *b, const struct chat_val *v,
                      const char *at, const char *end)
{
    struct chat_spec spec;

    if (at == end)
        return chat_print(r, b, v);
    FSDP_TRY(read_spec(r, &spec, at, end));
    if (v->kind != CHAT_STR && !chat_is_number(v))
        return chat_fail(r, "a value of type %s takes no format specification", chat_type_name(v));
    if (v->kind == CHAT_BOOL && !spec.type) {
        struct chat_val text;
        FSDP_TRY(chat_to_str(r, &text, v));
        return chat_format_spec(r, b, &text, &spec);
    }
    if (v->kind == CHAT_STR && spec.type && spec.type != 's')
        return chat_fail(r, "unknown format code '%c' for object of type 'str'", spec.type);
    return chat_format_spec(r, b, v, &spec);
}
