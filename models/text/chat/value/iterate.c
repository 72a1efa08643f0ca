/* SPDX-License-Identifier: Apache-2.0 */
#include "iterate.h"
#include "unicode.h"

chat_int chat_range_length(const struct chat_range *range)
{
    const chat_int distance = range->end - range->first;

    if (range->step > 0)
        return distance > 0 ? (distance + range->step - 1) / range->step : 0;
    return distance < 0 ? (distance + range->step + 1) / range->step : 0;
}

int chat_iter_new(struct chat_run *r, struct chat_val *out,
                  int (*next)(struct chat_run *, struct chat_iter *, struct chat_val *, bool *),
                  void *state)
{
    struct chat_iter *it;

    FSDP_TRY(chat_new(r, &it, 1, sizeof *it));
    it->next = next;
    it->state = state;
    *out = (struct chat_val){.kind = CHAT_ITER, .iter = it};
    return FSDP_OK;
}

static int next_element(struct chat_run *r, struct chat_iter *it, struct chat_val *out, bool *more)
{
    (void)r;
    *more = it->at < it->of.list->nelem;
    if (*more)
        *out = it->of.list->at[it->at++];
    return FSDP_OK;
}

/* it->at is a byte offset. */
static int next_char(struct chat_run *r, struct chat_iter *it, struct chat_val *out, bool *more)
{
    const struct chat_str *s = it->of.s;
    const char *at = s->at + it->at;
    int nbytes;

    *more = it->at < s->nbytes;
    if (!*more)
        return FSDP_OK;
    chat_decode(at, &nbytes);
    it->at += (size_t)nbytes;
    return chat_str_part(r, out, s, at, (size_t)nbytes);
}

static int next_key(struct chat_run *r, struct chat_iter *it, struct chat_val *out, bool *more)
{
    (void)r;
    *more = it->at < it->of.dict->nelem;
    if (*more)
        *out = it->of.dict->keys[it->at++];
    return FSDP_OK;
}

static int next_of_view(struct chat_run *r, struct chat_iter *it, struct chat_val *out, bool *more)
{
    const struct chat_view *view = it->of.view;
    const size_t i = it->at;

    *more = i < view->dict->nelem;
    if (!*more)
        return FSDP_OK;
    it->at++;
    if (view->of == CHAT_ITEMS)
        return chat_pair_new(r, out, &view->dict->keys[i], &view->dict->values[i]);
    *out = view->of == CHAT_KEYS ? view->dict->keys[i] : view->dict->values[i];
    return FSDP_OK;
}

static int next_of_range(struct chat_run *r, struct chat_iter *it, struct chat_val *out, bool *more)
{
    const struct chat_range *range = it->of.range;

    (void)r;
    *more = (chat_int)it->at < chat_range_length(range);
    if (*more)
        *out = chat_integer(range->first + (chat_int)it->at++ * range->step);
    return FSDP_OK;
}

static int next_of_none(struct chat_run *r, struct chat_iter *it, struct chat_val *out, bool *more)
{
    (void)r;
    (void)it;
    (void)out;
    *more = false;
    return FSDP_OK;
}

bool chat_can_iterate(const struct chat_val *v)
{
    switch (v->kind) {
    case CHAT_UNDEF:
    case CHAT_STR:
    case CHAT_LIST:
    case CHAT_TUPLE:
    case CHAT_DICT:
    case CHAT_VIEW:
    case CHAT_RANGE:
    case CHAT_ITER:
        return true;
    default:
        return false;
    }
}

int chat_iterate(struct chat_run *r, struct chat_iter **out, const struct chat_val *v)
{
    static int (*const nexts[CHAT_NKINDS])(struct chat_run *, struct chat_iter *, struct chat_val *,
                                           bool *) = {
        [CHAT_UNDEF] = next_of_none,  [CHAT_STR] = next_char, [CHAT_LIST] = next_element,
        [CHAT_TUPLE] = next_element,  [CHAT_DICT] = next_key, [CHAT_VIEW] = next_of_view,
        [CHAT_RANGE] = next_of_range,
    };
    struct chat_val it;

    if (v->kind == CHAT_ITER) {
        *out = v->iter;
        return FSDP_OK;
    }
    if (!nexts[v->kind])
        return chat_fail(r, "'%s' object is not iterable", chat_type_name(v));
    FSDP_TRY(chat_iter_new(r, &it, nexts[v->kind], NULL));
    it.iter->of = *v;
    *out = it.iter;
    return FSDP_OK;
}

int chat_next(struct chat_run *r, struct chat_iter *it, struct chat_val *out, bool *more)
{
    int rc;

    FSDP_TRY(chat_step(r, 1));
    FSDP_TRY(chat_enter(r));
    rc = it->next(r, it, out, more);
    chat_leave(r);
    return rc;
}

int chat_collect(struct chat_run *r, struct chat_val *out, const struct chat_val *v)
{
    struct chat_iter *it;
    struct chat_val item;
    bool more;

    FSDP_TRY(chat_iterate(r, &it, v));
    FSDP_TRY(chat_list_new(r, out, CHAT_LIST, chat_is_list(v) ? v->list->nelem : 0));
    for (;;) {
        FSDP_TRY(chat_next(r, it, &item, &more));
        if (!more)
            return FSDP_OK;
        FSDP_TRY(chat_list_add(r, out->list, &item));
    }
}

int chat_length(struct chat_run *r, chat_int *out, const struct chat_val *v)
{
    (void)r;
    switch (v->kind) {
    case CHAT_UNDEF:
        *out = 0;
        break;
    case CHAT_STR:
        *out = (chat_int)v->s->nchars;
        break;
    case CHAT_LIST:
    case CHAT_TUPLE:
        *out = (chat_int)v->list->nelem;
        break;
    case CHAT_DICT:
        *out = (chat_int)v->dict->nelem;
        break;
    case CHAT_VIEW:
        *out = (chat_int)v->view->dict->nelem;
        break;
    case CHAT_RANGE:
        *out = chat_range_length(v->range);
        break;
    default:
        *out = -1;
    }
    return FSDP_OK;
}

static int contains_text(struct chat_run *r, bool *out, const struct chat_str *s,
                         const struct chat_val *item)
{
    if (item->kind == CHAT_UNDEF)
        return chat_undef_fail(r, item);
    if (item->kind != CHAT_STR)
        return chat_fail(r, "'in <string>' requires string as left operand, not %s",
                         chat_type_name(item));
    *out = chat_find(s->at, s->at + s->nbytes, item->s) != NULL;
    return chat_step(r, s->nbytes >> 6);
}

int chat_contains(struct chat_run *r, bool *out, const struct chat_val *v,
                  const struct chat_val *item)
{
    struct chat_iter *it;
    struct chat_val each;
    bool more;

    *out = false;
    if (v->kind == CHAT_STR)
        return contains_text(r, out, v->s, item);
    if (v->kind == CHAT_DICT || (v->kind == CHAT_VIEW && v->view->of == CHAT_KEYS)) {
        FSDP_TRY(chat_check_hashable(r, item));
        *out = chat_dict_get(v->kind == CHAT_DICT ? v->dict : v->view->dict, item) != NULL;
        return FSDP_OK;
    }
    if (!chat_can_iterate(v))
        return chat_fail(r, "argument of type '%s' is not iterable", chat_type_name(v));
    FSDP_TRY(chat_iterate(r, &it, v));
    while (!*out) {
        FSDP_TRY(chat_next(r, it, &each, &more));
        if (!more)
            break;
        FSDP_TRY(chat_equal(r, out, &each, item));
    }
    return FSDP_OK;
}
