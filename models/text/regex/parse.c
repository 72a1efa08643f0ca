/* SPDX-License-Identifier: Apache-2.0 */
/* From a pattern to a program: the syntax that Oniguruma (as tokenizers sets it) and fancy-regex
 * (of tiktoken) share, and where they differ, the engine's meaning. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parse.h"

/* What was parsed last: its first piece, whether it is one set, whether it may match nothing. */
struct atom {
    size_t first;
    bool is_set, nullable, is_assertion;
};

static int parse_alternatives(struct regex_parser *p, bool caseless, bool *nullable);

/* ---- quantifiers ---------------------------------------------------------------------------- */

enum { NO_LIMIT = -1, MAX_TIMES = 1000 };

struct quantifier {
    long min, max;
    bool braces;
    char suffix; /* '?' lazy, '+' possessive, 0 greedy */
};

static int parse_times(struct regex_parser *p, long *out)
{
    const size_t at = p->at;

    *out = 0;
    while (regex_peek(p, 0) >= '0' && regex_peek(p, 0) <= '9' && *out <= MAX_TIMES)
        *out = *out * 10 + (p->pattern[p->at++] - '0');
    if (p->at == at || *out > MAX_TIMES)
        return regex_refuse(p, at, "a number of times");
    return FSDP_OK;
}

static int parse_braces(struct regex_parser *p, struct quantifier *q)
{
    const size_t at = p->at++;

    q->braces = true;
    q->min = 0;
    if (regex_peek(p, 0) != ',' || p->engine != REGEX_TOKENIZERS)
        FSDP_TRY(parse_times(p, &q->min));
    q->max = q->min;
    if (regex_peek(p, 0) == ',') {
        p->at++;
        q->max = NO_LIMIT;
        if (regex_peek(p, 0) != '}')
            FSDP_TRY(parse_times(p, &q->max));
    }
    if (regex_peek(p, 0) != '}' || (q->max != NO_LIMIT && (q->max < q->min || !q->max)))
        return regex_refuse(p, at, "braces");
    p->at++;
    return FSDP_OK;
}

/* *found is false, and nothing is taken, where none stands here. */
static int parse_quantifier(struct regex_parser *p, struct quantifier *q, bool *found)
{
    const size_t at = p->at;
    const char c = regex_peek(p, 0);

    *q = (struct quantifier){.min = c == '+', .max = c == '?' ? 1 : NO_LIMIT};
    *found = c && strchr("*+?{", c);
    if (!*found)
        return FSDP_OK;
    if (c == '{')
        FSDP_TRY(parse_braces(p, q));
    else
        p->at++;
    if (regex_peek(p, 0) == '?' || regex_peek(p, 0) == '+')
        q->suffix = p->pattern[p->at++];
    if (q->suffix == '?' && q->braces && q->min == q->max && p->engine == REGEX_TOKENIZERS)
        return regex_refuse(p, at, "a lazy fixed number of times");
    if (regex_peek(p, 0) && strchr("*+?{", regex_peek(p, 0)))
        return regex_refuse(p, at, "a quantifier of a quantifier");
    return FSDP_OK;
}

static int add_quantifier(struct regex_parser *p, const struct quantifier *q, const char *suffix)
{
    char text[48];

    if (q->max == NO_LIMIT)
        snprintf(text, sizeof text, "{%ld,}%s", q->min, suffix);
    else
        snprintf(text, sizeof text, "{%ld,%ld}%s", q->min, q->max, suffix);
    return regex_program_text(p->out, text, p->err);
}

/* Oniguruma has no possessive braces: x{1,3}+ repeats x{1,3}. From one x on, and in the order in
 * which lengths are tried, that is what x+ matches. */
static int add_repeated_braces(struct regex_parser *p, struct quantifier *q,
                               const struct atom *atom)
{
    if (atom->is_set && q->min <= 1) {
        q->max = NO_LIMIT;
        return add_quantifier(p, q, "");
    }
    if (!q->min)
        return regex_refuse(p, p->at, "a repetition of what may match nothing");
    FSDP_TRY(add_quantifier(p, q, ""));
    FSDP_TRY(regex_program_insert(p->out, atom->first, "(?:", p->err));
    return regex_program_text(p->out, ")+", p->err);
}

