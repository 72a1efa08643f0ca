/* SPDX-License-Identifier: Apache-2.0 */
/* nf4_encode.h: weights to 4 bits, to the bit as bitsandbytes' quantize_4bit on the CPU, with
 * blocks of 64, double quantization and nf4. On the host; pure. */
#ifndef CORE_NF4_ENCODE_H
#define CORE_NF4_ENCODE_H

#include "fsdp/device.h"

static inline uint64_t nf4_nblocks(uint64_t nelem)
{
    return (nelem + FSDP_NF4_BLOCK - 1) / FSDP_NF4_BLOCK;
}

static inline uint64_t nf4_nsupers(uint64_t nblocks)
{
    return (nblocks + FSDP_NF4_SUPER - 1) / FSDP_NF4_SUPER;
}

/* Elements of a tensor from the beginning of a block on; that a last block is short means that the
 * tensor ends there. codes[ceil(nelem / 2)], absmax[nf4_nblocks(nelem)]. */
void nf4_encode(uint8_t *codes, float *absmax, const float *x, size_t nelem);
/* What a tensor's scales are scaled by, from the absmax of all its nblocks blocks:
 * scales[nf4_nsupers(nblocks)], offset[1]. The sum is made in fp64. */
void nf4_encode_tensor(float *scales, float *offset, const float *absmax, uint64_t nblocks);
/* Scales of the blocks [first, first + nblocks) in 8 bits; absmax begins at the first. */
void nf4_encode_scales(uint8_t *scale_codes, const float *absmax, uint64_t first, uint64_t nblocks,
                       const float *scales, float offset);

#endif
