/* SPDX-License-Identifier: Apache-2.0 */
/* Values of expressions. */
#include "text/chat/builtin/arith.h"
#include "text/chat/builtin/attribute.h"
#include "eval.h"
#include "text/chat/value/iterate.h"
#include "text/chat/value/print.h"

int chat_set_var(struct chat_run *r, struct chat_frame *frame, int symbol, const struct chat_val *v)
{
    if (!frame) {
        r->root[symbol] = *v;
        return FSDP_OK;
    }
    for (size_t i = 0; i < frame->nvars; i++)
        if (frame->vars[i].symbol == symbol) {
            frame->vars[i].value = *v;
            return FSDP_OK;
        }
    if (frame->nvars == frame->max) {
        const size_t max = frame->max ? 2 * frame->max : 4;
        struct chat_var *vars;
        FSDP_TRY(chat_new(r, &vars, max, sizeof *vars));
        if (frame->nvars)
            memcpy(vars, frame->vars, frame->nvars * sizeof *vars);
        frame->vars = vars;
        frame->max = max;
    }
    frame->vars[frame->nvars++] = (struct chat_var){symbol, *v};
    return FSDP_OK;
}

static int eval_name(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                     struct chat_frame *frame)
{
    for (; frame; frame = frame->parent)
        for (size_t i = 0; i < frame->nvars; i++)
            if (frame->vars[i].symbol == node->symbol) {
                *out = frame->vars[i].value;
                return FSDP_OK;
            }
    *out = r->root[node->symbol];
    if (!chat_is_absent(out))
        return FSDP_OK;
    const struct chat_val name = chat_str_val(node->name);
    return chat_undef_new(r, out, NULL, &name, NULL);
}

static int eval_const(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                      struct chat_frame *frame)
{
    (void)r;
    (void)frame;
    *out = node->value;
    return FSDP_OK;
}

static int eval_list(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                     struct chat_frame *frame)
{
    struct chat_val list, item;

    FSDP_TRY(chat_list_new(r, &list, node->op == CHAT_N_LIST ? CHAT_LIST : CHAT_TUPLE,
                           node->list.nelem));
    for (size_t i = 0; i < node->list.nelem; i++) {
        FSDP_TRY(chat_eval(r, &item, node->list.at[i], frame));
        FSDP_TRY(chat_list_add(r, list.list, &item));
    }
    *out = list;
    return FSDP_OK;
}

static int eval_dict(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                     struct chat_frame *frame)
{
    struct chat_val dict, key, value;

    FSDP_TRY(chat_dict_new(r, &dict, CHAT_DICT, node->list.nelem / 2));
    for (size_t i = 0; i < node->list.nelem; i += 2) {
        FSDP_TRY(chat_eval(r, &key, node->list.at[i], frame));
        FSDP_TRY(chat_eval(r, &value, node->list.at[i + 1], frame));
        FSDP_TRY(chat_check_hashable(r, &key));
        FSDP_TRY(chat_dict_set(r, dict.dict, &key, &value));
    }
    *out = dict;
    return FSDP_OK;
}

static int eval_attr(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                     struct chat_frame *frame)
{
    struct chat_val of;

    FSDP_TRY(chat_eval(r, &of, node->a, frame));
    return chat_attribute(r, out, &of, node->name);
}

static int eval_slice(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                      struct chat_frame *frame)
{
    const struct chat_node *const parts[3] = {node->b->a, node->b->b, node->b->c};
    struct chat_val of, bounds[3];

    FSDP_TRY(chat_eval(r, &of, node->a, frame));
    for (int i = 0; i < 3; i++) {
        bounds[i] = chat_none();
        if (parts[i])
            FSDP_TRY(chat_eval(r, &bounds[i], parts[i], frame));
    }
    return chat_slice(r, out, &of, bounds);
}

static int eval_item(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                     struct chat_frame *frame)
{
    struct chat_val of, key;

    if (node->b->op == CHAT_N_SLICE)
        return eval_slice(r, out, node, frame);
    FSDP_TRY(chat_eval(r, &of, node->a, frame));
    FSDP_TRY(chat_eval(r, &key, node->b, frame));
    return chat_item(r, out, &of, &key);
}

/* ---- calls ---------------------------------------------------------------------------------- */

