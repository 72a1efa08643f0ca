/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flat.h: parameters in flat vectors.
 *
 * ZeRO 1 and 2: the parameters of a group lie one after another, with padding; the whole is cut in
 * equal parts, one a rank. ZeRO 3: each parameter is cut in equal parts, padded at its end; a rank
 * has its parts one after another, in vectors of one dtype each.
 */
#ifndef CKPT_DEEPSPEED_FLAT_H
#define CKPT_DEEPSPEED_FLAT_H

#include "format/archive/storage.h"
#include "format/torch/saved.h"

/* A vector in a file. */
struct ckpt_ds_vector {
    int file;
    enum fsdp_dtype dtype;
    uint64_t pos, nelem; /* of the first element in the file; how many */
};

/* Vectors one after another. */
struct ckpt_ds_stream {
    struct ckpt_ds_vector *vectors;
    size_t count, max;
    uint64_t nelem; /* of all */
};

/* What reading needs: storages of all files, sorted by file and place after the last was taken. */
struct ckpt_ds_storages {
    struct ckpt_storage *items;
    size_t count, max;
};

/* A vector of a tensor that torch.save wrote; it must lie plain in its storage. name: of the tensor
 * in errors. */
int ckpt_ds_vector_take(struct ckpt_ds_vector *out, struct ckpt_ds_storages *storages,
                        const struct ckpt_saved *saved, const struct ckpt_pk *value,
                        const char *name, struct fsdp_err *err);
int ckpt_ds_stream_add(struct ckpt_ds_stream *stream, const struct ckpt_ds_vector *vector,
                       struct fsdp_err *err);
void ckpt_ds_stream_free(struct ckpt_ds_stream *stream);
/* nelem elements from `pos` of the stream are those of the last tensor of the layout from its
 * element `at`. */
int ckpt_ds_stream_place(const struct ckpt_ds_stream *stream, uint64_t pos, uint64_t at,
                         uint64_t nelem, struct ckpt_layout *layout, struct fsdp_err *err);
void ckpt_ds_storages_sort(struct ckpt_ds_storages *storages);
/* The storage that holds a byte of a file; NULL: none. */
struct ckpt_storage *ckpt_ds_storage_at(const struct ckpt_ds_storages *storages, int file,
                                        uint64_t pos);

#endif
