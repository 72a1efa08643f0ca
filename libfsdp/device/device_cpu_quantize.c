/* SPDX-License-Identifier: Apache-2.0 */
/* 8-bit floats with one scale for many elements. */
#include <math.h>
#include <string.h>

#include "device_cpu.h"
#include "fsdp/sys/cpu.h"

/* The scale of F8_E4M3: 448 / amax; 1 for zeros, NaN (and so all elements) for what is not finite.
 */
static float scale_of(double amax)
{
    if (amax == 0)
        return 1;
    return isfinite(amax) ? (float)(448 / amax) : NAN;
}

struct rows_arg {
    double *out;
    const double *in;
    size_t nrows, ncols;
};

static int rows_run(void *arg, struct fsdp_err *err)
{
    const struct rows_arg *a = arg;
    (void)err;
    memcpy(a->out, a->in, a->ncols * sizeof *a->out);
    for (size_t i = 1; i < a->nrows; i++)
        for (size_t j = 0; j < a->ncols; j++) {
            double x = a->in[i * a->ncols + j];
            if (!(x <= a->out[j]) && !isnan(a->out[j])) /* takes a NaN, and keeps it */
                a->out[j] = x;
        }
    return FSDP_OK;
}

int device_cpu_max_rows(void *lane, double *out, const double *in, size_t nrows, size_t ncols,
                        struct fsdp_err *err)
{
    struct rows_arg arg = {out, in, nrows, ncols};
    return device_cpu_lane_call(lane, rows_run, &arg, sizeof arg, err);
}

struct quantize_arg {
    void *dst;
    const void *src;
    enum fsdp_dtype dst_dtype;
    size_t nelem;
    const double *amax;
};

/* fsdp_f32_to_f8_e4m3 of x * scale, clamped to +-448, without branches. */
FSDP_CPU_CLONES static void encode_e4m3(uint8_t *restrict dst, const float *restrict src,
                                        size_t nelem, float scale)
{
    for (size_t i = 0; i < nelem; i++) {
        float x = src[i] * scale, magnitude = fabsf(x), shifted;
        uint32_t u, m, small;
        magnitude = magnitude > 448 ? 448 : magnitude; /* NaN stays */
        shifted = magnitude + 0x1p14f;
        memcpy(&u, &x, sizeof u);
        memcpy(&m, &magnitude, sizeof m);
        memcpy(&small, &shifted, sizeof small);
        uint32_t normal = (m + 0x7ffff + (m >> 20 & 1) - 0x3c000000u) >> 20;
        uint32_t code = m < 0x3c800000u ? small - 0x46800000u : normal;
        code = m > 0x7f800000u ? 0x7f : code;
        dst[i] = (uint8_t)((u >> 24 & 0x80) | code);
    }
}

static int quantize_run(void *arg, struct fsdp_err *err)
{
    const struct quantize_arg *a = arg;
    (void)err;
    encode_e4m3(a->dst, a->src, a->nelem, scale_of(*a->amax));
    return FSDP_OK;
}

int device_cpu_quantize(void *lane, void *dst, enum fsdp_dtype narrow, const float *src,
                        size_t nelem, const double *amax, struct fsdp_err *err)
{
    struct quantize_arg arg = {dst, src, narrow, nelem, amax};
    return device_cpu_lane_call(lane, quantize_run, &arg, sizeof arg, err);
}

static int dequantize_run(void *arg, struct fsdp_err *err)
{
    enum { PIECE = 1024 };
    const struct quantize_arg *a = arg;
    const uint8_t *src = a->src;
    const float scale = scale_of(*a->amax);
    float value[256], piece[PIECE];
    (void)err;
    for (int code = 0; code < 256; code++)
        value[code] = fsdp_f8_e4m3_to_f32((uint8_t)code) / scale;
    for (size_t at = 0; at < a->nelem; at += PIECE) {
        size_t nelem = a->nelem - at < PIECE ? a->nelem - at : PIECE;
        for (size_t i = 0; i < nelem; i++)
            piece[i] = value[src[at + i]];
        fsdp_cpu_convert((char *)a->dst + at * fsdp_dtype_nbytes(a->dst_dtype), a->dst_dtype, piece,
                         FSDP_F32, nelem);
    }
    return FSDP_OK;
}

int device_cpu_dequantize(void *lane, void *dst, enum fsdp_dtype dst_dtype, const void *src,
                          enum fsdp_dtype narrow, size_t nelem, const double *amax,
                          struct fsdp_err *err)
{
    struct quantize_arg arg = {dst, src, dst_dtype, nelem, amax};
    (void)narrow;
    return device_cpu_lane_call(lane, dequantize_run, &arg, sizeof arg, err);
}
