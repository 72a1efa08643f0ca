/* SPDX-License-Identifier: Apache-2.0 */
/* Values, and what follows one: attributes, items, calls, filters, tests. */
#include "parser.h"

/* ---- names and literals --------------------------------------------------------------------- */

static int parse_const(struct chat_parser *p, struct chat_node **out, const struct chat_val *v)
{
    FSDP_TRY(chat_new_node(p, out, CHAT_N_CONST));
    (*out)->value = *v;
    chat_advance(p);
    return FSDP_OK;
}

/* Special variables of a macro, which it has if its body names them. */
static void note_special(struct chat_parser *p, const struct chat_str *name, int symbol)
{
    struct chat_macro_node *m = p->macro;

    if (!m)
        return;
    if (chat_str_is(name, "varargs")) {
        m->takes_varargs = true;
        m->varargs = symbol;
    } else if (chat_str_is(name, "kwargs")) {
        m->takes_kwargs = true;
        m->kwargs = symbol;
    } else if (chat_str_is(name, "caller")) {
        m->takes_caller = true;
        m->caller = symbol;
    }
}

static int parse_name(struct chat_parser *p, struct chat_node **out)
{
    const struct chat_str *name = p->at->value.s;
    struct chat_val v;

    if (chat_str_is(name, "true") || chat_str_is(name, "True")) {
        v = chat_bool(true);
        return parse_const(p, out, &v);
    }
    if (chat_str_is(name, "false") || chat_str_is(name, "False")) {
        v = chat_bool(false);
        return parse_const(p, out, &v);
    }
    if (chat_str_is(name, "none") || chat_str_is(name, "None")) {
        v = chat_none();
        return parse_const(p, out, &v);
    }
    FSDP_TRY(chat_new_node(p, out, CHAT_N_NAME));
    FSDP_TRY(chat_symbol(p, &(*out)->symbol, name));
    (*out)->name = name;
    note_special(p, name, (*out)->symbol);
    chat_advance(p);
    return FSDP_OK;
}

/* Neighbouring texts are one. */
static int parse_text(struct chat_parser *p, struct chat_node **out)
{
    struct chat_val v = p->at->value;
    struct chat_buf b = {0};

    if (p->at[1].kind == CHAT_T_STRING) {
        const struct chat_token *t = p->at;
        for (; t->kind == CHAT_T_STRING; t++)
            FSDP_TRY(chat_buf_add(p->r, &b, t->value.s->at, t->value.s->nbytes));
        FSDP_TRY(chat_buf_str(p->r, &v, &b));
        while (p->at[1].kind == CHAT_T_STRING)
            chat_advance(p);
    }
    return parse_const(p, out, &v);
}

static int parse_list(struct chat_parser *p, struct chat_node **out)
{
    struct chat_node *item;

    FSDP_TRY(chat_new_node(p, out, CHAT_N_LIST));
    chat_advance(p);
    while (!chat_at_op(p, ']')) {
        if ((*out)->list.nelem)
            FSDP_TRY(chat_expect_op(p, ','));
        if (chat_at_op(p, ']'))
            break;
        FSDP_TRY(chat_parse_expr(p, &item, true));
        FSDP_TRY(chat_body_add(p, &(*out)->list, item));
    }
    return chat_expect_op(p, ']');
}

static int parse_dict(struct chat_parser *p, struct chat_node **out)
{
    struct chat_node *item;

    FSDP_TRY(chat_new_node(p, out, CHAT_N_DICT));
    chat_advance(p);
    while (!chat_at_op(p, '}')) {
        if ((*out)->list.nelem)
            FSDP_TRY(chat_expect_op(p, ','));
        if (chat_at_op(p, '}'))
            break;
        FSDP_TRY(chat_parse_expr(p, &item, true));
        FSDP_TRY(chat_body_add(p, &(*out)->list, item));
        FSDP_TRY(chat_expect_op(p, ':'));
        FSDP_TRY(chat_parse_expr(p, &item, true));
        FSDP_TRY(chat_body_add(p, &(*out)->list, item));
    }
    return chat_expect_op(p, '}');
}

