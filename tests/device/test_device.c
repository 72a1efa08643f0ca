/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU device: arithmetic against fp64 references, lanes and events, initial values. */
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../../libfsdp/device/philox.h"
#include "fsdp/device.h"
#include "tap.h"

enum { N = 1003 };

static float noise(int i)
{
    return (float)((i * 2654435761u >> 8 & 0xffff) / 32768.0 - 1.0);
}

static void test_adamw(struct fsdp_lane *lane)
{
    float p[N], m[N], v[N], g[N], coef = 0.25f;
    double worst = 0;
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
                                   .nelem = N,
                                   .lr = 1e-2,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .weight_decay = 0.1,
                                   .nsteps = 3};
    const double bias1 = 1 - pow(0.9, 3), bias2 = 1 - pow(0.95, 3);
    fsdp_adamw(lane, &args, NULL);
    fsdp_lane_sync(lane, NULL);
    for (int i = 0; i < N; i++) {
        double gi = (double)g[i] * 0.25, mi = 0.9 * (double)m0[i] + 0.1 * gi,
               vi = 0.95 * (double)v0[i] + 0.05 * gi * gi;
        double pi = (double)p0[i] * (1 - 1e-2 * 0.1);
        pi -= 1e-2 / bias1 * mi / (sqrt(vi) / sqrt(bias2) + 1e-8);
        worst = fmax(worst, fabs(pi - (double)p[i]));
        worst = fmax(worst, fabs(mi - (double)m[i]));
        worst = fmax(worst, fabs(vi - (double)v[i]));
    }
    ok(worst < 3e-7, "adamw against fp64: worst difference %.2e", worst);

    struct fsdp_loss_scale scale = {.skip = 1, .nskipped = 2};
    float p1[N], v1[N];
    memcpy(p1, p, sizeof p);
    memcpy(v1, v, sizeof v);
    args.loss_scale = &scale;
    args.nsteps = 5;
    fsdp_adamw(lane, &args, NULL);
    fsdp_lane_sync(lane, NULL);
    ok(!memcmp(p, p1, sizeof p) && !memcmp(v, v1, sizeof v), "a skipped step changes nothing");
    scale.skip = 0;
    memcpy(p, p0, sizeof p);
    memcpy(m, m0, sizeof m);
    memcpy(v, v0, sizeof v);
    fsdp_adamw(lane, &args, NULL);
    fsdp_lane_sync(lane, NULL);
    ok(!memcmp(p, p1, sizeof p), "skipped steps do not count in the bias correction");
}

static void test_norm(struct fsdp_lane *lane)
{
    float x[N], coef, norm;
    double sums[3], want = 0;
    for (int i = 0; i < N; i++) {
        x[i] = noise(i);
        want += (double)x[i] * (double)x[i];
    }
    fsdp_sumsq(lane, &sums[0], x, N, NULL);
    sums[1] = 2;
    sums[2] = 3;
    fsdp_clip_coef(lane, &coef, &norm, sums, 3, FSDP_NORM_2, 1, NULL, NULL);
    fsdp_lane_sync(lane, NULL);
    ok(fabs(sums[0] - want) < 1e-9 * want, "sum of squares");
    ok(fabs(norm - sqrt(want + 5)) < 1e-5, "norm of three partial sums");
    ok(fabs(coef - 1 / (sqrt(want + 5) + 1e-6)) < 1e-6, "clip factor");
    fsdp_clip_coef(lane, &coef, &norm, sums, 3, FSDP_NORM_2, 1e9f, NULL, NULL);
    fsdp_lane_sync(lane, NULL);
    ok(coef == 1, "no clipping below the limit");
    fsdp_clip_coef(lane, &coef, &norm, sums, 3, FSDP_NORM_2, 0, NULL, NULL);
    fsdp_lane_sync(lane, NULL);
    ok(coef == 1, "a limit of 0 is off");
    sums[1] = NAN;
    fsdp_clip_coef(lane, &coef, &norm, sums, 3, FSDP_NORM_2, 1, NULL, NULL);
    fsdp_lane_sync(lane, NULL);
    ok(isnan(coef) && isnan(norm), "NaN does not pass for 1");
}

