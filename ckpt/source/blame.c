/* SPDX-License-Identifier: Apache-2.0 */
/* Which file is damaged, when a tensor is. */
#include "source.h"
#include "util/crc.h"

/* Of a file as it is stored, through a buffer of CKPT_BLOCK_NBYTES. */
static int stored_checksum(uint32_t *out, struct ckpt *ckpt, int file, char *buffer,
                           struct fsdp_err *err)
{
    uint64_t size = ckpt->m.layout.files[file].nbytes;
    *out = 0;
    for (uint64_t pos = 0; pos < size; pos += CKPT_BLOCK_NBYTES) {
        uint64_t left = size - pos;
        size_t nbytes = (size_t)(left < CKPT_BLOCK_NBYTES ? left : CKPT_BLOCK_NBYTES);
        FSDP_TRY(ckpt_file_pread_stored(ckpt, file, buffer, nbytes, pos, err));
        *out = ckpt_crc32c(*out, buffer, nbytes);
    }
    return FSDP_OK;
}

int ckpt_file_check(bool *bad, uint32_t *actual, struct ckpt *ckpt, int file, struct fsdp_err *err)
{
    const struct ckpt_layout_file *info = &ckpt->m.layout.files[file];
    char *buffer = fsdp_alloc(CKPT_BLOCK_NBYTES, 1, "read buffer", err);
    uint32_t crc = 0;
    int rc = buffer ? stored_checksum(&crc, ckpt, file, buffer, err) : FSDP_ENOMEM;

    fsdp_free(buffer);
    *bad = rc == FSDP_OK && info->has_crc && crc != info->crc32c;
    if (actual)
        *actual = crc;
    return rc;
}

int ckpt_fingerprint_blame(struct ckpt *ckpt, int tensor, uint64_t actual, struct fsdp_err *err)
{
    const struct ckpt_layout *layout = &ckpt->m.layout;
    const struct ckpt_tensor *t = &layout->tensors[tensor];

    for (size_t p = layout->first[tensor]; p < layout->first[tensor + 1]; p++) {
        int file = layout->pieces[p].file;
        bool bad;
        uint32_t crc;
        FSDP_TRY(ckpt_file_check(&bad, &crc, ckpt, file, err));
        if (bad)
            return fsdp_err_set(err, FSDP_ECORRUPT,
                                "tensor '%s': its bytes are not those that were saved (fingerprint "
                                "%016llx instead of %016llx): file '%s/%s' is damaged (checksum "
                                "%08x instead of %08x)",
                                t->tensor.name, (unsigned long long)actual,
                                (unsigned long long)t->fingerprint, ckpt->path,
                                layout->files[file].path, crc, layout->files[file].crc32c);
    }
    return fsdp_err_set(err, FSDP_ECORRUPT,
                        "tensor '%s' of '%s': fingerprint %016llx instead of %016llx, though the "
                        "checksums of its files are right",
                        t->tensor.name, ckpt->path, (unsigned long long)actual,
                        (unsigned long long)t->fingerprint);
}
