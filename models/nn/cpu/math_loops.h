/* SPDX-License-Identifier: Apache-2.0 */
/* math_loops.h: functions of fp32 that loops over them can vectorise, which calls of libm's do not
 * without relaxed arithmetic. Private to models/nn. */
#ifndef NN_MATH_LOOPS_H
#define NN_MATH_LOOPS_H

#include <stdint.h>
#include <string.h>

/* 2^n exp(r) for |r| <= ln2/2, where t is the integer n plus 1.5 * 2^23: a polynomial for
 * (exp(r) - 1 - r) / r². */
static inline float nn_exp_reduced(float t, float r)
{
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    int32_t bits;
    memcpy(&bits, &t, sizeof bits);
    bits = (int32_t)((uint32_t)bits << 23) + (127 << 23);
    float two_n;
    memcpy(&two_n, &bits, sizeof two_n);
    return p * two_n;
}

#define NN_EXP_SHIFT 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer */

/* exp(x) within 1 ulp or so for x in [-87, 88], saturating outside. Range reduction to
 * |r| <= ln2/2 with a two-part ln2. */
static inline float nn_exp(float x)
{
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float t = x * 1.44269504088896341f + NN_EXP_SHIFT;
    float n = t - NN_EXP_SHIFT;
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    return nn_exp_reduced(t, r);
}

/* exp(x + low) for x in [-87, 0] and a low that is small: what an x of more than 24 bits has
 * left. */
static inline float nn_exp_sum(float x, float low)
{
    x = x < -87.0f ? -87.0f : x;
    float t = x * 1.44269504088896341f + NN_EXP_SHIFT;
    float n = t - NN_EXP_SHIFT;
    float r = x - n * 0.693359375f;
    r = (r + n * 2.12194440e-4f) + low;
    return nn_exp_reduced(t, r);
}

/* tanh(x) within 2 ulp or so: near 0 a polynomial for (tanh(x) - x) / x³ in x², else
 * 1 - 2 / (exp(2|x|) + 1). */
static inline float nn_tanh(float x)
{
    float a = x < 0 ? -x : x, sq = x * x;
    float p = -5.70498872745e-3f;
    p = p * sq + 2.06390887954e-2f;
    p = p * sq - 5.37397155531e-2f;
    p = p * sq + 1.33314422036e-1f;
    p = p * sq - 3.33332819422e-1f;
    float near = x + x * sq * p;
    float far = 1.0f - 2.0f / (nn_exp(2.0f * a) + 1.0f);
    far = x < 0 ? -far : far;
    return a < 0.625f ? near : far;
}

/* The normal distribution at x: Phi(x) = (1 + erf(x / sqrt(2))) / 2 within 5 ulp for x >= -12.9,
 * and its density, beyond |x| = 14 as at 14. Near 0 it is 1/2 + x times a polynomial in x². Else
 * the tail is exp(-a²/2) q / (a + 2) with a = |x|, where q is a polynomial in (a - 2) / (a + 2).
 * The square of a's upper half is exact, and the exponential gets the rest of the square apart. */
static inline float nn_normal(float x, float *density)
{
    float a = x < 0 ? -x : x, sq = x * x;
    a = a > 14.0f ? 14.0f : a;
    uint32_t bits;
    memcpy(&bits, &a, sizeof bits);
    bits &= 0xfffff000u;
    float high;
    memcpy(&high, &bits, sizeof high);
    float e = nn_exp_sum(-0.5f * high * high, (high - a) * (high + a) * 0.5f);
    float p = -7.654207998e-6f;
    p = p * sq + 1.134863710e-4f;
    p = p * sq - 1.186329941e-3f;
    p = p * sq + 9.973323410e-3f;
    p = p * sq - 6.649035992e-2f;
    p = p * sq + 3.989422801e-1f;
    float inv = 1.0f / (a + 2.0f), t = (a - 2.0f) * inv;
    float q = 1.993128518e-3f;
    q = q * t - 2.276709704e-3f;
    q = q * t - 6.907468009e-3f;
    q = q * t - 3.900810424e-4f;
    q = q * t + 3.672512350e-2f;
    q = q * t + 2.879328901e-2f;
    q = q * t - 3.314044939e-1f;
    q = q * t + 6.724080353e-1f;
    float tail = e * (q * inv), far = x < 0 ? tail : 1.0f - tail;
    *density = e * 0.39894228040143268f;
    return a < 1.0f ? 0.5f + x * p : far;
}

#endif
