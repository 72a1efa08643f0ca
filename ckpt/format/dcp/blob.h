/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blobs: what a .distcp file consists of. Each is a whole zip archive as torch.save writes it:
 *
 *     archive/data.pkl    a pickle: how the tensor is made of its storage, or a Python value
 *     archive/data/0      the storage's bytes
 *     archive/version, archive/byteorder, …
 *
 * torch calls the folder `archive`, ckpt-reshard by a tag (ckpt_dcp_tag_of) of the blob's file and
 * place.
 *
 * .metadata says where a blob is; where the bytes are in it is found when they are first wanted, so
 * that opening a checkpoint of a million blobs reads none. The zip's CRC-32 of a storage is
 * compared as soon as all of it was read, in whatever pieces; torch itself never looks at it.
 */
#ifndef CKPT_BLOB_H
#define CKPT_BLOB_H

#include "source/source.h"
#include "format/pickle/pickle.h"

/* Where a piece's elements are. Under ckpt->lock. */
struct ckpt_blob {
    bool resolved;
    bool negative;  /* the elements are those of the storage, negated */
    bool conjugate; /* ... their imaginary parts are */
    bool whole;     /* the piece is all of the storage */
    uint32_t crc32; /* of the storage; 0: not known */
    uint64_t storage_pos, storage_nbytes;
    uint64_t pos;     /* of the first element, in the file */
    uint64_t *stride; /* [ndim] in elements; NULL: row-major */
    /* What was read of the storage since it was last compared. */
    uint32_t sum;
    uint64_t nsummed;
};

void ckpt_blobs_destroy(struct ckpt *ckpt);

/* A copy of the blob of a piece, resolved. Thread safe. */
int ckpt_blob_find(struct ckpt_blob *out, struct ckpt *ckpt, size_t piece, struct fsdp_err *err);
/* nbytes at pos of the storage, whose CRC-32 contribution is `part`, were read. FSDP_ECORRUPT once
 * all were and their CRC-32 is wrong. Thread safe. */
int ckpt_blob_note(struct ckpt *ckpt, size_t piece, uint32_t part, uint64_t nbytes,
                   struct fsdp_err *err);
/* Checks the pieces of which only a part was read, as by a run that continues where another was
 * stopped. */
int ckpt_blobs_finish(struct ckpt *ckpt, struct fsdp_err *err);
/* Reads the whole storage and compares its CRC-32: FSDP_ECORRUPT names tensor, file and bytes. */
int ckpt_blob_check(struct ckpt *ckpt, size_t piece, struct fsdp_err *err);

/* The Python value in a blob. `data` is freed with fsdp_free after the pickle is. */
int ckpt_blob_value(struct ckpt_pickle *out, char **data, struct ckpt *ckpt, int file, uint64_t pos,
                    uint64_t nbytes, const char *name, struct fsdp_err *err);

#endif
