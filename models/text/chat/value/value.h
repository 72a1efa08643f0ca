/* SPDX-License-Identifier: Apache-2.0 */
/*
 * value.h: values of a template: Python's types as far as templates can tell them apart. They do
 * not change once they are made, but for namespaces, loops and iterators.
 */
#ifndef CHAT_VALUE_H
#define CHAT_VALUE_H

#include <string.h>

#include "fsdp/base.h"

struct chat_run;
__extension__ typedef __int128 chat_int;

enum chat_kind {
    CHAT_MISSING, /* no value: an argument that was not given */
    CHAT_UNDEF,
    CHAT_NONE,
    CHAT_BOOL,
    CHAT_INT,
    CHAT_FLOAT,
    CHAT_STR,
    CHAT_LIST,
    CHAT_TUPLE,
    CHAT_DICT,
    CHAT_VIEW, /* of a dictionary: keys(), values(), items() */
    CHAT_RANGE,
    CHAT_SPACE, /* namespace() */
    CHAT_ITER,
    CHAT_NATIVE, /* a function, or a method and its object */
    CHAT_MACRO,
    CHAT_LOOP,
    CHAT_CYCLER,
    CHAT_NKINDS
};

/* Valid UTF-8, not followed by a 0 byte. */
struct chat_str {
    const char *at;
    size_t nbytes, nchars;
    bool markup; /* escaped: what is added to it is escaped, too */
};

struct chat_val {
    enum chat_kind kind;
    union {
        chat_int i; /* of BOOL: 0 or 1 */
        double f;
        const struct chat_str *s;
        struct chat_list *list; /* of TUPLE, too */
        struct chat_dict *dict; /* of SPACE, too */
        struct chat_view *view;
        struct chat_range *range;
        struct chat_iter *iter;
        struct chat_undef *undef; /* NULL: an anonymous one */
        struct chat_native *native;
        struct chat_macro *macro;
        struct chat_loop *loop;
        struct chat_cycler *cycler;
    };
};

struct chat_list {
    struct chat_val *at;
    size_t nelem, max;
    bool is_group; /* of groupby: has .grouper and .list */
};

/* In order of insertion. */
struct chat_dict {
    struct chat_val *keys, *values;
    size_t nelem, max;
    uint32_t *index; /* hash table of positions + 1; NULL while there are few */
    size_t nindex;
};

enum chat_view_kind { CHAT_KEYS, CHAT_VALUES, CHAT_ITEMS };
struct chat_view {
    enum chat_view_kind of;
    const struct chat_dict *dict;
};

struct chat_range {
    chat_int first, end, step;
};

/* Why a value is undefined, for the error of whoever uses it. */
struct chat_undef {
    struct chat_val of; /* MISSING: a variable */
    struct chat_val name;
    const char *why; /* NULL: is undefined */
};

struct chat_iter {
    /* *more is false at the end. */
    int (*next)(struct chat_run *r, struct chat_iter *it, struct chat_val *out, bool *more);
    struct chat_val of;
    size_t at;
    struct chat_iter *inner;
    void *state;
};

struct chat_native {
    const struct chat_builtin *builtin;
    struct chat_val self; /* MISSING: a function */
};

struct chat_cycler {
    struct chat_list *items;
    size_t at;
};

static inline struct chat_val chat_none(void)
{
    return (struct chat_val){.kind = CHAT_NONE};
}
static inline struct chat_val chat_bool(bool truth)
{
    return (struct chat_val){.kind = CHAT_BOOL, .i = truth};
}
static inline struct chat_val chat_integer(chat_int i)
{
    return (struct chat_val){.kind = CHAT_INT, .i = i};
}
static inline struct chat_val chat_float(double f)
{
    return (struct chat_val){.kind = CHAT_FLOAT, .f = f};
}
static inline struct chat_val chat_str_val(const struct chat_str *s)
{
    return (struct chat_val){.kind = CHAT_STR, .s = s};
}
static inline bool chat_is_int(const struct chat_val *v)
{
    return v->kind == CHAT_INT || v->kind == CHAT_BOOL;
}
static inline bool chat_is_number(const struct chat_val *v)
{
    return chat_is_int(v) || v->kind == CHAT_FLOAT;
}
static inline bool chat_is_list(const struct chat_val *v)
{
    return v->kind == CHAT_LIST || v->kind == CHAT_TUPLE;
}
static inline bool chat_is_absent(const struct chat_val *v)
{
    return v->kind == CHAT_MISSING;
}
static inline double chat_as_double(const struct chat_val *v)
{
    return v->kind == CHAT_FLOAT ? v->f : (double)v->i;
}
static inline bool chat_str_is(const struct chat_str *s, const char *text)
{
    return s->nbytes == strlen(text) && !memcmp(s->at, text, s->nbytes);
}

/* Python's name of the type, such as "str". */
const char *chat_type_name(const struct chat_val *v);
bool chat_truth(const struct chat_val *v);

/* Text: bytes are copied by the first, kept by the second. */
int chat_str_copy(struct chat_run *r, struct chat_val *out, const char *at, size_t nbytes);
int chat_str_keep(struct chat_run *r, struct chat_val *out, const char *at, size_t nbytes);
/* Like the second, and markup where `like` is. */
int chat_str_part(struct chat_run *r, struct chat_val *out, const struct chat_str *like,
                  const char *at, size_t nbytes);
/* Byte offset of a character; nbytes from nchars on. */
size_t chat_str_offset(const struct chat_str *s, size_t nchars);
size_t chat_count_chars(const char *at, size_t nbytes);
int chat_str_compare(const struct chat_str *a, const struct chat_str *b);
bool chat_str_equal(const struct chat_str *a, const struct chat_str *b);
/* First occurrence at or behind `from`, of bytes; NULL: none. */
const char *chat_find(const char *at, const char *end, const struct chat_str *what);

int chat_list_new(struct chat_run *r, struct chat_val *out, enum chat_kind kind, size_t max);
int chat_list_add(struct chat_run *r, struct chat_list *list, const struct chat_val *v);
int chat_pair_new(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
                  const struct chat_val *b);

int chat_undef_new(struct chat_run *r, struct chat_val *out, const struct chat_val *of,
                   const struct chat_val *name, const char *why);
/* The error of using an undefined value. */
int chat_undef_fail(struct chat_run *r, const struct chat_val *v);

/* Set: replaces the value of an equal key. The key must be hashable: check first. */
int chat_dict_new(struct chat_run *r, struct chat_val *out, enum chat_kind kind, size_t max);
int chat_dict_set(struct chat_run *r, struct chat_dict *d, const struct chat_val *key,
                  const struct chat_val *v);
int chat_dict_set_text(struct chat_run *r, struct chat_dict *d, const char *key,
                       const struct chat_val *v);
const struct chat_val *chat_dict_get(const struct chat_dict *d, const struct chat_val *key);
const struct chat_val *chat_dict_get_text(const struct chat_dict *d, const char *key);
int chat_check_hashable(struct chat_run *r, const struct chat_val *v);

/* ==; deep lists are an error. */
int chat_equal(struct chat_run *r, bool *out, const struct chat_val *a, const struct chat_val *b);
/* *order < 0, 0, > 0. The error names `op`. NaN: *order is 2, for which no order holds. */
int chat_order(struct chat_run *r, int *order, const struct chat_val *a, const struct chat_val *b,
               const char *op);

#endif
