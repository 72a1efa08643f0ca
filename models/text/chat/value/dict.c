/* SPDX-License-Identifier: Apache-2.0 */
/* Dictionaries, equality and order. */
#include <math.h>

#include "run.h"

enum { MIN_INDEXED = 12 };

/* ---- equality ------------------------------------------------------------------------------- */

static int equal_lists(struct chat_run *r, bool *out, const struct chat_list *a,
                       const struct chat_list *b)
{
    *out = a->nelem == b->nelem;
    for (size_t i = 0; *out && i < a->nelem; i++)
        FSDP_TRY(chat_equal(r, out, &a->at[i], &b->at[i]));
    return FSDP_OK;
}

static int equal_dicts(struct chat_run *r, bool *out, const struct chat_dict *a,
                       const struct chat_dict *b)
{
    *out = a->nelem == b->nelem;
    for (size_t i = 0; *out && i < a->nelem; i++) {
        const struct chat_val *other = chat_dict_get(b, &a->keys[i]);
        *out = other != NULL;
        if (other)
            FSDP_TRY(chat_equal(r, out, &a->values[i], other));
    }
    return FSDP_OK;
}

static bool equal_ranges(const struct chat_range *a, const struct chat_range *b)
{
    return a->first == b->first && a->end == b->end && a->step == b->step;
}

/* Values that hold no others. */
static bool equal_simple(const struct chat_val *a, const struct chat_val *b)
{
    if (chat_is_int(a) && chat_is_int(b))
        return a->i == b->i;
    if (chat_is_number(a) && chat_is_number(b))
        return chat_as_double(a) == chat_as_double(b);
    if (a->kind != b->kind)
        return false;
    switch (a->kind) {
    case CHAT_STR:
        return chat_str_equal(a->s, b->s);
    case CHAT_NONE:
    case CHAT_UNDEF:
        return true;
    case CHAT_RANGE:
        return equal_ranges(a->range, b->range);
    default:
        return a->list == b->list;
    }
}

int chat_equal(struct chat_run *r, bool *out, const struct chat_val *a, const struct chat_val *b)
{
    int rc;

    FSDP_TRY(chat_step(r, 1));
    if (a->kind != b->kind || (!chat_is_list(a) && a->kind != CHAT_DICT)) {
        *out = equal_simple(a, b);
        return FSDP_OK;
    }
    FSDP_TRY(chat_enter(r));
    rc = chat_is_list(a) ? equal_lists(r, out, a->list, b->list)
                         : equal_dicts(r, out, a->dict, b->dict);
    chat_leave(r);
    return rc;
}

/* ---- order ---------------------------------------------------------------------------------- */

static int order_lists(struct chat_run *r, int *order, const struct chat_val *x,
                       const struct chat_val *y, const char *op)
{
    const struct chat_list *a = x->list, *b = y->list;
    bool same = true;

    for (size_t i = 0; i < a->nelem && i < b->nelem; i++) {
        FSDP_TRY(chat_equal(r, &same, &a->at[i], &b->at[i]));
        if (!same)
            return chat_order(r, order, &a->at[i], &b->at[i], op);
    }
    *order = (a->nelem > b->nelem) - (a->nelem < b->nelem);
    return FSDP_OK;
}

static int order_numbers(const struct chat_val *a, const struct chat_val *b)
{
    if (chat_is_int(a) && chat_is_int(b))
        return (a->i > b->i) - (a->i < b->i);
    const double x = chat_as_double(a), y = chat_as_double(b);
    if (isnan(x) || isnan(y))
        return 2;
    return (x > y) - (x < y);
}

int chat_order(struct chat_run *r, int *order, const struct chat_val *a, const struct chat_val *b,
               const char *op)
{
    int rc;

    FSDP_TRY(chat_step(r, 1));
    if (a->kind == CHAT_UNDEF || b->kind == CHAT_UNDEF)
        return chat_undef_fail(r, a->kind == CHAT_UNDEF ? a : b);
    if (chat_is_number(a) && chat_is_number(b)) {
        *order = order_numbers(a, b);
        return FSDP_OK;
    }
    if (a->kind == CHAT_STR && b->kind == CHAT_STR) {
        *order = chat_str_compare(a->s, b->s);
        return chat_step(r, (a->s->nbytes < b->s->nbytes ? a->s->nbytes : b->s->nbytes) >> 8);
    }
    if (!chat_is_list(a) || a->kind != b->kind)
        return chat_fail(r, "'%s' not supported between instances of '%s' and '%s'", op,
                         chat_type_name(a), chat_type_name(b));
    FSDP_TRY(chat_enter(r));
    rc = order_lists(r, order, a, b, op);
    chat_leave(r);
    return rc;
}

/* ---- dictionaries --------------------------------------------------------------------------- */

static uint64_t hash_of(const struct chat_val *v)
{
    uint64_t hash = FSDP_HASH_SEED;

    if (v->kind == CHAT_STR)
        return fsdp_hash(hash, v->s->at, v->s->nbytes);
    if (chat_is_number(v)) { /* equal numbers of other types are the same key */
        const double f = chat_as_double(v) + 0.0;
        return fsdp_hash(hash, &f, sizeof f);
    }
    if (v->kind == CHAT_TUPLE)
        for (size_t i = 0; i < v->list->nelem; i++)
            hash = 31 * hash + hash_of(&v->list->at[i]);
    return hash + (uint64_t)v->kind;
}

