/* SPDX-License-Identifier: Apache-2.0 */
/* suite_math.h: a device's norms, loss scale, conversions and initial values. */
#ifndef DEVICE_SUITE_MATH_H
#define DEVICE_SUITE_MATH_H

#include <math.h>
#include <stdlib.h>

#include "../../libfsdp/device/common/philox.h"
#include "mirror.h"
#include "tap.h"

static void test_norm(struct fsdp_lane *lane)
{
    float x[N], coef, norm;
    double sums[3] = {0}, want = 0;
    for (int i = 0; i < N; i++) {
        x[i] = noise(i);
        want += (double)x[i] * (double)x[i];
    }
    fsdp_sumsq(lane, UP(sums), UP(x), N, NULL);
    down(lane);
    sums[1] = 2;
    sums[2] = 3;
    fsdp_clip_coef(lane,
                   &(struct fsdp_clip_args){UP(coef), UP(norm), UP(sums), 3, FSDP_NORM_2, 1, NULL},
                   NULL);
    down(lane);
    ok(fabs(sums[0] - want) < 1e-9 * want, "sum of squares");
    ok(fabs(norm - sqrt(want + 5)) < 1e-5 * sqrt(want), "norm of three partial sums");
    ok(fabs(coef - 1 / (sqrt(want + 5) + 1e-6)) < 1e-6, "clip factor");
    fsdp_clip_coef(
        lane, &(struct fsdp_clip_args){UP(coef), UP(norm), UP(sums), 3, FSDP_NORM_2, 1e9f, NULL},
        NULL);
    down(lane);
    ok(coef == 1, "no clipping below the limit");
    fsdp_clip_coef(lane,
                   &(struct fsdp_clip_args){UP(coef), UP(norm), UP(sums), 3, FSDP_NORM_2, 0, NULL},
                   NULL);
    down(lane);
    ok(coef == 1, "a limit of 0 is off");
    sums[1] = NAN;
    fsdp_clip_coef(lane,
                   &(struct fsdp_clip_args){UP(coef), UP(norm), UP(sums), 3, FSDP_NORM_2, 1, NULL},
                   NULL);
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
    fsdp_clip_coef(
        lane,
        &(struct fsdp_clip_args){UP(coef), UP(norm), UP(partials), 2, FSDP_NORM_INF, 1.5f, NULL},
        NULL);
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
    fsdp_clip_coef(
        lane,
        &(struct fsdp_clip_args){UP(coef), UP(norm), UP(partials), 2, FSDP_NORM_INF, 1.5f, NULL},
        NULL);
    down(lane);
    ok(isnan(most) && isnan(norm) && isnan(coef), "NaN stays");
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
    fsdp_clip_coef(lane,
                   &(struct fsdp_clip_args){UP(coef), UP(norm), UP(sums), 2, FSDP_NORM_2, 1, UP(s)},
                   NULL);
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

    /* A sum in bf16, and what is measured of it. */
    static uint16_t kept[N], more[N];
    static float wide[N];
    double got[4] = {0};
    int bad_sums = 0;
    for (int i = 0; i < N; i++) {
        kept[i] = fsdp_f32_to_bf16(noise(i + 3));
        more[i] = fsdp_f32_to_bf16(fsdp_bf16_to_f32(kept[i]) + fsdp_bf16_to_f32(half[i]));
        wide[i] = fsdp_bf16_to_f32(more[i]);
    }
    fsdp_accumulate_to(lane, UP(kept), FSDP_BF16, UP(half), FSDP_BF16, N, NULL);
    fsdp_sumsq_of(lane, (double *)UP(got), UP(kept), FSDP_BF16, N, NULL);
    fsdp_absmax_of(lane, (double *)UP(got) + 1, UP(kept), FSDP_BF16, N, NULL);
    fsdp_sumsq(lane, (double *)UP(got) + 2, UP(wide), N, NULL);
    fsdp_absmax(lane, (double *)UP(got) + 3, UP(wide), N, NULL);
    down(lane);
    for (int i = 0; i < N; i++)
        bad_sums += kept[i] != more[i];
    ok(bad_sums == 0, "accumulated in bf16: the fp32 sum, rounded to the nearest");
    ok(fabs(got[0] - got[2]) <= 1e-12 * got[2] && got[1] == got[3],
       "squares and the greatest of bf16 are those of the same values in fp32");
}

