/* SPDX-License-Identifier: Apache-2.0 */
/* The template of a model folder, and the special tokens that it sees. */
#include <string.h>

#include "template.h"

enum { MAX_CONFIG_NBYTES = 64 << 20, MAX_TEMPLATE_NBYTES = 16 << 20 };

/* A template of the file; *out stays NULL where there is no such file. */
static int open_file(struct chat_template **out, const char *path, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    char *source = NULL;
    size_t nbytes;
    int rc = fsdp_file_read(&source, &nbytes, path, MAX_TEMPLATE_NBYTES, &why);

    if (rc == FSDP_ENOTFOUND)
        return FSDP_OK;
    if (rc)
        return fsdp_err_pass(err, rc, &why);
    rc = chat_template_create(out, source, nbytes, path, err);
    fsdp_free(source);
    return rc;
}

static int read_config(json_t **out, const char *path, struct fsdp_err *err)
{
    struct fsdp_err why = FSDP_ERR_INIT;
    char *text = NULL;
    size_t nbytes;
    json_error_t reason;
    int rc = fsdp_file_read(&text, &nbytes, path, MAX_CONFIG_NBYTES, &why);

    if (rc == FSDP_ENOTFOUND)
        return FSDP_OK;
    if (rc)
        return fsdp_err_pass(err, rc, &why);
    /* model_max_length is often 10^30. */
    *out = json_loadb(text, nbytes, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &reason);
    fsdp_free(text);
    if (!json_is_object(*out))
        return fsdp_err_set(err, FSDP_EINVAL, "%s:%d: no JSON object: %s", path,
                            *out ? 1 : reason.line, *out ? "another value" : reason.text);
    return FSDP_OK;
}

/* ---- special tokens ------------------------------------------------------------------------- */

/* A token is a text, or an object that has it as content. */
static const json_t *token_text(const json_t *value)
{
    if (json_is_object(value))
        value = json_object_get(value, "content");
    return json_is_string(value) ? value : NULL;
}

static bool is_token_name(const char *name)
{
    const size_t nbytes = strlen(name);
    return nbytes > 6 && !strcmp(name + nbytes - 6, "_token");
}

/* bos_token and its kin, and those of a model of its own, such as image_token; the latter may also
 * stand under extra_special_tokens, with any name. */
static int add_tokens(json_t *out, const json_t *config, bool any_name)
{
    const char *name;
    json_t *value;

    if (!config)
        return FSDP_OK;
    json_object_foreach((json_t *)(uintptr_t)config, name, value)
    {
        const json_t *text = any_name || is_token_name(name) ? token_text(value) : NULL;
        if (text && json_object_set(out, name, (json_t *)(uintptr_t)text))
            return FSDP_ENOMEM;
    }
    return FSDP_OK;
}

static int read_tokens(json_t **out, const char *folder, const json_t *config, struct fsdp_err *err)
{
    const json_t *extra = json_object_get(config, "extra_special_tokens");
    json_t *map = NULL;
    char *path = NULL;
    int rc = FSDP_ENOMEM;

    if (!(*out = json_object()) ||
        !(path = fsdp_sprintf(err, "%s/special_tokens_map.json", folder)))
        goto out;
    FSDP_TRY_GOTO(add_tokens(*out, config, false), out);
    if (json_is_object(extra))
        FSDP_TRY_GOTO(add_tokens(*out, extra, true), out);
    /* Older folders have them there alone. */
    if (!json_object_get(config, "added_tokens_decoder")) {
        FSDP_TRY_GOTO(read_config(&map, path, err), out);
        rc = add_tokens(*out, map, false);
    }
out:
    if (rc == FSDP_ENOMEM)
        fsdp_err_set(err, rc, "%s: out of memory for its special tokens", folder);
    json_decref(map);
    fsdp_free(path);
    return rc;
}

/* ---- templates ------------------------------------------------------------------------------ */

