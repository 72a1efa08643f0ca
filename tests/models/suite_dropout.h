/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout: the generator against its published values and the engine's own, the share and the scale
 * of what is kept, independence of rows and keys, and what it adds to. */
#ifndef SUITE_DROPOUT_H
#define SUITE_DROPOUT_H

#include "../../libfsdp/device/common/philox.h"
#include "suite.h"

static float *factors(struct nn_drop drop, int B, size_t row_nelem)
{
    float *x = ref_values((size_t)B * row_nelem, 1);
    for (size_t i = 0; i < (size_t)B * row_nelem; i++)
        x[i] = 1;
    struct nn_dropout args = {.out = x, .x = x, .B = B, .row_nelem = row_nelem, .drop = drop};
    if (nn->dropout(ref_lane(), &args, &err))
        abort();
    return x;
}

/* Element 8 w + j of block i is word w of counter 8 i + j; it is dropped where that is below p. */
static void test_generator(void)
{
    enum { ROW = 321 };
    const struct nn_drop drop = {
        .p = 0.4f, .key = UINT64_C(0x123456789abcdef0), .first_row = UINT64_C(0xffffffff)};
    float *x = factors(drop, 2, ROW);
    int wrong = 0;

    uint32_t known[4];
    philox4x32(known, 0, 0, 0);
    ok(known[0] == 0x6627e8d5 && known[1] == 0xe169c58d && known[2] == 0xbc57ac4c &&
           known[3] == 0x9b00dbd8,
       "Philox gives the published words");
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < ROW; i++) {
            uint32_t words[4];
            philox4x32(words, drop.key, drop.first_row + (uint64_t)b,
                       (uint64_t)(i / 32 * 8 + i % 8));
            bool dropped = words[i % 32 / 8] < 0.4f * 4294967296.0;
            wrong += x[b * ROW + i] != (dropped ? 0.0f : 1 / (1 - 0.4f));
        }
    ok(!wrong, "every element is that of its counter (%d are not)", wrong);
    free(x);
}

/* Within five standard deviations. */
static void test_share(float p)
{
    enum { B = 4, ROW = 100003 };
    const double n = (double)B * ROW;
    float *x = factors((struct nn_drop){.p = p, .key = 77, .first_row = 5}, B, ROW);
    double kept = 0, pairs = 0, sum = 0;

    for (size_t i = 0; i < (size_t)B * ROW; i++) {
        kept += x[i] > 0;
        pairs += i && x[i] > 0 && x[i - 1] > 0;
        sum += x[i];
    }
    const double q = 1 - (double)p, sd = sqrt(n * q * (1 - q));
    const double sd2 = sqrt(n * q * q * (1 - q * q) * 3);
    ok(fabs(kept - n * q) < 5 * sd && fabs(pairs - n * q * q) < 5 * sd2 &&
           fabs(sum / n - 1) < 5 * sd / (n * q),
       "p = %g keeps %.4f, neighbours %.4f, mean %.4f", (double)p, kept / n, pairs / n, sum / n);
    free(x);
}

static double agreement(const float *x, const float *y, size_t nelem)
{
    size_t same = 0;
    for (size_t i = 0; i < nelem; i++)
        same += x[i] == y[i];
    return (double)same / (double)nelem;
}

static void test_what_decides(void)
{
    enum { ROW = 4096 };
    struct nn_drop drop = {.p = 0.5f, .key = 1, .first_row = 10};
    float *three = factors(drop, 3, ROW);
    drop.first_row = 12;
    float *later = factors(drop, 1, ROW);
    drop.key = 2;
    float *other = factors(drop, 1, ROW);
    ok(!memcmp(three + 2 * ROW, later, ROW * sizeof *later),
       "a row's number in the run decides, not its place in the batch");
    double rows = agreement(three, three + ROW, ROW), keys = agreement(later, other, ROW);
    ok(fabs(rows - 0.5) < 0.05 && fabs(keys - 0.5) < 0.05,
       "rows and keys differ (%.3f and %.3f alike)", rows, keys);
    free(three), free(later), free(other);
}

static void test_edges(void)
{
    enum { N = 1000 };
    float *x = ref_values(N, 1), *y = ref_values(N, 1), *before = ref_copy(y, N);
    float *f = factors((struct nn_drop){.p = 0.25f, .key = 3}, 1, N);
    struct nn_dropout add = {
        .out = y, .x = x, .B = 1, .row_nelem = N, .beta = 1, .drop = {.p = 0.25f, .key = 3}};
    int rc = nn->dropout(ref_lane(), &add, &err), wrong = 0;
    for (int i = 0; i < N; i++)
        wrong += fabsf(y[i] - (before[i] + f[i] * x[i])) > 1e-6f;
    ok(!rc && !wrong, "adds where beta is 1");
    float *none = factors((struct nn_drop){.p = 0}, 1, N),
          *all = factors((struct nn_drop){.p = 1}, 1, N);
    wrong = 0;
    for (int i = 0; i < N; i++)
        wrong += none[i] != 1 || all[i] != 0;
    ok(!wrong, "p = 0 drops nothing, p = 1 everything");
    free(x), free(y), free(before), free(f), free(none), free(all);
}

static void run_dropout(void)
{
    test_generator();
    test_share(0.1f);
    test_share(0.5f);
    test_share(0.9f);
    test_what_decides();
    test_edges();
}

#endif
