/* SPDX-License-Identifier: Apache-2.0 */
/* suite_optim.h: a device's optimizer steps and averages, against references in fp64. */
#ifndef DEVICE_SUITE_OPTIM_H
#define DEVICE_SUITE_OPTIM_H

#include <math.h>
#include <stdlib.h>

#include "../../libfsdp/device/common/formula.h"
#include "mirror.h"
#include "tap.h"

/* The arguments name host memory; the update runs on the device's. */
static void run_adamw(struct fsdp_lane *lane, const struct fsdp_adamw_args *host)
{
    struct fsdp_adamw_args args = *host;
    const size_t nbytes = args.nelem * sizeof(float);
    const size_t moment_nbytes = args.nelem * fsdp_dtype_nbytes(args.moment_dtype);
    args.master = up(lane, args.master, nbytes);
    args.rest = up(lane, args.rest, nbytes / 2);
    args.exp_avg = up(lane, args.exp_avg, moment_nbytes);
    args.exp_avg_sq = up(lane, args.exp_avg_sq, moment_nbytes);
    args.grad = up(lane, args.grad, args.nelem * fsdp_dtype_nbytes(args.grad_dtype));
    args.grad_scale = up(lane, args.grad_scale, sizeof(float));
    args.loss_scale = up(lane, args.loss_scale, sizeof *args.loss_scale);
    args.param = up(lane, args.param, args.nelem * fsdp_dtype_nbytes(args.param_dtype));
    fsdp_adamw(lane, &args, NULL);
    down(lane);
}

static void run_sgd(struct fsdp_lane *lane, const struct fsdp_sgd_args *host)
{
    struct fsdp_sgd_args args = *host;
    const size_t nbytes = args.nelem * sizeof(float);
    args.master = up(lane, args.master, nbytes);
    args.momentum_buffer = up(lane, args.momentum_buffer, nbytes);
    args.grad = up(lane, args.grad, nbytes);
    args.grad_scale = up(lane, args.grad_scale, sizeof(float));
    args.loss_scale = up(lane, args.loss_scale, sizeof *args.loss_scale);
    fsdp_sgd(lane, &args, NULL);
    down(lane);
}

static void test_adamw(struct fsdp_lane *lane)
{
    float p[N], m[N], v[N], g[N], coef = 0.25f;
    uint16_t half[N];
    double worst = 0;
    int bad = 0;
    for (int i = 0; i < N; i++) {
        p[i] = noise(i);
        m[i] = 0.1f * noise(i + 7);
        v[i] = 0.01f * fabsf(noise(i + 9));
        g[i] = noise(i + 11);
    }
    float p0[N], m0[N], v0[N];
    memcpy(p0, p, sizeof p);
    memcpy(m0, m, sizeof m);
    memcpy(v0, v, sizeof v);
    struct fsdp_adamw_args args = {.master = p,
                                   .exp_avg = m,
                                   .exp_avg_sq = v,
                                   .grad = g,
                                   .grad_scale = &coef,
                                   .param = half,
                                   .param_dtype = FSDP_BF16,
                                   .nelem = N,
                                   .lr = 1e-2,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .weight_decay = 0.1,
                                   .nsteps = 3};
    const double bias1 = 1 - pow(0.9, 3), bias2 = 1 - pow(0.95, 3);
    run_adamw(lane, &args);
    for (int i = 0; i < N; i++) {
        double gi = (double)g[i] * 0.25, mi = 0.9 * (double)m0[i] + 0.1 * gi,
               vi = 0.95 * (double)v0[i] + 0.05 * gi * gi;
        double pi = (double)p0[i] * (1 - 1e-2 * 0.1);
        pi -= 1e-2 / bias1 * mi / (sqrt(vi) / sqrt(bias2) + 1e-8);
        worst = fmax(worst, fabs(pi - (double)p[i]));
        worst = fmax(worst, fabs(mi - (double)m[i]));
        worst = fmax(worst, fabs(vi - (double)v[i]));
        bad += half[i] != fsdp_f32_to_bf16(p[i]);
    }
    ok(worst < 3e-7, "adamw against fp64: worst difference %.2e", worst);
    ok(bad == 0, "the parameter is the master, rounded");

    struct fsdp_loss_scale scale = {.skip = 1, .nskipped = 2};
    float p1[N], v1[N];
    memcpy(p1, p, sizeof p);
    memcpy(v1, v, sizeof v);
    args.loss_scale = &scale;
    args.nsteps = 5;
    run_adamw(lane, &args);
    ok(!memcmp(p, p1, sizeof p) && !memcmp(v, v1, sizeof v), "a skipped step changes nothing");
    scale.skip = 0;
    memcpy(p, p0, sizeof p);
    memcpy(m, m0, sizeof m);
    memcpy(v, v0, sizeof v);
    run_adamw(lane, &args);
    ok(!memcmp(p, p1, sizeof p), "skipped steps do not count in the bias correction");
}

