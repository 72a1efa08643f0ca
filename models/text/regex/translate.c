/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pattern of another engine as one of PCRE2's. Classes are computed as sets of code points and
 * written as ranges. What differs between the engines:
 *
 *   x{1,3}+     Oniguruma: one or more times; fancy-regex and PCRE2: possessive
 *   x{,3}       PCRE2: as it stands; the others: up to three times
 *   [a&&[^b]]   intersections and classes in classes, which PCRE2 does not have
 *   $           Oniguruma: the end of a line; fancy-regex: the end of the text
 *
 * What is not known to be read alike is refused: POSIX classes, back references, \b, \h, \X, the
 * flags m, s and x, and properties where case is ignored.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "regex.h"
#include "text/unicode/unicode.h"

enum { LAST_CODE = 0x10ffff, MAX_DEPTH = 32 };

/* ---- sets of code points --------------------------------------------------------------------- */

struct set {
    struct unicode_range *ranges;
    size_t nranges, max;
    bool failed; /* out of memory */
};

static void set_add(void *ctx, struct unicode_range range)
{
    struct set *set = ctx;
    struct unicode_range *ranges = fsdp_alloc_grow(set->ranges, set->nranges, &set->max,
                                                   sizeof *ranges, "class of characters", NULL);
    if (!ranges) {
        set->failed = true;
        return;
    }
    set->ranges = ranges;
    ranges[set->nranges++] = range;
}

static void set_free(struct set *set)
{
    fsdp_free(set->ranges);
    *set = (struct set){0};
}

static int by_first(const void *a, const void *b)
{
    const uint32_t one = ((const struct unicode_range *)a)->first,
                   two = ((const struct unicode_range *)b)->first;
    return one < two ? -1 : one > two;
}

/* Sorted, apart, and only up to `last`. */
static void set_settle(struct set *set, uint32_t last)
{
    size_t n = 0;

    if (set->nranges)
        qsort(set->ranges, set->nranges, sizeof *set->ranges, by_first);
    for (size_t i = 0; i < set->nranges; i++) {
        struct unicode_range range = set->ranges[i];
        if (range.first > last)
            break;
        range.last = range.last > last ? last : range.last;
        if (n && range.first <= set->ranges[n - 1].last + 1) {
            if (range.last > set->ranges[n - 1].last)
                set->ranges[n - 1].last = range.last;
        } else {
            set->ranges[n++] = range;
        }
    }
    set->nranges = n;
}

static void set_negate(struct set *set, uint32_t last)
{
    struct set out = {.failed = set->failed};
    uint32_t next = 0;

    set_settle(set, last);
    for (size_t i = 0; i < set->nranges; i++) {
        if (set->ranges[i].first > next)
            set_add(&out, (struct unicode_range){next, set->ranges[i].first - 1});
        next = set->ranges[i].last + 1;
    }
    if (next <= last)
        set_add(&out, (struct unicode_range){next, last});
    set_free(set);
    *set = out;
}

static void set_union(struct set *set, const struct set *other)
{
    for (size_t i = 0; i < other->nranges; i++)
        set_add(set, other->ranges[i]);
    set->failed |= other->failed;
}

/* Both without each of what the other lacks. */
static void set_intersect(struct set *set, struct set *other)
{
    set_negate(set, LAST_CODE);
    set_negate(other, LAST_CODE);
    set_union(set, other);
    set_negate(set, LAST_CODE);
}

/* ---- the translator -------------------------------------------------------------------------- */

struct translator {
    const char *start, *at, *end;
    enum regex_engine engine;
    bool ascii;
    struct unicode_text out;
    size_t atom; /* where in `out` the last atom began, for quantifiers */
    bool has_atom, looks_back;
    int depth;
    size_t groups[MAX_DEPTH]; /* where they began in `out` */
    bool caseless[MAX_DEPTH + 1];
    struct fsdp_err *err;
};

