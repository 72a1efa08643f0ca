/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 32 elements with one scale. */
#include <math.h>
#include <string.h>

#include "quant.h"
#include "util/convert.h"

enum { BLOCK = 32, HALF = BLOCK / 2 };

static void put_f16(uint8_t *dst, float value)
{
    ckpt_convert(dst, FSDP_F16, &value, FSDP_F32, 1);
}

/* The product is rounded before the sum, whatever a compiler may fuse. */
static float scaled(float x, float inverse, float plus)
{
    volatile float product = x * inverse;
    return product + plus;
}

/* Without a fraction; NaN becomes least. */
static int within(float value, int least, int most)
{
    return value > (float)most ? most : value > (float)least ? (int)value : least;
}

/* ---- q8_0: scale, 32 signed bytes ------------------------------------------------------------ */

static void encode_q8_0(void *dst, const float *src, size_t src_nelem)
{
    uint8_t *out = dst;
    for (; src_nelem; src_nelem -= BLOCK, src += BLOCK, out += 2 + BLOCK) {
        float most = 0;
        for (int i = 0; i < BLOCK; i++)
            most = fabsf(src[i]) > most ? fabsf(src[i]) : most;
        const float scale = most / 127, inverse = scale != 0 ? 1 / scale : 0;
        put_f16(out, scale);
        for (int i = 0; i < BLOCK; i++)
            out[2 + i] = (uint8_t)within(roundf(src[i] * inverse), -127, 127);
    }
}

/* ---- q4_0, q5_0: scale, (fifth bits,) nibbles ------------------------------------------------ */

/* Elements i and i + 16 share a byte. */
static void put_nibbles(uint8_t *out, const uint8_t *q)
{
    for (int i = 0; i < HALF; i++)
        out[i] = (uint8_t)((q[i] & 15) | (q[i + HALF] & 15) << 4);
}

static void put_fifth_bits(uint8_t *out, const uint8_t *q)
{
    memset(out, 0, 4);
    for (int i = 0; i < BLOCK; i++)
        out[i / 8] |= (uint8_t)((q[i] >> 4 & 1) << i % 8);
}

/* The element that is farthest from 0 becomes 0, as -levels steps. */
static float quantize_signed(uint8_t *q, const float *src, int levels)
{
    float most = src[0];
    for (int i = 1; i < BLOCK; i++)
        most = fabsf(src[i]) > fabsf(most) ? src[i] : most;
    const float scale = most / (float)-levels, inverse = scale != 0 ? 1 / scale : 0;
    for (int i = 0; i < BLOCK; i++)
        q[i] = (uint8_t)within(scaled(src[i], inverse, (float)levels + 0.5f), 0, 2 * levels - 1);
    return scale;
}

static void encode_q4_0(void *dst, const float *src, size_t src_nelem)
{
    uint8_t *out = dst, q[BLOCK];
    for (; src_nelem; src_nelem -= BLOCK, src += BLOCK, out += 2 + HALF) {
        put_f16(out, quantize_signed(q, src, 8));
        put_nibbles(out + 2, q);
    }
}

static void encode_q5_0(void *dst, const float *src, size_t src_nelem)
{
    uint8_t *out = dst, q[BLOCK];
    for (; src_nelem; src_nelem -= BLOCK, src += BLOCK, out += 6 + HALF) {
        put_f16(out, quantize_signed(q, src, 16));
        put_fifth_bits(out + 2, q);
        put_nibbles(out + 6, q);
    }
}

/* ---- q5_1: scale, minimum, fifth bits, nibbles ----------------------------------------------- */

static void encode_q5_1(void *dst, const float *src, size_t src_nelem)
{
    uint8_t *out = dst, q[BLOCK];
    for (; src_nelem; src_nelem -= BLOCK, src += BLOCK, out += 8 + HALF) {
        float least = src[0], most = src[0];
        for (int i = 1; i < BLOCK; i++) {
            least = src[i] < least ? src[i] : least;
            most = src[i] > most ? src[i] : most;
        }
        const float scale = (most - least) / 31, inverse = scale != 0 ? 1 / scale : 0;
        for (int i = 0; i < BLOCK; i++)
            q[i] = (uint8_t)within(scaled(src[i] - least, inverse, 0.5f), 0, 31);
        put_f16(out, scale);
        put_f16(out + 2, least);
        put_fifth_bits(out + 4, q);
        put_nibbles(out + 8, q);
    }
}

const struct ckpt_encoding ckpt_quant_q8_0 = {"q8_0", BLOCK, 2 + BLOCK, encode_q8_0};
const struct ckpt_encoding ckpt_quant_q4_0 = {"q4_0", BLOCK, 2 + HALF, encode_q4_0};
const struct ckpt_encoding ckpt_quant_q5_0 = {"q5_0", BLOCK, 6 + HALF, encode_q5_0};
const struct ckpt_encoding ckpt_quant_q5_1 = {"q5_1", BLOCK, 8 + HALF, encode_q5_1};
