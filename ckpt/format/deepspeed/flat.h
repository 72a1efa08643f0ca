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

#include "format/torch/plain.h"

enum { CKPT_DS_NOTHING = -1 }; /* file of a vector that is not there, though its masters are */

/* Vectors one after another. */
struct ckpt_ds_stream {
    struct ckpt_plain_vector *vectors;
    size_t count, max;
    uint64_t nelem; /* of all */
};

int ckpt_ds_stream_add(struct ckpt_ds_stream *stream, const struct ckpt_plain_vector *vector,
                       struct fsdp_err *err);
void ckpt_ds_stream_free(struct ckpt_ds_stream *stream);
/* The vector that holds element `pos`. *whole: it and all that follow it up to pos + nelem are
 * there, or none of them is. NULL: behind the end. */
const struct ckpt_plain_vector *ckpt_ds_stream_at(bool *whole, size_t *index,
                                                  const struct ckpt_ds_stream *stream, uint64_t pos,
                                                  uint64_t nelem);
/* nelem elements from `pos` of the stream are those of the last tensor of the layout from its
 * element `at`. */
int ckpt_ds_stream_place(const struct ckpt_ds_stream *stream, uint64_t pos, uint64_t at,
                         uint64_t nelem, struct ckpt_layout *layout, struct fsdp_err *err);

#endif
