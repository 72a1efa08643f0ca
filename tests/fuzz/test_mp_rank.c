/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron's older folders, of two ranks: mp_rank_00 and mp_rank_01, or, with an odd first byte,
 * two pipeline stages. Each file follows behind four bytes that say how long it is. All that can be
 * read is read.
 */
#include "fuzz.h"
#include "read_all.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static const char *const folders[2][2] = {{"mp_rank_00", "mp_rank_01"},
                                              {"mp_rank_00_000", "mp_rank_00_001"}};
    char path[400], name[64];
    size_t at = 1;

    if (!nbytes)
        return 0;
    const int kind = data[0] & 1;
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s/model_optim_rng.pt", fuzz_folder(),
                 folders[i / 2][i % 2]);
        unlink(path);
        *strrchr(path, '/') = 0;
        rmdir(path);
    }
    for (int i = 0; i < 2 && nbytes - at >= 4; i++) {
        uint32_t size;
        memcpy(&size, data + at, 4);
        at += 4;
        size = size < nbytes - at ? size : (uint32_t)(nbytes - at);
        snprintf(path, sizeof path, "%s/%s", fuzz_folder(), folders[kind][i]);
        mkdir(fuzz_folder(), 0777);
        mkdir(path, 0777);
        snprintf(name, sizeof name, "%s/model_optim_rng.pt", folders[kind][i]);
        fuzz_file(name, data + at, size);
        at += size;
    }
    read_all(fuzz_folder());
    return 0;
}

FUZZ_TARGET("mp_rank")
