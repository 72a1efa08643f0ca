/* SPDX-License-Identifier: Apache-2.0 */
/* unpack.h: the values of matrices that bitsandbytes or compressed-tensors has quantized, decoded
 * as they are read. */
#ifndef CKPT_UNPACK_H
#define CKPT_UNPACK_H

#include "format_ops.h"

/* codes.c: a matrix of compressed-tensors. */
struct ckpt_codes {
    struct fsdp_tensor tensor; /* decoded, of its scales' type; the name is that of the codes */
    int bits;                  /* of a code: 8 or 4; 0: it is none of these */
    bool words;                /* integers without their sign, in words of 32 bits */
    bool floats;               /* F8_E4M3; else integers */
    bool whole;                /* one scale for all */
    uint64_t group;            /* elements of a row that share a scale */
    uint64_t row_nbytes;       /* of codes */
};
/* *fits: the codes of `tensor` can be decoded. Blocks. */
int ckpt_codes_read(bool *fits, struct ckpt_codes *out, struct ckpt *ckpt,
                    const struct fsdp_tensor *tensor, struct fsdp_err *err);

/* quantized.c: all of a part, a vector of `dtype` of at most max_nbytes; *nbytes (NULL is allowed)
 * is its size. */
int ckpt_part_read(void *out, size_t max_nbytes, size_t *nbytes, struct ckpt *ckpt,
                   const struct ckpt_tensor *part, enum fsdp_dtype dtype, struct fsdp_err *err);

/* One of them: where its bytes are, and what its scales are scaled by. */
struct ckpt_packed {
    int tensor;              /* of the layout */
    struct ckpt_codes codes; /* bits 0: NF4 */
    struct ckpt_nf4 state;
    int codes_file, scales_file;
    uint64_t codes_pos, scales_pos;
    float *nested; /* of each 256 blocks */
};

/* NULL: the tensor's bytes are as they are. */
const struct ckpt_packed *ckpt_packed_find(const struct ckpt *ckpt, int tensor);
/* ckpt_runs_read of one. Thread safe. */
int ckpt_packed_read(const struct ckpt_scatter *s, const struct ckpt_packed *packed,
                     const struct ckpt_extent *extent);
void ckpt_packed_free(struct ckpt *ckpt);

#endif
