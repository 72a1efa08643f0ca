/* SPDX-License-Identifier: Apache-2.0 */
/* The pickle machine, for the files that it consists of. */
#ifndef CKPT_PICKLE_MACHINE_H
#define CKPT_PICKLE_MACHINE_H

#include "memo.h"
#include "memory.h"
#include "share.h"

enum { MACHINE_NGLOBALS = 32 };

struct machine {
    struct ckpt_pickle *out;
    const unsigned char *data;
    size_t nbytes, pos;
    size_t released; /* bytes of the input whose memory was given back */
    struct ckpt_pk_memory memory;
    struct ckpt_pk_share share;
    struct ckpt_pk *globals[MACHINE_NGLOBALS]; /* those named so far: one value each */
    int nglobals;
    struct ckpt_pk **stack;
    size_t nstack, max_stack;
    size_t *marks;
    size_t nmarks, max_marks;
    struct ckpt_pk_memo memo;
    size_t nmemo; /* above all indices so far */
    const char *what;
    bool opaque; /* globals that are not known become CKPT_PK_OPAQUE */
    struct fsdp_err *err;
};

/* stack.c. Sets the error: the pickle is damaged at this place. Returns FSDP_ECORRUPT. */
int machine_bad(const struct machine *m, const char *text);
/* Makes room in an array for more than `count` elements, of which the first `used` are kept. */
int machine_grow(struct machine *m, void **data, size_t *max, size_t count, size_t used,
                 size_t elem_nbytes);
int machine_grow_stack(struct machine *m);
int machine_push_new(struct machine *m, struct ckpt_pk value);
/* A value that nothing can change: one that came lately, if it is equal. */
int machine_push_shared(struct machine *m, struct ckpt_pk value);
int machine_push_int(struct machine *m, int64_t value);
/* Values above the last mark, or above the bottom. */
size_t machine_floor(const struct machine *m);
int machine_pop(struct ckpt_pk **out, struct machine *m);
/* What lies above the last mark: *first is its position in the stack; the mark goes, the values
 * stay until the caller lowers nstack. */
int machine_pop_mark(size_t *first, struct machine *m);
/* Values that nothing can change: one of each serves all. */
extern struct ckpt_pk machine_none, machine_empty_tuple, machine_truth[2];

/* Items that a list, tuple or dict has room for. */
size_t machine_items_max(const struct ckpt_pk *value);
int machine_add_items(struct machine *m, struct ckpt_pk *to, struct ckpt_pk *const *items,
                      size_t count);
/* What lies above `first` becomes a list, a tuple, or items of the list or dict below it. */
int machine_push_list(struct machine *m, size_t first);
int machine_push_tuple(struct machine *m, size_t first);
int machine_extend(struct machine *m, enum ckpt_pk_type type, size_t first);

/* call.c. Pushes a row of the table of globals; refuses what is not there. */
int machine_push_global(struct machine *m, const char *module, size_t module_nbytes,
                        const char *name, size_t name_nbytes);
/* The opcodes STACK_GLOBAL, REDUCE and NEWOBJ, BUILD. */
int machine_stack_global(struct machine *m);
int machine_reduce(struct machine *m);
int machine_build(struct machine *m);

/* Bytes of any value. */
static inline void *machine_take(struct machine *m, size_t nbytes)
{
    void *at = ckpt_pk_take(&m->memory, nbytes);
    if (!at && m->memory.exhausted)
        machine_bad(m, "it asks for too much memory");
    return at;
}

static inline int machine_push(struct machine *m, struct ckpt_pk *value)
{
    if (m->nstack == m->max_stack)
        FSDP_TRY(machine_grow_stack(m));
    m->stack[m->nstack++] = value;
    return FSDP_OK;
}

#endif
