/* SPDX-License-Identifier: Apache-2.0 */
/* Escapes and bracketed classes of a pattern. */
#include <string.h>

#include "parse.h"

/* ---- letters without their case ------------------------------------------------------------- */

/* Of the letters of ASCII, k and s alone have a third form: the Kelvin sign and the long s. */
static int add_other_case(struct regex_parser *p, struct regex_set *set, uint32_t letter)
{
    const uint32_t kelvin = 0x212a, long_s = 0x17f, lower = letter | 0x20;

    FSDP_TRY(regex_set_add_range(set, letter ^ 0x20, letter ^ 0x20, p->err));
    if (lower == 'k')
        return regex_set_add_range(set, kelvin, kelvin, p->err);
    return lower == 's' ? regex_set_add_range(set, long_s, long_s, p->err) : FSDP_OK;
}

int regex_add_codes(struct regex_parser *p, size_t at, bool caseless, struct regex_set *set,
                    const struct unicode_range *codes)
{
    FSDP_TRY(regex_set_add(set, codes, 1, p->err));
    if (!caseless)
        return FSDP_OK;
    if (codes->last >= 0x80)
        return regex_refuse(p, at, "a caseless character beyond ASCII");
    for (uint32_t c = codes->first; c <= codes->last; c++)
        if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z')
            FSDP_TRY(add_other_case(p, set, c));
    return FSDP_OK;
}

/* ---- escapes -------------------------------------------------------------------------------- */

static int add_named(struct regex_parser *p, size_t at, struct regex_set *set, const char *name,
                     size_t nbytes, bool negate)
{
    struct regex_set named = {0};
    size_t nranges;
    const struct unicode_range *ranges = unicode_class(name, nbytes, &nranges);
    int rc;

    if (!ranges)
        return regex_refuse(p, at, "a class of characters that is not known");
    FSDP_TRY_GOTO(regex_set_add(&named, ranges, nranges, p->err), out);
    if (negate)
        FSDP_TRY_GOTO(regex_set_negate(&named, p->err), out);
    rc = regex_set_add(set, named.ranges, named.nranges, p->err);
out:
    regex_set_free(&named);
    return rc;
}