static int add_keyword(struct chat_run *r, struct chat_args *args, size_t max,
                       const struct chat_str *name, const struct chat_val *v)
{
    for (size_t i = 0; i < args->nkeywords; i++)
        if (chat_str_equal(args->keywords[i].name, name))
            return chat_fail(r, "two values of the keyword argument '%.*s'",
                             name->nbytes < 60 ? (int)name->nbytes : 60, name->at);
    if (args->nkeywords < max)
        args->keywords[args->nkeywords++] = (struct chat_named){name, *v};
    return chat_step(r, args->nkeywords >> 3);
}

static int eval_keywords(struct chat_run *r, struct chat_args *out, const struct chat_call *call,
                         struct chat_frame *frame)
{
    struct chat_val more = {0}, v;
    size_t max = call->nkeywords;

    if (call->star_star) {
        FSDP_TRY(chat_eval(r, &more, call->star_star, frame));
        if (more.kind != CHAT_DICT)
            return chat_fail(r, "argument after ** must be a mapping, not %s",
                             chat_type_name(&more));
        max += more.dict->nelem;
    }
    FSDP_TRY(chat_new(r, &out->keywords, max, sizeof *out->keywords));
    for (size_t i = 0; i < call->nkeywords; i++) {
        FSDP_TRY(chat_eval(r, &v, call->keywords[i].value, frame));
        FSDP_TRY(add_keyword(r, out, max, call->keywords[i].name, &v));
    }
    for (size_t i = 0; more.kind && i < more.dict->nelem; i++) {
        if (more.dict->keys[i].kind != CHAT_STR)
            return chat_fail(r, "keywords must be strings");
        FSDP_TRY(add_keyword(r, out, max, more.dict->keys[i].s, &more.dict->values[i]));
    }
    return FSDP_OK;
}

int chat_eval_args(struct chat_run *r, struct chat_args *out, const struct chat_call *call,
                   struct chat_frame *frame)
{
    struct chat_val list, more, v;

    *out = (struct chat_args){0};
    if (!call)
        return FSDP_OK;
    FSDP_TRY(chat_list_new(r, &list, CHAT_LIST, call->args.nelem));
    for (size_t i = 0; i < call->args.nelem; i++) {
        FSDP_TRY(chat_eval(r, &v, call->args.at[i], frame));
        FSDP_TRY(chat_list_add(r, list.list, &v));
    }
    if (call->star) {
        FSDP_TRY(chat_eval(r, &v, call->star, frame));
        FSDP_TRY(chat_collect(r, &more, &v));
        for (size_t i = 0; i < more.list->nelem; i++)
            FSDP_TRY(chat_list_add(r, list.list, &more.list->at[i]));
    }
    out->at = list.list->at;
    out->nelem = list.list->nelem;
    return call->nkeywords || call->star_star ? eval_keywords(r, out, call, frame) : FSDP_OK;
}

static int eval_call(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                     struct chat_frame *frame)
{
    struct chat_val callee;
    struct chat_args args;

    FSDP_TRY(chat_eval(r, &callee, node->a, frame));
    FSDP_TRY(chat_eval_args(r, &args, node->call, frame));
    return r->hooks->call(r, out, &callee, &args);
}

static int call_builtin(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                        const struct chat_val *v, struct chat_frame *frame)
{
    struct chat_args args;

    if (!node->builtin)
        return chat_refuse(r, "unknown %s '%.*s'", node->op == CHAT_N_FILTER ? "filter" : "test",
                           node->name->nbytes < 60 ? (int)node->name->nbytes : 60, node->name->at);
    FSDP_TRY(chat_eval_args(r, &args, node->call, frame));
    return chat_builtin_call(r, out, node->builtin, v, &args);
}

static int eval_builtin(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                        struct chat_frame *frame)
{
    struct chat_val v;

    FSDP_TRY(chat_eval(r, &v, node->a, frame));
    return call_builtin(r, out, node, &v, frame);
}

int chat_eval_filter(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                     const struct chat_val *v, struct chat_frame *frame)
{
    struct chat_val inner = *v;

    if (node->a)
        FSDP_TRY(chat_eval_filter(r, &inner, node->a, v, frame));
    return call_builtin(r, out, node, &inner, frame);
}

/* ---- operators ------------------------------------------------------------------------------ */

static int eval_not(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                    struct chat_frame *frame)
{
    struct chat_val v;

    FSDP_TRY(chat_eval(r, &v, node->a, frame));
    *out = chat_bool(!chat_truth(&v));
    return FSDP_OK;
}

