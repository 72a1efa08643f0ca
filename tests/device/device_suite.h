/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_suite.h: what every device must do: arithmetic against fp64 references, lanes, events,
 * initial values. A program runs it for a backend with run_arithmetic and test_lanes.
 */
#ifndef DEVICE_SUITE_H
#define DEVICE_SUITE_H

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../../libfsdp/device/formula.h"
#include "fsdp/device.h"
#include "tap.h"

/* ---- host memory, mirrored on the device ----------------------------------------------------- */

static struct mirror {
    char *host, *device;
    size_t nbytes;
} mirrors[16];
static int nmirrors;

/* The device's copy of host memory, until the next down. */
static void *up(struct fsdp_lane *lane, const void *host, size_t nbytes)
{
    struct fsdp_device *device = fsdp_lane_device(lane);
    if (!host)
        return NULL;
    for (int i = 0; i < nmirrors; i++)
        if (mirrors[i].host == host)
            return mirrors[i].device;
    struct mirror *m = &mirrors[nmirrors++];
    *m = (struct mirror){(char *)(uintptr_t)host, fsdp_device_alloc(device, nbytes, "mirror", NULL),
                         nbytes};
    void *staging = fsdp_host_alloc(device, nbytes, "staging", NULL);
    memcpy(staging, host, nbytes);
    fsdp_copy(lane, m->device, staging, nbytes, NULL);
    fsdp_lane_sync(lane, NULL);
    fsdp_host_free(device, staging);
    return m->device;
}
#define UP(x) up(lane, &(x), sizeof(x))

/* Waits, and copies all mirrors back. */
static void down(struct fsdp_lane *lane)
{
    struct fsdp_device *device = fsdp_lane_device(lane);
    for (int i = 0; i < nmirrors; i++) {
        void *staging = fsdp_host_alloc(device, mirrors[i].nbytes, "staging", NULL);
        fsdp_copy(lane, staging, mirrors[i].device, mirrors[i].nbytes, NULL);
        fsdp_lane_sync(lane, NULL);
        memcpy(mirrors[i].host, staging, mirrors[i].nbytes);
        fsdp_host_free(device, staging);
        fsdp_device_free(device, mirrors[i].device);
    }
    nmirrors = 0;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

enum { N = 5003 };

static float noise(int i)
{
    return (float)((i * 2654435761u >> 8 & 0xffff) / 32768.0 - 1.0);
}

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
    args.grad = up(lane, args.grad, nbytes);
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
    args.rest = NULL;
    ok(fsdp_adamw(lane, &args, NULL) == FSDP_EINVAL, "half a master is refused");
}

/* A moment that decays by less than a BF16 step stands still when rounded to nearest; by chance it
 * goes down as in fp32, on average. */
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
       "moments rounded by chance decay to %.5f on average, in fp32 to %.5f", mean, want);

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

static void test_norm(struct fsdp_lane *lane)
{
    float x[N], coef, norm;
    double sums[3], want = 0;
    for (int i = 0; i < N; i++) {
        x[i] = noise(i);
        want += (double)x[i] * (double)x[i];
    }
    fsdp_sumsq(lane, UP(sums), UP(x), N, NULL);
    down(lane);
    sums[1] = 2;
    sums[2] = 3;
    fsdp_clip_coef(lane, UP(coef), UP(norm), UP(sums), 3, FSDP_NORM_2, 1, NULL, NULL);
    down(lane);
    ok(fabs(sums[0] - want) < 1e-9 * want, "sum of squares");
    ok(fabs(norm - sqrt(want + 5)) < 1e-5 * sqrt(want), "norm of three partial sums");
    ok(fabs(coef - 1 / (sqrt(want + 5) + 1e-6)) < 1e-6, "clip factor");
    fsdp_clip_coef(lane, UP(coef), UP(norm), UP(sums), 3, FSDP_NORM_2, 1e9f, NULL, NULL);
    down(lane);
    ok(coef == 1, "no clipping below the limit");
    fsdp_clip_coef(lane, UP(coef), UP(norm), UP(sums), 3, FSDP_NORM_2, 0, NULL, NULL);
    down(lane);
    ok(coef == 1, "a limit of 0 is off");
    sums[1] = NAN;
    fsdp_clip_coef(lane, UP(coef), UP(norm), UP(sums), 3, FSDP_NORM_2, 1, NULL, NULL);
    down(lane);
    ok(isnan(coef) && isnan(norm), "NaN does not pass for 1");
}

