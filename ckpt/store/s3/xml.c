/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "xml.h"

/* The next "<name" or "</name" that ends there; NULL if there is none. */
static const char *find_tag(const char *at, const char *end, const char *slash, const char *name)
{
    size_t nslash = strlen(slash), nname = strlen(name);
    for (; (at = memchr(at, '<', (size_t)(end - at))); at++) {
        const char *p = at + 1;
        if ((size_t)(end - p) <= nslash + nname || memcmp(p, slash, nslash) ||
            memcmp(p + nslash, name, nname))
            continue;
        if (strchr("> \t\r\n/", p[nslash + nname]) && p[nslash + nname])
            return at;
    }
    return NULL;
}

bool ckpt_s3_xml_next(struct ckpt_s3_span *out, struct ckpt_s3_span *rest, const char *name)
{
    const char *end = rest->data + rest->nbytes;
    const char *open = rest->nbytes ? find_tag(rest->data, end, "", name) : NULL;
    const char *close = open ? memchr(open, '>', (size_t)(end - open)) : NULL;
    if (!close)
        return false;
    const char *content = close + 1;
    if (close[-1] == '/') { /* <Name/> */
        *out = (struct ckpt_s3_span){content, 0};
        *rest = (struct ckpt_s3_span){content, (size_t)(end - content)};
        return true;
    }
    const char *tail = find_tag(content, end, "/", name);
    if (!tail)
        return false;
    *out = (struct ckpt_s3_span){content, (size_t)(tail - content)};
    *rest = (struct ckpt_s3_span){tail + 1, (size_t)(end - tail - 1)};
    return true;
}

/* One character, an entity resolved; how many bytes it takes. */
static size_t decode(char *out, const char *at, size_t left)
{
    static const struct {
        const char *text;
        char is;
    } entities[] = {
        {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    *out = *at;
    if (*at != '&')
        return 1;
    for (size_t i = 0; i < sizeof entities / sizeof entities[0]; i++) {
        size_t len = strlen(entities[i].text);
        if (len <= left && !memcmp(at, entities[i].text, len)) {
            *out = entities[i].is;
            return len;
        }
    }
    const char *semicolon = memchr(at, ';', left < 10 ? left : 10);
    if (!semicolon || left < 3 || at[1] != '#')
        return 1;
    bool hexadecimal = at[2] == 'x';
    unsigned long value = strtoul(at + (hexadecimal ? 3 : 2), NULL, hexadecimal ? 16 : 10);
    *out = value && value < 128 ? (char)value : '?';
    return (size_t)(semicolon + 1 - at);
}

bool ckpt_s3_xml_text(char *out, size_t out_nbytes, struct ckpt_s3_span in, const char *name)
{
    struct ckpt_s3_span text;
    size_t nbytes = 0;
    out[0] = 0;
    if (!ckpt_s3_xml_next(&text, &in, name))
        return false;
    for (size_t at = 0; at < text.nbytes && nbytes + 1 < out_nbytes; nbytes++)
        at += decode(&out[nbytes], text.data + at, text.nbytes - at);
    out[nbytes] = 0;
    return true;
}

void ckpt_s3_xml_add(struct ckpt_text *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&':
            ckpt_text_printf(out, "&amp;");
            break;
        case '<':
            ckpt_text_printf(out, "&lt;");
            break;
        case '>':
            ckpt_text_printf(out, "&gt;");
            break;
        default:
            ckpt_text_add(out, text, 1);
        }
    }
}
