/* SPDX-License-Identifier: Apache-2.0 */
#include "text/chat/value/iterate.h"
#include "loop.h"

int chat_loop_new(struct chat_run *r, struct chat_val *out, const struct chat_val *over, int depth0)
{
    struct chat_loop *loop;

    FSDP_TRY(chat_new(r, &loop, 1, sizeof *loop));
    FSDP_TRY(chat_iterate(r, &loop->it, over));
    loop->index0 = -1;
    loop->depth0 = depth0;
    loop->length = -1;
    if (over->kind != CHAT_UNDEF)
        FSDP_TRY(chat_length(r, &loop->length, over));
    *out = (struct chat_val){.kind = CHAT_LOOP, .loop = loop};
    return FSDP_OK;
}

/* Looks at the next element, which is MISSING behind the last. */
static int peek_next(struct chat_run *r, struct chat_loop *loop)
{
    bool more = true;

    if (!chat_is_absent(&loop->after) || loop->ended)
        return FSDP_OK;
    FSDP_TRY(chat_next(r, loop->it, &loop->after, &more));
    if (!more) {
        loop->after = (struct chat_val){.kind = CHAT_MISSING};
        loop->ended = true;
    }
    return FSDP_OK;
}

int chat_loop_next(struct chat_run *r, struct chat_loop *loop, bool *more)
{
    FSDP_TRY(peek_next(r, loop));
    *more = !chat_is_absent(&loop->after);
    if (!*more)
        return FSDP_OK;
    loop->index0++;
    loop->before = loop->current;
    loop->current = loop->after;
    loop->after = (struct chat_val){.kind = CHAT_MISSING};
    return FSDP_OK;
}

/* The length of an iterator is known when it has ended: what is left becomes a list. */
static int find_length(struct chat_run *r, struct chat_loop *loop)
{
    const struct chat_val left = {.kind = CHAT_ITER, .iter = loop->it};
    struct chat_val list;

    if (loop->length >= 0)
        return FSDP_OK;
    FSDP_TRY(chat_collect(r, &list, &left));
    FSDP_TRY(chat_iterate(r, &loop->it, &list));
    loop->length =
        (chat_int)list.list->nelem + loop->index0 + 1 + (chat_is_absent(&loop->after) ? 0 : 1);
    return FSDP_OK;
}

static int loop_cycle(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
                      const struct chat_args *args)
{
    if (!args->nelem)
        return chat_fail(r, "no items for cycling given");
    *out = args->at[(size_t)a[0].loop->index0 % args->nelem];
    return FSDP_OK;
}

static int loop_changed(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
                        const struct chat_args *args)
{
    struct chat_val now;
    bool same = false;

    FSDP_TRY(chat_list_new(r, &now, CHAT_TUPLE, args->nelem));
    for (size_t i = 0; i < args->nelem; i++)
        FSDP_TRY(chat_list_add(r, now.list, &args->at[i]));
    if (!chat_is_absent(&a[0].loop->changed))
        FSDP_TRY(chat_equal(r, &same, &now, &a[0].loop->changed));
    if (!same)
        a[0].loop->changed = now;
    *out = chat_bool(!same);
    return FSDP_OK;
}

static int item_of_loop(struct chat_run *r, struct chat_val *out, const struct chat_val *item,
                        const char *why)
{
    struct chat_val name;

    if (!chat_is_absent(item)) {
        *out = *item;
        return FSDP_OK;
    }
    FSDP_TRY(chat_str_copy(r, &name, "loop", 4));
    return chat_undef_new(r, out, NULL, &name, why);
}

static int number_of_loop(struct chat_run *r, struct chat_val *out, struct chat_loop *loop,
                          const struct chat_str *name, bool *found)
{
    if (chat_str_is(name, "index0")) {
        *out = chat_integer(loop->index0);
    } else if (chat_str_is(name, "index")) {
        *out = chat_integer(loop->index0 + 1);
    } else if (chat_str_is(name, "depth0")) {
        *out = chat_integer(loop->depth0);
    } else if (chat_str_is(name, "depth")) {
        *out = chat_integer(loop->depth0 + 1);
    } else if (chat_str_is(name, "length") || chat_str_is(name, "revindex") ||
               chat_str_is(name, "revindex0")) {
        FSDP_TRY(find_length(r, loop));
        *out = chat_integer(loop->length);
        if (!chat_str_is(name, "length"))
            out->i -= loop->index0 + (chat_str_is(name, "revindex") ? 0 : 1);
    } else {
        *found = false;
    }
    return FSDP_OK;
}

int chat_loop_attribute(struct chat_run *r, struct chat_val *out, struct chat_loop *loop,
                        const struct chat_str *name, bool *found)
{
    static const struct chat_builtin methods[] = {
        {"cycle", loop_cycle, NULL, 0}, {"changed", loop_changed, NULL, 0}, {0}};
    const struct chat_builtin *method = chat_builtin_find(methods, name);
    const struct chat_val self = {.kind = CHAT_LOOP, .loop = loop};

    *found = true;
    if (method)
        return chat_native_new(r, out, method, &self);
    if (chat_str_is(name, "first")) {
        *out = chat_bool(loop->index0 == 0);
    } else if (chat_str_is(name, "last")) {
        FSDP_TRY(peek_next(r, loop));
        *out = chat_bool(chat_is_absent(&loop->after));
    } else if (chat_str_is(name, "previtem")) {
        return item_of_loop(r, out, &loop->before, "has no previous item");
    } else if (chat_str_is(name, "nextitem")) {
        FSDP_TRY(peek_next(r, loop));
        return item_of_loop(r, out, &loop->after, "has no next item");
    } else {
        return number_of_loop(r, out, loop, name, found);
    }
    return FSDP_OK;
}
