/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "pickle.h"
#include "pickle_op.h"
#include "pickle_globals.h"

/* ---- memory: values live in chunks, freed together ------------------------------------------- */

struct ckpt_pk_chunk {
    struct ckpt_pk_chunk *next;
    size_t used, nbytes;
    char data[];
};

enum {
    CHUNK_NBYTES = 256 << 10,
    SMALL_CHUNK_NBYTES = 4 << 10,
    LARGE_CHUNK_NBYTES = 4 << 20, /* has huge pages */
    GROWTH = 64,                  /* bytes of values for a byte of input: honest ones take fewer */
};

struct machine {
    struct ckpt_pickle *out;
    const unsigned char *data;
    size_t nbytes, pos;
    size_t room; /* that values may still take */
    struct ckpt_pk **stack;
    size_t nstack, max_stack;
    size_t *marks;
    size_t nmarks, max_marks;
    struct ckpt_pk **memo;
    size_t nmemo, max_memo;
    const char *what;
    struct fsdp_err *err;
};

__attribute__((cold, noinline)) static int bad(const struct machine *m, const char *text)
{
    return fsdp_err_set(m->err, FSDP_ECORRUPT, "%s is damaged: %s at byte %zu", m->what, text,
                        m->pos);
}

/* A chunk of at least nbytes. */
static int chunk_add(struct machine *m, size_t nbytes)
{
    size_t want = m->nbytes < SMALL_CHUNK_NBYTES   ? SMALL_CHUNK_NBYTES
                  : m->nbytes < LARGE_CHUNK_NBYTES ? CHUNK_NBYTES
                                                   : LARGE_CHUNK_NBYTES;
    want = nbytes > want ? nbytes : want;
    struct ckpt_pk_chunk *fresh = fsdp_alloc_unset(sizeof *fresh + want, 1, "pickle", m->err);
    if (!fresh)
        return FSDP_ENOMEM;
    fresh->nbytes = want;
    fresh->used = 0;
    fresh->next = m->out->chunks;
    m->out->chunks = fresh;
    return FSDP_OK;
}

/* Bytes of any value. */
static inline void *take(struct machine *m, size_t nbytes)
{
    struct ckpt_pk_chunk *chunk = m->out->chunks;
    nbytes = (nbytes + 7) & ~(size_t)7;
    if (nbytes > m->room) {
        bad(m, "it asks for too much memory");
        return NULL;
    }
    m->room -= nbytes;
    if (!chunk || chunk->nbytes - chunk->used < nbytes) {
        if (chunk_add(m, nbytes))
            return NULL;
        chunk = m->out->chunks;
    }
    void *at = chunk->data + chunk->used;
    chunk->used += nbytes;
    return at;
}

