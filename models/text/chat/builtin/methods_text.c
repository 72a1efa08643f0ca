/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of text that search, cut and join. */
#include "text/chat/value/iterate.h"
#include "methods.h"
#include "text/chat/value/print.h"
#include "text/chat/value/unicode.h"

/* ---- stripping ------------------------------------------------------------------------------ */

static bool has_char(const struct chat_str *chars, const char *at, int nbytes)
{
    const struct chat_str c = {.at = at, .nbytes = (size_t)nbytes};
    return chat_find(chars->at, chars->at + chars->nbytes, &c) != NULL;
}

int chat_strip(struct chat_run *r, struct chat_val *out, const struct chat_str *s,
               const struct chat_str *chars, int sides)
{
    const char *at = s->at, *end = s->at + s->nbytes;
    int nbytes;

    if (!chars)
        chat_trim_space(&at, &end, sides & CHAT_LEFT, sides & CHAT_RIGHT);
    while (chars && sides & CHAT_LEFT && at < end) {
        chat_decode(at, &nbytes);
        if (!has_char(chars, at, nbytes))
            break;
        at += nbytes;
    }
    while (chars && sides & CHAT_RIGHT && at < end) {
        const char *last = end - 1;
        while (last > at && ((unsigned char)*last & 0xc0) == 0x80)
            last--;
        if (!has_char(chars, last, (int)(end - last)))
            break;
        end = last;
    }
    FSDP_TRY(chat_step(r, ((s->nbytes >> 6) + 1) * (chars ? (chars->nbytes >> 4) + 1 : 1)));
    return chat_str_part(r, out, s, at, (size_t)(end - at));
}

static int strip_sides(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
                       int sides)
{
    const struct chat_str *chars = NULL;

    if (!chat_is_absent(&a[1]) && a[1].kind != CHAT_NONE)
        FSDP_TRY(chat_want_str(r, &chars, &a[1], "strip()"));
    return chat_strip(r, out, a[0].s, chars, sides);
}

CHAT_BUILTIN(text_strip)
{
    return strip_sides(r, out, a, CHAT_LEFT | CHAT_RIGHT);
}

CHAT_BUILTIN(text_lstrip)
{
    return strip_sides(r, out, a, CHAT_LEFT);
}

CHAT_BUILTIN(text_rstrip)
{
    return strip_sides(r, out, a, CHAT_RIGHT);
}

CHAT_BUILTIN(text_removeprefix)
{
    const struct chat_str *s = a[0].s, *part;

    FSDP_TRY(chat_want_str(r, &part, &a[1], "removeprefix()"));
    const bool has = s->nbytes >= part->nbytes && !memcmp(s->at, part->at, part->nbytes);
    const size_t skip = has ? part->nbytes : 0;
    return chat_str_part(r, out, s, s->at + skip, s->nbytes - skip);
}

CHAT_BUILTIN(text_removesuffix)
{
    const struct chat_str *s = a[0].s, *part;

    FSDP_TRY(chat_want_str(r, &part, &a[1], "removesuffix()"));
    const bool has = s->nbytes >= part->nbytes &&
                     !memcmp(s->at + s->nbytes - part->nbytes, part->at, part->nbytes);
    return chat_str_part(r, out, s, s->at, s->nbytes - (has ? part->nbytes : 0));
}

/* ---- splitting ------------------------------------------------------------------------------ */

static int add_part(struct chat_run *r, struct chat_list *list, const struct chat_str *s,
                    const char *at, const char *end)
{
    struct chat_val v;

    FSDP_TRY(chat_str_part(r, &v, s, at, (size_t)(end - at)));
    FSDP_TRY(chat_step(r, 1));
    return chat_list_add(r, list, &v);
}

/* By runs of white space. */
static int split_space(struct chat_run *r, struct chat_list *list, const struct chat_str *s,
                       chat_int max)
{
    const char *at = s->at, *end = s->at + s->nbytes;
    int nbytes;

    for (;; max--) {
        chat_trim_space(&at, &end, true, max == 0);
        if (at == end)
            return FSDP_OK;
        if (max == 0)
            return add_part(r, list, s, at, s->at + s->nbytes);
        const char *word = at;
        while (at < end && !chat_is_space(chat_decode(at, &nbytes)))
            at += nbytes;
        FSDP_TRY(add_part(r, list, s, word, at));
    }
}

static int split_text(struct chat_run *r, struct chat_list *list, const struct chat_str *s,
                      const struct chat_str *by, chat_int max)
{
    const char *at = s->at, *const end = s->at + s->nbytes, *found;

    for (; max != 0 && (found = chat_find(at, end, by)); max--) {
        FSDP_TRY(add_part(r, list, s, at, found));
        at = found + by->nbytes;
    }
    return add_part(r, list, s, at, end);
}