/* What a range of moments in BF16 must become: the step's own fp32, rounded by its words. */
static int rounded_wrong(const struct fsdp_adamw_args *args, const float *m, const float *v,
                         const uint16_t *half_m, const uint16_t *half_v)
{
    int bad = 0;
    for (size_t i = 0; i < args->nelem; i++) {
        const struct fsdp_rounding *r = &args->rounding;
        uint32_t word[4], at = (uint32_t)((r->first + i) % 4);
        philox4x32(word, r->key, r->step, (r->first + i) / 4);
        bad += half_m[i] != bf16_by_chance(m[i], word[at] & 0xffff);
        bad += half_v[i] != bf16_by_chance(v[i], word[at] >> 16);
    }
    return bad;
}

/* The same step with moments in BF16, and with a split master: ranges that begin anywhere, in the
 * tensor and in memory. */
static void test_narrow_adamw(struct fsdp_lane *lane)
{
    static float p[N], m[N], v[N], g[N], p2[N];
    static uint16_t half_m[N], half_v[N], again_m[N], again_v[N], param[N], rest[N], near[N];
    int bad = 0, nties = 0;

    for (int i = 0; i < N; i++) {
        p[i] = p2[i] = i % 7 ? noise(i) : master_join((uint16_t)(0x3f80 + i), 0x8000);
        half_m[i] = again_m[i] = fsdp_f32_to_bf16(0.1f * noise(i + 7));
        half_v[i] = again_v[i] = fsdp_f32_to_bf16(0.01f * fabsf(noise(i + 9)));
        m[i] = fsdp_bf16_to_f32(half_m[i]);
        v[i] = fsdp_bf16_to_f32(half_v[i]);
        g[i] = noise(i + 11);
    }
    fsdp_split(lane, UP(param), UP(rest), UP(p2), N, NULL);
    down(lane);
    memset(p2, 0xff, sizeof p2);
    fsdp_join(lane, UP(p2), UP(param), UP(rest), N, NULL);
    down(lane);
    ok(!memcmp(p, p2, sizeof p), "a master in two halves is the master");
    for (int i = 0; i < N; i++) {
        bool tie = rest[i] == 0x8000;
        nties += tie;
        near[i] =
            tie ? (uint16_t)(fsdp_f32_to_bf16(p[i] * (1 + 0x1p-23f))) : fsdp_f32_to_bf16(p[i]);
        bad += param[i] != near[i];
    }
    ok(bad == 0 && nties > N / 10, "its upper half is the nearest BF16; %d ties go from zero",
       nties);

    struct fsdp_adamw_args args = {.master = p,
                                   .exp_avg = m,
                                   .exp_avg_sq = v,
                                   .grad = g,
                                   .param_dtype = FSDP_BF16,
                                   .rounding = {.key = 5, .step = 9, .first = 8},
                                   .nelem = N,
                                   .lr = 1e-2,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .weight_decay = 0.1,
                                   .nsteps = 3};
    run_adamw(lane, &args); /* p, m, v: what the step makes in fp32 */
    args.master = NULL;
    args.param = param;
    args.rest = rest;
    args.exp_avg = half_m;
    args.exp_avg_sq = half_v;
    args.moment_dtype = FSDP_BF16;
    run_adamw(lane, &args);
    fsdp_join(lane, UP(p2), UP(param), UP(rest), N, NULL);
    down(lane);
    ok(!memcmp(p, p2, sizeof p), "a step of a split master is the whole one's, to the bit");
    ok(rounded_wrong(&args, m, v, half_m, half_v) == 0,
       "moments in BF16 are rounded by their words");

    /* In two ranges, of which the second begins at an odd element. */
    enum { CUT = 1235 };
    fsdp_split(lane, UP(param), UP(rest), UP(p), N, NULL);
    down(lane);
    args.nelem = CUT;
    args.exp_avg = again_m;
    args.exp_avg_sq = again_v;
    run_adamw(lane, &args);
    args.nelem = N - CUT;
    args.rounding.first += CUT;
    args.param = param + CUT;
    args.rest = rest + CUT;
    args.exp_avg = again_m + CUT;
    args.exp_avg_sq = again_v + CUT;
    args.grad = g + CUT;
    run_adamw(lane, &args);
    ok(!memcmp(half_m, again_m, sizeof half_m) && !memcmp(half_v, again_v, sizeof half_v),
       "in however many ranges a tensor is updated");

    struct fsdp_loss_scale scale = {.skip = 1};
    args.loss_scale = &scale;
    run_adamw(lane, &args);
    ok(!memcmp(half_v, again_v, sizeof half_v), "a skipped step draws nothing");
    args.moment_dtype = FSDP_F16;
    ok(fsdp_adamw(lane, &args, NULL) == FSDP_EINVAL, "moments in F16 are refused");
    args.moment_dtype = FSDP_BF16;
    args.param = NULL;
    ok(fsdp_adamw(lane, &args, NULL) == FSDP_EINVAL, "half a master is refused");
}

