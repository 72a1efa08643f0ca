/* SPDX-License-Identifier: Apache-2.0 */
/* Statements. */
#include "parser.h"

static int parse_statements(struct chat_parser *p, struct chat_body *body, const char *const *ends);

/* The body of a statement, up to one of the tags `ends`, at whose name it stops. jinja2 allows a
 * colon before it. */
static int parse_body(struct chat_parser *p, struct chat_body *body, const char *const *ends)
{
    int rc;

    chat_skip_op(p, ':');
    if (p->at->kind != CHAT_T_BLOCK_END)
        return chat_unexpected(p, "the end of the tag");
    chat_advance(p);
    FSDP_TRY(chat_enter(p->r));
    rc = parse_statements(p, body, ends);
    chat_leave(p->r);
    return rc;
}

/* A body of its own scope, whose end tag is passed. */
static int parse_scope(struct chat_parser *p, struct chat_body *body, const char *end)
{
    const char *const ends[] = {end, NULL};
    const bool in_branch = p->in_branch;

    p->in_branch = false;
    FSDP_TRY(parse_body(p, body, ends));
    p->in_branch = in_branch;
    chat_advance(p);
    return FSDP_OK;
}

/* ---- targets -------------------------------------------------------------------------------- */

static int parse_target_name(struct chat_parser *p, struct chat_node **out, bool with_namespace)
{
    FSDP_TRY(chat_parse_primary(p, out));
    if (with_namespace && (*out)->op == CHAT_N_NAME && chat_skip_op(p, '.')) {
        (*out)->op = CHAT_N_NSREF;
        return chat_expect_any_name(p, &(*out)->name);
    }
    return FSDP_OK;
}

static int check_target(struct chat_parser *p, const struct chat_node *target)
{
    if (target->op == CHAT_N_NAME || target->op == CHAT_N_NSREF)
        return FSDP_OK;
    if (target->op != CHAT_N_TUPLE && target->op != CHAT_N_LIST)
        return chat_fail(p->r, "cannot assign to what is no name");
    FSDP_TRY(chat_enter(p->r));
    for (size_t i = 0; i < target->list.nelem; i++)
        FSDP_TRY(check_target(p, target->list.at[i]));
    chat_leave(p->r);
    return FSDP_OK;
}

static int parse_target(struct chat_parser *p, struct chat_node **out, bool with_namespace,
                        const char *end)
{
    struct chat_node *tuple = NULL;

    FSDP_TRY(parse_target_name(p, out, with_namespace));
    while (chat_skip_op(p, ',')) {
        struct chat_node *item;
        if (!tuple) {
            FSDP_TRY(chat_new_node(p, &tuple, CHAT_N_TUPLE));
            FSDP_TRY(chat_body_add(p, &tuple->list, *out));
        }
        if (p->at->kind == CHAT_T_BLOCK_END || (end && chat_at_name(p, end)))
            break;
        FSDP_TRY(parse_target_name(p, &item, with_namespace));
        FSDP_TRY(chat_body_add(p, &tuple->list, item));
    }
    *out = tuple ? tuple : *out;
    return check_target(p, *out);
}

/* ---- statements ----------------------------------------------------------------------------- */

static int parse_set(struct chat_parser *p, struct chat_node *node)
{
    FSDP_TRY(parse_target(p, &node->a, true, NULL));
    if (chat_skip_op(p, '='))
        return chat_parse_tuple(p, &node->b, true, NULL);
    node->op = CHAT_S_SET_BLOCK;
    FSDP_TRY(chat_parse_filters(p, &node->b, NULL, false));
    return parse_scope(p, &node->list, "endset");
}

