/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who we are: the first that has an answer of environment, web identity (STS), profile files
 * (credentials, config; keys, credential_process), container endpoint, instance metadata (IMDSv2).
 * What expires is fetched anew ten minutes before. Nothing secret is ever part of an error or a log
 * line.
 */
#ifndef CKPT_S3_CREDS_H
#define CKPT_S3_CREDS_H

#include "fsdp/base.h"

struct ckpt_s3_creds {
    char key_id[256], secret[512], token[8192]; /* token: "" if there is none */
    int64_t expires;                            /* seconds since the epoch; 0: never */
    const char *source;                         /* for errors: "the environment" */
};

/* stale: the store has refused these (NULL: none); others are looked for. FSDP_ENOTFOUND, telling
 * where was looked, if there are none. Blocks while they are fetched. Thread safe. */
int ckpt_s3_creds_get(struct ckpt_s3_creds *out, const struct ckpt_s3_creds *stale,
                      struct fsdp_err *err);
void ckpt_s3_creds_wipe(struct ckpt_s3_creds *creds);

/* A setting of the profile (region, endpoint_url, ...): from config, or from credentials. NULL if
 * it has none. Freed with fsdp_free. */
char *ckpt_s3_profile(const char *setting);

#endif
