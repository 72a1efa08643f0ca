/* SPDX-License-Identifier: Apache-2.0 */
/* Text that comes from files and users: what is UTF-8, and what a terminal may be shown. */
#include <string.h>

#include "fsdp/base.h"

int fsdp_utf8_decode(uint32_t *code, const char *text, const char *end)
{
    const unsigned char *u = (const unsigned char *)text;
    if (text == end)
        return 0;
    *code = u[0];
    if (u[0] < 0x80)
        return 1;
    int n = u[0] >= 0xf0 ? 4 : u[0] >= 0xe0 ? 3 : 2;
    if (u[0] < 0xc2 || u[0] > 0xf4 || end - text < n)
        return 0;
    *code = u[0] & (0xffu >> (n + 1));
    for (int i = 1; i < n; i++) {
        if ((u[i] & 0xc0) != 0x80)
            return 0;
        *code = *code << 6 | (u[i] & 0x3f);
    }
    bool is_longer_than_needed = (n == 3 && *code < 0x800) || (n == 4 && *code < 0x10000);
    bool is_surrogate = *code >= 0xd800 && *code < 0xe000;
    return is_longer_than_needed || is_surrogate || *code > 0x10ffff ? 0 : n;
}

/* Control characters of C0 and C1, among them the beginning of each escape sequence, and those that
 * reorder or break the line that they stand in. */
static bool commands_terminal(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x200e && code <= 0x200f) ||
           (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

char *fsdp_text_clean(char *text)
{
    const char *from = text, *end = text + strlen(text);
    char *to = text;

    while (from < end) {
        uint32_t code;
        int nbytes = fsdp_utf8_decode(&code, from, end);
        if (nbytes && !commands_terminal(code)) {
            memmove(to, from, (size_t)nbytes);
            to += nbytes;
        } else {
            *to++ = '?';
        }
        from += nbytes ? nbytes : 1;
    }
    *to = 0;
    return text;
}

bool fsdp_text_ends(const char *text, const char *end)
{
    const size_t nbytes = strlen(text), end_nbytes = strlen(end);
    return nbytes >= end_nbytes && !memcmp(text + nbytes - end_nbytes, end, end_nbytes);
}
