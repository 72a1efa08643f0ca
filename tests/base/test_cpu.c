/* SPDX-License-Identifier: Apache-2.0 */
/* Threads for loops; conversions, random words and copies in loops against the scalar ones. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../../libfsdp/device/common/philox.h"
#include "fsdp/sys/cpu.h"
#include "tap.h"

/* ---- loops ---------------------------------------------------------------------------------- */

enum { MOST = 10007 };

struct counts {
    _Atomic int seen[MOST];
    _Atomic int bad_worker, bad_piece;
    size_t nitems, grain;
    bool nested;
};

static void count(void *arg, int worker, size_t from, size_t to)
{
    struct counts *c = arg;
    if (worker < 0 || worker >= fsdp_cpu_threads())
        c->bad_worker++;
    if (from % c->grain || (to != c->nitems && (to - from) % c->grain))
        c->bad_piece++;
    for (size_t i = from; i < to; i++)
        c->seen[i]++;
    if (c->nested) {
        struct counts *inner = calloc(1, sizeof *inner);
        inner->nitems = 100;
        inner->grain = 7;
        fsdp_cpu_for(100, 7, count, inner);
        for (size_t i = 0; i < 100; i++)
            c->bad_piece += inner->seen[i] != 1;
        free(inner);
    }
}

static bool covered(size_t nitems, size_t grain, bool nested)
{
    struct counts *c = calloc(1, sizeof *c);
    c->nitems = nitems;
    c->grain = grain;
    c->nested = nested;
    fsdp_cpu_for(nitems, grain, count, c);
    bool good = !c->bad_worker && !c->bad_piece;
    for (size_t i = 0; i < MOST; i++)
        good &= c->seen[i] == (i < nitems);
    free(c);
    return good;
}

static void test_loops(int nthreads)
{
    static const size_t nitems[] = {0, 1, 6, 7, 8, 1000, MOST}, grains[] = {1, 7, 4096};
    bool good = true, again = true;

    fsdp_cpu_set_threads(nthreads);
    for (int n = 0; n < 7; n++)
        for (int g = 0; g < 3; g++)
            good &= covered(nitems[n], grains[g], false);
    ok(good && fsdp_cpu_threads() == nthreads, "%d threads: every item once, in whole grains",
       nthreads);
    for (int i = 0; i < 2000; i++)
        again &= covered(64, 1, false);
    ok(again, "%d threads: many short loops after each other", nthreads);
    ok(covered(MOST, 16, true), "%d threads: loops inside a loop", nthreads);
}

static void *caller(void *arg)
{
    bool *good = arg;
    for (int i = 0; i < 200; i++)
        *good &= covered(1000, 3, false);
    return NULL;
}

static void test_two_callers(void)
{
    bool good[2] = {true, true};
    pthread_t thread[2];
    for (int i = 0; i < 2; i++)
        if (pthread_create(&thread[i], NULL, caller, &good[i]))
            abort();
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    ok(good[0] && good[1], "two threads run loops at once");
}

/* ---- conversions ---------------------------------------------------------------------------- */

static void test_widen(enum fsdp_dtype dtype, float (*scalar)(uint16_t))
{
    uint16_t *x = malloc(65536 * sizeof *x);
    float *y = malloc(65536 * sizeof *y);
    int wrong = 0;

    for (int i = 0; i < 65536; i++)
        x[i] = (uint16_t)i;
    fsdp_cpu_convert(y, FSDP_F32, x, dtype, 65536);
    for (int i = 0; i < 65536; i++) {
        float want = scalar(x[i]);
        wrong += isnan(want) ? !isnan(y[i]) : memcmp(&want, &y[i], sizeof want) != 0;
    }
    ok(!wrong, "%s to F32, all values: %d wrong", fsdp_dtype_name(dtype), wrong);
    free(x), free(y);
}

/* Every 16-bit value, its neighbours and the ties between them, and lengths that are no multiple of
 * anything. */
static void test_narrow(enum fsdp_dtype dtype, float (*wide)(uint16_t), uint16_t (*scalar)(float))
{
    enum { N = 3 * 65536 - 3 };
    float *x = malloc(N * sizeof *x);
    uint16_t *y = malloc(N * sizeof *y);
    int wrong = 0;

    for (int i = 0; i < N; i++) {
        const float value = wide((uint16_t)(i / 3)), next = wide((uint16_t)(i / 3 + 1));
        x[i] = i % 3 == 0 ? value : i % 3 == 1 ? value + (next - value) / 2 : nextafterf(value, 9);
    }
    fsdp_cpu_convert(y, dtype, x, FSDP_F32, N);
    for (int i = 0; i < N; i++) {
        const uint16_t want = scalar(x[i]);
        wrong += isnan(x[i]) ? !isnan(wide(y[i])) : y[i] != want;
    }
    ok(!wrong, "F32 to %s: %d wrong", fsdp_dtype_name(dtype), wrong);
    free(x), free(y);
}

