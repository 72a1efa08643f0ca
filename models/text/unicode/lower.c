/* SPDX-License-Identifier: Apache-2.0 */
/* Lower case, accents and white space. */
#include "tables.h"

static uint32_t lower_of(uint32_t code)
{
    size_t low = 0, high = unicode_lower_nruns;

    if (code < 0x80)
        return code >= 'A' && code <= 'Z' ? code + ('a' - 'A') : code;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (code > unicode_lower_runs[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    const struct unicode_lower_run *run = &unicode_lower_runs[low];
    if (low == unicode_lower_nruns || code < run->first || (code - run->first) % run->step)
        return code;
    return code + (uint32_t)run->difference;
}

int unicode_lower(struct unicode_text *out, const char *text, size_t nbytes, struct fsdp_err *err)
{
    const uint32_t capital_i_dot = 0x130;
    char bytes[4];

    for (size_t at = 0, n; at < nbytes; at += n) {
        const uint32_t code = unicode_decode(text + at, &n);
        if (code == capital_i_dot)
            FSDP_TRY(unicode_text_add(out, "i\xcc\x87", 3, err));
        else
            FSDP_TRY(unicode_text_add(out, bytes, unicode_encode(bytes, lower_of(code)), err));
    }
    return FSDP_OK;
}

int unicode_strip_accents(struct unicode_text *out, const char *text, size_t nbytes,
                          struct fsdp_err *err)
{
    size_t kept = 0;

    for (size_t at = 0, n; at < nbytes; at += n) {
        const uint32_t code = unicode_decode(text + at, &n);
        if (code < 0x80 || !unicode_is(code, UNICODE_ACCENT))
            continue;
        FSDP_TRY(unicode_text_add(out, text + kept, at - kept, err));
        kept = at + n;
    }
    return unicode_text_add(out, text + kept, nbytes - kept, err);
}

void unicode_strip(const char *text, size_t *first, size_t *end, bool left, bool right)
{
    size_t n;

    while (left && *first < *end && unicode_is(unicode_decode(text + *first, &n), UNICODE_SPACE))
        *first += n;
    while (right && *end > *first) {
        size_t at = *end - 1;
        while (at > *first && ((unsigned char)text[at] & 0xc0) == 0x80)
            at--;
        if (!unicode_is(unicode_decode(text + at, &n), UNICODE_SPACE))
            break;
        *end = at;
    }
}
