/* SPDX-License-Identifier: Apache-2.0 */
/* Scales and codes. */
#include <float.h>
#include <math.h>

#include "ctensors.h"
#include "util/convert.h"

/* Half of the range of codes, which is that of the largest magnitude. Those of 8-bit integers are
 * -128 to 127. */
#define FP8_LARGEST 448.0f
#define INT8_HALF_RANGE 127.5f

static float rounded(enum fsdp_dtype dtype, float x)
{
    if (dtype == FSDP_BF16)
        return fsdp_bf16_to_f32(fsdp_f32_to_bf16(x));
    return dtype == FSDP_F16 ? fsdp_f16_to_f32(fsdp_f32_to_f16(x)) : x;
}

/* The distance of 1 to the next value of a type: the scale of what is zero. */
static float epsilon(enum fsdp_dtype dtype)
{
    return dtype == FSDP_BF16 ? 0x1p-7f : dtype == FSDP_F16 ? 0x1p-10f : FLT_EPSILON;
}

float ckpt_ct_largest(const float *values, uint64_t nelem)
{
    float largest = 0;
    bool finite = true;
    for (uint64_t i = 0; i < nelem; i++) {
        const float magnitude = fabsf(values[i]);
        finite &= magnitude <= FLT_MAX;
        largest = magnitude > largest ? magnitude : largest;
    }
    return finite ? largest : NAN;
}

float ckpt_ct_scale(const struct ckpt_ct_scheme *scheme, enum fsdp_dtype dtype, float largest)
{
    const float scale =
        rounded(dtype, largest / (scheme->integers ? INT8_HALF_RANGE : FP8_LARGEST));
    return scale == 0 ? epsilon(dtype) : scale;
}

/* The quotient is rounded to `dtype` before it is rounded to a code. A zero that is added makes all
 * zeros positive. */
void ckpt_ct_encode(uint8_t *dst, const struct ckpt_ct_scheme *scheme, enum fsdp_dtype dtype,
                    float scale, float *values, uint64_t nelem)
{
    const float least = scheme->integers ? -128 : -FP8_LARGEST;
    const float most = scheme->integers ? 127 : FP8_LARGEST;

    for (uint64_t i = 0; i < nelem; i++) {
        const float x = rounded(dtype, values[i] / scale) + 0.0f;
        values[i] = x < least ? least : x > most ? most : x;
    }
    if (!scheme->integers)
        ckpt_convert(dst, FSDP_F8_E4M3, values, FSDP_F32, nelem);
    for (uint64_t i = 0; scheme->integers && i < nelem; i++)
        dst[i] = (uint8_t)(lrintf(values[i]) + 128);
}
