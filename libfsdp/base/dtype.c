/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "fsdp/base.h"

static const struct {
    const char *name;  /* safetensors */
    const char *torch; /* PyTorch and configuration files */
    const char *alias; /* short form, NULL: none */
    size_t nbytes;
    bool is_float; /* can be cast to the others that are */
} dtypes[FSDP_NDTYPES] = {
    [FSDP_F32] = {"F32", "float32", "fp32", 4, true},
    [FSDP_BF16] = {"BF16", "bfloat16", NULL, 2, true},
    [FSDP_F16] = {"F16", "float16", "fp16", 2, true},
    [FSDP_F64] = {"F64", "float64", "fp64", 8, true},
    [FSDP_I64] = {"I64", "int64", NULL, 8, false},
    [FSDP_I32] = {"I32", "int32", NULL, 4, false},
    [FSDP_I16] = {"I16", "int16", NULL, 2, false},
    [FSDP_I8] = {"I8", "int8", NULL, 1, false},
    [FSDP_U64] = {"U64", "uint64", NULL, 8, false},
    [FSDP_U32] = {"U32", "uint32", NULL, 4, false},
    [FSDP_U16] = {"U16", "uint16", NULL, 2, false},
    [FSDP_U8] = {"U8", "uint8", NULL, 1, false},
    [FSDP_BOOL] = {"BOOL", "bool", NULL, 1, false},
    [FSDP_F8_E4M3] = {"F8_E4M3", "float8_e4m3fn", NULL, 1, true},
    [FSDP_F8_E5M2] = {"F8_E5M2", "float8_e5m2", NULL, 1, true},
    [FSDP_C64] = {"C64", "complex64", NULL, 8, false},
    [FSDP_F8_E8M0] = {"F8_E8M0", "float8_e8m0fnu", NULL, 1, false},
};

size_t fsdp_dtype_nbytes(enum fsdp_dtype dtype)
{
    return dtypes[dtype].nbytes;
}

const char *fsdp_dtype_name(enum fsdp_dtype dtype)
{
    return (unsigned)dtype < FSDP_NDTYPES ? dtypes[dtype].name : "?";
}

bool fsdp_dtype_is_float(enum fsdp_dtype dtype)
{
    return dtypes[dtype].is_float;
}

int fsdp_dtype_parse(enum fsdp_dtype *out, const char *text, struct fsdp_err *err)
{
    for (int i = 0; i < FSDP_NDTYPES; i++) {
        if (!strcasecmp(text, dtypes[i].name) || !strcasecmp(text, dtypes[i].torch) ||
            (dtypes[i].alias && !strcasecmp(text, dtypes[i].alias))) {
            *out = (enum fsdp_dtype)i;
            return FSDP_OK;
        }
    }
    char known[FSDP_NDTYPES * 16] = "";
    for (int i = 0; i < FSDP_NDTYPES; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 dtypes[i].name);
    return fsdp_err_set(err, FSDP_EINVAL, "unknown dtype '%s' (known: %s)", text, known);
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

float fsdp_bf16_to_f32(uint16_t x)
{
    return float_of((uint32_t)x << 16);
}

uint16_t fsdp_f32_to_bf16(float x)
{
    uint32_t u = bits_of(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) /* NaN stays one, quiet */
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float fsdp_f16_to_f32(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, fraction = x & 0x3ff;

    if (exponent == 31)
        return float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent)
        return float_of(sign | (exponent + 112) << 23 | fraction << 13);
    float subnormal = (float)fraction * 0x1p-24f;
    return sign ? -subnormal : subnormal;
}

uint16_t fsdp_f32_to_f16(float x)
{
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffffu;

    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000u) { /* subnormal half: let float addition round at 2^-24 */
        float shifted = float_of(magnitude) + 0.5f;
        return (uint16_t)(sign | (bits_of(shifted) - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
}

float fsdp_f8_e4m3_to_f32(uint8_t x)
{
    uint32_t sign = (uint32_t)(x & 0x80) << 24, exponent = x >> 3 & 15, fraction = x & 7;

    if ((x & 0x7f) == 0x7f)
        return float_of(sign | 0x7fc00000u);
    if (exponent)
        return float_of(sign | (exponent + 120) << 23 | fraction << 20);
    float subnormal = (float)fraction * 0x1p-9f;
    return sign ? -subnormal : subnormal;
}

uint8_t fsdp_f32_to_f8_e4m3(float x)
{
    uint32_t u = bits_of(x), sign = u >> 24 & 0x80, magnitude = u & 0x7fffffffu;

    if (magnitude > 0x43e80000u) /* beyond 464, the middle between 448 and what would be 480 */
        return (uint8_t)(sign | 0x7f);
    if (magnitude < 0x3c800000u) { /* subnormal: let float addition round at 2^-9 */
        float shifted = float_of(magnitude) + 0x1p14f;
        return (uint8_t)(sign | (bits_of(shifted) - 0x46800000u));
    }
    uint32_t rounded = magnitude + 0x7ffff + (magnitude >> 20 & 1);
    return (uint8_t)(sign | (rounded - 0x3c000000u) >> 20);
}

float fsdp_f8_e5m2_to_f32(uint8_t x)
{
    return fsdp_f16_to_f32((uint16_t)(x << 8));
}

uint8_t fsdp_f32_to_f8_e5m2(float x)
{
    uint32_t u = bits_of(x), sign = u >> 24 & 0x80, magnitude = u & 0x7fffffffu;

    if (magnitude > 0x7f800000u)
        return (uint8_t)(sign | 0x7f);
    if (magnitude >= 0x47700000u) /* 61440 and more round to infinity */
        return (uint8_t)(sign | 0x7c);
    if (magnitude < 0x38800000u) { /* subnormal: let float addition round at 2^-16 */
        float shifted = float_of(magnitude) + 0x1p7f;
        return (uint8_t)(sign | (bits_of(shifted) - 0x43000000u));
    }
    uint32_t rounded = magnitude + 0xfffff + (magnitude >> 21 & 1);
    return (uint8_t)(sign | (rounded - 0x38000000u) >> 21);
}
