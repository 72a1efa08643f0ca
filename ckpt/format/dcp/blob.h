/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blobs: what a .distcp file consists of. Each is a whole archive (format/archive) of a tensor or a
 * Python value. torch calls its folder `archive`, ckpt-reshard by a tag (ckpt_dcp_tag_of) of the
 * blob's file and place.
 *
 * .metadata says where a blob is; where the bytes are in it is found when they are first wanted, so
 * that opening a checkpoint of a million blobs reads none.
 */
#ifndef CKPT_BLOB_H
#define CKPT_BLOB_H

#include "format/archive/storage.h"
#include "format/pickle/pickle.h"

void ckpt_blobs_destroy(struct ckpt *ckpt);

/* As read_extent of ckpt_format_ops. */
int ckpt_blob_extent_read(const struct ckpt_scatter *s, const struct ckpt_extent *extent,
                          const struct ckpt_block *block, const struct fsdp_tensor *tensor);
/* Checks the pieces of which only a part was read, as by a run that continues where another was
 * stopped. */
int ckpt_blobs_finish(struct ckpt *ckpt, struct fsdp_err *err);
/* Reads the whole storage and compares its CRC-32: FSDP_ECORRUPT names tensor, file and bytes. */
int ckpt_blob_check(struct ckpt *ckpt, size_t piece, struct fsdp_err *err);

/* Where a piece lies: its storage, and the byte of the file where its first element is.
 * FSDP_EUNSUPPORTED where it is not row-major there. */
int ckpt_blob_locate(struct ckpt_storage *out, uint64_t *pos, struct ckpt *ckpt, size_t piece,
                     struct fsdp_err *err);

/* Bytes of a file of the layout. */
struct ckpt_blob_place {
    int file;
    uint64_t pos, nbytes;
};
/* The Python value in a blob. `data` is freed with fsdp_free after the pickle is. *has_tensors:
 * there are storages next to the pickle. It is set for a pickle that cannot be read
 * (FSDP_EUNSUPPORTED), too. */
int ckpt_blob_value(struct ckpt_pickle *out, char **data, bool *has_tensors, struct ckpt *ckpt,
                    const struct ckpt_blob_place *at, const char *name, struct fsdp_err *err);

#endif
