/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

static int object_from_json(struct chat_run *r, struct chat_val *out, const json_t *json)
{
    struct chat_val key, value;

    FSDP_TRY(chat_dict_new(r, out, CHAT_DICT, json_object_size(json)));
    for (void *it = json_object_iter((json_t *)(uintptr_t)json); it;
         it = json_object_iter_next((json_t *)(uintptr_t)json, it)) {
        const char *name = json_object_iter_key(it);
        FSDP_TRY(chat_str_copy(r, &key, name, strlen(name)));
        FSDP_TRY(chat_from_json(r, &value, json_object_iter_value(it)));
        FSDP_TRY(chat_dict_set(r, out->dict, &key, &value));
    }
    return FSDP_OK;
}

static int array_from_json(struct chat_run *r, struct chat_val *out, const json_t *json)
{
    struct chat_val item;

    FSDP_TRY(chat_list_new(r, out, CHAT_LIST, json_array_size(json)));
    for (size_t i = 0; i < json_array_size(json); i++) {
        FSDP_TRY(chat_from_json(r, &item, json_array_get(json, i)));
        FSDP_TRY(chat_list_add(r, out->list, &item));
    }
    return FSDP_OK;
}

static int container_from_json(struct chat_run *r, struct chat_val *out, const json_t *json)
{
    int rc;

    FSDP_TRY(chat_enter(r));
    rc = json_is_object(json) ? object_from_json(r, out, json) : array_from_json(r, out, json);
    chat_leave(r);
    return rc;
}

int chat_from_json(struct chat_run *r, struct chat_val *out, const json_t *json)
{
    switch (json_typeof(json)) {
    case JSON_STRING:
        return chat_str_copy(r, out, json_string_value(json), json_string_length(json));
    case JSON_INTEGER:
        *out = chat_integer(json_integer_value(json));
        return FSDP_OK;
    case JSON_REAL:
        *out = chat_float(json_real_value(json));
        return FSDP_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = chat_bool(json_is_true(json));
        return FSDP_OK;
    case JSON_NULL:
        *out = chat_none();
        return FSDP_OK;
    default:
        return container_from_json(r, out, json);
    }
}

/* The reasoning under any of its names; NULL: there is none. */
static const struct chat_val *find_reasoning(const struct chat_dict *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const struct chat_val *v = NULL;

    for (size_t i = 0; !v && i < sizeof names / sizeof *names; i++) {
        v = chat_dict_get_text(message, names[i]);
        v = v && v->kind != CHAT_NONE ? v : NULL;
    }
    return v;
}

static int add_members(struct chat_run *r, struct chat_dict *out, const struct chat_dict *from)
{
    for (size_t i = 0; i < from->nelem; i++)
        if (from->values[i].kind != CHAT_NONE)
            FSDP_TRY(chat_dict_set(r, out, &from->keys[i], &from->values[i]));
    return FSDP_OK;
}

static int read_message(struct chat_run *r, struct chat_val *out, const json_t *json)
{
    const struct chat_val *reasoning;
    struct chat_val message;

    if (!json_is_object(json))
        return chat_fail(r, "a chat message is no object");
    FSDP_TRY(chat_from_json(r, &message, json));
    FSDP_TRY(chat_dict_new(r, out, CHAT_DICT, message.dict->nelem));
    reasoning = find_reasoning(message.dict);
    if (reasoning)
        FSDP_TRY(chat_dict_set_text(r, out->dict, "thinking", reasoning));
    FSDP_TRY(add_members(r, out->dict, message.dict));
    return reasoning ? chat_dict_set_text(r, out->dict, "reasoning_content", reasoning) : FSDP_OK;
}

int chat_messages(struct chat_run *r, struct chat_val *out, const json_t *messages)
{
    struct chat_val message;

    if (!json_is_array(messages) || !json_array_size(messages))
        return chat_fail(r, "the chat has no messages");
    FSDP_TRY(chat_list_new(r, out, CHAT_LIST, json_array_size(messages)));
    for (size_t i = 0; i < json_array_size(messages); i++) {
        FSDP_TRY(read_message(r, &message, json_array_get(messages, i)));
        FSDP_TRY(chat_list_add(r, out->list, &message));
    }
    return FSDP_OK;
}