static void decode(struct fsdp_lane *lane, float *dst, const uint8_t *src, size_t nelem,
                   const double *amax)
{
    const struct fsdp_dequantize_args args = {.dst = dst,
                                              .dst_dtype = FSDP_F32,
                                              .src = src,
                                              .src_dtype = FSDP_F8_E4M3,
                                              .nelem = nelem,
                                              .amax = amax};
    fsdp_dequantize(lane, &args, NULL);
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
        decode(lane, UP(back), UP(code), N, UP(amax));
        down(lane);
        for (int i = 0; i < N; i++) {
            float scale = 0x1p110f;
            while (amax * (double)scale > 448)
                scale /= 2;
            bad += code[i] != fsdp_f32_to_f8_e4m3(fminf(fmaxf(x[i] * scale, -448), 448));
            double part = fabs((double)back[i] - (double)x[i]);
            worst = fmax(worst, part / fmax(fabs((double)x[i]), 0x1p-6 / (double)scale));
        }
        ok(bad == 0 && worst <= 0x1p-4 * (1 + 1e-6), "amax %.1e in E4M3: within %.4f", amax, worst);
    }
    double amax = 0;
    memset(x, 0, sizeof x);
    fsdp_quantize(lane, UP(code), FSDP_F8_E4M3, UP(x), 4, UP(amax), NULL);
    decode(lane, UP(back), UP(code), 4, UP(amax));
    down(lane);
    ok(back[0] == 0 && back[3] == 0, "zeros are zeros");
    amax = INFINITY;
    x[1] = INFINITY;
    fsdp_quantize(lane, UP(code), FSDP_F8_E4M3, UP(x), 4, UP(amax), NULL);
    decode(lane, UP(back), UP(code), 4, UP(amax));
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

/* Pieces that lie apart, with room behind each that is not touched; odd places and steps, too. */
static void test_pieces(struct fsdp_lane *lane)
{
    enum { COUNT = 5, NELEM = 37, ROOM = 48 };
    static const size_t froms[] = {0, 3};
    double amax = 448;
    int bad = 0;

    for (int way = 0; way < 4; way++) {
        const size_t from = froms[way % 2], step = way < 2 ? ROOM : ROOM + 1;
        uint8_t code[COUNT * (ROOM + 1) + 3], copy[COUNT * (ROOM + 1) + 3] = {0};
        float back[COUNT * (ROOM + 1)] = {0};
        for (size_t i = 0; i < sizeof code; i++)
            code[i] = (uint8_t)(i * 5 % 0x7f); /* no NaN */
        const struct fsdp_pieces apart = {COUNT, step, step}, dense = {COUNT, NELEM * 4, step};
        fsdp_copy_pieces(lane, (uint8_t *)UP(copy) + from, (uint8_t *)UP(code) + from, NELEM,
                         &apart, NULL);
        const struct fsdp_dequantize_args args = {.dst = UP(back),
                                                  .dst_dtype = FSDP_F32,
                                                  .src = (uint8_t *)UP(code) + from,
                                                  .src_dtype = FSDP_F8_E4M3,
                                                  .nelem = NELEM,
                                                  .pieces = dense,
                                                  .amax = UP(amax)};
        fsdp_dequantize(lane, &args, NULL);
        down(lane);
        for (size_t i = 0; i < sizeof copy; i++) {
            const bool in = i >= from && (i - from) % step < NELEM && (i - from) / step < COUNT;
            bad += copy[i] != (in ? code[i] : 0);
        }
        for (size_t p = 0; p < COUNT; p++)
            for (size_t i = 0; i < NELEM; i++)
                bad += back[p * NELEM + i] != fsdp_f8_e4m3_to_f32(code[from + p * step + i]);
        bad += back[COUNT * NELEM] != 0;
    }
    ok(bad == 0, "pieces are copied and decoded in one call, and nothing between them");
}

