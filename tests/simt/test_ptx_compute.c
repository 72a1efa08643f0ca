/* SPDX-License-Identifier: Apache-2.0 */
/* What instructions of PTX compute where C would do otherwise (PTX ISA 9.0): NaN and numbers out of
 * range as integers, roundings of sums, integers that are narrower than their registers. */
#include <math.h>
#include <string.h>

#include "ptx_compute.h"
#include "tap.h"

static uint64_t f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static uint64_t f64(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void expect(const char *name, uint64_t a, uint64_t b, uint64_t c, uint64_t wanted)
{
    uint64_t got;
    const int rc = simt_ptx_compute(name, a, b, c, &got);
    ok(!rc && got == wanted, "%s of %llx, %llx, %llx: %llx, should be %llx", name,
       (unsigned long long)a, (unsigned long long)b, (unsigned long long)c, (unsigned long long)got,
       (unsigned long long)wanted);
}

static void test_integers_of_floats(void)
{
    expect("cvt.rzi.s32.f32", f32(NAN), 0, 0, 0);
    expect("cvt.rni.u16.f32", f32(NAN), 0, 0, 0);
    expect("cvt.rzi.s32.f64", f64(NAN), 0, 0, 0x80000000u);
    expect("cvt.rni.u32.f64", f64(NAN), 0, 0, 0x80000000u);
    expect("cvt.rzi.s64.f32", f32(NAN), 0, 0, (uint64_t)1 << 63);
    expect("cvt.rzi.u64.f64", f64(NAN), 0, 0, (uint64_t)1 << 63);
    expect("cvt.rzi.u32.f32", f32(-1), 0, 0, 0);
    expect("cvt.rzi.s32.f32", f32(3e9f), 0, 0, 0x7fffffff);
    expect("cvt.rzi.s64.f64", f64(-1e30), 0, 0, (uint64_t)1 << 63);
    expect("cvt.rzi.u64.f64", f64(0x1p63), 0, 0, (uint64_t)1 << 63);
    expect("cvt.rni.s32.f64", f64(2.5), 0, 0, 2);
    expect("cvt.sat.f32.f32", f32(NAN), 0, 0, 0);
    expect("cvt.sat.f32.f32", f32(-1), 0, 0, 0);
    expect("cvt.sat.f32.f32", f32(7), 0, 0, f32(1));
}

static void test_integers(void)
{
    expect("cvt.s16.s8", 0x1234ff80, 0, 0, 0xff80);
    expect("cvt.s8.s32", 0x1234ff80, 0, 0, 0x80);
    expect("cvt.sat.s8.s32", 0xfffffe00u, 0, 0, 0x80);
    expect("cvt.sat.u8.s32", 0xffffffffu, 0, 0, 0);
    expect("cvt.sat.s16.u32", 0xffffffffu, 0, 0, 0x7fff);
    expect("mul.wide.s16", 0xfffe, 3, 0, 0xfffffffau);
    expect("mad.wide.s16", 0xfffe, 3, 0xffffffffu, 0xfffffff9u);
    expect("mad.wide.u16", 0xffff, 0xffff, 0xffffffffu, 0xfffe0000u);
    expect("mad.wide.s32", 0xfffffffeu, 3, 7, 1);
}

/* 1 + tiny, where the sum in fp64 has lost tiny. */
static void test_roundings(void)
{
    const float tiny = 0x1p-60f, above = 1 + 0x1p-23f, below = 1 - 0x1p-24f;

    expect("fma.rm.f32", f32(1), f32(1), f32(tiny), f32(1));
    expect("fma.rp.f32", f32(1), f32(1), f32(tiny), f32(above));
    expect("fma.rz.f32", f32(1), f32(1), f32(tiny), f32(1));
    expect("fma.rm.f32", f32(1), f32(1), f32(-tiny), f32(below));
    expect("fma.rp.f32", f32(1), f32(1), f32(-tiny), f32(1));
    expect("fma.rz.f32", f32(1), f32(1), f32(-tiny), f32(below));
    expect("fma.rz.f32", f32(-1), f32(1), f32(tiny), f32(-below));
    expect("fma.rz.f32", f32(-1), f32(1), f32(-tiny), f32(-1));
    expect("fma.rm.f32", f32(1), f32(1), f32(-1), f32(-0.0f));
    expect("fma.rp.f32", f32(1), f32(1), f32(-1), f32(0));
    expect("fma.rm.f32", f32(0x1p127f), f32(2), f32(0), f32(0x1.fffffep127f));
    expect("fma.rp.f32", f32(0x1p127f), f32(2), f32(0), f32(INFINITY));
    expect("fma.rm.f32", f32(INFINITY), f32(1), f32(1), f32(INFINITY));
    expect("cvt.rz.f32.f64", f64(-1 - 0x1p-40), 0, 0, f32(-1));
}

int main(void)
{
    test_integers_of_floats();
    test_integers();
    test_roundings();
    return tap_done();
}
