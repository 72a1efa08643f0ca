/* SPDX-License-Identifier: Apache-2.0 */
/* Literals of a template. */
#include <stdlib.h>

#include "escape.h"

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if ((c | 32) >= 'a' && (c | 32) <= 'f')
        return (c | 32) - 'a' + 10;
    return 99;
}

/* ndigits hexadecimal digits behind \x, \u or \U. */
static int add_hex(struct chat_run *r, struct chat_buf *b, const char **at, const char *end,
                   int ndigits)
{
    uint32_t code = 0;

    for (int i = 0; i < ndigits; i++, ++*at) {
        if (*at == end || digit_of(**at) > 15)
            return chat_fail(r, "a text has an escape of less than %d hexadecimal digits", ndigits);
        code = code << 4 | (uint32_t)digit_of(**at);
    }
    if (code > 0x10ffff)
        return chat_fail(r, "a text has the escape of no character: U+%X", code);
    if (code >= 0xd800 && code < 0xe000)
        return chat_refuse(r, "a text has a lone surrogate, U+%X", code);
    return chat_buf_add_code(r, b, code);
}

static int add_octal(struct chat_run *r, struct chat_buf *b, const char **at, const char *end)
{
    uint32_t code = 0;

    for (int i = 0; i < 3 && *at < end && **at >= '0' && **at <= '7'; i++, ++*at)
        code = code << 3 | (uint32_t)(**at - '0');
    return chat_buf_add_code(r, b, code);
}

/* *at is behind the backslash. */
static int add_escape(struct chat_run *r, struct chat_buf *b, const char **at, const char *end)
{
    static const char plain[] = "\\'\"abfnrtv", meant[] = "\\'\"\a\b\f\n\r\t\v";
    const char c = **at;
    const char *found = c ? strchr(plain, c) : NULL;

    if (c >= '0' && c <= '7')
        return add_octal(r, b, at, end);
    ++*at;
    if (found)
        return chat_buf_add(r, b, &meant[found - plain], 1);
    switch (c) {
    case '\n':
        return FSDP_OK;
    case 'x':
        return add_hex(r, b, at, end, 2);
    case 'u':
        return add_hex(r, b, at, end, 4);
    case 'U':
        return add_hex(r, b, at, end, 8);
    case 'N':
        return chat_refuse(r, "a text has an escape by name, \\N");
    default: /* no escape: both stay; c may begin a longer character */
        --*at;
        return chat_buf_add(r, b, "\\", 1);
    }
}

int chat_unescape(struct chat_run *r, struct chat_val *out, const char *at, const char *end)
{
    struct chat_buf b = {0};

    while (at < end) {
        const char *slash = memchr(at, '\\', (size_t)(end - at));
        FSDP_TRY(chat_buf_add(r, &b, at, (size_t)((slash ? slash : end) - at)));
        if (!slash)
            break;
        at = slash + 1;
        if (at == end)
            return chat_fail(r, "a text ends in a backslash");
        FSDP_TRY(add_escape(r, &b, &at, end));
        if (at < end && at == slash + 1) { /* that of no escape */
            FSDP_TRY(chat_buf_add(r, &b, at, 1));
            at++;
        }
    }
    return chat_buf_str(r, out, &b);
}

int chat_parse_int(struct chat_run *r, struct chat_val *out, const char *at, const char *end,
                   int base)
{
    chat_int i = 0;

    for (; at < end; at++) {
        if (*at == '_')
            continue;
        if (__builtin_mul_overflow(i, (chat_int)base, &i) ||
            __builtin_add_overflow(i, (chat_int)digit_of(*at), &i))
            return chat_refuse(r, "an integer of more than 127 bits");
    }
    *out = chat_integer(i);
    return FSDP_OK;
}

int chat_parse_float(struct chat_run *r, struct chat_val *out, const char *at, const char *end)
{
    struct chat_buf b = {0};

    for (; at < end; at++)
        if (*at != '_')
            FSDP_TRY(chat_buf_add(r, &b, at, 1));
    FSDP_TRY(chat_buf_add(r, &b, "", 1));
    *out = chat_float(strtod(b.at, NULL));
    return FSDP_OK;
}
