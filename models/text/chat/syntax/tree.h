/* SPDX-License-Identifier: Apache-2.0 */
/* tree.h: a compiled template. It does not change: threads share it. */
#ifndef CHAT_TREE_H
#define CHAT_TREE_H

#include "text/chat/value/run.h"

enum chat_op {
    CHAT_N_CONST, /* value */
    CHAT_N_NAME,  /* name, symbol */
    CHAT_N_LIST,  /* list */
    CHAT_N_TUPLE,
    CHAT_N_DICT,   /* list: key, value, key, ... */
    CHAT_N_ATTR,   /* a.name */
    CHAT_N_ITEM,   /* a[b] */
    CHAT_N_SLICE,  /* a:b:c, of which each may be NULL */
    CHAT_N_CALL,   /* a(args) */
    CHAT_N_FILTER, /* a|name(args); a is NULL in a filter block */
    CHAT_N_TEST,
    CHAT_N_NOT,
    CHAT_N_NEG,
    CHAT_N_POS,
    CHAT_N_AND,
    CHAT_N_OR,
    CHAT_N_COND,    /* b if a else c; c may be NULL */
    CHAT_N_COMPARE, /* a, then list of operands: a is the right side, compare says which */
    CHAT_N_CONCAT,  /* list */
    CHAT_N_ADD,
    CHAT_N_SUB,
    CHAT_N_MUL,
    CHAT_N_DIV,
    CHAT_N_FLOORDIV,
    CHAT_N_MOD,
    CHAT_N_POW,
    CHAT_N_NEXPRS,
    /* Targets of assignments are CHAT_N_NAME, CHAT_N_TUPLE of those, or: */
    CHAT_N_NSREF = CHAT_N_NEXPRS, /* symbol.name */
    /* Statements; list: the body */
    CHAT_S_DATA,      /* value */
    CHAT_S_PRINT,     /* list */
    CHAT_S_SET,       /* a = b */
    CHAT_S_SET_BLOCK, /* a; b: its filter or NULL */
    CHAT_S_FOR,       /* for a in b if c; other: else */
    CHAT_S_IF,        /* a; c: the next elif or NULL; other: else */
    CHAT_S_MACRO,     /* symbol, macro */
    CHAT_S_CALL,      /* a: the call; macro: the caller */
    CHAT_S_FILTER,    /* b */
    CHAT_S_WITH,      /* other: target, value, target, ... */
    CHAT_S_BREAK,
    CHAT_S_CONTINUE,
    CHAT_S_GENERATION,
    CHAT_S_BLOCK, /* flag: scoped */
    CHAT_NNODES
};

enum chat_compare { CHAT_EQ, CHAT_NE, CHAT_LT, CHAT_LE, CHAT_GT, CHAT_GE, CHAT_IN, CHAT_NOT_IN };

struct chat_node;
struct chat_body {
    struct chat_node **at;
    size_t nelem;
};

struct chat_keyword {
    const struct chat_str *name;
    struct chat_node *value;
};

/* Arguments of a call, as written. */
struct chat_call {
    struct chat_body args;
    struct chat_keyword *keywords;
    size_t nkeywords;
    struct chat_node *star, *star_star; /* *args, **kwargs */
};

struct chat_macro_node {
    const struct chat_str *name;
    const struct chat_str **params;
    int *symbols;
    struct chat_node **defaults; /* of each, or NULL */
    size_t nparams;
    /* What the body asks for. */
    bool takes_varargs, takes_kwargs, takes_caller;
    int varargs, kwargs, caller; /* their symbols */
    struct chat_body body;
};

struct chat_node {
    enum chat_op op;
    int line, symbol;
    bool flag; /* FOR: recursive; BLOCK: scoped */
    enum chat_compare compare;
    struct chat_node *a, *b, *c;
    struct chat_body list, other;
    const struct chat_str *name;
    struct chat_val value;
    const struct chat_call *call;
    const struct chat_builtin *builtin; /* of FILTER and TEST; NULL: not known */
    struct chat_macro_node *macro;
};

struct chat_tree {
    struct chat_body body;
    const struct chat_str **names; /* [nnames] of symbols */
    size_t nnames;
    bool marks_generation;
};

#endif
