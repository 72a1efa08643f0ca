/* SPDX-License-Identifier: Apache-2.0 */
/* Statements. */
#include "exec.h"
#include "text/chat/value/iterate.h"
#include "text/chat/builtin/loop.h"
#include "out.h"

enum jump { RUN_ON, BREAK, CONTINUE };

static int exec_body(struct chat_run *r, const struct chat_body *body, struct chat_frame *frame,
                     enum jump *jump);

static int new_frame(struct chat_run *r, struct chat_frame **out, struct chat_frame *parent)
{
    FSDP_TRY(chat_new(r, out, 1, sizeof **out));
    (*out)->parent = parent;
    return FSDP_OK;
}

/* The text of a body. A break or continue in it leaves no text. */
static int capture_body(struct chat_run *r, struct chat_val *out, const struct chat_body *body,
                        struct chat_frame *parent, enum jump *jump)
{
    const size_t first = chat_begin_capture(r);
    struct chat_frame *frame;

    FSDP_TRY(new_frame(r, &frame, parent));
    FSDP_TRY(exec_body(r, body, frame, jump));
    return chat_end_capture(r, out, first);
}

/* ---- assignments ---------------------------------------------------------------------------- */

static int set_namespace(struct chat_run *r, const struct chat_node *target,
                         struct chat_frame *frame, const struct chat_val *v)
{
    const struct chat_val key = chat_str_val(target->name);
    struct chat_node name = {.op = CHAT_N_NAME, .line = target->line, .symbol = target->symbol};
    struct chat_val space;

    name.name = target->name;
    FSDP_TRY(chat_eval(r, &space, &name, frame));
    if (space.kind != CHAT_SPACE)
        return chat_fail(r, "cannot assign attribute on non-namespace object");
    if (target->name->nbytes && target->name->at[0] == '_')
        return chat_fail(r, "a namespace has no attributes that begin with an underscore");
    return chat_dict_set(r, space.dict, &key, v);
}

static int assign_value(struct chat_run *r, const struct chat_node *target,
                        struct chat_frame *frame, const struct chat_val *v)
{
    struct chat_val list;

    if (target->op == CHAT_N_NAME)
        return chat_set_var(r, frame, target->symbol, v);
    if (target->op == CHAT_N_NSREF)
        return set_namespace(r, target, frame, v);
    FSDP_TRY(chat_collect(r, &list, v));
    if (list.list->nelem != target->list.nelem)
        return chat_fail(r, "%zu values to unpack, expected %zu", list.list->nelem,
                         target->list.nelem);
    for (size_t i = 0; i < list.list->nelem; i++)
        FSDP_TRY(assign_value(r, target->list.at[i], frame, &list.list->at[i]));
    return FSDP_OK;
}

static int exec_set(struct chat_run *r, const struct chat_node *node, struct chat_frame *frame,
                    enum jump *jump)
{
    struct chat_val v;

    (void)jump;
    FSDP_TRY(chat_eval(r, &v, node->b, frame));
    return assign_value(r, node->a, frame, &v);
}

static int exec_set_block(struct chat_run *r, const struct chat_node *node,
                          struct chat_frame *frame, enum jump *jump)
{
    struct chat_val v;

    FSDP_TRY(capture_body(r, &v, &node->list, frame, jump));
    if (*jump != RUN_ON)
        return FSDP_OK;
    if (node->b)
        FSDP_TRY(chat_eval_filter(r, &v, node->b, &v, frame));
    return assign_value(r, node->a, frame, &v);
}

/* ---- conditions and loops ------------------------------------------------------------------- */

static int exec_if(struct chat_run *r, const struct chat_node *node, struct chat_frame *frame,
                   enum jump *jump)
{
    struct chat_val test;

    for (; node; node = node->c) {
        r->line = node->line;
        FSDP_TRY(chat_eval(r, &test, node->a, frame));
        if (chat_truth(&test))
            return exec_body(r, &node->list, frame, jump);
        if (!node->c)
            return exec_body(r, &node->other, frame, jump);
    }
    return FSDP_OK;
}

