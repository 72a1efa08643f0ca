/* SPDX-License-Identifier: Apache-2.0 */
/* Signature version 4 of AWS, the signature of every request: a pure function of the request, the
 * secret and the time (docs.aws.amazon.com, "Create a signed AWS API request"). */
#ifndef CKPT_S3_SIGN_H
#define CKPT_S3_SIGN_H

#include <time.h>

#include "fsdp/base.h"
#include "util/text.h"

enum { CKPT_S3_HASH_NBYTES = 65 }; /* a SHA-256 in hexadecimal, and the 0 behind it */

struct ckpt_s3_pair {
    const char *name, *value;
};

struct ckpt_s3_sign_args {
    const char *method;
    const char *path;           /* encoded, as it is sent */
    struct ckpt_s3_pair *query; /* not encoded; sorted here */
    int nquery;
    struct ckpt_s3_pair *headers; /* names in lower case, host among them; sorted here */
    int nheaders;
    const char *payload_hash; /* of the body, or UNSIGNED-PAYLOAD */
    const char *region, *service;
    const char *key_id, *secret;
    time_t time;
};
/* The value of the header Authorization, into out. */
int ckpt_s3_sign(struct ckpt_text *out, const struct ckpt_s3_sign_args *args, struct fsdp_err *err);

/* "a=1&b=", encoded and sorted. */
void ckpt_s3_query(struct ckpt_text *out, struct ckpt_s3_pair *query, int nquery);
/* All but letters, digits and -._~ as %XX; '/' too unless it stays. */
void ckpt_s3_encode(struct ckpt_text *out, const char *text, bool keep_slash);
int ckpt_s3_sha256(char out[CKPT_S3_HASH_NBYTES], const void *data, size_t nbytes,
                   struct fsdp_err *err);
/* "20130524T000000Z" */
void ckpt_s3_date(char out[17], time_t time);

#endif
