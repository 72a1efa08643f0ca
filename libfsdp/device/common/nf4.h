/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nf4.h: weights in 4 bits, the NormalFloat of QLoRA (Dettmers et al., arXiv 2305.14314), as
 * bitsandbytes stores it: the same text on the CPU and on GPUs.
 *
 *   codes    two an element's byte, the first in its high half: an index of nf4_values
 *   scales   of each block of 64 elements, its greatest absolute value, again in 8 bits: a code of
 *            dynamic_signed times a number of 256 such blocks, plus one of the whole tensor
 */
#ifndef FSDP_NF4_H
#define FSDP_NF4_H

#include "dynamic_code.h"
#include "fsdp/device.h"

/* The values of the codes; the quantiles of a normal distribution. */
DYNAMIC_TABLE float nf4_values[16] = {-1.0f,
                                      -0.6961928009986877f,
                                      -0.5250730514526367f,
                                      -0.39491748809814453f,
                                      -0.28444138169288635f,
                                      -0.18477343022823334f,
                                      -0.09105003625154495f,
                                      0.0f,
                                      0.07958029955625534f,
                                      0.16093020141124725f,
                                      0.24611230194568634f,
                                      0.33791524171829224f,
                                      0.44070982933044434f,
                                      0.5626170039176941f,
                                      0.7229568362236023f,
                                      1.0f};

/* What the elements of a block are scaled by; map: dynamic_signed. Two roundings: those who include
 * this compile it without joining the product and the sum in one instruction. */
static inline FSDP_ON_DEVICE float nf4_scale(const float *map, const struct fsdp_nf4_args *a,
                                             uint64_t block)
{
    const float product =
        map[a->scale_codes[block]] * a->scales[(a->first_block + block) / FSDP_NF4_SUPER];
    return product + *a->offset;
}

#endif