/* The elements of a loop that its condition chooses. */
struct chosen {
    const struct chat_node *node;
    struct chat_frame *frame;
};

static int next_chosen(struct chat_run *r, struct chat_iter *it, struct chat_val *out, bool *more)
{
    const struct chosen *chosen = it->state;
    struct chat_frame *frame;
    struct chat_val test;

    FSDP_TRY(new_frame(r, &frame, chosen->frame));
    for (;;) {
        FSDP_TRY(chat_next(r, it->inner, out, more));
        if (!*more)
            return FSDP_OK;
        FSDP_TRY(assign_value(r, chosen->node->a, frame, out));
        FSDP_TRY(chat_eval(r, &test, chosen->node->c, frame));
        if (chat_truth(&test))
            return FSDP_OK;
    }
}

static int choose_items(struct chat_run *r, struct chat_val *v, const struct chat_node *node,
                        struct chat_frame *frame)
{
    struct chosen *chosen;
    struct chat_iter *inner;

    if (!node->c)
        return FSDP_OK;
    FSDP_TRY(chat_iterate(r, &inner, v));
    FSDP_TRY(chat_new(r, &chosen, 1, sizeof *chosen));
    *chosen = (struct chosen){node, frame};
    FSDP_TRY(chat_iter_new(r, v, next_chosen, chosen));
    v->iter->inner = inner;
    return FSDP_OK;
}

static int run_loop(struct chat_run *r, const struct chat_node *node, struct chat_frame *parent,
                    struct chat_val over, int depth0)
{
    struct chat_frame *frame;
    struct chat_val loop;
    enum jump jump = RUN_ON;
    bool more;

    FSDP_TRY(choose_items(r, &over, node, parent));
    FSDP_TRY(chat_loop_new(r, &loop, &over, depth0));
    loop.loop->node = node->flag ? node : NULL;
    loop.loop->frame = parent;
    FSDP_TRY(new_frame(r, &frame, parent));
    while (jump != BREAK) {
        FSDP_TRY(chat_loop_next(r, loop.loop, &more));
        if (!more)
            break;
        frame->nvars = 0;
        FSDP_TRY(chat_set_var(r, frame, node->symbol, &loop));
        FSDP_TRY(assign_value(r, node->a, frame, &loop.loop->current));
        FSDP_TRY(exec_body(r, &node->list, frame, &jump));
    }
    if (loop.loop->index0 >= 0)
        return FSDP_OK;
    frame->nvars = 0;
    return exec_body(r, &node->other, frame, &jump);
}

static int exec_for(struct chat_run *r, const struct chat_node *node, struct chat_frame *frame,
                    enum jump *jump)
{
    struct chat_val over;

    (void)jump;
    FSDP_TRY(chat_eval(r, &over, node->b, frame));
    return run_loop(r, node, frame, over, 0);
}

static int exec_jump(struct chat_run *r, const struct chat_node *node, struct chat_frame *frame,
                     enum jump *jump)
{
    (void)r;
    (void)frame;
    *jump = node->op == CHAT_S_BREAK ? BREAK : CONTINUE;
    return FSDP_OK;
}

/* ---- calls ---------------------------------------------------------------------------------- */

static int take_keyword(struct chat_run *r, struct chat_val *out, const struct chat_args *args,
                        bool *used, const struct chat_str *name)
{
    for (size_t i = 0; i < args->nkeywords; i++)
        if (!used[i] && chat_str_equal(args->keywords[i].name, name)) {
            used[i] = true;
            *out = args->keywords[i].value;
        }
    return chat_step(r, 1);
}