static const char *find_last(const char *at, const char *end, const struct chat_str *what)
{
    for (const char *p = end - what->nbytes; p >= at; p--)
        if (!memcmp(p, what->at, what->nbytes))
            return p;
    return NULL;
}

static void reverse_list(struct chat_list *list)
{
    for (size_t i = 0; i < list->nelem / 2; i++) {
        const struct chat_val v = list->at[i];
        list->at[i] = list->at[list->nelem - 1 - i];
        list->at[list->nelem - 1 - i] = v;
    }
}

static int rsplit_text(struct chat_run *r, struct chat_list *list, const struct chat_str *s,
                       const struct chat_str *by, chat_int max)
{
    const char *end = s->at + s->nbytes, *found;

    for (; max != 0 && (size_t)(end - s->at) >= by->nbytes && (found = find_last(s->at, end, by));
         max--) {
        FSDP_TRY(add_part(r, list, s, found + by->nbytes, end));
        end = found;
    }
    FSDP_TRY(add_part(r, list, s, s->at, end));
    reverse_list(list);
    return FSDP_OK;
}

static int rsplit_space(struct chat_run *r, struct chat_list *list, const struct chat_str *s,
                        chat_int max)
{
    const char *at = s->at, *end = s->at + s->nbytes;

    for (;; max--) {
        chat_trim_space(&at, &end, max == 0, true);
        if (at == end)
            break;
        if (max == 0) {
            FSDP_TRY(add_part(r, list, s, s->at, end));
            break;
        }
        const char *word = end;
        while (word > at) {
            const char *last = word - 1;
            int nbytes;
            while (last > at && ((unsigned char)*last & 0xc0) == 0x80)
                last--;
            if (chat_is_space(chat_decode(last, &nbytes)))
                break;
            word = last;
        }
        FSDP_TRY(add_part(r, list, s, word, end));
        end = word;
    }
    reverse_list(list);
    return FSDP_OK;
}

static int split_either(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
                        bool from_right)
{
    const struct chat_str *by;
    chat_int max = -1;

    FSDP_TRY(chat_list_new(r, out, CHAT_LIST, 0));
    if (!chat_is_absent(&a[2]))
        FSDP_TRY(chat_want_int(r, &max, &a[2], "split()"));
    FSDP_TRY(chat_step(r, a[0].s->nbytes >> 5));
    if (chat_is_absent(&a[1]) || a[1].kind == CHAT_NONE)
        return from_right ? rsplit_space(r, out->list, a[0].s, max)
                          : split_space(r, out->list, a[0].s, max);
    FSDP_TRY(chat_want_str(r, &by, &a[1], "split()"));
    if (!by->nbytes)
        return chat_fail(r, "split() by an empty separator");
    return from_right ? rsplit_text(r, out->list, a[0].s, by, max)
                      : split_text(r, out->list, a[0].s, by, max);
}

CHAT_BUILTIN(text_split)
{
    return split_either(r, out, a, false);
}

CHAT_BUILTIN(text_rsplit)
{
    return split_either(r, out, a, true);
}

static int partition_either(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
                            bool from_right)
{
    const struct chat_str *s = a[0].s, *by;
    const char *const end = s->at + s->nbytes, *found = NULL;

    FSDP_TRY(chat_want_str(r, &by, &a[1], "partition()"));
    if (!by->nbytes)
        return chat_fail(r, "partition() by an empty separator");
    if (by->nbytes <= s->nbytes)
        found = from_right ? find_last(s->at, end, by) : chat_find(s->at, end, by);
    FSDP_TRY(chat_step(r, s->nbytes >> 5));
    FSDP_TRY(chat_list_new(r, out, CHAT_TUPLE, 3));
    const char *first = found ? found : from_right ? s->at : end;
    const char *rest = found ? found + by->nbytes : first;
    FSDP_TRY(add_part(r, out->list, s, s->at, first));
    FSDP_TRY(add_part(r, out->list, s, first, rest));
    return add_part(r, out->list, s, rest, end);
}

CHAT_BUILTIN(text_partition)
{
    return partition_either(r, out, a, false);
}

CHAT_BUILTIN(text_rpartition)
{
    return partition_either(r, out, a, true);
}

/* Bytes of the line break at `at`; 0: there is none. */
static int line_break(const char *at, const char *end)
{
    int nbytes;
    const uint32_t code = chat_decode(at, &nbytes);

    if (code == '\r')
        return at + 1 < end && at[1] == '\n' ? 2 : 1;
    if ((code >= 10 && code <= 12) || (code >= 28 && code <= 30) || code == 0x85 ||
        code == 0x2028 || code == 0x2029)
        return nbytes;
    return 0;
}

