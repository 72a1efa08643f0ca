/* SPDX-License-Identifier: Apache-2.0 */
/* Operators, from the tightest binding to the loosest. */
#include "parser.h"

static int parse_unary(struct chat_parser *p, struct chat_node **out, bool with_filter)
{
    const bool minus = chat_at_op(p, '-');
    struct chat_node *node;
    int rc;

    if (minus || chat_at_op(p, '+')) {
        FSDP_TRY(chat_enter(p->r));
        rc = chat_new_node(p, &node, minus ? CHAT_N_NEG : CHAT_N_POS);
        chat_advance(p);
        if (!rc)
            rc = parse_unary(p, &node->a, false);
        chat_leave(p->r);
        FSDP_TRY(rc);
    } else {
        FSDP_TRY(chat_parse_primary(p, &node));
    }
    FSDP_TRY(chat_parse_postfix(p, &node));
    if (with_filter)
        FSDP_TRY(chat_parse_filter_expr(p, &node));
    *out = node;
    return FSDP_OK;
}

static int join_binary(struct chat_parser *p, struct chat_node **left, enum chat_op op,
                       struct chat_node *right)
{
    struct chat_node *node;

    FSDP_TRY(chat_new_node(p, &node, op));
    node->line = (*left)->line;
    node->a = *left;
    node->b = right;
    *left = node;
    return FSDP_OK;
}

static int parse_pow(struct chat_parser *p, struct chat_node **out)
{
    struct chat_node *right;

    FSDP_TRY(parse_unary(p, out, true));
    while (chat_skip_op(p, CHAT_OP2('*', '*'))) {
        FSDP_TRY(parse_unary(p, &right, true));
        FSDP_TRY(join_binary(p, out, CHAT_N_POW, right));
    }
    return FSDP_OK;
}

static int parse_product(struct chat_parser *p, struct chat_node **out)
{
    struct chat_node *right;
    enum chat_op op;

    FSDP_TRY(parse_pow(p, out));
    for (;;) {
        if (chat_skip_op(p, '*'))
            op = CHAT_N_MUL;
        else if (chat_skip_op(p, '/'))
            op = CHAT_N_DIV;
        else if (chat_skip_op(p, CHAT_OP2('/', '/')))
            op = CHAT_N_FLOORDIV;
        else if (chat_skip_op(p, '%'))
            op = CHAT_N_MOD;
        else
            return FSDP_OK;
        FSDP_TRY(parse_pow(p, &right));
        FSDP_TRY(join_binary(p, out, op, right));
    }
}

static int parse_concat(struct chat_parser *p, struct chat_node **out)
{
    struct chat_node *node, *item;

    FSDP_TRY(parse_product(p, out));
    if (!chat_at_op(p, '~'))
        return FSDP_OK;
    FSDP_TRY(chat_new_node(p, &node, CHAT_N_CONCAT));
    FSDP_TRY(chat_body_add(p, &node->list, *out));
    while (chat_skip_op(p, '~')) {
        FSDP_TRY(parse_product(p, &item));
        FSDP_TRY(chat_body_add(p, &node->list, item));
    }
    *out = node;
    return FSDP_OK;
}

static int parse_sum(struct chat_parser *p, struct chat_node **out)
{
    struct chat_node *right;

    FSDP_TRY(parse_concat(p, out));
    while (chat_at_op(p, '+') || chat_at_op(p, '-')) {
        const enum chat_op op = chat_at_op(p, '+') ? CHAT_N_ADD : CHAT_N_SUB;
        chat_advance(p);
        FSDP_TRY(parse_concat(p, &right));
        FSDP_TRY(join_binary(p, out, op, right));
    }
    return FSDP_OK;
}

