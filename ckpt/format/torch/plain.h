/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plain.h: tensors that lie row-major in storages of torch.save, of which a format makes others: a
 * piece of the layout is a part of a storage, at its place in the file. The format's state is the
 * list of storages; the functions below are members of its ckpt_format_ops.
 */
#ifndef CKPT_PLAIN_H
#define CKPT_PLAIN_H

#include "format/archive/storage.h"
#include "saved.h"

/* A vector in a file. */
struct ckpt_plain_vector {
    int file;
    enum fsdp_dtype dtype;
    uint64_t pos, nelem; /* of the first element in the file; how many */
};

/* Storages of all files, sorted by file and place once all are there. */
struct ckpt_plain_storages {
    struct ckpt_storage *items;
    size_t count, max;
};

/* ckpt->format_state becomes an empty list. */
int ckpt_plain_begin(struct ckpt_plain_storages **out, struct ckpt *ckpt, struct fsdp_err *err);
/* The vector that `value` is; it must lie plain in its storage. name: of the tensor in errors. */
int ckpt_plain_take(struct ckpt_plain_vector *out, struct ckpt_plain_storages *storages,
                    const struct ckpt_saved *saved, const struct ckpt_pk *value, const char *name,
                    struct fsdp_err *err);
/* One more storage, of which pieces of the layout are parts. */
int ckpt_plain_add(struct ckpt_plain_storages *to, const struct ckpt_storage *storage,
                   struct fsdp_err *err);
/* The storage of a tensor; zeroed for one without elements. */
int ckpt_plain_storage(struct ckpt_storage *out, const struct ckpt_saved *saved,
                       const struct ckpt_pk *value, struct fsdp_err *err);
/* nelem elements from `pos` of the vector are those of the last tensor of the layout from its
 * element `at`: boxes, each contiguous in it. */
int ckpt_plain_place(const struct ckpt_plain_vector *vector, uint64_t pos, uint64_t at,
                     uint64_t nelem, struct ckpt_layout *layout, struct fsdp_err *err);
/* After the last one was taken: sorts them, refuses those that overlap, and says whether all have
 * checksums. */
int ckpt_plain_end(struct ckpt *ckpt, struct fsdp_err *err);
void ckpt_plain_close(struct ckpt *ckpt);

int ckpt_plain_read_extent(const struct ckpt_scatter *s, const struct ckpt_extent *extent,
                           const struct ckpt_block *block, const struct fsdp_tensor *tensor);
int ckpt_plain_check_piece(struct ckpt *ckpt, size_t piece, struct fsdp_err *err);
int ckpt_plain_check_rest(struct ckpt *ckpt, struct fsdp_err *err);

#endif
