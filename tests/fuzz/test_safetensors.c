/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a safetensors file: four bytes say how much data the file has, the rest is JSON. */
#include "../../ckpt/file/safetensors.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct ckpt_st_header header;
    uint32_t size;
    if (nbytes < 4)
        return 0;
    memcpy(&size, data, 4);
    if (ckpt_st_parse(&header, (const char *)data + 4, nbytes - 4, nbytes + 4 + size, "fuzz",
                      NULL) == FSDP_OK) {
        for (int i = 0; i < header.nentries; i++)
            if (header.entries[i].pos + header.entries[i].nbytes > nbytes + 4 + size)
                abort();
        ckpt_st_header_free(&header);
    }
    return 0;
}

FUZZ_TARGET("safetensors")
