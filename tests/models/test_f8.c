/* SPDX-License-Identifier: Apache-2.0 */
/* Products in 8 bits: their arithmetic, value by value, and the CPU's operators. */
#include "suite_f8_experts.h"

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

/* A matrix that was gathered in 8 bits and decoded to bf16 has values that a product takes as they
 * are: whole, or a part of it with a scale of its own. */
static void test_gathered(float greatest)
{
    enum { NELEM = 1000 };
    float *x = f8_values(NELEM, FSDP_F32), back[NELEM];
    uint8_t codes[NELEM];
    uint16_t narrow[NELEM];
    double amax = 0;
    int nother = 0, nrounded = 0;

    for (int i = 0; i < NELEM; i++)
        amax = fmax(amax, fabs((double)x[i]));
    for (int i = 0; i < NELEM; i++)
        x[i] = fabs((double)x[i]) < amax ? (float)(x[i] / amax * greatest) : greatest;
    amax = greatest;
    const struct fsdp_dequantize_args args = {.dst = narrow,
                                              .dst_dtype = FSDP_BF16,
                                              .src = codes,
                                              .src_dtype = FSDP_F8_E4M3,
                                              .nelem = NELEM,
                                              .amax = &amax};
    int rc = fsdp_quantize(ref_lane(), codes, FSDP_F8_E4M3, x, NELEM, &amax, &err) |
             fsdp_dequantize(ref_lane(), &args, &err);
    rc |= fsdp_lane_sync(ref_lane(), &err);
    fsdp_cpu_convert(back, FSDP_F32, narrow, FSDP_BF16, NELEM);
    for (int first = 0; first < NELEM; first += NELEM / 4) {
        uint32_t most = 0;
        for (int i = first; i < NELEM; i++)
            most = nn_f8_magnitude(back[i]) > most ? nn_f8_magnitude(back[i]) : most;
        const int e = nn_f8_exponent(FSDP_F8_E4M3, most);
        for (int i = first; i < NELEM; i++) {
            const float code = nn_f8_round(nn_f8_type(FSDP_F8_E4M3), back[i] * nn_f8_power(-e));
            nother += code * nn_f8_power(e) != back[i];
            nrounded += back[i] != x[i];
        }
    }
    ok(!rc && nrounded > NELEM / 2 && !nother,
       "gathered in 8 bits, the greatest %.9g: %d values are rounded again", (double)greatest,
       nother);
    free(x);
}

int main(void)
{
    static const float greatest[] = {1, 1.75f, 1.7500002f, 1.82f, 3.9f, 3e-5f, 0x1.cp-103f, 4e30f};

    for (size_t i = 0; i < sizeof greatest / sizeof greatest[0]; i++)
        test_gathered(greatest[i]);
    test_values(FSDP_F8_E4M3, 448);
    test_values(FSDP_F8_E5M2, 57344);
    test_exponents(FSDP_F8_E4M3, 448);
    test_exponents(FSDP_F8_E5M2, 57344);
    run_f8(NN_F8_BLOCK);
    run_f8_experts();
    nn_set_threads(3);
    run_f8(NN_F8_BLOCK);
    run_f8_experts();
    return tap_done();
}
