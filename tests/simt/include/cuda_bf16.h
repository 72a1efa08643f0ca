/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_bf16.h: bf16 for tests/simt. */
#ifndef SIMT_CUDA_BF16_H
#define SIMT_CUDA_BF16_H

#include "fsdp/base.h"

struct __nv_bfloat16 {
    uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
static inline float __bfloat162float(__nv_bfloat16 x)
{
    return fsdp_bf16_to_f32(x.bits);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return __nv_bfloat16{fsdp_f32_to_bf16(x)};
}
static inline __nv_bfloat16 __float2bfloat16(float x)
{
    return __float2bfloat16_rn(x);
}

#endif
