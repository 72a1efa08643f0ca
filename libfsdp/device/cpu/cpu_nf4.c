/* SPDX-License-Identifier: Apache-2.0 */
/* Weights in 4 bits, decoded block by block: a block has sixteen values, which are made once. */
#include "cpu.h"
#include "device/common/nf4.h"
#include "fsdp/sys/cpu.h"

/* The elements' values are looked up by their codes. nelem: of a block. */
#define DECODE_BLOCK(type)                                                                         \
    static void decode_##type(type *dst, const uint8_t *codes, const type value[16], size_t nelem) \
    {                                                                                              \
        for (size_t i = 0; i + 1 < nelem; i += 2) {                                                \
            dst[i] = value[codes[i / 2] >> 4];                                                     \
            dst[i + 1] = value[codes[i / 2] & 15];                                                 \
        }                                                                                          \
        if (nelem % 2)                                                                             \
            dst[nelem - 1] = value[codes[nelem / 2] >> 4];                                         \
    }
DECODE_BLOCK(float)
DECODE_BLOCK(uint16_t)

static void nf4_part(void *arg, int worker, size_t from, size_t to)
{
    const struct fsdp_nf4_args *a = arg;
    float value[16];
    uint16_t narrow[16];

    (void)worker;
    for (size_t block = from; block < to; block++) {
        const size_t at = block * FSDP_NF4_BLOCK;
        const size_t nelem = a->nelem - at < FSDP_NF4_BLOCK ? a->nelem - at : FSDP_NF4_BLOCK;
        const float scale = nf4_scale(dynamic_signed, a, block);
        for (int code = 0; code < 16; code++)
            value[code] = nf4_values[code] * scale;
        if (a->dst_dtype == FSDP_F32) {
            decode_float((float *)a->dst + at, a->codes + at / 2, value, nelem);
            continue;
        }
        fsdp_cpu_convert(narrow, a->dst_dtype, value, FSDP_F32, 16);
        decode_uint16_t((uint16_t *)a->dst + at, a->codes + at / 2, narrow, nelem);
    }
}

static int nf4_run(void *arg, struct fsdp_err *err)
{
    struct fsdp_nf4_args a = *(const struct fsdp_nf4_args *)arg;
    const size_t count = a.pieces.count ? a.pieces.count : 1;
    (void)err;
    for (size_t i = 0; i < count; i++) {
        fsdp_cpu_for((a.nelem + FSDP_NF4_BLOCK - 1) / FSDP_NF4_BLOCK,
                     DEVICE_CPU_GRAIN / FSDP_NF4_BLOCK, nf4_part, &a);
        a.dst = (char *)a.dst + a.pieces.dst_step;
        a.codes += a.pieces.src_step;
        a.scale_codes += a.pieces.src_step;
        a.first_block += a.nelem / FSDP_NF4_BLOCK;
    }
    return FSDP_OK;
}

int device_cpu_nf4_decode(void *lane, const struct fsdp_nf4_args *args, struct fsdp_err *err)
{
    return device_cpu_lane_call(lane, nf4_run, args, sizeof *args, err);
}
