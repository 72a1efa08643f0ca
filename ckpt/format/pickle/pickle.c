/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <sys/mman.h>

#include "machine.h"
#include "op.h"

enum {
    GROWTH = 64, /* bytes of values for a byte of input: honest ones take fewer */
    LEAST_ROOM = 256 << 10,
    RELEASE_NBYTES = 2 << 20,
};

/* ---- reading the input ----------------------------------------------------------------------- */

static inline int need(const unsigned char **out, struct machine *m, uint64_t nbytes)
{
    if (nbytes > m->nbytes - m->pos)
        return machine_bad(m, "it ends too early");
    *out = m->data + m->pos;
    m->pos += (size_t)nbytes;
    return FSDP_OK;
}

/* nbytes is a constant wherever speed matters. */
static inline __attribute__((always_inline)) int read_number(uint64_t *out, struct machine *m,
                                                             int nbytes)
{
    const unsigned char *at = NULL;
    FSDP_TRY(need(&at, m, (uint64_t)nbytes));
    *out = 0;
    for (int i = nbytes - 1; i >= 0; i--)
        *out = *out << 8 | at[i];
    return FSDP_OK;
}

/* A text with its bytes behind it; equal texts are one. */
static int push_copy(struct machine *m, const struct ckpt_pk *value)
{
    struct ckpt_pk **at = NULL;
    if (value->type == CKPT_PK_T_TEXT)
        FSDP_TRY(ckpt_pk_share_text(&at, &m->share, value->u.text, value->nitems, m->err));
    if (at && *at)
        return machine_push(m, *at);
    struct ckpt_pk *copy = machine_take(m, sizeof *copy + value->nitems);
    if (!copy)
        return FSDP_ENOMEM;
    *copy = *value;
    copy->u.text = memcpy(copy + 1, value->u.text, value->nitems);
    if (at)
        *at = copy;
    return machine_push(m, copy);
}

static inline __attribute__((always_inline)) int
push_text(struct machine *m, enum ckpt_pk_type type, int length_nbytes)
{
    const unsigned char *at = NULL;
    uint64_t nbytes = 0;
    FSDP_TRY(read_number(&nbytes, m, length_nbytes));
    if (nbytes > UINT32_MAX)
        return machine_bad(m, "a text is too long");
    FSDP_TRY(need(&at, m, nbytes));
    struct ckpt_pk value = {
        .type = (uint8_t)type, .nitems = (uint32_t)nbytes, .u.text = (const char *)at};
    return m->share.recent ? push_copy(m, &value) : machine_push_new(m, value);
}

/* LONG1: little-endian two's complement. */
static int push_long(struct machine *m, int length_nbytes)
{
    const unsigned char *at = NULL;
    uint64_t nbytes = 0, value = 0;
    FSDP_TRY(read_number(&nbytes, m, length_nbytes));
    FSDP_TRY(need(&at, m, nbytes));
    if (nbytes > 8)
        return machine_push_new(m, (struct ckpt_pk){.type = CKPT_PK_T_BIG});
    for (size_t i = 0; i < 8; i++) {
        uint64_t byte = i < nbytes ? at[i] : nbytes && at[nbytes - 1] & 0x80 ? 0xff : 0;
        value |= byte << (8 * i);
    }
    return machine_push_int(m, (int64_t)value);
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
    return machine_push_new(m, value);
}

static int line(const char **out, size_t *nbytes, struct machine *m)
{
    const unsigned char *from = m->data + m->pos;
    const unsigned char *end = memchr(from, '\n', m->nbytes - m->pos);
    if (!end)
        return machine_bad(m, "it ends too early");
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
    return machine_push_global(m, module, module_nbytes, name, name_nbytes);
}

/* ---- the memo -------------------------------------------------------------------------------- */

static int memo_put(struct machine *m, uint64_t at)
{
    if (m->nstack <= machine_floor(m))
        return machine_bad(m, "it keeps nothing");
    if (at > m->nbytes)
        return machine_bad(m, "a memo index is too large");
    if (at >= m->nmemo)
        m->nmemo = (size_t)at + 1;
    struct ckpt_pk **slot = ckpt_pk_memo_at(&m->memo, at), *value = m->stack[m->nstack - 1];
    if (!slot)
        return FSDP_OK;
    if (value->type == CKPT_PK_T_DICT || value->type == CKPT_PK_T_CALL)
        value->recalled = true; /* constants are not written to */
    *slot = value;
    return FSDP_OK;
}

