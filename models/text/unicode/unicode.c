/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "tables.h"

/* ---- classes --------------------------------------------------------------------------------- */

bool unicode_class(const char *name, size_t nbytes, unicode_range_f *add, void *ctx)
{
    const bool letter = nbytes == 1; /* L is Lu, Ll, Lt, Lm and Lo */
    bool known = false;

    for (const struct unicode_table *table = unicode_tables; table->name; table++) {
        const size_t n = strlen(table->name);
        if (letter ? n != 2 || table->name[0] != name[0]
                   : n != nbytes || memcmp(table->name, name, n) != 0)
            continue;
        known = true;
        for (size_t i = 0; i < table->nranges; i++)
            add(ctx, table->ranges[i]);
    }
    return known;
}

static bool in_table(const struct unicode_table *table, uint32_t code)
{
    size_t low = 0, high = table->nranges;

    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (code > table->ranges[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    return low < table->nranges && code >= table->ranges[low].first;
}

bool unicode_is_space(uint32_t code)
{
    return code == ' ' || (code >= 9 && code <= 13) || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

void unicode_strip(const char *text, size_t *first, size_t *end, bool left, bool right)
{
    uint32_t code;

    while (left && *first < *end) {
        const int step = fsdp_utf8_decode(&code, text + *first, text + *end);
        if (!step || !unicode_is_space(code))
            break;
        *first += (size_t)step;
    }
    while (right && *first < *end) {
        size_t at = *end - 1;
        while (at > *first && ((unsigned char)text[at] & 0xc0) == 0x80)
            at--;
        if (!fsdp_utf8_decode(&code, text + at, text + *end) || !unicode_is_space(code))
            break;
        *end = at;
    }
}

/* ---- texts ----------------------------------------------------------------------------------- */

int unicode_text_add(struct unicode_text *text, const char *bytes, size_t nbytes,
                     struct fsdp_err *err)
{
    const size_t want = text->nbytes + nbytes;

    if (want > text->room) {
        char *at = fsdp_alloc_reserve(text->at, text->nbytes, &text->room, want + want / 2 + 64, 1,
                                      "text", err);
        if (!at)
            return FSDP_ENOMEM;
        text->at = at;
    }
    if (nbytes)
        memcpy(text->at + text->nbytes, bytes, nbytes);
    text->nbytes = want;
    return FSDP_OK;
}

void unicode_text_free(struct unicode_text *text)
{
    fsdp_free(text->at);
    *text = (struct unicode_text){0};
}

/* ---- normal forms ---------------------------------------------------------------------------- */

static const utf8proc_option_t form_options[] = {
    [UNICODE_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
    [UNICODE_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
    [UNICODE_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
    [UNICODE_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
};

/* The length of the first stretch of a text that is normalized by itself: ASCII, which stays as it
 * is but for its last character; or up to a code point that the original leaves as it is, or that
 * code point alone. *plain: nothing changes. */
static size_t next_stretch(const char *text, size_t nbytes, bool *plain)
{
    size_t at = 0;
    uint32_t code;

    while (at < nbytes && !((unsigned char)text[at] & 0x80))
        at++;
    *plain = at == nbytes || at > 1;
    if (*plain)
        return at == nbytes ? at : at - 1;
    while (at < nbytes && (unsigned char)text[at] & 0x80) {
        const int step = fsdp_utf8_decode(&code, text + at, text + nbytes);
        if (step && in_table(&unicode_unknown, code)) {
            *plain = at == 0;
            return at ? at : (size_t)step;
        }
        at += step ? (size_t)step : 1;
    }
    return at;
}

int unicode_normalize(struct unicode_text *out, const char *text, size_t nbytes,
                      enum unicode_form form, struct fsdp_err *err)
{
    for (size_t at = 0, step; at < nbytes; at += step) {
        utf8proc_uint8_t *normal;
        bool plain;
        step = next_stretch(text + at, nbytes - at, &plain);
        if (plain) {
            FSDP_TRY(unicode_text_add(out, text + at, step, err));
            continue;
        }
        const utf8proc_ssize_t n =
            utf8proc_map((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)step, &normal,
                         form_options[form]);
        if (n < 0)
            return fsdp_err_set(err, n == UTF8PROC_ERROR_NOMEM ? FSDP_ENOMEM : FSDP_EINVAL,
                                "normalizing text: %s", utf8proc_errmsg(n));
        const int rc = unicode_text_add(out, (const char *)normal, (size_t)n, err);
        free(normal);
        if (rc != FSDP_OK)
            return rc;
    }
    return FSDP_OK;
}

/* ---- letters --------------------------------------------------------------------------------- */

static int by_code(const void *key, const void *element)
{
    const uint32_t code = *(const uint32_t *)key,
                   from = ((const struct unicode_pair *)element)->from;
    return code < from ? -1 : code > from;
}

int unicode_lower(struct unicode_text *out, const char *text, size_t nbytes, struct fsdp_err *err)
{
    static const char dot_above[] = "\xcc\x87";

    for (size_t at = 0; at < nbytes;) {
        utf8proc_uint8_t bytes[4];
        uint32_t code = (unsigned char)text[at];
        const int step = code < 0x80 ? 1 : fsdp_utf8_decode(&code, text + at, text + nbytes);
        const struct unicode_pair *pair =
            bsearch(&code, unicode_lowers, unicode_nlowers, sizeof unicode_lowers[0], by_code);
        if (!step)
            return fsdp_err_set(err, FSDP_EINVAL, "lower case of text that is not UTF-8");
        if (pair) {
            const utf8proc_ssize_t n = utf8proc_encode_char((utf8proc_int32_t)pair->to, bytes);
            FSDP_TRY(unicode_text_add(out, (const char *)bytes, (size_t)n, err));
            if (code == 0x130)
                FSDP_TRY(unicode_text_add(out, dot_above, 2, err));
        } else {
            FSDP_TRY(unicode_text_add(out, text + at, (size_t)step, err));
        }
        at += (size_t)step;
    }
    return FSDP_OK;
}

int unicode_strip_accents(struct unicode_text *out, const char *text, size_t nbytes,
                          struct fsdp_err *err)
{
    for (size_t at = 0; at < nbytes;) {
        uint32_t code = (unsigned char)text[at];
        const int step = code < 0x80 ? 1 : fsdp_utf8_decode(&code, text + at, text + nbytes);
        if (!step)
            return fsdp_err_set(err, FSDP_EINVAL, "accents of text that is not UTF-8");
        if (!in_table(&unicode_accents, code))
            FSDP_TRY(unicode_text_add(out, text + at, (size_t)step, err));
        at += (size_t)step;
    }
    return FSDP_OK;
}
