/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums in rank order. Blocks are summed in a small accumulator that stays in the first-level cache,
 * so that every source is read once, and dst may be one of the sources. 16-bit floats are
 * accumulated in fp32 and rounded once. Integers wrap around.
 */
#include <string.h>
#if defined(__F16C__) && defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "comm_sum.h"
#include "fsdp/sys/cpu.h"

enum { BLOCK_NELEM = 1024 };

#define DEFINE_SUM(name, type)                                                                     \
    static void name(type *dst, const void *const *src, int nsrc, size_t nelem)                    \
    {                                                                                              \
        type acc[BLOCK_NELEM];                                                                     \
        for (size_t at = 0; at < nelem; at += BLOCK_NELEM) {                                       \
            size_t count = nelem - at < BLOCK_NELEM ? nelem - at : BLOCK_NELEM;                    \
            const type *first = (const type *)src[0] + at;                                         \
            const type *last = (const type *)src[nsrc - 1] + at;                                   \
            for (int s = 1; s < nsrc - 1; s++) {                                                   \
                const type *next = (const type *)src[s] + at;                                      \
                for (size_t i = 0; i < count; i++)                                                 \
                    acc[i] = (type)(first[i] + next[i]);                                           \
                first = acc;                                                                       \
            }                                                                                      \
            type *out = dst + at;                                                                  \
            FSDP_INDEPENDENT for (size_t i = 0; i < count; i++) out[i] =                           \
                (type)(first[i] + last[i]);                                                        \
        }                                                                                          \
    }

DEFINE_SUM(sum_f32, float)
DEFINE_SUM(sum_f64, double)
DEFINE_SUM(sum_u64, uint64_t)
DEFINE_SUM(sum_u32, uint32_t)
DEFINE_SUM(sum_u16, uint16_t)
DEFINE_SUM(sum_u8, uint8_t)

/* ---- bf16: the conversions of base, inlined so that the loops vectorise --------------------- */

static inline float bf16_load(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float value;
    memcpy(&value, &u, sizeof value);
    return value;
}

static inline uint16_t bf16_round(float value)
{
    uint32_t u;
    memcpy(&u, &value, sizeof u);
    uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 0x40;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static void bf16_add(float *acc, const uint16_t *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        acc[i] += bf16_load(x[i]);
}

static void bf16_first(float *acc, const uint16_t *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        acc[i] = bf16_load(x[i]);
}

static void bf16_store(uint16_t *out, const float *acc, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = bf16_round(acc[i]);
}

/* ---- fp16 ----------------------------------------------------------------------------------- */

static void f16_first(float *acc, const uint16_t *x, size_t count)
{
    size_t i = 0;
#if defined(__F16C__) && defined(__AVX__)
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(acc + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i))));
#elif defined(__aarch64__)
    for (; i + 4 <= count; i += 4)
        vst1q_f32(acc + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x + i))));
#endif
    for (; i < count; i++)
        acc[i] = fsdp_f16_to_f32(x[i]);
}

static void f16_add(float *acc, const uint16_t *x, size_t count)
{
    float term[BLOCK_NELEM];

    f16_first(term, x, count);
    for (size_t i = 0; i < count; i++)
        acc[i] += term[i];
}

static void f16_store(uint16_t *out, const float *acc, size_t count)
{
    size_t i = 0;
#if defined(__F16C__) && defined(__AVX__)
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(out + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(acc + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    for (; i + 4 <= count; i += 4)
        vst1_u16(out + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(acc + i))));
#endif
    for (; i < count; i++)
        out[i] = fsdp_f32_to_f16(acc[i]);
}

#define DEFINE_SUM_16(name, first, add, store)                                                     \
    static void name(uint16_t *dst, const void *const *src, int nsrc, size_t nelem)                \
    {                                                                                              \
        float acc[BLOCK_NELEM];                                                                    \
        for (size_t at = 0; at < nelem; at += BLOCK_NELEM) {                                       \
            size_t count = nelem - at < BLOCK_NELEM ? nelem - at : BLOCK_NELEM;                    \
            first(acc, (const uint16_t *)src[0] + at, count);                                      \
            for (int s = 1; s < nsrc; s++)                                                         \
                add(acc, (const uint16_t *)src[s] + at, count);                                    \
            store(dst + at, acc, count);                                                           \
        }                                                                                          \
    }

DEFINE_SUM_16(sum_bf16, bf16_first, bf16_add, bf16_store)
DEFINE_SUM_16(sum_f16, f16_first, f16_add, f16_store)

void comm_sum(void *dst, const void *const *src, int nsrc, size_t nelem, enum fsdp_dtype dtype)
{
    if (nsrc == 1) {
        if (dst != src[0] && nelem)
            memcpy(dst, src[0], nelem * fsdp_dtype_nbytes(dtype));
        return;
    }
    switch (dtype) {
    case FSDP_F32:
        sum_f32(dst, src, nsrc, nelem);
        break;
    case FSDP_F64:
        sum_f64(dst, src, nsrc, nelem);
        break;
    case FSDP_BF16:
        sum_bf16(dst, src, nsrc, nelem);
        break;
    case FSDP_F16:
        sum_f16(dst, src, nsrc, nelem);
        break;
    case FSDP_I64:
    case FSDP_U64:
        sum_u64(dst, src, nsrc, nelem);
        break;
    case FSDP_I32:
    case FSDP_U32:
        sum_u32(dst, src, nsrc, nelem);
        break;
    case FSDP_I16:
    case FSDP_U16:
        sum_u16(dst, src, nsrc, nelem);
        break;
    case FSDP_I8:
    case FSDP_U8:
        sum_u8(dst, src, nsrc, nelem);
        break;
    case FSDP_BOOL:
    case FSDP_F8_E4M3:
    case FSDP_F8_E5M2:
    case FSDP_C64:
    case FSDP_F8_E8M0:
    case FSDP_NDTYPES:
        break; /* comm.c refused them */
    }
}
