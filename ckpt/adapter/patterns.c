/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PEFT's rank_pattern and alpha_pattern: objects of a number for each regular expression. A module,
 * or a parameter of experts, has the number of the first that matches the end of its whole name,
 * from the name's begin or from behind a dot. PEFT matches with Python's re. What of it is written
 * otherwise for POSIX is translated, and what POSIX does not have is refused.
 */
#include <limits.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>

#include "merge.h"

/* Some C libraries match deep or much repeated expressions by recursion. */
enum { PATTERN_NBYTES = 512, MAX_DEPTH = 16, MAX_REPEAT = 99, MAX_PATTERNS = 4096 };

struct ckpt_patterns {
    int count;
    struct pattern {
        regex_t regex;
        double value;
    } all[];
};

/* ---- from Python's re to POSIX --------------------------------------------------------------- */

struct translation {
    const char *at;
    char *out;
    size_t nbytes; /* left in out, with the zero */
    int depth;
};

static bool put_text(struct translation *t, const char *text, size_t nbytes)
{
    if (nbytes >= t->nbytes)
        return false;
    memcpy(t->out, text, nbytes);
    t->out += nbytes;
    t->nbytes -= nbytes;
    *t->out = 0;
    return true;
}

/* Behind a backslash. */
static bool put_escaped(struct translation *t)
{
    const char escaped[] = {'\\', *t->at};
    const char c = *t->at++;

    if (c == 'd')
        return put_text(t, "[0-9]", 5);
    if (c == 'w')
        return put_text(t, "[A-Za-z0-9_]", 12);
    if (c && strchr(".[]\\()*+?{}^$|", c))
        return put_text(t, escaped, 2);
    return c && strchr("-_/:,#&~@!%\"'=<>;` ", c) && put_text(t, &c, 1);
}

/* A set of characters: no escapes in it, nor classes of POSIX. */
static bool put_set(struct translation *t)
{
    const char *begin = t->at - 1;

    t->at += *t->at == '^';
    t->at += *t->at == ']';
    t->at += strcspn(t->at, "]\\[");
    return *t->at++ == ']' && put_text(t, begin, (size_t)(t->at - begin));
}

/* (?:...) has a group's meaning here, because only a match counts. */
static bool put_group(struct translation *t)
{
    if (*t->at == '?' && strncmp(t->at, "?:", 2) != 0)
        return false;
    t->at += *t->at == '?' ? 2 : 0;
    return ++t->depth <= MAX_DEPTH && put_text(t, "(", 1);
}

/* {m}, {m,} or {m,n}, behind its first brace. */
static bool put_bounds(struct translation *t)
{
    const char *begin = t->at - 1;
    int least = 0, most = 0, nbytes = 0;

    if (sscanf(t->at, "%2d%n", &least, &nbytes) != 1 || least < 0)
        return false;
    t->at += nbytes;
    if (*t->at == ',' && sscanf(t->at, ",%2d%n", &most, &nbytes) == 1)
        t->at += nbytes;
    else
        t->at += *t->at == ',';
    return *t->at++ == '}' && most <= MAX_REPEAT && put_text(t, begin, (size_t)(t->at - begin));
}

/* Whether as few as possible or as many are taken decides nothing, since all must match. */
static bool put_repeat(struct translation *t, char c)
{
    const bool done = c == '{' ? put_bounds(t) : put_text(t, &c, 1);

    t->at += *t->at == '?';
    return done && !(*t->at && strchr("*+?{", *t->at));
}

static bool put_next(struct translation *t)
{
    const char c = *t->at++;

    switch (c) {
    case '\\':
        return put_escaped(t);
    case '[':
        return put_set(t);
    case '(':
        return put_group(t);
    case ')':
        t->depth--;
        return t->depth >= 0 && put_text(t, &c, 1);
    case '*':
    case '+':
    case '?':
    case '{':
        return put_repeat(t, c);
    default:
        return put_text(t, &c, 1);
    }
}

static bool translate(char out[PATTERN_NBYTES], const char *pattern)
{
    struct translation t = {.at = pattern, .out = out, .nbytes = PATTERN_NBYTES};
    bool good = put_text(&t, "^(.*\\.)?(", 9);

    while (good && *t.at)
        good = put_next(&t);
    return good && !t.depth && put_text(&t, ")$", 2);
}

/* ---- reading --------------------------------------------------------------------------------- */

static int refuse_pattern(const char *path, const char *key, const char *pattern, const char *why,
                          struct fsdp_err *err)
{
    return fsdp_err_set(err, FSDP_EUNSUPPORTED, "%s: %s: '%.200s' %s", path, key, pattern, why);
}

static int add_pattern(struct ckpt_patterns *p, const char *pattern, const json_t *value,
                       bool whole, const char *path, const char *key, struct fsdp_err *err)
{
    struct pattern *to = &p->all[p->count];
    char regex[PATTERN_NBYTES];

    if (whole ? !json_is_integer(value) || json_integer_value(value) < 1 ||
                    json_integer_value(value) > INT_MAX
              : !json_is_number(value))
        return refuse_pattern(path, key, pattern, whole ? "is no positive integer" : "is no number",
                              err);
    if (!translate(regex, pattern) || regcomp(&to->regex, regex, REG_EXTENDED | REG_NOSUB))
        return refuse_pattern(
            path, key, pattern,
            "is a regular expression beyond those that are supported: characters, sets, "
            "groups, alternatives and repetitions, \\d and \\w",
            err);
    to->value = json_number_value(value);
    p->count++;
    return FSDP_OK;
}

int ckpt_patterns_read(struct ckpt_patterns **out, const json_t *json, const char *key, bool whole,
                       const char *path, struct fsdp_err *err)
{
    json_t *object = json_object_get(json, key), *value;
    const size_t n = json_object_size(object);
    struct ckpt_patterns *p;
    const char *pattern;
    int rc = FSDP_OK;

    *out = NULL;
    if (!n && (!object || json_is_null(object) || json_is_object(object)))
        return FSDP_OK;
    if (!n || n > MAX_PATTERNS)
        return fsdp_err_set(err, FSDP_EINVAL, "%s: %s is no object of up to %d patterns", path, key,
                            MAX_PATTERNS);
    if (!(p = fsdp_alloc(1, sizeof *p + n * sizeof p->all[0], "patterns", err)))
        return FSDP_ENOMEM;
    json_object_foreach(object, pattern, value)
    {
        if (rc == FSDP_OK)
            rc = add_pattern(p, pattern, value, whole, path, key, err);
    }
    if (rc)
        ckpt_patterns_free(p);
    else
        *out = p;
    return rc;
}

void ckpt_patterns_free(struct ckpt_patterns *p)
{
    for (int i = 0; p && i < p->count; i++)
        regfree(&p->all[i].regex);
    fsdp_free(p);
}

double ckpt_patterns_value(const struct ckpt_patterns *p, const char *module, double otherwise)
{
    for (int i = 0; p && i < p->count; i++)
        if (!regexec(&p->all[i].regex, module, 0, NULL, 0))
            return p->all[i].value;
    return otherwise;
}
