/* SPDX-License-Identifier: Apache-2.0 */
/* The conversions of dtype.c, in loops that vectorise. */
#include <string.h>
#if defined(__F16C__) && defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "fsdp/sys/cpu.h"

FSDP_CPU_CLONES static void f32_from_bf16(float *restrict dst, const uint16_t *restrict src,
                                          size_t nelem)
{
    for (size_t i = 0; i < nelem; i++) {
        const uint32_t bits = (uint32_t)src[i] << 16;
        memcpy(&dst[i], &bits, sizeof bits);
    }
}

FSDP_CPU_CLONES static void bf16_from_f32(uint16_t *restrict dst, const float *restrict src,
                                          size_t nelem)
{
    for (size_t i = 0; i < nelem; i++) {
        uint32_t bits;
        memcpy(&bits, &src[i], sizeof bits);
        const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        const uint32_t quiet = bits >> 16 | 0x40;
        dst[i] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
    }
}

static void f32_from_f16(float *dst, const uint16_t *src, size_t nelem)
{
    size_t i = 0;
#if defined(__F16C__) && defined(__AVX__)
    for (; i + 8 <= nelem; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(src + i))));
#elif defined(__aarch64__)
    for (; i + 4 <= nelem; i += 4)
        vst1q_f32(dst + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(src + i))));
#endif
    for (; i < nelem; i++)
        dst[i] = fsdp_f16_to_f32(src[i]);
}

static void f16_from_f32(uint16_t *dst, const float *src, size_t nelem)
{
    size_t i = 0;
#if defined(__F16C__) && defined(__AVX__)
    for (; i + 8 <= nelem; i += 8)
        _mm_storeu_si128((__m128i *)(dst + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(src + i),
                                         _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__aarch64__)
    for (; i + 4 <= nelem; i += 4)
        vst1_u16(dst + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(src + i))));
#endif
    for (; i < nelem; i++)
        dst[i] = fsdp_f32_to_f16(src[i]);
}

static void to_f32(float *dst, const void *src, enum fsdp_dtype dtype, size_t nelem)
{
    if (dtype == FSDP_BF16)
        f32_from_bf16(dst, src, nelem);
    else
        f32_from_f16(dst, src, nelem);
}

static void from_f32(void *dst, enum fsdp_dtype dtype, const float *src, size_t nelem)
{
    if (dtype == FSDP_BF16)
        bf16_from_f32(dst, src, nelem);
    else
        f16_from_f32(dst, src, nelem);
}

void fsdp_cpu_convert(void *dst, enum fsdp_dtype dst_dtype, const void *src,
                      enum fsdp_dtype src_dtype, size_t nelem)
{
    enum { PIECE = 512 };
    float piece[PIECE];

    if (dst_dtype == src_dtype) {
        if (dst != src)
            memcpy(dst, src, nelem * fsdp_dtype_nbytes(dst_dtype));
    } else if (dst_dtype == FSDP_F32) {
        to_f32(dst, src, src_dtype, nelem);
    } else if (src_dtype == FSDP_F32) {
        from_f32(dst, dst_dtype, src, nelem);
    } else {
        for (size_t at = 0; at < nelem; at += PIECE) {
            const size_t n = nelem - at < PIECE ? nelem - at : PIECE;
            to_f32(piece, (const uint16_t *)src + at, src_dtype, n);
            from_f32((uint16_t *)dst + at, dst_dtype, piece, n);
        }
    }
}