/* Gradients in BF16 are those values in fp32, in ranges that begin anywhere. */
static void test_narrow_grads(struct fsdp_lane *lane)
{
    static float p[2][N], m[2][N], v[2][N], g[N];
    static uint16_t half[N];

    for (int i = 0; i < N; i++) {
        half[i] = fsdp_f32_to_bf16(noise(i + 11));
        g[i] = fsdp_bf16_to_f32(half[i]);
        p[0][i] = p[1][i] = noise(i);
        m[0][i] = m[1][i] = v[0][i] = v[1][i] = fabsf(noise(i + 7));
    }
    for (int k = 0; k < 2; k++)
        for (int at = 0, nelem = 1235; at < N; at += nelem, nelem = N - at) {
            struct fsdp_adamw_args args = {.master = p[k] + at,
                                           .exp_avg = m[k] + at,
                                           .exp_avg_sq = v[k] + at,
                                           .grad = k ? (void *)(half + at) : (void *)(g + at),
                                           .grad_dtype = k ? FSDP_BF16 : FSDP_F32,
                                           .nelem = (size_t)nelem,
                                           .lr = 1e-2,
                                           .beta1 = 0.9,
                                           .beta2 = 0.95,
                                           .eps = 1e-8,
                                           .nsteps = 3};
            run_adamw(lane, &args);
            args.grad_dtype = FSDP_F16;
            if (at)
                ok(fsdp_adamw(lane, &args, NULL) == FSDP_EINVAL, "gradients in F16 are refused");
        }
    ok(!memcmp(p[0], p[1], sizeof p[0]) && !memcmp(m[0], m[1], sizeof m[0]) &&
           !memcmp(v[0], v[1], sizeof v[0]),
       "gradients in BF16 give the bits of their values in fp32");
}

/* What weights in BF16 must become: the step's fp32, rounded by their words. */
static int weights_wrong(const struct fsdp_rounding *r, const float *p, const uint16_t *half)
{
    int bad = 0;
    for (size_t i = 0; i < N; i++) {
        uint32_t word[4];
        philox4x32(word, r->key, r->step, (r->first + i) / 4);
        bad += half[i] != bf16_by_chance(p[i], word[(r->first + i) % 4]);
    }
    return bad;
}

