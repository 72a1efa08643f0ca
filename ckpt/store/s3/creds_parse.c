/* SPDX-License-Identifier: Apache-2.0 */
/* What credentials look like: the parts of a set, from JSON and from variables. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "creds.h"

/* Copies a text that must be there and fit. */
int ckpt_s3_creds_take(char *out, size_t out_nbytes, const char *value, const char *name,
                       const char *from, struct fsdp_err *err)
{
    if (!value || !*value)
        return fsdp_err_set(err, FSDP_EINVAL, "credentials of %s have no %s", from, name);
    if (strlen(value) >= out_nbytes || strpbrk(value, "\r\n"))
        return fsdp_err_set(err, FSDP_EINVAL, "credentials of %s: no proper %s", from, name);
    strcpy(out, value);
    return FSDP_OK;
}

int64_t ckpt_s3_time(const char *text)
{
    struct tm tm = {0};
    const char *end = text ? strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
    if (!end)
        return 0;
    int64_t time = (int64_t)timegm(&tm);
    int hours, minutes;
    end += strspn(end, ".0123456789");
    if ((*end == '+' || *end == '-') && sscanf(end + 1, "%2d:%2d", &hours, &minutes) == 2)
        time -= (*end == '-' ? -1 : 1) * (hours * 3600 + minutes * 60);
    return time;
}

int ckpt_s3_creds_json(struct ckpt_s3_creds *out, const char *data, size_t nbytes,
                       const char *token_name, const char *from, struct fsdp_err *err)
{
    json_error_t ignored; /* it would quote what it could not read */
    json_t *root = json_loadb(data ? data : "", nbytes, 0, &ignored);
    const char *token = json_string_value(json_object_get(root, token_name));
    const char *expires = json_string_value(json_object_get(root, "Expiration"));
    int rc = FSDP_OK;
    if (!json_is_object(root))
        rc = fsdp_err_set(err, FSDP_EINVAL, "credentials of %s are no JSON object", from);
    if (rc == FSDP_OK)
        rc = ckpt_s3_creds_take(out->key_id, sizeof out->key_id,
                                json_string_value(json_object_get(root, "AccessKeyId")),
                                "AccessKeyId", from, err);
    if (rc == FSDP_OK)
        rc = ckpt_s3_creds_take(out->secret, sizeof out->secret,
                                json_string_value(json_object_get(root, "SecretAccessKey")),
                                "SecretAccessKey", from, err);
    if (rc == FSDP_OK && token && *token)
        rc = ckpt_s3_creds_take(out->token, sizeof out->token, token, token_name, from, err);
    if (rc == FSDP_OK && expires && !(out->expires = ckpt_s3_time(expires)))
        rc = fsdp_err_set(err, FSDP_EINVAL, "credentials of %s: no proper Expiration", from);
    json_decref(root);
    return rc;
}
