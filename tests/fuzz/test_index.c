/* SPDX-License-Identifier: Apache-2.0 */
/* model.safetensors.index.json next to a file that holds the tensor `w`. */
#include "ckpt/ckpt.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static const char header[] = "{\"w\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    char file[8 + sizeof header + 1] = {sizeof header - 1};
    struct ckpt *ckpt;
    memcpy(file + 8, header, sizeof header - 1);
    fuzz_file("model.safetensors", file, 8 + sizeof header - 1 + 2);
    fuzz_file("model.safetensors.index.json", data, nbytes);
    if (ckpt_open(&ckpt, fuzz_folder(), NULL) == FSDP_OK)
        ckpt_close(ckpt);
    return 0;
}

FUZZ_TARGET("index")
