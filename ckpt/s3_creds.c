/* SPDX-License-Identifier: Apache-2.0 */
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#include "s3_creds.h"

void ckpt_s3_creds_wipe(struct ckpt_s3_creds *creds)
{
    OPENSSL_cleanse(creds, sizeof *creds);
}

char *ckpt_s3_profile(const char *setting)
{
    (void)setting;
    return NULL;
}

int ckpt_s3_creds_get(struct ckpt_s3_creds *out, const struct ckpt_s3_creds *stale,
                      struct fsdp_err *err)
{
    const char *id = getenv("AWS_ACCESS_KEY_ID"), *secret = getenv("AWS_SECRET_ACCESS_KEY");
    const char *token = getenv("AWS_SESSION_TOKEN");
    (void)stale;
    memset(out, 0, sizeof *out);
    if (!id || !*id || !secret || !*secret)
        return fsdp_err_set(err, FSDP_ENOTFOUND,
                            "no credentials for S3: set AWS_ACCESS_KEY_ID and "
                            "AWS_SECRET_ACCESS_KEY");
    snprintf(out->key_id, sizeof out->key_id, "%s", id);
    snprintf(out->secret, sizeof out->secret, "%s", secret);
    snprintf(out->token, sizeof out->token, "%s", token ? token : "");
    out->source = "the environment";
    return FSDP_OK;
}