static int parse_parentheses(struct chat_parser *p, struct chat_node **out)
{
    chat_advance(p);
    if (chat_at_op(p, ')'))
        FSDP_TRY(chat_new_node(p, out, CHAT_N_TUPLE));
    else
        FSDP_TRY(chat_parse_tuple(p, out, true, NULL));
    return chat_expect_op(p, ')');
}

int chat_parse_primary(struct chat_parser *p, struct chat_node **out)
{
    switch (p->at->kind) {
    case CHAT_T_NAME:
        return parse_name(p, out);
    case CHAT_T_STRING:
        return parse_text(p, out);
    case CHAT_T_NUMBER:
        return parse_const(p, out, &p->at->value);
    default:
        if (chat_at_op(p, '('))
            return parse_parentheses(p, out);
        if (chat_at_op(p, '['))
            return parse_list(p, out);
        if (chat_at_op(p, '{'))
            return parse_dict(p, out);
        return chat_unexpected(p, "an expression");
    }
}

/* ---- attributes, items, calls --------------------------------------------------------------- */

static int parse_slice_part(struct chat_parser *p, struct chat_node **out)
{
    if (chat_at_op(p, ':') || chat_at_op(p, ']') || chat_at_op(p, ','))
        return FSDP_OK;
    return chat_parse_expr(p, out, true);
}

static int parse_subscript(struct chat_parser *p, struct chat_node **out)
{
    struct chat_node *first = NULL;

    FSDP_TRY(parse_slice_part(p, &first));
    if (!chat_at_op(p, ':')) {
        *out = first;
        return first ? FSDP_OK : chat_unexpected(p, "a subscript");
    }
    FSDP_TRY(chat_new_node(p, out, CHAT_N_SLICE));
    (*out)->a = first;
    chat_advance(p);
    FSDP_TRY(parse_slice_part(p, &(*out)->b));
    if (chat_skip_op(p, ':'))
        FSDP_TRY(parse_slice_part(p, &(*out)->c));
    return FSDP_OK;
}

static int parse_item(struct chat_parser *p, struct chat_node **out, struct chat_node *a)
{
    struct chat_node *node, *key, *tuple = NULL;

    FSDP_TRY(chat_new_node(p, &node, CHAT_N_ITEM));
    node->a = a;
    chat_advance(p);
    FSDP_TRY(parse_subscript(p, &key));
    while (chat_skip_op(p, ',')) {
        if (!tuple) {
            FSDP_TRY(chat_new_node(p, &tuple, CHAT_N_TUPLE));
            FSDP_TRY(chat_body_add(p, &tuple->list, key));
        }
        FSDP_TRY(parse_subscript(p, &key));
        if (key->op == CHAT_N_SLICE || tuple->list.at[0]->op == CHAT_N_SLICE)
            return chat_refuse(p->r, "a slice in a list of subscripts is not supported");
        FSDP_TRY(chat_body_add(p, &tuple->list, key));
    }
    node->b = tuple ? tuple : key;
    *out = node;
    return chat_expect_op(p, ']');
}

static int parse_attribute(struct chat_parser *p, struct chat_node **out, struct chat_node *a)
{
    struct chat_node *node;

    FSDP_TRY(chat_new_node(p, &node, CHAT_N_ATTR));
    node->a = a;
    *out = node;
    chat_advance(p);
    if (p->at->kind == CHAT_T_NUMBER && p->at->value.kind == CHAT_INT) {
        node->op = CHAT_N_ITEM;
        return parse_const(p, &node->b, &p->at->value);
    }
    return chat_expect_any_name(p, &node->name);
}

static int add_keyword(struct chat_parser *p, struct chat_call *call)
{
    struct chat_keyword *keywords;

    FSDP_TRY(chat_new(p->r, &keywords, call->nkeywords + 1, sizeof *keywords));
    if (call->nkeywords)
        memcpy(keywords, call->keywords, call->nkeywords * sizeof *keywords);
    call->keywords = keywords;
    keywords += call->nkeywords++;
    keywords->name = p->at->value.s;
    chat_advance(p);
    chat_advance(p);
    return chat_parse_expr(p, &keywords->value, true);
}

