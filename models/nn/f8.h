/* SPDX-License-Identifier: Apache-2.0 */
/*
 * f8.h: the arithmetic of scales and codes of products in 8 bits (nn_f8), the same on every device.
 * Values are those of fsdp_f8_e4m3_to_f32 and fsdp_f8_e5m2_to_f32. Private to models/nn.
 */
#ifndef NN_F8_H
#define NN_F8_H

#include <math.h>
#include <string.h>

#include "nn.h"

#ifdef __CUDACC__
#define NN_F8_INLINE static inline __host__ __device__
#else
#define NN_F8_INLINE static inline
#endif

/* Of a type: bits of its fraction, least exponent of a normal value, and that of its greatest one,
 * which is 1.75 times the power of two. */
struct nn_f8_type {
    int nbits, least, most;
};
NN_F8_INLINE struct nn_f8_type nn_f8_type(enum fsdp_dtype dtype)
{
    const struct nn_f8_type e4m3 = {3, -6, 8}, e5m2 = {2, -14, 15};
    return dtype == FSDP_F8_E5M2 ? e5m2 : e4m3;
}

NN_F8_INLINE uint32_t nn_f8_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
NN_F8_INLINE float nn_f8_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* |x| as bits, which are in the order of the values; 0 of NaN. The greatest of a group is its amax.
 */
NN_F8_INLINE uint32_t nn_f8_magnitude(float x)
{
    const uint32_t u = nn_f8_bits(x) & 0x7fffffffu;
    return u > 0x7f800000u ? 0 : u;
}

/* The exponent of a group's scale: the least with which amax, given as bits, is not beyond the
 * type. No less than NN_F8_LEAST, so that the scale, its inverse and all values are normal in fp32
 * and bf16. */
enum { NN_F8_LEAST = -110 };
NN_F8_INLINE int nn_f8_exponent(enum fsdp_dtype dtype, uint32_t amax)
{
    const int power = (int)(amax >> 23) - 127, beyond = (amax & 0x7fffffu) > 0x600000u;
    const int e = power - nn_f8_type(dtype).most + beyond;
    return e < NN_F8_LEAST ? NN_F8_LEAST : e;
}

/* 2^e */
NN_F8_INLINE float nn_f8_power(int e)
{
    return nn_f8_float((uint32_t)(e + 127) << 23);
}

/* Where the scale of a block lies, of a line with so many: tiles of 128 lines by 4 blocks, row
 * after row, and in a tile the lines 0, 32, 64 and 96, each with its 4 bytes, then 1, 33, ... */
NN_F8_INLINE size_t nn_f8_scale_at(size_t line, size_t block, size_t nblocks)
{
    const size_t tile = line / 128 * ((nblocks + 3) / 4) + block / 4;
    return tile * 512 + line % 32 * 16 + line % 128 / 32 * 4 + block % 4;
}

/* The nearest value of the type, ties to even, for |x| no greater than its greatest. An infinity
 * becomes NaN, so that it is noticed in whatever a product gives. */
NN_F8_INLINE float nn_f8_round(struct nn_f8_type type, float x)
{
    const int shift = 23 - type.nbits;
    const uint32_t u = nn_f8_bits(x), m = u & 0x7fffffffu, sign = u ^ m;
    const uint32_t half = (1u << (shift - 1)) - 1;
    const float large = nn_f8_power(type.least + shift); /* its last place is the least code's */
    const float small = (nn_f8_float(m) + large) - large;
    const uint32_t normal = (m + half + (m >> shift & 1)) & ~((1u << shift) - 1);
    uint32_t rounded = m < (uint32_t)(type.least + 127) << 23 ? nn_f8_bits(small) : normal;
    rounded = m >= 0x7f800000u ? 0x7fc00000u : rounded;
    return nn_f8_float(rounded | sign);
}

/* The code of a value that nn_f8_round gave. */
NN_F8_INLINE uint8_t nn_f8_code(enum fsdp_dtype dtype, float rounded)
{
    const struct nn_f8_type type = nn_f8_type(dtype);
    const uint32_t u = nn_f8_bits(rounded), m = u & 0x7fffffffu;
    const int shift = 23 - type.nbits;
    const uint32_t least = (uint32_t)(type.least + 127) << 23;
    const float in_units = nn_f8_float(m) * nn_f8_power(type.nbits - type.least);
    const uint32_t normal = (m - least + (1u << 23)) >> shift;
    uint32_t code = m < least ? (uint32_t)in_units : normal;
    code = m > 0x7f800000u ? 0x7f : code;
    return (uint8_t)((u >> 24 & 0x80) | code);
}

/* The value of a code of E4M3. */
NN_F8_INLINE float nn_f8_value(uint8_t code)
{
    const uint32_t m = code & 0x7f;
    const float small = (float)m * nn_f8_power(-9);
    const uint32_t magnitude = m < 8       ? nn_f8_bits(small)
                               : m == 0x7f ? 0x7fc00000u
                                           : (m << 20) + 0x3c000000u;
    return nn_f8_float(magnitude | (uint32_t)(code & 0x80) << 24);
}

/* What the values of a tensor that was gathered in E4M3 are multiplied by, given its greatest
 * absolute value: as fsdp_dequantize has it. NaN where that is not finite. */
NN_F8_INLINE float nn_f8_gathered_scale(double amax)
{
    const uint32_t u = nn_f8_bits((float)amax);
    return u < 0x7f800000u ? nn_f8_power(nn_f8_exponent(FSDP_F8_E4M3, u))
                           : nn_f8_float(0x7fc00000u);
}

#endif
