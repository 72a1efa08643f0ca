/* SPDX-License-Identifier: Apache-2.0 */
/* suite_adamw8bit.h: AdamW with moments in 8 bits, against a step in fp64 and a search of all
 * codes. */
#ifndef DEVICE_SUITE_ADAMW8BIT_H
#define DEVICE_SUITE_ADAMW8BIT_H

#include <math.h>
#include <stdlib.h>

#include "../../libfsdp/device/common/dynamic_code.h"
#include "mirror.h"
#include "tap.h"

/* The code of a table that is nearest to x, found by looking at all of them. */
static uint8_t nearest_of(const float *table, float x)
{
    int best = 0;
    for (int i = 1; i < 256; i++)
        best = fabsf(x - table[i]) < fabsf(x - table[best]) ? i : best;
    return (uint8_t)best;
}

struct host_8bit {
    uint8_t code1[N], code2[N];
    float p[N], m[N], v[N], g[N], absmax1[N / 128 + 1], absmax2[N / 128 + 1];
};

/* What the step makes of a block, from what is decoded, in fp64. */
static void step_block(const struct fsdp_adamw8bit_args *a, struct host_8bit *h, int block)
{
    const int end = (block + 1) * 128 < N ? (block + 1) * 128 : N;
    float most1 = 0, most2 = 0;

    for (int i = block * 128; i < end; i++) {
        const double g = (double)h->g[i] * 0.25;
        double m = (double)(dynamic_signed[h->code1[i]] * h->absmax1[block]) * 0.9 + 0.1 * g;
        double v =
            (double)(dynamic_unsigned[h->code2[i]] * h->absmax2[block]) * 0.95 + 0.05 * g * g;
        const double fix1 = 1 - pow(0.9, (double)a->nsteps),
                     fix2 = 1 - pow(0.95, (double)a->nsteps);
        h->p[i] = (float)((double)h->p[i] * (1 - a->lr * a->weight_decay) -
                          a->lr * (m / fix1) / (sqrt(v / fix2) + a->eps));
        h->m[i] = (float)m;
        h->v[i] = (float)v;
        most1 = fmaxf(most1, fabsf(h->m[i]));
        most2 = fmaxf(most2, h->v[i]);
    }
    h->absmax1[block] = most1 == 0 ? 1 : most1;
    h->absmax2[block] = most2 == 0 ? 1 : most2;
    for (int i = block * 128; i < end; i++) {
        h->code1[i] = nearest_of(dynamic_signed, h->m[i] / h->absmax1[block]);
        h->code2[i] = nearest_of(dynamic_unsigned, h->v[i] / h->absmax2[block]);
    }
}

static void run_adamw8bit(struct fsdp_lane *lane, const struct fsdp_adamw8bit_args *host,
                          struct host_8bit *h)
{
    struct fsdp_adamw8bit_args args = *host;
    float coef = 0.25f;
    args.master = UP(h->p);
    args.state1 = UP(h->code1);
    args.state2 = UP(h->code2);
    args.absmax1 = UP(h->absmax1);
    args.absmax2 = UP(h->absmax2);
    args.grad = UP(h->g);
    args.grad_scale = up(lane, &coef, sizeof coef);
    args.loss_scale = up(lane, host->loss_scale, sizeof *host->loss_scale);
    fsdp_adamw8bit(lane, &args, NULL);
    down(lane);
}

static void test_adamw8bit(struct fsdp_lane *lane)
{
    static struct host_8bit got, want, before;
    const struct fsdp_loss_scale skip = {.skip = 1}, go = {.scale = 1};
    struct fsdp_adamw8bit_args args = {.loss_scale = &go,
                                       .nelem = N,
                                       .lr = 1e-2,
                                       .beta1 = 0.9,
                                       .beta2 = 0.95,
                                       .eps = 1e-8,
                                       .weight_decay = 0.1};
    int flips = 0;
    double worst = 0;

    for (int i = 0; i < N; i++)
        got.p[i] = want.p[i] = noise(i);
    for (args.nsteps = 1; args.nsteps <= 3; args.nsteps++) {
        for (int i = 0; i < N; i++) /* the second block has no gradients */
            got.g[i] = want.g[i] = i / 128 == 1 ? 0 : noise(i + 11 * (int)args.nsteps);
        run_adamw8bit(lane, &args, &got);
        for (int block = 0; block * 128 < N; block++)
            step_block(&args, &want, block);
        for (int i = 0; i < N; i++) {
            flips += got.code1[i] != want.code1[i];
            flips += got.code2[i] != want.code2[i];
            worst = fmax(worst, fabs((double)got.p[i] - (double)want.p[i]));
        }
        want = got; /* a code that rounding decides is not carried on */
    }
    ok(worst < 3e-7, "adamw8bit against fp64: worst difference %.2e", worst);
    ok(flips <= 6 * N / 1000, "its codes are the nearest ones: %d of %d differ", flips, 6 * N);
    ok(got.absmax1[1] == 1 && got.absmax2[1] == 1 && dynamic_signed[got.code1[128]] == 0,
       "a block of zeros stays one");
    before = got;
    args.loss_scale = &skip;
    run_adamw8bit(lane, &args, &got);
    ok(!memcmp(&before, &got, sizeof got), "a skipped step changes nothing");
}

/* Moments are the gradients themselves (betas of 0), and a block's greatest is 1: its codes are
 * those of numbers around the middle of any two codes. */
static void test_dynamic_codes(struct fsdp_lane *lane)
{
    enum { NBLOCKS = 40, AROUND = 9, NPROBES = NBLOCKS * 128 };
    static float p[NPROBES], g[NPROBES], absmax1[NBLOCKS], absmax2[NBLOCKS];
    static uint8_t code1[NPROBES], code2[NPROBES];
    const struct fsdp_loss_scale go = {.scale = 1};
    struct fsdp_adamw8bit_args args = {.nelem = NPROBES, .nsteps = 1, .eps = 1e-8};
    int at = 0, nwrong = 0;

    for (int i = 0; i < 2 * 255 * AROUND; i++) {
        const int low = i / AROUND % 255, away = i % AROUND - AROUND / 2;
        const float *table = i < 255 * AROUND ? dynamic_signed : dynamic_unsigned;
        const float middle = 0.5f * (table[low] + table[low + 1]);
        float x = table == dynamic_signed ? middle : sqrtf(middle);
        for (int k = 0; k < abs(away); k++)
            x = nextafterf(x, away < 0 ? -2.0f : 2.0f);
        g[at + at / 127 + 1] = x;
        at++;
    }
    for (int block = 0; block < NBLOCKS; block++)
        g[block * 128] = 1;
    args.master = UP(p);
    args.state1 = UP(code1);
    args.state2 = UP(code2);
    args.absmax1 = UP(absmax1);
    args.absmax2 = UP(absmax2);
    args.grad = UP(g);
    args.loss_scale = up(lane, &go, sizeof go);
    fsdp_adamw8bit(lane, &args, NULL);
    down(lane);
    for (int i = 0; i < NPROBES; i++)
        nwrong += code1[i] != nearest_of(dynamic_signed, g[i]) ||
                  code2[i] != nearest_of(dynamic_unsigned, g[i] * g[i]);
    ok(nwrong == 0 && absmax1[0] == 1 && absmax2[NBLOCKS - 1] == 1,
       "codes between any two: %d of %d are not the nearest", nwrong, NPROBES);
}

#endif
