/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dropout from a counter-based generator, eight counters at a time. A row's elements come in blocks
 * of 32; element 8 w + j of block i is word w of counter 8 i + j:
 *
 *     element   0 .. 7      8 .. 15     16 .. 23    24 .. 31  | 32 ..
 *     counter   0 .. 7      0 .. 7      0 .. 7      0 .. 7    | 8 ..
 *     word      0           1           2           3         | 0
 */
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "nn/nn_cpu.h"

enum { COUNTERS = 8, WORDS = 4, BLOCK = COUNTERS * WORDS };

typedef uint32_t words __attribute__((vector_size(COUNTERS * sizeof(uint32_t))));

/* High and low words of x * factor. */
static inline void multiply(words *high, words *low, const words *x, uint32_t factor)
{
#ifdef __AVX2__ /* compilers do not find these two instructions by themselves */
    const __m256i even = _mm256_mul_epu32((__m256i)*x, _mm256_set1_epi32((int)factor));
    const __m256i odd =
        _mm256_mul_epu32(_mm256_srli_epi64((__m256i)*x, 32), _mm256_set1_epi32((int)factor));
    *high = (words)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
    *low = (words)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
#else
    for (int j = 0; j < COUNTERS; j++)
        (*high)[j] = (uint32_t)((uint64_t)(*x)[j] * factor >> 32);
    *low = *x * factor;
#endif
}

/* Philox 4x32-10 (Salmon et al., SC 2011) of the counters (row, 8 block + j). */
static void philox(words c[WORDS], uint64_t key, uint64_t row, uint64_t block)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    const words count = {0, 1, 2, 3, 4, 5, 6, 7}, zero = {0};
    words high0, high2, low0, low2;

    c[0] = count + (uint32_t)(block * COUNTERS);
    c[1] = zero + (uint32_t)(block * COUNTERS >> 32);
    c[2] = zero + (uint32_t)row;
    c[3] = zero + (uint32_t)(row >> 32);
    for (int round = 0; round < 10; round++) {
        multiply(&high0, &low0, &c[0], 0xD2511F53);
        multiply(&high2, &low2, &c[2], 0xCD9E8D57);
        c[0] = high2 ^ c[1] ^ k0;
        c[2] = high0 ^ c[3] ^ k1;
        c[1] = low2;
        c[3] = low0;
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
}

void nn_drop_factors(float *out, const struct nn_drop *drop, int row, uint64_t first, size_t nelem)
{
    const bool all = drop->p >= 1;
    const uint32_t least = all ? UINT32_MAX : (uint32_t)((double)drop->p * 4294967296.0);
    const float keep = all ? 0 : 1 / (1 - drop->p);
    const uint64_t number = drop->first_row + (uint64_t)row;
    words c[WORDS];
    uint32_t keep_bits;

    memcpy(&keep_bits, &keep, sizeof keep_bits);
    for (uint64_t at = first, end = first + nelem; at < end;) {
        const uint64_t block = at / BLOCK, skip = at % BLOCK;
        const uint64_t here = end - at < BLOCK - skip ? end - at : BLOCK - skip;
        philox(c, drop->key, number, block);
        for (int w = 0; w < WORDS; w++)
            c[w] = (words)(c[w] >= least) & keep_bits;
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