static bool skip_compare(struct chat_parser *p, enum chat_compare *out)
{
    static const struct {
        int op;
        enum chat_compare compare;
    } rows[] = {
        {CHAT_OP2('=', '='), CHAT_EQ},
        {CHAT_OP2('!', '='), CHAT_NE},
        {'<', CHAT_LT},
        {CHAT_OP2('<', '='), CHAT_LE},
        {'>', CHAT_GT},
        {CHAT_OP2('>', '='), CHAT_GE},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (chat_skip_op(p, rows[i].op)) {
            *out = rows[i].compare;
            return true;
        }
    *out = CHAT_IN;
    if (chat_skip_name(p, "in"))
        return true;
    if (!chat_at_name(p, "not") || p->at[1].kind != CHAT_T_NAME ||
        !chat_str_is(p->at[1].value.s, "in"))
        return false;
    chat_advance(p);
    chat_advance(p);
    *out = CHAT_NOT_IN;
    return true;
}

static int parse_compare(struct chat_parser *p, struct chat_node **out)
{
    struct chat_node *node = NULL, *operand;
    enum chat_compare compare;

    FSDP_TRY(parse_sum(p, out));
    while (skip_compare(p, &compare)) {
        if (!node) {
            FSDP_TRY(chat_new_node(p, &node, CHAT_N_COMPARE));
            node->line = (*out)->line;
            node->a = *out;
        }
        FSDP_TRY(chat_new_node(p, &operand, CHAT_N_COMPARE));
        operand->compare = compare;
        FSDP_TRY(parse_sum(p, &operand->a));
        FSDP_TRY(chat_body_add(p, &node->list, operand));
    }
    *out = node ? node : *out;
    return FSDP_OK;
}

static int parse_not(struct chat_parser *p, struct chat_node **out)
{
    struct chat_node *node;
    int rc;

    if (!chat_at_name(p, "not"))
        return parse_compare(p, out);
    FSDP_TRY(chat_new_node(p, &node, CHAT_N_NOT));
    chat_advance(p);
    FSDP_TRY(chat_enter(p->r));
    rc = parse_not(p, &node->a);
    chat_leave(p->r);
    *out = node;
    return rc;
}

static int parse_and(struct chat_parser *p, struct chat_node **out)
{
    struct chat_node *right;

    FSDP_TRY(parse_not(p, out));
    while (chat_skip_name(p, "and")) {
        FSDP_TRY(parse_not(p, &right));
        FSDP_TRY(join_binary(p, out, CHAT_N_AND, right));
    }
    return FSDP_OK;
}

static int parse_or(struct chat_parser *p, struct chat_node **out)
{
    struct chat_node *right;

    FSDP_TRY(parse_and(p, out));
    while (chat_skip_name(p, "or")) {
        FSDP_TRY(parse_and(p, &right));
        FSDP_TRY(join_binary(p, out, CHAT_N_OR, right));
    }
    return FSDP_OK;
}

static int parse_whole(struct chat_parser *p, struct chat_node **out, bool with_cond);

static int parse_cond(struct chat_parser *p, struct chat_node **out)
{
    const size_t nunknown = p->nunknown;
    struct chat_node *node;
    bool any = false;

    FSDP_TRY(parse_or(p, out));
    for (; chat_at_name(p, "if"); any = true) {
        FSDP_TRY(chat_new_node(p, &node, CHAT_N_COND));
        node->line = (*out)->line;
        chat_advance(p);
        node->b = *out;
        FSDP_TRY(parse_or(p, &node->a));
        if (chat_skip_name(p, "else"))
            FSDP_TRY(parse_whole(p, &node->c, true));
        *out = node;
    }
    for (size_t i = nunknown; any && i < p->nunknown; i++)
        p->unknown[i]->flag = true;
    return FSDP_OK;
}

static int parse_whole(struct chat_parser *p, struct chat_node **out, bool with_cond)
{
    int rc;

    FSDP_TRY(chat_enter(p->r));
    rc = with_cond ? parse_cond(p, out) : parse_or(p, out);
    chat_leave(p->r);
    return rc;
}

void chat_parser_begin(struct chat_parser *p)
{
    p->expr = parse_whole;
}
