/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer arithmetic on the CPU beside AdamW's. Loops are written for the vectoriser. */
#include <math.h>

#include "device_cpu.h"
#include "fsdp/sys/cpu.h"

/* ---- the greatest absolute value, for clipping by the infinity norm ----------------------------
 */

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
    if (bad)
        *a->out = NAN;
    else if ((double)most > *a->out) /* false where a NaN is kept */
        *a->out = (double)most;
    return FSDP_OK;
}

int device_cpu_absmax(void *lane, double *out, const float *x, size_t nelem, struct fsdp_err *err)
{
    struct absmax_arg arg = {out, x, nelem};
    return device_cpu_lane_call(lane, absmax_run, &arg, sizeof arg, err);
}

/* ---- SGD ----------------------------------------------------------------------------------------
 */

FSDP_CPU_CLONES static void sgd_plain(const struct fsdp_sgd_args *a, float scale)
{
    const float decay = (float)a->weight_decay, lr = (float)a->lr;
    float *restrict p = a->master;
    const float *restrict g = a->grad;

    for (size_t i = 0; i < a->nelem; i++)
        p[i] -= lr * (g[i] * scale + decay * p[i]);
}

FSDP_CPU_CLONES static void sgd_momentum(const struct fsdp_sgd_args *a, float scale, bool first)
{
    const float decay = (float)a->weight_decay, lr = (float)a->lr;
    const float momentum = (float)a->momentum;
    /* In the first step the buffer becomes the gradient itself, dampened or not. */
    const float take = first ? 1 : (float)(1 - a->dampening), keep = first ? 0 : momentum;
    const bool nesterov = a->nesterov;
    float *restrict p = a->master, *restrict b = a->momentum_buffer;
    const float *restrict g = a->grad;

    for (size_t i = 0; i < a->nelem; i++) {
        float gi = g[i] * scale + decay * p[i];
        float bi = keep * b[i] + take * gi;
        b[i] = bi;
        p[i] -= lr * (nesterov ? gi + momentum * bi : bi);
    }
}

static int sgd_run(void *arg, struct fsdp_err *err)
{
    const struct fsdp_sgd_args *a = arg;
    const float scale = a->grad_scale ? *a->grad_scale : 1.0f;
    const int64_t nskipped = a->loss_scale ? a->loss_scale->nskipped : 0;
    (void)err;
    if (a->loss_scale && a->loss_scale->skip)
        return FSDP_OK;
    if (a->momentum_buffer)
        sgd_momentum(a, scale, a->nsteps - nskipped == 1);
    else
        sgd_plain(a, scale);
    return FSDP_OK;
}

int device_cpu_sgd(void *lane, const struct fsdp_sgd_args *args, struct fsdp_err *err)
{
    return device_cpu_lane_call(lane, sgd_run, args, sizeof *args, err);
}

/* ---- averages of weights ------------------------------------------------------------------------
 */

struct ema_arg {
    float *average;
    const float *x;
    size_t nelem;
    double decay;
};

static int ema_run(void *arg, struct fsdp_err *err)
{
    struct ema_arg *a = arg;
    const float weight = (float)(1 - a->decay), rest = 1 - weight;
    float *restrict average = a->average;
    const float *restrict x = a->x;
    (void)err;
    if (weight < 0.5f)
        for (size_t i = 0; i < a->nelem; i++)
            average[i] += weight * (x[i] - average[i]);
    else
        for (size_t i = 0; i < a->nelem; i++)
            average[i] = x[i] - rest * (x[i] - average[i]);
    return FSDP_OK;
}

int device_cpu_ema(void *lane, float *average, const float *x, size_t nelem, double decay,
                   struct fsdp_err *err)
{
    struct ema_arg arg = {average, x, nelem, decay};
    return device_cpu_lane_call(lane, ema_run, &arg, sizeof arg, err);
}
