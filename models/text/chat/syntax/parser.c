/* SPDX-License-Identifier: Apache-2.0 */
/* What the parsers of expressions and of statements share. */
#include "parser.h"

bool chat_at_op(const struct chat_parser *p, int op)
{
    return p->at->kind == CHAT_T_OP && p->at->op == op;
}

bool chat_at_name(const struct chat_parser *p, const char *name)
{
    return p->at->kind == CHAT_T_NAME && chat_str_is(p->at->value.s, name);
}

void chat_advance(struct chat_parser *p)
{
    if (p->at->kind != CHAT_T_EOF)
        p->at++;
    p->r->line = p->at->line;
}

bool chat_skip_op(struct chat_parser *p, int op)
{
    if (!chat_at_op(p, op))
        return false;
    chat_advance(p);
    return true;
}

bool chat_skip_name(struct chat_parser *p, const char *name)
{
    if (!chat_at_name(p, name))
        return false;
    chat_advance(p);
    return true;
}

int chat_unexpected(struct chat_parser *p, const char *expected)
{
    const struct chat_token *t = p->at;
    char found[80];

    switch (t->kind) {
    case CHAT_T_OP:
        snprintf(found, sizeof found, "'%c%c'", t->op & 0xff, t->op >> 8 ? t->op >> 8 : ' ');
        break;
    case CHAT_T_NAME:
        snprintf(found, sizeof found, "'%.*s'",
                 t->value.s->nbytes < 60 ? (int)t->value.s->nbytes : 60, t->value.s->at);
        break;
    case CHAT_T_STRING:
    case CHAT_T_NUMBER:
        snprintf(found, sizeof found, "a literal");
        break;
    case CHAT_T_EOF:
        snprintf(found, sizeof found, "the end of the template");
        break;
    default:
        snprintf(found, sizeof found, "the end of the tag");
    }
    return chat_fail(p->r, "expected %s, found %s", expected, found);
}

int chat_expect_op(struct chat_parser *p, int op)
{
    char text[8];

    if (chat_skip_op(p, op))
        return FSDP_OK;
    snprintf(text, sizeof text, "'%c'", op);
    return chat_unexpected(p, text);
}

int chat_expect_name(struct chat_parser *p, const char *name)
{
    char text[40];

    if (chat_skip_name(p, name))
        return FSDP_OK;
    snprintf(text, sizeof text, "'%s'", name);
    return chat_unexpected(p, text);
}

int chat_expect_any_name(struct chat_parser *p, const struct chat_str **out)
{
    if (p->at->kind != CHAT_T_NAME)
        return chat_unexpected(p, "a name");
    *out = p->at->value.s;
    chat_advance(p);
    return FSDP_OK;
}

int chat_new_node(struct chat_parser *p, struct chat_node **out, enum chat_op op)
{
    struct chat_node *node;

    FSDP_TRY(chat_new(p->r, &node, 1, sizeof *node));
    node->op = op;
    node->line = p->r->line;
    *out = node;
    return FSDP_OK;
}

/* Doubled at each power of two: a body needs no size of its own. */
int chat_body_add(struct chat_parser *p, struct chat_body *body, struct chat_node *node)
{
    const size_t n = body->nelem;

    if ((n & (n - 1)) == 0 && n != 1) {
        struct chat_node **at;
        FSDP_TRY(chat_new(p->r, &at, n ? 2 * n : 2, sizeof *at));
        if (n)
            memcpy(at, body->at, n * sizeof *at);
        body->at = at;
    }
    body->at[body->nelem++] = node;
    return FSDP_OK;
}

int chat_symbol(struct chat_parser *p, int *out, const struct chat_str *name)
{
    const struct chat_val key = chat_str_val(name);
    const struct chat_val *known = chat_dict_get(p->symbols.dict, &key);
    struct chat_val number;

    if (known) {
        *out = (int)known->i;
        return FSDP_OK;
    }
    if (p->nnames == p->max_names) {
        const size_t max = p->max_names ? 2 * p->max_names : 64;
        const struct chat_str **names;
        FSDP_TRY(chat_new(p->r, &names, max, sizeof *names));
        if (p->nnames)
            memcpy(names, p->names, p->nnames * sizeof *names);
        p->names = names;
        p->max_names = max;
    }
    number = chat_integer((chat_int)p->nnames);
    *out = (int)p->nnames;
    p->names[p->nnames++] = name;
    return chat_dict_set(p->r, p->symbols.dict, &key, &number);
}