static int refuse(const struct translator *t, const char *at, const char *what)
{
    size_t nbytes = (size_t)(t->end - at);
    return fsdp_err_set(t->err, FSDP_EUNSUPPORTED,
                        "regular expression: %s at byte %td, '%.*s', is not supported", what,
                        at - t->start, (int)(nbytes > 16 ? 16 : nbytes), at);
}

static int put(struct translator *t, const char *text, size_t nbytes)
{
    return unicode_text_add(&t->out, text, nbytes, t->err);
}

static void begin_atom(struct translator *t)
{
    t->atom = t->out.nbytes;
    t->has_atom = true;
}

static uint32_t last_code(const struct translator *t)
{
    return t->ascii ? 0x7f : LAST_CODE;
}

static int put_range(struct translator *t, struct unicode_range range)
{
    char text[40];
    const int n = range.first == range.last
                      ? snprintf(text, sizeof text, "\\x{%x}", range.first)
                      : snprintf(text, sizeof text, "\\x{%x}-\\x{%x}", range.first, range.last);
    return put(t, text, (size_t)n);
}

/* A set as a class, or as one that is negated, whichever is shorter; nothing at all is the
 * complement of everything. */
static int put_set(struct translator *t, struct set *set)
{
    const uint32_t last = last_code(t);
    struct set other = {0};
    int rc;

    set_settle(set, last);
    set_union(&other, set);
    set_negate(&other, last);
    const bool negate = !set->nranges || (other.nranges && other.nranges < set->nranges);
    const struct set *shown = negate ? &other : set;
    rc = set->failed || other.failed
             ? fsdp_err_set(t->err, FSDP_ENOMEM, "regular expression: out of memory")
             : put(t, negate ? "[^" : "[", negate ? 2 : 1);
    for (size_t i = 0; rc == FSDP_OK && i < shown->nranges; i++)
        rc = put_range(t, shown->ranges[i]);
    set_free(&other);
    return rc == FSDP_OK ? put(t, "]", 1) : rc;
}

/* ---- escapes --------------------------------------------------------------------------------- */

static int class_of_escape(struct translator *t, const char *name, size_t nbytes, bool negate,
                           const char *at, struct set *set)
{
    struct set own = {0};

    if (!unicode_class(name, nbytes, set_add, &own))
        return refuse(t, at, "a property");
    if (t->caseless[t->depth])
        return set_free(&own), refuse(t, at, "a property where case is ignored,");
    if (negate)
        set_negate(&own, LAST_CODE);
    set_union(set, &own);
    set_free(&own);
    return FSDP_OK;
}

/* \p{Name}, \P{Name}, \p{^Name}, \pL; t->at is behind the p. */
static int parse_property(struct translator *t, bool negate, const char *at, struct set *set)
{
    if (t->at < t->end && *t->at != '{') {
        t->at++;
        return class_of_escape(t, t->at - 1, 1, negate, at, set);
    }
    const char *close = memchr(t->at, '}', (size_t)(t->end - t->at));
    if (!close)
        return refuse(t, at, "a property without '}'");
    const char *name = t->at + 1;
    if (*name == '^') {
        negate = !negate;
        name++;
    }
    t->at = close + 1;
    return class_of_escape(t, name, (size_t)(close - name), negate, at, set);
}

static int hex_value(const char *text, size_t nbytes, uint32_t *code)
{
    char copy[9] = "", *end;

    if (!nbytes || nbytes > 8)
        return -1;
    memcpy(copy, text, nbytes);
    *code = (uint32_t)strtoul(copy, &end, 16);
    return *end || *code > LAST_CODE ? -1 : 0;
}

/* \x41, \x{41}, \u0041; t->at is behind the letter. */
static int parse_hex(struct translator *t, char letter, const char *at, uint32_t *code)
{
    const char *digits = t->at;
    size_t ndigits = letter == 'u' ? 4 : 2;

    if (digits < t->end && *digits == '{') {
        const char *close = memchr(digits, '}', (size_t)(t->end - digits));
        if (!close)
            return refuse(t, at, "a code point without '}'");
        digits++;
        ndigits = (size_t)(close - digits);
        t->at = close + 1;
    } else {
        if ((size_t)(t->end - digits) < ndigits)
            return refuse(t, at, "a code point");
        t->at += ndigits;
    }
    return hex_value(digits, ndigits, code) ? refuse(t, at, "a code point") : FSDP_OK;
}

