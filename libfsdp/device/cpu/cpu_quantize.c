/* SPDX-License-Identifier: Apache-2.0 */
/* 8-bit floats with one scale for many elements. */
#include <string.h>

#include "cpu.h"
#include "device/common/formula.h"
#include "fsdp/sys/cpu.h"

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
        for (size_t j = 0; j < a->ncols; j++)
            a->out[j] = greater(a->out[j], a->in[i * a->ncols + j]);
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

FSDP_CPU_CLONES static void encode_e4m3(uint8_t *restrict dst, const float *restrict src,
                                        size_t nelem, float scale)
{
    for (size_t i = 0; i < nelem; i++)
        dst[i] = e4m3_encode(src[i] * scale);
}

static int quantize_run(void *arg, struct fsdp_err *err)
{
    const struct quantize_arg *a = arg;
    (void)err;
    encode_e4m3(a->dst, a->src, a->nelem, e4m3_scale(*a->amax));
    return FSDP_OK;
}

int device_cpu_quantize(void *lane, void *dst, enum fsdp_dtype narrow, const float *src,
                        size_t nelem, const double *amax, struct fsdp_err *err)
{
    struct quantize_arg arg = {dst, src, narrow, nelem, amax};
    return device_cpu_lane_call(lane, quantize_run, &arg, sizeof arg, err);
}

/* value: of each code. */
static void decode_e4m3(char *dst, enum fsdp_dtype dtype, const uint8_t *src, size_t nelem,
                        const float value[256])
{
    enum { PIECE = 1024 };
    float piece[PIECE];

    for (size_t at = 0; at < nelem; at += PIECE) {
        const size_t here = nelem - at < PIECE ? nelem - at : PIECE;
        for (size_t i = 0; i < here; i++)
            piece[i] = value[src[at + i]];
        fsdp_cpu_convert(dst + at * fsdp_dtype_nbytes(dtype), dtype, piece, FSDP_F32, here);
    }
}

static int dequantize_run(void *arg, struct fsdp_err *err)
{
    const struct fsdp_dequantize_args *a = arg;
    const size_t count = a->pieces.count ? a->pieces.count : 1;
    const float scale = e4m3_scale(*a->amax);
    float value[256];
    (void)err;
    for (int code = 0; code < 256; code++)
        value[code] = fsdp_f8_e4m3_to_f32((uint8_t)code) / scale;
    for (size_t i = 0; i < count; i++)
        decode_e4m3((char *)a->dst + i * a->pieces.dst_step, a->dst_dtype,
                    (const uint8_t *)a->src + i * a->pieces.src_step, a->nelem, value);
    return FSDP_OK;
}

int device_cpu_dequantize(void *lane, const struct fsdp_dequantize_args *args, struct fsdp_err *err)
{
    return device_cpu_lane_call(lane, dequantize_run, args, sizeof *args, err);
}
