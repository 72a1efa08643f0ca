/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW on the CPU. The step itself is one loop over fp32; moments and weights in BF16 and split
 * masters are brought to fp32 and back a piece at a time, while it is in the cache. Loops are
 * written for the vectoriser.
 */
#include <string.h>

#include "cpu.h"
#include "device/common/formula.h"
#include "fsdp/sys/cpu.h"

enum { PIECE = 4096, BLOCK = FSDP_PHILOX_WORDS * FSDP_PHILOX_COUNTERS };

/* ---- halves of masters ----------------------------------------------------------------------- */

FSDP_CPU_CLONES static void halve(uint16_t *restrict param, uint16_t *restrict rest,
                                  const float *restrict x, size_t nelem)
{
    for (size_t i = 0; i < nelem; i++)
        master_split(&param[i], &rest[i], x[i]);
}

FSDP_CPU_CLONES static void join(float *restrict x, const uint16_t *restrict param,
                                 const uint16_t *restrict rest, size_t nelem)
{
    for (size_t i = 0; i < nelem; i++)
        x[i] = master_join(param[i], rest[i]);
}

struct halves_arg {
    uint16_t *param, *rest;
    float *x;
    bool joins;
    size_t nelem;
};

static void halves_part(void *arg, int worker, size_t from, size_t to)
{
    const struct halves_arg *a = arg;
    (void)worker;
    if (a->joins)
        join(a->x + from, a->param + from, a->rest + from, to - from);
    else
        halve(a->param + from, a->rest + from, a->x + from, to - from);
}

static int halves_run(void *arg, struct fsdp_err *err)
{
    struct halves_arg *a = arg;
    (void)err;
    fsdp_cpu_for(a->nelem, DEVICE_CPU_GRAIN, halves_part, a);
    return FSDP_OK;
}

int device_cpu_split(void *lane, void *param, uint16_t *rest, const float *x, size_t nelem,
                     struct fsdp_err *err)
{
    struct halves_arg arg = {param, rest, (float *)(uintptr_t)x, false, nelem};
    return device_cpu_lane_call(lane, halves_run, &arg, sizeof arg, err);
}

int device_cpu_join(void *lane, float *x, const void *param, const uint16_t *rest, size_t nelem,
                    struct fsdp_err *err)
{
    struct halves_arg arg = {(uint16_t *)(uintptr_t)param, (uint16_t *)(uintptr_t)rest, x, true,
                             nelem};
    return device_cpu_lane_call(lane, halves_run, &arg, sizeof arg, err);
}

/* ---- what is rounded stochastically ---------------------------------------------------------- */

/* words[i]: of element `from` + i of the tensor. */
static void random_words(uint32_t *words, const struct fsdp_rounding *r, uint64_t from,
                         size_t nelem)
{
    uint32_t made[FSDP_PHILOX_WORDS][FSDP_PHILOX_COUNTERS], block[BLOCK];

    for (size_t done = 0; done < nelem;) {
        const uint64_t at = (from + done) / BLOCK, skip = (from + done) % BLOCK;
        const size_t left = nelem - done, here = left < BLOCK - skip ? left : BLOCK - skip;
        fsdp_cpu_philox(made, r->key, r->step, at * FSDP_PHILOX_COUNTERS);
        for (int j = 0; j < FSDP_PHILOX_COUNTERS; j++)
            for (int w = 0; w < FSDP_PHILOX_WORDS; w++)
                block[FSDP_PHILOX_WORDS * j + w] = made[w][j];
        memcpy(words + done, block + skip, here * sizeof *words);
        done += here;
    }
}

FSDP_CPU_CLONES static void round_by_chance(uint16_t *restrict m, uint16_t *restrict v,
                                            const float *restrict new_m,
                                            const float *restrict new_v,
                                            const uint32_t *restrict words, size_t nelem)
{
    for (size_t i = 0; i < nelem; i++) {
        m[i] = bf16_by_chance(new_m[i], words[i]);
        v[i] = bf16_by_chance(new_v[i], words[i] >> 16);
    }
}

FSDP_CPU_CLONES static void round_weights(uint16_t *restrict param, const float *restrict x,
                                          const uint32_t *restrict words, size_t nelem)
{
    for (size_t i = 0; i < nelem; i++)
        param[i] = bf16_by_chance(x[i], words[i]);
}

struct narrow_arg {
    uint16_t *dst;
    const float *src;
    size_t nelem;
    struct fsdp_rounding rounding;
};