/* Tuples of tuples are as deep as they were made, which is bounded. */
static bool equal_keys(const struct chat_val *a, const struct chat_val *b)
{
    if (a->kind != CHAT_TUPLE || b->kind != CHAT_TUPLE)
        return equal_simple(a, b);
    if (a->list->nelem != b->list->nelem)
        return false;
    for (size_t i = 0; i < a->list->nelem; i++)
        if (!equal_keys(&a->list->at[i], &b->list->at[i]))
            return false;
    return true;
}

int chat_check_hashable(struct chat_run *r, const struct chat_val *v)
{
    int rc = FSDP_OK;

    if (v->kind == CHAT_LIST || v->kind == CHAT_DICT)
        return chat_fail(r, "unhashable type: '%s'", chat_type_name(v));
    if (v->kind != CHAT_TUPLE)
        return FSDP_OK;
    FSDP_TRY(chat_enter(r));
    for (size_t i = 0; !rc && i < v->list->nelem; i++)
        rc = chat_check_hashable(r, &v->list->at[i]);
    chat_leave(r);
    return rc;
}

int chat_dict_new(struct chat_run *r, struct chat_val *out, enum chat_kind kind, size_t max)
{
    struct chat_dict *d;

    FSDP_TRY(chat_new(r, &d, 1, sizeof *d));
    *out = (struct chat_val){.kind = kind, .dict = d};
    if (max) {
        FSDP_TRY(chat_new(r, &d->keys, max, sizeof *d->keys));
        FSDP_TRY(chat_new(r, &d->values, max, sizeof *d->values));
        d->max = max;
    }
    return FSDP_OK;
}

/* The place in the hash table of a key, or of where it would be. */
static uint32_t *find_slot(const struct chat_dict *d, const struct chat_val *key)
{
    size_t at = hash_of(key) & (d->nindex - 1);

    while (d->index[at] && !equal_keys(&d->keys[d->index[at] - 1], key))
        at = (at + 1) & (d->nindex - 1);
    return &d->index[at];
}

static size_t find_key(const struct chat_dict *d, const struct chat_val *key)
{
    if (d->index) {
        const uint32_t place = *find_slot(d, key);
        return place ? place - 1 : SIZE_MAX;
    }
    for (size_t i = 0; i < d->nelem; i++)
        if (equal_keys(&d->keys[i], key))
            return i;
    return SIZE_MAX;
}

static int grow_dict(struct chat_run *r, struct chat_dict *d)
{
    const size_t max = d->max < 4 ? 4 : 2 * d->max;
    struct chat_val *keys, *values;

    if (max > UINT32_MAX / 4)
        return chat_fail(r, "a dictionary of more than %zu keys", d->max);
    FSDP_TRY(chat_new(r, &keys, max, sizeof *keys));
    FSDP_TRY(chat_new(r, &values, max, sizeof *values));
    if (d->nelem) {
        memcpy(keys, d->keys, d->nelem * sizeof *keys);
        memcpy(values, d->values, d->nelem * sizeof *values);
    }
    d->keys = keys;
    d->values = values;
    d->max = max;
    return FSDP_OK;
}

static int index_dict(struct chat_run *r, struct chat_dict *d)
{
    d->nindex = 64;
    while (d->nindex < 3 * d->nelem)
        d->nindex *= 2;
    FSDP_TRY(chat_new(r, &d->index, d->nindex, sizeof *d->index));
    for (size_t i = 0; i < d->nelem; i++)
        *find_slot(d, &d->keys[i]) = (uint32_t)i + 1;
    return FSDP_OK;
}

int chat_dict_set(struct chat_run *r, struct chat_dict *d, const struct chat_val *key,
                  const struct chat_val *v)
{
    size_t at = find_key(d, key);

    if (at != SIZE_MAX) {
        d->values[at] = *v;
        return FSDP_OK;
    }
    if (d->nelem == d->max)
        FSDP_TRY(grow_dict(r, d));
    at = d->nelem;
    d->keys[at] = *key;
    d->values[at] = *v;
    d->nelem++;
    if (d->nelem < MIN_INDEXED)
        return FSDP_OK;
    if (!d->index || 2 * d->nelem > d->nindex)
        return index_dict(r, d);
    *find_slot(d, key) = (uint32_t)at + 1;
    return FSDP_OK;
}

int chat_dict_set_text(struct chat_run *r, struct chat_dict *d, const char *key,
                       const struct chat_val *v)
{
    struct chat_val k;

    FSDP_TRY(chat_str_copy(r, &k, key, strlen(key)));
    return chat_dict_set(r, d, &k, v);
}

const struct chat_val *chat_dict_get(const struct chat_dict *d, const struct chat_val *key)
{
    const size_t at = find_key(d, key);
    return at == SIZE_MAX ? NULL : &d->values[at];
}

const struct chat_val *chat_dict_get_text(const struct chat_dict *d, const char *key)
{
    const struct chat_str s = {.at = key, .nbytes = strlen(key)};
    const struct chat_val k = chat_str_val(&s);
    return chat_dict_get(d, &k);
}
