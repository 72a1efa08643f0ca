/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dropout from a counter-based generator, eight counters at a time. A row's elements come in blocks
 * of 32; element 8 w + j of block i is word w of counter 8 i + j:
 *
 *     element   0 .. 7      8 .. 15     16 .. 23    24 .. 31  | 32 ..
 *     counter   0 .. 7      0 .. 7      0 .. 7      0 .. 7    | 8 ..
 *     word      0           1           2           3         | 0
 */
#include "nn/nn_cpu.h"

enum { COUNTERS = 8, WORDS = 4, BLOCK = COUNTERS * WORDS };

/* Philox 4x32-10 (Salmon et al., SC 2011) of the counters (row, 8 block + j). */
static void philox(uint32_t out[WORDS][COUNTERS], uint64_t key, uint64_t row, uint64_t block)
{
    uint32_t c0[COUNTERS], c1[COUNTERS], c2[COUNTERS], c3[COUNTERS];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

    for (uint32_t j = 0; j < COUNTERS; j++) {
        c0[j] = (uint32_t)(block * COUNTERS) + j;
        c1[j] = (uint32_t)(block * COUNTERS >> 32);
        c2[j] = (uint32_t)row;
        c3[j] = (uint32_t)(row >> 32);
    }
    for (int round = 0; round < 10; round++) {
        for (int j = 0; j < COUNTERS; j++) {
            const uint64_t a = UINT64_C(0xD2511F53) * c0[j], b = UINT64_C(0xCD9E8D57) * c2[j];
            c0[j] = (uint32_t)(b >> 32) ^ c1[j] ^ k0;
            c2[j] = (uint32_t)(a >> 32) ^ c3[j] ^ k1;
            c1[j] = (uint32_t)b;
            c3[j] = (uint32_t)a;
        }
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    memcpy(out[0], c0, sizeof c0);
    memcpy(out[1], c1, sizeof c1);
    memcpy(out[2], c2, sizeof c2);
    memcpy(out[3], c3, sizeof c3);
}

void nn_drop_factors(float *out, const struct nn_drop *drop, int row, uint64_t first, size_t nelem)
{
    const bool all = drop->p >= 1;
    const uint32_t least = all ? UINT32_MAX : (uint32_t)((double)drop->p * 4294967296.0);
    const float keep = all ? 0 : 1 / (1 - drop->p);
    const uint64_t number = drop->first_row + (uint64_t)row;
    uint32_t words[WORDS][COUNTERS];
    float factors[BLOCK];

    for (uint64_t at = first, end = first + nelem; at < end;) {
        const uint64_t block = at / BLOCK, skip = at % BLOCK;
        const uint64_t here = end - at < BLOCK - skip ? end - at : BLOCK - skip;
        philox(words, drop->key, number, block);
        for (int w = 0; w < WORDS; w++)
            for (int j = 0; j < COUNTERS; j++)
                factors[w * COUNTERS + j] = words[w][j] >= least ? keep : 0.0f;
        memcpy(out + (at - first), factors + skip, here * sizeof *out);
        at += here;
    }
}

static void dropout(const struct nn_dropout *a)
{
    float factors[NN_PIECE], x_room[NN_PIECE], out_room[NN_PIECE];

    for (int b = 0; b < a->B; b++)
        for (size_t from = 0; from < a->row_nelem; from += NN_PIECE) {
            const size_t nelem = a->row_nelem - from < NN_PIECE ? a->row_nelem - from : NN_PIECE;
            const size_t at = (size_t)b * a->row_nelem + from;
            const float *x = nn_read(a->x, a->dtype, at, nelem, x_room);
            float *out = nn_piece(a->out, a->dtype, at, out_room);
            nn_drop_factors(factors, &a->drop, b, from, nelem);
            if (a->beta == 0.0f) {
                for (size_t i = 0; i < nelem; i++)
                    out[i] = factors[i] * x[i];
            } else {
                nn_read(a->out, a->dtype, at, nelem, out_room);
                for (size_t i = 0; i < nelem; i++)
                    out[i] += factors[i] * x[i];
            }
            nn_write(a->out, a->dtype, at, nelem, out);
        }
}

NN_CPU_ENQUEUE(dropout, nn_dropout)
