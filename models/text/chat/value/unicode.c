/* SPDX-License-Identifier: Apache-2.0 */
#include <utf8proc.h>

#include "unicode.h"
#include "unicode_table.h"

uint32_t chat_decode(const char *at, int *nbytes)
{
    const unsigned char *c = (const unsigned char *)at;

    if (c[0] < 0x80) {
        *nbytes = 1;
        return c[0];
    }
    if (c[0] < 0xe0) {
        *nbytes = 2;
        return (c[0] & 0x1fu) << 6 | (c[1] & 0x3fu);
    }
    if (c[0] < 0xf0) {
        *nbytes = 3;
        return (c[0] & 0xfu) << 12 | (c[1] & 0x3fu) << 6 | (c[2] & 0x3fu);
    }
    *nbytes = 4;
    return (c[0] & 7u) << 18 | (c[1] & 0x3fu) << 12 | (c[2] & 0x3fu) << 6 | (c[3] & 0x3fu);
}

/* ---- classes -------------------------------------------------------------------------------- */

bool chat_is_space(uint32_t code)
{
    return (code >= 9 && code <= 13) || (code >= 28 && code <= 32) || code == 0x85 ||
           code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

/* The rule by category, but where the table says otherwise. */
static bool is_in(uint32_t code, bool rule, const struct chat_code_range *differs)
{
    for (; differs->last; differs++)
        if (code >= differs->first && code <= differs->last)
            return !rule;
    return rule;
}

static utf8proc_category_t category_of(uint32_t code)
{
    return utf8proc_category((utf8proc_int32_t)code);
}

static bool is_letter(utf8proc_category_t category)
{
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool chat_is_alpha(uint32_t code)
{
    if (code < 0x80)
        return (code | 32) >= 'a' && (code | 32) <= 'z';
    return is_in(code, is_letter(category_of(code)), chat_not_alpha);
}

bool chat_is_decimal(uint32_t code)
{
    if (code < 0x80)
        return code >= '0' && code <= '9';
    return is_in(code, category_of(code) == UTF8PROC_CATEGORY_ND, chat_not_decimal);
}

bool chat_is_digit(uint32_t code)
{
    return is_in(code, category_of(code) == UTF8PROC_CATEGORY_ND, chat_not_digit);
}

bool chat_is_numeric(uint32_t code)
{
    const utf8proc_category_t c = category_of(code);
    return is_in(code, c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO, chat_not_numeric);
}

bool chat_is_word(uint32_t code)
{
    if (code < 0x80)
        return chat_is_alpha(code) || (code >= '0' && code <= '9') || code == '_';
    return chat_is_alpha(code) || chat_is_numeric(code);
}

bool chat_is_printable(uint32_t code)
{
    const utf8proc_category_t c = category_of(code);

    if (code < 0x80)
        return code >= ' ' && code < 0x7f;
    return is_in(code, c != UTF8PROC_CATEGORY_CN && c < UTF8PROC_CATEGORY_ZS, chat_not_printable);
}

bool chat_is_lower(uint32_t code)
{
    return is_in(code, category_of(code) == UTF8PROC_CATEGORY_LL, chat_not_lower);
}

bool chat_is_upper(uint32_t code)
{
    return is_in(code, category_of(code) == UTF8PROC_CATEGORY_LU, chat_not_upper);
}

bool chat_is_title(uint32_t code)
{
    return category_of(code) == UTF8PROC_CATEGORY_LT;
}

void chat_trim_space(const char **at, const char **end, bool left, bool right)
{
    int nbytes;

    while (left && *at < *end && chat_is_space(chat_decode(*at, &nbytes)))
        *at += nbytes;
    while (right && *at < *end) {
        const char *last = *end - 1;
        while (last > *at && ((unsigned char)*last & 0xc0) == 0x80)
            last--;
        if (!chat_is_space(chat_decode(last, &nbytes)))
            return;
        *end = last;
    }
}

/* ---- cases ---------------------------------------------------------------------------------- */

static const struct chat_code_case *find_case(const struct chat_code_case *row, uint32_t code)
{
    for (; row->code; row++)
        if (row->code == code)
            return row;
    return NULL;
}

static int add_mapped(struct chat_run *r, struct chat_buf *b, uint32_t code,
                      const struct chat_code_case *table,
                      utf8proc_int32_t (*simple)(utf8proc_int32_t))
{
    const struct chat_code_case *row = code < 0x80 ? NULL : find_case(table, code);

    if (!row)
        return chat_buf_add_code(r, b, (uint32_t)simple((utf8proc_int32_t)code));
    for (int i = 0; i < 3 && row->to[i]; i++)
        FSDP_TRY(chat_buf_add_code(r, b, row->to[i]));
    return FSDP_OK;
}

int chat_add_case(struct chat_run *r, struct chat_buf *b, uint32_t code, enum chat_case to)
{
    if (to == CHAT_SWAP)
        to = chat_is_upper(code) ? CHAT_LOWER : chat_is_lower(code) ? CHAT_UPPER : CHAT_SWAP;
    switch (to) {
    case CHAT_UPPER:
        return add_mapped(r, b, code, chat_case_upper, utf8proc_toupper);
    case CHAT_LOWER:
        return add_mapped(r, b, code, chat_case_lower, utf8proc_tolower);
    case CHAT_TITLE:
        return add_mapped(r, b, code, chat_case_title, utf8proc_totitle);
    case CHAT_FOLD:
        return add_mapped(r, b, code, chat_case_fold, utf8proc_tolower);
    default:
        return chat_buf_add_code(r, b, code);
    }
}

static bool is_cased(uint32_t code)
{
    return chat_is_lower(code) || chat_is_upper(code) || chat_is_title(code);
}

/* Unicode's Case_Ignorable, by category and the marks in words. */
static bool is_ignorable(uint32_t code)
{
    const utf8proc_category_t c = category_of(code);

    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK || code == '\'' || code == '.' ||
           code == ':' || code == 0xb7 || code == 0x387 || code == 0x55f || code == 0x5f4 ||
           code == 0x2018 || code == 0x2019 || code == 0x2024 || code == 0x2027 || code == 0xfe13 ||
           code == 0xfe52 || code == 0xfe55 || code == 0xff07 || code == 0xff0e || code == 0xff1a;
}

/* Is the sigma at `at` the last letter of a word of more than one? */
static bool is_final_sigma(const struct chat_str *s, const char *at)
{
    const char *const end = s->at + s->nbytes, *next = at + 2, *last = at;
    int nbytes;

    while (last > s->at) {
        do
            last--;
        while (last > s->at && ((unsigned char)*last & 0xc0) == 0x80);
        const uint32_t code = chat_decode(last, &nbytes);
        if (is_ignorable(code) && last > s->at)
            continue;
        if (is_ignorable(code) || !is_cased(code))
            return false;
        break;
    }
    if (last == at)
        return false;
    for (; next < end; next += nbytes) {
        const uint32_t code = chat_decode(next, &nbytes);
        if (!is_ignorable(code))
            return !is_cased(code);
    }
    return true;
}

int chat_change_case(struct chat_run *r, struct chat_val *out, const struct chat_str *s,
                     enum chat_case to)
{
    struct chat_buf b = {0};
    bool in_word = false;
    int nbytes;

    for (const char *at = s->at, *end = s->at + s->nbytes; at < end; at += nbytes) {
        const uint32_t code = chat_decode(at, &nbytes);
        enum chat_case this = to;
        if (to == CHAT_TITLE || to == CHAT_CAPITALIZE)
            this = in_word ? CHAT_LOWER : CHAT_TITLE;
        if (to == CHAT_SWAP && chat_is_upper(code))
            this = CHAT_LOWER;
        in_word = to == CHAT_CAPITALIZE || is_cased(code);
        if (code == 0x3a3 && this == CHAT_LOWER)
            FSDP_TRY(chat_buf_add_code(r, &b, is_final_sigma(s, at) ? 0x3c2 : 0x3c3));
        else
            FSDP_TRY(chat_add_case(r, &b, code, this));
    }
    FSDP_TRY(chat_step(r, s->nchars >> 2));
    return chat_str_part(r, out, &(struct chat_str){.nbytes = 1, .markup = s->markup}, b.at,
                         b.nbytes);
}
