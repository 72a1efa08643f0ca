/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dropout from a counter-based generator, eight counters at a time. A row's elements come in blocks
 * of 32; element 8 w + j of block i is word w of counter 8 i + j:
 *
 *     element   0 .. 7      8 .. 15     16 .. 23    24 .. 31  | 32 ..
 *     counter   0 .. 7      0 .. 7      0 .. 7      0 .. 7    | 8 ..
 *     word      0           1           2           3         | 0
 */
#include "cpu.h"

enum { COUNTERS = FSDP_PHILOX_COUNTERS, WORDS = FSDP_PHILOX_WORDS, BLOCK = COUNTERS * WORDS };

void nn_drop_factors(float *out, const struct nn_drop *drop, int row, uint64_t first, size_t nelem)
{
    const bool all = drop->p >= 1;
    const uint32_t least = all ? UINT32_MAX : (uint32_t)((double)drop->p * 4294967296.0);
    const float keep = all ? 0 : 1 / (1 - drop->p);
    const uint64_t number = drop->first_row + (uint64_t)row;
    uint32_t c[WORDS][COUNTERS], keep_bits;

    memcpy(&keep_bits, &keep, sizeof keep_bits);
    for (uint64_t at = first, end = first + nelem; at < end;) {
        const uint64_t block = at / BLOCK, skip = at % BLOCK;
        const uint64_t here = end - at < BLOCK - skip ? end - at : BLOCK - skip;
        fsdp_cpu_philox(c, drop->key, number, block * COUNTERS);
        for (int w = 0; w < WORDS; w++)
            for (int j = 0; j < COUNTERS; j++)
                c[w][j] = c[w][j] >= least ? keep_bits : 0;
        memcpy(out + (at - first), (const char *)c + skip * sizeof *out, here * sizeof *out);
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
