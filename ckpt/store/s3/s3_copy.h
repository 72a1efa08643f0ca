/* SPDX-License-Identifier: Apache-2.0 */
/* An object made of another one by the store itself: no byte of it passes through here. */
#ifndef CKPT_S3_COPY_H
#define CKPT_S3_COPY_H

#include "ckpt/sys/store_ops.h"
#include "call.h"

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

#endif
