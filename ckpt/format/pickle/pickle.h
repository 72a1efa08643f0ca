/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A restricted pickle machine. It builds a tree of values and runs nothing: a class or function is
 * a row of a table, a call of one is a node that says so. Opcodes and globals that torch's
 * checkpoint writers do not use are refused, naming them. Protocols 2 to 5.
 *
 * Memory is proportional to the input: values may take 64 bytes for a byte of it, and the memo has
 * no index beyond the input's length. Values can be shared and can contain themselves: whoever
 * walks the tree bounds depth and size.
 *
 *   pickle.c   the opcodes
 *   stack.c    lists, tuples and dicts
 *   call.c     globals and objects
 *   memo.c     which values it recalls
 *   memory.c   where values live
 *   share.c    equal values become one
 *   look.c     what the readers ask of values
 */
#ifndef CKPT_PICKLE_H
#define CKPT_PICKLE_H

#include "fsdp/base.h"

/* What a global means to the readers. */
enum ckpt_pk_role {
    CKPT_PK_METADATA, /* classes of .metadata */
    CKPT_PK_TENSOR_STORAGE,
    CKPT_PK_BYTES_STORAGE,
    CKPT_PK_CHUNK,
    CKPT_PK_INDEX,
    CKPT_PK_PROPERTIES,
    CKPT_PK_STORAGE_INFO,
    CKPT_PK_STORAGE_META,
    CKPT_PK_SIZE,  /* torch.Size((2, 3)): a call becomes its tuple */
    CKPT_PK_DTYPE, /* torch.float32 */
    CKPT_PK_STORAGE,
    CKPT_PK_UNTYPED,   /* a storage that counts bytes */
    CKPT_PK_TENSOR_V2, /* torch._utils._rebuild_tensor_v2 */
    CKPT_PK_TENSOR_V3,
    CKPT_PK_PARAMETER,
    CKPT_PK_FROM_TYPE, /* _rebuild_from_type_v2(function, type, arguments, state) */
    CKPT_PK_DICT,      /* OrderedDict, defaultdict: calls become dicts */
    CKPT_PK_LIST,      /* set, frozenset, tuple, deque: calls become lists */
    CKPT_PK_ENCODE,    /* _codecs.encode(text, 'latin1'): how protocol 2 writes bytes */
    CKPT_PK_BYTESIO,
    CKPT_PK_PATH,
    CKPT_PK_OTHER,  /* known and harmless; its value is of no use here */
    CKPT_PK_OPAQUE, /* not known: of ckpt_pickle_parse_opaque */
};

enum { CKPT_PK_NO_DTYPE = -1 };

struct ckpt_pk_global {
    const char *module, *name;
    enum ckpt_pk_role role;
    int dtype; /* enum fsdp_dtype; CKPT_PK_NO_DTYPE for one the toolkit does not know */
};

enum ckpt_pk_type {
    CKPT_PK_T_NONE,
    CKPT_PK_T_BOOL,
    CKPT_PK_T_INT,
    CKPT_PK_T_BIG, /* an integer of more than 64 bits; no value kept */
    CKPT_PK_T_FLOAT,
    CKPT_PK_T_TEXT,
    CKPT_PK_T_BYTES,
    CKPT_PK_T_TUPLE,
    CKPT_PK_T_LIST,
    CKPT_PK_T_DICT,   /* items: key, value, key, value */
    CKPT_PK_T_GLOBAL, /* a row of the table */
    CKPT_PK_T_CALL,   /* items: global, arguments (a tuple), state or NULL */
    CKPT_PK_T_OBJECT, /* an instance whose state is a dict: a shape, and the dict's values */
    CKPT_PK_T_PERSID, /* items: the identifier */
};

enum { CKPT_PK_NKEYS = 8 };

/* What the objects of a class have in common where their states have the same keys. */
struct ckpt_pk_shape {
    const struct ckpt_pk_global *global;
    uint32_t nkeys;
    const struct ckpt_pk *keys[CKPT_PK_NKEYS];
};

struct ckpt_pk {
    uint8_t type;
    bool exact;      /* items has no room for more; else for the next power of two */
    bool recalled;   /* the memo holds it, too */
    bool shared;     /* a call that stands for equal ones */
    uint32_t nitems; /* of items; bytes of text */
    union {
        int64_t integer;
        double real;
        const char *text; /* in the input, without a 0 byte behind */
        struct ckpt_pk **items;
        const struct ckpt_pk_shape *shape; /* of an object, which its values follow */
        const struct ckpt_pk_global *global;
    } u;
};

struct ckpt_pickle {
    const struct ckpt_pk *root;
    size_t nbytes; /* of the input, up to its end: more may follow */
    struct ckpt_pk_chunk *chunks;
};

/* `what` names the pickle in errors. `data` is borrowed by the values. */
int ckpt_pickle_parse(struct ckpt_pickle *out, const void *data, size_t nbytes, const char *what,
                      struct fsdp_err *err);
/* The same, but a global that is not in the table becomes a value that nothing is known of, and so
 * does what is made by calling it: for files in which other programs keep settings of their own
 * next to what is read. */
int ckpt_pickle_parse_opaque(struct ckpt_pickle *out, const void *data, size_t nbytes,
                             const char *what, struct fsdp_err *err);
/* For a large one: equal values become one, and nothing borrows `data`, from fsdp_alloc, whose
 * contents are lost. */
int ckpt_pickle_parse_shared(struct ckpt_pickle *out, void *data, size_t nbytes, const char *what,
                             struct fsdp_err *err);
/* Empties a list or dict that is no longer needed, and frees what it took if that was much. */
void ckpt_pickle_drop(struct ckpt_pickle *pickle, const struct ckpt_pk *value);
void ckpt_pickle_free(struct ckpt_pickle *pickle);

/* Of an object: [u.shape->nkeys]. */
static inline struct ckpt_pk **ckpt_pk_values(const struct ckpt_pk *object)
{
    return (struct ckpt_pk **)(uintptr_t)(object + 1);
}

/* All take NULL and then say no. */
bool ckpt_pk_is_text(const struct ckpt_pk *value, const char *text);
/* An integer that is not negative. */
bool ckpt_pk_u64(uint64_t *out, const struct ckpt_pk *value);
/* The global that a call calls, an object's class, or that a value is; NULL for other values. */
const struct ckpt_pk_global *ckpt_pk_global_of(const struct ckpt_pk *value);
bool ckpt_pk_is_call(const struct ckpt_pk *value, enum ckpt_pk_role role);
/* A list or a tuple. */
bool ckpt_pk_is_list(const struct ckpt_pk *value);
/* The state of a call, if it is no object. */
const struct ckpt_pk *ckpt_pk_state(const struct ckpt_pk *value);
/* The last value of a text key; of the state of a call or object. NULL if there is none. */
const struct ckpt_pk *ckpt_pk_get(const struct ckpt_pk *value, const char *key);
/* Item i of a list or tuple, of a call's arguments; NULL if there is none. */
const struct ckpt_pk *ckpt_pk_item(const struct ckpt_pk *value, size_t i);
/* A list or tuple of at most FSDP_MAX_DIMS sizes. */
bool ckpt_pk_dims(uint64_t *dims, int *ndim, const struct ckpt_pk *value);

#endif
