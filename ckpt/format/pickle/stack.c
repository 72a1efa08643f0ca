/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's stack, and the lists, tuples and dicts that are made of it. */
#include <string.h>

#include "machine.h"

__attribute__((cold, noinline)) int machine_bad(const struct machine *m, const char *text)
{
    return fsdp_err_set(m->err, FSDP_ECORRUPT, "%s is damaged: %s at byte %zu", m->what, text,
                        m->pos);
}

int machine_grow(struct machine *m, void **data, size_t *max, size_t count, size_t used,
                 size_t elem_nbytes)
{
    size_t more = *max ? *max * 4 : 64;
    while (more <= count)
        more *= 2;
    void *grown = fsdp_alloc_unset(more, elem_nbytes, "pickle stack", m->err);
    if (!grown)
        return FSDP_ENOMEM;
    if (used)
        memcpy(grown, *data, used * elem_nbytes);
    fsdp_free(*data);
    *data = grown;
    *max = more;
    return FSDP_OK;
}

/* ---- the stack ------------------------------------------------------------------------------- */

int machine_grow_stack(struct machine *m)
{
    void *data = m->stack;
    FSDP_TRY(machine_grow(m, &data, &m->max_stack, m->nstack, m->nstack, sizeof *m->stack));
    m->stack = data;
    return FSDP_OK;
}

int machine_push_new(struct machine *m, struct ckpt_pk value)
{
    struct ckpt_pk *at = machine_take(m, sizeof *at);
    if (!at)
        return FSDP_ENOMEM;
    *at = value;
    return machine_push(m, at);
}

/* Values that nothing can change, and that are most of a pickle: one of each serves all. */
#define INT(i)                                                                                     \
    {                                                                                              \
        .type = CKPT_PK_T_INT, .u.integer = (i)                                                    \
    }
#define INT4(i) INT(i), INT((i) + 1), INT((i) + 2), INT((i) + 3)
#define INT16(i) INT4(i), INT4((i) + 4), INT4((i) + 8), INT4((i) + 12)
#define INT64(i) INT16(i), INT16((i) + 16), INT16((i) + 32), INT16((i) + 48)
static struct ckpt_pk small_ints[] = {INT64(0), INT64(64), INT64(128), INT64(192)};
struct ckpt_pk machine_none = {.type = CKPT_PK_T_NONE};
struct ckpt_pk machine_empty_tuple = {.type = CKPT_PK_T_TUPLE};
struct ckpt_pk machine_truth[2] = {{.type = CKPT_PK_T_BOOL, .u.integer = 0},
                                   {.type = CKPT_PK_T_BOOL, .u.integer = 1}};

int machine_push_shared(struct machine *m, struct ckpt_pk value)
{
    if (!m->share.recent)
        return machine_push_new(m, value);
    struct ckpt_pk **at = ckpt_pk_share_at(&m->share, &value);
    if (*at)
        return machine_push(m, *at);
    FSDP_TRY(machine_push_new(m, value));
    *at = m->stack[m->nstack - 1];
    return FSDP_OK;
}

int machine_push_int(struct machine *m, int64_t value)
{
    if (value >= 0 && value < (int64_t)(sizeof small_ints / sizeof *small_ints))
        return machine_push(m, &small_ints[value]);
    return machine_push_shared(m, (struct ckpt_pk){.type = CKPT_PK_T_INT, .u.integer = value});
}

size_t machine_floor(const struct machine *m)
{
    return m->nmarks ? m->marks[m->nmarks - 1] : 0;
}

int machine_pop(struct ckpt_pk **out, struct machine *m)
{
    if (m->nstack <= machine_floor(m))
        return machine_bad(m, "it takes from an empty stack");
    *out = m->stack[--m->nstack];
    return FSDP_OK;
}

int machine_pop_mark(size_t *first, struct machine *m)
{
    if (!m->nmarks)
        return machine_bad(m, "it misses a mark");
    *first = m->marks[--m->nmarks];
    return FSDP_OK;
}

/* ---- lists, tuples, dicts -------------------------------------------------------------------- */

/* Items that a list, tuple or dict has room for: exactly what is there at first, for most are
 * filled at once; then powers of two. */
size_t machine_items_max(const struct ckpt_pk *value)
{
    size_t max = value->nitems && !value->exact ? 4 : value->nitems;
    while (!value->exact && max < value->nitems)
        max *= 2;
    return max;
}

int machine_add_items(struct machine *m, struct ckpt_pk *to, struct ckpt_pk *const *items,
                      size_t count)
{
    size_t have = to->nitems, need = have + count, room = machine_items_max(to);
    if (!count)
        return FSDP_OK;
    if (need > UINT32_MAX)
        return machine_bad(m, "a list is too long");
    if (need > room) {
        size_t max = have ? 4 : need;
        while (max < need)
            max *= 2;
        struct ckpt_pk **grown = machine_take(m, max * sizeof *grown);
        if (!grown)
            return FSDP_ENOMEM;
        if (have) {
            memcpy(grown, to->u.items, have * sizeof *grown);
            ckpt_pk_give(&m->memory, to->u.items, room * sizeof *grown);
        }
        to->u.items = grown;
        to->exact = !have;
    }
    memcpy(to->u.items + have, items, count * sizeof *items);
    to->nitems = (uint32_t)need;
    return FSDP_OK;
}

int machine_push_list(struct machine *m, size_t first)
{
    struct ckpt_pk *value = machine_take(m, sizeof *value);
    if (!value)
        return FSDP_ENOMEM;
    *value = (struct ckpt_pk){.type = CKPT_PK_T_LIST};
    FSDP_TRY(machine_add_items(m, value, m->stack ? m->stack + first : NULL, m->nstack - first));
    m->nstack = first;
    return machine_push(m, value);
}

int machine_push_tuple(struct machine *m, size_t first)
{
    const size_t count = m->nstack - first;
    struct ckpt_pk value = {.type = CKPT_PK_T_TUPLE, .nitems = (uint32_t)count}, **at = NULL;
    if (!count)
        return machine_push(m, &machine_empty_tuple);
    if (m->share.recent && count <= CKPT_PK_NKEYS) {
        value.u.items = m->stack + first;
        at = ckpt_pk_share_at(&m->share, &value);
    }
    struct ckpt_pk *tuple = at ? *at : NULL;
    if (!tuple) {
        value.nitems = 0;
        FSDP_TRY(machine_add_items(m, &value, m->stack + first, count));
        if (!(tuple = machine_take(m, sizeof *tuple)))
            return FSDP_ENOMEM;
        *tuple = value;
    }
    if (at)
        *at = tuple;
    m->nstack = first;
    return machine_push(m, tuple);
}

int machine_extend(struct machine *m, enum ckpt_pk_type type, size_t first)
{
    if (first <= machine_floor(m))
        return machine_bad(m, "it adds to nothing");
    struct ckpt_pk *to = m->stack[first - 1];
    const struct ckpt_pk_global *global = ckpt_pk_global_of(to);
    if (global && global->role == CKPT_PK_OPAQUE) {
        m->nstack = first; /* items of what is not known */
        return FSDP_OK;
    }
    if (to->type != type || (type == CKPT_PK_T_DICT && (m->nstack - first) % 2))
        return machine_bad(m, "it adds items to what cannot hold them");
    FSDP_TRY(machine_add_items(m, to, m->stack + first, m->nstack - first));
    m->nstack = first;
    return FSDP_OK;
}
