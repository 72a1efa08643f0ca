/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of text that look for a part, and those that fill it up to a width. */
#include "methods.h"
#include "text/chat/value/unicode.h"

/* The part of a text that the arguments a[2] and a[3] choose; *at is NULL where it begins behind
 * the end. */
static int choose_part(struct chat_run *r, const char **at, const char **end,
                       const struct chat_val *a)
{
    const struct chat_str *s = a[0].s;
    chat_int bounds[2] = {0, (chat_int)s->nchars};

    for (int i = 0; i < 2; i++) {
        if (chat_is_absent(&a[2 + i]) || a[2 + i].kind == CHAT_NONE)
            continue;
        FSDP_TRY(chat_want_int(r, &bounds[i], &a[2 + i], "a method of str"));
        if (bounds[i] < 0)
            bounds[i] = bounds[i] < -(chat_int)s->nchars ? 0 : bounds[i] + (chat_int)s->nchars;
    }
    *at = NULL;
    if (bounds[0] > (chat_int)s->nchars || bounds[0] > bounds[1])
        return FSDP_OK;
    *at = s->at + chat_str_offset(s, (size_t)bounds[0]);
    *end = s->at +
           (bounds[1] >= (chat_int)s->nchars ? s->nbytes : chat_str_offset(s, (size_t)bounds[1]));
    return chat_step(r, s->nbytes >> 5);
}

/* Character of the first or last occurrence, -1: there is none. */
static int find_part(struct chat_run *r, chat_int *out, const struct chat_val *a, bool last)
{
    const struct chat_str *what;
    const char *at, *end, *found;

    *out = -1;
    FSDP_TRY(chat_want_str(r, &what, &a[1], "find()"));
    FSDP_TRY(choose_part(r, &at, &end, a));
    if (!at || (size_t)(end - at) < what->nbytes)
        return FSDP_OK;
    found = chat_find(at, end, what);
    if (last)
        for (found = end - what->nbytes;
             found >= at && what->nbytes && memcmp(found, what->at, what->nbytes);)
            found--;
    if (found && found >= at)
        *out = (chat_int)chat_count_chars(a[0].s->at, (size_t)(found - a[0].s->at));
    return FSDP_OK;
}

static int find_number(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
                       bool last, bool must)
{
    chat_int i;

    FSDP_TRY(find_part(r, &i, a, last));
    if (must && i < 0)
        return chat_fail(r, "substring not found");
    *out = chat_integer(i);
    return FSDP_OK;
}

CHAT_BUILTIN(text_find)
{
    return find_number(r, out, a, false, false);
}

CHAT_BUILTIN(text_rfind)
{
    return find_number(r, out, a, true, false);
}

CHAT_BUILTIN(text_index)
{
    return find_number(r, out, a, false, true);
}

CHAT_BUILTIN(text_rindex)
{
    return find_number(r, out, a, true, true);
}

CHAT_BUILTIN(text_count)
{
    const struct chat_str *what;
    const char *at, *end;
    chat_int n = 0;

    FSDP_TRY(chat_want_str(r, &what, &a[1], "count()"));
    FSDP_TRY(choose_part(r, &at, &end, a));
    if (at && !what->nbytes)
        n = (chat_int)chat_count_chars(at, (size_t)(end - at)) + 1;
    while (at && what->nbytes && at < end && (at = chat_find(at, end, what))) {
        at += what->nbytes;
        n++;
    }
    *out = chat_integer(n);
    return FSDP_OK;
}

/* Does the text begin or end with one of a[1], a text or a tuple of texts? */
static int match_end(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
                     bool at_end)
{
    const bool many = a[1].kind == CHAT_TUPLE;
    const char *at, *end;

    *out = chat_bool(false);
    FSDP_TRY(choose_part(r, &at, &end, a));
    for (size_t i = 0; i < (many ? a[1].list->nelem : 1); i++) {
        const struct chat_str *part;
        FSDP_TRY(chat_want_str(r, &part, many ? &a[1].list->at[i] : &a[1],
                               at_end ? "endswith()" : "startswith()"));
        if (at && (size_t)(end - at) >= part->nbytes &&
            !memcmp(at_end ? end - part->nbytes : at, part->at, part->nbytes))
            *out = chat_bool(true);
    }
    return FSDP_OK;
}

CHAT_BUILTIN(text_startswith)
{
    return match_end(r, out, a, false);
}

CHAT_BUILTIN(text_endswith)
{
    return match_end(r, out, a, true);
}

/* ---- widths --------------------------------------------------------------------------------- */

