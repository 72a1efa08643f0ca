/* SPDX-License-Identifier: Apache-2.0 */
/* Filters of text. Most take any value, as its text. */
#include "filters.h"
#include "text/chat/value/iterate.h"
#include "text/chat/builtin/methods.h"
#include "text/chat/value/print.h"
#include "text/chat/value/unicode.h"

static int change_case(struct chat_run *r, struct chat_val *out, const struct chat_val *v,
                       enum chat_case to)
{
    struct chat_val text;

    FSDP_TRY(chat_to_str(r, &text, v));
    return chat_change_case(r, out, text.s, to);
}

CHAT_BUILTIN(filter_upper)
{
    return change_case(r, out, &a[0], CHAT_UPPER);
}

CHAT_BUILTIN(filter_lower)
{
    return change_case(r, out, &a[0], CHAT_LOWER);
}

CHAT_BUILTIN(filter_capitalize)
{
    return change_case(r, out, &a[0], CHAT_CAPITALIZE);
}

/* Does a word begin behind this character? */
static bool parts_words(uint32_t code)
{
    return chat_is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' ||
           code == '<';
}

/* Not str.title(): an apostrophe parts no words. */
CHAT_BUILTIN(filter_title)
{
    struct chat_val text, part, word;
    struct chat_buf b = {0};
    const char *at, *end, *begin;
    int nbytes;

    FSDP_TRY(chat_to_str(r, &text, &a[0]));
    at = text.s->at;
    end = at + text.s->nbytes;
    while (at < end) {
        const uint32_t first = chat_decode(at, &nbytes);
        FSDP_TRY(chat_add_case(r, &b, first, CHAT_UPPER));
        at += nbytes;
        if (parts_words(first))
            continue;
        for (begin = at; at < end && !parts_words(chat_decode(at, &nbytes));)
            at += nbytes;
        FSDP_TRY(chat_str_part(r, &part, text.s, begin, (size_t)(at - begin)));
        FSDP_TRY(chat_change_case(r, &word, part.s, CHAT_LOWER));
        FSDP_TRY(chat_buf_add(r, &b, word.s->at, word.s->nbytes));
    }
    return chat_buf_str(r, out, &b);
}

CHAT_BUILTIN(filter_trim)
{
    const struct chat_str *chars = NULL;
    struct chat_val text;

    FSDP_TRY(chat_to_str(r, &text, &a[0]));
    if (!chat_is_absent(&a[1]) && a[1].kind != CHAT_NONE)
        FSDP_TRY(chat_want_str(r, &chars, &a[1], "trim"));
    return chat_strip(r, out, text.s, chars, CHAT_LEFT | CHAT_RIGHT);
}

CHAT_BUILTIN(filter_string)
{
    return chat_to_str(r, out, &a[0]);
}

static int plain_text(struct chat_run *r, struct chat_val *out, const struct chat_val *v)
{
    struct chat_val text;

    FSDP_TRY(chat_to_str(r, &text, v));
    return chat_str_keep(r, out, text.s->at, text.s->nbytes);
}

CHAT_BUILTIN(filter_safe)
{
    struct chat_str *s;

    FSDP_TRY(plain_text(r, out, &a[0]));
    FSDP_TRY(chat_new(r, &s, 1, sizeof *s));
    *s = *out->s;
    s->markup = true;
    out->s = s;
    return FSDP_OK;
}

CHAT_BUILTIN(filter_escape)
{
    return chat_escape_html(r, out, &a[0]);
}

CHAT_BUILTIN(filter_forceescape)
{
    struct chat_val text;

    FSDP_TRY(plain_text(r, &text, &a[0]));
    return chat_escape_html(r, out, &text);
}

CHAT_BUILTIN(filter_replace)
{
    struct chat_val text, old, new;
    chat_int max = -1;

    FSDP_TRY(plain_text(r, &text, &a[0]));
    FSDP_TRY(chat_to_str(r, &old, &a[1]));
    FSDP_TRY(chat_to_str(r, &new, &a[2]));
    if (!chat_is_absent(&a[3]) && a[3].kind != CHAT_NONE)
        FSDP_TRY(chat_want_int(r, &max, &a[3], "replace"));
    return chat_replace(r, out, text.s, old.s, new.s, max);
}