static void test_norm_inf(struct fsdp_lane *lane)
{
    float x[N], coef, norm;
    double most = 0, partials[2] = {0, 3};
    for (int i = 0; i < N; i++)
        x[i] = noise(i);
    x[N - 1] = -2.5f;
    fsdp_absmax(lane, UP(partials), UP(x), N, NULL);
    fsdp_clip_coef(lane, UP(coef), UP(norm), UP(partials), 2, FSDP_NORM_INF, 1.5f, NULL, NULL);
    fsdp_absmax(lane, UP(most), UP(x), 5, NULL);
    down(lane);
    ok(partials[0] == 2.5 && norm == 3 && fabs(coef - 0.5) < 1e-6, "the greatest absolute value");
    most = 7;
    fsdp_absmax(lane, UP(most), UP(x), N, NULL);
    down(lane);
    ok(most == 7, "a greater one stays");
    x[N / 2] = NAN;
    fsdp_absmax(lane, UP(most), UP(x), N, NULL);
    down(lane);
    x[N / 2] = 0;
    partials[1] = most;
    fsdp_absmax(lane, UP(most), UP(x), N, NULL);
    fsdp_clip_coef(lane, UP(coef), UP(norm), UP(partials), 2, FSDP_NORM_INF, 1.5f, NULL, NULL);
    down(lane);
    ok(isnan(most) && isnan(norm) && isnan(coef), "NaN stays");
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

/* torch.amp.GradScaler's rule, over a sequence of norms. */
static void test_loss_scale(struct fsdp_lane *lane)
{
    const struct fsdp_loss_scale_rule rule = {2, 0.5f, 3};
    struct fsdp_loss_scale s = {.scale = 1024, .split = 1.5f, .factor = 1536};
    const float norms[] = {1, 2, INFINITY, 1, 1, 1, NAN, 1};
    const float scales[] = {1024, 1024, 512, 512, 512, 1024, 512, 512};
    const int good[] = {1, 2, 0, 1, 2, 0, 0, 1};
    int bad = 0;

    for (int i = 0; i < 8; i++) {
        fsdp_loss_scale_update(lane, UP(s), (float *)UP(norms) + i, rule, NULL);
        down(lane);
        bad += s.scale != scales[i] || s.good_steps != good[i] || s.skip != !isfinite(norms[i]);
        bad += s.factor != s.scale * 1.5f || s.inverse != 1 / s.factor;
    }
    ok(bad == 0 && s.nskipped == 2, "the loss scale grows after good steps and shrinks at others");
    s.scale = 0x1p127f;
    for (int i = 0; i < 3; i++)
        fsdp_loss_scale_update(lane, UP(s), UP(norms), rule, NULL);
    down(lane);
    ok(isfinite(s.factor), "it stays finite");

    const double sums[2] = {9 * 1536.0 * 1536.0, 16 * 1536.0 * 1536.0};
    float coef, norm;
    s = (struct fsdp_loss_scale){.inverse = 1 / 1536.0f};
    fsdp_clip_coef(lane, UP(coef), UP(norm), UP(sums), 2, FSDP_NORM_2, 1, UP(s), NULL);
    down(lane);
    ok(fabsf(norm - 5) < 1e-5f && fabsf(coef * 1536 - 0.2f) < 1e-6f,
       "the norm is that of unscaled gradients, and the clip factor unscales");
}

static void test_casts(struct fsdp_lane *lane)
{
    int bad16 = 0, bad_half = 0;
    for (uint32_t u = 0; u < 65536; u++) {
        float x = fsdp_bf16_to_f32((uint16_t)u), h = fsdp_f16_to_f32((uint16_t)u);
        bad16 += !isnan(x) && fsdp_f32_to_bf16(x) != u;
        bad_half += !isnan(h) && fsdp_f32_to_f16(h) != u;
    }
    ok(bad16 == 0, "every bf16 survives fp32 and back");
    ok(bad_half == 0, "every fp16 survives fp32 and back");
    ok(fsdp_f32_to_f16(65520.0f) == 0x7c00 && fsdp_f32_to_f16(65519.0f) == 0x7bff,
       "fp16 overflow rounds to infinity");
    ok(fsdp_f32_to_bf16(1.00390625f) == 0x3f80 && fsdp_f32_to_bf16(1.01171875f) == 0x3f82,
       "bf16 ties go to even");
    ok(fsdp_f32_to_f16(0x1p-25f) == 0 && fsdp_f32_to_f16(0x1.8p-25f) == 1,
       "fp16 subnormal rounding");

    float src[N], back[N], sum[N];
    uint16_t half[N];
    double worst = 0;
    for (int i = 0; i < N; i++)
        src[i] = sum[i] = noise(i);
    fsdp_cast(lane, UP(half), FSDP_BF16, UP(src), FSDP_F32, N, NULL);
    fsdp_cast(lane, UP(back), FSDP_F32, UP(half), FSDP_BF16, N, NULL);
    fsdp_accumulate(lane, UP(sum), UP(half), FSDP_BF16, N, NULL);
    down(lane);
    for (int i = 0; i < N; i++) {
        worst =
            fmax(worst, fabs((double)back[i] - (double)src[i]) / fmax(1e-3, fabs((double)src[i])));
        if (sum[i] != src[i] + back[i])
            worst = 1;
    }
    ok(worst <= 0x1p-8, "bf16 cast and accumulate: relative %.1e", worst);
}

static void test_quantize(struct fsdp_lane *lane)
{
    static const float scales[] = {1e-6f, 1, 3e7f};
    float x[N], back[N];
    uint8_t code[N];
    for (int k = 0; k < 3; k++) {
        double amax = 0, worst = 0;
        int bad = 0;
        for (int i = 0; i < N; i++)
            x[i] = scales[k] * noise(i) * (i % 3 ? 1 : 0x1p-9f);
        fsdp_absmax(lane, UP(amax), UP(x), N, NULL);
        fsdp_quantize(lane, UP(code), FSDP_F8_E4M3, UP(x), N, UP(amax), NULL);
        fsdp_dequantize(lane, UP(back), FSDP_F32, UP(code), FSDP_F8_E4M3, N, UP(amax), NULL);
        down(lane);
        for (int i = 0; i < N; i++) {
            float scale = (float)(448 / amax);
            bad += code[i] != fsdp_f32_to_f8_e4m3(fminf(fmaxf(x[i] * scale, -448), 448));
            double part = fabs((double)back[i] - (double)x[i]);
            worst = fmax(worst, part / fmax(fabs((double)x[i]), 0x1p-6 * amax / 448));
        }
        ok(bad == 0 && worst <= 0x1p-4 * (1 + 1e-6), "amax %.1e in E4M3: within %.4f", amax, worst);
    }
    double amax = 0;
    memset(x, 0, sizeof x);
    fsdp_quantize(lane, UP(code), FSDP_F8_E4M3, UP(x), 4, UP(amax), NULL);
    fsdp_dequantize(lane, UP(back), FSDP_F32, UP(code), FSDP_F8_E4M3, 4, UP(amax), NULL);
    down(lane);
    ok(back[0] == 0 && back[3] == 0, "zeros are zeros");
    amax = INFINITY;
    x[1] = INFINITY;
    fsdp_quantize(lane, UP(code), FSDP_F8_E4M3, UP(x), 4, UP(amax), NULL);
    fsdp_dequantize(lane, UP(back), FSDP_F32, UP(code), FSDP_F8_E4M3, 4, UP(amax), NULL);
    down(lane);
    ok(isnan(back[0]) && isnan(back[1]), "an infinity does not pass for 448");
    const double in[] = {1, NAN, 3, 4, 5, 2, 0, 9, 8};
    double most[3];
    fsdp_max_rows(lane, UP(most), UP(in), 3, 3, NULL);
    down(lane);
    ok(most[0] == 4 && isnan(most[1]) && most[2] == 8, "the greatest of every column");
    ok(fsdp_quantize(lane, code, FSDP_F8_E5M2, x, 4, &amax, NULL) == FSDP_EINVAL,
       "E5M2 is refused");
}

static void test_init(struct fsdp_lane *lane)
{
    static float whole[100000], part[1000];
    uint32_t w[4];
    struct fsdp_init normal = {FSDP_INIT_NORMAL, 0.02f};
    double mean = 0, var = 0, worst = 0;
    philox4x32(w, 0, 0, 0);
    ok(w[0] == 0x6627e8d5 && w[1] == 0xe169c58d && w[2] == 0xbc57ac4c && w[3] == 0x9b00dbd8,
       "philox 4x32-10 known answer");
    fsdp_init_fill(lane, UP(whole), 0, 100000, normal, 1, 2, NULL);
    fsdp_init_fill(lane, UP(part), 777, 1000, normal, 1, 2, NULL);
    down(lane);
    ok(!memcmp(whole + 777, part, sizeof part),
       "a shard that begins anywhere has the whole's values");
    for (int i = 0; i < 100000; i++) {
        mean += (double)whole[i] / 1e5;
        var += (double)whole[i] * (double)whole[i] / 1e5;
        worst = fmax(worst, fabs((double)whole[i]));
    }
    ok(fabs(mean) < 3e-4 && fabs(sqrt(var) - 0.02) < 2e-4 && worst < 0.12,
       "normal: mean %.1e, deviation %.4f", mean, sqrt(var));
    fsdp_init_fill(lane, UP(part), 777, 1000, normal, 2, 2, NULL);
    down(lane);
    ok(memcmp(whole + 777, part, sizeof part), "another seed, other values");
    struct fsdp_init uniform = {FSDP_INIT_UNIFORM, 2.0f}, ones = {FSDP_INIT_ONES, 0};
    fsdp_init_fill(lane, UP(whole), 0, 100000, uniform, 1, 2, NULL);
    fsdp_init_fill(lane, UP(part), 0, 1000, ones, 1, 2, NULL);
    down(lane);
    float low = 0, high = 0;
    for (int i = 0; i < 100000; i++) {
        low = fminf(low, whole[i]);
        high = fmaxf(high, whole[i]);
    }
    ok(low >= -2 && low < -1.99f && high < 2 && high > 1.99f && part[999] == 1, "uniform and ones");
}

/* Ranges that begin anywhere, and sums whose order is the same always. */
static void test_odd_ranges(struct fsdp_lane *lane)
{
    static float x[300007], sum[N];
    uint16_t half[N];
    uint8_t code[N];
    double want = 0, got[2] = {0, 0}, amax = 2;
    int bad = 0;

    for (int i = 0; i < 300007; i++) {
        x[i] = noise(i);
        want += i ? (double)x[i] * (double)x[i] : 0;
    }
    for (int i = 0; i < N; i++)
        sum[i] = noise(i + 3);
    memset(half, 0, sizeof half);
    memset(code, 0, sizeof code);
    fsdp_cast(lane, (uint16_t *)UP(half) + 3, FSDP_F16, (float *)UP(x) + 1, FSDP_F32, N - 7, NULL);
    fsdp_accumulate(lane, (float *)UP(sum) + 5, (uint16_t *)UP(half) + 3, FSDP_F16, N - 7, NULL);
    fsdp_quantize(lane, (uint8_t *)UP(code) + 1, FSDP_F8_E4M3, (float *)UP(x) + 3, N - 7, UP(amax),
                  NULL);
    bad += fsdp_cast(lane, UP(half), FSDP_F16, UP(x), FSDP_F32, 0, NULL);
    bad += fsdp_accumulate(lane, UP(sum), UP(half), FSDP_F16, 0, NULL);
    fsdp_sumsq(lane, UP(got), (float *)UP(x) + 1, 300006, NULL);
    fsdp_sumsq(lane, (double *)UP(got) + 1, (float *)UP(x) + 1, 300006, NULL);
    down(lane);
    for (int i = 0; i < N - 7; i++) {
        bad += half[i + 3] != fsdp_f32_to_f16(x[i + 1]);
        bad += sum[i + 5] != noise(i + 5 + 3) + fsdp_f16_to_f32(half[i + 3]);
        bad += code[i + 1] != fsdp_f32_to_f8_e4m3(x[i + 3] * 224);
    }
    bad += half[2] != 0 || half[N - 4] != 0 || code[0] != 0 || code[N - 6] != 0;
    bad += sum[4] != noise(7) || sum[N - 2] != noise(N + 1);
    ok(bad == 0, "ranges that begin anywhere, or are empty, and nothing beside them");
    ok(fabs(got[0] - want) < 1e-12 * want && got[0] == got[1],
       "a long sum, twice to the same bits");
}

static void run_arithmetic(struct fsdp_lane *lane)
{
    test_adamw(lane);
    test_narrow_adamw(lane);
    test_by_chance(lane);
    test_norm(lane);
    test_norm_inf(lane);
    test_sgd(lane);
    test_ema(lane);
    test_loss_scale(lane);
    test_casts(lane);
    test_quantize(lane);
    test_init(lane);
    test_odd_ranges(lane);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

struct step {
    volatile int *counter, *seen;
};

static int bump(void *arg, struct fsdp_err *err)
{
    struct step *s = arg;
    (void)err;
    *s->seen = ++*s->counter;
    return FSDP_OK;
}

static int fail(void *arg, struct fsdp_err *err)
{
    (void)arg;
    return fsdp_err_set(err, FSDP_EIO, "made to fail");
}

static int copy_counter(void *arg, struct fsdp_err *err)
{
    struct step *s = arg;
    (void)err;
    *s->seen = *s->counter;
    return FSDP_OK;
}

static int pass_gate(void *arg, struct fsdp_err *err)
{
    (void)err;
    while (!atomic_load(*(atomic_int **)arg))
        sched_yield();
    return FSDP_OK;
}

/* What is asked and said of a lane from beside it. */
static void test_beside(const char *mode, struct fsdp_device *device, bool asynchronous)
{
    struct fsdp_lane *lane;
    struct fsdp_event *event;
    struct fsdp_err err = FSDP_ERR_INIT, said = FSDP_ERR_INIT;
    atomic_int open = !asynchronous, *gate = &open;
    double before = fsdp_time_now(), stamp[2] = {0, 0};
    bool done = false, early = false;

    fsdp_lane_create(&lane, device, "beside", &err);
    fsdp_event_create(&event, device, &err);
    ok(fsdp_event_done(event, &done, &err) == FSDP_OK && done, "%s: nothing recorded: done", mode);
    fsdp_lane_stamp(lane, &stamp[0], &err);
    fsdp_lane_call(lane, pass_gate, &gate, sizeof gate, &err);
    fsdp_lane_stamp(lane, &stamp[1], &err);
    fsdp_event_record(event, lane, &err);
    fsdp_event_done(event, &early, &err);
    atomic_store(&open, 1);
    fsdp_lane_sync(lane, &err);
    fsdp_event_done(event, &done, &err);
    ok(early != asynchronous && done, "%s: an event is done when its work is", mode);
    ok(stamp[0] >= before && stamp[1] >= stamp[0] && stamp[1] <= fsdp_time_now(),
       "%s: stamps are times of the lane, in order", mode);
    fsdp_err_set(&said, FSDP_EPEER, "said from beside");
    fsdp_lane_fail(lane, &said);
    fsdp_err_set(&said, FSDP_EIO, "said later");
    fsdp_lane_fail(lane, &said);
    ok(fsdp_lane_sync(lane, &err) == FSDP_EPEER && !strcmp(err.text, "said from beside"),
       "%s: a lane keeps the first failure that it is told", mode);
    ok(fsdp_lane_call(lane, pass_gate, &gate, sizeof gate, &err) == FSDP_EPEER &&
           fsdp_event_record(event, lane, &err) == FSDP_OK,
       "%s: and refuses work, but not events", mode);
    ok(!fsdp_lane_native(lane) == fsdp_device_is_host(device),
       "%s: a queue of the maker's library where there is such a thing", mode);
    fsdp_lane_destroy(lane); /* what it still has to do may name the event */
    fsdp_event_destroy(event);
}

/* On a device that the caller opened for it. */
static void test_lanes(const char *mode, struct fsdp_device *device, bool asynchronous)
{
    struct fsdp_lane *a, *b;
    struct fsdp_event *event;
    struct fsdp_err err = FSDP_ERR_INIT;
    volatile int counter = 0, seen = 0, after = -1;
    fsdp_lane_create(&a, device, "a", &err);
    fsdp_lane_create(&b, device, "b", &err);
    fsdp_event_create(&event, device, &err);
    bool ordered = true;
    for (int round = 0; round < 200; round++) {
        struct step s = {&counter, &seen}, t = {&counter, &after};
        for (int i = 0; i < 20; i++)
            fsdp_lane_call(a, bump, &s, sizeof s, &err);
        fsdp_event_record(event, a, &err);
        fsdp_event_wait(event, b, &err);
        fsdp_lane_call(b, copy_counter, &t, sizeof t, &err);
        fsdp_lane_sync(b, &err);
        ordered &= after >= (round + 1) * 20;
        fsdp_lane_sync(a, &err);
    }
    ok(ordered && counter == 4000, "%s: work behind an event sees what came before it", mode);
    fsdp_lane_call(a, fail, &(int){0}, sizeof(int), &err);
    ok(fsdp_lane_sync(a, &err) == FSDP_EIO && !strcmp(err.text, "made to fail"),
       "%s: a failure is kept", mode);
    struct step s = {&counter, &seen};
    ok(fsdp_lane_call(a, bump, &s, sizeof s, &err) == FSDP_EIO && counter == 4000,
       "%s: later work is refused", mode);
    ok(fsdp_event_record(event, a, &err) == FSDP_OK && fsdp_event_wait(event, b, &err) == FSDP_OK &&
           fsdp_lane_sync(b, &err) == FSDP_OK,
       "%s: events pass a failed lane", mode);
    char big[FSDP_LANE_ARG_NBYTES + 1] = {0};
    ok(fsdp_lane_call(b, bump, big, sizeof big, &err) == FSDP_EINVAL,
       "%s: too large an argument: %s", mode, err.text);
    test_beside(mode, device, asynchronous);
    fsdp_event_destroy(event);
    fsdp_lane_destroy(a);
    fsdp_lane_destroy(b);
}

#endif
