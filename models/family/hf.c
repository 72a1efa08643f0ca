/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "hf.h"
#include "model.h"

struct hf_config {
    char *path;
    json_t *root, *read; /* read: an object whose keys are those of root that were asked for */
};

enum { MAX_NBYTES = 16 << 20 }; /* of a config.json */

int hf_config_open(struct hf_config **out, const char *path, struct fsdp_err *err)
{
    json_error_t where;
    int rc = FSDP_ENOMEM;
    char *text = NULL;
    size_t nbytes;
    struct hf_config *config = fsdp_alloc(1, sizeof *config, "model configuration", err);

    if (!config || !(config->path = fsdp_strdup(path, err)))
        goto out;
    if (!(config->read = json_object())) {
        fsdp_err_set(err, rc, "out of memory for the keys of %s", path);
        goto out;
    }
    FSDP_TRY_GOTO(fsdp_file_read(&text, &nbytes, path, MAX_NBYTES, err), out);
    config->root = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, &where);
    if (!config->root) {
        rc = fsdp_err_set(err, FSDP_EINVAL, "%s:%d: not valid JSON: %s", path, where.line,
                          where.text);
        goto out;
    }
    if (!json_is_object(config->root)) {
        rc = fsdp_err_set(err, FSDP_EINVAL, "%s: not a JSON object", path);
        goto out;
    }
    *out = config;
    config = NULL;
    rc = FSDP_OK;
out:
    fsdp_free(text);
    hf_config_close(config);
    return rc;
}

void hf_config_close(struct hf_config *config)
{
    if (config) {
        json_decref(config->root);
        json_decref(config->read);
        fsdp_free(config->path);
        fsdp_free(config);
    }
}

int hf_refuse(const struct hf_config *config, int status, struct fsdp_err *err, const char *key,
              const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return fsdp_err_set(err, status, "%s: %s %s", config->path, key, text);
}

/* NULL where any part of the path is missing or null, or its parent is not an object. */
static const json_t *find_value(const struct hf_config *config, const char *key)
{
    const json_t *at = config->root;
    while (*key) {
        char part[64];
        size_t nbytes = strcspn(key, ".");
        if (nbytes >= sizeof part)
            return NULL;
        memcpy(part, key, nbytes);
        part[nbytes] = 0;
        if (at == config->root)
            json_object_set_new(config->read, part, json_true());
        at = json_object_get(at, part);
        key += nbytes + (key[nbytes] == '.');
    }
    return json_is_null(at) ? NULL : at;
}

bool hf_has(const struct hf_config *config, const char *key)
{
    return find_value(config, key) != NULL;
}

bool hf_is_null(const struct hf_config *config, const char *key)
{
    return json_is_null(json_object_get(config->root, key));
}

int hf_default(const struct hf_config *config, const char *key, const char *other, const char *json,
               struct fsdp_err *err)
{
    json_t *value;

    if (hf_has(config, key) || hf_has(config, other))
        return FSDP_OK;
    if (!(value = json_loads(json, 0, NULL)) || json_object_set_new(config->root, key, value))
        return fsdp_err_set(err, FSDP_ENOMEM, "out of memory for the keys of %s", config->path);
    return FSDP_OK;
}

int hf_enter(struct hf_config *config, const char *section, const char *const *outer,
             const char *defaults, struct fsdp_err *err)
{
    json_t *inner = json_object_get(config->root, section), *added;
    char *path;
    int failed = 0;

    if (!json_is_object(inner))
        return hf_refuse(config, FSDP_EINVAL, err, section, "is %s, not an object",
                         inner ? "a value" : "missing");
    for (; *outer; outer++)
        if (json_object_get(config->root, *outer))
            failed |= json_object_set(inner, *outer, json_object_get(config->root, *outer));
    if (!(added = json_loads(defaults, 0, NULL)) || json_object_update_missing(inner, added))
        failed = 1;
    json_decref(added);
    if (failed)
        return fsdp_err_set(err, FSDP_ENOMEM, "out of memory for the keys of %s", config->path);
    if (!(path = fsdp_sprintf(err, "%s: %s", config->path, section)))
        return FSDP_ENOMEM;
    fsdp_free(config->path);
    config->path = path;
    json_incref(inner);
    json_decref(config->root);
    config->root = inner;
    return FSDP_OK;
}

/* *out is NULL where the key is absent and may be. */
static int get(const struct hf_config *config, const char *key, bool required, const json_t **out,
               struct fsdp_err *err)
{
    *out = find_value(config, key);
    if (!*out && required)
        return hf_refuse(config, FSDP_EINVAL, err, key, "is missing");
    return FSDP_OK;
}

static int int_of(const struct hf_config *config, const char *key, const json_t *value, int least,
                  int most, int *out, struct fsdp_err *err)
{
    if (!json_is_integer(value))
        return hf_refuse(config, FSDP_EINVAL, err, key, "must be an integer");
    json_int_t number = json_integer_value(value);
    if (number < least || number > most)
        return hf_refuse(config, FSDP_EINVAL, err, key, "is %lld, allowed are %d to %d",
                         (long long)number, least, most);
    *out = (int)number;
    return FSDP_OK;
}