static int open_text(struct chat_template **out, const json_t *text, const char *path,
                     struct fsdp_err *err)
{
    if (!json_is_string(text))
        return fsdp_err_set(err, FSDP_EINVAL, "%s: a chat_template is no text", path);
    return chat_template_create(out, json_string_value(text), json_string_length(text), path, err);
}

/* The list of named templates: tool_use is rendered where there are tools, else default. */
static int open_list(struct chat_template **out, const json_t *list, const char *path,
                     struct fsdp_err *err)
{
    struct chat_template *tools = NULL;
    int rc = FSDP_OK;

    for (size_t i = 0; !rc && i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && !strcmp(name, "default") && !*out)
            rc = open_text(out, json_object_get(one, "template"), path, err);
        else if (name && !strcmp(name, "tool_use") && !tools)
            rc = open_text(&tools, json_object_get(one, "template"), path, err);
    }
    if (!rc && !*out)
        rc = fsdp_err_set(err, FSDP_EINVAL, "%s: chat_template has no template named 'default'",
                          path);
    if (*out)
        (*out)->with_tools = tools;
    else
        chat_template_destroy(tools);
    return rc;
}

static int open_of_config(struct chat_template **out, const json_t *config, const char *path,
                          struct fsdp_err *err)
{
    const json_t *value = json_object_get(config, "chat_template");

    if (!value || json_is_null(value))
        return FSDP_OK;
    return json_is_array(value) ? open_list(out, value, path, err)
                                : open_text(out, value, path, err);
}

/* chat_template.jinja, with additional_chat_templates/tool_use.jinja next to it. */
static int open_of_files(struct chat_template **out, const char *folder, struct fsdp_err *err)
{
    char *path = fsdp_sprintf(err, "%s/chat_template.jinja", folder),
         *tools = fsdp_sprintf(err, "%s/additional_chat_templates/tool_use.jinja", folder);
    int rc = path && tools ? open_file(out, path, err) : FSDP_ENOMEM;

    if (!rc && *out)
        rc = open_file(&(*out)->with_tools, tools, err);
    fsdp_free(path);
    fsdp_free(tools);
    return rc;
}

int chat_template_open(struct chat_template **out, const char *folder, struct fsdp_err *err)
{
    struct chat_template *t = NULL;
    json_t *config = NULL, *tokens = NULL;
    char *path = fsdp_sprintf(err, "%s/tokenizer_config.json", folder);
    int rc = path ? FSDP_OK : FSDP_ENOMEM;

    if (!rc)
        rc = open_of_files(&t, folder, err);
    if (!rc)
        rc = read_config(&config, path, err);
    if (!rc && !t)
        rc = open_of_config(&t, config, path, err);
    if (!rc && t)
        rc = read_tokens(&tokens, folder, config, err);
    if (!rc && t) {
        t->tokens = tokens;
        if (t->with_tools)
            t->with_tools->tokens = json_incref(tokens);
        tokens = NULL;
    }
    if (rc) {
        chat_template_destroy(t);
        t = NULL;
    }
    json_decref(tokens);
    json_decref(config);
    fsdp_free(path);
    *out = t;
    return rc;
}

/* ---- its hash -------------------------------------------------------------------------------- */

int chat_template_hash(uint64_t *out, const char *folder, struct fsdp_err *err)
{
    static const char *const names[] = {"chat_template.jinja", "tokenizer_config.json",
                                        "special_tokens_map.json"};
    uint64_t hash = FSDP_HASH_SEED;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct fsdp_err why = FSDP_ERR_INIT;
        char *path = fsdp_sprintf(err, "%s/%s", folder, names[i]), *text;
        size_t nbytes;
        if (!path)
            return FSDP_ENOMEM;
        const int rc = fsdp_file_read(&text, &nbytes, path, MAX_CONFIG_NBYTES, &why);
        fsdp_free(path);
        if (rc == FSDP_ENOTFOUND)
            continue;
        if (rc)
            return fsdp_err_pass(err, rc, &why);
        hash = fsdp_hash(hash, text, nbytes);
        fsdp_free(text);
    }
    *out = hash;
    return FSDP_OK;
}
