/* SPDX-License-Identifier: Apache-2.0 */
/* philox.h: Philox 4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers:
 * as easy as 1, 2, 3" (SC 2011). Pure: four words from (seed, stream, counter). */
#ifndef FSDP_PHILOX_H
#define FSDP_PHILOX_H

#include <stdint.h>

/* Before a function that kernels call, too. */
#ifdef __CUDACC__
#define FSDP_ON_DEVICE __host__ __device__
#else
#define FSDP_ON_DEVICE
#endif

static inline FSDP_ON_DEVICE void philox4x32(uint32_t out[4], uint64_t seed, uint64_t stream,
                                             uint64_t counter)
{
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

    for (int round = 0; round < 10; round++) {
        uint64_t a = UINT64_C(0xD2511F53) * c0, b = UINT64_C(0xCD9E8D57) * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

#endif