static inline __attribute__((always_inline)) int memo_get(struct machine *m, int index_nbytes)
{
    uint64_t at = 0;
    FSDP_TRY(read_number(&at, m, index_nbytes));
    struct ckpt_pk **slot = ckpt_pk_memo_at(&m->memo, at);
    if (!slot || !*slot)
        return machine_bad(m, "it recalls what was not kept");
    return machine_push(m, *slot);
}

static inline __attribute__((always_inline)) int memo_put_at(struct machine *m, int index_nbytes)
{
    uint64_t at = 0;
    FSDP_TRY(read_number(&at, m, index_nbytes));
    return memo_put(m, at);
}

static int mark(struct machine *m)
{
    if (m->nmarks == m->max_marks) {
        void *data = m->marks;
        FSDP_TRY(machine_grow(m, &data, &m->max_marks, m->nmarks, m->nmarks, sizeof *m->marks));
        m->marks = data;
    }
    m->marks[m->nmarks++] = m->nstack;
    return FSDP_OK;
}

static int persid(struct machine *m)
{
    struct ckpt_pk *id = NULL, value = {.type = CKPT_PK_T_PERSID};
    FSDP_TRY(machine_pop(&id, m));
    FSDP_TRY(machine_add_items(m, &value, &id, 1));
    return machine_push_new(m, value);
}

/* ---- opcodes --------------------------------------------------------------------------------- */

static int push_tuple(struct machine *m, size_t count)
{
    if (m->nstack - machine_floor(m) < count)
        return machine_bad(m, "it takes from an empty stack");
    return machine_push_tuple(m, m->nstack - count);
}

static int extend_marked(struct machine *m, enum ckpt_pk_type type)
{
    size_t first = 0;
    FSDP_TRY(machine_pop_mark(&first, m));
    return machine_extend(m, type, first);
}

static int push_marked(struct machine *m, enum ckpt_pk_type type)
{
    size_t first = 0;
    FSDP_TRY(machine_pop_mark(&first, m));
    return type == CKPT_PK_T_TUPLE ? machine_push_tuple(m, first) : machine_push_list(m, first);
}

static int extend_by(struct machine *m, enum ckpt_pk_type type, size_t count)
{
    if (m->nstack - machine_floor(m) < count + 1)
        return machine_bad(m, "it takes from an empty stack");
    return machine_extend(m, type, m->nstack - count);
}

static inline __attribute__((always_inline)) int push_bytes_number(struct machine *m, int nbytes,
                                                                   bool is_signed)
{
    uint64_t value = 0;
    FSDP_TRY(read_number(&value, m, nbytes));
    return machine_push_int(m, is_signed ? (int32_t)(uint32_t)value : (int64_t)value);
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
        return machine_push(m, &machine_none);
    case PK_NEWTRUE:
    case PK_NEWFALSE:
        return machine_push(m, &machine_truth[op == PK_NEWTRUE]);
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
        return machine_push_new(m, (struct ckpt_pk){.type = CKPT_PK_T_DICT});
    case PK_SETITEM:
        return extend_by(m, CKPT_PK_T_DICT, 2);
    case PK_SETITEMS:
        return extend_marked(m, CKPT_PK_T_DICT);
    case PK_EMPTY_LIST:
    case PK_EMPTY_SET:
        return machine_push_new(m, (struct ckpt_pk){.type = CKPT_PK_T_LIST});
    case PK_APPEND:
        return extend_by(m, CKPT_PK_T_LIST, 1);
    case PK_APPENDS:
    case PK_ADDITEMS:
        return extend_marked(m, CKPT_PK_T_LIST);
    case PK_FROZENSET:
        return push_marked(m, CKPT_PK_T_LIST);
    case PK_EMPTY_TUPLE:
        return machine_push(m, &machine_empty_tuple);
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
        return machine_stack_global(m);
    case PK_REDUCE: /* a call is only noted */
    case PK_NEWOBJ:
        return machine_reduce(m);
    case PK_BUILD:
        return machine_build(m);
    case PK_BINPERSID:
        return persid(m);
    default:
        return fsdp_err_set(m->err, FSDP_EUNSUPPORTED,
                            "%s has the pickle opcode 0x%02x at byte %zu: torch's checkpoints do "
                            "not need it, and it is refused",
                            m->what, op, m->pos - 1);
    }
}

