/* SPDX-License-Identifier: Apache-2.0 */
/* Python's json.dumps. */
#include <math.h>
#include <stdlib.h>

#include "print.h"
#include "unicode.h"

struct json_writer {
    struct chat_run *r;
    struct chat_buf *b;
    const struct chat_json_style *style;
    int level;
};

static int write_value(struct json_writer *w, const struct chat_val *v);

static int write_escape(struct json_writer *w, uint32_t code)
{
    char text[16];

    if (code == '"' || code == '\\') {
        snprintf(text, sizeof text, "\\%c", (char)code);
    } else if (code < 0x20 && code >= 8 && "btn?fr"[code - 8 < 6 ? code - 8 : 3] != '?') {
        snprintf(text, sizeof text, "\\%c", "btn?fr"[code - 8]);
    } else if (code >= 0x10000) {
        code -= 0x10000;
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 | code >> 10, 0xdc00 | (code & 0x3ff));
    } else {
        snprintf(text, sizeof text, "\\u%04x", code);
    }
    return chat_buf_puts(w->r, w->b, text);
}

static int write_str(struct json_writer *w, const struct chat_str *s)
{
    const char *const end = s->at + s->nbytes, *plain = s->at;
    int nbytes;

    FSDP_TRY(chat_buf_puts(w->r, w->b, "\""));
    for (const char *at = s->at; at < end; at += nbytes) {
        const uint32_t code = chat_decode(at, &nbytes);
        if (code >= 0x20 && code != '"' && code != '\\' && (code < 0x80 || !w->style->ascii))
            continue;
        FSDP_TRY(chat_buf_add(w->r, w->b, plain, (size_t)(at - plain)));
        FSDP_TRY(write_escape(w, code));
        plain = at + nbytes;
    }
    FSDP_TRY(chat_buf_add(w->r, w->b, plain, (size_t)(end - plain)));
    FSDP_TRY(chat_step(w->r, s->nbytes >> 5));
    return chat_buf_puts(w->r, w->b, "\"");
}

static int write_float(struct json_writer *w, double f)
{
    if (isnan(f) || isinf(f))
        return chat_buf_puts(w->r, w->b, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
    return chat_print_float(w->r, w->b, f);
}

/* A line of its own for what follows. */
static int write_line(struct json_writer *w)
{
    if (!w->style->indents)
        return FSDP_OK;
    FSDP_TRY(chat_buf_puts(w->r, w->b, "\n"));
    for (int i = 0; i < w->level; i++)
        FSDP_TRY(chat_buf_add(w->r, w->b, w->style->indent->at, w->style->indent->nbytes));
    return FSDP_OK;
}

static int write_between(struct json_writer *w, size_t i)
{
    if (i)
        FSDP_TRY(chat_buf_add(w->r, w->b, w->style->between->at, w->style->between->nbytes));
    return write_line(w);
}

static int write_end(struct json_writer *w, bool any, const char *bracket)
{
    w->level--;
    if (any)
        FSDP_TRY(write_line(w));
    return chat_buf_puts(w->r, w->b, bracket);
}

static int write_list(struct json_writer *w, const struct chat_list *list)
{
    FSDP_TRY(chat_buf_puts(w->r, w->b, "["));
    w->level++;
    for (size_t i = 0; i < list->nelem; i++) {
        FSDP_TRY(write_between(w, i));
        FSDP_TRY(write_value(w, &list->at[i]));
    }
    return write_end(w, list->nelem > 0, "]");
}

/* Keys that are no texts become some. */
static int write_key(struct json_writer *w, const struct chat_val *key)
{
    struct chat_buf b = {0};
    struct json_writer inner = {w->r, &b, w->style, 0};
    struct chat_val text = *key;

    if (key->kind != CHAT_STR) {
        if (key->kind != CHAT_NONE && !chat_is_number(key))
            return chat_fail(w->r, "keys must be str, int, float, bool or None, not %s",
                             chat_type_name(key));
        FSDP_TRY(write_value(&inner, key));
        FSDP_TRY(chat_buf_str(w->r, &text, &b));
    }
    FSDP_TRY(write_str(w, text.s));
    return chat_buf_add(w->r, w->b, w->style->colon->at, w->style->colon->nbytes);
}

/* The order of keys: insertion sort, for there are few. */
static int sort_keys(struct json_writer *w, size_t **out, const struct chat_dict *d)
{
    size_t *order;

    FSDP_TRY(chat_new(w->r, &order, d->nelem + 1, sizeof *order));
    for (size_t i = 0; i < d->nelem; i++) {
        size_t at = i;
        int cmp = 0;
        for (; w->style->sort_keys && at; at--) {
            FSDP_TRY(chat_order(w->r, &cmp, &d->keys[i], &d->keys[order[at - 1]], "<"));
            if (cmp >= 0)
                break;
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    *out = order;
    return FSDP_OK;
}

static int write_dict(struct json_writer *w, const struct chat_dict *d)
{
    size_t *order = NULL;

    FSDP_TRY(sort_keys(w, &order, d));
    FSDP_TRY(chat_buf_puts(w->r, w->b, "{"));
    w->level++;
    for (size_t i = 0; i < d->nelem; i++) {
        FSDP_TRY(write_between(w, i));
        FSDP_TRY(write_key(w, &d->keys[order[i]]));
        FSDP_TRY(write_value(w, &d->values[order[i]]));
    }
    return write_end(w, d->nelem > 0, "}");
}

static int write_value(struct json_writer *w, const struct chat_val *v)
{
    int rc;

    FSDP_TRY(chat_step(w->r, 1));
    switch (v->kind) {
    case CHAT_NONE:
        return chat_buf_puts(w->r, w->b, "null");
    case CHAT_BOOL:
        return chat_buf_puts(w->r, w->b, v->i ? "true" : "false");
    case CHAT_INT:
        return chat_print_int(w->r, w->b, v->i);
    case CHAT_FLOAT:
        return write_float(w, v->f);
    case CHAT_STR:
        return write_str(w, v->s);
    case CHAT_LIST:
    case CHAT_TUPLE:
    case CHAT_DICT:
        FSDP_TRY(chat_enter(w->r));
        rc = v->kind == CHAT_DICT ? write_dict(w, v->dict) : write_list(w, v->list);
        chat_leave(w->r);
        return rc;
    default:
        return chat_fail(w->r, "a value of type %s cannot be written as JSON", chat_type_name(v));
    }
}

int chat_print_json(struct chat_run *r, struct chat_buf *b, const struct chat_val *v,
                    const struct chat_json_style *style)
{
    struct json_writer w = {r, b, style, 0};
    return write_value(&w, v);
}
