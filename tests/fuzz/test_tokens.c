/* SPDX-License-Identifier: Apache-2.0 */
/* Indices of token files, whose checksums are made right: the first byte is the number of tokens of
 * the file and whether they are learned, the rest the index. */
#include "data/data.h"
#include "data/tokens/format.h"
#include "fuzz.h"

enum { MAX_NBYTES = 1 << 14, AT_CRCS = 80, AT_HEADER_CRC = 104 };

static void put_crc(uint8_t *to, uint64_t crc)
{
    for (int i = 0; i < 8; i++)
        to[i] = (uint8_t)(crc >> 8 * i);
}

static void read_rows(struct data *set)
{
    int32_t tokens[5], labels[4], starts[4];
    const struct data_row row = {tokens, labels, starts, NULL};

    for (uint64_t i = 0; i < data_nrows(set); i++) {
        if (data_row(set, i, &row, NULL))
            abort(); /* what was checked as it was opened can be read */
        for (int t = 0; data_has_labels(set) && t < 4; t++)
            if (starts[t] > t || starts[t] < 0)
                abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static const uint8_t ids[4 * 128];
    static uint8_t index[MAX_NBYTES];
    const size_t nindex = nbytes - 1;

    if (nbytes < 1 + TOKENS_HEADER_NBYTES || nbytes > MAX_NBYTES)
        return 0;
    memcpy(index, data + 1, nindex);
    put_crc(index + AT_CRCS + 8 * TOKENS_INDEX,
            tokens_crc(0, index + TOKENS_HEADER_NBYTES, nindex - TOKENS_HEADER_NBYTES));
    put_crc(index + AT_HEADER_CRC, tokens_crc(0, index, AT_HEADER_CRC));
    const size_t ntokens = data[0] & 127;
    fuzz_file("a.u16", ids, 2 * ntokens);
    fuzz_file("a.u16.index", index, nindex);
    fuzz_file("a.u16.learned", data, (ntokens + 7) / 8 < nbytes ? (ntokens + 7) / 8 : nbytes);
    for (int way = 0; way < 3; way++) {
        struct data_opts opts = DATA_OPTS_INIT;
        const char *paths[] = {fuzz_folder()};
        struct data *set;
        opts.npaths = 1;
        opts.paths = paths;
        opts.format = DATA_U16;
        opts.seq_len = 4;
        opts.documents = way > 0;
        opts.whole_documents = way == 2;
        if (data_open(&set, &opts, NULL))
            continue;
        read_rows(set);
        data_close(set);
    }
    return 0;
}

FUZZ_TARGET("tokens")