static int parse_for(struct chat_parser *p, struct chat_node *node)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    static const struct chat_str loop = {.at = "loop", .nbytes = 4, .nchars = 4};
    const bool in_branch = p->in_branch;

    FSDP_TRY(chat_symbol(p, &node->symbol, &loop));
    FSDP_TRY(parse_target(p, &node->a, false, "in"));
    if (node->a->op == CHAT_N_NAME && node->a->symbol == node->symbol)
        return chat_fail(p->r, "the variable 'loop' cannot be a loop's target");
    FSDP_TRY(chat_expect_name(p, "in"));
    FSDP_TRY(chat_parse_tuple(p, &node->b, false, "recursive"));
    if (chat_skip_name(p, "if"))
        FSDP_TRY(chat_parse_expr(p, &node->c, true));
    node->flag = chat_skip_name(p, "recursive");
    p->in_branch = false;
    p->nloops++;
    FSDP_TRY(parse_body(p, &node->list, ends));
    p->nloops--;
    p->in_branch = in_branch;
    if (chat_skip_name(p, "endfor"))
        return FSDP_OK;
    chat_advance(p);
    return parse_scope(p, &node->other, "endfor");
}

static int parse_if(struct chat_parser *p, struct chat_node *node)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    const bool in_branch = p->in_branch;

    p->in_branch = true;
    for (;;) {
        FSDP_TRY(chat_parse_tuple(p, &node->a, false, NULL));
        FSDP_TRY(parse_body(p, &node->list, ends));
        if (!chat_skip_name(p, "elif"))
            break;
        FSDP_TRY(chat_new_node(p, &node->c, CHAT_S_IF));
        node = node->c;
    }
    if (chat_skip_name(p, "else"))
        FSDP_TRY(parse_body(p, &node->other, last));
    p->in_branch = in_branch;
    return chat_expect_name(p, "endif");
}

static int add_param(struct chat_parser *p, struct chat_macro_node *m, size_t max)
{
    struct chat_node *param;
    const size_t i = m->nparams;

    if (i == max)
        return chat_fail(p->r, "a macro of more than %zu parameters", max);
    FSDP_TRY(chat_parse_primary(p, &param));
    if (param->op != CHAT_N_NAME)
        return chat_fail(p->r, "a parameter is no name");
    m->params[i] = param->name;
    m->symbols[i] = param->symbol;
    m->nparams++;
    if (chat_skip_op(p, '='))
        return chat_parse_expr(p, &m->defaults[i], true);
    if (i && m->defaults[i - 1])
        return chat_fail(p->r, "a parameter without default behind one that has it");
    return FSDP_OK;
}

static int parse_signature(struct chat_parser *p, struct chat_macro_node *m)
{
    enum { MAX_PARAMS = 100 };

    FSDP_TRY(chat_new(p->r, &m->params, MAX_PARAMS, sizeof *m->params));
    FSDP_TRY(chat_new(p->r, &m->symbols, MAX_PARAMS, sizeof *m->symbols));
    FSDP_TRY(chat_new(p->r, &m->defaults, MAX_PARAMS, sizeof *m->defaults));
    FSDP_TRY(chat_expect_op(p, '('));
    while (!chat_at_op(p, ')')) {
        if (m->nparams)
            FSDP_TRY(chat_expect_op(p, ','));
        FSDP_TRY(add_param(p, m, MAX_PARAMS));
    }
    return chat_expect_op(p, ')');
}

/* The body of a function of its own: outer loops are none of its. */
static int parse_macro_body(struct chat_parser *p, struct chat_macro_node *m,
                            struct chat_body *body, const char *end)
{
    struct chat_macro_node *const outer = p->macro;
    const int nloops = p->nloops;

    p->macro = m ? m : outer;
    p->nloops = 0;
    FSDP_TRY(parse_scope(p, body, end));
    p->macro = outer;
    p->nloops = nloops;
    return FSDP_OK;
}

static int parse_macro(struct chat_parser *p, struct chat_node *node)
{
    struct chat_node *name;

    FSDP_TRY(chat_new(p->r, &node->macro, 1, sizeof *node->macro));
    FSDP_TRY(chat_parse_primary(p, &name));
    if (name->op != CHAT_N_NAME)
        return chat_fail(p->r, "a macro without a name");
    node->symbol = name->symbol;
    node->macro->name = name->name;
    FSDP_TRY(parse_signature(p, node->macro));
    return parse_macro_body(p, node->macro, &node->macro->body, "endmacro");
}