CHAT_BUILTIN(filter_join)
{
    struct chat_val between, item, texts, text;
    struct chat_iter *it;
    bool more;

    FSDP_TRY(chat_str_copy(r, &between, "", 0));
    if (!chat_is_absent(&a[1]))
        FSDP_TRY(plain_text(r, &between, &a[1]));
    FSDP_TRY(chat_list_new(r, &texts, CHAT_LIST, 0));
    FSDP_TRY(chat_iterate(r, &it, &a[0]));
    for (;;) {
        FSDP_TRY(chat_next(r, it, &item, &more));
        if (!more)
            break;
        FSDP_TRY(chat_attribute_path(r, &item, &item, &a[2], NULL));
        FSDP_TRY(chat_to_str(r, &text, &item));
        FSDP_TRY(chat_list_add(r, texts.list, &text));
    }
    return chat_join(r, out, between.s, &texts);
}

CHAT_BUILTIN(filter_center)
{
    struct chat_val text;
    size_t width = 80;

    FSDP_TRY(chat_to_str(r, &text, &a[0]));
    if (!chat_is_absent(&a[1]))
        FSDP_TRY(chat_want_count(r, &width, &a[1], "center"));
    return chat_center(r, out, text.s, width);
}

/* The text put before each line. */
static int indention(struct chat_run *r, struct chat_val *out, const struct chat_val *width)
{
    struct chat_buf b = {0};
    size_t n = 4;

    if (width->kind == CHAT_STR) {
        *out = *width;
        return FSDP_OK;
    }
    if (!chat_is_absent(width))
        FSDP_TRY(chat_want_count(r, &n, width, "indent"));
    FSDP_TRY(chat_buf_pad(r, &b, n));
    return chat_buf_str(r, out, &b);
}

CHAT_BUILTIN(filter_indent)
{
    const bool first = !chat_is_absent(&a[2]) && chat_truth(&a[2]);
    const bool blank = !chat_is_absent(&a[3]) && chat_truth(&a[3]);
    const struct chat_str *s;
    struct chat_val before, lines, text;
    struct chat_buf b = {0};

    FSDP_TRY(chat_want_str(r, &s, &a[0], "indent"));
    FSDP_TRY(indention(r, &before, &a[1]));
    FSDP_TRY(chat_buf_add(r, &b, s->at, s->nbytes));
    FSDP_TRY(chat_buf_puts(r, &b, "\n"));
    FSDP_TRY(chat_buf_str(r, &text, &b));
    FSDP_TRY(chat_split_lines(r, &lines, text.s, false));
    b = (struct chat_buf){0};
    for (size_t i = 0; i < lines.list->nelem; i++) {
        const struct chat_str *line = lines.list->at[i].s;
        if (i)
            FSDP_TRY(chat_buf_puts(r, &b, "\n"));
        if (i ? blank || line->nbytes : first)
            FSDP_TRY(chat_buf_add(r, &b, before.s->at, before.s->nbytes));
        FSDP_TRY(chat_buf_add(r, &b, line->at, line->nbytes));
    }
    return chat_str_part(r, out, &(struct chat_str){.nbytes = 1, .markup = s->markup}, b.at,
                         b.nbytes);
}

static int want_or(struct chat_run *r, size_t *out, const struct chat_val *v, size_t otherwise)
{
    *out = otherwise;
    if (chat_is_absent(v) || v->kind == CHAT_NONE)
        return FSDP_OK;
    return chat_want_count(r, out, v, "truncate");
}

CHAT_BUILTIN(filter_truncate)
{
    const struct chat_str *s, *end;
    struct chat_buf b = {0};
    struct chat_val dots;
    size_t length, leeway, nbytes;
    chat_int nelem;

    FSDP_TRY(want_or(r, &length, &a[1], 255));
    FSDP_TRY(want_or(r, &leeway, &a[4], 5));
    FSDP_TRY(chat_str_copy(r, &dots, "...", 3));
    FSDP_TRY(chat_want_str(r, &end, chat_is_absent(&a[3]) ? &dots : &a[3], "truncate"));
    if (length < end->nchars)
        return chat_fail(r, "truncate: the length is less than that of the end");
    FSDP_TRY(chat_length(r, &nelem, &a[0]));
    if (nelem >= 0 && nelem <= (chat_int)(length + leeway)) {
        *out = a[0];
        return FSDP_OK;
    }
    FSDP_TRY(chat_want_str(r, &s, &a[0], "truncate"));
    nbytes = chat_str_offset(s, length - end->nchars);
    if (chat_is_absent(&a[2]) || !chat_truth(&a[2])) {
        const char *blank = memrchr(s->at, ' ', nbytes);
        nbytes = blank ? (size_t)(blank - s->at) : nbytes;
    }
    FSDP_TRY(chat_buf_add(r, &b, s->at, nbytes));
    FSDP_TRY(chat_buf_add(r, &b, end->at, end->nbytes));
    return chat_buf_str(r, out, &b);
}

