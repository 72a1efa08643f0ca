/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "convert.h"

/* An 8-bit float: sign, exponent, `mantissa` bits. */
struct f8 {
    int mantissa, min_exponent;      /* of the smallest normal value */
    unsigned largest, overflow, nan; /* codes */
};
static const struct f8 e4m3 = {3, -6, 0x7e, 0x7e, 0x7f}; /* no infinity: the largest value */
static const struct f8 e5m2 = {2, -14, 0x7b, 0x7c, 0x7f};

static uint8_t f8_encode(const struct f8 *f, float x)
{
    unsigned sign = signbit(x) ? 0x80 : 0, code;
    int exponent;
    float a = fabsf(x);

    if (isnan(x))
        return (uint8_t)(sign | f->nan);
    if (isinf(x))
        return (uint8_t)(sign | f->overflow);
    frexpf(a, &exponent);
    exponent = exponent - 1 < f->min_exponent || a == 0 ? f->min_exponent : exponent - 1;
    if (exponent > 32)
        return (uint8_t)(sign | f->overflow);
    /* In units of the last place; exact before rounding, and a carry into the next exponent comes
     * out right by itself. */
    code = (unsigned)lrintf(ldexpf(a, f->mantissa - exponent));
    code += (unsigned)(exponent - f->min_exponent) << f->mantissa;
    return (uint8_t)(sign | (code > f->largest ? f->overflow : code));
}

static float f8_decode(const struct f8 *f, uint8_t x)
{
    unsigned code = x & 0x7f, fraction = code & ((1u << f->mantissa) - 1);
    int exponent = (int)(code >> f->mantissa);
    float a;

    if (code > f->largest)
        a = code == f->overflow && f->overflow != f->nan ? INFINITY : NAN;
    else if (exponent == 0)
        a = ldexpf((float)fraction, f->min_exponent - f->mantissa);
    else
        a = ldexpf((float)(fraction + (1u << f->mantissa)),
                   exponent - 1 + f->min_exponent - f->mantissa);
    return x & 0x80 ? -a : a;
}

static void to_float(float *dst, const void *src, enum fsdp_dtype from, size_t nelem)
{
    const uint16_t *half = src;
    const uint8_t *byte = src;
    const double *wide = src;
    for (size_t i = 0; i < nelem; i++) {
        uint32_t bits;
        switch (from) {
        case FSDP_BF16:
            bits = (uint32_t)half[i] << 16;
            memcpy(&dst[i], &bits, sizeof bits);
            break;
        case FSDP_F16:
            dst[i] = fsdp_f16_to_f32(half[i]);
            break;
        case FSDP_F64:
            dst[i] = (float)wide[i];
            break;
        case FSDP_F8_E4M3:
            dst[i] = f8_decode(&e4m3, byte[i]);
            break;
        case FSDP_F8_E5M2:
            dst[i] = f8_decode(&e5m2, byte[i]);
            break;
        default:
            dst[i] = ((const float *)src)[i];
        }
    }
}

static void from_float(void *dst, enum fsdp_dtype to, const float *src, size_t nelem)
{
    uint16_t *half = dst;
    uint8_t *byte = dst;
    double *wide = dst;
    for (size_t i = 0; i < nelem; i++) {
        switch (to) {
        case FSDP_BF16:
            half[i] = fsdp_f32_to_bf16(src[i]);
            break;
        case FSDP_F16:
            half[i] = fsdp_f32_to_f16(src[i]);
            break;
        case FSDP_F64:
            wide[i] = (double)src[i];
            break;
        case FSDP_F8_E4M3:
            byte[i] = f8_encode(&e4m3, src[i]);
            break;
        case FSDP_F8_E5M2:
            byte[i] = f8_encode(&e5m2, src[i]);
            break;
        default:
            ((float *)dst)[i] = src[i];
        }
    }
}

bool ckpt_convert_can(enum fsdp_dtype to, enum fsdp_dtype from)
{
    return to == from || (fsdp_dtype_is_float(to) && fsdp_dtype_is_float(from));
}

void ckpt_convert(void *dst, enum fsdp_dtype to, const void *src, enum fsdp_dtype from,
                  size_t nelem)
{
    enum { STEP = 1024 };
    float buffer[STEP];
    const char *in = src;
    char *out = dst;

    if (to == from) {
        memcpy(dst, src, nelem * fsdp_dtype_nbytes(to));
        return;
    }
    while (nelem) {
        size_t part = nelem < STEP ? nelem : STEP;
        to_float(buffer, in, from, part);
        from_float(out, to, buffer, part);
        in += part * fsdp_dtype_nbytes(from);
        out += part * fsdp_dtype_nbytes(to);
        nelem -= part;
    }
}