static int parse_call_block(struct chat_parser *p, struct chat_node *node)
{
    static const struct chat_str name = {.at = "caller", .nbytes = 6, .nchars = 6};

    FSDP_TRY(chat_new(p->r, &node->macro, 1, sizeof *node->macro));
    node->macro->name = &name;
    if (chat_at_op(p, '('))
        FSDP_TRY(parse_signature(p, node->macro));
    FSDP_TRY(chat_parse_expr(p, &node->a, true));
    if (node->a->op != CHAT_N_CALL)
        return chat_fail(p->r, "a call block without a call");
    return parse_macro_body(p, node->macro, &node->macro->body, "endcall");
}

static int parse_filter_block(struct chat_parser *p, struct chat_node *node)
{
    const bool in_branch = p->in_branch;

    p->in_branch = false;
    FSDP_TRY(chat_parse_filters(p, &node->b, NULL, true));
    p->in_branch = in_branch;
    return parse_scope(p, &node->list, "endfilter");
}

static int parse_with(struct chat_parser *p, struct chat_node *node)
{
    struct chat_node *target, *value;

    while (p->at->kind != CHAT_T_BLOCK_END) {
        if (node->other.nelem)
            FSDP_TRY(chat_expect_op(p, ','));
        FSDP_TRY(parse_target_name(p, &target, false));
        FSDP_TRY(check_target(p, target));
        FSDP_TRY(chat_expect_op(p, '='));
        FSDP_TRY(chat_parse_expr(p, &value, true));
        FSDP_TRY(chat_body_add(p, &node->other, target));
        FSDP_TRY(chat_body_add(p, &node->other, value));
    }
    return parse_scope(p, &node->list, "endwith");
}

static int parse_print(struct chat_parser *p, struct chat_node *node)
{
    struct chat_node *item;

    while (p->at->kind != CHAT_T_BLOCK_END) {
        if (node->list.nelem)
            FSDP_TRY(chat_expect_op(p, ','));
        FSDP_TRY(chat_parse_expr(p, &item, true));
        FSDP_TRY(chat_body_add(p, &node->list, item));
    }
    return FSDP_OK;
}

static int parse_block(struct chat_parser *p, struct chat_node *node)
{
    const int nloops = p->nloops;

    FSDP_TRY(chat_expect_any_name(p, &node->name));
    node->flag = chat_skip_name(p, "scoped");
    if (chat_at_name(p, "required"))
        return chat_refuse(p->r, "a required block is not supported");
    p->nloops = 0;
    FSDP_TRY(parse_scope(p, &node->list, "endblock"));
    p->nloops = nloops;
    if (p->at->kind == CHAT_T_NAME && chat_str_equal(p->at->value.s, node->name))
        chat_advance(p);
    return FSDP_OK;
}

static int parse_generation(struct chat_parser *p, struct chat_node *node)
{
    p->marks_generation = true;
    return parse_macro_body(p, NULL, &node->list, "endgeneration");
}

static int parse_jump(struct chat_parser *p, struct chat_node *node)
{
    (void)node;
    return p->nloops ? FSDP_OK : chat_fail(p->r, "break or continue outside a loop");
}

static const struct statement {
    const char *name;
    enum chat_op op;
    int (*parse)(struct chat_parser *p, struct chat_node *node);
} statements[] = {
    {"set", CHAT_S_SET, parse_set},
    {"if", CHAT_S_IF, parse_if},
    {"for", CHAT_S_FOR, parse_for},
    {"macro", CHAT_S_MACRO, parse_macro},
    {"generation", CHAT_S_GENERATION, parse_generation},
    {"call", CHAT_S_CALL, parse_call_block},
    {"filter", CHAT_S_FILTER, parse_filter_block},
    {"with", CHAT_S_WITH, parse_with},
    {"break", CHAT_S_BREAK, parse_jump},
    {"continue", CHAT_S_CONTINUE, parse_jump},
    {"print", CHAT_S_PRINT, parse_print},
    {"block", CHAT_S_BLOCK, parse_block},
};

