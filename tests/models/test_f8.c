/* SPDX-License-Identifier: Apache-2.0 */
/* Products in 8 bits: their arithmetic, value by value, and the CPU's operators. */
#include "suite_f8.h"

#include "nn/f8.h"

/* Every code, what lies between two, and around the ends of the type. */
static void test_values(enum fsdp_dtype dtype, float greatest)
{
    const bool e5m2 = dtype == FSDP_F8_E5M2;
    int ncodes = 0, nwrong = 0;

    for (uint32_t bits = 0; bits < 0x7f800000u; bits += 0x1fff) {
        const float x = nn_f8_float(bits);
        const uint8_t want = e5m2 ? fsdp_f32_to_f8_e5m2(-x) : fsdp_f32_to_f8_e4m3(-x);
        const float value = e5m2 ? fsdp_f8_e5m2_to_f32(want) : fsdp_f8_e4m3_to_f32(want);
        if (x > greatest)
            break;
        const float got = nn_f8_round(nn_f8_type(dtype), -x);
        nwrong += got != value || nn_f8_code(dtype, got) != want;
        ncodes++;
    }
    for (int code = 0; code < 256; code++) {
        const float value =
            e5m2 ? fsdp_f8_e5m2_to_f32((uint8_t)code) : fsdp_f8_e4m3_to_f32((uint8_t)code);
        if (!isfinite(value))
            continue;
        const float got = nn_f8_round(nn_f8_type(dtype), value);
        nwrong += got != value || nn_f8_code(dtype, got) != code;
    }
    ok(ncodes > 100000 && !nwrong, "%s: %d values of %d are rounded otherwise",
       fsdp_dtype_name(dtype), nwrong, ncodes);
    ok(isnan(nn_f8_round(nn_f8_type(dtype), INFINITY)) &&
           nn_f8_code(dtype, nn_f8_round(nn_f8_type(dtype), -INFINITY)) == 0xff &&
           nn_f8_code(dtype, NAN) == 0x7f,
       "%s: what is not finite has the code of NaN", fsdp_dtype_name(dtype));
}

static bool is_least(enum fsdp_dtype dtype, double greatest, uint32_t bits)
{
    const float amax = nn_f8_float(bits);
    const int e = nn_f8_exponent(dtype, nn_f8_magnitude(-amax));
    return ldexp(amax, -e) <= greatest && nn_f8_power(e) == (float)ldexp(1, e) &&
           (e == NN_F8_LEAST || ldexp(amax, 1 - e) > greatest);
}

/* The scale is the least with which nothing is beyond the type. */
static void test_exponents(enum fsdp_dtype dtype, double greatest)
{
    int nwrong = 0;

    for (uint32_t bits = 0; bits < 0x7f800000u; bits += 0x12345)
        nwrong += !is_least(dtype, greatest, bits);
    for (uint32_t power = 0; power < 255; power++)
        for (uint32_t i = 0; i < 3; i++) /* around 1.75 times each power of two */
            nwrong += !is_least(dtype, greatest, (power << 23) + 0x5fffff + i);
    ok(!nwrong, "%s: %d scales are not the least", fsdp_dtype_name(dtype), nwrong);
}

int main(void)
{
    test_values(FSDP_F8_E4M3, 448);
    test_values(FSDP_F8_E5M2, 57344);
    test_exponents(FSDP_F8_E4M3, 448);
    test_exponents(FSDP_F8_E5M2, 57344);
    run_f8(NN_F8_BLOCK);
    nn_set_threads(3);
    run_f8(NN_F8_BLOCK);
    return tap_done();
}
