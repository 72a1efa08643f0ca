/* SPDX-License-Identifier: Apache-2.0 */
/* Rates between the sizes at which they were measured. */
#include <math.h>

#include "plan/rates.h"
#include "tap.h"

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

static const struct fsdp_rate products[] = {
    {FSDP_F32, 64, 64, 64, 1e10},
    {FSDP_F32, 64, 64, 64, 3e10}, /* the same sizes in another direction */
    {FSDP_F32, 1024, 1024, 1024, 4e10},
    {FSDP_BF16, 64, 64, 64, 8e10},
};

static void check_products(void)
{
    const struct fsdp_rates rates = {products, 4};

    ok(near(rates_at(&rates, FSDP_F32, 64, 64, 64), 1.5e10),
       "two directions of one size: the rate of their mean time");
    ok(near(rates_at(&rates, FSDP_BF16, 4096, 64, 64), 8e10), "types are apart");
    ok(rates_at(&rates, FSDP_F16, 64, 64, 64) == 0, "a type that was not measured has no rate");
    const double between = rates_at(&rates, FSDP_F32, 256, 256, 256);
    ok(between > 1e10 && between < 4e10, "between two sizes the rate is between theirs");
}

static void check_attention(void)
{
    static const struct fsdp_rate rate[] = {
        {FSDP_F32, 16, 64, 1, 1e9},  {FSDP_F32, 64, 64, 1, 4e9},  {FSDP_F32, 64, 64, 2, 9e9},
        {FSDP_F32, 64, 256, 1, 2e9}, {FSDP_F32, 16, 256, 1, 2e9},
    };
    const struct fsdp_rates rates = {rate, 5};

    ok(near(rates_attention(&rates, FSDP_F32, 32, 64, false), 2e9),
       "attention: a straight line of logarithms between two lengths");
    ok(near(rates_attention(&rates, FSDP_F32, 4, 64, false), 1e9), "beyond them the nearest");
    ok(near(rates_attention(&rates, FSDP_F32, 64, 64, true), 9e9), "backward is apart");
    ok(near(rates_attention(&rates, FSDP_F32, 32, 200, false), 2e9),
       "of the nearest size of heads");
    ok(rates_attention(&rates, FSDP_F32, 64, 256, true) > 0,
       "a size without backward takes another's");
}

static void check_passes(void)
{
    static const struct fsdp_rate rate[] = {
        {FSDP_F32, 1e4, FSDP_PASS_COPY, 1, 1e10},  {FSDP_F32, 1e6, FSDP_PASS_COPY, 1, 4e10},
        {FSDP_F32, 1e6, FSDP_PASS_UPDATE, 1, 5e9}, {FSDP_BF16, 1e6, FSDP_PASS_LOSS, 1, 2e9},
        {FSDP_F32, 1e6, FSDP_PASS_BRANCH, 1, 3e9}, {FSDP_F32, 1e6, FSDP_PASS_BRANCH, 2, 6e9},
    };
    const struct fsdp_rates rates = {rate, 6};
    const struct fsdp_device_clock device = {
        .copies = rates, .memory_nbytes_per_s = 1, .memory_share = 1};

    ok(near(rates_pass(&rates, FSDP_PASS_COPY, false, FSDP_F32, 1e5), 2e10),
       "copies: a straight line of logarithms");
    ok(near(rates_pass(&rates, FSDP_PASS_UPDATE, false, FSDP_F32, 1e3), 5e9), "passes are apart");
    ok(near(rates_pass(&rates, FSDP_PASS_LOSS, false, FSDP_F32, 1e6), 2e9),
       "a type that was not measured takes another's");
    ok(near(rates_pass(&rates, FSDP_PASS_BRANCH, true, FSDP_F32, 1e6), 6e9),
       "directions are apart");
    ok(near(rates_pass(&rates, FSDP_PASS_SQUARES, false, FSDP_F32, 1e6), 4e10),
       "a pass that was not measured is a copy");
    ok(near(fsdp_pass_seconds(&device, FSDP_PASS_UPDATE, false, FSDP_F32, 1e6), 2e-4),
       "the clock takes the table, not the data sheet");
}

int main(void)
{
    check_products();
    check_attention();
    check_passes();
    return tap_done();
}