static int fill_text(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
                     size_t nleft, size_t nright)
{
    const struct chat_str *s = a[0].s, *fill = NULL;
    struct chat_buf b = {0};

    if (!chat_is_absent(&a[2])) {
        FSDP_TRY(chat_want_str(r, &fill, &a[2], "a width"));
        if (fill->nchars != 1)
            return chat_fail(r, "the fill character must be exactly one character long");
    }
    if (nleft > CHAT_MAX_MEMORY_NBYTES || nright > CHAT_MAX_MEMORY_NBYTES)
        return chat_fail(r, "the width is too large");
    for (size_t i = 0; fill && i < nleft; i++)
        FSDP_TRY(chat_buf_add(r, &b, fill->at, fill->nbytes));
    FSDP_TRY(chat_buf_pad(r, &b, fill ? 0 : nleft));
    FSDP_TRY(chat_buf_add(r, &b, s->at, s->nbytes));
    for (size_t i = 0; fill && i < nright; i++)
        FSDP_TRY(chat_buf_add(r, &b, fill->at, fill->nbytes));
    FSDP_TRY(chat_buf_pad(r, &b, fill ? 0 : nright));
    return chat_str_part(r, out, &(struct chat_str){.nbytes = 1, .markup = s->markup}, b.at,
                         b.nbytes);
}

/* Characters that are missing up to the width a[1]. */
static int want_missing(struct chat_run *r, size_t *out, const struct chat_val *a)
{
    size_t width;

    FSDP_TRY(chat_want_count(r, &width, &a[1], "a width"));
    *out = width > a[0].s->nchars ? width - a[0].s->nchars : 0;
    return FSDP_OK;
}

CHAT_BUILTIN(text_ljust)
{
    size_t n;

    FSDP_TRY(want_missing(r, &n, a));
    return fill_text(r, out, a, 0, n);
}

CHAT_BUILTIN(text_rjust)
{
    size_t n;

    FSDP_TRY(want_missing(r, &n, a));
    return fill_text(r, out, a, n, 0);
}

/* The odd blank goes to the left where the width is odd. */
CHAT_BUILTIN(text_center)
{
    size_t n, left;

    FSDP_TRY(want_missing(r, &n, a));
    left = n / 2 + (n & (n + a[0].s->nchars) & 1);
    return fill_text(r, out, a, left, n - left);
}

int chat_center(struct chat_run *r, struct chat_val *out, const struct chat_str *s, size_t width)
{
    const struct chat_val a[3] = {chat_str_val(s), chat_integer((chat_int)width), {0}};
    return text_center(r, out, a, NULL);
}

CHAT_BUILTIN(text_zfill)
{
    const struct chat_str *s = a[0].s;
    const bool sign = s->nbytes && (s->at[0] == '-' || s->at[0] == '+');
    struct chat_buf b = {0};
    size_t n;

    FSDP_TRY(want_missing(r, &n, a));
    if (n > CHAT_MAX_MEMORY_NBYTES)
        return chat_fail(r, "the width is too large");
    FSDP_TRY(chat_buf_add(r, &b, s->at, sign));
    for (size_t i = 0; i < n; i++)
        FSDP_TRY(chat_buf_add(r, &b, "0", 1));
    FSDP_TRY(chat_buf_add(r, &b, s->at + sign, s->nbytes - sign));
    return chat_buf_str(r, out, &b);
}

CHAT_BUILTIN(text_expandtabs)
{
    const struct chat_str *s = a[0].s;
    struct chat_buf b = {0};
    size_t size = 8, column = 0;
    int nbytes;

    if (!chat_is_absent(&a[1]))
        FSDP_TRY(chat_want_count(r, &size, &a[1], "expandtabs()"));
    if (size > CHAT_MAX_RANGE)
        return chat_fail(r, "expandtabs() is too wide");
    for (const char *at = s->at; at < s->at + s->nbytes; at += nbytes) {
        chat_decode(at, &nbytes);
        if (*at == '\t') {
            const size_t n = size ? size - column % size : 0;
            FSDP_TRY(chat_buf_pad(r, &b, n));
            column += n;
            continue;
        }
        FSDP_TRY(chat_buf_add(r, &b, at, (size_t)nbytes));
        column = *at == '\n' || *at == '\r' ? 0 : column + 1;
    }
    return chat_buf_str(r, out, &b);
}

const struct chat_builtin chat_find_methods[] = {
    {"find", text_find, "/sub start end", 1},
    {"rfind", text_rfind, "/sub start end", 1},
    {"index", text_index, "/sub start end", 1},
    {"rindex", text_rindex, "/sub start end", 1},
    {"count", text_count, "/sub start end", 1},
    {"startswith", text_startswith, "/prefix start end", 1},
    {"endswith", text_endswith, "/suffix start end", 1},
    {"ljust", text_ljust, "/width fillchar", 1},
    {"rjust", text_rjust, "/width fillchar", 1},
    {"center", text_center, "/width fillchar", 1},
    {"zfill", text_zfill, "/width", 1},
    {"expandtabs", text_expandtabs, "tabsize", 0},
    {0},
};