/* Positional arguments beyond the parameters, and keyword arguments that are none of them. */
static int bind_rest(struct chat_run *r, struct chat_frame *frame, const struct chat_macro_node *m,
                     const struct chat_args *args, const bool *used)
{
    struct chat_val rest, kwargs;

    FSDP_TRY(chat_list_new(r, &rest, CHAT_TUPLE, 0));
    for (size_t i = m->nparams; i < args->nelem; i++)
        FSDP_TRY(chat_list_add(r, rest.list, &args->at[i]));
    if (rest.list->nelem && !m->takes_varargs)
        return chat_fail(r, "macro '%.*s' takes not more than %zu argument(s)",
                         (int)m->name->nbytes, m->name->at, m->nparams);
    FSDP_TRY(chat_dict_new(r, &kwargs, CHAT_DICT, 0));
    for (size_t i = 0; i < args->nkeywords; i++) {
        const struct chat_str *name = args->keywords[i].name;
        const struct chat_val key = chat_str_val(name);
        if (used[i])
            continue;
        if (!m->takes_kwargs)
            return chat_fail(r, "macro '%.*s' takes no keyword argument '%.*s'",
                             (int)m->name->nbytes, m->name->at,
                             name->nbytes < 60 ? (int)name->nbytes : 60, name->at);
        FSDP_TRY(chat_dict_set(r, kwargs.dict, &key, &args->keywords[i].value));
    }
    if (m->takes_varargs)
        FSDP_TRY(chat_set_var(r, frame, m->varargs, &rest));
    return m->takes_kwargs ? chat_set_var(r, frame, m->kwargs, &kwargs) : FSDP_OK;
}

static int bind_param(struct chat_run *r, struct chat_frame *frame, const struct chat_macro_node *m,
                      size_t i, struct chat_val *v)
{
    const struct chat_val name = chat_str_val(m->params[i]);

    if (chat_is_absent(v) && m->defaults[i])
        FSDP_TRY(chat_eval(r, v, m->defaults[i], frame));
    else if (chat_is_absent(v))
        FSDP_TRY(chat_undef_new(r, v, NULL, &name, "is a parameter that was not given"));
    return chat_set_var(r, frame, m->symbols[i], v);
}

static int bind_macro(struct chat_run *r, struct chat_frame *frame, const struct chat_macro_node *m,
                      const struct chat_args *args)
{
    static const struct chat_str caller_name = {.at = "caller", .nbytes = 6, .nchars = 6};
    const struct chat_val name = chat_str_val(&caller_name);
    bool *used, caller_is_param = false;
    struct chat_val v;

    FSDP_TRY(chat_new(r, &used, args->nkeywords, sizeof *used));
    struct chat_val *given;
    FSDP_TRY(chat_new(r, &given, m->nparams, sizeof *given));
    for (size_t i = 0; i < m->nparams; i++) {
        caller_is_param |= chat_str_equal(m->params[i], &caller_name);
        if (i < args->nelem)
            given[i] = args->at[i];
        else
            FSDP_TRY(take_keyword(r, &given[i], args, used, m->params[i]));
    }
    if (m->takes_caller && !caller_is_param) {
        v = (struct chat_val){.kind = CHAT_MISSING};
        FSDP_TRY(take_keyword(r, &v, args, used, &caller_name));
        if (chat_is_absent(&v))
            FSDP_TRY(chat_undef_new(r, &v, NULL, &name, "is not defined: this is no call block"));
        FSDP_TRY(chat_set_var(r, frame, m->caller, &v));
    }
    FSDP_TRY(bind_rest(r, frame, m, args, used));
    for (size_t i = 0; i < m->nparams; i++)
        FSDP_TRY(bind_param(r, frame, m, i, &given[i]));
    return FSDP_OK;
}

static int call_macro(struct chat_run *r, struct chat_val *out, const struct chat_macro *macro,
                      const struct chat_args *args)
{
    struct chat_frame *frame;
    enum jump jump = RUN_ON;
    const size_t first = chat_begin_capture(r);

    FSDP_TRY(new_frame(r, &frame, macro->frame));
    FSDP_TRY(bind_macro(r, frame, macro->node, args));
    FSDP_TRY(exec_body(r, &macro->node->body, frame, &jump));
    return chat_end_capture(r, out, first);
}

