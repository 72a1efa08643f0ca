/* SPDX-License-Identifier: Apache-2.0 */
/* unpack.h: the values of matrices that bitsandbytes has quantized, decoded as they are read. */
#ifndef CKPT_UNPACK_H
#define CKPT_UNPACK_H

#include "format_ops.h"

/* One of them: where its bytes are, and what its scales are scaled by. */
struct ckpt_packed {
    int tensor; /* of the layout */
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