static int parse_arg(struct chat_parser *p, struct chat_call *call)
{
    struct chat_node *arg;
    const bool is_keyword =
        p->at->kind == CHAT_T_NAME && p->at[1].kind == CHAT_T_OP && p->at[1].op == '=';

    if (call->star_star || (call->star && !is_keyword && !chat_at_op(p, CHAT_OP2('*', '*'))) ||
        (!is_keyword && call->nkeywords && !chat_at_op(p, '*') &&
         !chat_at_op(p, CHAT_OP2('*', '*'))))
        return chat_fail(p->r, "an argument behind keyword arguments");
    if (chat_skip_op(p, '*'))
        return chat_parse_expr(p, &call->star, true);
    if (chat_skip_op(p, CHAT_OP2('*', '*')))
        return chat_parse_expr(p, &call->star_star, true);
    if (is_keyword)
        return add_keyword(p, call);
    FSDP_TRY(chat_parse_expr(p, &arg, true));
    return chat_body_add(p, &call->args, arg);
}

static int parse_call(struct chat_parser *p, const struct chat_call **out)
{
    struct chat_call *call;
    bool first = true;

    FSDP_TRY(chat_new(p->r, &call, 1, sizeof *call));
    *out = call;
    FSDP_TRY(chat_expect_op(p, '('));
    for (; !chat_at_op(p, ')'); first = false) {
        if (!first)
            FSDP_TRY(chat_expect_op(p, ','));
        if (chat_at_op(p, ')'))
            break;
        if (call->nkeywords >= 1000)
            return chat_fail(p->r, "more than 1000 keyword arguments");
        FSDP_TRY(parse_arg(p, call));
    }
    return chat_expect_op(p, ')');
}

static int parse_call_of(struct chat_parser *p, struct chat_node **out, struct chat_node *a)
{
    struct chat_node *node;

    FSDP_TRY(chat_new_node(p, &node, CHAT_N_CALL));
    node->a = a;
    *out = node;
    return parse_call(p, &node->call);
}

int chat_parse_postfix(struct chat_parser *p, struct chat_node **node)
{
    for (;;) {
        if (chat_at_op(p, '.'))
            FSDP_TRY(parse_attribute(p, node, *node));
        else if (chat_at_op(p, '['))
            FSDP_TRY(parse_item(p, node, *node));
        else if (chat_at_op(p, '('))
            FSDP_TRY(parse_call_of(p, node, *node));
        else
            return FSDP_OK;
    }
}

/* ---- filters and tests ---------------------------------------------------------------------- */

static int note_unknown(struct chat_parser *p, struct chat_node *node)
{
    node->flag = p->in_branch;
    if (p->nunknown == p->max_unknown) {
        const size_t max = p->max_unknown ? 2 * p->max_unknown : 8;
        struct chat_node **unknown;
        FSDP_TRY(chat_new(p->r, &unknown, max, sizeof *unknown));
        if (p->nunknown)
            memcpy(unknown, p->unknown, p->nunknown * sizeof *unknown);
        p->unknown = unknown;
        p->max_unknown = max;
    }
    p->unknown[p->nunknown++] = node;
    return FSDP_OK;
}

/* The name of a filter or test, which may have dots. */
static int parse_builtin_name(struct chat_parser *p, const struct chat_str **out)
{
    const struct chat_str *part;
    struct chat_buf b = {0};
    struct chat_val v;

    FSDP_TRY(chat_expect_any_name(p, out));
    if (!chat_at_op(p, '.'))
        return FSDP_OK;
    FSDP_TRY(chat_buf_add(p->r, &b, (*out)->at, (*out)->nbytes));
    while (chat_skip_op(p, '.')) {
        FSDP_TRY(chat_expect_any_name(p, &part));
        FSDP_TRY(chat_buf_puts(p->r, &b, "."));
        FSDP_TRY(chat_buf_add(p->r, &b, part->at, part->nbytes));
    }
    FSDP_TRY(chat_buf_str(p->r, &v, &b));
    *out = v.s;
    return FSDP_OK;
}