/* \p{NAME}, \P{NAME}, in Oniguruma \p{^NAME}, too, in Rust \pL. The letter is taken already. */
static int parse_property(struct regex_parser *p, size_t at, bool negate, struct regex_set *set)
{
    const char *name = p->pattern + p->at, *end;

    if (regex_peek(p, 0) != '{') {
        if (p->engine != REGEX_TIKTOKEN || p->at == p->nbytes)
            return regex_refuse(p, at, "a property without braces");
        p->at++;
        return add_named(p, at, set, name, 1, negate);
    }
    name++;
    end = memchr(name, '}', p->nbytes - p->at - 1);
    if (!end)
        return regex_refuse(p, at, "a property that does not end");
    p->at = (size_t)(end - p->pattern) + 1;
    if (end > name && *name == '^') {
        if (p->engine != REGEX_TOKENIZERS || negate)
            return regex_refuse(p, at, "a property that begins with ^");
        name++;
        negate = true;
    }
    /* Names with a colon are this library's own. */
    if (memchr(name, ':', (size_t)(end - name)) || memchr(name, '=', (size_t)(end - name)))
        return regex_refuse(p, at, "a property with a value");
    return add_named(p, at, set, name, (size_t)(end - name), negate);
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* \xHH, \x{H...}, \uHHHH. The letter is taken already. */
static int parse_hex(struct regex_parser *p, size_t at, char letter, uint32_t *code)
{
    const bool braces = regex_peek(p, 0) == '{';
    const size_t ndigits = braces ? 6 : letter == 'x' ? 2 : 4;
    size_t n = 0;

    if (braces && letter == 'u')
        return regex_refuse(p, at, "\\u{");
    p->at += braces;
    *code = 0;
    for (; n < ndigits && hex_value(regex_peek(p, 0)) >= 0; n++)
        *code = *code * 16 + (uint32_t)hex_value(p->pattern[p->at++]);
    if (!n || (!braces && n < ndigits) || (braces && regex_peek(p, 0) != '}') ||
        *code > REGEX_LAST_CODE || (*code >= 0xd800 && *code < 0xe000))
        return regex_refuse(p, at, "a code point that is none");
    p->at += braces;
    if (letter == 'x' && !braces && *code >= 0x80)
        return regex_refuse(p, at, "a byte beyond ASCII");
    return FSDP_OK;
}

static int parse_class_escape(struct regex_parser *p, size_t at, char letter, bool caseless,
                              struct regex_set *set)
{
    const bool negate = letter < 'a';

    switch (letter | 0x20) {
    case 's':
        return add_named(p, at, set, "White_Space", 11, negate);
    case 'd':
        return add_named(p, at, set, "Digit", 5, negate);
    default:
        if (caseless)
            return regex_refuse(p, at, "a caseless property");
        if ((letter | 0x20) == 'p')
            return parse_property(p, at, negate, set);
        if (p->engine == REGEX_TIKTOKEN)
            return add_named(p, at, set, "Word:tiktoken", 13, negate);
        /* Oniguruma's \w holds six superscripts and fractions, its [\w] does not. */
        if (p->brackets)
            return add_named(p, at, set, "Word:brackets", 13, negate);
        return add_named(p, at, set, "Word", 4, negate);
    }
}

int regex_parse_escape(struct regex_parser *p, bool caseless, struct regex_set *set, bool *is_code,
                       uint32_t *code)
{
    static const char names[] = "tnrfva", codes[] = "\t\n\r\f\v\a";
    const size_t at = p->at++;
    const char letter = regex_peek(p, 0);
    char what[] = "\\?";

    *is_code = true;
    if (letter > ' ' && letter < 0x7f)
        what[1] = letter;
    else if (letter != ' ')
        return regex_refuse(p, at, "a backslash before no ASCII character");
    p->at++;
    if (strchr("sSdDwWpP", letter)) {
        *is_code = false;
        return parse_class_escape(p, at, letter, caseless, set);
    }
    if (strchr(names, letter)) {
        *code = (unsigned char)codes[strchr(names, letter) - names];
        return FSDP_OK;
    }
    if (letter == 'x' || letter == 'u')
        return parse_hex(p, at, letter, code);
    *code = (unsigned char)letter;
    if ((letter >= '0' && letter <= '9') || (letter >= 'A' && letter <= 'Z') ||
        (letter >= 'a' && letter <= 'z') || letter == '<' || letter == '>')
        return regex_refuse(p, at, what);
    return FSDP_OK;
}

/* ---- classes -------------------------------------------------------------------------------- */

/* One character of a class, escaped or not, or an escape that is a class itself. */
static int parse_member(struct regex_parser *p, bool caseless, struct regex_set *set, bool *is_code,
                        uint32_t *code)
{
    *is_code = true;
    if (regex_peek(p, 0) == '\\')
        return regex_parse_escape(p, caseless, set, is_code, code);
    *code = regex_take(p);
    return FSDP_OK;
}

static int parse_range(struct regex_parser *p, bool caseless, struct regex_set *set)
{
    const size_t at = p->at;
    struct unicode_range codes;
    bool is_code;

    FSDP_TRY(parse_member(p, caseless, set, &is_code, &codes.first));
    const bool dash = regex_peek(p, 0) == '-' && regex_peek(p, 1) != ']';
    if (dash && !is_code)
        return regex_refuse(p, at, "a range that begins with a class");
    codes.last = codes.first;
    if (dash) {
        p->at++;
        if (p->at == p->nbytes || strchr("[-&", regex_peek(p, 0)))
            return regex_refuse(p, at, "a range without an end");
        FSDP_TRY(parse_member(p, caseless, set, &is_code, &codes.last));
        if (!is_code)
            return regex_refuse(p, at, "a range that ends with a class");
        if (codes.last < codes.first)
            return regex_refuse(p, at, "a range that runs backwards");
        if (regex_peek(p, 0) == '-' && regex_peek(p, 1) != ']')
            return regex_refuse(p, p->at, "a dash behind a range");
    }
    return is_code ? regex_add_codes(p, at, caseless, set, &codes) : FSDP_OK;
}

/* What must not stand where it is, because engines read it in their own ways; NULL: nothing. */
static const char *odd_member(const struct regex_parser *p, size_t first)
{
    if (regex_starts(p, "[:"))
        return "a POSIX class";
    if (p->engine == REGEX_TIKTOKEN && (regex_starts(p, "--") || regex_starts(p, "~~")))
        return "an operator of classes";
    if (regex_peek(p, 0) == '-' && p->at != first && regex_peek(p, 1) != ']')
        return "a dash in the middle of a class";
    return NULL;
}

static int parse_nested(struct regex_parser *p, bool caseless, struct regex_set *set)
{
    struct regex_set inner = {0};
    int rc = regex_parse_class(p, caseless, &inner);

    if (!rc)
        rc = regex_set_add(set, inner.ranges, inner.nranges, p->err);
    regex_set_free(&inner);
    return rc;
}

/* Members up to && or ], which are not taken. */
static int parse_operand(struct regex_parser *p, bool caseless, struct regex_set *set)
{
    const size_t first = p->at;

    while (p->at < p->nbytes && regex_peek(p, 0) != ']' && !regex_starts(p, "&&")) {
        const char *odd = odd_member(p, first);
        if (odd)
            return regex_refuse(p, p->at, odd);
        if (regex_peek(p, 0) == '[')
            FSDP_TRY(parse_nested(p, caseless, set));
        else
            FSDP_TRY(parse_range(p, caseless, set));
    }
    if (p->at == p->nbytes)
        return regex_refuse(p, first, "a class that does not end");
    return p->at > first ? FSDP_OK : regex_refuse(p, first, "an empty class");
}

static int parse_operands(struct regex_parser *p, bool caseless, struct regex_set *set)
{
    FSDP_TRY(parse_operand(p, caseless, set));
    while (regex_starts(p, "&&")) {
        struct regex_set operand = {0};
        p->at += 2;
        int rc = parse_operand(p, caseless, &operand);
        if (!rc)
            rc = regex_set_intersect(set, &operand, p->err);
        regex_set_free(&operand);
        FSDP_TRY(rc);
    }
    p->at++;
    return FSDP_OK;
}

int regex_parse_class(struct regex_parser *p, bool caseless, struct regex_set *set)
{
    const size_t at = p->at++;
    const bool negate = regex_peek(p, 0) == '^';

    if (++p->depth > REGEX_MAX_DEPTH)
        return regex_refuse(p, at, "nesting so deep");
    p->at += negate;
    p->brackets++;
    FSDP_TRY(parse_operands(p, caseless, set));
    if (negate)
        FSDP_TRY(regex_set_negate(set, p->err));
    p->brackets--;
    p->depth--;
    return FSDP_OK;
}