/* The same step without a master, in ranges that begin anywhere; and the rounding alone. */
static void test_bare_adamw(struct fsdp_lane *lane)
{
    enum { CUT = 1235 };
    static float p[N], m[N], v[N], g[N], m2[N], v2[N], back[N];
    static uint16_t param[N], again[N], alone[N];

    for (int i = 0; i < N; i++) {
        param[i] = again[i] = fsdp_f32_to_bf16(noise(i));
        p[i] = fsdp_bf16_to_f32(param[i]);
        m[i] = m2[i] = 0.1f * noise(i + 7);
        v[i] = v2[i] = 0.01f * fabsf(noise(i + 9));
        g[i] = noise(i + 11);
    }
    struct fsdp_adamw_args args = {.master = p,
                                   .exp_avg = m,
                                   .exp_avg_sq = v,
                                   .grad = g,
                                   .param_dtype = FSDP_BF16,
                                   .weight_rounding = {.key = 6, .step = 2, .first = 12},
                                   .nelem = N,
                                   .lr = 1e-2,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .weight_decay = 0.1,
                                   .nsteps = 3};
    const struct fsdp_rounding whole = args.weight_rounding;
    run_adamw(lane, &args); /* p: what the step makes in fp32 */
    memcpy(m, m2, sizeof m);
    memcpy(v, v2, sizeof v);
    args.master = NULL;
    args.param = param;
    run_adamw(lane, &args);
    ok(weights_wrong(&whole, p, param) == 0, "weights without a master are rounded by their words");
    fsdp_narrow(lane, UP(alone), UP(p), N, &whole, NULL);
    down(lane);
    ok(!memcmp(alone, param, sizeof alone), "and so by the rounding alone");

    args.nelem = CUT;
    args.param = again;
    args.exp_avg = m2;
    args.exp_avg_sq = v2;
    run_adamw(lane, &args);
    args.nelem = N - CUT;
    args.weight_rounding.first += CUT;
    args.param = again + CUT;
    args.exp_avg = m2 + CUT;
    args.exp_avg_sq = v2 + CUT;
    args.grad = g + CUT;
    run_adamw(lane, &args);
    ok(!memcmp(param, again, sizeof param), "in however many ranges a tensor is updated");

    struct fsdp_rounding odd = whole;
    odd.first += CUT;
    memset(alone, 0, sizeof alone);
    fsdp_narrow(lane, up(lane, alone, CUT * 2), up(lane, p, CUT * 4), CUT, &whole, NULL);
    down(lane);
    fsdp_narrow(lane, up(lane, alone + CUT, (N - CUT) * 2), up(lane, p + CUT, (N - CUT) * 4),
                N - CUT, &odd, NULL);
    down(lane);
    ok(!memcmp(alone, param, sizeof alone), "and rounded");
    for (int i = 0; i < N; i++)
        back[i] = fsdp_bf16_to_f32(param[i]);
    odd.step++;
    fsdp_narrow(lane, UP(alone), UP(back), N, &odd, NULL);
    down(lane);
    ok(!memcmp(alone, param, sizeof alone), "what BF16 has stays, whatever the words");
}

/* A moment that decays by less than a BF16 step stands still when rounded to nearest; rounded
 * stochastically it goes down as in fp32, on average. */