/* Pieces of a tensor, whose codes and scales lie apart, are what a call for each makes. */
static void test_nf4_pieces(struct fsdp_lane *lane)
{
    enum { COUNT = 3, NELEM = 192, STEP = 120, NBYTES = COUNT * STEP };
    uint8_t codes[NBYTES], scale_codes[NBYTES];
    static uint16_t want[COUNT * NELEM], got[COUNT * NELEM];
    const float scales[2] = {0.25f, 0.3f}, offset = 0.7f;
    struct fsdp_nf4_args args = {.dst_dtype = FSDP_BF16, .nelem = NELEM};
    int bad = 0;

    for (int i = 0; i < NBYTES; i++) {
        codes[i] = (uint8_t)(i * 37 + i / 7);
        scale_codes[i] = (uint8_t)(i * 11);
    }
    args.scales = UP(scales);
    args.offset = UP(offset);
    for (int p = 0; p < COUNT; p++) {
        args.dst = (uint16_t *)UP(want) + p * NELEM;
        args.codes = (uint8_t *)UP(codes) + p * STEP;
        args.scale_codes = (uint8_t *)UP(scale_codes) + p * STEP;
        args.first_block = 254 + (uint64_t)p * NELEM / FSDP_NF4_BLOCK;
        bad += fsdp_nf4_decode(lane, &args, NULL);
    }
    args.dst = UP(got);
    args.codes = UP(codes);
    args.scale_codes = UP(scale_codes);
    args.first_block = 254;
    args.pieces = (struct fsdp_pieces){COUNT, NELEM * 2, STEP};
    bad += fsdp_nf4_decode(lane, &args, NULL);
    down(lane);
    ok(bad == 0 && !memcmp(want, got, sizeof want) && want[0] != want[COUNT * NELEM - 1],
       "pieces in NF4 are decoded in one call");
    args.nelem = NELEM - 1;
    ok(fsdp_nf4_decode(lane, &args, NULL) == FSDP_EINVAL, "and are whole blocks");
}

/* Every code, in blocks of which the last is short; the tensor's blocks begin elsewhere. */
static void test_nf4(struct fsdp_lane *lane)
{
    enum { NBLOCKS = (N + 63) / 64, FIRST = 250 };
    static const float values[] = {-1, -0.6961928009986877f, -0.5250730514526367f, 1};
    static const int places[] = {0, 1, 2, 15};
    static float f32[N];
    static uint16_t bf16[N], f16[N];
    uint8_t codes[(N + 1) / 2], scale_codes[NBLOCKS];
    const float scales[2] = {0.25f, 0.3f}, offset = 0.7f;
    struct fsdp_nf4_args args = {.first_block = FIRST, .nelem = N};
    int bad = 0;

    for (int i = 0; i < (N + 1) / 2; i++)
        codes[i] = (uint8_t)(i * 37 + i / 256);
    for (int i = 0; i < NBLOCKS; i++) /* 1, 0 and the least: -0.992968738 */
        scale_codes[i] = (uint8_t)(i % 3 == 0 ? 255 : i % 3 == 1 ? 127 : 0);
    args.codes = UP(codes);
    args.scale_codes = UP(scale_codes);
    args.scales = UP(scales);
    args.offset = UP(offset);
    args.dst = UP(f32);
    args.dst_dtype = FSDP_F32;
    bad += fsdp_nf4_decode(lane, &args, NULL);
    args.dst = UP(bf16);
    args.dst_dtype = FSDP_BF16;
    bad += fsdp_nf4_decode(lane, &args, NULL);
    args.dst = (uint16_t *)UP(f16) + 1;
    args.dst_dtype = FSDP_F16;
    args.nelem = N - 1;
    bad += fsdp_nf4_decode(lane, &args, NULL);
    args.nelem = 0;
    bad += fsdp_nf4_decode(lane, &args, NULL);
    down(lane);
    for (int i = 0; i < N; i++) {
        const int code = codes[i / 2] >> (i % 2 ? 0 : 4) & 15, block = i / 64;
        const float of = block % 3 == 0 ? 1 : block % 3 == 1 ? 0 : -0.992968738f;
        volatile float scale = of * scales[(FIRST + block) / 256];
        scale = scale + offset;
        for (int k = 0; k < 4; k++)
            bad += code == places[k] && f32[i] != values[k] * scale;
        bad += code == 7 && f32[i] != 0;
        bad += bf16[i] != fsdp_f32_to_bf16(f32[i]);
        bad += i + 1 < N && f16[i + 1] != fsdp_f32_to_f16(f32[i]);
    }
    ok(bad == 0 && f16[0] == 0, "NF4 is decoded to the bit, from any block on");
    args.dst_dtype = FSDP_F8_E4M3;
    ok(fsdp_nf4_decode(lane, &args, NULL) == FSDP_EINVAL, "and to float types alone");
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
        bad += code[i + 1] != fsdp_f32_to_f8_e4m3(x[i + 3] * 128);
    }
    bad += half[2] != 0 || half[N - 4] != 0 || code[0] != 0 || code[N - 6] != 0;
    bad += sum[4] != noise(7) || sum[N - 2] != noise(N + 1);
    ok(bad == 0, "ranges that begin anywhere, or are empty, and nothing next to them");
    ok(fabs(got[0] - want) < 1e-12 * want && got[0] == got[1],
       "a long sum, twice to the same bits");
}

#endif
