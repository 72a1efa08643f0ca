/* SPDX-License-Identifier: Apache-2.0 */
#include "builtin.h"

const struct chat_builtin *chat_builtin_find(const struct chat_builtin *table,
                                             const struct chat_str *name)
{
    for (; table->name; table++)
        if (chat_str_is(name, table->name))
            return table;
    return NULL;
}

int chat_native_new(struct chat_run *r, struct chat_val *out, const struct chat_builtin *builtin,
                    const struct chat_val *self)
{
    struct chat_native *native;

    FSDP_TRY(chat_new(r, &native, 1, sizeof *native));
    native->builtin = builtin;
    native->self = self ? *self : (struct chat_val){.kind = CHAT_MISSING};
    *out = (struct chat_val){.kind = CHAT_NATIVE, .native = native};
    return FSDP_OK;
}

const struct chat_val *chat_keyword_get(const struct chat_args *args, const char *name)
{
    for (size_t i = 0; i < args->nkeywords; i++)
        if (chat_str_is(args->keywords[i].name, name))
            return &args->keywords[i].value;
    return NULL;
}

/* The place of a parameter, from 1 on; 0: there is none of this name. */
static int find_param(const char *params, const struct chat_str *name)
{
    for (int place = 1; *params; place++) {
        const size_t nbytes = strcspn(params, " ");
        if (nbytes == name->nbytes && !memcmp(params, name->at, nbytes))
            return place;
        params += nbytes + (params[nbytes] == ' ');
    }
    return 0;
}

static int count_params(const char *params)
{
    int nparams = *params != 0;

    for (; *params; params++)
        nparams += *params == ' ';
    return nparams;
}

static int bind_args(struct chat_run *r, struct chat_val *a, const struct chat_builtin *builtin,
                     const struct chat_args *args)
{
    const bool positional = builtin->params[0] == '/';
    const int nparams = count_params(builtin->params);

    if (args->nelem > (size_t)nparams)
        return chat_fail(r, "%s() takes at most %d arguments", builtin->name, nparams);
    for (size_t i = 0; i < args->nelem; i++)
        a[1 + i] = args->at[i];
    for (size_t i = 0; i < args->nkeywords; i++) {
        const struct chat_str *name = args->keywords[i].name;
        const int place = find_param(builtin->params, name);
        if (!place || positional)
            return chat_fail(r, "%s() has no parameter '%.*s'", builtin->name,
                             name->nbytes < 60 ? (int)name->nbytes : 60, name->at);
        if (!chat_is_absent(&a[place]))
            return chat_fail(r, "%s() has two values of '%.*s'", builtin->name,
                             name->nbytes < 60 ? (int)name->nbytes : 60, name->at);
        a[place] = args->keywords[i].value;
    }
    for (int i = 1; i <= builtin->nrequired; i++)
        if (chat_is_absent(&a[i]))
            return chat_fail(r, "%s() misses an argument", builtin->name);
    return FSDP_OK;
}

int chat_builtin_call(struct chat_run *r, struct chat_val *out, const struct chat_builtin *builtin,
                      const struct chat_val *self, const struct chat_args *args)
{
    struct chat_val a[1 + CHAT_MAX_PARAMS] = {0}, result = {0};
    int rc;

    a[0] = *self;
    if (builtin->params)
        FSDP_TRY(bind_args(r, a, builtin, args));
    FSDP_TRY(chat_step(r, 1));
    FSDP_TRY(chat_enter(r));
    rc = builtin->fn(r, &result, a, args);
    chat_leave(r);
    *out = result;
    return rc;
}

int chat_want_str(struct chat_run *r, const struct chat_str **out, const struct chat_val *v,
                  const char *who)
{
    if (v->kind == CHAT_UNDEF)
        return chat_undef_fail(r, v);
    if (v->kind != CHAT_STR)
        return chat_fail(r, "%s needs a str, not %s", who, chat_type_name(v));
    *out = v->s;
    return FSDP_OK;
}

int chat_want_int(struct chat_run *r, chat_int *out, const struct chat_val *v, const char *who)
{
    if (v->kind == CHAT_UNDEF)
        return chat_undef_fail(r, v);
    if (!chat_is_int(v))
        return chat_fail(r, "%s needs an int, not %s", who, chat_type_name(v));
    *out = v->i;
    return FSDP_OK;
}

int chat_want_count(struct chat_run *r, size_t *out, const struct chat_val *v, const char *who)
{
    chat_int i;

    FSDP_TRY(chat_want_int(r, &i, v, who));
    if (i > (chat_int)1 << 40)
        return chat_fail(r, "%s: the number is too large", who);
    *out = i < 0 ? 0 : (size_t)i;
    return FSDP_OK;
}