/* Input that was read is not needed where the values have copies of their texts. */
static void release_input(struct machine *m)
{
    const uintptr_t from =
        ((uintptr_t)m->data + m->released + RELEASE_NBYTES - 1) / RELEASE_NBYTES * RELEASE_NBYTES;
    const uintptr_t end = ((uintptr_t)m->data + m->pos) / RELEASE_NBYTES * RELEASE_NBYTES;
    m->released = end - (uintptr_t)m->data;
    madvise((void *)from, end - from, MADV_DONTNEED); /* a wish */
}

static int run_machine(struct machine *m)
{
    uint64_t proto = 0;
    const unsigned char *op = NULL;
    FSDP_TRY(need(&op, m, 1));
    if (*op != PK_PROTO)
        return machine_bad(m, "it does not begin as a pickle of protocol 2 to 5 does");
    FSDP_TRY(read_number(&proto, m, 1));
    if (proto < 2 || proto > 5)
        return fsdp_err_set(m->err, FSDP_EUNSUPPORTED,
                            "%s is a pickle of protocol %d: 2 to 5 are "
                            "read",
                            m->what, (int)proto);
    for (;;) {
        if (m->share.recent && m->pos - m->released >= 2 * RELEASE_NBYTES)
            release_input(m);
        FSDP_TRY(need(&op, m, 1));
        if (*op == PK_STOP)
            break;
        FSDP_TRY(step(m, *op));
    }
    if (m->nstack != 1 || m->nmarks)
        return machine_bad(m, "it does not end with one value");
    m->out->root = m->stack[0];
    m->out->nbytes = m->pos;
    return FSDP_OK;
}

enum { PARSE_PLAIN, PARSE_SHARED, PARSE_OPAQUE };

static int parse_pickle(struct ckpt_pickle *out, const void *data, size_t nbytes, const char *what,
                        int how, struct fsdp_err *err)
{
    struct machine m = {.out = out,
                        .data = data,
                        .nbytes = nbytes,
                        .what = what,
                        .opaque = how == PARSE_OPAQUE,
                        .err = err};
    const size_t most = nbytes < SIZE_MAX / GROWTH / 2 ? nbytes * GROWTH : SIZE_MAX / 2;
    m.memory = (struct ckpt_pk_memory){
        .pickle = out, .input_nbytes = nbytes, .room = most + LEAST_ROOM, .err = err};
    memset(out, 0, sizeof *out);
    int rc = ckpt_pk_memo_create(&m.memo, data, nbytes, err);
    if (rc == FSDP_OK && how == PARSE_SHARED)
        rc = ckpt_pk_share_create(&m.share, err);
    if (rc == FSDP_OK)
        rc = run_machine(&m);
    fsdp_free(m.stack);
    fsdp_free(m.marks);
    ckpt_pk_memo_free(&m.memo);
    ckpt_pk_share_free(&m.share);
    if (rc)
        ckpt_pickle_free(out);
    return rc;
}

int ckpt_pickle_parse(struct ckpt_pickle *out, const void *data, size_t nbytes, const char *what,
                      struct fsdp_err *err)
{
    return parse_pickle(out, data, nbytes, what, PARSE_PLAIN, err);
}

int ckpt_pickle_parse_opaque(struct ckpt_pickle *out, const void *data, size_t nbytes,
                             const char *what, struct fsdp_err *err)
{
    return parse_pickle(out, data, nbytes, what, PARSE_OPAQUE, err);
}

int ckpt_pickle_parse_shared(struct ckpt_pickle *out, void *data, size_t nbytes, const char *what,
                             struct fsdp_err *err)
{
    return parse_pickle(out, data, nbytes, what, PARSE_SHARED, err);
}

void ckpt_pickle_drop(struct ckpt_pickle *pickle, const struct ckpt_pk *value)
{
    struct ckpt_pk *mine = (struct ckpt_pk *)(uintptr_t)value;
    struct ckpt_pk_memory memory = {.pickle = pickle};
    const size_t nbytes = machine_items_max(mine) * sizeof *mine->u.items;
    if (nbytes > CKPT_PK_GIVEN_NBYTES)
        ckpt_pk_give(&memory, mine->u.items, nbytes);
    mine->nitems = 0;
    mine->u.items = NULL;
}

void ckpt_pickle_free(struct ckpt_pickle *pickle)
{
    ckpt_pk_chunks_free(pickle->chunks);
    memset(pickle, 0, sizeof *pickle);
}
