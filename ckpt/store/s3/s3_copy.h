/* SPDX-License-Identifier: Apache-2.0 */
/* Objects, and parts of them, made of another one by the store itself: no byte passes through
 * here. */
#ifndef CKPT_S3_COPY_H
#define CKPT_S3_COPY_H

#include "ckpt/sys/store_ops.h"
#include "put.h"

struct ckpt_s3_copy_args {
    struct ckpt_s3_bucket *from, *to;
    const char *from_key, *to_key;
    const char *etag; /* of the very object that is meant; "": whatever has the name */
    uint64_t nbytes;  /* of it; not 0 */
    ckpt_store_moved_f *moved;
    void *ctx;
};
/* Do both lie where one store can copy between them? */
bool ckpt_s3_copy_is_near(const struct ckpt_s3_bucket *from, const struct ckpt_s3_bucket *to);
/* Appears when all of it is there; nothing is left of one that failed. FSDP_EUNSUPPORTED where the
 * store does not do that; FSDP_ECORRUPT if the source was replaced meanwhile; FSDP_ECANCELED. */
int ckpt_s3_copy(struct ckpt_store_copied *out, const struct ckpt_s3_copy_args *args,
                 struct fsdp_err *err);
/* args->nbytes from `begin` of the source as part `number`, from 0, of an upload that is under way.
 * Whether the store tells a checksum, *sent says. FSDP_ENOTFOUND: there is no such upload; else as
 * ckpt_s3_copy. moved is not called. Blocks. */
int ckpt_s3_copy_range(struct ckpt_s3_sent *sent, const struct ckpt_s3_copy_args *args,
                       const char *upload_id, uint32_t number, uint64_t begin,
                       const atomic_bool *given_up, struct fsdp_err *err);
/* The base64 in which stores tell a CRC-32C; false: it is none. */
bool ckpt_s3_crc32c_decode(uint32_t *out, const char *text);

#endif
