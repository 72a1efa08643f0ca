/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "number.h"
#include "unicode.h"

bool chat_float_to_int(chat_int *out, double f)
{
    if (!(fabs(f) < 0x1p126))
        return false;
    *out = (chat_int)f;
    return true;
}

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10 : 99;
}

/* Passes 0x, 0o or 0b where the base is its own, or 0, which becomes it. */
static const char *skip_prefix(const char *at, const char *end, int *base)
{
    const char letter = end - at > 2 && *at == '0' ? (char)(at[1] | 32) : 0;
    const int of = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;

    if (of && (*base == 0 || *base == of)) {
        *base = of;
        return at + 2;
    }
    *base = *base ? *base : 10;
    return at;
}

bool chat_text_to_int(chat_int *out, const struct chat_str *s, int base)
{
    const char *at = s->at, *end = at + s->nbytes;
    bool negative = false, digit = false;
    chat_int i = 0;

    chat_trim_space(&at, &end, true, true);
    if (at < end && (*at == '-' || *at == '+'))
        negative = *at++ == '-';
    at = skip_prefix(at, end, &base);
    for (; at < end; at++) {
        if (*at == '_' && digit) {
            digit = false;
            continue;
        }
        digit = digit_of(*at) < base;
        if (!digit || __builtin_mul_overflow(i, (chat_int)base, &i) ||
            __builtin_add_overflow(i, (chat_int)digit_of(*at), &i))
            return false;
    }
    *out = negative ? -i : i;
    return digit;
}

bool chat_text_to_float(double *out, const struct chat_str *s)
{
    const char *at = s->at, *end = at + s->nbytes;
    char text[400], *stop;
    size_t n = 0;

    chat_trim_space(&at, &end, true, true);
    for (; at < end && n < sizeof text - 1; at++) {
        if (*at == '_' && n && text[n - 1] >= '0' && text[n - 1] <= '9' && at + 1 < end &&
            at[1] >= '0' && at[1] <= '9')
            continue;
        if (*at == 'x' || *at == 'X' || *at == '(' || (unsigned char)*at <= ' ')
            return false;
        text[n++] = *at;
    }
    text[n] = 0;
    *out = strtod(text, &stop);
    return n && at == end && *stop == 0;
}

double chat_round(double f, int ndigits)
{
    char text[400];

    if (!isfinite(f) || ndigits > 300)
        return f;
    if (ndigits < 0) {
        const double unit = pow(10, ndigits < -308 ? 309 : -ndigits);
        return ndigits < -308 ? 0 * f : rint(f / unit) * unit;
    }
    snprintf(text, sizeof text, "%.*f", ndigits < 50 ? ndigits : 50, f);
    return strtod(text, NULL);
}
