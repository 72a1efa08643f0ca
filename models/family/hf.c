/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "hf.h"
#include "model.h"

struct hf_config {
    char *path;
    json_t *root;
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
        at = json_object_get(at, part);
        key += nbytes + (key[nbytes] == '.');
    }
    return json_is_null(at) ? NULL : at;
}

bool hf_has(const struct hf_config *config, const char *key)
{
    return find_value(config, key) != NULL;
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

int hf_object(const struct hf_config *config, const char *key, bool *present, struct fsdp_err *err)
{
    const json_t *value = find_value(config, key);
    *present = value != NULL;
    if (value && !json_is_object(value))
        return hf_refuse(config, FSDP_EINVAL, err, key, "must be an object");
    return FSDP_OK;
}