static void test_by_chance(struct fsdp_lane *lane)
{
    enum { STEPS = 200 };
    static uint16_t half_m[N], half_v[N];
    static float p[N], g[N];
    const float begin = 1.0f + 0x1p-9f;
    double mean = 0, want = 1;

    for (int i = 0; i < N; i++) {
        half_m[i] = half_v[i] = 0x3f80;
        p[i] = g[i] = 0;
    }
    struct fsdp_adamw_args args = {.master = p,
                                   .exp_avg = half_m,
                                   .exp_avg_sq = half_v,
                                   .grad = g,
                                   .moment_dtype = FSDP_BF16,
                                   .rounding = {.key = 77},
                                   .nelem = N,
                                   .beta1 = 0.999,
                                   .beta2 = 0.999,
                                   .eps = 1e-8};
    for (int step = 0; step < STEPS; step++, want *= 0.999) {
        args.rounding.step = (uint64_t)step;
        args.nsteps = step + 1;
        run_adamw(lane, &args);
    }
    for (int i = 0; i < N; i++)
        mean += fsdp_bf16_to_f32(half_v[i]) / (double)N;
    /* A step's rounding has a deviation below half of 2^-8, and so the mean of N after 200 below
     * 2^-9 sqrt(200 / N); four of those. */
    ok(fabs(mean - want) < 4 * 0x1p-9 * sqrt((double)STEPS / N) && fabs(mean - 1) > 0.1,
       "moments rounded stochastically decay to %.5f on average, in fp32 to %.5f", mean, want);

    double ups = 0;
    for (uint32_t r = 0; r < 0x10000; r++)
        ups += bf16_by_chance(begin, r) == 0x3f81;
    const float huge = 3.4e38f, nan = NAN, inf = -INFINITY;
    ok(ups == 0x4000 && isnan(bf16_value(bf16_by_chance(nan, 0xffff))) &&
           bf16_value(bf16_by_chance(inf, 0xffff)) == inf &&
           bf16_value(bf16_by_chance(huge, 0)) < inf * -1,
       "a quarter above its neighbour goes up for a quarter of the words; what is not finite "
       "stays");
    uint16_t param, rest;
    master_split(&param, &rest, -nan);
    ok(isnan(bf16_value(param)) && isnan(master_join(param, rest)), "a split NaN is one");
    master_split(&param, &rest, huge);
    ok(master_join(param, rest) == huge, "the greatest fp32 survives, though its BF16 is infinite");
}

static void test_sgd(struct fsdp_lane *lane)
{
    static const struct {
        double momentum, dampening;
        bool nesterov, first;
    } cases[] = {{0, 0, false, true},
                 {0.9, 0, false, true},
                 {0.9, 0.3, false, true},
                 {0.9, 0.3, false, false},
                 {0.9, 0, true, false}};
    const struct fsdp_loss_scale skipped = {.nskipped = 2}, skip = {.skip = 1, .nskipped = 3};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        float p[N], b[N], g[N], coef = 0.25f;
        double worst = 0;
        for (int i = 0; i < N; i++) {
            p[i] = noise(i);
            b[i] = noise(i + 7);
            g[i] = noise(i + 11);
        }
        struct fsdp_sgd_args args = {.master = p,
                                     .momentum_buffer = cases[k].momentum > 0 ? b : NULL,
                                     .grad = g,
                                     .grad_scale = &coef,
                                     .nelem = N,
                                     .lr = 1e-2,
                                     .momentum = cases[k].momentum,
                                     .dampening = cases[k].dampening,
                                     .weight_decay = 0.1,
                                     .nesterov = cases[k].nesterov,
                                     .nsteps = cases[k].first ? 3 : 4,
                                     .loss_scale = &skipped};
        run_sgd(lane, &args);
        for (int i = 0; i < N; i++) {
            double gi = (double)g[i] * 0.25 + 0.1 * (double)noise(i), bi = gi;
            if (!cases[k].first)
                bi = args.momentum * (double)noise(i + 7) + (1 - args.dampening) * gi;
            double step = args.nesterov ? gi + args.momentum * bi : bi;
            worst = fmax(worst, fabs((double)noise(i) - 1e-2 * step - (double)p[i]));
            if (args.momentum_buffer)
                worst = fmax(worst, fabs(bi - (double)b[i]));
        }
        ok(worst < 2e-7, "sgd, momentum %g, dampening %g, nesterov %d, first %d: worst %.2e",
           args.momentum, args.dampening, args.nesterov, cases[k].first, worst);
        const float p0 = p[7], b0 = b[7];
        args.loss_scale = &skip;
        run_sgd(lane, &args);
        ok(p[7] == p0 && b[7] == b0, "a skipped step changes nothing");
    }
}

