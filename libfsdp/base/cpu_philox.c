/* SPDX-License-Identifier: Apache-2.0 */
/* Philox 4x32-10 (Salmon et al., SC 2011), eight counters at a time. */
#ifdef __AVX2__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#include <string.h>

#include "fsdp/sys/cpu.h"

typedef uint32_t words __attribute__((vector_size(FSDP_PHILOX_COUNTERS * sizeof(uint32_t))));

/* High and low words of x * factor. */
static inline void multiply(words *high, words *low, const words *x, uint32_t factor)
{
#ifdef __AVX2__ /* compilers do not find these two instructions by themselves */
    const __m256i even = _mm256_mul_epu32((__m256i)*x, _mm256_set1_epi32((int)factor));
    const __m256i odd =
        _mm256_mul_epu32(_mm256_srli_epi64((__m256i)*x, 32), _mm256_set1_epi32((int)factor));
    *high = (words)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
    *low = (words)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
#elif defined(__aarch64__)
    uint32x4_t in[2], top[2], bottom[2];
    memcpy(in, x, sizeof in);
    for (int j = 0; j < 2; j++) {
        const uint32x4_t first = vreinterpretq_u32_u64(vmull_n_u32(vget_low_u32(in[j]), factor));
        const uint32x4_t last = vreinterpretq_u32_u64(vmull_high_n_u32(in[j], factor));
        bottom[j] = vuzp1q_u32(first, last);
        top[j] = vuzp2q_u32(first, last);
    }
    memcpy(high, top, sizeof top);
    memcpy(low, bottom, sizeof bottom);
#else
    for (int j = 0; j < FSDP_PHILOX_COUNTERS; j++)
        (*high)[j] = (uint32_t)((uint64_t)(*x)[j] * factor >> 32);
    *low = *x * factor;
#endif
}

void fsdp_cpu_philox(uint32_t out[FSDP_PHILOX_WORDS][FSDP_PHILOX_COUNTERS], uint64_t key,
                     uint64_t stream, uint64_t counter)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    const words count = {0, 1, 2, 3, 4, 5, 6, 7}, zero = {0};
    words c[FSDP_PHILOX_WORDS], high0, high2, low0, low2;

    c[0] = count + (uint32_t)counter;
    c[1] = zero + (uint32_t)(counter >> 32);
    c[2] = zero + (uint32_t)stream;
    c[3] = zero + (uint32_t)(stream >> 32);
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
    memcpy(out, c, sizeof c);
}
