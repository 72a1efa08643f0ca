/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_fp16.h: fp16 for tests/simt. */
#ifndef SIMT_CUDA_FP16_H
#define SIMT_CUDA_FP16_H

#include "fsdp/base.h"

struct __half {
    uint16_t bits;
};
struct alignas(4) __half2 {
    __half x, y;
};
static inline float __half2float(__half x)
{
    return fsdp_f16_to_f32(x.bits);
}
static inline __half __float2half_rn(float x)
{
    return __half{fsdp_f32_to_f16(x)};
}
static inline __half __float2half(float x)
{
    return __float2half_rn(x);
}

#endif
