/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.json without its end, which is the right checksum. */
#include "../../ckpt/layout/contents.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct ckpt_manifest manifest;
    char *text = malloc(nbytes + 40);
    memcpy(text, data, nbytes);
    int end =
        snprintf(text + nbytes, 40, ",\n \"crc32c\": \"%08x\"\n}\n", ckpt_crc32c(0, data, nbytes));
    if (ckpt_manifest_parse(&manifest, text, nbytes + (size_t)end, "fuzz", NULL) == FSDP_OK) {
        char *out;
        size_t out_nbytes;
        if (ckpt_manifest_format(&out, &out_nbytes, &manifest, NULL) == FSDP_OK)
            fsdp_free(out);
        ckpt_manifest_free(&manifest);
    }
    free(text);
    return 0;
}

FUZZ_TARGET("manifest")
