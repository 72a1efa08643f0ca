/* SPDX-License-Identifier: Apache-2.0 */
/* An archive of torch.save: its directory, the place of every file in it. */
#include "../../ckpt/format/archive/zip.h"
#include "fuzz.h"

struct input {
    const uint8_t *data;
    size_t nbytes;
};

static int pread_input(void *ctx, void *dst, size_t nbytes, uint64_t pos, struct fsdp_err *err)
{
    const struct input *in = ctx;
    (void)err;
    if (pos > in->nbytes || nbytes > in->nbytes - pos)
        abort();
    if (nbytes)
        memcpy(dst, in->data + pos, nbytes);
    return FSDP_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct input in = {data, nbytes};
    struct ckpt_zip zip;
    if (ckpt_zip_open(&zip, pread_input, &in, nbytes, "fuzz", NULL))
        return 0;
    const struct ckpt_zip_entry *entry;
    ckpt_zip_find(&entry, &zip, "archive/data.pkl", NULL);
    for (size_t i = 0; i < zip.nentries; i++) {
        uint64_t pos;
        if (ckpt_zip_locate(&pos, &zip, &zip.entries[i], NULL) == FSDP_OK &&
            pos + zip.entries[i].nbytes > nbytes)
            abort();
    }
    ckpt_zip_close(&zip);
    return 0;
}

FUZZ_TARGET("zip")
