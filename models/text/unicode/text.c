/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8, and texts that grow. */
#include <string.h>

#include "unicode.h"

uint32_t unicode_decode(const char *at, size_t *nbytes)
{
    const unsigned char *s = (const unsigned char *)at;

    if (s[0] < 0x80) {
        *nbytes = 1;
        return s[0];
    }
    if (s[0] < 0xe0) {
        *nbytes = 2;
        return (uint32_t)(s[0] & 0x1f) << 6 | (s[1] & 0x3f);
    }
    if (s[0] < 0xf0) {
        *nbytes = 3;
        return (uint32_t)(s[0] & 0xf) << 12 | (uint32_t)(s[1] & 0x3f) << 6 | (s[2] & 0x3f);
    }
    *nbytes = 4;
    return (uint32_t)(s[0] & 7) << 18 | (uint32_t)(s[1] & 0x3f) << 12 |
           (uint32_t)(s[2] & 0x3f) << 6 | (s[3] & 0x3f);
}

size_t unicode_encode(char out[4], uint32_t code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

/* The length of the character at s, 0 where it is none (RFC 3629: shortest form, no surrogates). */
static size_t valid_character(const unsigned char *s, size_t nbytes)
{
    const size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;

    if (!n || n > nbytes || s[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

bool unicode_valid(const char *text, size_t nbytes, size_t *bad)
{
    const unsigned char *s = (const unsigned char *)text;

    for (size_t i = 0; i < nbytes;) {
        uint64_t eight;
        if (nbytes - i >= sizeof eight) {
            memcpy(&eight, s + i, sizeof eight);
            if (!(eight & 0x8080808080808080u)) {
                i += sizeof eight;
                continue;
            }
        }
        const size_t n = valid_character(s + i, nbytes - i);
        if (!n) {
            if (bad)
                *bad = i;
            return false;
        }
        i += n;
    }
    return true;
}

void unicode_text_free(struct unicode_text *text)
{
    fsdp_free(text->at);
    *text = (struct unicode_text){0};
}

int unicode_text_add(struct unicode_text *text, const char *bytes, size_t nbytes,
                     struct fsdp_err *err)
{
    if (nbytes > SIZE_MAX - text->nbytes)
        return fsdp_err_set(err, FSDP_ENOMEM, "a text is too long");
    if (text->nbytes + nbytes > text->room) {
        size_t want = text->nbytes + nbytes;
        if (want < 2 * text->room)
            want = 2 * text->room;
        char *const grown = fsdp_alloc_unset(want, 1, "text", err);
        if (!grown)
            return FSDP_ENOMEM;
        if (text->nbytes)
            memcpy(grown, text->at, text->nbytes);
        fsdp_free(text->at);
        text->at = grown;
        text->room = want;
    }
    if (nbytes)
        memcpy(text->at + text->nbytes, bytes, nbytes);
    text->nbytes += nbytes;
    return FSDP_OK;
}