/* loop(x) of a recursive loop. */
static int call_loop(struct chat_run *r, struct chat_val *out, const struct chat_loop *loop,
                     const struct chat_args *args)
{
    size_t first;

    if (!loop->node)
        return chat_fail(r, "the loop must be marked 'recursive' to be called");
    if (args->nelem != 1 || args->nkeywords)
        return chat_fail(r, "loop() takes one argument");
    first = chat_begin_capture(r);
    FSDP_TRY(run_loop(r, loop->node, (struct chat_frame *)(uintptr_t)loop->frame, args->at[0],
                      loop->depth0 + 1));
    return chat_end_capture(r, out, first);
}

int chat_exec_call(struct chat_run *r, struct chat_val *out, const struct chat_val *callee,
                   const struct chat_args *args)
{
    const int line = r->line;
    int rc;

    if (callee->kind == CHAT_UNDEF)
        return chat_undef_fail(r, callee);
    if (callee->kind == CHAT_NATIVE)
        return chat_builtin_call(r, out, callee->native->builtin, &callee->native->self, args);
    if (callee->kind != CHAT_MACRO && callee->kind != CHAT_LOOP)
        return chat_fail(r, "'%s' object is not callable", chat_type_name(callee));
    FSDP_TRY(chat_enter(r));
    rc = callee->kind == CHAT_MACRO ? call_macro(r, out, callee->macro, args)
                                    : call_loop(r, out, callee->loop, args);
    chat_leave(r);
    if (!rc)
        r->line = line;
    return rc;
}

static int new_macro(struct chat_run *r, struct chat_val *out, const struct chat_node *node,
                     struct chat_frame *frame)
{
    struct chat_macro *macro;

    FSDP_TRY(chat_new(r, &macro, 1, sizeof *macro));
    *macro = (struct chat_macro){node->macro, frame};
    *out = (struct chat_val){.kind = CHAT_MACRO, .macro = macro};
    return FSDP_OK;
}

static int exec_macro(struct chat_run *r, const struct chat_node *node, struct chat_frame *frame,
                      enum jump *jump)
{
    struct chat_val macro;

    (void)jump;
    FSDP_TRY(new_macro(r, &macro, node, frame));
    return chat_set_var(r, frame, node->symbol, &macro);
}

static int exec_call_block(struct chat_run *r, const struct chat_node *node,
                           struct chat_frame *frame, enum jump *jump)
{
    static const struct chat_str name = {.at = "caller", .nbytes = 6, .nchars = 6};
    struct chat_val callee, caller, v;
    struct chat_named *keywords;
    struct chat_args args;

    (void)jump;
    FSDP_TRY(chat_eval(r, &callee, node->a->a, frame));
    FSDP_TRY(chat_eval_args(r, &args, node->a->call, frame));
    FSDP_TRY(new_macro(r, &caller, node, frame));
    FSDP_TRY(chat_new(r, &keywords, args.nkeywords + 1, sizeof *keywords));
    if (args.nkeywords)
        memcpy(keywords, args.keywords, args.nkeywords * sizeof *keywords);
    keywords[args.nkeywords++] = (struct chat_named){&name, caller};
    args.keywords = keywords;
    FSDP_TRY(chat_exec_call(r, &v, &callee, &args));
    return chat_write_value(r, &v);
}

/* ---- other blocks --------------------------------------------------------------------------- */

static int exec_filter(struct chat_run *r, const struct chat_node *node, struct chat_frame *frame,
                       enum jump *jump)
{
    struct chat_val v;

    FSDP_TRY(capture_body(r, &v, &node->list, frame, jump));
    if (*jump != RUN_ON)
        return FSDP_OK;
    FSDP_TRY(chat_eval_filter(r, &v, node->b, &v, frame));
    return chat_write_value(r, &v);
}