static void test_norm_inf(struct fsdp_lane *lane)
{
    float x[N], coef, norm;
    double most = 0, partials[2] = {0, 3};
    for (int i = 0; i < N; i++)
        x[i] = noise(i);
    x[N - 1] = -2.5f;
    fsdp_absmax(lane, &partials[0], x, N, NULL);
    fsdp_clip_coef(lane, &coef, &norm, partials, 2, FSDP_NORM_INF, 1.5f, NULL, NULL);
    fsdp_absmax(lane, &most, x, 5, NULL);
    fsdp_lane_sync(lane, NULL);
    ok(partials[0] == 2.5 && norm == 3 && fabs(coef - 0.5) < 1e-6, "the greatest absolute value");
    most = 7;
    fsdp_absmax(lane, &most, x, N, NULL);
    fsdp_lane_sync(lane, NULL);
    ok(most == 7, "a greater one stays");
    x[500] = NAN;
    fsdp_absmax(lane, &most, x, N, NULL);
    fsdp_lane_sync(lane, NULL);
    x[500] = 0;
    partials[1] = most;
    fsdp_absmax(lane, &most, x, N, NULL);
    fsdp_clip_coef(lane, &coef, &norm, partials, 2, FSDP_NORM_INF, 1.5f, NULL, NULL);
    fsdp_lane_sync(lane, NULL);
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
        fsdp_sgd(lane, &args, NULL);
        fsdp_lane_sync(lane, NULL);
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
        fsdp_sgd(lane, &args, NULL);
        fsdp_lane_sync(lane, NULL);
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
        fsdp_ema(lane, average, x, N, decays[k], NULL);
        fsdp_lane_sync(lane, NULL);
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
        fsdp_loss_scale_update(lane, &s, &norms[i], rule, NULL);
        fsdp_lane_sync(lane, NULL);
        bad += s.scale != scales[i] || s.good_steps != good[i] || s.skip != !isfinite(norms[i]);
        bad += s.factor != s.scale * 1.5f || s.inverse != 1 / s.factor;
    }
    ok(bad == 0 && s.nskipped == 2, "the loss scale grows after good steps and shrinks at others");
    s.scale = 0x1p127f;
    for (int i = 0; i < 3; i++)
        fsdp_loss_scale_update(lane, &s, &norms[0], rule, NULL);
    fsdp_lane_sync(lane, NULL);
    ok(isfinite(s.factor), "it stays finite");

    const double sums[2] = {9 * 1536.0 * 1536.0, 16 * 1536.0 * 1536.0};
    float coef, norm;
    s = (struct fsdp_loss_scale){.inverse = 1 / 1536.0f};
    fsdp_clip_coef(lane, &coef, &norm, sums, 2, FSDP_NORM_2, 1, &s, NULL);
    fsdp_lane_sync(lane, NULL);
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
    fsdp_cast(lane, half, FSDP_BF16, src, FSDP_F32, N, NULL);
    fsdp_cast(lane, back, FSDP_F32, half, FSDP_BF16, N, NULL);
    fsdp_accumulate(lane, sum, half, FSDP_BF16, N, NULL);
    fsdp_lane_sync(lane, NULL);
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
        fsdp_absmax(lane, &amax, x, N, NULL);
        fsdp_quantize(lane, code, FSDP_F8_E4M3, x, N, &amax, NULL);
        fsdp_dequantize(lane, back, FSDP_F32, code, FSDP_F8_E4M3, N, &amax, NULL);
        fsdp_lane_sync(lane, NULL);
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
    fsdp_quantize(lane, code, FSDP_F8_E4M3, x, 4, &amax, NULL);
    fsdp_dequantize(lane, back, FSDP_F32, code, FSDP_F8_E4M3, 4, &amax, NULL);
    fsdp_lane_sync(lane, NULL);
    ok(back[0] == 0 && back[3] == 0, "zeros are zeros");
    amax = INFINITY;
    x[1] = INFINITY;
    fsdp_quantize(lane, code, FSDP_F8_E4M3, x, 4, &amax, NULL);
    fsdp_dequantize(lane, back, FSDP_F32, code, FSDP_F8_E4M3, 4, &amax, NULL);
    fsdp_lane_sync(lane, NULL);
    ok(isnan(back[0]) && isnan(back[1]), "an infinity does not pass for 448");
    const double in[] = {1, NAN, 3, 4, 5, 2, 0, 9, 8};
    double most[3];
    fsdp_max_rows(lane, most, in, 3, 3, NULL);
    fsdp_lane_sync(lane, NULL);
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
    fsdp_init_fill(lane, whole, 0, 100000, normal, 1, 2, NULL);
    fsdp_init_fill(lane, part, 777, 1000, normal, 1, 2, NULL);
    fsdp_lane_sync(lane, NULL);
    ok(!memcmp(whole + 777, part, sizeof part),
       "a shard that begins anywhere has the whole's values");
    for (int i = 0; i < 100000; i++) {
        mean += (double)whole[i] / 1e5;
        var += (double)whole[i] * (double)whole[i] / 1e5;
        worst = fmax(worst, fabs((double)whole[i]));
    }
    ok(fabs(mean) < 3e-4 && fabs(sqrt(var) - 0.02) < 2e-4 && worst < 0.12,
       "normal: mean %.1e, deviation %.4f", mean, sqrt(var));
    fsdp_init_fill(lane, part, 777, 1000, normal, 2, 2, NULL);
    fsdp_lane_sync(lane, NULL);
    ok(memcmp(whole + 777, part, sizeof part), "another seed, other values");
    struct fsdp_init uniform = {FSDP_INIT_UNIFORM, 2.0f}, ones = {FSDP_INIT_ONES, 0};
    fsdp_init_fill(lane, whole, 0, 100000, uniform, 1, 2, NULL);
    fsdp_init_fill(lane, part, 0, 1000, ones, 1, 2, NULL);
    fsdp_lane_sync(lane, NULL);
    float low = 0, high = 0;
    for (int i = 0; i < 100000; i++) {
        low = fminf(low, whole[i]);
        high = fmaxf(high, whole[i]);
    }
    ok(low >= -2 && low < -1.99f && high < 2 && high > 1.99f && part[999] == 1, "uniform and ones");
}