/* Makes room for more than `count` elements, of which the first `used` are kept. */
static int grow(struct machine *m, void **data, size_t *max, size_t count, size_t used,
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

static inline int push(struct machine *m, struct ckpt_pk *value)
{
    if (m->nstack == m->max_stack) {
        void *data = m->stack;
        FSDP_TRY(grow(m, &data, &m->max_stack, m->nstack, m->nstack, sizeof *m->stack));
        m->stack = data;
    }
    m->stack[m->nstack++] = value;
    return FSDP_OK;
}

static int push_new(struct machine *m, struct ckpt_pk value)
{
    struct ckpt_pk *at = take(m, sizeof *at);
    if (!at)
        return FSDP_ENOMEM;
    *at = value;
    return push(m, at);
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
static struct ckpt_pk none = {.type = CKPT_PK_T_NONE};
static struct ckpt_pk empty_tuple = {.type = CKPT_PK_T_TUPLE};
static struct ckpt_pk truth[] = {{.type = CKPT_PK_T_BOOL, .u.integer = 0},
                                 {.type = CKPT_PK_T_BOOL, .u.integer = 1}};

static int push_int(struct machine *m, int64_t value)
{
    if (value >= 0 && value < (int64_t)(sizeof small_ints / sizeof *small_ints))
        return push(m, &small_ints[value]);
    return push_new(m, (struct ckpt_pk){.type = CKPT_PK_T_INT, .u.integer = value});
}

/* Values above the last mark, or above the bottom. */
static size_t floor_of(const struct machine *m)
{
    return m->nmarks ? m->marks[m->nmarks - 1] : 0;
}

static int pop(struct ckpt_pk **out, struct machine *m)
{
    if (m->nstack <= floor_of(m))
        return bad(m, "it takes from an empty stack");
    *out = m->stack[--m->nstack];
    return FSDP_OK;
}

/* What lies above the last mark: *first is its position in the stack; the mark goes, the values
 * stay until the caller lowers nstack. */
static int pop_mark(size_t *first, struct machine *m)
{
    if (!m->nmarks)
        return bad(m, "it misses a mark");
    *first = m->marks[--m->nmarks];
    return FSDP_OK;
}

/* ---- lists, tuples, dicts -------------------------------------------------------------------- */

/* Exactly what is there at first, for most are filled at once; then in powers of two. */
static int items_add(struct machine *m, struct ckpt_pk *to, struct ckpt_pk *const *items,
                     size_t count)
{
    size_t have = to->nitems, need = have + count, room = have && !to->exact ? 4 : have;
    if (!count)
        return FSDP_OK;
    if (need > UINT32_MAX)
        return bad(m, "a list is too long");
    while (!to->exact && room < have)
        room *= 2;
    if (need > room) {
        size_t max = have ? 4 : need;
        while (max < need)
            max *= 2;
        struct ckpt_pk **grown = take(m, max * sizeof *grown);
        if (!grown)
            return FSDP_ENOMEM;
        if (have)
            memcpy(grown, to->u.items, have * sizeof *grown);
        to->u.items = grown;
        to->exact = !have;
    }
    memcpy(to->u.items + have, items, count * sizeof *items);
    to->nitems = (uint32_t)need;
    return FSDP_OK;
}

static int push_items(struct machine *m, enum ckpt_pk_type type, size_t first)
{
    struct ckpt_pk *value = take(m, sizeof *value);
    if (!value)
        return FSDP_ENOMEM;
    *value = (struct ckpt_pk){.type = (uint8_t)type};
    FSDP_TRY(items_add(m, value, m->stack ? m->stack + first : NULL, m->nstack - first));
    m->nstack = first;
    return push(m, value);
}

static int push_tuple(struct machine *m, size_t count)
{
    if (m->nstack - floor_of(m) < count)
        return bad(m, "it takes from an empty stack");
    return push_items(m, CKPT_PK_T_TUPLE, m->nstack - count);
}

/* Adds what lies above `first` to the list or dict below it. */
static int extend(struct machine *m, enum ckpt_pk_type type, size_t first)
{
    if (first <= floor_of(m))
        return bad(m, "it adds to nothing");
    struct ckpt_pk *to = m->stack[first - 1];
    if (to->type != type || (type == CKPT_PK_T_DICT && (m->nstack - first) % 2))
        return bad(m, "it adds items to what cannot hold them");
    FSDP_TRY(items_add(m, to, m->stack + first, m->nstack - first));
    m->nstack = first;
    return FSDP_OK;
}

static int extend_marked(struct machine *m, enum ckpt_pk_type type)
{
    size_t first = 0;
    FSDP_TRY(pop_mark(&first, m));
    return extend(m, type, first);
}

/* ---- globals and calls ----------------------------------------------------------------------- */

static int push_global(struct machine *m, const char *module, size_t module_nbytes,
                       const char *name, size_t name_nbytes)
{
    const struct ckpt_pk_global *global =
        ckpt_pk_global_find(module, module_nbytes, name, name_nbytes);
    if (!global)
        return fsdp_err_set(m->err, FSDP_EUNSUPPORTED,
                            "%s names the global '%.*s.%.*s': it is not one that torch's "
                            "checkpoints need, and is refused",
                            m->what, (int)(module_nbytes < 200 ? module_nbytes : 200), module,
                            (int)(name_nbytes < 200 ? name_nbytes : 200), name);
    return push_new(m, (struct ckpt_pk){.type = CKPT_PK_T_GLOBAL, .u.global = global});
}

/* dict(other), dict([(key, value), ...]) */
static int fill_dict(struct machine *m, struct ckpt_pk *to, const struct ckpt_pk *from)
{
    if (from->type == CKPT_PK_T_DICT)
        return items_add(m, to, from->u.items, from->nitems);
    for (size_t i = 0; ckpt_pk_is_list(from) && i < from->nitems; i++) {
        const struct ckpt_pk *pair = from->u.items[i];
        if (!ckpt_pk_is_list(pair) || pair->nitems != 2)
            return bad(m, "it fills a dict with what is not pairs");
        FSDP_TRY(items_add(m, to, pair->u.items, 2));
    }
    return FSDP_OK;
}

/* Calls of containers become containers: torch fills them with SETITEMS and APPENDS. That of
 * torch.Size, of which there are three a chunk, becomes its tuple. */
static int push_call(struct machine *m, struct ckpt_pk *callee, struct ckpt_pk *args)
{
    struct ckpt_pk call = {.type = CKPT_PK_T_CALL};
    struct ckpt_pk *parts[3] = {callee, args, NULL};

    if (callee->type != CKPT_PK_T_GLOBAL || args->type != CKPT_PK_T_TUPLE)
        return bad(m, "it calls what is not a known class or function");
    enum ckpt_pk_role role = callee->u.global->role;
    const struct ckpt_pk *first = args->nitems ? args->u.items[0] : NULL;
    if (role == CKPT_PK_DICT) {
        call.type = CKPT_PK_T_DICT;
        if (first && first->type != CKPT_PK_T_GLOBAL)
            FSDP_TRY(fill_dict(m, &call, first));
        return push_new(m, call);
    }
    if (role == CKPT_PK_LIST) {
        call.type = CKPT_PK_T_LIST;
        if (first && ckpt_pk_is_list(first))
            FSDP_TRY(items_add(m, &call, first->u.items, first->nitems));
        return push_new(m, call);
    }
    if (role == CKPT_PK_SIZE && ckpt_pk_is_list(first))
        return push(m, args->u.items[0]);
    FSDP_TRY(items_add(m, &call, parts, 3));
    return push_new(m, call);
}

static int reduce(struct machine *m)
{
    struct ckpt_pk *args = NULL, *callee = NULL;
    FSDP_TRY(pop(&args, m));
    FSDP_TRY(pop(&callee, m));
    return push_call(m, callee, args);
}

static int build(struct machine *m)
{
    struct ckpt_pk *state = NULL, *object = NULL;
    FSDP_TRY(pop(&state, m));
    FSDP_TRY(pop(&object, m));
    if (object->type == CKPT_PK_T_CALL)
        object->u.items[2] = state;
    else if (object->type != CKPT_PK_T_DICT && object->type != CKPT_PK_T_LIST)
        return bad(m, "it gives a state to what has none");
    return push(m, object);
}

static int stack_global(struct machine *m)
{
    struct ckpt_pk *name = NULL, *module = NULL;
    FSDP_TRY(pop(&name, m));
    FSDP_TRY(pop(&module, m));
    if (name->type != CKPT_PK_T_TEXT || module->type != CKPT_PK_T_TEXT)
        return bad(m, "a global's name is not a text");
    return push_global(m, module->u.text, module->nitems, name->u.text, name->nitems);
}

/* ---- reading the input ----------------------------------------------------------------------- */

static inline int need(const unsigned char **out, struct machine *m, uint64_t nbytes)
{
    if (nbytes > m->nbytes - m->pos)
        return bad(m, "it ends too early");
    *out = m->data + m->pos;
    m->pos += (size_t)nbytes;
    return FSDP_OK;
}

/* nbytes is a constant wherever speed matters. */
static inline __attribute__((always_inline)) int number(uint64_t *out, struct machine *m,
                                                        int nbytes)
{
    const unsigned char *at = NULL;
    FSDP_TRY(need(&at, m, (uint64_t)nbytes));
    *out = 0;
    for (int i = nbytes - 1; i >= 0; i--)
        *out = *out << 8 | at[i];
    return FSDP_OK;
}

static inline __attribute__((always_inline)) int
push_text(struct machine *m, enum ckpt_pk_type type, int length_nbytes)
{
    const unsigned char *at = NULL;
    uint64_t nbytes = 0;
    FSDP_TRY(number(&nbytes, m, length_nbytes));
    if (nbytes > UINT32_MAX)
        return bad(m, "a text is too long");
    FSDP_TRY(need(&at, m, nbytes));
    return push_new(m, (struct ckpt_pk){.type = (uint8_t)type,
                                        .nitems = (uint32_t)nbytes,
                                        .u.text = (const char *)at});
}

/* LONG1: little-endian two's complement. */
static int push_long(struct machine *m, int length_nbytes)
{
    const unsigned char *at = NULL;
    uint64_t nbytes = 0, value = 0;
    FSDP_TRY(number(&nbytes, m, length_nbytes));
    FSDP_TRY(need(&at, m, nbytes));
    if (nbytes > 8)
        return push_new(m, (struct ckpt_pk){.type = CKPT_PK_T_BIG});
    for (size_t i = 0; i < 8; i++) {
        uint64_t byte = i < nbytes ? at[i] : nbytes && at[nbytes - 1] & 0x80 ? 0xff : 0;
        value |= byte << (8 * i);
    }
    return push_int(m, (int64_t)value);
}

static int push_float(struct machine *m)
{
    const unsigned char *at = NULL;
    uint64_t bits = 0;
    struct ckpt_pk value = {.type = CKPT_PK_T_FLOAT};
    FSDP_TRY(need(&at, m, 8));
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | at[i];
    memcpy(&value.u.real, &bits, sizeof bits);
    return push_new(m, value);
}

static int line(const char **out, size_t *nbytes, struct machine *m)
{
    const unsigned char *from = m->data + m->pos;
    const unsigned char *end = memchr(from, '\n', m->nbytes - m->pos);
    if (!end)
        return bad(m, "it ends too early");
    *out = (const char *)from;
    *nbytes = (size_t)(end - from);
    m->pos += *nbytes + 1;
    return FSDP_OK;
}

static int global(struct machine *m)
{
    const char *module = NULL, *name = NULL;
    size_t module_nbytes = 0, name_nbytes = 0;
    FSDP_TRY(line(&module, &module_nbytes, m));
    FSDP_TRY(line(&name, &name_nbytes, m));
    return push_global(m, module, module_nbytes, name, name_nbytes);
}

/* ---- the memo -------------------------------------------------------------------------------- */

static int memo_put(struct machine *m, uint64_t at)
{
    if (m->nstack <= floor_of(m))
        return bad(m, "it keeps nothing");
    if (at > m->nbytes)
        return bad(m, "a memo index is too large");
    if (at >= m->max_memo) {
        void *data = m->memo;
        FSDP_TRY(grow(m, &data, &m->max_memo, (size_t)at, m->nmemo, sizeof *m->memo));
        m->memo = data;
    }
    while (m->nmemo <= at)
        m->memo[m->nmemo++] = NULL;
    m->memo[at] = m->stack[m->nstack - 1];
    return FSDP_OK;
}

static inline __attribute__((always_inline)) int memo_get(struct machine *m, int index_nbytes)
{
    uint64_t at = 0;
    FSDP_TRY(number(&at, m, index_nbytes));
    if (at >= m->nmemo || !m->memo[at])
        return bad(m, "it recalls what was not kept");
    return push(m, m->memo[at]);
}

static inline __attribute__((always_inline)) int memo_put_at(struct machine *m, int index_nbytes)
{
    uint64_t at = 0;
    FSDP_TRY(number(&at, m, index_nbytes));
    return memo_put(m, at);
}

static int mark(struct machine *m)
{
    if (m->nmarks == m->max_marks) {
        void *data = m->marks;
        FSDP_TRY(grow(m, &data, &m->max_marks, m->nmarks, m->nmarks, sizeof *m->marks));
        m->marks = data;
    }
    m->marks[m->nmarks++] = m->nstack;
    return FSDP_OK;
}

static int persid(struct machine *m)
{
    struct ckpt_pk *id = NULL, value = {.type = CKPT_PK_T_PERSID};
    FSDP_TRY(pop(&id, m));
    FSDP_TRY(items_add(m, &value, &id, 1));
    return push_new(m, value);
}

/* ---- opcodes --------------------------------------------------------------------------------- */

static int push_marked(struct machine *m, enum ckpt_pk_type type)
{
    size_t first = 0;
    FSDP_TRY(pop_mark(&first, m));
    return push_items(m, type, first);
}

static int extend_by(struct machine *m, enum ckpt_pk_type type, size_t count)
{
    if (m->nstack - floor_of(m) < count + 1)
        return bad(m, "it takes from an empty stack");
    return extend(m, type, m->nstack - count);
}

static inline __attribute__((always_inline)) int push_bytes_number(struct machine *m, int nbytes,
                                                                   bool is_signed)
{
    uint64_t value = 0;
    FSDP_TRY(number(&value, m, nbytes));
    return push_int(m, is_signed ? (int32_t)(uint32_t)value : (int64_t)value);
}

static int skip(struct machine *m, uint64_t nbytes)
{
    const unsigned char *at = NULL;
    return need(&at, m, nbytes);
}

/* One opcode but PROTO and STOP. */
static int step(struct machine *m, unsigned char op)
{
    switch (op) {
    case PK_FRAME:
        return skip(m, 8);
    case PK_MARK:
        return mark(m);
    case PK_NONE:
        return push(m, &none);
    case PK_NEWTRUE:
    case PK_NEWFALSE:
        return push(m, &truth[op == PK_NEWTRUE]);
    case PK_BININT1:
        return push_bytes_number(m, 1, false);
    case PK_BININT2:
        return push_bytes_number(m, 2, false);
    case PK_BININT:
        return push_bytes_number(m, 4, true);
    case PK_LONG1:
        return push_long(m, 1);
    case PK_LONG4:
        return push_long(m, 4);
    case PK_BINFLOAT:
        return push_float(m);
    case PK_SHORT_BINUNICODE:
        return push_text(m, CKPT_PK_T_TEXT, 1);
    case PK_BINUNICODE:
        return push_text(m, CKPT_PK_T_TEXT, 4);
    case PK_BINUNICODE8:
        return push_text(m, CKPT_PK_T_TEXT, 8);
    case PK_SHORT_BINBYTES:
        return push_text(m, CKPT_PK_T_BYTES, 1);
    case PK_BINBYTES:
        return push_text(m, CKPT_PK_T_BYTES, 4);
    case PK_BINBYTES8:
    case PK_BYTEARRAY8:
        return push_text(m, CKPT_PK_T_BYTES, 8);
    case PK_EMPTY_DICT:
        return push_new(m, (struct ckpt_pk){.type = CKPT_PK_T_DICT});
    case PK_SETITEM:
        return extend_by(m, CKPT_PK_T_DICT, 2);
    case PK_SETITEMS:
        return extend_marked(m, CKPT_PK_T_DICT);
    case PK_EMPTY_LIST:
    case PK_EMPTY_SET:
        return push_new(m, (struct ckpt_pk){.type = CKPT_PK_T_LIST});
    case PK_APPEND:
        return extend_by(m, CKPT_PK_T_LIST, 1);
    case PK_APPENDS:
    case PK_ADDITEMS:
        return extend_marked(m, CKPT_PK_T_LIST);
    case PK_FROZENSET:
        return push_marked(m, CKPT_PK_T_LIST);
    case PK_EMPTY_TUPLE:
        return push(m, &empty_tuple);
    case PK_TUPLE:
        return push_marked(m, CKPT_PK_T_TUPLE);
    case PK_TUPLE1:
    case PK_TUPLE2:
    case PK_TUPLE3:
        return push_tuple(m, (size_t)(op - PK_TUPLE1) + 1);
    case PK_MEMOIZE:
        return memo_put(m, m->nmemo);
    case PK_BINPUT:
        return memo_put_at(m, 1);
    case PK_LONG_BINPUT:
        return memo_put_at(m, 4);
    case PK_BINGET:
        return memo_get(m, 1);
    case PK_LONG_BINGET:
        return memo_get(m, 4);
    case PK_GLOBAL:
        return global(m);
    case PK_STACK_GLOBAL:
        return stack_global(m);
    case PK_REDUCE: /* a call is only noted */
    case PK_NEWOBJ:
        return reduce(m);
    case PK_BUILD:
        return build(m);
    case PK_BINPERSID:
        return persid(m);
    default:
        return fsdp_err_set(m->err, FSDP_EUNSUPPORTED,
                            "%s has the pickle opcode 0x%02x at byte %zu: torch's checkpoints do "
                            "not need it, and it is refused",
                            m->what, op, m->pos - 1);
    }
}

static int run(struct machine *m)
{
    uint64_t proto = 0;
    const unsigned char *op = NULL;
    FSDP_TRY(need(&op, m, 1));
    if (*op != PK_PROTO)
        return bad(m, "it does not begin as a pickle of protocol 2 to 5 does");
    FSDP_TRY(number(&proto, m, 1));
    if (proto < 2 || proto > 5)
        return fsdp_err_set(m->err, FSDP_EUNSUPPORTED,
                            "%s is a pickle of protocol %d: 2 to 5 are "
                            "read",
                            m->what, (int)proto);
    for (;;) {
        FSDP_TRY(need(&op, m, 1));
        if (*op == PK_STOP)
            break;
        FSDP_TRY(step(m, *op));
    }
    if (m->nstack != 1 || m->nmarks)
        return bad(m, "it does not end with one value");
    m->out->root = m->stack[0];
    return FSDP_OK;
}

int ckpt_pickle_parse(struct ckpt_pickle *out, const void *data, size_t nbytes, const char *what,
                      struct fsdp_err *err)
{
    struct machine m = {.out = out, .data = data, .nbytes = nbytes, .what = what, .err = err};
    m.room = (nbytes < SIZE_MAX / GROWTH / 2 ? nbytes * GROWTH : SIZE_MAX / 2) + CHUNK_NBYTES;
    memset(out, 0, sizeof *out);
    int rc = run(&m);
    fsdp_free(m.stack);
    fsdp_free(m.marks);
    fsdp_free(m.memo);
    if (rc)
        ckpt_pickle_free(out);
    return rc;
}

void ckpt_pickle_free(struct ckpt_pickle *pickle)
{
    while (pickle->chunks) {
        struct ckpt_pk_chunk *next = pickle->chunks->next;
        fsdp_free(pickle->chunks);
        pickle->chunks = next;
    }
    memset(pickle, 0, sizeof *pickle);
}

/* ---- looking at values ----------------------------------------------------------------------- */

bool ckpt_pk_is_text(const struct ckpt_pk *value, const char *text)
{
    return value && value->type == CKPT_PK_T_TEXT && value->nitems == strlen(text) &&
           !memcmp(value->u.text, text, value->nitems);
}

bool ckpt_pk_u64(uint64_t *out, const struct ckpt_pk *value)
{
    if (!value || value->type != CKPT_PK_T_INT || value->u.integer < 0)
        return false;
    *out = (uint64_t)value->u.integer;
    return true;
}

const struct ckpt_pk_global *ckpt_pk_global_of(const struct ckpt_pk *value)
{
    if (value && value->type == CKPT_PK_T_CALL)
        value = value->u.items[0];
    return value && value->type == CKPT_PK_T_GLOBAL ? value->u.global : NULL;
}

bool ckpt_pk_is_call(const struct ckpt_pk *value, enum ckpt_pk_role role)
{
    return value && value->type == CKPT_PK_T_CALL && ckpt_pk_global_of(value)->role == role;
}

bool ckpt_pk_is_list(const struct ckpt_pk *value)
{
    return value && (value->type == CKPT_PK_T_LIST || value->type == CKPT_PK_T_TUPLE);
}

const struct ckpt_pk *ckpt_pk_get(const struct ckpt_pk *value, const char *key)
{
    size_t nbytes = strlen(key);
    if (value && value->type == CKPT_PK_T_CALL)
        value = value->u.items[2];
    if (!value || value->type != CKPT_PK_T_DICT)
        return NULL;
    for (size_t i = value->nitems; i >= 2; i -= 2) {
        const struct ckpt_pk *mine = value->u.items[i - 2];
        if (mine->nitems == nbytes && mine->type == CKPT_PK_T_TEXT &&
            !memcmp(mine->u.text, key, nbytes))
            return value->u.items[i - 1];
    }
    return NULL;
}

const struct ckpt_pk *ckpt_pk_item(const struct ckpt_pk *value, size_t i)
{
    if (value && value->type == CKPT_PK_T_CALL)
        value = value->u.items[1];
    return ckpt_pk_is_list(value) && i < value->nitems ? value->u.items[i] : NULL;
}

bool ckpt_pk_dims(uint64_t *dims, int *ndim, const struct ckpt_pk *value)
{
    if (!ckpt_pk_is_list(value) || value->nitems > FSDP_MAX_DIMS)
        return false;
    *ndim = (int)value->nitems;
    for (int d = 0; d < *ndim; d++)
        if (!ckpt_pk_u64(&dims[d], value->u.items[d]))
            return false;
    return true;
}
