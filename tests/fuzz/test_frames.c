/* SPDX-License-Identifier: Apache-2.0 */
/* A compressed data file: its frame table, then all of it in pieces that cross its chunks. */
#include "../../ckpt/file/zst.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static struct ckpt_codec_pool *pool;
    const struct ckpt_store_ops *ops;
    struct ckpt_data *file;
    static char piece[70000];
    const char *path = fuzz_file("x.safetensors.zst", data, nbytes);
    if (!pool && ckpt_codec_pool_create(&pool, NULL))
        return 0;
    if (ckpt_store_of(&ops, path, NULL) || ckpt_data_open(&file, ops, path, pool, NULL))
        return 0;
    uint64_t all = ckpt_data_nbytes(file);
    for (uint64_t pos = 0; pos < all && pos < 4u << 20; pos += sizeof piece)
        ckpt_data_pread(file, piece, (size_t)(all - pos < sizeof piece ? all - pos : sizeof piece),
                        pos, NULL);
    ckpt_data_close(file);
    return 0;
}

FUZZ_TARGET("frames")
