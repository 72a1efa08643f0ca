/* SPDX-License-Identifier: Apache-2.0 */
/* Indices of Megatron-LM: the first byte is the number of tokens of the .bin, the rest the .idx. */
#include "data/data.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static const uint8_t ids[4 * 256];
    struct data_opts opts = DATA_OPTS_INIT;
    struct data *set;
    int32_t tokens[5], labels[4], starts[4];
    const struct data_row row = {tokens, labels, starts, NULL};

    if (nbytes < 19)
        return 0;
    fuzz_file("a.bin", ids, (size_t)data[0] * (data[18] == 8 ? 2 : 4));
    fuzz_file("a.idx", data + 1, nbytes - 1);
    const char *paths[] = {fuzz_folder()};
    opts.npaths = 1;
    opts.paths = paths;
    opts.format = DATA_MEGATRON;
    opts.seq_len = 4;
    opts.documents = true;
    if (data_open(&set, &opts, NULL))
        return 0;
    for (uint64_t i = 0; i < data_nrows(set); i++) {
        if (data_row(set, i, &row, NULL))
            abort(); /* what was checked as it was opened can be read */
        for (int t = 0; t < 4; t++)
            if (starts[t] > t || starts[t] < 0)
                abort();
    }
    data_close(set);
    return 0;
}

FUZZ_TARGET("megatron")