/* Weight decay in the gradient, against fp64. */
static void test_adam(struct fsdp_lane *lane)
{
    float p[N], m[N], v[N], g[N], coef = 0.25f;
    const double bias1 = 1 - pow(0.9, 3), bias2 = 1 - pow(0.95, 3);
    double worst = 0;

    for (int i = 0; i < N; i++) {
        p[i] = noise(i);
        m[i] = 0.1f * noise(i + 7);
        v[i] = 0.01f + 0.01f * fabsf(noise(i + 9));
        g[i] = noise(i + 11);
    }
    struct fsdp_adamw_args args = {.master = p,
                                   .exp_avg = m,
                                   .exp_avg_sq = v,
                                   .grad = g,
                                   .grad_scale = &coef,
                                   .nelem = N,
                                   .lr = 1e-2,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .weight_decay = 0.1,
                                   .decay_in_grad = true,
                                   .nsteps = 3};
    run_adamw(lane, &args);
    for (int i = 0; i < N; i++) {
        double p0 = (double)noise(i), gi = (double)g[i] * 0.25 + 0.1 * p0,
               v0 = (double)(0.01f + 0.01f * fabsf(noise(i + 9)));
        double mi = 0.9 * (double)(0.1f * noise(i + 7)) + 0.1 * gi, vi = 0.95 * v0 + 0.05 * gi * gi;
        double pi = p0 - 1e-2 / bias1 * mi / (sqrt(vi) / sqrt(bias2) + 1e-8);
        worst = fmax(worst, fabs(pi - (double)p[i]));
        worst = fmax(worst, fabs(mi - (double)m[i]));
        worst = fmax(worst, fabs(vi - (double)v[i]));
    }
    ok(worst < 3e-7, "adam against fp64: worst difference %.2e", worst);
}

static void run_lion(struct fsdp_lane *lane, const struct fsdp_lion_args *host)
{
    struct fsdp_lion_args args = *host;
    const size_t nbytes = args.nelem * sizeof(float);
    args.master = up(lane, args.master, nbytes);
    args.exp_avg = up(lane, args.exp_avg, nbytes);
    args.grad = up(lane, args.grad, nbytes);
    args.grad_scale = up(lane, args.grad_scale, sizeof(float));
    args.loss_scale = up(lane, args.loss_scale, sizeof *args.loss_scale);
    fsdp_lion(lane, &args, NULL);
    down(lane);
}

static void test_lion(struct fsdp_lane *lane)
{
    static float p[N], m[N], g[N];
    const struct fsdp_loss_scale skip = {.skip = 1};
    float coef = 0.25f;
    double worst = 0;

    for (int i = 0; i < N; i++) {
        p[i] = noise(i);
        m[i] = i % 5 ? noise(i + 7) : 0;
        g[i] = i % 5 ? noise(i + 11) : 0;
    }
    g[3] = NAN;
    struct fsdp_lion_args args = {.master = p,
                                  .exp_avg = m,
                                  .grad = g,
                                  .grad_scale = &coef,
                                  .nelem = N,
                                  .lr = 1e-2,
                                  .beta1 = 0.9,
                                  .beta2 = 0.99,
                                  .weight_decay = 0.1};
    run_lion(lane, &args);
    for (int i = 0; i < N; i++) {
        double m0 = i % 5 ? (double)noise(i + 7) : 0, gi = (double)g[i] * 0.25;
        double u = 0.9 * m0 + 0.1 * gi, sign = u > 0 ? 1 : u < 0 ? -1 : 0;
        double pi = (double)noise(i) * (1 - 1e-2 * 0.1) - 1e-2 * sign;
        /* The sign of what is almost zero is a matter of rounding. */
        if (i != 3 && (u == 0 || fabs(u) > 1e-6))
            worst = fmax(worst, fabs(pi - (double)p[i]));
        if (i != 3)
            worst = fmax(worst, fabs(0.99 * m0 + 0.01 * gi - (double)m[i]));
    }
    ok(worst < 3e-7, "lion against fp64, zeros included: worst difference %.2e", worst);
    ok(isnan(p[3]) && isnan(m[3]), "a gradient that is no number shows in the weights");
    const float p0 = p[7], m0 = m[7];
    args.loss_scale = &skip;
    run_lion(lane, &args);
    ok(p[7] == p0 && m[7] == m0, "a skipped step changes nothing");
}

