/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint of DeepSpeed by two ranks. The first byte says whether each rank has model states of
 * its own (ZeRO 3); then each file follows behind four bytes that say how long it is, the
 * optimizer's first. All that can be read is read.
 */
#include "fuzz.h"
#include "read_all.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static const char *const names[] = {
        "zero_pp_rank_0_mp_rank_00_optim_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt",
        "zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt",
        "mp_rank_00_model_states.pt"};
    const int by_rank[] = {0, 1, 2, 3}, shared[] = {0, 1, 4};
    char path[400];
    size_t at = 1;

    if (!nbytes)
        return 0;
    const int *files = data[0] & 1 ? by_rank : shared, nfiles = data[0] & 1 ? 4 : 3;
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/%s", fuzz_folder(), names[i]);
        unlink(path);
    }
    for (int i = 0; i < nfiles && nbytes - at >= 4; i++) {
        uint32_t size;
        memcpy(&size, data + at, 4);
        at += 4;
        size = size < nbytes - at ? size : (uint32_t)(nbytes - at);
        fuzz_file(names[files[i]], data + at, size);
        at += size;
    }
    read_all(fuzz_folder());
    return 0;
}

FUZZ_TARGET("deepspeed")
