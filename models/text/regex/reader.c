/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a pattern character by character. */
#include <string.h>

#include "parse.h"

int regex_refuse(struct regex_parser *p, size_t at, const char *what)
{
    return fsdp_err_set(p->err, FSDP_EUNSUPPORTED, "regex: %s at byte %zu of %.*s", what, at,
                        (int)(p->nbytes < 300 ? p->nbytes : 300), p->pattern);
}

bool regex_starts(const struct regex_parser *p, const char *text)
{
    const size_t n = strlen(text);
    return p->nbytes - p->at >= n && memcmp(p->pattern + p->at, text, n) == 0;
}

char regex_peek(const struct regex_parser *p, size_t ahead)
{
    return p->at + ahead < p->nbytes ? p->pattern[p->at + ahead] : 0;
}

uint32_t regex_take(struct regex_parser *p)
{
    size_t n;
    const uint32_t code = unicode_decode(p->pattern + p->at, &n);

    p->at += n;
    return code;
}
