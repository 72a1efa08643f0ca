/* SPDX-License-Identifier: Apache-2.0 */
/*
 * builtin.h: filters, tests, methods and functions: rows of tables, each a name, a function and its
 * parameters.
 */
#ifndef CHAT_BUILTIN_H
#define CHAT_BUILTIN_H

#include "text/chat/value/run.h"

enum { CHAT_MAX_PARAMS = 8 };

struct chat_named {
    const struct chat_str *name;
    struct chat_val value;
};

/* Arguments of a call. */
struct chat_args {
    struct chat_val *at;
    size_t nelem;
    struct chat_named *keywords;
    size_t nkeywords;
};

struct chat_builtin {
    const char *name;
    /* a[0]: the value that is filtered, tested, or whose method it is; then one element per
     * parameter, CHAT_MISSING where it was not given. */
    int (*fn)(struct chat_run *r, struct chat_val *out, const struct chat_val *a,
              const struct chat_args *args);
    /* Names, apart by blanks; NULL: the function reads args itself. A slash before them: they are
     * positional only. */
    const char *params;
    int nrequired;
};

/* Begins the function of a row. */
#define CHAT_BUILTIN(name)                                                                         \
    static int name(struct chat_run *r, struct chat_val *out __attribute__((unused)),              \
                    const struct chat_val *a __attribute__((unused)),                              \
                    const struct chat_args *args __attribute__((unused)))

/* A row of a table that ends with a name of NULL. */
const struct chat_builtin *chat_builtin_find(const struct chat_builtin *table,
                                             const struct chat_str *name);
int chat_builtin_call(struct chat_run *r, struct chat_val *out, const struct chat_builtin *builtin,
                      const struct chat_val *self, const struct chat_args *args);
/* A method of self, or a function (self is NULL), as a value. */
int chat_native_new(struct chat_run *r, struct chat_val *out, const struct chat_builtin *builtin,
                    const struct chat_val *self);
const struct chat_val *chat_keyword_get(const struct chat_args *args, const char *name);

/* Arguments of a type, else an error that names the function. */
int chat_want_str(struct chat_run *r, const struct chat_str **out, const struct chat_val *v,
                  const char *who);
int chat_want_int(struct chat_run *r, chat_int *out, const struct chat_val *v, const char *who);
/* The same for a number of things in memory, of at most 2^40; less than 0 becomes 0. */
int chat_want_count(struct chat_run *r, size_t *out, const struct chat_val *v, const char *who);

#endif
