/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/ckpt.h"
#include "store_remote.h"

static int open_blob(void **file, uint64_t *nbytes, const char *address, struct fsdp_err *err)
{
    struct ckpt_blob *blob;

    FSDP_TRY(ckpt_blob_open(&blob, nbytes, address, err));
    *file = blob;
    return FSDP_OK;
}

static int pread_blob(void *file, void *dst, size_t nbytes, uint64_t offset, struct fsdp_err *err)
{
    return ckpt_blob_pread(file, dst, nbytes, offset, err);
}

static void close_blob(void *file)
{
    ckpt_blob_close(file);
}

const struct data_remote store_remote = {
    .each = ckpt_blob_each, .open = open_blob, .pread = pread_blob, .close = close_blob};
