/* SPDX-License-Identifier: Apache-2.0 */
/* packed.h: the weights of a folder that bitsandbytes has quantized, as they are: nothing is
 * quantized anew. */
#ifndef TRAIN_PACKED_H
#define TRAIN_PACKED_H

#include "train/save/base.h"
#include "train/setup/setup.h"

struct train_packed {
    const struct train_parts *parts;
    struct ckpt *ckpt;
    bool any; /* it holds a parameter quantized */
};

/* FSDP_EUNSUPPORTED names a parameter that is quantized and cannot be read so. Local. */
int train_packed_open(struct train_packed *packed, const struct train_parts *parts,
                      struct ckpt *ckpt, struct fsdp_err *err);
/* What the checkpoint holds quantized as such (fsdp_nf4_each), all else as fsdp_state_each. */
int train_packed_each(void *ctx, fsdp_slice_f *fn, void *fn_ctx, struct fsdp_err *err);
/* What quantized parameters have besides; base (or NULL) hears of it as of a tensor. Local. */
int train_packed_offsets(const struct train_packed *packed, struct train_base *base,
                         struct fsdp_err *err);

#endif