static void narrow_part(void *arg, int worker, size_t from, size_t to)
{
    const struct narrow_arg *a = arg;
    uint32_t words[PIECE];

    (void)worker;
    for (size_t at = from; at < to; at += PIECE) {
        const size_t nelem = to - at < PIECE ? to - at : PIECE;
        random_words(words, &a->rounding, a->rounding.first + at, nelem);
        round_weights(a->dst + at, a->src + at, words, nelem);
    }
}

static int narrow_run(void *arg, struct fsdp_err *err)
{
    (void)err;
    fsdp_cpu_for(((const struct narrow_arg *)arg)->nelem, DEVICE_CPU_GRAIN, narrow_part, arg);
    return FSDP_OK;
}

int device_cpu_narrow(void *lane, void *dst, const float *src, size_t nelem,
                      const struct fsdp_rounding *rounding, struct fsdp_err *err)
{
    struct narrow_arg arg = {dst, src, nelem, *rounding};
    return device_cpu_lane_call(lane, narrow_run, &arg, sizeof arg, err);
}

/* ---- the step -------------------------------------------------------------------------------- */

struct adamw_arg {
    const struct fsdp_adamw_args *args;
    struct adamw factors;
};

FSDP_CPU_CLONES void device_cpu_adamw_loop(const struct adamw *w, float *restrict p,
                                           float *restrict m, float *restrict v,
                                           const float *restrict g, size_t nelem)
{
    const struct adamw factors = *w;

    for (size_t i = 0; i < nelem; i++)
        adamw_element(&factors, &p[i], &m[i], &v[i], g[i]);
}

static void adamw_piece(const struct adamw_arg *w, size_t at, size_t nelem)
{
    const struct fsdp_adamw_args *a = w->args;
    const bool narrow = a->moment_dtype == FSDP_BF16, split = a->rest != NULL;
    uint16_t *param = (uint16_t *)a->param + at; /* without a whole master */
    uint16_t *half_m = (uint16_t *)a->exp_avg + at, *half_v = (uint16_t *)a->exp_avg_sq + at;
    float room_p[PIECE], room_m[PIECE], room_v[PIECE], room_g[PIECE];
    const float *g = room_g;
    float *p = a->master ? a->master + at : room_p;
    float *m = narrow ? room_m : (float *)a->exp_avg + at;
    float *v = narrow ? room_v : (float *)a->exp_avg_sq + at;
    uint32_t words[PIECE];

    if (!a->master && split)
        join(p, param, a->rest + at, nelem);
    else if (!a->master)
        fsdp_cpu_convert(p, FSDP_F32, param, FSDP_BF16, nelem);
    if (narrow) {
        fsdp_cpu_convert(m, FSDP_F32, half_m, FSDP_BF16, nelem);
        fsdp_cpu_convert(v, FSDP_F32, half_v, FSDP_BF16, nelem);
    }
    if (a->grad_dtype == FSDP_BF16)
        fsdp_cpu_convert(room_g, FSDP_F32, (const uint16_t *)a->grad + at, FSDP_BF16, nelem);
    else
        g = (const float *)a->grad + at;
    device_cpu_adamw_loop(&w->factors, p, m, v, g, nelem);
    if (narrow) {
        random_words(words, &a->rounding, a->rounding.first + at, nelem);
        round_by_chance(half_m, half_v, m, v, words, nelem);
    }
    if (!a->master && split) {
        halve(param, a->rest + at, p, nelem);
    } else if (!a->master) {
        random_words(words, &a->weight_rounding, a->weight_rounding.first + at, nelem);
        round_weights(param, p, words, nelem);
    } else if (a->param) {
        fsdp_cpu_convert((char *)a->param + at * fsdp_dtype_nbytes(a->param_dtype), a->param_dtype,
                         p, FSDP_F32, nelem);
    }
}

static void adamw_part(void *arg, int worker, size_t from, size_t to)
{
    (void)worker;
    for (size_t at = from; at < to; at += PIECE)
        adamw_piece(arg, at, to - at < PIECE ? to - at : PIECE);
}

static int adamw_run(void *arg, struct fsdp_err *err)
{
    const struct fsdp_adamw_args *a = arg;
    (void)err;
    if (a->loss_scale && a->loss_scale->skip)
        return FSDP_OK;
    struct adamw_arg w = {a, adamw_of(a)};
    fsdp_cpu_for(a->nelem, DEVICE_CPU_GRAIN, adamw_part, &w);
    return FSDP_OK;
}

int device_cpu_adamw(void *lane, const struct fsdp_adamw_args *args, struct fsdp_err *err)
{
    return device_cpu_lane_call(lane, adamw_run, args, sizeof *args, err);
}
