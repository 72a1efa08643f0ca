/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole torch checkpoint of one data file: four bytes say how long .metadata is, the rest is
 * __0_0.distcp. All that can be read is read.
 */
#include "fuzz.h"
#include "read_all.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    uint32_t size;
    if (nbytes < 4)
        return 0;
    memcpy(&size, data, 4);
    size = size < nbytes - 4 ? size : (uint32_t)(nbytes - 4);
    fuzz_file(".metadata", data + 4, size);
    fuzz_file("__0_0.distcp", data + 4 + size, nbytes - 4 - size);
    read_all(fuzz_folder());
    return 0;
}

FUZZ_TARGET("dcp")
