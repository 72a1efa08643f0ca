/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW with moments in 8 bits: a block is decoded, updated in fp32, and encoded again. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "cpu.h"
#include "device/common/dynamic_code.h"
#include "device/common/formula.h"
#include "fsdp/sys/cpu.h"

/* ---- codes ----------------------------------------------------------------------------------- */

/* Finds the nearest code without a search. Numbers whose upper 16 bits are equal have one of two
 * successive codes: `lower`, or the next one from its `least` number on. */
struct codec {
    uint8_t lower[1 << 16]; /* by the upper 16 bits of a float */
    float least[256];       /* [i]: the least number of code i + 1 */
};
static struct codec codec_signed, codec_unsigned;
static pthread_once_t codecs_once = PTHREAD_ONCE_INIT;

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The place of a float in the order of all floats, 0 for zero, and the float at a place. */
static float float_at(int64_t place)
{
    return float_of(place >= 0 ? (uint32_t)place : 0x80000000u | (uint32_t)-place);
}
static int64_t place_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 31 ? -(int64_t)(bits & 0x7fffffffu) : (int64_t)bits;
}

static void fill_codec(struct codec *c, const float *table,
                       uint8_t (*code_of)(const float *table, float x))
{
    for (int code = 0; code < 255; code++) {
        int64_t below = place_of(table[code]), at = place_of(table[code + 1]);
        while (at - below > 1) {
            const int64_t middle = below + (at - below) / 2;
            *(code_of(table, float_at(middle)) > code ? &at : &below) = middle;
        }
        c->least[code] = float_at(at);
    }
    c->least[255] = INFINITY;
    for (uint32_t half = 0; half < 1 << 16; half++) {
        const float x = float_of(half << 16 | (half >> 15 ? 0xffff : 0));
        c->lower[half] = isfinite(x) ? code_of(table, x) : 0;
    }
}

static void fill_codecs(void)
{
    fill_codec(&codec_signed, dynamic_signed, dynamic_code_signed);
    fill_codec(&codec_unsigned, dynamic_unsigned, dynamic_code_unsigned);
}

/* The nearest code to x of [-1, 1]; one of a NaN. */
static inline uint8_t nearest_code(const struct codec *c, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint8_t lower = c->lower[bits >> 16];
    return (uint8_t)(lower + (x >= c->least[lower]));
}

/* The greatest absolute value. NaNs are left out: they show in the weights. */
FSDP_CPU_CLONES static float greatest_of(const float *x, size_t nelem)
{
    enum { NLANES = 16 };
    float lane[NLANES] = {0}, most = 0;
    size_t i = 0;

    for (; i + NLANES <= nelem; i += NLANES)
        for (int k = 0; k < NLANES; k++)
            lane[k] = fabsf(x[i + k]) > lane[k] ? fabsf(x[i + k]) : lane[k];
    for (int k = 0; k < NLANES; k++)
        most = lane[k] > most ? lane[k] : most;
    for (; i < nelem; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

FSDP_CPU_CLONES static void divide(float *x, float by, size_t nelem)
{
    for (size_t i = 0; i < nelem; i++)
        x[i] /= by;
}

/* The codes of x, which it overwrites; returns the block's scale. */
static float encode_block(uint8_t *codes, const struct codec *c, float *x, size_t nelem)
{
    const float most = adamw8bit_scale(greatest_of(x, nelem));

    divide(x, most, nelem);
    for (size_t i = 0; i < nelem; i++)
        codes[i] = nearest_code(c, x[i]);
    return most;
}

/* ---- the step -------------------------------------------------------------------------------- */

struct adamw8bit_arg {
    const struct fsdp_adamw8bit_args *args;
    struct adamw factors;
};

static void adamw8bit_block(const struct adamw8bit_arg *w, size_t block)
{
    const struct fsdp_adamw8bit_args *a = w->args;
    const size_t at = block * FSDP_CUT_ALIGN;
    const size_t nelem = a->nelem - at < FSDP_CUT_ALIGN ? a->nelem - at : FSDP_CUT_ALIGN;
    float m[FSDP_CUT_ALIGN], v[FSDP_CUT_ALIGN];

    for (size_t i = 0; i < nelem; i++) {
        m[i] = dynamic_signed[a->state1[at + i]] * a->absmax1[block];
        v[i] = dynamic_unsigned[a->state2[at + i]] * a->absmax2[block];
    }
    device_cpu_adamw_loop(&w->factors, a->master + at, m, v, a->grad + at, nelem);
    a->absmax1[block] = encode_block(a->state1 + at, &codec_signed, m, nelem);
    a->absmax2[block] = encode_block(a->state2 + at, &codec_unsigned, v, nelem);
}

static void adamw8bit_part(void *arg, int worker, size_t from, size_t to)
{
    (void)worker;
    for (size_t block = from; block < to; block++)
        adamw8bit_block(arg, block);
}

static int adamw8bit_run(void *arg, struct fsdp_err *err)
{
    const struct fsdp_adamw8bit_args *a = arg;
    (void)err;
    if (a->loss_scale && a->loss_scale->skip)
        return FSDP_OK;
    pthread_once(&codecs_once, fill_codecs);
    struct adamw8bit_arg w = {a, adamw8bit_of(a)};
    fsdp_cpu_for((a->nelem + FSDP_CUT_ALIGN - 1) / FSDP_CUT_ALIGN,
                 DEVICE_CPU_GRAIN / FSDP_CUT_ALIGN, adamw8bit_part, &w);
    return FSDP_OK;
}

int device_cpu_adamw8bit(void *lane, const struct fsdp_adamw8bit_args *args, struct fsdp_err *err)
{
    return device_cpu_lane_call(lane, adamw8bit_run, args, sizeof *args, err);
}
