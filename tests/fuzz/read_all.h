/* SPDX-License-Identifier: Apache-2.0 */
/* read_all.h: opens a checkpoint and reads all that can be read of it. */
#ifndef READ_ALL_H
#define READ_ALL_H

#include "ckpt/ckpt.h"

static inline int read_all_drop(void *ctx, uint64_t pos, const void *src, size_t nbytes,
                                struct fsdp_err *err)
{
    (void)ctx, (void)pos, (void)src, (void)nbytes, (void)err;
    return FSDP_OK;
}

static inline void read_opened(struct ckpt *ckpt)
{
    for (int i = 0; i < ckpt_ntensors(ckpt); i++) {
        const struct fsdp_tensor *t = &ckpt_tensor_at(ckpt, i)->tensor;
        struct fsdp_slice slice = {.tensor = *t, .nreplica = 1};
        struct fsdp_slice_io io = {.write = read_all_drop};
        memcpy(slice.box.length, t->shape, sizeof t->shape);
        ckpt_read_slice(ckpt, &slice, &io, NULL);
    }
}

static inline void read_all(const char *path)
{
    struct ckpt *ckpt;
    if (ckpt_open(&ckpt, path, NULL))
        return;
    read_opened(ckpt);
    ckpt_verify(ckpt, NULL, NULL, NULL);
    ckpt_close(ckpt);
}

#endif
