/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An upload that an earlier run began and did not finish. Its parts cannot be read, but the store
 * tells of each its size, its ETag, and its CRC-32C where it keeps that. A part counts as sent
 * where one of these proves that it has the bytes that would be sent.
 */
#ifndef CKPT_S3_UNFINISHED_H
#define CKPT_S3_UNFINISHED_H

#include "put.h"

struct ckpt_s3_unfinished {
    char *upload_id;            /* the store's; NULL: there is none */
    struct ckpt_s3_sent *parts; /* [nparts] by number from 0; of nbytes 0: not there */
    uint32_t nparts;
};
/* The newest upload of the key. Freed with ckpt_s3_unfinished_free, also after an error. */
int ckpt_s3_unfinished_find(struct ckpt_s3_unfinished *out, struct ckpt_s3_bucket *bucket,
                            const char *key, struct fsdp_err *err);
void ckpt_s3_unfinished_free(struct ckpt_s3_unfinished *u);

/* Is this the part's CRC-32C, as the store tells it? */
bool ckpt_s3_is_crc32c(const char *checksum, const void *data, size_t nbytes);
/* Is the ETag the MD5 of the data? It is where nothing is encrypted with a key of the store's. */
bool ckpt_s3_is_md5(const char *etag, const void *data, size_t nbytes);

#endif