/* An escape that means a class (in *set) or a character (in *code, *is_class false). t->at is at
 * the backslash. */
static int parse_escape(struct translator *t, struct set *set, bool *is_class, uint32_t *code)
{
    static const struct {
        char letter;
        const char *name;
        bool negate;
    } classes[] = {{'s', "White_Space", false}, {'S', "White_Space", true}, {'d', "Nd", false},
                   {'D', "Nd", true},           {'w', "Word", false},       {'W', "Word", true}};
    static const char letters[] = "rntfavex", values[] = "\r\n\t\f\a\v\033";
    const char *at = t->at;

    *is_class = false;
    if (++t->at == t->end)
        return refuse(t, at, "a backslash at the end");
    const char letter = *t->at++;
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
        if (letter == classes[i].letter) {
            *is_class = true;
            return class_of_escape(t, classes[i].name, strlen(classes[i].name), classes[i].negate,
                                   at, set);
        }
    if (letter == 'p' || letter == 'P') {
        *is_class = true;
        return parse_property(t, letter == 'P', at, set);
    }
    if (letter == 'x' || letter == 'u')
        return parse_hex(t, letter, at, code);
    const char *known = strchr(letters, letter);
    if (known && letter != 'x') {
        *code = (unsigned char)values[known - letters];
        return FSDP_OK;
    }
    if ((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
        (letter >= '0' && letter <= '9') || (unsigned char)letter >= 0x80)
        return refuse(t, at, "an escape");
    *code = (unsigned char)letter;
    return FSDP_OK;
}

static int parse_char(struct translator *t, uint32_t *code)
{
    const int step = fsdp_utf8_decode(code, t->at, t->end);

    if (!step)
        return refuse(t, t->at, "a byte that is not UTF-8");
    t->at += step;
    return FSDP_OK;
}

/* ---- classes --------------------------------------------------------------------------------- */

static int parse_class(struct translator *t, struct set *set, int depth);

/* The upper end of a range, where one follows: a-z. */
static int parse_range_end(struct translator *t, uint32_t first, struct set *set)
{
    const char *at = t->at;
    uint32_t last = first;
    bool is_class = false;

    if (t->end - t->at >= 2 && t->at[0] == '-' && t->at[1] != ']') {
        t->at++;
        if (*t->at == '[')
            return refuse(t, at, "a range to a class");
        FSDP_TRY(*t->at == '\\' ? parse_escape(t, set, &is_class, &last) : parse_char(t, &last));
    }
    if (is_class || last < first)
        return refuse(t, at, "a range");
    set_add(set, (struct unicode_range){first, last});
    return FSDP_OK;
}

static int parse_class_item(struct translator *t, struct set *set, int depth)
{
    uint32_t code;
    bool is_class = false;

    if (*t->at == '[') {
        struct set inner = {0};
        if (t->end - t->at > 1 && t->at[1] == ':')
            return refuse(t, t->at, "a POSIX class");
        int rc = parse_class(t, &inner, depth + 1);
        set_union(set, &inner);
        set_free(&inner);
        return rc;
    }
    FSDP_TRY(*t->at == '\\' ? parse_escape(t, set, &is_class, &code) : parse_char(t, &code));
    return is_class ? FSDP_OK : parse_range_end(t, code, set);
}

static bool at_intersection(const struct translator *t)
{
    return t->end - t->at >= 2 && t->at[0] == '&' && t->at[1] == '&';
}

/* [...]; t->at is at the bracket. Intersections bind weakest: [a b && c] is (a or b) and c. */
static int parse_class(struct translator *t, struct set *set, int depth)
{
    const char *at = t->at;
    struct set part = {0}, whole = {0};
    bool negate = false, several = false, any = false;
    int rc = FSDP_OK;

    if (depth > 8)
        return refuse(t, at, "a class nested so deep");
    if (++t->at < t->end && *t->at == '^') {
        negate = true;
        t->at++;
    }
    if (t->at < t->end && *t->at == ']')
        return refuse(t, at, "an empty class");
    while (rc == FSDP_OK && t->at < t->end && *t->at != ']') {
        if (at_intersection(t)) {
            t->at += 2;
            if (several)
                set_intersect(&whole, &part);
            else
                set_union(&whole, &part);
            several = true;
            set_free(&part);
            continue;
        }
        rc = parse_class_item(t, &part, depth);
        any = true;
    }
    if (several)
        set_intersect(&whole, &part);
    else
        set_union(&whole, &part);
    if (rc == FSDP_OK && (t->at == t->end || !any))
        rc = refuse(t, at, "a class without ']'");
    if (rc == FSDP_OK && negate)
        set_negate(&whole, LAST_CODE);
    t->at += rc == FSDP_OK;
    set_union(set, &whole);
    set_free(&part);
    set_free(&whole);
    return rc;
}

/* ---- atoms, groups, quantifiers -------------------------------------------------------------- */

/* A negated class under (?i) would lose what its members' other case is: only plain ones are known
 * to be read alike. */
static int put_class(struct translator *t)
{
    struct set set = {0};
    const char *at = t->at;

    if (t->caseless[t->depth] && t->end - at > 1 && at[1] == '^')
        return refuse(t, at, "a negated class where case is ignored,");
    int rc = parse_class(t, &set, 0);
    begin_atom(t);
    if (rc == FSDP_OK)
        rc = put_set(t, &set);
    set_free(&set);
    return rc;
}

static int put_escape(struct translator *t)
{
    struct set set = {0};
    uint32_t code;
    bool is_class;
    int rc = parse_escape(t, &set, &is_class, &code);

    begin_atom(t);
    if (rc == FSDP_OK)
        rc = is_class ? put_set(t, &set) : put_range(t, (struct unicode_range){code, code});
    set_free(&set);
    return rc;
}

static int put_literal(struct translator *t)
{
    uint32_t code;

    FSDP_TRY(parse_char(t, &code));
    begin_atom(t);
    /* A character beyond ASCII in the pattern for ASCII: nothing matches it. */
    if (code > last_code(t))
        return put(t, "[^\\x{0}-\\x{7f}]", 15);
    return put_range(t, (struct unicode_range){code, code});
}

/* Beginnings of groups, the longest first. */
static const struct group {
    const char *text;
    bool caseless, looks_back;
} group_starts[] = {
    {"(?<=", false, true}, {"(?<!", false, true}, {"(?i:", true, false}, {"(?:", false, false},
    {"(?=", false, false}, {"(?!", false, false}, {"(?>", false, false},
};

static int open_group(struct translator *t)
{
    const size_t left = (size_t)(t->end - t->at);
    const struct group *group = NULL;
    size_t nbytes = 1;

    if (t->depth + 1 > MAX_DEPTH - 1)
        return refuse(t, t->at, "a group nested so deep");
    if (left >= 4 && !memcmp(t->at, "(?i)", 4) && t->at == t->start) {
        t->caseless[0] = true;
        t->at += 4;
        return put(t, "(?i)", 4);
    }
    for (size_t i = 0; left > 1 && t->at[1] == '?' && !group; i++) {
        if (i == sizeof group_starts / sizeof group_starts[0])
            return refuse(t, t->at, "this kind of group or flag");
        nbytes = strlen(group_starts[i].text);
        if (nbytes <= left && !memcmp(t->at, group_starts[i].text, nbytes))
            group = &group_starts[i];
    }
    t->groups[t->depth] = t->out.nbytes;
    t->caseless[t->depth + 1] = t->caseless[t->depth] || (group && group->caseless);
    t->depth++;
    t->looks_back |= group && group->looks_back;
    t->has_atom = false;
    int rc = group ? put(t, t->at, nbytes) : put(t, "(?:", 3);
    t->at += nbytes;
    return rc;
}

static int close_group(struct translator *t)
{
    if (!t->depth)
        return refuse(t, t->at, "a ')' without its '('");
    t->depth--;
    t->at++;
    FSDP_TRY(put(t, ")", 1));
    t->atom = t->groups[t->depth];
    t->has_atom = true;
    return FSDP_OK;
}

/* The last atom becomes a group of its own, so that something can be put behind it. */
static int wrap_atom(struct translator *t)
{
    FSDP_TRY(put(t, "   )", 4));
    memmove(t->out.at + t->atom + 3, t->out.at + t->atom, t->out.nbytes - 4 - t->atom);
    memcpy(t->out.at + t->atom, "(?:", 3);
    return FSDP_OK;
}

/* {n}, {n,}, {,m} or {n,m} at t->at: its length, or 0. */
static size_t interval_nbytes(const struct translator *t, bool *from_zero)
{
    const char *at = t->at + 1;
    size_t ndigits = 0;

    *from_zero = at < t->end && *at == ',';
    for (; at < t->end && ((*at >= '0' && *at <= '9') || *at == ','); at++)
        ndigits += *at != ',';
    return at < t->end && *at == '}' && ndigits ? (size_t)(at + 1 - t->at) : 0;
}

static int put_quantifier(struct translator *t)
{
    const char *at = t->at;
    bool from_zero = false;
    const bool interval = *at == '{';
    const size_t nbytes = interval ? interval_nbytes(t, &from_zero) : 1;

    if (!nbytes)
        return refuse(t, at, "a '{' that begins no repetition");
    if (!t->has_atom)
        return refuse(t, at, "a repetition of nothing");
    FSDP_TRY(put(t, from_zero ? "{0" : at, from_zero ? 2 : nbytes));
    if (from_zero)
        FSDP_TRY(put(t, at + 1, nbytes - 1));
    t->at += nbytes;
    if (t->at == t->end || (*t->at != '+' && *t->at != '?')) {
        t->has_atom = false;
        return FSDP_OK;
    }
    const char mode = *t->at++;
    if (interval && mode == '+' && t->engine == REGEX_TOKENIZERS)
        FSDP_TRY(wrap_atom(t));
    if (interval && mode == '?' && t->engine == REGEX_TOKENIZERS && !memchr(at, ',', nbytes))
        return refuse(t, at, "a lazy fixed repetition");
    t->has_atom = false;
    return put(t, &mode, 1);
}

static int put_next(struct translator *t)
{
    switch (*t->at) {
    case '[':
        return put_class(t);
    case '\\':
        return put_escape(t);
    case '(':
        return open_group(t);
    case ')':
        return close_group(t);
    case '*':
    case '+':
    case '?':
    case '{':
        return put_quantifier(t);
    case '.':
        begin_atom(t);
        return put(t, t->at++, 1);
    case '|':
        t->has_atom = false;
        return put(t, t->at++, 1);
    case '^':
        t->looks_back = true; /* fall through */
    case '$':
        t->has_atom = false;
        return put(t, t->at++, 1);
    default:
        return put_literal(t);
    }
}

int regex_translate(struct regex_source *out, const char *pattern, size_t nbytes,
                    enum regex_engine engine, bool ascii, struct fsdp_err *err)
{
    struct translator t = {.start = pattern,
                           .at = pattern,
                           .end = pattern + nbytes,
                           .engine = engine,
                           .ascii = ascii,
                           .err = err};
    int rc = FSDP_OK;

    while (rc == FSDP_OK && t.at < t.end)
        rc = put_next(&t);
    if (rc == FSDP_OK && t.depth)
        rc = refuse(&t, t.end, "a '(' without its ')'");
    if (rc != FSDP_OK) {
        unicode_text_free(&t.out);
        return rc;
    }
    *out = (struct regex_source){t.out.at, t.out.nbytes, t.looks_back};
    return FSDP_OK;
}
