/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer arithmetic on the CPU, other than AdamW's. Loops are written for the vectoriser. */
#include <math.h>

#include "cpu.h"
#include "device/common/formula.h"
#include "fsdp/sys/cpu.h"

/* ---- the greatest absolute value, for clipping by the infinity norm -------------------------- */

struct absmax_arg {
    double *out;
    const char *x;
    enum fsdp_dtype dtype;
    size_t nelem;
};

static int absmax_run(void *arg, struct fsdp_err *err)
{
    enum { PIECE = 1024 };
    struct absmax_arg *a = arg;
    float most = 0, piece[PIECE];
    int bad = 0;
    (void)err;
    for (size_t at = 0; at < a->nelem; at += PIECE) {
        const size_t nelem = a->nelem - at < PIECE ? a->nelem - at : PIECE;
        const void *from = a->x + at * fsdp_dtype_nbytes(a->dtype);
        if (a->dtype != FSDP_F32)
            fsdp_cpu_convert(piece, FSDP_F32, from, a->dtype, nelem);
        const float *values = a->dtype == FSDP_F32 ? from : piece;
        for (size_t i = 0; i < nelem; i++) {
            float x = fabsf(values[i]);
            most = x > most ? x : most;
            bad |= x != x;
        }
    }
    *a->out = greater(*a->out, bad ? NAN : (double)most);
    return FSDP_OK;
}

int device_cpu_absmax(void *lane, double *out, const void *x, enum fsdp_dtype dtype, size_t nelem,
                      struct fsdp_err *err)
{
    struct absmax_arg arg = {out, x, dtype, nelem};
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

/* ---- Lion ------------------------------------------------------------------------------------ */

FSDP_CPU_CLONES static void lion_loop(const struct fsdp_lion_args *a, size_t from, size_t to)
{
    const struct lion l = lion_of(a);
    float *restrict p = a->master, *restrict m = a->exp_avg;
    const float *restrict g = a->grad;

    for (size_t i = from; i < to; i++)
        lion_element(&l, &p[i], &m[i], g[i]);
}

static void lion_part(void *arg, int worker, size_t from, size_t to)
{
    (void)worker;
    lion_loop(arg, from, to);
}

static int lion_run(void *arg, struct fsdp_err *err)
{
    const struct fsdp_lion_args *a = arg;
    (void)err;
    if (!a->loss_scale || !a->loss_scale->skip)
        fsdp_cpu_for(a->nelem, DEVICE_CPU_GRAIN, lion_part, arg);
    return FSDP_OK;
}

int device_cpu_lion(void *lane, const struct fsdp_lion_args *args, struct fsdp_err *err)
{
    return device_cpu_lane_call(lane, lion_run, args, sizeof *args, err);
}

/* ---- schedule-free AdamW --------------------------------------------------------------------- */

enum { Y_PIECE = 1024 };

FSDP_CPU_CLONES static void schedulefree_loop(const struct fsdp_schedulefree_args *a,
                                              float *restrict y, size_t from, size_t to)
{
    const struct schedulefree s = schedulefree_of(a);
    float *restrict x = a->x, *restrict z = a->z, *restrict v = a->exp_avg_sq;
    const float *restrict g = a->grad;

    for (size_t i = from; i < to; i++)
        y[i - from] = schedulefree_element(&s, &x[i], &z[i], &v[i], g[i]);
}

static void y_store(void *y, enum fsdp_dtype dtype, size_t at, const float *from, size_t nelem)
{
    fsdp_cpu_convert((char *)y + at * fsdp_dtype_nbytes(dtype), dtype, from, FSDP_F32, nelem);
}

static void schedulefree_part(void *arg, int worker, size_t from, size_t to)
{
    const struct fsdp_schedulefree_args *a = arg;
    float y[Y_PIECE];

    (void)worker;
    for (size_t at = from; at < to; at += Y_PIECE) {
        const size_t end = to - at < Y_PIECE ? to : at + Y_PIECE;
        schedulefree_loop(a, y, at, end);
        y_store(a->y, a->y_dtype, at, y, end - at);
    }
}

static int schedulefree_run(void *arg, struct fsdp_err *err)
{
    const struct fsdp_schedulefree_args *a = arg;
    (void)err;
    fsdp_cpu_for(a->nelem, DEVICE_CPU_GRAIN, schedulefree_part, arg);
    return FSDP_OK;
}

int device_cpu_schedulefree(void *lane, const struct fsdp_schedulefree_args *args,
                            struct fsdp_err *err)
{
    return device_cpu_lane_call(lane, schedulefree_run, args, sizeof *args, err);
}

struct y_arg {
    void *y;
    enum fsdp_dtype dtype;
    const float *x, *z;
    size_t nelem;
    double beta1;
};

FSDP_CPU_CLONES static void y_loop(float *restrict y, const float *restrict x,
                                   const float *restrict z, double beta1, size_t nelem)
{
    const float b1 = (float)beta1, nb1 = (float)(1 - beta1);
    for (size_t i = 0; i < nelem; i++)
        y[i] = schedulefree_y(b1, nb1, x[i], z[i]);
}

static void y_part(void *arg, int worker, size_t from, size_t to)
{
    const struct y_arg *a = arg;
    float y[Y_PIECE];

    (void)worker;
    for (size_t at = from; at < to; at += Y_PIECE) {
        const size_t nelem = to - at < Y_PIECE ? to - at : Y_PIECE;
        y_loop(y, a->x + at, a->z + at, a->beta1, nelem);
        y_store(a->y, a->dtype, at, y, nelem);
    }
}

static int y_run(void *arg, struct fsdp_err *err)
{
    (void)err;
    fsdp_cpu_for(((const struct y_arg *)arg)->nelem, DEVICE_CPU_GRAIN, y_part, arg);
    return FSDP_OK;
}

int device_cpu_schedulefree_y(void *lane, void *y, enum fsdp_dtype y_dtype, const float *x,
                              const float *z, size_t nelem, double beta1, struct fsdp_err *err)
{
    struct y_arg arg = {y, y_dtype, x, z, nelem, beta1};
    return device_cpu_lane_call(lane, y_run, &arg, sizeof arg, err);
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
