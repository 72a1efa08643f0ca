/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <string.h>

#include "chat.h"

/* ---- the template ---------------------------------------------------------------------------- */

static int find_template(struct generate_chat *chat, struct generate_session *s, const char *folder,
                         struct fsdp_err *err)
{
    char *own = NULL;

    if (folder)
        FSDP_TRY(chat_template_open(&chat->template, folder, err));
    if (chat->template)
        return FSDP_OK;
    FSDP_TRY(generate_session_template(&own, s, err));
    const int rc = own ? chat_template_open(&chat->template, own, err) : FSDP_OK;
    fsdp_free(own);
    if (rc || chat->template)
        return rc;
    return fsdp_err_set(err, FSDP_ENOTFOUND,
                        "%s: no chat template: put the model's chat_template.jinja, or a "
                        "tokenizer_config.json with chat_template, next to its config.json",
                        s->path);
}

/* A variable that the template does not use has no effect; it may be misspelled. */
static void warn_of_unused(const struct generate_chat *chat)
{
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)chat->variables, name, value)
    {
        if (!chat_template_names(chat->template, name))
            fsdp_log(FSDP_LOG_WARN, "the chat template has no variable '%s'", name);
    }
}

int generate_chat_open(struct generate_chat *chat, struct generate_session *s, const char *folder,
                       struct fsdp_err *err)
{
    FSDP_TRY(find_template(chat, s, folder, err));
    warn_of_unused(chat);
    return FSDP_OK;
}

void generate_chat_close(struct generate_chat *chat)
{
    chat_template_destroy(chat->template);
    *chat = (struct generate_chat){0};
}

/* ---- messages to tokens ---------------------------------------------------------------------- */

json_t *generate_chat_message(const char *role, const char *text, size_t nbytes)
{
    return json_pack("{s:s, s:o}", "role", role, "content", json_stringn(text, nbytes));
}

static bool has_system(const json_t *messages)
{
    const char *role = json_string_value(json_object_get(json_array_get(messages, 0), "role"));
    return role && (!strcmp(role, "system") || !strcmp(role, "developer"));
}

/* *out: a new list, with the system message first. */
static int add_system(json_t **out, const struct generate_chat *chat, const json_t *messages,
                      struct fsdp_err *err)
{
    json_t *system = generate_chat_message("system", chat->system, strlen(chat->system));

    if (!system)
        return fsdp_err_set(err, FSDP_EINVAL, "the system message is not valid UTF-8");
    *out = json_array();
    if (json_array_append_new(*out, system) ||
        json_array_extend(*out, (json_t *)(uintptr_t)messages)) {
        json_decref(*out);
        return fsdp_err_set(err, FSDP_ENOMEM, "no memory for a chat's messages");
    }
    return FSDP_OK;
}

static int encode(int32_t **out, int *ntokens, const struct generate_chat *chat,
                  const json_t *messages, const json_t *tools, struct fsdp_err *err)
{
    const struct chat_input in = {.messages = messages,
                                  .tools =
                                      tools ? tools : json_object_get(chat->variables, "tools"),
                                  .extra = chat->variables,
                                  .add_generation_prompt = true,
                                  .date = chat->date};
    struct chat_text text;

    FSDP_TRY(chat_render(&text, chat->template, &in, err));
    const int rc =
        chat->words->ops->encode(out, ntokens, chat->words, text.at, text.nbytes, false, err);
    chat_text_free(&text);
    return rc;
}

int generate_chat_encode(int32_t **out, int *ntokens, const struct generate_chat *chat,
                         const json_t *messages, const json_t *tools, struct fsdp_err *err)
{
    json_t *with_system = NULL;

    if (!chat->system || has_system(messages))
        return encode(out, ntokens, chat, messages, tools, err);
    FSDP_TRY(add_system(&with_system, chat, messages, err));
    const int rc = encode(out, ntokens, chat, with_system, tools, err);
    json_decref(with_system);
    return rc;
}

int generate_chat_encode_prompt(int32_t **out, int *ntokens, const struct generate_chat *chat,
                                const char *text, size_t nbytes, struct fsdp_err *err)
{
    json_t *message = generate_chat_message("user", text, nbytes), *messages = json_array();
    int rc = FSDP_OK;

    if (!message)
        rc = fsdp_err_set(err, FSDP_EINVAL, "the prompt is not valid UTF-8");
    else if (json_array_append(messages, message))
        rc = fsdp_err_set(err, FSDP_ENOMEM, "no memory for a chat's messages");
    if (rc == FSDP_OK)
        rc = generate_chat_encode(out, ntokens, chat, messages, NULL, err);
    json_decref(message);
    json_decref(messages);
    return rc;
}

/* ---- variables ------------------------------------------------------------------------------- */

static bool is_name(const char *text, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++)
        if (!isalpha((unsigned char)text[i]) && text[i] != '_' &&
            (i == 0 || !isdigit((unsigned char)text[i])))
            return false;
    return nbytes > 0;
}

/* Is it Python's spelling, or broken JSON? As a text, it would count as true. */
static bool looks_like_json(const char *value)
{
    static const char *const python[] = {"True", "False", "None"};

    for (size_t i = 0; i < sizeof python / sizeof python[0]; i++)
        if (!strcmp(value, python[i]))
            return true;
    return *value == '{' || *value == '[' || *value == '"';
}

int generate_chat_variable(json_t **variables, const char *text, struct fsdp_err *err)
{
    const char *equals = strchr(text, '=');
    const size_t nbytes = equals ? (size_t)(equals - text) : 0;

    if (!is_name(text, nbytes))
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' is not NAME=VALUE, such as level=3", text);
    if (!strncmp(text, "messages=", 9) || !strncmp(text, "add_generation_prompt=", 22))
        return fsdp_err_set(err, FSDP_EINVAL, "'%.*s' is set by the chat itself", (int)nbytes,
                            text);
    json_t *value = json_loads(equals + 1, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (!value && looks_like_json(equals + 1))
        return fsdp_err_set(err, FSDP_EINVAL,
                            "'%s' is no JSON: write true, false, null, or \"a text\"", equals + 1);
    if (!value && !(value = json_string(equals + 1)))
        return fsdp_err_set(err, FSDP_EINVAL, "the value of '%.*s' is not valid UTF-8", (int)nbytes,
                            text);
    if (!*variables)
        *variables = json_object();
    if (json_object_setn_new(*variables, text, nbytes, value))
        return fsdp_err_set(err, FSDP_ENOMEM, "no memory for a variable");
    return FSDP_OK;
}

int generate_chat_date(const char **out, const char *text, struct fsdp_err *err)
{
    if (!chat_date_is_valid(text))
        return fsdp_err_set(err, FSDP_EINVAL, "'%s' is no date, such as 2026-01-31", text);
    *out = text;
    return FSDP_OK;
}
