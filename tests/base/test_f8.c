/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 8-bit floats, exhaustively: every code there and back, and around the middle between every two
 * neighbours. The values of the codes are computed from the formats' definitions.
 */
#include <math.h>

#include "fsdp/base.h"
#include "tap.h"

struct format {
    const char *name;
    int mantissa_bits, bias, ncodes; /* ncodes: finite ones that are not negative */
    double limit;                    /* what is above it is not finite */
    int above;                       /* the code of that */
    float (*decode)(uint8_t);
    uint8_t (*encode)(float);
};

static const struct format formats[] = {
    {"E4M3", 3, 7, 0x7f, 464, 0x7f, fsdp_f8_e4m3_to_f32, fsdp_f32_to_f8_e4m3},
    {"E5M2", 2, 15, 0x7c, 61440, 0x7c, fsdp_f8_e5m2_to_f32, fsdp_f32_to_f8_e5m2},
};

static double value_of(const struct format *f, int code)
{
    int exponent = code >> f->mantissa_bits, fraction = code & ((1 << f->mantissa_bits) - 1);
    if (!exponent)
        return ldexp(fraction, 1 - f->bias - f->mantissa_bits);
    return ldexp(fraction + (1 << f->mantissa_bits), exponent - f->bias - f->mantissa_bits);
}

static void test_codes(const struct format *f)
{
    int bad = 0;
    for (int code = 0; code < f->ncodes; code++)
        for (int sign = 0; sign < 2; sign++) {
            int full = code | sign << 7;
            float x = f->decode((uint8_t)full);
            bad += (double)x != (sign ? -value_of(f, code) : value_of(f, code));
            bad += !!signbit(x) != sign || f->encode(x) != full;
        }
    ok(bad == 0, "%s: every code has its value, and comes back", f->name);
}

/* Between codes a and a + 1: below the middle a, above it a + 1, in the middle the even one. */
static void test_rounding(const struct format *f)
{
    int bad = 0;
    for (int code = 0; code + 1 < f->ncodes; code++) {
        float middle = (float)((value_of(f, code) + value_of(f, code + 1)) / 2);
        for (int sign = 0; sign < 2; sign++) {
            float s = sign ? -1 : 1;
            int top = sign << 7;
            bad += f->encode(s * nextafterf(middle, 0)) != (code | top);
            bad += f->encode(s * middle) != ((code + (code & 1)) | top);
            bad += f->encode(s * nextafterf(middle, INFINITY)) != ((code + 1) | top);
        }
    }
    ok(bad == 0, "%s: rounds to the nearest, ties to even", f->name);
}

static void test_limits(const struct format *f)
{
    bool e4m3 = f->above == 0x7f;
    float limit = (float)f->limit, beyond = nextafterf(limit, INFINITY);
    ok(f->encode(nextafterf(limit, 0)) == f->ncodes - 1 && f->encode(beyond) == f->above &&
           f->encode(-beyond) == (f->above | 0x80) && f->encode(INFINITY) == f->above &&
           f->encode(limit) == (e4m3 ? f->ncodes - 1 : f->above),
       "%s: beyond the greatest value", f->name);
    ok(isnan(f->decode(f->encode(NAN))) && isnan(f->decode(0x7f)) && isnan(f->decode(0xff)),
       "%s: NaN stays NaN", f->name);
    ok(f->encode(1e-30f) == 0 && f->encode(-1e-30f) == 0x80, "%s: zeros keep their sign", f->name);
}

int main(void)
{
    for (int k = 0; k < 2; k++) {
        test_codes(&formats[k]);
        test_rounding(&formats[k]);
        test_limits(&formats[k]);
    }
    return tap_done();
}