static int eval_sign(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                     struct chat_frame *frame)
{
    struct chat_val v;

    FSDP_TRY(chat_eval(r, &v, node->a, frame));
    return chat_unary(r, out, node->op, &v);
}

static int eval_and_or(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                       struct chat_frame *frame)
{
    FSDP_TRY(chat_eval(r, out, node->a, frame));
    if (chat_truth(out) == (node->op == CHAT_N_OR))
        return FSDP_OK;
    return chat_eval(r, out, node->b, frame);
}

static int eval_cond(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                     struct chat_frame *frame)
{
    struct chat_val test;

    FSDP_TRY(chat_eval(r, &test, node->a, frame));
    if (chat_truth(&test))
        return chat_eval(r, out, node->b, frame);
    if (node->c)
        return chat_eval(r, out, node->c, frame);
    return chat_undef_new(r, out, NULL, NULL, NULL);
}

static int eval_compare(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                        struct chat_frame *frame)
{
    struct chat_val a, b;
    bool holds = true;

    FSDP_TRY(chat_eval(r, &a, node->a, frame));
    for (size_t i = 0; holds && i < node->list.nelem; i++) {
        FSDP_TRY(chat_eval(r, &b, node->list.at[i]->a, frame));
        FSDP_TRY(chat_compare(r, &holds, node->list.at[i]->compare, &a, &b));
        a = b;
    }
    *out = chat_bool(holds);
    return FSDP_OK;
}

static int eval_concat(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                       struct chat_frame *frame)
{
    struct chat_buf b = {0};
    struct chat_val list, v;

    FSDP_TRY(chat_list_new(r, &list, CHAT_LIST, node->list.nelem));
    for (size_t i = 0; i < node->list.nelem; i++) {
        FSDP_TRY(chat_eval(r, &v, node->list.at[i], frame));
        FSDP_TRY(chat_list_add(r, list.list, &v));
    }
    for (size_t i = 0; i < list.list->nelem; i++)
        FSDP_TRY(chat_print(r, &b, &list.list->at[i]));
    return chat_buf_str(r, out, &b);
}

static int eval_binary(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                       struct chat_frame *frame)
{
    struct chat_val a, b;

    FSDP_TRY(chat_eval(r, &a, node->a, frame));
    FSDP_TRY(chat_eval(r, &b, node->b, frame));
    return chat_binary(r, out, node->op, &a, &b);
}

int chat_eval(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
              struct chat_frame *frame)
{
    static int (*const evals[CHAT_N_NEXPRS])(struct chat_run *, struct chat_val *,
                                             const struct chat_node *, struct chat_frame *) = {
        [CHAT_N_CONST] = eval_const,     [CHAT_N_NAME] = eval_name,
        [CHAT_N_LIST] = eval_list,       [CHAT_N_TUPLE] = eval_list,
        [CHAT_N_DICT] = eval_dict,       [CHAT_N_ATTR] = eval_attr,
        [CHAT_N_ITEM] = eval_item,       [CHAT_N_CALL] = eval_call,
        [CHAT_N_FILTER] = eval_builtin,  [CHAT_N_TEST] = eval_builtin,
        [CHAT_N_NOT] = eval_not,         [CHAT_N_NEG] = eval_sign,
        [CHAT_N_POS] = eval_sign,        [CHAT_N_AND] = eval_and_or,
        [CHAT_N_OR] = eval_and_or,       [CHAT_N_COND] = eval_cond,
        [CHAT_N_COMPARE] = eval_compare, [CHAT_N_CONCAT] = eval_concat,
        [CHAT_N_ADD] = eval_binary,      [CHAT_N_SUB] = eval_binary,
        [CHAT_N_MUL] = eval_binary,      [CHAT_N_DIV] = eval_binary,
        [CHAT_N_FLOORDIV] = eval_binary, [CHAT_N_MOD] = eval_binary,
        [CHAT_N_POW] = eval_binary,
    };
    const int line = r->line;
    struct chat_val result = {0};
    int rc;

    r->line = node->line;
    FSDP_TRY(chat_step(r, 1));
    FSDP_TRY(chat_enter(r));
    if (node->op >= CHAT_N_NEXPRS || !evals[node->op])
        return chat_fail(r, "no expression");
    rc = evals[node->op](r, &result, node, frame);
    chat_leave(r);
    if (!rc)
        r->line = line;
    *out = result;
    return rc;
}