CHAT_BUILTIN(filter_wordcount)
{
    struct chat_val text;
    chat_int n = 0;
    bool in_word = false;
    int nbytes;

    FSDP_TRY(chat_to_str(r, &text, &a[0]));
    for (const char *at = text.s->at; at < text.s->at + text.s->nbytes; at += nbytes) {
        const bool is_word = chat_is_word(chat_decode(at, &nbytes));
        n += is_word && !in_word;
        in_word = is_word;
    }
    *out = chat_integer(n);
    return chat_step(r, text.s->nbytes >> 4);
}

CHAT_BUILTIN(filter_format)
{
    struct chat_val text, values;

    FSDP_TRY(chat_to_str(r, &text, &a[0]));
    if (args->nelem && args->nkeywords)
        return chat_fail(r, "format takes positional or keyword arguments, not both");
    if (args->nkeywords) {
        FSDP_TRY(chat_dict_new(r, &values, CHAT_DICT, args->nkeywords));
        for (size_t i = 0; i < args->nkeywords; i++) {
            const struct chat_val key = chat_str_val(args->keywords[i].name);
            FSDP_TRY(chat_dict_set(r, values.dict, &key, &args->keywords[i].value));
        }
    } else {
        FSDP_TRY(chat_list_new(r, &values, CHAT_TUPLE, args->nelem));
        for (size_t i = 0; i < args->nelem; i++)
            FSDP_TRY(chat_list_add(r, values.list, &args->at[i]));
    }
    return chat_percent(r, out, text.s, &values);
}

static bool is_unreserved(char c, bool in_query)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
           (c && strchr("_.-~", c)) || (c == '/' && !in_query);
}

static int quote_url(struct chat_run *r, struct chat_buf *b, const struct chat_val *v,
                     bool in_query)
{
    struct chat_val text;
    char hex[4];

    FSDP_TRY(chat_to_str(r, &text, v));
    for (size_t i = 0; i < text.s->nbytes; i++) {
        const char c = text.s->at[i];
        snprintf(hex, sizeof hex, "%%%02X", (unsigned char)c);
        if (is_unreserved(c, in_query))
            FSDP_TRY(chat_buf_add(r, b, &c, 1));
        else
            FSDP_TRY(chat_buf_puts(r, b, in_query && c == ' ' ? "+" : hex));
    }
    return FSDP_OK;
}

CHAT_BUILTIN(filter_urlencode)
{
    struct chat_buf b = {0};
    struct chat_val items, pair, view = a[0];

    if (a[0].kind == CHAT_STR || !chat_can_iterate(&a[0])) {
        FSDP_TRY(quote_url(r, &b, &a[0], false));
        return chat_buf_str(r, out, &b);
    }
    if (a[0].kind == CHAT_DICT) {
        struct chat_view of = {CHAT_ITEMS, a[0].dict};
        view = (struct chat_val){.kind = CHAT_VIEW, .view = &of};
        FSDP_TRY(chat_collect(r, &items, &view));
    } else {
        FSDP_TRY(chat_collect(r, &items, &view));
    }
    for (size_t i = 0; i < items.list->nelem; i++) {
        FSDP_TRY(chat_collect(r, &pair, &items.list->at[i]));
        if (pair.list->nelem != 2)
            return chat_fail(r, "urlencode needs pairs");
        FSDP_TRY(chat_buf_puts(r, &b, i ? "&" : ""));
        FSDP_TRY(quote_url(r, &b, &pair.list->at[0], true));
        FSDP_TRY(chat_buf_puts(r, &b, "="));
        FSDP_TRY(quote_url(r, &b, &pair.list->at[1], true));
    }
    return chat_buf_str(r, out, &b);
}

const struct chat_builtin chat_text_filters[] = {
    {"upper", filter_upper, "", 0},
    {"lower", filter_lower, "", 0},
    {"capitalize", filter_capitalize, "", 0},
    {"title", filter_title, "", 0},
    {"trim", filter_trim, "chars", 0},
    {"string", filter_string, "", 0},
    {"safe", filter_safe, "", 0},
    {"escape", filter_escape, "", 0},
    {"e", filter_escape, "", 0},
    {"forceescape", filter_forceescape, "", 0},
    {"replace", filter_replace, "old new count", 2},
    {"join", filter_join, "d attribute", 0},
    {"center", filter_center, "width", 0},
    {"indent", filter_indent, "width first blank", 0},
    {"truncate", filter_truncate, "length killwords end leeway", 0},
    {"wordcount", filter_wordcount, "", 0},
    {"format", filter_format, NULL, 0},
    {"urlencode", filter_urlencode, "", 0},
    {0},
};
