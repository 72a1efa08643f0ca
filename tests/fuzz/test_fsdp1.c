/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flat parameters of FSDP1 by two ranks: config.json, then the files of the ranks, each behind four
 * bytes that say how long it is. All that can be read is read.
 */
#include "fuzz.h"
#include "read_all.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static const char *const names[] = {"config.json", "pytorch_model_fsdp_rank0.bin",
                                        "pytorch_model_fsdp_rank1.bin"};
    char path[400];
    size_t at = 0;

    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", fuzz_folder(), names[i]);
        unlink(path);
    }
    for (int i = 0; i < 3 && nbytes - at >= 4; i++) {
        uint32_t size;
        memcpy(&size, data + at, 4);
        at += 4;
        size = size < nbytes - at ? size : (uint32_t)(nbytes - at);
        fuzz_file(names[i], data + at, size);
        at += size;
    }
    read_all(fuzz_folder());
    return 0;
}

FUZZ_TARGET("fsdp1")