static int parse_statement(struct chat_parser *p, struct chat_node **out)
{
    static const char *const refused[] = {"include", "import", "from", "extends", "autoescape"};
    const struct chat_str *name;

    if (p->at->kind != CHAT_T_NAME)
        return chat_unexpected(p, "the name of a tag");
    name = p->at->value.s;
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (chat_str_is(name, statements[i].name)) {
            FSDP_TRY(chat_new_node(p, out, statements[i].op));
            chat_advance(p);
            return statements[i].parse(p, *out);
        }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (chat_str_is(name, refused[i]))
            return chat_refuse(p->r, "the tag '%s' is not supported", refused[i]);
    return chat_refuse(p->r, "unknown tag '%.*s'", name->nbytes < 60 ? (int)name->nbytes : 60,
                       name->at);
}

static int parse_data(struct chat_parser *p, struct chat_body *body)
{
    struct chat_node *node;

    FSDP_TRY(chat_new_node(p, &node, CHAT_S_DATA));
    node->value = p->at->value;
    chat_advance(p);
    return chat_body_add(p, body, node);
}

static int parse_output(struct chat_parser *p, struct chat_body *body)
{
    struct chat_node *node, *item;

    FSDP_TRY(chat_new_node(p, &node, CHAT_S_PRINT));
    chat_advance(p);
    if (p->at->kind == CHAT_T_VAR_END)
        return chat_unexpected(p, "an expression");
    FSDP_TRY(chat_parse_tuple(p, &item, true, NULL));
    FSDP_TRY(chat_body_add(p, &node->list, item));
    if (p->at->kind != CHAT_T_VAR_END)
        return chat_unexpected(p, "the end of the tag");
    chat_advance(p);
    return chat_body_add(p, body, node);
}

static bool at_any_name(const struct chat_parser *p, const char *const *names)
{
    for (; names && *names; names++)
        if (chat_at_name(p, *names))
            return true;
    return false;
}

static int parse_statements(struct chat_parser *p, struct chat_body *body, const char *const *ends)
{
    struct chat_node *node;

    while (p->at->kind != CHAT_T_EOF) {
        if (p->at->kind == CHAT_T_DATA) {
            FSDP_TRY(parse_data(p, body));
        } else if (p->at->kind == CHAT_T_VAR_BEGIN) {
            FSDP_TRY(parse_output(p, body));
        } else {
            chat_advance(p);
            if (at_any_name(p, ends))
                return FSDP_OK;
            FSDP_TRY(parse_statement(p, &node));
            FSDP_TRY(chat_body_add(p, body, node));
            if (p->at->kind != CHAT_T_BLOCK_END)
                return chat_unexpected(p, "the end of the tag");
            chat_advance(p);
        }
    }
    return ends ? chat_fail(p->r, "the template ends where '%s' is missing", ends[0]) : FSDP_OK;
}

static int check_unknown(struct chat_parser *p)
{
    for (size_t i = 0; i < p->nunknown; i++) {
        const struct chat_node *node = p->unknown[i];
        if (node->flag)
            continue;
        p->r->line = node->line;
        return chat_refuse(p->r, "unknown %s '%.*s'", node->op == CHAT_N_FILTER ? "filter" : "test",
                           node->name->nbytes < 60 ? (int)node->name->nbytes : 60, node->name->at);
    }
    return FSDP_OK;
}

int chat_parse(struct chat_run *r, struct chat_tree **out, const char *source, size_t nbytes)
{
    struct chat_parser p = {.r = r};
    struct chat_token *tokens;
    struct chat_tree *tree;

    chat_parser_begin(&p);
    FSDP_TRY(chat_lex(r, &tokens, source, nbytes));
    FSDP_TRY(chat_dict_new(r, &p.symbols, CHAT_DICT, 0));
    FSDP_TRY(chat_new(r, &tree, 1, sizeof *tree));
    p.at = tokens;
    r->line = tokens->line;
    FSDP_TRY(parse_statements(&p, &tree->body, NULL));
    FSDP_TRY(check_unknown(&p));
    tree->names = p.names;
    tree->nnames = p.nnames;
    tree->marks_generation = p.marks_generation;
    *out = tree;
    return FSDP_OK;
}