int chat_parse_filters(struct chat_parser *p, struct chat_node **out, struct chat_node *a,
                       bool inline_first)
{
    struct chat_node *node;

    *out = a;
    while (inline_first || chat_skip_op(p, '|')) {
        inline_first = false;
        FSDP_TRY(chat_new_node(p, &node, CHAT_N_FILTER));
        node->a = *out;
        FSDP_TRY(parse_builtin_name(p, &node->name));
        if (!(node->builtin = p->r->hooks->filter(node->name)))
            FSDP_TRY(note_unknown(p, node));
        if (chat_at_op(p, '('))
            FSDP_TRY(parse_call(p, &node->call));
        *out = node;
    }
    return FSDP_OK;
}

static bool begins_test_arg(const struct chat_parser *p)
{
    switch (p->at->kind) {
    case CHAT_T_NAME:
        return !chat_at_name(p, "else") && !chat_at_name(p, "or") && !chat_at_name(p, "and");
    case CHAT_T_STRING:
    case CHAT_T_NUMBER:
        return true;
    default:
        return chat_at_op(p, '[') || chat_at_op(p, '{');
    }
}

/* One argument without parentheses, as in `is divisibleby 3`. */
static int parse_test_arg(struct chat_parser *p, const struct chat_call **out)
{
    struct chat_call *call;
    struct chat_node *arg;

    if (chat_at_name(p, "is"))
        return chat_fail(p->r, "tests with 'is' cannot be chained");
    FSDP_TRY(chat_new(p->r, &call, 1, sizeof *call));
    FSDP_TRY(chat_parse_primary(p, &arg));
    FSDP_TRY(chat_parse_postfix(p, &arg));
    *out = call;
    return chat_body_add(p, &call->args, arg);
}

static int parse_test(struct chat_parser *p, struct chat_node **out, struct chat_node *a)
{
    struct chat_node *node, *negated = NULL;

    chat_advance(p);
    if (chat_at_name(p, "not")) {
        FSDP_TRY(chat_new_node(p, &negated, CHAT_N_NOT));
        chat_advance(p);
    }
    FSDP_TRY(chat_new_node(p, &node, CHAT_N_TEST));
    node->a = a;
    FSDP_TRY(parse_builtin_name(p, &node->name));
    if (!(node->builtin = p->r->hooks->test(node->name)))
        FSDP_TRY(note_unknown(p, node));
    if (chat_at_op(p, '('))
        FSDP_TRY(parse_call(p, &node->call));
    else if (begins_test_arg(p))
        FSDP_TRY(parse_test_arg(p, &node->call));
    if (negated)
        negated->a = node;
    *out = negated ? negated : node;
    return FSDP_OK;
}

int chat_parse_filter_expr(struct chat_parser *p, struct chat_node **node)
{
    for (;;) {
        if (chat_at_op(p, '|'))
            FSDP_TRY(chat_parse_filters(p, node, *node, false));
        else if (chat_at_name(p, "is"))
            FSDP_TRY(parse_test(p, node, *node));
        else if (chat_at_op(p, '('))
            FSDP_TRY(parse_call_of(p, node, *node));
        else
            return FSDP_OK;
    }
}

int chat_parse_tuple(struct chat_parser *p, struct chat_node **out, bool with_cond, const char *end)
{
    struct chat_node *item, *tuple;

    FSDP_TRY(chat_parse_expr(p, out, with_cond));
    if (!chat_at_op(p, ','))
        return FSDP_OK;
    FSDP_TRY(chat_new_node(p, &tuple, CHAT_N_TUPLE));
    FSDP_TRY(chat_body_add(p, &tuple->list, *out));
    while (chat_skip_op(p, ',')) {
        if (p->at->kind == CHAT_T_VAR_END || p->at->kind == CHAT_T_BLOCK_END ||
            chat_at_op(p, ')') || (end && chat_at_name(p, end)))
            break;
        FSDP_TRY(chat_parse_expr(p, &item, with_cond));
        FSDP_TRY(chat_body_add(p, &tuple->list, item));
    }
    *out = tuple;
    return FSDP_OK;
}
