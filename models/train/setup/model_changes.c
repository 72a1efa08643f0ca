/* SPDX-License-Identifier: Apache-2.0 */
#include "model_changes.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NBYTES = 16 << 20, MOST_TOLD = 8, VALUE_NBYTES = 80 };

static json_t *read_then(const struct ckpt *ckpt)
{
    const char *path = ckpt_extra_path(ckpt, "config.json");
    char *text = NULL;
    size_t nbytes;

    if (!path || ckpt_extra_read(&text, &nbytes, path, MAX_NBYTES, NULL))
        return NULL;
    json_t *json = json_loadb(text, nbytes, 0, NULL);
    fsdp_free(text);
    return json;
}

static json_t *read_now(const char *path)
{
    char *text;
    size_t nbytes;

    if (fsdp_file_read(&text, &nbytes, path, MAX_NBYTES, NULL))
        return NULL;
    json_t *json = json_loadb(text, nbytes, 0, NULL);
    fsdp_free(text);
    return json;
}

/* Has the key no effect on what the model computes from tokens? */
static bool is_idle(const char *key)
{
    static const char *const idle[] = {
        "_name_or_path", "architectures",      "bos_token_id", "dtype",
        "eos_token_id",  "pad_token_id",       "torch_dtype",  "transformers_version",
        "use_cache",     "quantization_config"};

    for (size_t i = 0; i < sizeof idle / sizeof idle[0]; i++)
        if (!strcmp(key, idle[i]))
            return true;
    return false;
}

/* As JSON, cut; "absent" for NULL. */
static const char *value_text(char out[VALUE_NBYTES], const json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS) : NULL;

    snprintf(out, VALUE_NBYTES, "%s", text ? text : "absent");
    free(text);
    return out;
}

/* 5 and 5.0 are one value. */
static bool is_equal(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

/* ntold: of these warnings so far. */
static void tell_key(const char *key, const json_t *then, const json_t *now, const char *path,
                     int *ntold)
{
    char was[VALUE_NBYTES], is[VALUE_NBYTES];

    if (is_idle(key) || is_equal(then, now) || (*ntold)++ >= MOST_TOLD)
        return;
    fsdp_log(FSDP_LOG_WARN, "config.json: '%s' is %s now, and was %s in %s", key,
             value_text(is, now), value_text(was, then), path);
}

void train_tell_model_changes(const struct ckpt *ckpt, const char *config)
{
    json_t *then = read_then(ckpt), *now = then ? read_now(config) : NULL, *value;
    const char *key;
    int ntold = 0;

    if (json_is_object(then) && json_is_object(now)) {
        json_object_foreach(then, key, value)
            tell_key(key, value, json_object_get(now, key), ckpt_path(ckpt), &ntold);
        json_object_foreach(now, key, value) if (!json_object_get(then, key))
            tell_key(key, NULL, value, ckpt_path(ckpt), &ntold);
    }
    if (ntold > MOST_TOLD)
        fsdp_log(FSDP_LOG_WARN, "config.json: %d more keys differ", ntold - MOST_TOLD);
    json_decref(then);
    json_decref(now);
}
