/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storages, and reading tensors that are views of them. A storage has a CRC-32, which torch itself
 * never looks at: it is compared as soon as all bytes were read, in whatever pieces, or before the
 * first of a view that is not all of it.
 */
#ifndef CKPT_STORAGE_H
#define CKPT_STORAGE_H

#include "source/format_ops.h"

struct ckpt_storage {
    int file;
    uint64_t pos, nbytes; /* in the file */
    uint32_t crc32;       /* 0: not known */
    /* Under ckpt->lock. */
    bool proved;  /* by a read of all of it */
    uint32_t sum; /* of what was read since it was last compared */
    uint64_t nsummed;
};

/* A tensor, or a piece of one, in a storage. */
struct ckpt_view {
    struct ckpt_storage *storage;
    uint64_t pos;           /* of the first element, in the file */
    const uint64_t *stride; /* [ndim] in elements; NULL: row-major */
    bool summed;    /* what is read of it, and of others, adds up to the storage, each byte once */
    bool negative;  /* the elements are those of the storage, negated */
    bool conjugate; /* ... their imaginary parts are */
};

/* As read_extent of ckpt_format_ops, where extent->pos counts from the view's first element.
 * of: names the piece in errors, as ckpt_piece_text. Thread safe. */
int ckpt_view_read(const struct ckpt_scatter *s, const struct ckpt_view *view,
                   const struct ckpt_extent *extent, const struct ckpt_block *block,
                   const struct fsdp_tensor *tensor);
/* Reads the whole storage and compares its CRC-32: FSDP_ECORRUPT names file and bytes, and `piece`
 * of the layout. Thread safe. */
int ckpt_storage_check(struct ckpt *ckpt, const struct ckpt_storage *storage, size_t piece,
                       struct fsdp_err *err);
/* Reads nbytes at `pos` of the file, which no view has, and counts them as read. */
int ckpt_storage_add(struct ckpt *ckpt, struct ckpt_storage *storage, size_t piece, uint64_t pos,
                     uint64_t nbytes, struct fsdp_err *err);
/* As ckpt_storage_check, once. */
int ckpt_storage_prove(struct ckpt *ckpt, struct ckpt_storage *storage, size_t piece,
                       struct fsdp_err *err);

#endif