int chat_split_lines(struct chat_run *r, struct chat_val *out, const struct chat_str *s,
                     bool keep_ends)
{
    const char *at = s->at, *line = at, *const end = at + s->nbytes;
    int nbytes, nbreak;

    FSDP_TRY(chat_list_new(r, out, CHAT_LIST, 0));
    FSDP_TRY(chat_step(r, s->nbytes >> 4));
    while (at < end) {
        nbreak = line_break(at, end);
        if (nbreak) {
            FSDP_TRY(add_part(r, out->list, s, line, at + (keep_ends ? nbreak : 0)));
            at = line = at + nbreak;
        } else {
            chat_decode(at, &nbytes);
            at += nbytes;
        }
    }
    return line < end ? add_part(r, out->list, s, line, end) : FSDP_OK;
}

CHAT_BUILTIN(text_splitlines)
{
    return chat_split_lines(r, out, a[0].s, !chat_is_absent(&a[1]) && chat_truth(&a[1]));
}

/* ---- replacing and joining ------------------------------------------------------------------ */

int chat_replace(struct chat_run *r, struct chat_val *out, const struct chat_str *s,
                 const struct chat_str *old, const struct chat_str *new, chat_int max)
{
    const char *at = s->at, *const end = s->at + s->nbytes, *found;
    struct chat_buf b = {0};
    int nbytes;

    FSDP_TRY(chat_step(r, s->nbytes >> 5));
    for (; max != 0 && at <= end && (found = chat_find(at, end, old)); max--) {
        FSDP_TRY(chat_step(r, 1));
        FSDP_TRY(chat_buf_add(r, &b, at, (size_t)(found - at)));
        FSDP_TRY(chat_buf_add(r, &b, new->at, new->nbytes));
        at = found + old->nbytes;
        if (old->nbytes)
            continue;
        if (at == end) /* between all characters, and at both ends */
            break;
        chat_decode(at, &nbytes);
        FSDP_TRY(chat_buf_add(r, &b, at, (size_t)nbytes));
        at += nbytes;
    }
    FSDP_TRY(chat_buf_add(r, &b, at, (size_t)(end - at)));
    return chat_str_part(r, out, &(struct chat_str){.nbytes = 1, .markup = s->markup}, b.at,
                         b.nbytes);
}

/* Text that becomes part of markup is escaped. */
static int want_part(struct chat_run *r, const struct chat_str **out, const struct chat_val *v,
                     const struct chat_str *of)
{
    struct chat_val escaped;

    FSDP_TRY(chat_want_str(r, out, v, "a method of str"));
    if (!of->markup)
        return FSDP_OK;
    FSDP_TRY(chat_escape_html(r, &escaped, v));
    *out = escaped.s;
    return FSDP_OK;
}

CHAT_BUILTIN(text_replace)
{
    const struct chat_str *old, *new;
    chat_int max = -1;

    FSDP_TRY(chat_want_str(r, &old, &a[1], "replace()"));
    FSDP_TRY(want_part(r, &new, &a[2], a[0].s));
    if (!chat_is_absent(&a[3]))
        FSDP_TRY(chat_want_int(r, &max, &a[3], "replace()"));
    return chat_replace(r, out, a[0].s, old, new, max);
}

int chat_join(struct chat_run *r, struct chat_val *out, const struct chat_str *between,
              const struct chat_val *items)
{
    struct chat_buf b = {0};
    struct chat_iter *it;
    struct chat_val item;
    const struct chat_str *part;
    bool more;

    FSDP_TRY(chat_iterate(r, &it, items));
    for (size_t i = 0;; i++) {
        FSDP_TRY(chat_next(r, it, &item, &more));
        if (!more)
            break;
        FSDP_TRY(want_part(r, &part, &item, between));
        if (i)
            FSDP_TRY(chat_buf_add(r, &b, between->at, between->nbytes));
        FSDP_TRY(chat_buf_add(r, &b, part->at, part->nbytes));
    }
    return chat_str_part(r, out, &(struct chat_str){.nbytes = 1, .markup = between->markup}, b.at,
                         b.nbytes);
}

CHAT_BUILTIN(text_join)
{
    return chat_join(r, out, a[0].s, &a[1]);
}

const struct chat_builtin chat_text_methods[] = {
    {"strip", text_strip, "/chars", 0},
    {"lstrip", text_lstrip, "/chars", 0},
    {"rstrip", text_rstrip, "/chars", 0},
    {"removeprefix", text_removeprefix, "/prefix", 1},
    {"removesuffix", text_removesuffix, "/suffix", 1},
    {"split", text_split, "sep maxsplit", 0},
    {"rsplit", text_rsplit, "sep maxsplit", 0},
    {"partition", text_partition, "/sep", 1},
    {"rpartition", text_rpartition, "/sep", 1},
    {"splitlines", text_splitlines, "keepends", 0},
    {"replace", text_replace, "/old new count", 2},
    {"join", text_join, "/iterable", 1},
    {0},
};