static void test_schedulefree(struct fsdp_lane *lane)
{
    static float x[N], z[N], v[N], g[N], y[N];
    static uint16_t half[N], again[N];
    float coef = 0.25f;
    double worst = 0;
    int bad = 0;

    for (int i = 0; i < N; i++) {
        x[i] = noise(i);
        z[i] = noise(i + 7);
        v[i] = 0.01f + 0.01f * fabsf(noise(i + 9));
        g[i] = noise(i + 11);
    }
    struct fsdp_schedulefree_args args = {.nelem = N,
                                          .y_dtype = FSDP_BF16,
                                          .nsteps = 3,
                                          .lr = 1e-2,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .eps = 1e-8,
                                          .weight_decay = 0.1,
                                          .weight = 0.3};
    args.x = UP(x);
    args.z = UP(z);
    args.exp_avg_sq = UP(v);
    args.grad = UP(g);
    args.grad_scale = up(lane, &coef, sizeof coef);
    args.y = UP(half);
    fsdp_schedulefree(lane, &args, NULL);
    down(lane);
    for (int i = 0; i < N; i++) {
        double x0 = (double)noise(i), z0 = (double)noise(i + 7), gi = (double)g[i] * 0.25;
        double v0 = (double)(0.01f + 0.01f * fabsf(noise(i + 9)));
        double vi = 0.95 * v0 + 0.05 * gi * gi;
        double d = gi / (sqrt(vi / (1 - pow(0.95, 3))) + 1e-8) + 0.1 * (0.9 * x0 + 0.1 * z0);
        double zi = z0 - 1e-2 * d, xi = 0.7 * x0 + 0.3 * zi;
        worst = fmax(worst, fabs(vi - (double)v[i]));
        worst = fmax(worst, fabs(zi - (double)z[i]));
        worst = fmax(worst, fabs(xi - (double)x[i]));
    }
    ok(worst < 3e-7, "schedulefree against fp64: worst difference %.2e", worst);
    fsdp_schedulefree_y(lane, UP(y), FSDP_F32, UP(x), UP(z), N, 0.9, NULL);
    down(lane);
    fsdp_schedulefree_y(lane, UP(again), FSDP_BF16, UP(x), UP(z), N, 0.9, NULL);
    down(lane);
    for (int i = 0; i < N; i++) {
        bad += half[i] != fsdp_f32_to_bf16(y[i]) || again[i] != half[i];
        worst = fmax(worst, fabs(0.9 * (double)x[i] + 0.1 * (double)z[i] - (double)y[i]));
    }
    ok(worst < 3e-7 && bad == 0, "y lies between x and z, the same from the step and from them");
    ok(fsdp_schedulefree_y(lane, NULL, FSDP_U8, NULL, NULL, 0, 0.9, NULL) != FSDP_OK,
       "y in whole numbers is refused");
}

static void test_ema(struct fsdp_lane *lane)
{
    static const double decays[] = {0.999, 0.3, 0};
    for (int k = 0; k < 3; k++) {
        float x[N], average[N];
        double worst = 0;
        for (int i = 0; i < N; i++) {
            x[i] = noise(i);
            average[i] = noise(i + 5);
        }
        fsdp_ema(lane, UP(average), UP(x), N, decays[k], NULL);
        down(lane);
        for (int i = 0; i < N; i++) {
            double want = decays[k] * (double)noise(i + 5) + (1 - decays[k]) * (double)x[i];
            worst = fmax(worst, fabs(want - (double)average[i]));
        }
        ok(worst < 2e-7, "moving average, decay %g: worst %.2e", decays[k], worst);
    }
}

#endif
