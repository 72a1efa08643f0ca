/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CHAT_PARSER_H
#define CHAT_PARSER_H

#include "lexer.h"
#include "tree.h"

struct chat_parser {
    struct chat_run *r;
    const struct chat_token *at;
    struct chat_val symbols; /* name: number */
    const struct chat_str **names;
    size_t nnames, max_names;
    struct chat_macro_node *macro; /* whose body this is */
    int nloops;                    /* around this place, within the macro */
    bool marks_generation;
    /* Filters and tests that are not known. jinja2 refuses them when it compiles, but not those of
     * a condition's branches, which only fail when they are reached. */
    struct chat_node **unknown;
    size_t nunknown, max_unknown;
    bool in_branch;
    int (*expr)(struct chat_parser *p, struct chat_node **out, bool with_cond);
};

/* At the current token, whose line is that of errors. */
bool chat_at_op(const struct chat_parser *p, int op);
bool chat_at_name(const struct chat_parser *p, const char *name);
void chat_advance(struct chat_parser *p);
bool chat_skip_op(struct chat_parser *p, int op);
bool chat_skip_name(struct chat_parser *p, const char *name);
int chat_expect_op(struct chat_parser *p, int op);
int chat_expect_name(struct chat_parser *p, const char *name);
int chat_expect_any_name(struct chat_parser *p, const struct chat_str **out);
int chat_unexpected(struct chat_parser *p, const char *expected);

int chat_new_node(struct chat_parser *p, struct chat_node **out, enum chat_op op);
/* Nodes that are collected, of which body is made at the end. */
int chat_body_add(struct chat_parser *p, struct chat_body *body, struct chat_node *node);
int chat_symbol(struct chat_parser *p, int *out, const struct chat_str *name);

/* Expressions. with_cond: `a if b` is one. */
static inline int chat_parse_expr(struct chat_parser *p, struct chat_node **out, bool with_cond)
{
    return p->expr(p, out, with_cond);
}
/* Sets p->expr. */
void chat_parser_begin(struct chat_parser *p);
/* One, or a tuple of several without parentheses. `end` is a name that ends it, or NULL. */
int chat_parse_tuple(struct chat_parser *p, struct chat_node **out, bool with_cond,
                     const char *end);
int chat_parse_primary(struct chat_parser *p, struct chat_node **out);
/* What follows *node becomes part of it: attributes, items and calls; filters, tests and calls. */
int chat_parse_postfix(struct chat_parser *p, struct chat_node **node);
int chat_parse_filter_expr(struct chat_parser *p, struct chat_node **node);
/* Filters behind a value; a is NULL: those of a block, at least one where `inline_first`. */
int chat_parse_filters(struct chat_parser *p, struct chat_node **out, struct chat_node *a,
                       bool inline_first);

int chat_parse(struct chat_run *r, struct chat_tree **out, const char *source, size_t nbytes);

#endif