static void test_others(void)
{
    uint16_t x[700], y[700], z[700];
    bool good = true;
    for (int i = 0; i < 700; i++)
        x[i] = fsdp_f32_to_bf16((float)(i - 350) / 7);
    fsdp_cpu_convert(y, FSDP_F16, x, FSDP_BF16, 700);
    for (int i = 0; i < 700; i++)
        good &= y[i] == fsdp_f32_to_f16(fsdp_bf16_to_f32(x[i]));
    fsdp_cpu_convert(z, FSDP_F16, y, FSDP_F16, 700);
    ok(good && !memcmp(y, z, sizeof y), "between 16-bit types, and a type and itself");
}

/* Any alignment and length, and nothing else. */
static void test_copy_past(void)
{
    enum { ROOM = 3 << 20 };
    const size_t lengths[] = {0, 1, 63, 64, 65, 127, 128, 1000, 4096, (2 << 20) + 77};
    unsigned char *from = malloc(ROOM), *to = malloc(ROOM);
    int wrong = 0;

    for (size_t i = 0; i < ROOM; i++)
        from[i] = (unsigned char)(i * 31 + i / 251);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (size_t shift = 0; shift < 130; shift += l < 9 ? 1 : 43) {
            unsigned char *dst = to + 64 + shift, *src = from + shift * 7 % 64;
            size_t n = lengths[l];
            memset(to, 0xee, n + 400);
            fsdp_cpu_copy_past(dst, src, n);
            wrong += memcmp(dst, src, n) || dst[-1] != 0xee || dst[n] != 0xee;
        }
    ok(!wrong, "copies past the caches: %d wrong", wrong);
    free(from), free(to);
}

/* ---- random words ---------------------------------------------------------------------------- */

/* How many of the words at this counter differ from the scalar ones. */
static int differing_words(uint64_t key, uint64_t stream, uint64_t counter)
{
    uint32_t got[FSDP_PHILOX_WORDS][FSDP_PHILOX_COUNTERS], want[FSDP_PHILOX_WORDS];
    int wrong = 0;

    fsdp_cpu_philox(got, key, stream, counter);
    for (int j = 0; j < FSDP_PHILOX_COUNTERS; j++) {
        philox4x32(want, key, stream, counter + (uint64_t)j);
        for (int w = 0; w < FSDP_PHILOX_WORDS; w++)
            wrong += got[w][j] != want[w];
    }
    return wrong;
}

static void test_philox(void)
{
    static const uint64_t edges[] = {
        0, 8, 0xfffffff8, UINT64_C(0x100000000), UINT64_C(0x7ffffffffffffff8), UINT64_MAX - 7};
    enum { N = sizeof edges / sizeof *edges };
    uint32_t out[FSDP_PHILOX_WORDS][FSDP_PHILOX_COUNTERS];
    uint64_t x = 1;
    int wrong = 0;

    fsdp_cpu_philox(out, UINT64_MAX, UINT64_MAX, UINT64_MAX - 7);
    ok(out[0][7] == 0x408f276d && out[1][7] == 0x41c83b0e && out[2][7] == 0xa20bc7c6 &&
           out[3][7] == 0x6d5451fd,
       "Philox gives the published words");
    for (int i = 0; i < N * N * N; i++)
        wrong += differing_words(edges[i % N], edges[i / N % N], edges[i / N / N]);
    for (int i = 0; i < 10000; i++) {
        const uint64_t key = x *= UINT64_C(0xd1342543de82ef95), stream = x ^ x >> 29;
        wrong += differing_words(key, stream, (x ^ x >> 17) * 8);
    }
    ok(!wrong, "eight counters at a time as one after another: %d wrong", wrong);
}

int main(void)
{
    test_copy_past();
    fsdp_cpu_set_threads(3);
    test_copy_past();
    test_loops(1);
    test_loops(2);
    test_loops(5);
    test_two_callers();
    fsdp_cpu_set_threads(1);
    ok(fsdp_cpu_threads() == 1 && covered(1000, 3, false), "threads end again");
    test_widen(FSDP_BF16, fsdp_bf16_to_f32);
    test_widen(FSDP_F16, fsdp_f16_to_f32);
    test_narrow(FSDP_BF16, fsdp_bf16_to_f32, fsdp_f32_to_bf16);
    test_narrow(FSDP_F16, fsdp_f16_to_f32, fsdp_f32_to_f16);
    test_others();
    test_philox();
    return tap_done();
}