static int parse_repetition(struct regex_parser *p, struct atom *atom)
{
    const size_t at = p->at;
    struct quantifier q;
    bool found;

    FSDP_TRY(parse_quantifier(p, &q, &found));
    if (!found)
        return FSDP_OK;
    p->folded = 0;
    if (atom->is_assertion)
        return regex_refuse(p, at, "a quantifier of an assertion");
    if (atom->nullable)
        return regex_refuse(p, at, "a repetition of what may match nothing");
    atom->nullable = !q.min;
    if (q.braces && q.suffix == '+' && p->engine == REGEX_TOKENIZERS)
        return add_repeated_braces(p, &q, atom);
    return add_quantifier(p, &q, (char[2]){q.suffix, 0});
}

/* ---- groups --------------------------------------------------------------------------------- */

static const struct group {
    const char *text, *opens; /* NULL: refused */
    bool is_assertion, sets_case, caseless;
} groups[] = {
    {"(?:", "(?:", false, false, false}, {"(?>", "(?>", false, false, false},
    {"(?=", "(?=", true, false, false},  {"(?!", "(?!", true, false, false},
    {"(?i:", "(?:", false, true, true},  {"(?-i:", "(?:", false, true, false},
    {"(?", NULL, false, false, false},   {"(*", NULL, false, false, false},
    {"(", "(?:", false, false, false},
};

/* What is refused, as its writer knows it. */
static const char *group_name(const struct regex_parser *p)
{
    static const char *const names[][2] = {
        {"(?<=", "a lookbehind"},
        {"(?<!", "a lookbehind"},
        {"(?<", "a group with a name"},
        {"(?P", "a group with a name"},
        {"(?#", "a comment"},
        {"(?i)", "flags that do not stand first"},
        {"(?(", "a condition"},
        {"(?~", "an absence"},
        {"(*", "a verb"},
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (regex_starts(p, names[i][0]))
            return names[i][1];
    return "a group of this kind";
}

static int parse_group(struct regex_parser *p, bool caseless, struct atom *atom)
{
    const size_t at = p->at;
    const struct group *group = groups;

    while (!regex_starts(p, group->text))
        group++;
    if (!group->opens)
        return regex_refuse(p, at, group_name(p));
    if (++p->depth > REGEX_MAX_DEPTH)
        return regex_refuse(p, at, "nesting so deep");
    p->at += strlen(group->text);
    FSDP_TRY(regex_program_text(p->out, group->opens, p->err));
    FSDP_TRY(parse_alternatives(p, group->sets_case ? group->caseless : caseless, &atom->nullable));
    if (regex_peek(p, 0) != ')')
        return regex_refuse(p, at, "a group that does not end");
    p->at++;
    p->depth--;
    atom->is_assertion = group->is_assertion;
    atom->nullable |= group->is_assertion;
    return regex_program_text(p->out, ")", p->err);
}

/* ---- atoms ---------------------------------------------------------------------------------- */

/* Oniguruma lets ß match (?i:ss), and ligatures match their letters. */
static int check_folding(struct regex_parser *p, size_t at, uint32_t code)
{
    static const char pairs[][3] = {"ss", "st", "ff", "fi", "fl"};
    const char pair[] = {(char)p->folded, (char)(code | 0x20), 0};

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && p->engine == REGEX_TOKENIZERS; i++)
        if (strcmp(pairs[i], pair) == 0)
            return regex_refuse(p, at, "caseless letters of which ligatures consist");
    p->folded = code | 0x20;
    return FSDP_OK;
}

/* The end of the text, or of a line in Oniguruma. */
static int add_end(struct regex_parser *p, bool of_line)
{
    struct regex_set newline = {0};

    if (!of_line)
        return regex_program_text(p->out, "\\z", p->err);
    FSDP_TRY(regex_program_text(p->out, "(?=", p->err));
    FSDP_TRY(regex_set_add_range(&newline, '\n', '\n', p->err));
    FSDP_TRY(regex_program_set(p->out, &newline, p->err));
    return regex_program_text(p->out, "|\\z)", p->err);
}

