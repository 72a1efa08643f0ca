/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole torch checkpoint of one data file: four bytes say how long .metadata is, the rest is
 * __0_0.distcp. All that can be read is read.
 */
#include "ckpt/ckpt.h"
#include "fuzz.h"

static int drop(void *ctx, uint64_t pos, const void *src, size_t nbytes, struct fsdp_err *err)
{
    (void)ctx, (void)pos, (void)src, (void)nbytes, (void)err;
    return FSDP_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    uint32_t size;
    struct ckpt *ckpt;
    if (nbytes < 4)
        return 0;
    memcpy(&size, data, 4);
    size = size < nbytes - 4 ? size : (uint32_t)(nbytes - 4);
    fuzz_file(".metadata", data + 4, size);
    fuzz_file("__0_0.distcp", data + 4 + size, nbytes - 4 - size);
    if (ckpt_open(&ckpt, fuzz_folder(), NULL))
        return 0;
    for (int i = 0; i < ckpt_ntensors(ckpt); i++) {
        const struct fsdp_tensor *t = &ckpt_tensor_at(ckpt, i)->tensor;
        struct fsdp_slice slice = {.tensor = *t, .nreplica = 1};
        struct fsdp_slice_io io = {.write = drop};
        memcpy(slice.box.length, t->shape, sizeof t->shape);
        ckpt_read_slice(ckpt, &slice, &io, NULL);
    }
    ckpt_verify(ckpt, NULL, NULL, NULL);
    ckpt_close(ckpt);
    return 0;
}

FUZZ_TARGET("dcp")