static int exec_with(struct chat_run *r, const struct chat_node *node, struct chat_frame *parent,
                     enum jump *jump)
{
    struct chat_frame *frame;
    struct chat_val v;

    FSDP_TRY(new_frame(r, &frame, parent));
    for (size_t i = 0; i < node->other.nelem; i += 2) {
        FSDP_TRY(chat_eval(r, &v, node->other.at[i + 1], parent));
        FSDP_TRY(assign_value(r, node->other.at[i], frame, &v));
    }
    return exec_body(r, &node->list, frame, jump);
}

/* A block sees the outermost scope, and where it stands only if it is scoped. */
static int exec_block(struct chat_run *r, const struct chat_node *node, struct chat_frame *parent,
                      enum jump *jump)
{
    struct chat_frame *frame;

    FSDP_TRY(new_frame(r, &frame, node->flag ? parent : NULL));
    return exec_body(r, &node->list, frame, jump);
}

static int exec_generation(struct chat_run *r, const struct chat_node *node,
                           struct chat_frame *parent, enum jump *jump)
{
    struct chat_frame *frame;
    enum jump inner = RUN_ON;
    size_t begin;

    (void)jump;
    FSDP_TRY(chat_write(r, "", 0));
    begin = chat_begin_capture(r);
    FSDP_TRY(new_frame(r, &frame, parent));
    FSDP_TRY(exec_body(r, &node->list, frame, &inner));
    return chat_end_span(r, begin);
}

static int exec_data(struct chat_run *r, const struct chat_node *node, struct chat_frame *frame,
                     enum jump *jump)
{
    (void)frame;
    (void)jump;
    return chat_write(r, node->value.s->at, node->value.s->nbytes);
}

static int exec_print(struct chat_run *r, const struct chat_node *node, struct chat_frame *frame,
                      enum jump *jump)
{
    struct chat_val v;

    (void)jump;
    for (size_t i = 0; i < node->list.nelem; i++) {
        FSDP_TRY(chat_eval(r, &v, node->list.at[i], frame));
        FSDP_TRY(chat_write_value(r, &v));
    }
    return FSDP_OK;
}

static int exec_body(struct chat_run *r, const struct chat_body *body, struct chat_frame *frame,
                     enum jump *jump)
{
    static int (*const execs[CHAT_NNODES])(struct chat_run *, const struct chat_node *,
                                           struct chat_frame *, enum jump *) = {
        [CHAT_S_DATA] = exec_data,
        [CHAT_S_PRINT] = exec_print,
        [CHAT_S_SET] = exec_set,
        [CHAT_S_SET_BLOCK] = exec_set_block,
        [CHAT_S_FOR] = exec_for,
        [CHAT_S_IF] = exec_if,
        [CHAT_S_MACRO] = exec_macro,
        [CHAT_S_CALL] = exec_call_block,
        [CHAT_S_FILTER] = exec_filter,
        [CHAT_S_WITH] = exec_with,
        [CHAT_S_BREAK] = exec_jump,
        [CHAT_S_CONTINUE] = exec_jump,
        [CHAT_S_GENERATION] = exec_generation,
        [CHAT_S_BLOCK] = exec_block,
    };

    *jump = RUN_ON;
    FSDP_TRY(chat_enter(r));
    for (size_t i = 0; i < body->nelem && *jump == RUN_ON; i++) {
        r->line = body->at[i]->line;
        FSDP_TRY(chat_step(r, 1));
        FSDP_TRY(execs[body->at[i]->op](r, body->at[i], frame, jump));
    }
    chat_leave(r);
    return FSDP_OK;
}

int chat_exec(struct chat_run *r, const struct chat_tree *tree)
{
    enum jump jump = RUN_ON;

    return exec_body(r, &tree->body, NULL, &jump);
}