static int parse_literal(struct regex_parser *p, bool caseless, struct regex_set *set)
{
    const size_t at = p->at;
    const uint32_t before = p->folded;
    struct unicode_range code;
    bool is_code = true;

    p->folded = 0;
    if (regex_peek(p, 0) == '\\')
        FSDP_TRY(regex_parse_escape(p, caseless, set, &is_code, &code.first));
    else
        code.first = regex_take(p);
    if (!is_code)
        return FSDP_OK;
    code.last = code.first;
    if (caseless) {
        p->folded = before;
        FSDP_TRY(check_folding(p, at, code.first));
    }
    return regex_add_codes(p, at, caseless, set, &code);
}

static int parse_set(struct regex_parser *p, bool caseless)
{
    struct regex_set set = {0};
    int rc;

    if (regex_peek(p, 0) == '[') {
        p->folded = 0;
        rc = regex_parse_class(p, caseless, &set);
    } else if (regex_peek(p, 0) == '.') {
        p->folded = 0;
        p->at++;
        rc = regex_set_add_range(&set, '\n', '\n', p->err);
        if (!rc)
            rc = regex_set_negate(&set, p->err);
    } else {
        rc = parse_literal(p, caseless, &set);
    }
    if (!rc)
        return regex_program_set(p->out, &set, p->err);
    regex_set_free(&set);
    return rc;
}

static int parse_atom(struct regex_parser *p, bool caseless, struct atom *atom)
{
    const char c = regex_peek(p, 0);

    *atom = (struct atom){.first = p->out->npieces};
    if (c == '(')
        return parse_group(p, caseless, atom);
    if (c == '$' || regex_starts(p, "\\z")) {
        atom->is_assertion = atom->nullable = true;
        p->at += c == '$' ? 1 : 2;
        return add_end(p, c == '$' && p->engine == REGEX_TOKENIZERS);
    }
    if (c == '^')
        return regex_refuse(p, p->at, "^");
    if (strchr("*+?{", c) || c == ']' || c == '}')
        return regex_refuse(p, p->at, "a bare quantifier or bracket");
    atom->is_set = true;
    return parse_set(p, caseless);
}

static int parse_sequence(struct regex_parser *p, bool caseless, bool *nullable)
{
    struct atom atom;

    *nullable = true;
    p->folded = 0;
    while (p->at < p->nbytes && regex_peek(p, 0) != '|' && regex_peek(p, 0) != ')') {
        if (!regex_peek(p, 0))
            return regex_refuse(p, p->at, "a null character");
        FSDP_TRY(parse_atom(p, caseless, &atom));
        FSDP_TRY(parse_repetition(p, &atom));
        *nullable &= atom.nullable;
    }
    return FSDP_OK;
}

/* Up to the closing bracket, which is not taken, or the end. */
static int parse_alternatives(struct regex_parser *p, bool caseless, bool *nullable)
{
    bool one;

    while (regex_starts(p, "(?i)")) {
        caseless = true;
        p->at += 4;
    }
    FSDP_TRY(parse_sequence(p, caseless, nullable));
    while (regex_peek(p, 0) == '|') {
        p->at++;
        FSDP_TRY(regex_program_text(p->out, "|", p->err));
        FSDP_TRY(parse_sequence(p, caseless, &one));
        *nullable |= one;
    }
    return FSDP_OK;
}

int regex_parse(struct regex_program *out, const char *pattern, size_t nbytes,
                enum regex_engine engine, struct fsdp_err *err)
{
    struct regex_parser p = {
        .pattern = pattern, .nbytes = nbytes, .engine = engine, .out = out, .err = err};
    size_t bad;
    bool nullable;

    if (!unicode_valid(pattern, nbytes, &bad))
        return fsdp_err_set(err, FSDP_EINVAL, "regex: no UTF-8 at byte %zu of the pattern", bad);
    FSDP_TRY(parse_alternatives(&p, false, &nullable));
    if (p.at < nbytes)
        return regex_refuse(&p, p.at, "a closing bracket too many");
    return nullable ? regex_refuse(&p, 0, "a pattern that may match nothing") : FSDP_OK;
}
