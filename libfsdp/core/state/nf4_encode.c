/* SPDX-License-Identifier: Apache-2.0 */
#include "nf4_encode.h"

#include <math.h>

#include "device/common/nf4.h"

/* NaN stays NaN, and makes the block's codes the last ones. */
static float greatest(const float *x, size_t nelem)
{
    float most = 0;
    for (size_t i = 0; i < nelem; i++)
        most = fabsf(x[i]) > most || isnan(x[i]) ? fabsf(x[i]) : most;
    return most;
}

/* The nearest value's code: how many midpoints between values are below x. */
static unsigned nearest_code(float x, const float midpoint[15])
{
    unsigned code = 0;
    for (int i = 0; i < 15; i++)
        code += !(midpoint[i] >= x);
    return code;
}

static float clamped(float x)
{
    return x < -1 ? -1 : x > 1 ? 1 : x;
}

/* A whole block is multiplied by an inverse; the end of a tensor is divided. */
static void encode_block(uint8_t *codes, float *absmax, const float *x, size_t nelem,
                         const float midpoint[15])
{
    const float least = 1e-38f, most = greatest(x, nelem), bounded = most < least ? least : most;
    const float inverse = 1 / bounded;
    const bool whole = nelem == FSDP_NF4_BLOCK;
    unsigned code[FSDP_NF4_BLOCK + 1];

    for (size_t i = 0; i < nelem; i++)
        code[i] = nearest_code(clamped(whole ? x[i] * inverse : x[i] / bounded), midpoint);
    code[nelem] = nearest_code(0, midpoint);
    for (size_t i = 0; i < nelem; i += 2)
        codes[i / 2] = (uint8_t)(code[i] << 4 | code[i + 1]);
    *absmax = whole ? most : bounded;
}

void nf4_encode(uint8_t *codes, float *absmax, const float *x, size_t nelem)
{
    float midpoint[15];

    for (int i = 0; i < 15; i++)
        midpoint[i] = (nf4_values[i] + nf4_values[i + 1]) / 2;
    for (size_t at = 0; at < nelem; at += FSDP_NF4_BLOCK) {
        const size_t here = nelem - at < FSDP_NF4_BLOCK ? nelem - at : FSDP_NF4_BLOCK;
        encode_block(codes + at / 2, absmax + at / FSDP_NF4_BLOCK, x + at, here, midpoint);
    }
}

void nf4_encode_tensor(float *scales, float *offset, const float *absmax, uint64_t nblocks)
{
    double sum = 0;

    for (uint64_t i = 0; i < nblocks; i++)
        sum += (double)absmax[i];
    *offset = (float)(sum / (double)nblocks);
    for (uint64_t at = 0; at < nblocks; at += FSDP_NF4_SUPER) {
        float *scale = &scales[at / FSDP_NF4_SUPER];
        *scale = 0;
        for (uint64_t i = at; i < nblocks && i < at + FSDP_NF4_SUPER; i++) {
            const float x = fabsf(absmax[i] - *offset);
            *scale = x > *scale || isnan(x) ? x : *scale;
        }
    }
}

/* bitsandbytes has the codes of 65,536 points in a table: x is rounded to one of these, and has the
 * point's code, which is not always the one nearest to x. */
static uint8_t scale_code(float x)
{
    const float last = 65535;
    const float position = (x + 1) * 0.5f * last + 0.5f;
    const int point = position < 0 ? 0 : position > last ? (int)last : (int)position;

    return dynamic_code_signed(dynamic_signed, (float)point * 2 / last - 1);
}

void nf4_encode_scales(uint8_t *scale_codes, const float *absmax, uint64_t first, uint64_t nblocks,
                       const float *scales, float offset)
{
    for (uint64_t i = 0; i < nblocks; i++) {
        const float scale = scales[(first + i) / FSDP_NF4_SUPER];
        /* All of them the same: any code will do, and bitsandbytes' is the first. */
        scale_codes[i] = scale > 0 ? scale_code((absmax[i] - offset) / scale) : 0;
    }
}