/* ---- lanes
 * -------------------------------------------------------------------------------------------- */

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
    ok(!fsdp_lane_native(lane), "%s: there is no queue of a maker's library", mode);
    fsdp_event_destroy(event);
    fsdp_lane_destroy(lane);
}

static void test_lanes(unsigned flags)
{
    struct fsdp_device *device;
    struct fsdp_lane *a, *b;
    struct fsdp_event *event;
    struct fsdp_err err = FSDP_ERR_INIT;
    const char *mode = flags == FSDP_DEVICE_THREADED ? "threaded" : flags ? "shuffled" : "inline";
    volatile int counter = 0, seen = 0, after = -1;
    fsdp_device_open(&device, "cpu", flags, &err);
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
    test_beside(mode, device, flags != 0);
    fsdp_event_destroy(event);
    fsdp_lane_destroy(a);
    fsdp_lane_destroy(b);
    fsdp_device_close(device);
}

int main(void)
{
    struct fsdp_device *device;
    struct fsdp_lane *lane;
    struct fsdp_err err = FSDP_ERR_INIT;
    ok(fsdp_device_open(&device, "tpu", 0, &err) == FSDP_EUNSUPPORTED, "unknown device: %s",
       err.text);
    if (fsdp_device_open(&device, "auto", 0, &err) || fsdp_lane_create(&lane, device, "test", &err))
        return 1;
    test_adamw(lane);
    test_norm(lane);
    test_norm_inf(lane);
    test_sgd(lane);
    test_ema(lane);
    test_loss_scale(lane);
    test_casts(lane);
    test_quantize(lane);
    test_init(lane);
    fsdp_lane_destroy(lane);
    fsdp_device_close(device);
    test_lanes(0);
    test_lanes(FSDP_DEVICE_THREADED);
    test_lanes(FSDP_DEVICE_SHUFFLED | 5 << FSDP_DEVICE_SEED_SHIFT);
    fsdp_alloc_fail_at(1);
    ok(!fsdp_alloc(10, 1, "probe", &err) && err.status == FSDP_ENOMEM,
       "allocation failure on request: %s", err.text);
    void *p = fsdp_alloc(10, 1, "probe", &err);
    ok(p != NULL, "only that one fails");
    fsdp_free(p);
    ok(!fsdp_alloc(SIZE_MAX / 2, 4, "probe", &err), "overflow: %s", err.text);
    return tap_done();
}
