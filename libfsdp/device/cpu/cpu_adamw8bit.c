/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW with moments in 8 bits: a block is decoded, updated in fp32, and encoded again. */
#include <math.h>

#include "cpu.h"
#include "device/common/dynamic_code.h"
#include "device/common/formula.h"
#include "fsdp/sys/cpu.h"

struct adamw8bit_arg {
    const struct fsdp_adamw8bit_args *args;
    struct adamw factors;
};

/* The block's scale: fmaxf passes over what is no number, which then shows in the weights. */
static float encode_block(uint8_t *codes, const float *table, const float *x, size_t nelem)
{
    float most = 0;

    for (size_t i = 0; i < nelem; i++)
        most = fmaxf(most, fabsf(x[i]));
    most = adamw8bit_scale(most);
    for (size_t i = 0; i < nelem; i++)
        codes[i] = dynamic_nearest(table, x[i] / most);
    return most;
}

static void adamw8bit_block(const struct adamw8bit_arg *w, size_t block)
{
    const struct fsdp_adamw8bit_args *a = w->args;
    const size_t at = block * FSDP_CUT_ALIGN;
    const size_t nelem = a->nelem - at < FSDP_CUT_ALIGN ? a->nelem - at : FSDP_CUT_ALIGN;
    float m[FSDP_CUT_ALIGN], v[FSDP_CUT_ALIGN];

    for (size_t i = 0; i < nelem; i++) {
        m[i] = dynamic_signed[a->state1[at + i]] * a->absmax1[block];
        v[i] = dynamic_unsigned[a->state2[at + i]] * a->absmax2[block];
        adamw_element(&w->factors, &a->master[at + i], &m[i], &v[i], a->grad[at + i]);
    }
    a->absmax1[block] = encode_block(a->state1 + at, dynamic_signed, m, nelem);
    a->absmax2[block] = encode_block(a->state2 + at, dynamic_unsigned, v, nelem);
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
    struct adamw8bit_arg w = {a, adamw8bit_of(a)};
    fsdp_cpu_for((a->nelem + FSDP_CUT_ALIGN - 1) / FSDP_CUT_ALIGN,
                 DEVICE_CPU_GRAIN / FSDP_CUT_ALIGN, adamw8bit_part, &w);
    return FSDP_OK;
}

int device_cpu_adamw8bit(void *lane, const struct fsdp_adamw8bit_args *args, struct fsdp_err *err)
{
    return device_cpu_lane_call(lane, adamw8bit_run, args, sizeof *args, err);
}
