/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A folder whose weights are quantized (compressed-tensors, bitsandbytes): four bytes that say how
 * long config.json is, it, and model.safetensors. All that can be decoded is.
 */
#include "fuzz.h"
#include "read_all.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    uint32_t size;
    struct ckpt *ckpt;

    if (nbytes < 4)
        return 0;
    memcpy(&size, data, 4);
    data += 4;
    nbytes -= 4;
    size = size < nbytes ? size : (uint32_t)nbytes;
    fuzz_file("config.json", data, size);
    fuzz_file("model.safetensors", data + size, nbytes - size);
    if (ckpt_open(&ckpt, fuzz_folder(), NULL))
        return 0;
    if (ckpt_unpack(ckpt, NULL) == FSDP_OK)
        read_opened(ckpt);
    ckpt_close(ckpt);
    return 0;
}

FUZZ_TARGET("packed")
