/* SPDX-License-Identifier: Apache-2.0 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "found.h"

enum { MAX_KEYS_SHOWN = 8, MAX_KEY_SHOWN = 40 };

static const char *skip_blanks(const char *at, const char *end)
{
    while (at < end && *at && strchr(" \t\r\n", *at))
        at++;
    return at;
}

/* From a quote to behind the closing one. */
static const char *skip_string(const char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++)
        at += *at == '\\';
    return at < end ? at + 1 : end;
}

/* The value of a top-level key; NULL: there is none. */
static const char *find_value(const char *at, const char *end, const char *key)
{
    const size_t len = strlen(key);
    const char *found = NULL;

    for (int depth = 0; at < end;) {
        if (*at == '"') {
            const char *name = at + 1, *after = skip_string(at, end);
            at = skip_blanks(after, end);
            const bool is_key = depth == 1 && at < end && *at == ':';
            if (is_key && (size_t)(after - name) == len + 1 && !memcmp(name, key, len))
                found = skip_blanks(at + 1, end);
            continue;
        }
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
        at++;
    }
    return found; /* of a key that is there twice the last, as the parser does */
}

size_t data_found_column(const char *text, size_t nbytes, const char *key)
{
    const char *end = text + nbytes, *at = key ? find_value(text, end, key) : NULL;
    size_t column = 1;

    if (!at)
        at = skip_blanks(text, end);
    for (const char *c = text; c < at; c++)
        column += (*c & 0xc0) != 0x80; /* not inside a character */
    return column;
}

const char *data_found_type(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a text";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_NULL:
        return "null";
    default:
        return "true or false";
    }
}

const char *data_found_keys(char *out, size_t out_nbytes, const json_t *value)
{
    const char *key;
    const json_t *member;
    size_t len = 0;
    int nkeys = 0;

    if (!json_is_object(value) || !json_object_size(value)) {
        snprintf(out, out_nbytes, "%s",
                 json_is_object(value) ? "an empty object" : data_found_type(value));
        return out;
    }
    json_object_foreach((json_t *)(uintptr_t)value, key, member)
    {
        if (nkeys++ < MAX_KEYS_SHOWN && len < out_nbytes)
            len += (size_t)snprintf(out + len, out_nbytes - len, "%s'%.*s'", len ? ", " : "",
                                    MAX_KEY_SHOWN, key);
    }
    if (nkeys > MAX_KEYS_SHOWN && len < out_nbytes)
        snprintf(out + len, out_nbytes - len, " and %d more", nkeys - MAX_KEYS_SHOWN);
    return out;
}
