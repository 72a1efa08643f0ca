/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that make objects. Each is safe to repeat when its answer was lost. */
#ifndef CKPT_S3_PUT_H
#define CKPT_S3_PUT_H

#include "call.h"

/* A whole small object in one call. Unless `replace`, under the condition that the name is free:
 * FSDP_EEXIST. Where the store does not know conditions (which is logged once), what is there is
 * read back and compared. */
int ckpt_s3_put_whole(struct ckpt_s3_bucket *bucket, const char *key, const void *data,
                      size_t nbytes, bool replace, struct fsdp_err *err);

/* `id`, ours, goes into the object's metadata. *upload_id is freed with fsdp_free. */
int ckpt_s3_multipart_begin(char **upload_id, struct ckpt_s3_bucket *bucket, const char *key,
                            const char *id, struct fsdp_err *err);
/* What the store said of a part that it has. */
struct ckpt_s3_sent {
    char etag[128], checksum[16]; /* CRC-32C as base64; "": none was sent, or told */
    uint64_t nbytes;
};
/* Makes one object of parts 1 to nsent. FSDP_OK also where it was there already, of this id;
 * FSDP_ENOTFOUND: the upload, or a part of it, is not there any more. */
int ckpt_s3_multipart_complete(struct ckpt_s3_bucket *bucket, const char *key,
                               const char *upload_id, const char *id,
                               const struct ckpt_s3_sent *sent, uint32_t nsent,
                               struct fsdp_err *err);
/* Has the object this id? */
bool ckpt_s3_multipart_is_complete(struct ckpt_s3_bucket *bucket, const char *key, const char *id);
/* Did the store say that there is no such upload? */
bool ckpt_s3_is_gone(const struct ckpt_s3_call *call);
/* As far as it can; what stays, a sweep ends. */
void ckpt_s3_multipart_abort(struct ckpt_s3_bucket *bucket, const char *key, const char *upload_id);

#endif
