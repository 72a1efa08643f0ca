/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "line.h"

enum { MAX_DEPTH = 64 };

static const char *skip_blanks(const char *at)
{
    while (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n')
        at++;
    return at;
}

/* From the quote that opens a text to behind the one that closes it; NULL: it does not close. */
static const char *skip_text(const char *at)
{
    for (at++; *at != '"'; at++)
        if (!*at || (*at == '\\' && !*++at))
            return NULL;
    return at + 1;
}

/* An array or object, whose inside is not looked at beyond texts and brackets. */
static const char *skip_nested(const char *at)
{
    int depth = 0;

    do {
        if (*at == '"') {
            if (!(at = skip_text(at)))
                return NULL;
            continue;
        }
        if (!*at || depth > MAX_DEPTH)
            return NULL;
        depth += (*at == '[' || *at == '{') - (*at == ']' || *at == '}');
        at++;
    } while (depth > 0);
    return at;
}

/* Behind a value; *number says whether it is one. */
static const char *read_value(const char *at, double *value, bool *number)
{
    static const struct {
        const char *word;
        double value;
    } words[] = {{"null", NAN}, {"true", 1},       {"false", 0},
                 {"NaN", NAN},  {"Infinity", NAN}, {"-Infinity", NAN}};

    *number = false;
    if (*at == '"')
        return skip_text(at);
    if (*at == '[' || *at == '{')
        return skip_nested(at);
    *number = true;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!strncmp(at, words[i].word, strlen(words[i].word))) {
            *value = words[i].value;
            return at + strlen(words[i].word);
        }
    if (*at != '-' && (*at < '0' || *at > '9'))
        return NULL;
    char *end;
    *value = strtod(at, &end);
    return end == at ? NULL : end;
}

bool line_read(const char *line, size_t nbytes, line_number_f *take, void *ctx)
{
    const char *at = skip_blanks(line);

    if (*at++ != '{')
        return false;
    at = skip_blanks(at);
    while (*at != '}') {
        double value = 0;
        bool number;
        const char *key = at + 1, *end;
        if (*at != '"' || !(end = skip_text(at)))
            return false;
        at = skip_blanks(end);
        if (*at++ != ':' || !(at = read_value(skip_blanks(at), &value, &number)))
            return false;
        if (number)
            take(ctx, key, (size_t)(end - 1 - key), value);
        at = skip_blanks(at);
        if (*at == ',')
            at = skip_blanks(at + 1);
        else if (*at != '}')
            return false;
    }
    return skip_blanks(at + 1) == line + nbytes;
}
