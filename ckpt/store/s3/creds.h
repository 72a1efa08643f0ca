/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who we are: the first that has an answer of environment, web identity (STS), profile files
 * (credentials, config; keys, credential_process, a role of another profile), container endpoint,
 * instance metadata (IMDSv2). What expires is fetched anew ten minutes before, or when an eighth of
 * a shorter life is over, behind the transfers. Nothing secret is ever part of an error or a log
 * line.
 */
#ifndef CKPT_S3_CREDS_H
#define CKPT_S3_CREDS_H

#include "fsdp/base.h"

enum { CKPT_S3_REFRESH_SECONDS = 600 };

struct ckpt_s3_creds {
    char key_id[256], secret[512], token[8192]; /* token: "" if there is none */
    int64_t expires;                            /* seconds since the epoch; 0: never */
    const char *source;                         /* for errors: "the environment" */
};

/* stale: the store has refused these (NULL: none); others are looked for. FSDP_ENOTFOUND, telling
 * where was looked, if there are none. Blocks while they are fetched, unless there are some that
 * are still good. Thread safe. */
int ckpt_s3_creds_get(struct ckpt_s3_creds *out, const struct ckpt_s3_creds *stale,
                      struct fsdp_err *err);
void ckpt_s3_creds_wipe(struct ckpt_s3_creds *creds);

/* ---- the sources: FSDP_ENOTFOUND where one does not apply, else it is the one that counts ---- */

/* creds_http.c */
int ckpt_s3_creds_web_identity(struct ckpt_s3_creds *out, struct fsdp_err *err);
/* The role's, which `who` may take. external_id: NULL if none is agreed on. */
int ckpt_s3_creds_role(struct ckpt_s3_creds *out, const struct ckpt_s3_creds *who, const char *role,
                       const char *external_id, struct fsdp_err *err);
int ckpt_s3_creds_container(struct ckpt_s3_creds *out, struct fsdp_err *err);
int ckpt_s3_creds_instance(struct ckpt_s3_creds *out, struct fsdp_err *err);
/* creds_process.c: what a program prints */
int ckpt_s3_creds_process(struct ckpt_s3_creds *out, const char *command, struct fsdp_err *err);

/* ---- creds_parse.c ---- */

/* Copies a part that must be there and fit. name and from: what it is, and whose, in errors. */
int ckpt_s3_creds_take(char *out, size_t out_nbytes, const char *value, const char *name,
                       const char *from, struct fsdp_err *err);
/* From JSON as container, instance and programs give it. `from` names it in errors. */
int ckpt_s3_creds_json(struct ckpt_s3_creds *out, const char *data, size_t nbytes,
                       const char *token_name, const char *from, struct fsdp_err *err);
/* "2009-10-12T17:50:30Z"; 0 if it is something else. */
int64_t ckpt_s3_time(const char *text);

/* ---- profile.c ---- */

/* A setting of a profile, NULL: of the one that is used ("region"; "s3.x" for x below "s3 ="), from
 * the files credentials and config. NULL if it has none; freed with fsdp_free. *known (may be NULL)
 * is set if a file has the profile. */
char *ckpt_s3_profile_get(const char *profile, const char *setting, bool *known);
const char *ckpt_s3_profile_name(void);

#endif