int hf_int(const struct hf_config *config, const char *key, bool required, int least, int most,
           int *out, struct fsdp_err *err)
{
    const json_t *value;
    FSDP_TRY(get(config, key, required, &value, err));
    return value ? int_of(config, key, value, least, most, out, err) : FSDP_OK;
}

int hf_ints(const struct hf_config *config, const char *key, int least, int most, int *out,
            int max_count, int *count, struct fsdp_err *err)
{
    const json_t *value;
    FSDP_TRY(get(config, key, false, &value, err));
    *count = 0;
    if (!value)
        return FSDP_OK;
    if (!json_is_array(value)) {
        FSDP_TRY(int_of(config, key, value, least, most, out, err));
        *count = 1;
        return FSDP_OK;
    }
    if (json_array_size(value) > (size_t)max_count)
        return hf_refuse(config, FSDP_EINVAL, err, key, "has more than %d values", max_count);
    for (size_t i = 0; i < json_array_size(value); i++)
        FSDP_TRY(int_of(config, key, json_array_get(value, i), least, most, &out[i], err));
    *count = (int)json_array_size(value);
    return FSDP_OK;
}

int hf_float(const struct hf_config *config, const char *key, bool required, double least,
             double most, double *out, struct fsdp_err *err)
{
    const json_t *value;
    FSDP_TRY(get(config, key, required, &value, err));
    if (!value)
        return FSDP_OK;
    if (!json_is_number(value))
        return hf_refuse(config, FSDP_EINVAL, err, key, "must be a number");
    double number = json_number_value(value);
    if (!(number >= least && number <= most))
        return hf_refuse(config, FSDP_EINVAL, err, key, "is %g, allowed are %g to %g", number,
                         least, most);
    *out = number;
    return FSDP_OK;
}

int hf_bool(const struct hf_config *config, const char *key, bool *out, struct fsdp_err *err)
{
    const json_t *value;
    FSDP_TRY(get(config, key, false, &value, err));
    if (!value)
        return FSDP_OK;
    if (!json_is_boolean(value))
        return hf_refuse(config, FSDP_EINVAL, err, key, "must be true or false");
    *out = json_is_true(value);
    return FSDP_OK;
}

int hf_text(const struct hf_config *config, const char *key, bool required, const char **out,
            struct fsdp_err *err)
{
    const json_t *value;
    FSDP_TRY(get(config, key, required, &value, err));
    if (!value)
        return FSDP_OK;
    if (!json_is_string(value))
        return hf_refuse(config, FSDP_EINVAL, err, key, "must be a string");
    *out = json_string_value(value);
    return FSDP_OK;
}

/* A list of this many values; NULL where the key is absent. */
static int get_list(const struct hf_config *config, const char *key, int count, const json_t **out,
                    struct fsdp_err *err)
{
    FSDP_TRY(get(config, key, false, out, err));
    if (*out && (!json_is_array(*out) || json_array_size(*out) != (size_t)count))
        return hf_refuse(config, FSDP_EINVAL, err, key, "must be a list of %d values", count);
    return FSDP_OK;
}

int hf_floats(const struct hf_config *config, const char *key, double least, double most,
              double *out, int count, struct fsdp_err *err)
{
    const json_t *list;
    FSDP_TRY(get_list(config, key, count, &list, err));
    for (int i = 0; list && i < count; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        const double number = json_number_value(value);
        if (!json_is_number(value) || !(number >= least && number <= most))
            return hf_refuse(config, FSDP_EINVAL, err, key,
                             "has a value that is not a number of %g to %g", least, most);
        out[i] = number;
    }
    return FSDP_OK;
}

int hf_text_at(const struct hf_config *config, const char *key, int i, int count, const char **out,
               struct fsdp_err *err)
{
    const json_t *list;
    FSDP_TRY(get_list(config, key, count, &list, err));
    if (!list)
        return FSDP_OK;
    if (!json_is_string(json_array_get(list, (size_t)i)))
        return hf_refuse(config, FSDP_EINVAL, err, key, "must be a list of strings");
    *out = json_string_value(json_array_get(list, (size_t)i));
    return FSDP_OK;
}

/* null, false, 0, "", [], {} */
static bool is_nothing(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

const char *hf_next_unread(const struct hf_config *config, size_t *place)
{
    void *at = json_object_iter(config->root);
    for (size_t i = 0; at; i++, at = json_object_iter_next(config->root, at)) {
        if (i < *place || json_object_get(config->read, json_object_iter_key(at)) ||
            is_nothing(json_object_iter_value(at)))
            continue;
        *place = i + 1;
        return json_object_iter_key(at);
    }
    return NULL;
}

int hf_object(const struct hf_config *config, const char *key, bool *present, struct fsdp_err *err)
{
    const json_t *value = find_value(config, key);
    *present = value != NULL;
    if (value && !json_is_object(value))
        return hf_refuse(config, FSDP_EINVAL, err, key, "must be an object");
    return FSDP_OK;
}
