/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One object while it is written, at any offsets and from several threads: cut into parts, each
 * sent when it is full. What fits in one part is one PUT. Nothing is to be seen of it before it is
 * finished.
 */
#ifndef CKPT_S3_UPLOAD_H
#define CKPT_S3_UPLOAD_H

#include "ckpt/sys/store_ops.h"
#include "call.h"

#define CKPT_S3_MIN_PART_NBYTES (5u << 20) /* S3's own limit, of all but the last part */
#define CKPT_S3_MAX_PARTS 10000

struct ckpt_s3_upload;
struct ckpt_s3_copy_args;

/* Local: nothing is sent yet. key is copied. */
int ckpt_s3_upload_create(struct ckpt_s3_upload **out, struct ckpt_s3_bucket *bucket,
                          const char *key, bool replace, struct fsdp_err *err);
/* Before the first byte: what is sent stays when the upload is destroyed unfinished. id: of the
 * job, a uuid; it goes into the object's metadata. search: it may continue the newest one of the
 * key, of another run; parts of it that are proved to have the bytes that are put are not sent
 * again. That run may be alive: where the upload ends meanwhile, and the object with this id is
 * there, this one is finished, too. Else puts and the finish return FSDP_ENOTFOUND. */
void ckpt_s3_upload_keep(struct ckpt_s3_upload *upload, const char *id, bool search);
/* It is not wanted any more: when it is destroyed unfinished, it ends, unless another run began it.
 */
void ckpt_s3_upload_drop(struct ckpt_s3_upload *upload);
/* May wait for memory: what is under way has a budget over all uploads of a process. */
int ckpt_s3_upload_put(struct ckpt_s3_upload *upload, const void *data, size_t nbytes,
                       uint64_t offset, struct fsdp_err *err);
/* The part that a byte lies in. */
void ckpt_s3_upload_part_at(uint64_t *begin, uint64_t *nbytes, const struct ckpt_s3_upload *upload,
                            uint64_t offset);
/* In place of puts: the store itself makes the whole part at offset of from->nbytes bytes of
 * another object, from `begin`. to, to_key, moved of `from` are not looked at. *crc32c: as the
 * store tells it. FSDP_EUNSUPPORTED: put the bytes; FSDP_ECORRUPT: the source was replaced. Thread
 * safe. Blocks. */
int ckpt_s3_upload_copy(uint32_t *crc32c, struct ckpt_s3_upload *upload, uint64_t offset,
                        const struct ckpt_s3_copy_args *from, uint64_t begin, struct fsdp_err *err);
/* Behind what was put last. */
int ckpt_s3_upload_append(struct ckpt_s3_upload *upload, const void *data, size_t nbytes,
                          struct fsdp_err *err);
/* The object appears. FSDP_EEXIST if somebody else has the name and it must not be replaced. */
int ckpt_s3_upload_finish(struct ckpt_s3_upload *upload, struct fsdp_err *err);
bool ckpt_s3_upload_is_finished(const struct ckpt_s3_upload *upload);
/* Ends one that was not finished, and frees it. */
void ckpt_s3_upload_destroy(struct ckpt_s3_upload *upload);

/* Bytes of parts in memory, over all uploads; the size of parts follows from it when an upload is
 * begun. */
void ckpt_s3_upload_memory(uint64_t nbytes);

/* The part that a byte lies in: parts grow by the first one's size every 500, so that an object of
 * any size is cut without knowing it (0.8 TiB for first parts of 8 MiB). */
uint32_t ckpt_s3_part_of(uint64_t *begin, uint64_t *nbytes, uint64_t first_nbytes, uint64_t offset);

#endif
