/* SPDX-License-Identifier: Apache-2.0 */
#include "text/chat/builtin/attribute.h"
#include "chat.h"
#include "exec.h"
#include "text/chat/filter/filters.h"
#include "text/chat/builtin/functions.h"
#include "text/chat/value/input.h"
#include "out.h"
#include "text/chat/syntax/parser.h"
#include "template.h"

static const struct chat_hooks hooks = {
    .call = chat_exec_call,
    .attribute = chat_attribute,
    .item = chat_item,
    .filter = chat_filter_find,
    .test = chat_test_find,
};

/* ---- compiling ------------------------------------------------------------------------------ */

static int check_utf8(struct chat_run *r, const char *source, size_t nbytes)
{
    const char *at = source, *const end = source + nbytes;
    uint32_t code;

    for (int n; at < end; at += n) {
        r->line += *at == '\n';
        if (!(n = fsdp_utf8_decode(&code, at, end)))
            return chat_fail(r, "the template is not valid UTF-8");
    }
    return FSDP_OK;
}

static int compile(struct chat_template *t, const char *source, size_t nbytes, const char *name,
                   struct fsdp_err *err)
{
    enum { MAX_SOURCE_NBYTES = 16 << 20 };
    int rc;

    if (!(t->name = fsdp_strdup(name, err)))
        return FSDP_ENOMEM;
    t->run = (struct chat_run){.name = t->name, .line = 1, .err = err, .hooks = &hooks};
    if (nbytes > MAX_SOURCE_NBYTES)
        return chat_fail(&t->run, "the template has more than %d MiB", MAX_SOURCE_NBYTES >> 20);
    FSDP_TRY(check_utf8(&t->run, source, nbytes));
    rc = chat_parse(&t->run, &t->tree, source, nbytes);
    t->run.err = NULL;
    return rc;
}

int chat_template_create(struct chat_template **out, const char *source, size_t nbytes,
                         const char *name, struct fsdp_err *err)
{
    struct chat_template *t = fsdp_alloc(1, sizeof *t, "chat template", err);
    int rc;

    if (!t)
        return FSDP_ENOMEM;
    if ((rc = compile(t, source, nbytes, name, err))) {
        chat_template_destroy(t);
        return rc;
    }
    *out = t;
    return FSDP_OK;
}

void chat_template_destroy(struct chat_template *t)
{
    if (!t)
        return;
    chat_template_destroy(t->with_tools);
    chat_run_free(&t->run);
    json_decref(t->tokens);
    fsdp_free(t->name);
    fsdp_free(t);
}

const char *chat_template_name(const struct chat_template *t)
{
    return t->name;
}

/* ---- variables ------------------------------------------------------------------------------ */

bool chat_template_names(const struct chat_template *t, const char *name)
{
    for (size_t i = 0; i < t->tree->nnames; i++)
        if (chat_str_is(t->tree->names[i], name))
            return true;
    return t->with_tools && chat_template_names(t->with_tools, name);
}

/* Sets a variable that the template names, else nothing. */
static void set_root(struct chat_run *r, const struct chat_tree *tree, const char *name,
                     const struct chat_val *v)
{
    for (size_t i = 0; i < tree->nnames; i++)
        if (chat_str_is(tree->names[i], name))
            r->root[i] = *v;
}

static int set_members(struct chat_run *r, const struct chat_tree *tree, const json_t *json)
{
    struct chat_val v;

    for (void *it = json_object_iter((json_t *)(uintptr_t)json); it;
         it = json_object_iter_next((json_t *)(uintptr_t)json, it)) {
        FSDP_TRY(chat_from_json(r, &v, json_object_iter_value(it)));
        set_root(r, tree, json_object_iter_key(it), &v);
    }
    return FSDP_OK;
}

static int set_functions(struct chat_run *r, const struct chat_tree *tree)
{
    for (size_t i = 0; i < tree->nnames; i++) {
        const struct chat_builtin *function = chat_function_find(tree->names[i]);
        if (function)
            FSDP_TRY(chat_native_new(r, &r->root[i], function, NULL));
    }
    return FSDP_OK;
}

static int set_variables(struct chat_run *r, const struct chat_template *t,
                         const struct chat_input *in)
{
    const struct chat_val prompt = chat_bool(in->add_generation_prompt), none = chat_none();
    struct chat_val v;

    FSDP_TRY(chat_new(r, &r->root, t->tree->nnames, sizeof *r->root));
    FSDP_TRY(set_functions(r, t->tree));
    FSDP_TRY(chat_messages(r, &v, in->messages));
    set_root(r, t->tree, "messages", &v);
    set_root(r, t->tree, "tools", &none);
    set_root(r, t->tree, "documents", &none);
    set_root(r, t->tree, "add_generation_prompt", &prompt);
    if (in->tools && !json_is_null(in->tools)) {
        FSDP_TRY(chat_from_json(r, &v, in->tools));
        set_root(r, t->tree, "tools", &v);
    }
    if (t->tokens)
        FSDP_TRY(set_members(r, t->tree, t->tokens));
    return in->extra ? set_members(r, t->tree, in->extra) : FSDP_OK;
}

/* ---- rendering ------------------------------------------------------------------------------ */

/* Spans are counted in characters of a text that was not complete yet: they end where it ends. */
static int place_spans(struct chat_text *text, const struct chat_out *out, struct fsdp_err *err)
{
    const struct chat_str s = {text->at, text->nbytes, chat_count_chars(text->at, text->nbytes), 0};

    if (!(text->spans = fsdp_alloc(out->nspans, sizeof *text->spans, "generated spans", err)))
        return FSDP_ENOMEM;
    for (size_t i = 0; i < out->nspans; i++) {
        text->spans[i].first = chat_str_offset(&s, out->spans[i].first);
        text->spans[i].end = chat_str_offset(&s, out->spans[i].end);
    }
    text->nspans = out->nspans;
    return FSDP_OK;
}

static int take_text(struct chat_text *text, struct chat_out *out, const struct chat_tree *tree,
                     struct fsdp_err *err)
{
    *text = (struct chat_text){.nbytes = out->nbytes, .marks_generation = tree->marks_generation};
    if (!(text->at = fsdp_alloc_unset(out->nbytes + 1, 1, "rendered chat", err)))
        return FSDP_ENOMEM;
    if (out->nbytes)
        memcpy(text->at, out->at, out->nbytes);
    text->at[out->nbytes] = 0;
    return place_spans(text, out, err);
}

int chat_render(struct chat_text *text, const struct chat_template *t, const struct chat_input *in,
                struct fsdp_err *err)
{
    struct chat_out out = {0};
    struct chat_run r = {.line = 1, .err = err, .hooks = &hooks, .out = &out, .date = in->date};
    int rc;

    if (t->with_tools && in->tools && !json_is_null(in->tools))
        t = t->with_tools;
    r.name = t->name;
    *text = (struct chat_text){0};
    FSDP_TRY_GOTO(set_variables(&r, t, in), out);
    FSDP_TRY_GOTO(chat_exec(&r, t->tree), out);
    rc = take_text(text, &out, t->tree, err);
out:
    if (rc)
        chat_text_free(text);
    chat_run_free(&r);
    fsdp_free(out.at);
    fsdp_free(out.spans);
    return rc;
}

void chat_text_free(struct chat_text *text)
{
    fsdp_free(text->at);
    fsdp_free(text->spans);
    *text = (struct chat_text){0};
}
