/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of fp32 for loops against libm's in fp64. */
#include <float.h>

#include "nn_ref.h"

#include "nn/cpu/math_loops.h"

static float normal(float x)
{
    float density;
    return nn_normal(x, &density);
}

static float density(float x)
{
    float out;
    nn_normal(x, &out);
    return out;
}

static double exact_normal(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}

static double exact_density(double x)
{
    return exp(-x * x / 2) / sqrt(2 * M_PI);
}

/* Units in the last place of fp32 at x. */
static double ulp_at(double x)
{
    return ldexp(1, fmax(ilogb(x), -126) - 23);
}

/* The largest error between two numbers of one sign, in units. */
static double worst(float (*f)(float), double (*exact)(double), float from, float to, float *where)
{
    const float step = 1.00001f;
    double most = 0;
    for (float x = from; fabsf(x) <= fabsf(to); x *= step) {
        const double want = exact(x), off = fabs(f(x) - want) / ulp_at(want);
        if (!(off <= most)) {
            most = isfinite(off) ? off : 1e30;
            *where = x;
        }
    }
    return most;
}

static void check(const char *name, float (*f)(float), double (*exact)(double), float from,
                  float to, double bound)
{
    float where = 0;
    const double most = worst(f, exact, from, to, &where);
    ok(most <= bound, "%s from %g to %g: %.2f units, at %.9g", name, from, to, most, where);
}

int main(void)
{
    check("exp", nn_exp, exp, 1e-6f, 88, 2);
    check("exp", nn_exp, exp, -1e-6f, -87, 2);
    check("tanh", nn_tanh, tanh, 1e-9f, 40, 3);
    check("tanh", nn_tanh, tanh, -1e-9f, -40, 3);
    check("the normal distribution", normal, exact_normal, 1e-9f, 40, 2);
    check("the normal distribution", normal, exact_normal, -1e-9f, -12.9f, 5);
    check("its density", density, exact_density, 1e-9f, 12.9f, 3);
    check("its density", density, exact_density, -1e-9f, -12.9f, 3);
    ok(nn_tanh(0) == 0 && nn_tanh(1e30f) == 1 && nn_tanh(-1e30f) == -1 && isnan(nn_tanh(NAN)),
       "tanh of 0, of large numbers and of NaN");
    ok(normal(0) == 0.5f && normal(1e38f) == 1 && normal(-1e38f) < 1e-30f && normal(-1e38f) >= 0 &&
           isnan(normal(NAN)),
       "the normal distribution at 0, at large numbers and at NaN");
    ok(nn_exp(1000) < INFINITY && nn_exp(-1000) < 1e-37f, "exp saturates");
    return tap_done();
}
