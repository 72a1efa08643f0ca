/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer arithmetic on the CPU, other than AdamW's. Loops are written for the vectoriser. */
#include <math.h>

#include "cpu.h"
#include "device/common/formula.h"
#include "fsdp/sys/cpu.h"

/* ---- the greatest absolute value, for clipping by the infinity norm -------------------------- */

struct absmax_arg {
    double *out;
    const float *x;
    size_t nelem;
};

static int absmax_run(void *arg, struct fsdp_err *err)
{
    struct absmax_arg *a = arg;
    float most = 0;
    int bad = 0;
    (void)err;
    for (size_t i = 0; i < a->nelem; i++) {
        float x = fabsf(a->x[i]);
        most = x > most ? x : most;
        bad |= x != x;
    }
    *a->out = greater(*a->out, bad ? NAN : (double)most);
    return FSDP_OK;
}

int device_cpu_absmax(void *lane, double *out, const float *x, size_t nelem, struct fsdp_err *err)
{
    struct absmax_arg arg = {out, x, nelem};
    return device_cpu_lane_call(lane, absmax_run, &arg, sizeof arg, err);
}

/* ---- SGD ------------------------------------------------------------------------------------- */

FSDP_CPU_CLONES static void sgd_loop(const struct fsdp_sgd_args *a)
{
    const struct sgd s = sgd_of(a);
    float *restrict p = a->master, *restrict b = a->momentum_buffer;
    const float *restrict g = a->grad;

    if (b)
        for (size_t i = 0; i < a->nelem; i++)
            sgd_momentum(&s, &p[i], &b[i], g[i]);
    else
        for (size_t i = 0; i < a->nelem; i++)
            sgd_plain(&s, &p[i], g[i]);
}

static int sgd_run(void *arg, struct fsdp_err *err)
{
    const struct fsdp_sgd_args *a = arg;
    (void)err;
    if (!a->loss_scale || !a->loss_scale->skip)
        sgd_loop(a);
    return FSDP_OK;
}

int device_cpu_sgd(void *lane, const struct fsdp_sgd_args *args, struct fsdp_err *err)
{
    return device_cpu_lane_call(lane, sgd_run, args, sizeof *args, err);
}

/* ---- averages of weights --------------------------------------------------------------------- */

struct ema_arg {
    float *average;
    const float *x;
    size_t nelem;
    double decay;
};

static int ema_run(void *arg, struct fsdp_err *err)
{
    struct ema_arg *a = arg;
    const float weight = (float)(1 - a->decay);
    float *restrict average = a->average;
    const float *restrict x = a->x;
    (void)err;
    if (weight < 0.5f)
        for (size_t i = 0; i < a->nelem; i++)
            average[i] = ema_near(average[i], x[i], weight);
    else
        for (size_t i = 0; i < a->nelem; i++)
            average[i] = ema_far(average[i], x[i], weight);
    return FSDP_OK;
}

int device_cpu_ema(void *lane, float *average, const float *x, size_t nelem, double decay,
                   struct fsdp_err *err)
{
    struct ema_arg arg = {average, x, nelem, decay};
    return device_cpu_lane_call(lane, ema_run, &arg, sizeof arg, err);
}
